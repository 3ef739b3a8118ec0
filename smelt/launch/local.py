"""An experiment and a number of workers -> trained cells: starts worker processes here and watches their folders.

Cells are handed out longest first, so that the last ones are short; each worker claims what is free. Ctrl-C asks the
workers to stop after the step at hand, twice ends them at once; they also stop when this process is gone. Where runs
are spread over a mesh there is one worker, which has all cores and devices.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from smelt.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE
from smelt.experiment import Experiment
from smelt.grid import Cell
from smelt.launch import folder as folders
from smelt.launch.environment import available_cores, worker_environment
from smelt.launch.spread import Spread

GRACE_SECS = 30.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Of the cells of one call: how many are in which state, and what share of their FLOPs is done."""

    states: dict[str, int]
    flops_done: float
    flops_total: float
    elapsed_secs: float
    running: tuple[tuple[Cell, folders.Status], ...]

    @property
    def eta_secs(self) -> float | None:
        """None until a hundredth is done."""
        if self.flops_done < 0.01 * self.flops_total:
            return None
        return self.elapsed_secs * (self.flops_total / self.flops_done - 1)


def train(
    experiment: Experiment,
    cells: Sequence[Cell],
    num_workers: int | None,
    watch: Callable[[Progress], None],
    watch_every_secs: float = 1.0,
    spread: Spread = Spread(),  # noqa: B008 it is frozen
) -> int:
    """Train the given cells; returns an exit code of `errors`. num_workers None: one a core, or one a mesh."""
    if not cells:
        return EXIT_DONE
    cores = available_cores()
    num_workers = 1 if spread.mesh else min(num_workers or len(cores), len(cells))
    pinned = num_workers <= len(cores)
    threads = 1 if num_workers > 1 or not pinned else len(cores)
    flops = {cell.run.run_id: experiment.grid.train_flops(cell) for cell in cells}
    longest_first = sorted(cells, key=lambda cell: -flops[cell.run.run_id])
    started, ended = time.monotonic(), dict[str, folders.Status]()
    workers: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as scratch:
        listing = Path(scratch) / "cells"
        listing.write_text("\n".join(cell.run.run_id for cell in longest_first))
        experiment.folder.mkdir(parents=True, exist_ok=True)
        try:
            for slot in range(num_workers):
                command = [sys.executable, "-m", "smelt.launch.worker", str(experiment.path), "--cells", str(listing)]
                command += spread.words()
                if pinned and threads == 1:
                    command += ["--core", str(cores[slot])]
                number = slot + (spread.hosts.index if spread.hosts else 0)
                log = open(experiment.folder / f"worker-{number}.log", "ab")  # noqa: SIM115 the child keeps it
                with log:
                    workers.append(
                        subprocess.Popen(
                            command,
                            env=worker_environment(threads, spread.devices_of_host),
                            stdout=log,
                            stderr=log,
                            stdin=subprocess.DEVNULL,
                            start_new_session=True,
                        )
                    )
            while any(worker.poll() is None for worker in workers):
                time.sleep(watch_every_secs)
                watch(_progress(experiment, cells, flops, started, ended))
        except BaseException:
            _stop(workers)
            raise
        watch(_progress(experiment, cells, flops, started, ended))
    codes = {worker.returncode for worker in workers}
    if EXIT_RESUMABLE in codes:
        return EXIT_RESUMABLE
    return EXIT_DONE if codes == {EXIT_DONE} else EXIT_FAILED


def _stop(workers: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, grace, then SIGKILL; a second Ctrl-C cuts the grace short."""
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    with contextlib.suppress(KeyboardInterrupt):
        deadline = time.monotonic() + GRACE_SECS
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
            worker.wait()


def _progress(
    experiment: Experiment,
    cells: Sequence[Cell],
    flops: dict[str, float],
    started: float,
    ended: dict[str, folders.Status],
) -> Progress:
    """`ended` keeps what has a row, which is read once and not at every look."""
    states: dict[str, int] = {}
    running = []
    done = 0.0
    for cell in cells:
        run_id = cell.run.run_id
        found = ended.get(run_id) or folders.status(experiment.folder / run_id)
        if found.done:
            ended[run_id] = found
        states[found.state] = states.get(found.state, 0) + 1
        if found.done:
            done += flops[cell.run.run_id]
        elif found.state == "running":
            running.append((cell, found))
            done += flops[cell.run.run_id] * (found.step or 0) / cell.run.num_steps
    return Progress(states, done, sum(flops.values()), time.monotonic() - started, tuple(running))
