"""State and a batch -> the next State: loss, gradient, clipping, AdamW with decoupled decay, in one jitted call.

    u = clip(grad);  m, v = Adam moments;  p <- p - share lr (m_hat / (sqrt(v_hat) + eps) + weight_decay p)

share is 1, or under muP the leaf's own (`model.rate_shares`). Decay touches matrices and the embedding, not the norm
gains (chosen: no paper says). Selection biases have no gradient and stand outside of all this: bias += bias_rate x
sign(mean load - load), the loads of a stored layer pooled over its passes and over the whole batch (the rule of
DeepSeek-V3; the pooling is chosen). The rate and the views' ramp are arguments, so that one compiled program serves
every budget, rate and schedule of a shape. Everything a run must carry over an interruption is in State.

On a mesh the batch is spread over all devices, experts over 'expert', and the moments also over 'data' (`parallel`).
`accumulate` cuts the batch into so many micro-batches of equal size, one after another: gradients, metrics and loads
are their means. Of what is no mean over tokens, the router losses and `max_load`, that is not the whole batch's value.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from smelt import model, parallel
from smelt.errors import BadInput
from smelt.spec import ArchSpec, DataSpec, OptimSpec

Params = dict[str, Any]


class State(NamedTuple):
    """All that a run carries from step to step; `step` counts completed ones."""

    params: Params
    optimizer: Any
    step: jax.Array


def _transform(optim: OptimSpec) -> optax.GradientTransformation:
    """Gradient -> direction, without the rate."""
    return optax.chain(
        optax.clip_by_global_norm(optim.clip_norm),
        optax.scale_by_adam(b1=optim.beta1, b2=optim.beta2, eps=optim.eps),
        optax.add_decayed_weights(optim.weight_decay, mask=_decayed),
    )


def _decayed(params: Params) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: not model.is_gain(path), params)


def init_state(arch: ArchSpec, optim: OptimSpec, seed: int) -> State:
    """The state before step 0: weights of the seed, zero moments."""
    params = model.init(arch, jax.random.fold_in(jax.random.key(seed), 0))
    return State(params, _transform(optim).init(_learned(params)), jnp.zeros((), jnp.int32))


def _learned(params: Params) -> Params:
    """What gradients move."""
    return {name: leaf for name, leaf in params.items() if name != "balance"}


def balanced(arch: ArchSpec, balance: Params, loads: dict[str, jax.Array]) -> Params:
    """The selection biases after a step, from the loads (visits, E) of each segment in order of execution."""
    moved = {}
    for segment in model.biased_segments(arch):
        assert arch.router.sigmoid is not None
        load_KE = loads[segment.name].reshape(segment.num_passes, segment.num_layers, -1).mean(0)
        excess_KE = load_KE - load_KE.mean(-1, keepdims=True)
        # Below a millionth of an even share it is rounding, whose sign would depend on the order of the sum.
        moves_KE = jnp.where(jnp.abs(excess_KE) * excess_KE.shape[-1] < 1e-6, 0.0, jnp.sign(excess_KE))
        bias_KE = balance[segment.name]["bias_KE"] - arch.router.sigmoid.bias_rate * moves_KE
        moved[segment.name] = {"bias_KE": bias_KE}
    return moved


def _step(
    state: State,
    tokens_BU: jax.Array,
    segments_BU: jax.Array,
    lr: jax.Array,
    gamma: jax.Array,
    *,
    arch: ArchSpec,
    optim: OptimSpec,
    confine_attention: bool,
    mesh: Mesh | None,
    accumulate: int,
) -> tuple[State, dict[str, jax.Array]]:
    learned, balance = _learned(state.params), state.params.get("balance")
    unlearned = {} if balance is None else {"balance": balance}

    def objective(learned: Params, tokens_BU: jax.Array, segments_BU: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        how = {"confine_attention": confine_attention, "gamma": gamma, "mesh": mesh}
        return model.losses(arch, learned | unlearned, tokens_BU, segments_BU, **how)

    grads, metrics = _gradient(objective, learned, (tokens_BU, segments_BU), accumulate)
    if mesh is not None:
        # Else the moments' sharding would reach into the backward pass, where it shards what batches are sharded by.
        grads = jax.lax.with_sharding_constraint(grads, parallel.shardings(mesh, grads))
    loads = metrics.pop("loads", {})
    direction, optimizer = _transform(optim).update(grads, state.optimizer, learned)
    shares = model.rate_shares(arch, learned)
    params = jax.tree.map(lambda p, u, share: p - (lr * share) * u, learned, direction, shares)
    if balance is not None:
        params["balance"] = balanced(arch, balance, loads)
    metrics["grad_norm"] = optax.tree.norm(grads)
    return State(params, optimizer, state.step + 1), metrics


def _gradient(
    objective: Callable[..., Any], learned: Params, windows: tuple[jax.Array, jax.Array], accumulate: int
) -> tuple[Params, dict[str, Any]]:
    """The gradient and the metrics: of the batch, or the means over its micro-batches."""
    gradient = jax.grad(objective, has_aux=True)
    if accumulate == 1:
        return gradient(learned, *windows)
    # Every so many-th window, so that a micro-batch is spread over the devices as the batch is.
    micro = jax.tree.map(lambda rows: rows.reshape(-1, accumulate, *rows.shape[1:]).swapaxes(0, 1), windows)

    def add(sums: Any, windows: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, gradient(learned, *windows)), None

    first = jax.tree.map(lambda rows: rows[0], micro)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(gradient, learned, *first))
    sums, _ = jax.lax.scan(add, zeros, micro)
    return jax.tree.map(lambda leaf: leaf / accumulate, sums)


def compile_step(
    arch: ArchSpec, optim: OptimSpec, data: DataSpec, mesh: Mesh | None = None, accumulate: int = 1
) -> Any:
    """The compiled step of a shape: call it with (state, tokens_BU, segments_BU, lr, gamma); the state is donated.

    Only what the program depends on is baked in, see `shape_key`. On a mesh the state lies as `state_shardings` says,
    and so does the next one. Raises BadInput where the batch does not divide into micro-batches."""
    if data.batch_seqs % accumulate:
        raise BadInput(f"--accumulate {accumulate} does not divide a batch of {data.batch_seqs}: give a divisor of it")
    shapes = jax.eval_shape(lambda: init_state(arch, optim, 0))
    window = jax.ShapeDtypeStruct((data.batch_seqs, data.seq_len + 1), jnp.int32)
    rate = jax.ShapeDtypeStruct((), jnp.float32)
    places: dict[str, Any] = {}
    if mesh is not None:
        rows, whole = parallel.batch_sharding(mesh, data.batch_seqs), parallel.everywhere(mesh)
        state = state_shardings(mesh, shapes)
        places = {"in_shardings": (state, rows, rows, whole, whole), "out_shardings": (state, whole)}
    static = {
        "arch": arch,
        "optim": _baked(optim),
        "confine_attention": data.confine_attention,
        "mesh": mesh,
        "accumulate": accumulate,
    }
    jitted = jax.jit(partial(_step, **static), donate_argnums=0, **places)
    return jitted.lower(shapes, window, window, rate, rate).compile()


def state_shardings(mesh: Mesh, state: State) -> State:
    """Where a state lies on a mesh; `state` may be of shapes."""
    return State(
        parallel.shardings(mesh, state.params),
        parallel.shardings(mesh, state.optimizer, over_data=True),
        parallel.everywhere(mesh),
    )


def shape_key(arch: ArchSpec, optim: OptimSpec, data: DataSpec) -> tuple[Any, ...]:
    """Runs with equal keys share a compiled program."""
    return arch, _baked(optim), data.batch_seqs, data.seq_len, data.confine_attention


def _baked(optim: OptimSpec) -> OptimSpec:
    """The fields that the program depends on; the schedule, which is an argument, is set to one value."""
    without_steps = dataclasses.replace(optim, warmup_steps=None, decay_steps=None)
    return dataclasses.replace(
        without_steps, peak_lr=1.0, schedule="wsd", warmup_frac=0.0, decay_frac=0.0, final_frac=0.0
    )
