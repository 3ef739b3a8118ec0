"""What is told of a grid while it trains."""

import time

from smelt import experiment as experiments
from smelt import ledger
from smelt.launch import local
from tests import synthetic
from tests.conftest import PULSE


def test_a_row_is_read_once_while_the_others_are_watched(workplace):
    experiment = experiments.load(str(workplace(PULSE)))
    first, second = experiment.grid.cells
    flops = {cell.run.run_id: 1.0 for cell in (first, second)}
    row = next(iter(synthetic.planted_rows(synthetic.planted_grid())))
    folder = experiment.folder / first.run.run_id
    folder.mkdir(parents=True)
    ledger.write(folder, row | {"run_id": first.run.run_id})
    ended = {}
    for _ in range(2):
        told = local._progress(experiment, (first, second), flops, time.monotonic(), ended)
        assert told.states == {"finished": 1, "planned": 1}
        assert told.flops_done == 1.0
        (folder / "row.json").write_text("read again, it would be refused")
