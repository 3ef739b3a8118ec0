"""A trained model with one sigmoid head -> the same model with several heads and views, its numbers unchanged.

    upcycle(arch, params, to_arch, key)     -> params of to_arch
    begin(folder, to_arch, optim, key)      -> the State from which training goes on, of a finished run's folder

While gamma is 0 the new model says what the old one said: the further views have not been ramped up, the fused scores
of the heads rank the experts as the one head did, and the gates are the same. What makes that so depends on the fusion
(no source says; chosen):

    sum              every head a copy: R s ranks as s does, and gates are ratios; selection biases times R
    max              every head a copy
    geometric mean   every head a copy
    product          the first head, and heads of weight 0, whose score is 1/2: s / 2^(R-1); biases over 2^(R-1)

Heads that are equal and equally used get equal gradients and stay one head for ever, so something must tell them apart.
Ratios of routers do: view m pulls at head m alone, as soon as gamma is above 0, and the views are drawn apart. Where no
views are mixed by the routers' gradient, `spread` moves equal heads by drawn weights of that share of their root mean
square, whose mean over the heads is 0: what that moves a sum, product or geometric mean by is of second order.

Measured (benchmarks/upcycle.md): a spread of 0.1 and of 1 costs 1.5e-5 and 1.5e-3 nats at the start; heads that are
summed come closer by a fifth and a quarter in 300 steps, while those of two mixed views go from 0 to 0.68 of their norm
apart. Of a maximum one unit in the last place decides which head a token trains, so that there 2^-22 is enough.

Optimizer moments are not carried over: training from here warms up again, which is also when gamma rises. It is no run
of a grid: a run is its spec alone, and where it began is no field of one. docs/upcycling.md goes from a run to it.

Letters: K layers of a segment, R heads, D width, E experts.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from smelt import model
from smelt.errors import BadInput
from smelt.files import read_json
from smelt.spec import FFN, ArchSpec, OptimSpec, SigmoidScores, run_from_dict
from smelt.train import checkpoint
from smelt.train.step import State, init_state

Params = dict[str, Any]


def upcycle(arch: ArchSpec, params: Params, to_arch: ArchSpec, key: jax.Array, *, spread: float = 0.0) -> Params:
    """Parameters of `to_arch` from trained ones of `arch`; `key` draws what is new. At spread 0 and gamma 0 logits
    differ by rounding alone.

    to_arch: `variants.multi_router` or `variants.multi_view` of an architecture with one sigmoid head; it may also
    have other loss coefficients, and a bias rate where there was none. Raises BadInput for any other difference, and
    where heads would stay equal for ever."""
    scores = _check(arch, to_arch, spread)
    made = model.init(to_arch, key)
    merged = _kept(params, made)
    for index, segment in enumerate(to_arch.segments):
        if not segment.ffn.has_router:
            continue
        w_KDE = params[segment.name]["router"]["w_RDE"][:, 0]
        merged[segment.name]["router"]["w_RDE"] = _heads(w_KDE, scores, jax.random.fold_in(key, index), spread)
        if segment.name in params.get("balance", {}):
            bias_KE = params["balance"][segment.name]["bias_KE"]
            merged["balance"][segment.name]["bias_KE"] = bias_KE * _scale(scores)
    return merged


def begin(folder: Path, to_arch: ArchSpec, optim: OptimSpec, key: jax.Array, *, spread: float = 0.0) -> State:
    """The state before step 0 of training `to_arch` from the weights of a finished run. Raises BadInput where the
    folder holds none, and as `upcycle`."""
    arch = run_from_dict(read_json(folder / "spec.json")).arch
    params = checkpoint.load_params(folder, jax.eval_shape(lambda: model.init(arch, key)))
    return init_state(to_arch, optim, 0)._replace(params=upcycle(arch, params, to_arch, key, spread=spread))


def _check(arch: ArchSpec, to_arch: ArchSpec, spread: float) -> SigmoidScores:
    """The scores of `to_arch`, which must be `arch` with more heads or views."""
    before, after = arch.router.sigmoid, to_arch.router.sigmoid
    if arch.own or to_arch.own:
        raise BadInput("parts of one's own cannot be upcycled: their parameters are the experiment's to carry over")
    if before is None or before.num_heads != 1 or any(segment.ffn.views for segment in arch.segments):
        heads = "a softmax router" if before is None else f"{before.num_heads} sigmoid heads, or views"
        raise BadInput(f"upcycling starts from one sigmoid head without views, this architecture has {heads}")
    if after is None:
        raise BadInput("upcycling leads to sigmoid heads, to_arch has a softmax router: apply variants.multi_router")
    if before.bias_rate > 0 and after.bias_rate == 0:
        raise BadInput("to_arch has bias_rate 0, which leaves out the trained selection biases: give a rate above 0")
    with_head = replace(
        to_arch,
        router=arch.router,
        ffn=_viewless(to_arch.ffn),
        outer_ffn=to_arch.outer_ffn and _viewless(to_arch.outer_ffn),
    )
    if with_head != arch:
        raise BadInput("to_arch differs in more than heads and views: make it of the trained architecture by variants")
    if not 0 <= spread <= 1:
        raise BadInput(f"spread is {spread}: give a share of the heads' weights, 0 to 1")
    equal_heads = len(_equal(after)) > 1
    pulled_apart = all(s.ffn.views and s.ffn.views.mixing == "routers" for s in to_arch.segments if s.ffn.has_router)
    if equal_heads and not pulled_apart and spread == 0:
        raise BadInput(
            f"{after.num_heads} equal heads fused by {after.fusion} would stay one head for ever where no views are "
            f"mixed by the routers: give a spread, such as {2.0**-22 if after.fusion == 'max' else 0.1:.2g}"
        )
    return after


def _viewless(ffn: FFN) -> FFN:
    return ffn if ffn.latent is None else replace(ffn, latent=replace(ffn.latent, views=None))


def _kept(params: Any, made: Any) -> Any:
    """`made` with the leaves of `params` in place of its own."""
    if not isinstance(made, dict):
        return params
    return {name: _kept(params[name], made[name]) if name in params else made[name] for name in made}


def _equal(scores: SigmoidScores) -> range:
    """The heads that begin alike."""
    return range(1 if scores.fusion == "product" else 0, scores.num_heads)


def _heads(
    w_KDE: Float[Array, "K D E"], scores: SigmoidScores, key: jax.Array, spread: float
) -> Float[Array, "K R D E"]:
    """The one head R times, or followed by heads of weight 0; the equal ones of them moved apart by `spread`."""
    w_KRDE = jnp.repeat(w_KDE[:, None], scores.num_heads, axis=1)
    if scores.fusion == "product":
        w_KRDE = w_KRDE.at[:, 1:].set(0)
    equal = jnp.asarray(_equal(scores), jnp.int32)
    if equal.size < 2 or spread == 0:
        return w_KRDE
    noise_KRDE = jax.random.normal(key, w_KRDE[:, equal].shape)
    noise_KRDE -= noise_KRDE.mean(1, keepdims=True)
    rms_K = jnp.sqrt(jnp.square(w_KDE).mean((1, 2)))
    return w_KRDE.at[:, equal].add(spread * rms_K[:, None, None, None] * noise_KRDE)


def _scale(scores: SigmoidScores) -> float:
    """Fused scores over those of the one head; a selection bias has to follow it."""
    if scores.fusion == "sum":
        return float(scores.num_heads)
    return 0.5 ** (scores.num_heads - 1) if scores.fusion == "product" else 1.0
