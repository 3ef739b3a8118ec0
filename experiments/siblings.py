"""How do Looped-MoE's four siblings order at equal active parameters: MoE, dense, and both with the whole stack looped?

Question    Base, Looped, MoE and Looped-MoE (arXiv 2605.09165) share executed active parameters, hence tokens at a
            budget under the paper's FLOPs (6 N_active, no router); they differ in stored parameters.
Prediction  Loss orders MoE < Looped-MoE < dense < looped dense at 1.2e11 FLOPs, the paper's stated order; MoE below
            dense is the surest of the three, Looped-MoE below dense the least. Written before the first run.
Varies      {baseline (MoE), dense, loop_all (2x2), dense_loop_all} x three sizes x two budgets.
Fixed       what the quickstart fixes. Held equal: executed active parameters with embedding and head.
Found       As predicted, in the mean of three sizes at 1.2e11 FLOPs: MoE 2.179, Looped-MoE 2.246, dense 2.267, looped
            dense 2.300 nats; at 6e10 the same order. Cell by cell the gap of Looped-MoE to dense turns sign twice in
            six (0.02 nats in the mean, where one run spreads by 0.014 over seeds): not resolved here. Six runs an arm
            are too few for a saving. fits/siblings.csv.
"""

from smelt import experiment, grid, match, variants
from smelt.spec import ArchSpec

QUICKSTART = experiment.module("quickstart")


def matcher(arch: ArchSpec, variant: ArchSpec) -> match.Match:
    return match.match(arch, variant, context=QUICKSTART.CONTEXT, held="active_params", multiples={"width": 1})


RUNS = grid.isoflop(
    ladder=QUICKSTART.LADDER[1:5],
    sizes={6e10: (0, 1, 2), 1.2e11: (1, 2, 3)},
    variants=(variants.baseline, variants.dense, variants.loop_all, variants.dense_loop_all),
    recipe=QUICKSTART.recipe,
    seeds=(0,),
    matcher=matcher,
    held="active_params",
    bound=0.01,
    convention="looped_moe",
)
