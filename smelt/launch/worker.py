"""An experiment's cells, one process -> trained cells: claim the next, train it, until none is left.

`python -m smelt.launch.worker EXPERIMENT --cells FILE --core N` is started by `local`; it pins itself to a core before
jax is imported, keeps compiled programs between cells of one shape, and stops at SIGTERM or SIGINT after the step at
hand.
"""

import argparse
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from smelt.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("experiment")
    parser.add_argument("--cells", type=Path, required=True, help="file with a run_id a line, in order of preference")
    parser.add_argument("--core", type=int, default=None)
    args = parser.parse_args(argv)
    if args.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {args.core})
    return work(args.experiment, args.cells.read_text().split())


class _Signals:
    """Sets a flag that is polled every step; a second signal ends the process at once."""

    def __init__(self) -> None:
        self.asked = False
        self.parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(EXIT_RESUMABLE)
        self.asked = True

    def poll(self) -> None:
        from smelt.train.run import Stopped

        if self.asked or os.getppid() != self.parent:
            raise Stopped


def work(experiment_path: str, run_ids: list[str]) -> int:
    """Train the cells of these ids; returns an exit code of `errors`."""
    import grain  # noqa: F401 here, so that its import is no part of a run's time

    from smelt import experiment as experiments
    from smelt.data.corpus import open_corpus
    from smelt.launch import folder as folders
    from smelt.launch.allocator import keep_freed_memory
    from smelt.launch.environment import use_compilation_cache
    from smelt.train.run import Programs, Stopped, tell, train_cell

    signals = _Signals()
    keep_freed_memory()
    use_compilation_cache()
    experiment = experiments.load(experiment_path)
    programs = Programs()
    left = {cell.run.run_id: cell for cell in experiment.grid.cells if cell.run.run_id in set(run_ids)}
    queue = [left[run_id] for run_id in run_ids]
    last_arch = None
    failed = 0
    beaten = 0.0

    def beat(folder: Path) -> None:
        nonlocal beaten
        if time.monotonic() - beaten > folders.STALE_SECS / 9:
            beaten = time.monotonic()
            folders.heartbeat(folder)

    while queue:
        # A cell of the shape just trained needs no compilation: it goes first.
        cell = next((cell for cell in queue if cell.run.arch == last_arch), queue[0])
        queue.remove(cell)
        folder = experiment.folder / cell.run.run_id
        with folders.claim(folder) as mine:
            if not mine or (folder / "row.json").exists():
                continue

            def stop(folder: Path = folder) -> None:
                signals.poll()
                beat(folder)

            try:
                tell(folder, "running", step=0, num_steps=cell.run.num_steps)
                corpus = open_corpus(cell.run.data.corpus)
                row = train_cell(experiment.name, experiment.grid, cell, folder, corpus, programs, stop)
                tell(folder, row["outcome"], step=cell.run.num_steps, num_steps=cell.run.num_steps)
                last_arch = cell.run.arch
            except folders.Lost:
                continue
            except Stopped:
                tell(folder, "stopped", reason="asked to stop")
                return EXIT_RESUMABLE
            except Exception as error:
                failed += 1
                (folder / "log.txt").write_text(traceback.format_exc())
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                tell(folder, "failed", reason=reason[:500])
    return EXIT_FAILED if failed else EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
