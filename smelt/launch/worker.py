"""An experiment's cells, one process -> trained cells: claim the next, train it, until none is left.

Runs that share a trunk (`smelt.trunk`) are one piece of work, trained by one process under a claim on the trunk, those
that leave it first before the others, so that no step of the trunk is trained twice.

`python -m smelt.launch.worker EXPERIMENT --cells FILE --core N` is started by `local`; it pins itself to a core before
jax is imported, keeps compiled programs between cells of one shape, and stops at SIGTERM or SIGINT after the step at
hand.

Where a run is spread over hosts, the first one's worker claims, trains and writes as it would alone and tells the
others which run is next; they train along and keep nothing. All of them stop where any one is asked to, at the same
step; what else is raised ends them all, since the others would wait for ever.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from smelt.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE
from smelt.grid import Cell
from smelt.launch.spread import Spread, join, spread
from smelt.spec import RunSpec


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("experiment")
    parser.add_argument("--cells", type=Path, required=True, help="file with a run_id a line, in order of preference")
    parser.add_argument("--core", type=int, default=None)
    parser.add_argument("--mesh")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--hosts")
    args = parser.parse_args(argv)
    if args.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {args.core})
    asked = spread(args.mesh, args.accumulate, args.hosts)
    return work(args.experiment, args.cells.read_text().split(), asked)


POLLS_TO_AGREE = 16  # hosts ask one another every so many steps whether to stop: to ask is to wait for the devices


class _Signals:
    """Sets a flag that is polled every step; a second signal ends the process at once."""

    def __init__(self) -> None:
        self.asked = False
        self.polls = 0
        self.parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(EXIT_RESUMABLE)
        self.asked = True

    def poll(self, many: bool) -> None:
        """many: whether this is one of several processes, all of which poll alike."""
        from smelt import parallel
        from smelt.train.run import Stopped

        asked = self.asked or os.getppid() != self.parent
        self.polls += 1
        if many and self.polls % POLLS_TO_AGREE:
            return
        if parallel.any_process(asked):
            raise Stopped


def work(experiment_path: str, run_ids: list[str], asked: Spread = Spread()) -> int:  # noqa: B008 it is frozen
    """Train the cells of these ids; returns an exit code of `errors`."""
    import grain  # noqa: F401 here, so that its import is no part of a run's time

    from smelt import experiment as experiments
    from smelt import parallel, trunk
    from smelt.data.corpus import open_corpus
    from smelt.launch import folder as folders
    from smelt.launch.allocator import keep_freed_memory
    from smelt.launch.environment import use_compilation_cache
    from smelt.train import forks
    from smelt.train.run import Programs, Stopped, tell, train_cell

    signals = _Signals()
    keep_freed_memory()
    use_compilation_cache()
    experiment = experiments.load(experiment_path)
    cells = {cell.run.run_id: cell for cell in experiment.grid.cells}
    trunks = trunk.by_trunk(cell.run for cell in cells.values())
    programs = Programs(join(asked), asked.accumulate)
    many = asked.hosts is not None
    last_arch = None
    failed = 0
    beaten = 0.0

    def folder_of(run: RunSpec) -> Path:
        return experiment.folder / run.run_id

    def ended(run: RunSpec) -> bool:
        return (folder_of(run) / "row.json").exists()

    def beat(held: Sequence[Path]) -> None:
        nonlocal beaten
        if time.monotonic() - beaten > folders.STALE_SECS / 9:
            beaten = time.monotonic()
            for folder in held:
                folders.heartbeat(folder)

    def attempt(cell: Cell, siblings: Sequence[RunSpec], trunk_folder: Path | None) -> None:
        """Train a cell that nobody has trained or is training; what it raises of its own is written down."""
        nonlocal failed, last_arch
        run, folder = cell.run, folder_of(cell.run)
        with folders.claim(folder) as mine:
            if not mine or ended(run):
                return

            def stop() -> None:
                signals.poll(many)
                beat([folder] if trunk_folder is None else [folder, trunk_folder])

            try:
                tell(folder, "running", step=0, num_steps=run.num_steps)
                corpus = open_corpus(run.data.corpus)
                parallel.text_from_first(json.dumps([run.run_id, [sibling.run_id for sibling in siblings]]))
                row = train_cell(experiment.name, experiment.grid, cell, folder, corpus, programs, stop, siblings)
                tell(folder, row["outcome"], step=run.num_steps, num_steps=run.num_steps)
                last_arch = run.arch
            except folders.Lost:
                raise
            except Stopped:
                tell(folder, "stopped", reason="asked to stop")
                raise
            except Exception as error:
                failed += 1
                (folder / "log.txt").write_text(traceback.format_exc())
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                tell(folder, "failed", reason=reason[:500])
                if many:
                    raise

    def follow(trunk_id: str, branches: Sequence[RunSpec]) -> None:
        """Train the branches of a trunk that are asked for, unless another process is at it."""
        runs = trunks[trunk_id]
        if len(runs) == 1:
            return attempt(cells[runs[0].run_id], (), None)
        trunk_folder = forks.folder_of(experiment.folder, runs[0])
        with folders.claim(trunk_folder) as mine:
            for run in branches if mine else ():
                siblings = [other for other in runs if other is not run and not ended(other)]
                attempt(cells[run.run_id], siblings, trunk_folder)

    def follow_first() -> int:
        """Train along whatever the first host says, in folders that nobody keeps."""
        while told := parallel.text_from_first(""):
            run_id, siblings = json.loads(told)
            cell = cells[run_id]
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch) / run_id
                folder.mkdir()
                corpus = open_corpus(cell.run.data.corpus)
                siblings = [cells[sibling].run for sibling in siblings]
                train_cell(
                    experiment.name,
                    experiment.grid,
                    cell,
                    folder,
                    corpus,
                    programs,
                    lambda: signals.poll(many),
                    siblings,
                )
        return EXIT_DONE

    if asked.follows:
        try:
            return follow_first()
        except Stopped:
            return EXIT_RESUMABLE

    # A trunk has the place of the first of its runs in the order of preference.
    queue = trunk.by_trunk(cells[run_id].run for run_id in run_ids)
    while queue:
        # A shape that was just trained needs no compilation: it goes first.
        trunk_id = next((key for key, runs in queue.items() if runs[0].arch == last_arch), next(iter(queue)))
        try:
            follow(trunk_id, queue.pop(trunk_id))
        except folders.Lost:
            if many:
                raise
        except Stopped:
            return EXIT_RESUMABLE
    parallel.text_from_first("")
    if all(map(ended, (cell.run for cell in cells.values()))):
        forks.sweep_empty(experiment.folder)
    return EXIT_FAILED if failed else EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
