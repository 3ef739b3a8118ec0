"""ArchSpec -> parameters, and parameters with tokens -> logits: embed, segments of stacked layers, norm, unembed.

    params = {embedding: {w_VD}, prelude | loop | coda: stacked layers, final_norm: {gain_D}, head: {w_DV},
              balance: {prelude | loop | coda: bias_KE}}

The leaves of a segment are stacked over its layers; where each pass has attention of its own, the attention leaves
lead with (passes, layers). A loop runs its passes, a pass its layers, and every visit makes its own keys and values.
`balance` holds what no gradient moves, the selection biases of a router that is balanced without a loss: one a stored
layer, shared over its passes (chosen: no source says). Absent parts (head when tied, gains when off, router of one
expert) are absent keys. All float32.

Letters: B batch, T position, D width, V vocabulary, E experts, K layers of a segment, N = B T tokens.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from smelt.errors import BadInput
from smelt.model.attention import Attention, Context, context
from smelt.model.experts import Experts
from smelt.model.initialisation import drawn, head_std, is_drawn, law
from smelt.model.layer import Layer, RMSNorm
from smelt.model.matmul import matmul
from smelt.model.routing import Router, Selection, SigmoidRouter
from smelt.spec import FFN, ArchSpec, Segment

Params = dict[str, Any]
Step = Callable[[jax.Array, Any], tuple[jax.Array, Any]]

# A stack of at most this many visits is written out: XLA on CPU copies what a scan keeps for the backward
# pass. Measured on one Zen 5 core at widths 24 and 48: 4 visits 20 %, the 6 of a looped stack 45 % faster than
# the scan, and compiled as fast. Deeper stacks are scanned, and recompute a visit in the backward pass: memory
# and compile time then do not grow with depth.
UNROLLED_VISITS = 16


class Aux(NamedTuple):
    """Router statistics: the losses averaged over the visits that have a router (0 where none has), and by segment
    the loads of each visit in order of execution, shares that sum to 1."""

    load_balance: Float[Array, ""]
    z_loss: Float[Array, ""]
    loads: dict[str, Float[Array, "visits E"]]


def layer_of(arch: ArchSpec, segment: Segment, selects: bool = False) -> nn.Module:
    """The module that serves every layer of a segment; parts of the user's own stand in the place of ours. selects: its
    router will be given a `Selection`."""
    own = {part.replaces: part.module(arch, segment.ffn) for part in arch.own}
    if "layer" in own:
        return own["layer"]
    if selects and "router" in own and len(inspect.signature(type(own["router"]).__call__).parameters) < 3:
        raise BadInput(
            f"{type(own['router']).__name__} takes no selection, so that its experts cannot be masked: give its "
            "__call__ a second argument, a smelt.model.Selection"
        )
    return Layer(
        attention=own.get("attention") or _attention(arch),
        router=(own.get("router") or _router(arch, segment.ffn)) if segment.ffn.has_router else None,
        experts=own.get("experts") or _experts(segment.ffn),
        norm_gain=arch.norm_gain,
    )


def _attention(arch: ArchSpec) -> nn.Module:
    heads = arch.attention
    return Attention(
        num_heads=heads.num_heads, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim, scale=heads.scale
    )


def _router(arch: ArchSpec, ffn: FFN) -> nn.Module:
    scores = arch.router.sigmoid
    if scores is None:
        return Router(num_experts=ffn.num_experts, top_k=ffn.top_k)
    return SigmoidRouter(
        num_experts=ffn.num_experts,
        top_k=ffn.top_k,
        num_heads=scores.num_heads,
        fusion=scores.fusion,
        views=ffn.views,
    )


def _experts(ffn: FFN) -> nn.Module:
    return Experts(
        num_experts=ffn.num_experts,
        width=ffn.width,
        shared_width=ffn.shared_width,
        latent_width=ffn.latent.width if ffn.latent else None,
        num_views=ffn.views.num_views if ffn.views else 1,
    )


def biased_segments(arch: ArchSpec) -> tuple[Segment, ...]:
    """Those whose routers are balanced by a selection bias."""
    scores = arch.router.sigmoid
    ours = arch.own_part("router") is None and arch.own_part("layer") is None
    biased = scores is not None and scores.bias_rate > 0 and ours
    return tuple(segment for segment in arch.segments if biased and segment.ffn.has_router)


@partial(jax.jit, static_argnums=0)
def init(arch: ArchSpec, key: jax.Array) -> Params:
    """Parameters of an architecture, drawn as `initialisation` says; the same key gives the same weights."""
    V, D = arch.vocab_size, arch.d_model
    params: Params = {
        segment.name: _segment_laws(arch, segment, jax.random.fold_in(key, i))
        for i, segment in enumerate(arch.segments)
    }
    params["embedding"] = {"w_VD": law((V, D), 1 / D if arch.tied_embeddings else 1.0)}
    if not arch.tied_embeddings:
        params["head"] = {"w_DV": law((D, V), head_std(arch))}
    if arch.norm_gain:
        params["final_norm"] = {"gain_D": law((D,), 0.0, mean=1.0)}
    if biased := biased_segments(arch):
        params["balance"] = {
            segment.name: {"bias_KE": law((segment.num_layers, segment.ffn.num_experts), 0.0)} for segment in biased
        }
    return drawn(params, key)


def _segment_laws(arch: ArchSpec, segment: Segment, key: jax.Array) -> Params:
    """The stacked leaves of a segment with their laws; a leaf whose module draws for itself comes drawn."""
    layer = layer_of(arch, segment)
    x_BTD = jnp.zeros((1, 2, arch.d_model))
    look = context(jnp.zeros((1, 2), jnp.int32), confine_attention=False)

    def stacked(init: Callable[[jax.Array], Any], shape: tuple[int, ...]) -> Params:
        laws = jax.eval_shape(init, key)
        if not all(map(is_drawn, jax.tree.leaves(laws, is_leaf=is_drawn))):
            own = init
            for _ in shape:
                own = jax.vmap(own)
            laws = jax.tree.map(
                lambda leaf, value: leaf if is_drawn(leaf) else value,
                laws,
                own(jax.random.split(key, shape)),
                is_leaf=is_drawn,
            )
        return jax.tree.map(
            lambda leaf: law((*shape, *leaf.value.shape), leaf.std, leaf.mean) if is_drawn(leaf) else leaf,
            laws,
            is_leaf=is_drawn,
        )

    params = stacked(lambda key: layer.init(key, x_BTD, look, 1.0).get("params", {}), (segment.num_layers,))
    if segment.num_attention_sets > 1:
        sets = (segment.num_attention_sets, segment.num_layers)
        params["attention"] = stacked(lambda key: layer.attention.init(key, x_BTD, look)["params"], sets)
    return params


def apply(
    arch: ArchSpec,
    params: Params,
    tokens_BT: Int[Array, "B T"],
    segments_BT: Int[Array, "B T"],
    *,
    confine_attention: bool,
    gamma: Float[Array, ""] | float = 1.0,
    mesh: Mesh | None = None,
    masked: Mapping[str, Bool[Array, "K E"]] | None = None,
) -> tuple[Float[Array, "B T V"], Aux]:
    """Logits for the token that follows each position. Equal segment ids mark one packed document.

    gamma: how far the further views have been ramped up, 0 to 1. mesh: the devices that experts are spread over, None
    for one. masked: segment -> the experts of each layer that no token may take, for probes; it must leave every layer
    as many as a token takes, which is checked where the mask is an array and not an argument of a jitted function.
    """
    if unknown := sorted(set(masked or {}) - {segment.name for segment in arch.segments}):
        known = ", ".join(segment.name for segment in arch.segments)
        raise BadInput(f"masked names {unknown[0]!r}, which this architecture has not: give some of {known}")
    if masked and arch.own_part("layer"):
        raise BadInput("masked is given, and a layer of one's own chooses its experts itself: leave masked out")
    look = context(segments_BT, confine_attention=confine_attention, gamma=gamma, mesh=mesh)
    w_VD = params["embedding"]["w_VD"]
    x_BTD = w_VD[tokens_BT]
    if arch.tied_embeddings:
        x_BTD *= arch.d_model
    stats = {}
    for segment in arch.segments:
        selection = _selection(segment, params, masked or {})
        x_BTD, stats[segment.name] = _run_segment(arch, segment, params[segment.name], selection, x_BTD, look)
    x_BTD = RMSNorm(arch.norm_gain).apply({"params": params.get("final_norm", {})}, x_BTD)
    w_DV = w_VD.T if arch.tied_embeddings else params["head"]["w_DV"]
    logits_NV = matmul(x_BTD.reshape(-1, arch.d_model), w_DV)
    return logits_NV.reshape(*tokens_BT.shape, arch.vocab_size), _aux(stats)


def _selection(segment: Segment, params: Params, masked: Mapping[str, jax.Array]) -> Selection | None:
    """The layers' biases and allowed experts, stacked; None where the segment has neither."""
    bias_KE = params.get("balance", {}).get(segment.name, {}).get("bias_KE")
    masked_KE = masked.get(segment.name)
    if masked_KE is not None:
        _check_masked(segment, masked_KE)
    if bias_KE is None and masked_KE is None:
        return None
    return Selection(bias_KE, None if masked_KE is None else ~masked_KE)


