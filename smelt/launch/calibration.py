"""A few shapes of a grid, timed here -> seconds, compile seconds and memory of every shape on this machine.

    seconds per token = flops_per_token / rate(flops_per_token)

The rate (model FLOP/s of one worker) is interpolated between the timed shapes in log flops_per_token and held at the
ends. Calibrations are kept in .cache/calibration.json by device, with the code they timed. Reading them needs no jax;
`python -m smelt.launch.calibration EXPERIMENT` makes them in a pinned worker's environment.
"""

import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smelt.errors import BadInput
from smelt.experiment import Experiment, load
from smelt.files import read_json, write_json
from smelt.grid import Cell
from smelt.launch.environment import CACHE, available_cores, use_compilation_cache, worker_environment

FILE = "calibration.json"
SHAPES_TIMED = 5
TIMED_SECS = 2.0
TIMED_STEPS = 40
TELLS = "calibration: "  # begins the lines that are passed on to the user
MAX_TIMED_STEP_FLOPS = 1e12  # a few tens of seconds on a CPU core


@dataclass(frozen=True, slots=True)
class Calibration:
    """Timed shapes of one device, by increasing FLOPs per token."""

    device: str
    points: tuple[dict[str, Any], ...]

    def secs_per_token(self, flops_per_token: float) -> float:
        """Of one worker, training steps only."""
        return flops_per_token / self._at(flops_per_token, "flops_per_sec")

    def compile_secs(self, flops_per_token: float) -> float:
        return self._at(flops_per_token, "compile_secs")

    def bytes_per_token(self, flops_per_token: float) -> float | None:
        """Temporary memory of a step, per token of the batch; None where it was assumed and not timed."""
        if any(point["temp_bytes_per_token"] is None for point in self.points):
            return None
        return self._at(flops_per_token, "temp_bytes_per_token")

    def covers(self, flops_per_token: float) -> bool:
        """Whether the shape lies between timed ones; an assumed rate is taken at its word."""
        ends = [point["flops_per_token"] for point in self.points if point["temp_bytes_per_token"] is not None]
        return not ends or 0.5 * min(ends) <= flops_per_token <= 2.0 * max(ends)

    def _at(self, flops_per_token: float, name: str) -> float:
        import numpy as np

        known = [math.log(point["flops_per_token"]) for point in self.points]
        values = [math.log(max(point[name], 1e-9)) for point in self.points]
        return math.exp(float(np.interp(math.log(flops_per_token), known, values)))


def kept() -> Calibration | None:
    """The newest calibration of this working folder, or None."""
    path = CACHE / FILE
    if not path.exists():
        return None
    newest = max(read_json(path).values(), key=lambda entry: entry["made_at"])
    points = sorted(newest["points"].values(), key=lambda point: point["flops_per_token"])
    return Calibration(newest["device"], tuple(points))


def assumed(flops_per_sec: float) -> Calibration:
    """A machine that is not at hand, by its sustained model FLOP/s: for the price of a grid elsewhere."""
    if not flops_per_sec > 0:
        raise BadInput(f"--assume-flops-per-sec is {flops_per_sec}: give a positive rate, e.g. 4e14")
    point = {
        "flops_per_token": 1.0,
        "flops_per_sec": flops_per_sec,
        "compile_secs": 60.0,  # assumed: what an accelerator's compiler takes for one shape
        "temp_bytes_per_token": None,
    }
    return Calibration(f"a machine assumed to sustain {flops_per_sec:.3g} FLOP/s", (point,))


def calibrate(experiment: Experiment, say: Callable[[str], None] = lambda line: None) -> Calibration:
    """Time a few shapes of the grid in a process of its own, set up like a worker, and keep the result. `say` is
    given a line a shape."""
    _shapes(experiment)
    command = [sys.executable, "-m", "smelt.launch.calibration", str(experiment.path)]
    said: list[str] = []
    with subprocess.Popen(command, env=worker_environment(1), stderr=subprocess.PIPE, text=True) as timing:
        for line in timing.stderr or ():
            said.append(line.strip())
            if line.startswith(TELLS):
                say(line.removeprefix(TELLS).strip())
    if timing.returncode != 0:
        last = (said or ["no message"])[-1]
        raise BadInput(f"the calibration of {experiment.name} failed: {last}")
    found = kept()
    if found is None:
        raise BadInput(f"the calibration of {experiment.name} left no {CACHE / FILE}")
    return found


