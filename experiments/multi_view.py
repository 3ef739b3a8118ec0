"""Do several router heads, and expert inputs mixed from several views, lower the loss of a LatentMoE?

Question    Multi-Router sums the sigmoid scores of several heads; Multi-View lets the same heads mix, for every chosen
            expert, several projections of the hidden state. The paper's gains are 4.5e-3 nats for two heads, 5.1e-3 for
            three, 3.3e-3 to 4.5e-3 by another fusion, 2.4e-3 more for views, and a loss of 9.0e-3 where the mixing's
            gradient does not reach the routers (24 layers, 708 B tokens, spread between its runs 1.2e-3).
Prediction  None of the nine variants differs from one head by more than two standard errors of its mean over seeds: the
            paper's largest effect is half of what one seed moves here. If one does, it is `product`, whose small
            scores make gates uneven. Written before the first run.
Varies      {one head, two heads, three heads; two heads fused by max, product, geometric mean; two views mixed by the
            routers, by routers without gradient, by learned weights; three views} x three seeds.
Held equal  Tokens, and nothing else: a further head and a further view store 2.5 % more parameters each at this size
            (0.06 and 0.13 % at the paper's).
Fixed       corpus `builtin` (bytes), context 128 with attention confined to a document, 512 tokens a step, 400 steps,
            width 32, four layers of 16 experts top-4 on a latent of 16 beside a shared expert, selection biases that
            balance without a loss, AdamW, WSD.
Found       Nothing is resolved, as predicted in substance; by its letter the prediction missed once. Against one
            head, in nats (standard errors over three pairs): two heads -0.008 (0.4), three -0.012 (0.8), product
            +0.002 (0.1), geometric mean -0.012 (0.6), two views -0.002 (0.1), detached -0.014 (0.6), learned -0.016
            (0.8), three views +0.015 (1.0), but max -0.030 (5.7). By the seed spread of 0.020 (20 degrees of
            freedom), which is steadier than three pairs, a mean difference has a standard error of 0.017, so that max
            lies 1.8 of them below, the largest of nine. A gain of the paper's size (0.005) would want some 130 seeds
            an arm. Trained twice, since the arithmetic of gates changed: docs/experiments.md. fits/multi_view.csv;
            5.8 CPU-minutes.
"""

from dataclasses import replace

from smelt import experiment, grid, variants
from smelt.spec import FFN, ArchSpec, DataSpec, OptimSpec

QUICKSTART = experiment.module("quickstart")
NUM_STEPS = 400
# DeepSeek-V3 moves a bias by 0.001 a step over millions of steps; in 400 it would hardly move. Chosen, not tuned.
BIAS_RATE = 0.01


def backbone() -> ArchSpec:
    """One sigmoid head over 16 experts top-4, on a latent of half the width, beside one shared expert."""
    plain = replace(QUICKSTART.baseline(32), ffn=FFN(width=16, num_experts=16, top_k=4))
    latent = variants.latent_moe(plain, width=16, shared_width=32)
    return variants.sigmoid_router(latent, bias_rate=BIAS_RATE)


def recipe(arch: ArchSpec, num_tokens: float) -> tuple[OptimSpec, DataSpec]:
    """The quickstart's, with half its held-out text."""
    optim, data = QUICKSTART.recipe(arch, 0.0)
    return optim, replace(data, validation_tokens=65_536)


def heads(num_heads: int, fusion: str = "sum") -> ArchSpec:
    return variants.multi_router(backbone(), num_heads=num_heads, fusion=fusion)


def views(num_views: int, mixing: str = "routers") -> ArchSpec:
    return variants.multi_view(heads(num_views), mixing=mixing)


MODELS = {
    "one_head": backbone(),
    "two_heads": heads(2),
    "three_heads": heads(3),
    "two_heads_max": heads(2, "max"),
    "two_heads_product": heads(2, "product"),
    "two_heads_geometric_mean": heads(2, "geometric_mean"),
    "two_views": views(2),
    "two_views_detached": views(2, "routers_detached"),
    "two_views_learned": views(2, "learned"),
    "three_views": views(3),
}

RUNS = grid.horizons(
    ladders={label: [arch] for label, arch in MODELS.items()},
    num_tokens=[NUM_STEPS * 4 * QUICKSTART.CONTEXT],
    recipe=recipe,
    seeds=(0, 1, 2),
    held="none",
    bound=0.0,
)
