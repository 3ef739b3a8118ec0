"""Is a router with a hidden layer worth its compute: does it choose so well that narrower experts do, byte level?

Question    No paper here asks it: their routers are one matrix. A hidden layer of the model's width lets a router
            choose by conjunctions of features; at equal budgets its weights and FLOPs are taken from the experts.
Prediction  No: in the mean of the pairs two_layer is 0 to 0.02 nats worse, for experts of 7/8 of their width, and the
            interval of its saving includes 0. Attention and the layers before have already mixed what a matrix would
            have to tell apart, and 8 experts are few to choose from. Written before the first run.
Varies      {baseline, two_layer} x size (five) x training FLOPs (6e10, 1.2e11); two more seeds of the baseline at the
            middle size of each budget.
Held equal  FLOPs per token (smelt's model FLOPs), non-embedding parameters and KV cache, all within 1 %: the matcher
            makes the experts narrower for the router's FLOPs and adds one for their parameters.
Fixed       what the quickstart fixes, its rate rule included; expert width here is what makes a pair match within 1 %.
Found       No, as predicted, and a little clearer: two_layer is worse in 9 of 10 pairs, by 0.024 nats in the mean (its
            standard error 0.006; one run spreads by 0.012 over seeds), above the predicted 0.02. The saving at 1.2e11
            FLOPs is -13 % [-67, +6.5]: it includes 0, for two budgets say little of compute. Whether the router chooses
            worse or the experts miss their width is not told apart here. fits/own_router.csv; 5.4 CPU-minutes.

The router is of this file's own: smelt knows no such part. `docs/own_parts.md` teaches how it is done.
"""

from dataclasses import dataclass, replace

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from smelt import experiment, grid, match, model, variants
from smelt.spec import FFN, ArchSpec, Own

QUICKSTART = experiment.module("quickstart")
# d_model -> query heads, expert width.
SHAPES = {10: (1, 14), 12: (1, 14), 16: (2, 21), 20: (2, 28), 24: (2, 29), 28: (2, 36)}


class TwoLayer(nn.Module):
    """logits = silu(x W) W', then the softmax routing of the built-in router. H hidden units."""

    num_hidden: int
    num_experts: int
    top_k: int

    @nn.compact
    def __call__(self, x_ND: Float[Array, "N D"]) -> model.Routing:
        D, H = x_ND.shape[-1], self.num_hidden
        w_DH = self.param("w_DH", model.matrix(fan_in=D), (D, H))
        w_HE = self.param("w_HE", model.matrix(fan_in=H), (H, self.num_experts))
        return model.route(model.matmul(jax.nn.silu(model.matmul(x_ND, w_DH)), w_HE), self.top_k)


@dataclass(frozen=True)
class TwoLayerRouter(Own):
    """A hidden layer as wide as the model."""

    replaces = "router"

    def module(self, arch: ArchSpec, ffn: FFN) -> nn.Module:
        return TwoLayer(num_hidden=arch.d_model, num_experts=ffn.num_experts, top_k=ffn.top_k)

    def num_params(self, arch: ArchSpec, ffn: FFN) -> int:
        return arch.d_model * (arch.d_model + ffn.num_experts)


def baseline(d_model: int) -> ArchSpec:
    """The quickstart's architecture in this ladder's shapes."""
    num_heads, width = SHAPES[d_model]
    arch = QUICKSTART.baseline(16)
    heads = replace(arch.attention, num_heads=num_heads)
    return replace(arch, d_model=d_model, attention=heads, ffn=replace(arch.ffn, width=width))


def two_layer(arch: ArchSpec) -> ArchSpec:
    return replace(arch, own=(TwoLayerRouter(),))


def matcher(arch: ArchSpec, variant: ArchSpec) -> match.Match:
    """The experts pay for the router: nothing but their width and number moves."""
    context = QUICKSTART.CONTEXT
    free = ("width", "num_experts")
    return match.match(arch, variant, context=context, free=free, multiples={"width": 1}, bound=0.01)


RUNS = grid.isoflop(
    ladder=[baseline(d_model) for d_model in SHAPES],
    sizes={6e10: range(0, 5), 1.2e11: range(1, 6)},
    variants=(variants.baseline, two_layer),
    recipe=QUICKSTART.recipe,
    seeds=(0,),
    matcher=matcher,
    held="three_budgets",
    bound=0.01,
    extra_seeds={(6e10, 2): (1, 2), (1.2e11, 3): (1, 2)},
)