def _shapes(experiment: Experiment) -> list[Cell]:
    """At most SHAPES_TIMED cells of different shape, spread evenly over FLOPs per token, both ends in."""
    by_shape: dict[Any, Cell] = {}
    for cell in experiment.grid.cells:
        step_flops = experiment.grid.flops_per_token(cell) * cell.run.data.tokens_per_step
        if step_flops <= MAX_TIMED_STEP_FLOPS:
            by_shape.setdefault((cell.run.arch, cell.run.data), cell)
    if not by_shape:
        raise BadInput(
            f"every step of {experiment.name} is over {MAX_TIMED_STEP_FLOPS:.0e} FLOPs, too long to time here: "
            "price it with --assume-flops-per-sec"
        )
    ordered = sorted(by_shape.values(), key=experiment.grid.flops_per_token)
    if len(ordered) <= SHAPES_TIMED:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (SHAPES_TIMED - 1))] for i in range(SHAPES_TIMED)]


def _main(path: str) -> None:
    import os

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {available_cores()[0]})
    from smelt.files import digest
    from smelt.launch.allocator import keep_freed_memory
    from smelt.spec import to_dict
    from smelt.train.fingerprint import code_fingerprint, device_kind

    keep_freed_memory()
    use_compilation_cache()
    experiment = load(path)
    device = device_kind()
    store = read_json(CACHE / FILE) if (CACHE / FILE).exists() else {}
    entry = store.setdefault(device, {"device": device, "points": {}})
    if entry.get("code_fingerprint") != code_fingerprint():
        entry |= {"code_fingerprint": code_fingerprint(), "points": {}}
    shapes = _shapes(experiment)
    for number, cell in enumerate(shapes, start=1):
        print(
            f"{TELLS}timing shape {number} of {len(shapes)}: {cell.variant} width {cell.run.arch.d_model}",
            file=sys.stderr,
            flush=True,
        )
        key = digest([to_dict(cell.run.arch), to_dict(cell.run.data), code_fingerprint(cell.run.arch.own)])
        if key not in entry["points"]:
            entry["points"][key] = _time_shape(experiment, cell)
    entry["made_at"] = time.time()
    write_json(CACHE / FILE, store)


def _time_shape(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    import jax
    import numpy as np

    from smelt.train.step import compile_step, init_state

    run = cell.run
    start = time.perf_counter()
    program = compile_step(run.arch, run.optim, run.data)
    compile_secs = time.perf_counter() - start
    window = (run.data.batch_seqs, run.data.seq_len + 1)
    tokens = np.random.default_rng(0).integers(0, run.arch.vocab_size, window, np.int32)
    segments = np.zeros(window, np.int32)
    state = init_state(run.arch, run.optim, 0)
    secs: list[float] = []
    while len(secs) < 3 or (sum(secs) < TIMED_SECS and len(secs) < TIMED_STEPS):
        start = time.perf_counter()
        state, _ = jax.block_until_ready(program(state, tokens, segments, np.float32(0.0), np.float32(1.0)))
        secs.append(time.perf_counter() - start)
    step_secs = sorted(secs[1:])[len(secs[1:]) // 2]
    flops_per_token = experiment.grid.flops_per_token(cell)
    memory = program.memory_analysis()
    return {
        "flops_per_token": flops_per_token,
        "flops_per_sec": flops_per_token * run.data.tokens_per_step / step_secs,
        "step_secs": step_secs,
        "compile_secs": compile_secs,
        "temp_bytes_per_token": memory.temp_size_in_bytes / run.data.tokens_per_step,
        "d_model": run.arch.d_model,
        "variant": cell.variant,
    }


if __name__ == "__main__":
    _main(sys.argv[1])
