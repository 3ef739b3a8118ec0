"""Worker processes on a grid of two trunks: each trunk is one worker's, and a killed one's is taken over."""

import json
import os
import subprocess
import sys
import time

from smelt import experiment as experiments
from smelt import trunk
from smelt.train.forks import TRUNKS

BRANCHES = '''"""Branches: is no step of a trunk trained twice?"""

import dataclasses

from tests.conftest import OPTIM, architecture
from smelt import grid, variants
from smelt.spec import DataSpec

IN_STEPS = dataclasses.replace(OPTIM, warmup_frac=0.0, warmup_steps=4, decay_frac=0.0, decay_steps=30)
DATA = DataSpec(corpus="words", seq_len=16, batch_seqs=2, confine_attention=True, validation_tokens=512)

RUNS = grid.branches(
    ladder=[architecture(num_layers=1)],
    variants=(variants.baseline,),
    recipe=lambda arch: (IN_STEPS, DATA),
    fork_steps=(20, 100, 400),
    seeds=(0, 1),
    matcher=None,
    held="none",
    bound=0.0,
)
'''


def test_a_trunk_has_one_worker_at_a_time_and_survives_the_one_that_is_killed(workplace):
    experiment = experiments.load(str(workplace(BRANCHES)))
    listing = experiment.path.with_name("cells")
    listing.write_text("\n".join(cell.run.run_id for cell in reversed(experiment.grid.cells)))
    command = [sys.executable, "-m", "smelt.launch.worker", str(experiment.path), "--cells", str(listing)]

    def start():
        path = f"{os.environ.get('PYTHONPATH', '')}:{experiments.ROOT}"
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})

    first = start()
    deadline = time.monotonic() + 120
    while not list(experiment.folder.glob("*/row.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    first.kill()
    first.wait()
    ended = {path.parent.name for path in experiment.folder.glob("*/row.json")}
    assert 1 <= len(ended) < 6
    assert [worker.wait(timeout=120) for worker in [start(), start()]] == [0, 0]

    for runs in trunk.by_trunk(cell.run for cell in experiment.grid.cells).values():
        begun = [_begun_at(experiment.folder / run.run_id) for run in runs]
        assert begun == [0, 20, 100]
        for run in runs:
            lines = (experiment.folder / run.run_id / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(line)["step"] for line in lines] == list(range(run.num_steps))
    assert not (experiment.folder / TRUNKS).exists()


def _begun_at(folder):
    assert (folder / "row.json").exists()
    told = folder / "fork.json"
    return json.loads(told.read_text())["step"] if told.exists() else 0