def _check_masked(segment: Segment, masked_KE: jax.Array) -> None:
    """Where the mask is known here (and not traced), it must leave every layer as many experts as a token takes."""
    wanted = (segment.num_layers, segment.ffn.num_experts)
    shape, kind = getattr(masked_KE, "shape", None), getattr(masked_KE, "dtype", None)
    if shape != wanted or kind != np.dtype(bool):
        raise BadInput(
            f"masked[{segment.name!r}] has shape {shape} and kind {kind}: give booleans of shape {wanted}, "
            "True where masked"
        )
    if isinstance(masked_KE, jax.core.Tracer):
        return
    left = int((~np.asarray(masked_KE)).sum(1).min())
    if left < segment.ffn.top_k:
        raise BadInput(
            f"masked[{segment.name!r}] leaves a layer {left} experts, a token takes {segment.ffn.top_k}: mask fewer"
        )


def _run_segment(
    arch: ArchSpec,
    segment: Segment,
    params: Params,
    selection: Selection | None,
    x_BTD: Float[Array, "B T D"],
    look: Context,
) -> tuple[Float[Array, "B T D"], Any]:
    """All passes over a segment; statistics come back stacked over its visits in order of execution."""
    layer = layer_of(arch, segment, selects=selection is not None)
    per_pass = segment.num_attention_sets > 1
    shared = {name: leaf for name, leaf in params.items() if not (per_pass and name == "attention")}

    def visit(x_BTD: jax.Array, of_layer: tuple[Params, Selection | None]) -> tuple[jax.Array, Any]:
        layer_params, chosen = of_layer
        extra = () if chosen is None else (chosen,)
        return layer.apply({"params": layer_params}, x_BTD, look, segment.residual_scale, *extra)

    unrolled = arch.effective_depth <= UNROLLED_VISITS

    def one_pass(x_BTD: jax.Array, own: Params) -> tuple[jax.Array, Any]:
        remat = visit if unrolled else jax.checkpoint(visit, prevent_cse=False)
        return _scan(remat, x_BTD, (shared | own, selection), segment.num_layers, unrolled)

    own = {"attention": params["attention"]} if per_pass else {}
    x_BTD, stats = _scan(one_pass, x_BTD, own, segment.num_passes, unrolled)
    return x_BTD, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), stats)


def _scan(step: Step, x_BTD: jax.Array, stacked: Any, length: int, unrolled: bool) -> tuple[jax.Array, Any]:
    """`jax.lax.scan`, or the same written out."""
    if not unrolled:
        return jax.lax.scan(step, x_BTD, stacked, length=length)
    outs = []
    for i in range(length):
        x_BTD, out = step(x_BTD, jax.tree.map(lambda leaf, i=i: leaf[i], stacked))
        outs.append(out)
    return x_BTD, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outs)


def _aux(stats: dict[str, Any]) -> Aux:
    routed = {name: of_visits for name, of_visits in stats.items() if of_visits is not None}
    if not routed:
        return Aux(jnp.zeros(()), jnp.zeros(()), {})
    return Aux(
        load_balance=jnp.concatenate([s.load_balance for s in routed.values()]).mean(),
        z_loss=jnp.concatenate([s.z_loss for s in routed.values()]).mean(),
        loads={name: s.load_E for name, s in routed.items()},
    )
