"""Does the quickstart's baseline beat itself when only the seed differs?

Prediction  No: the 95 % intervals of the three savings at 4.8e11 FLOPs include 0, and so do those of the mean
            differences over pairs. With one chance in twenty each, one miss of the six would be no surprise, two
            would. Written before the first run.
Varies      the seed (weights and order of the documents): 0 to 3, over the whole grid of the quickstart's baseline.
Fixed       all else. Arms share no tokens, so their differences scatter by more than those of matched pairs do.
Found       As predicted. At 4.8e11 FLOPs the seeds 1, 2 and 3 save 1.8 % [-30.9, 16.3], 4.8 % [-14.4, 22.0] and 1.2 %
            [-29.1, 17.7] over seed 0; so do the surfaces at the other three budgets. The mean differences over 20 cells
            are 0.004 [-0.011, 0.019], -0.007 [-0.021, 0.006] and -0.002 [-0.018, 0.015] nats. Seed 2 alone would be
            said to save at 6e10 FLOPs (12 % [4, 18]) and at 1.2e11 (7 % [1, 12]) by laws through its minima: two of
            the 24 intervals that no verdict stands on. One run spreads by 0.021 nats over seeds (60 degrees of
            freedom), more than the 0.014 of the quickstart's two cells (4 degrees). fits/quickstart_aa.csv.
"""

import dataclasses
from collections.abc import Callable

from smelt import experiment, grid
from smelt.spec import RunSpec


def under_seed(seed: int) -> Callable[[RunSpec], RunSpec]:
    def change(run: RunSpec) -> RunSpec:
        return dataclasses.replace(run, seed=seed)

    return change


RUNS = grid.sweep(
    grid.only(experiment.load("quickstart").grid, roles=("grid",), variants=("baseline",)),
    {"": under_seed(0), **{f"seed {seed}": under_seed(seed) for seed in (1, 2, 3)}},
)
