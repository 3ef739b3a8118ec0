"""The command line on the quickstart -> wall seconds of every verb and light import, a process each, as markdown.

`python -m benchmarks.cli [--before FOLDER] [--runs N] [--only WORD ...]` works in a scratch folder: run folders made of
the committed rows, and a small corpus under the name that the quickstart asks for. Every run is a process of its own,
started with the compiled bytecode of the runs before it, as a user's second one is. FOLDER is another checkout: both
are then run in turns, and the last columns are the median over turns of the second time over the first.

Intervals are those of a median by ranks, 95 % or a little more. CPU seconds are of all cores; they move less than wall
seconds where the machine is shared.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smelt import ledger, terminal
from smelt.data import corpus, sources
from smelt.data.documents import Recipe
from smelt.launch.environment import available_cores
from smelt.train import evaluate
from smelt.train.fingerprint import processor_name

ROOT = Path(__file__).resolve().parent.parent
DOMAIN = "val_loss_nats."
ROOMS = ("spec", "variants", "trunk", "budget", "match", "grid", "ledger", "fit", "foreign", "plan", "own", "cli")
COMMITTED = "(committed rows) "  # begins a verb that is run where nothing was trained
VERBS = (
    "--help",
    "plan quickstart",
    "match quickstart",
    "status quickstart",
    "compare quickstart/loop_middle quickstart/baseline",
    f"{COMMITTED}compare quickstart/loop_middle quickstart/baseline",
    "savings quickstart",
    "fit quickstart",
    "report quickstart --out report.html",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path, help="another checkout, run in turns with this one")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=[], help="words that a command has")
    args = parser.parse_args()
    commands = {"import smelt": ["-c", "import smelt"]}
    commands |= {f"import smelt.{room}": ["-c", f"import smelt.{room}"] for room in ROOMS}
    commands |= {f"smelt {verb}": ["-m", "smelt", *verb.removeprefix(COMMITTED).split()] for verb in VERBS}
    commands = {name: words for name, words in commands.items() if not args.only or set(args.only) & set(name.split())}
    trees = [ROOT] if args.before is None else [args.before.resolve(), ROOT]
    with tempfile.TemporaryDirectory() as scratch:
        environment = prepared(Path(scratch))
        elsewhere = environment | {"SMELT_RUNS": str(Path(scratch) / "none")}
        found = {
            name: timed(words, trees, elsewhere if COMMITTED in name else environment, scratch, args.runs)
            for name, words in commands.items()
        }
    shown = [[name, *_cells(turns)] for name, turns in found.items()]
    header = ["command", "wall s", "CPU s"]
    if args.before is not None:
        header = ["command", "wall s before", "wall s", "CPU s before", "CPU s", "wall, of before", "CPU, of before"]
    cores = len(available_cores())
    print(
        f"Python {platform.python_version()}, {terminal.plural(cores, 'core')} of {processor_name()}, {args.runs} runs"
    )
    print("of each command" + (" in each checkout" if args.before else "") + ".\n")
    print(terminal.table(header, shown, markdown=True))


def prepared(scratch: Path) -> dict[str, str]:
    """The environment of a run in a scratch folder: runs and a corpus there, and no setting of this shell's Python."""
    for row in ledger.read_csv(ROOT / "fits" / "quickstart.csv"):
        folder = scratch / "runs" / "quickstart" / row["run_id"]
        folder.mkdir(parents=True)
        ledger.write(folder, row)
        domains = [name.removeprefix(DOMAIN) for name in row if name.startswith(DOMAIN)]
        documents, ones = np.arange(100), np.full(100, 1000)
        evaluate.save(
            folder / "validation.npz",
            {name: evaluate.DocumentLosses(documents, ones * row[DOMAIN + name], ones) for name in domains},
        )
    texts = {str(number): f"document {number} " * 2000 for number in range(100)}
    recipe = Recipe(name="builtin", sources=(sources.from_texts("text", texts),), validation_bytes=20_000)
    corpus.build(recipe, root=scratch / "corpora")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SMELT_"))}
    return kept | {
        "SMELT_RUNS": str(scratch / "runs"),
        "SMELT_CORPORA": str(scratch / "corpora"),
        "PYTHONPYCACHEPREFIX": str(scratch / "bytecode"),
    }


def timed(
    words: Sequence[str], trees: Sequence[Path], environment: dict[str, str], scratch: str, runs: int
) -> list[list[tuple[float, float]]]:
    """(wall secs, CPU secs) by turn and tree. The first turn compiles the bytecode and is left out."""
    turns = []
    for _ in range(runs + 1):
        turns.append([])
        for tree in trees:
            started = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, *words],
                env=environment | {"PYTHONPATH": str(tree)},
                cwd=scratch,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            assert process.stderr is not None
            told = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            wall_secs = time.perf_counter() - started
            process.returncode = os.waitstatus_to_exitcode(status)
            process.stderr.close()
            if process.returncode:
                raise SystemExit(f"{' '.join(words)} ended with {process.returncode}:\n{told.decode()}")
            turns[-1].append((wall_secs, usage.ru_utime + usage.ru_stime))
    return turns[1:]


def _cells(turns: list[list[tuple[float, float]]]) -> list[str]:
    by_tree = [list(zip(*runs, strict=True)) for runs in zip(*turns, strict=True)]
    wall, cpu = ([of_median(tree[kind]) for tree in by_tree] for kind in (0, 1))
    if len(by_tree) == 1:
        return [*wall, *cpu]
    ratios = [of_median([after[kind] / before[kind] for before, after in turns]) for kind in (0, 1)]
    return [*wall, *cpu, *ratios]


def of_median(values: Sequence[float]) -> str:
    """The median and an interval between two ranks that holds it with 95 % or more."""
    ordered, count = sorted(values), len(values)
    missed, rank, chance = 0.0, 0, 0.5**count
    while missed + chance <= 0.025:  # below rank: so many of the values under the median
        missed, rank = missed + chance, rank + 1
        chance *= (count - rank + 1) / rank
    low = max(rank - 1, 0)
    return f"{statistics.median(ordered):.2f} [{ordered[low]:.2f}, {ordered[count - 1 - low]:.2f}]"


if __name__ == "__main__":
    main()
