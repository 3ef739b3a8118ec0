"""Do two combinations that no paper tried beat their parts: SMELT with untied attention, Foil with multi-view routing?

Question    At three matched budgets, does SMELT's loop gain from attention of its own in every pass (as Foil's does),
            and do Foil's flattened experts gain from two router heads that mix two views of each expert's input?
Prediction  Neither combination differs from its part by more than two standard errors of the mean over seeds: untied
            attention is paid for by experts here, and views moved 0.002 nats in the paper. All looped variants lie
            above the unlooped baseline, as the quickstart's did, and SMELT's two lie above Foil's two, whose expert
            sizes stay. Written before the first run.
Varies      {baseline, loop_middle, loop_middle_untied, foil, foil_multi_view} at one budget x three seeds.
Held equal  FLOPs per token (smelt's model FLOPs, head included), non-embedding parameters, KV cache, within 4 %.
Fixed       six layers of LatentMoE (16 experts top-4 on a latent of 16 beside a shared expert, one sigmoid head with
            selection biases) of width 32 as the baseline; corpus `builtin` (bytes), context 128 with attention confined
            to a document, 512 tokens a step, the quickstart's optimizer and rate rule.
Found       As predicted. Means over three pairs, in nats, with standard errors and in seed spreads (0.021, 10 degrees
            of freedom, by which a mean difference has a standard error of 0.017): untied attention costs SMELT 0.018
            (0.8 s.e.), views and heads bring Foil 0.024 (1.8 s.e., 1.2 spreads). All four lie above the baseline:
            foil_multi_view +0.023, loop_middle +0.034, foil +0.047, loop_middle_untied +0.052; SMELT's two above
            Foil's two by 0.008 in the mean, which is nothing. Trained twice, since latent and shared expert follow
            the width: docs/experiments.md. fits/combinations.csv; 5.3 CPU-minutes.
"""

from dataclasses import replace

from smelt import experiment, grid, match, variants
from smelt.spec import ArchSpec

QUICKSTART = experiment.module("quickstart")
MULTI_VIEW = experiment.module("multi_view")
BUDGET_FLOPS = 1.5e11


def loop_middle_untied(arch: ArchSpec) -> ArchSpec:
    """SMELT's middle half twice, each pass with attention of its own."""
    return variants.untie_attention(variants.loop_middle(arch))


def foil(arch: ArchSpec) -> ArchSpec:
    """One prelude and one coda layer; the four between are flattened twice, (E, 4, 1) -> (4E, 1, 4), and untied."""
    between = variants.loop_span(arch, num_layers=4, num_passes=1, residual_scale=1.0)
    return variants.untie_attention(variants.flatten(variants.flatten(between)))


def foil_multi_view(arch: ArchSpec) -> ArchSpec:
    """The same with two heads and two views in every layer, prelude and coda too."""
    return foil(variants.multi_view(variants.multi_router(arch, num_heads=2)))


def matcher(arch: ArchSpec, variant: ArchSpec) -> match.Match:
    return match.match(arch, variant, context=QUICKSTART.CONTEXT, multiples={"d_model": 1, "width": 1})


BACKBONE = replace(MULTI_VIEW.backbone(), loop=replace(MULTI_VIEW.backbone().loop, num_layers=6))

RUNS = grid.isoflop(
    ladder=[BACKBONE],
    sizes={BUDGET_FLOPS: (0,)},
    variants=(variants.baseline, variants.loop_middle, loop_middle_untied, foil, foil_multi_view),
    recipe=MULTI_VIEW.recipe,
    seeds=(0, 1, 2),
    matcher=matcher,
    held="three_budgets",
    bound=0.04,
)
