"""Does one constant-rate trunk a size, left at four steps to decay, tell of the middle loop what whole runs tell?

Question    SMELT trains one run at a constant rate and forks six decays from it (arXiv 2609.01343). At byte level, with
            four decays from each of ten trunks an arm: what does loop_middle save, and is that the quickstart's answer,
            where every token count was a run of its own?
Prediction  It is: loop_middle needs more compute, the saving at the largest budget lies between -80 and -15 % and its
            interval excludes 0; at least 34 of 40 pairs favour the baseline, by 0.03 to 0.09 nats on average. Rows of
            a trunk share their luck, so that the interval comes out wider than the quickstart's (54 points) although
            twice as many rows are fitted. The gap in loss shrinks with the horizon, for the deeper model catches up.
            Written before the first run.
Varies      size (five) x the step at which the trunk is left (150, 350, 700, 1300) x {baseline, loop_middle} x two
            seeds.
Held equal  FLOPs per token (smelt's model FLOPs, head included), non-embedding parameters, KV cache, within 1 %.
Fixed       corpus `builtin` (bytes), context 128 with attention confined to a document, 512 tokens a step, the
            quickstart's AdamW and rate rule, 40 steps of warm-up, 120 of decay as 1 - sqrt to 5 % of the peak (SMELT
            decays by a cosine over 10 B tokens, 5 to 49 % of a run; here it is 8 to 44 %).
Found       Not run.
"""

from dataclasses import replace

from smelt import experiment, grid, variants
from smelt.spec import ArchSpec, DataSpec, OptimSpec

QUICKSTART = experiment.module("quickstart")


def recipe(arch: ArchSpec) -> tuple[OptimSpec, DataSpec]:
    """The quickstart's for every budget, but for a warm-up and a decay in whole steps, which are the same for every
    horizon, and a validation slice of half the size: there are twice as many runs."""
    optim, data = QUICKSTART.recipe(arch, 0.0)
    in_steps = replace(optim, warmup_frac=0.0, warmup_steps=40, decay_frac=0.0, decay_steps=120)
    return in_steps, replace(data, validation_tokens=65_536)


RUNS = grid.branches(
    ladder=QUICKSTART.LADDER[:5],
    variants=(variants.baseline, variants.loop_middle),
    recipe=recipe,
    fork_steps=(150, 350, 700, 1300),
    seeds=(0, 1),
    matcher=QUICKSTART.matcher,
    held="three_budgets",
    bound=0.01,
)
