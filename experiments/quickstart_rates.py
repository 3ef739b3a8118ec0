"""Is the quickstart's rate rule fair to both arms, and how do the savings move at half and twice the rate?

Prediction  Each arm's optimum lies within a factor 2 of the rule at every size, the arms' optima differ by less than
            that, and the savings at 1.2e11 FLOPs move by less than their own interval. Written before the first run.
Varies      the quickstart's two smaller budgets, sizes and arms, at rates x1/2, x1 and x2.      Fixed  all else.
Found       As predicted. Over the ten cells the mean loss is lowest at the rule itself for both arms (baseline 2.387,
            2.378, 2.414 nats at x1/2, x1, x2; loop_middle 2.458, 2.434, 2.467); where the three points curve upward
            their vertex lies at 0.82 (baseline) and 0.84 (loop_middle) of the rule. The saving at 1.2e11 FLOPs is
            -28 % [-93, 10] at x1/2, -28 % [-62, 8] at x1 and -36 % [-175, 100] at x2: tuning does not turn the answer,
            and ten runs an arm do not resolve it. Single cells scatter by as much as a factor 2 in rate moves them.
            fits/quickstart_rates.csv; the savings by smelt fit quickstart_rates --variants "baseline, rate x2"
            "loop_middle, rate x2" and its like.
"""

import dataclasses
from collections.abc import Callable

from smelt import experiment, grid
from smelt.spec import RunSpec

FACTORS = {"rate x1/2": 0.5, "": 1.0, "rate x2": 2.0}


def rate_times(factor: float) -> Callable[[RunSpec], RunSpec]:
    def change(run: RunSpec) -> RunSpec:
        return dataclasses.replace(run, optim=dataclasses.replace(run.optim, peak_lr=factor * run.optim.peak_lr))

    return change


RUNS = grid.sweep(
    grid.only(experiment.load("quickstart").grid, budgets_flops=(6e10, 1.2e11), roles=("grid",)),
    {label: rate_times(factor) for label, factor in FACTORS.items()},
)
