"""Foil's tied shapes at width 1024: what would its ablations of experts, layers and passes cost at 20 B tokens?

Question    Trained separately at the paper's size (arXiv 2609.35751): what does twice the experts, another pass, or
            another layer bring to a looped MoE whose attention is shared by passes?
Prediction  The paper's own: widening (8, 4, L) -> (16, 4, L) gains 0.038 nats at L = 2 and 0.049 at L = 8; passes 4 to
            8 gain 0.041 at (16, 4) and at most 0.033 at (8, 4) and (8, 8); (8, 8, 2) -> (16, 8, 2) only 1.2 times the
            gain of (4, 8, 2) -> (8, 8, 2). A plan: it prices itself and is not trained here.
Varies      (E, D, P) of the runs S1, S5 to S15 and N1 to N4, S15 with two prelude and two coda layers.
Held equal  Tokens, and nothing else.
Fixed       what experiments/foil_paper.py fixes, at its shorter horizon of 50,000 steps.
Found       Not run (smelt plan foil_shapes_paper --assume-flops-per-sec 4e14 --workers 1 prices it).
"""

from smelt import experiment, grid, papers

PAPER = experiment.module("foil_paper")
SHAPES = ("S1", *(f"S{number}" for number in range(5, 16)), "N1", "N2", "N3", "N4")

RUNS = grid.horizons(
    ladders={run: [papers.foil_run(run)] for run in SHAPES},
    num_tokens=[PAPER.STEPS[0] * PAPER.BATCH_SEQS * papers.FOIL_CONTEXT],
    recipe=PAPER.recipe,
    seeds=(0,),
    held="none",
    bound=0.0,
    convention="foil",
)
