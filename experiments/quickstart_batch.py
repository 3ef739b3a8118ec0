"""Is the quickstart's batch of 512 tokens fair to both arms?

Prediction  Half the batch is within 0.02 nats and twice the batch worse, for both arms alike (the steps are few); the
            difference between the arms moves by less than 0.02 nats. Written before the first run.
Varies      batch of 256, 512, 1024 tokens at equal tokens, two sizes of the quickstart's 1.2e11 FLOPs, both arms.
Fixed       the rate: scaled with the root of the batch, as AdamW's noise scale suggests (Malladi et al., 2022).
Found       Half the batch is within 0.03 nats and twice the batch worse, for both arms: 512 tokens favour neither. The
            arms differ (loop_middle - baseline) by 0.040 and 0.066 nats at half the batch, by 0.073 and 0.074 at the
            batch, by 0.076 and 0.066 at twice. That moves by up to 0.033, more than predicted and about what other
            seeds of the four runs would move it (0.029); it never turns. fits/quickstart_batch.csv.
"""

import dataclasses
import math
from collections.abc import Callable

from smelt import experiment, grid
from smelt.spec import RunSpec


def batch_times(factor: float) -> Callable[[RunSpec], RunSpec]:
    def change(run: RunSpec) -> RunSpec:
        return dataclasses.replace(
            run,
            data=dataclasses.replace(run.data, batch_seqs=round(factor * run.data.batch_seqs)),
            optim=dataclasses.replace(run.optim, peak_lr=math.sqrt(factor) * run.optim.peak_lr),
            num_steps=round(run.num_steps / factor),
        )

    return change


RUNS = grid.sweep(
    grid.only(experiment.load("quickstart").grid, budgets_flops=(1.2e11,), roles=("grid",), sizes=(2, 3)),
    {"batch x1/2": batch_times(0.5), "": batch_times(1.0), "batch x2": batch_times(2.0)},
)
