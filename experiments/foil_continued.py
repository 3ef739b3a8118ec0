"""Does Foil's flattening gain on its base when both are continued from before the decay to a longer horizon?

Question    Foil (arXiv 2609.35751) continues its 20 B-token runs from the step before their decay to 100 B tokens: its
            flattened models gain (foil_1 from -0.007 to -0.012 nats), as twice the experts have longer to learn. Here
            base (8, 8, 2) and foil_3 (16, 4, 4), attention untied, are continued to three times the steps.
Prediction  foil_3 lies within 0.04 nats of base at both horizons (two seed spreads of experiments/foil.py, there
            -0.005 at 400 steps), and the difference moves by less than that: not resolvable with one seed. Both gain
            more than 0.1 nats by the longer horizon. Written before the first run.
Varies      {base, foil_3} x decay forked at step 300 and at step 900 of one trunk; one seed.
Held equal  E_real, E_comp and executed depth, exactly, and tokens.
Fixed       what experiments/foil.py fixes, with a warm-up of 20 and a decay of 100 steps for both horizons.
Found       As predicted. foil_3 lies 0.031 nats below base at 400 steps and 0.016 below at 1,000: both within 0.04, the
            difference moves by 0.015 the other way from the paper's, and neither is resolved by one seed (a pair of
            single runs scatters by 0.031 at the seed spread of experiments/foil.py). Continuing gains 0.296 and 0.281
            nats. The trunk was trained once: 1,100 steps an arm instead of 1,400. fits/foil_continued.csv; 1.3
            CPU-minutes.
"""

from dataclasses import replace

from smelt import experiment, grid, variants
from smelt.spec import ArchSpec, DataSpec, OptimSpec

FOIL = experiment.module("foil")


def base(arch: ArchSpec) -> ArchSpec:
    return arch


def foil_3(arch: ArchSpec) -> ArchSpec:
    return variants.flatten(arch)


def recipe(arch: ArchSpec) -> tuple[OptimSpec, DataSpec]:
    """Foil's toy recipe in whole steps, so that the longer run is the shorter one continued from before its decay."""
    optim, data = FOIL.recipe(arch, 0.0)
    return replace(optim, warmup_frac=0.0, warmup_steps=20, decay_frac=0.0, decay_steps=100), data


RUNS = grid.branches(
    ladder=[FOIL.toy(8, 8, 2, untied=True)],
    variants=(base, foil_3),
    recipe=recipe,
    fork_steps=(300, 900),
    seeds=(0,),
    matcher=None,
    held="expert_budget",
    bound=0.0,
    convention="foil",
)
