"""Larger models, grids, ledgers and bootstraps -> how time and memory grow, with fitted exponents, as markdown.

`python -m benchmarks.growth [--only PART ...]`, PART one of planned, finished, draws, step; pin it to one core. Verbs
run in a scratch folder, each a process of its own, start-up and all: CPU seconds, the least of RUNS, and the largest
resident size. Steps are training steps alone, compiled, on one thread: CPU seconds too, the median of STEPS; their
memory is what XLA allots beside the arguments. The exponent is log(cost ratio) / log(size ratio) between the two
largest sizes, where what is fixed weighs least: 1 is linear. A step's is to be held against that of its model FLOPs.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cli import ROOT, prepared
from smelt import experiment, ledger, terminal
from smelt.budget import train_flops_per_token
from smelt.launch.environment import available_cores, use_compilation_cache
from smelt.spec import ArchSpec, DataSpec
from smelt.train.fingerprint import processor_name
from tests import synthetic
from tests.conftest import architecture

RUNS = 2
STEPS = 7
STEP_TOKENS = 2048
CELLS = (10, 100, 1_000, 10_000)
ROWS = (100, 1_000)
DRAWS = (100, 1_000, 10_000)
BUDGETS = {10: 1, 100: 2, 1_000: 10, 10_000: 25}  # of five sizes in two arms each; seeds do the rest

GRID = '''"""Does planning stay cheap where cells are many?"""

from smelt import grid, variants
from smelt.experiment import module

quickstart = module("quickstart")
budgets = [6e10 * 1.2**step for step in range({budgets})]
RUNS = grid.isoflop(
    ladder=quickstart.LADDER[:5],
    sizes={{flops: range(5) for flops in budgets}},
    variants=(variants.baseline, variants.loop_middle),
    recipe=quickstart.recipe,
    seeds=range({seeds}),
    matcher=quickstart.matcher,
    held="three_budgets",
    bound=0.01,
)
'''
Costs = dict[str, list[tuple[float, float]]]  # what -> (secs, bytes) by size


def main() -> None:
    parts = {"planned": planned, "finished": finished, "draws": draws, "step": step}
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(parts), choices=list(parts))
    args = parser.parse_args()
    os.environ["NPROC"] = "1"  # read by XLA
    print(f"{terminal.plural(len(available_cores()), 'core')} of {processor_name()}.")
    for part in args.only:
        with tempfile.TemporaryDirectory() as scratch:
            parts[part](Path(scratch))


def planned(scratch: Path) -> None:
    """Verbs before anything is trained."""
    environment, found = prepared(scratch), {}
    for cells in CELLS:
        path = str(grid_file(scratch, "many", cells))
        verbs = {"the grid alone": ["-c", f"from smelt import experiment; experiment.load({path!r})"]}
        verbs |= {f"smelt {verb}": ["-m", "smelt", verb, path] for verb in ("plan", "match", "status")}
        for verb, words in verbs.items():
            found.setdefault(verb, []).append(process(words, scratch, environment))
    tell("Cells of a grid that is planned", CELLS, found)


def finished(scratch: Path) -> None:
    """Verbs on rows of a planted law."""
    environment, found = prepared(scratch), {}
    for rows in ROWS:
        path = grid_file(scratch, f"many{rows}", rows)
        for row in synthetic.planted_rows(experiment.load(str(path)).grid, experiment=path.stem):
            folder = scratch / "runs" / path.stem / row["run_id"]
            folder.mkdir(parents=True)
            ledger.write(folder, row)
        for verb, options in {"status": [], "export": ["--out", "rows.csv"], "fit": [], "report": []}.items():
            words = ["-m", "smelt", verb, str(path), *options]
            found.setdefault(f"smelt {verb}", []).append(process(words, scratch, environment))
    tell("Finished rows", ROWS, found)


def draws(scratch: Path) -> None:
    """A fit of the committed quickstart."""
    environment = prepared(scratch)
    fits = [process(["-m", "smelt", "fit", "quickstart", "--draws", str(n)], scratch, environment) for n in DRAWS]
    tell("Bootstrap draws", DRAWS, {"smelt fit quickstart": fits})


def grid_file(scratch: Path, name: str, cells: int) -> Path:
    path = scratch / f"{name}.py"
    path.write_text(GRID.format(budgets=BUDGETS[cells], seeds=cells // (10 * BUDGETS[cells])))
    return path


def process(words: Sequence[str], scratch: Path, environment: dict[str, str]) -> tuple[float, float]:
    """CPU seconds, the least, and peak bytes of a Python process and of those that it waits for."""
    # One that holds little starts it: a child's peak is no less than what its parent held.
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    )
    command = [sys.executable, "-S", "-c", code, sys.executable, *words]
    options = {"capture_output": True, "text": True, "check": True, "cwd": scratch}
    kept = environment | {"PYTHONPATH": str(ROOT)}
    told = [subprocess.run(command, env=kept, **options).stdout.split() for _ in range(RUNS)]
    return min(float(secs) for secs, _ in told), max(float(kib) for _, kib in told) * 1024


def step(scratch: Path) -> None:
    """One dimension of a mixture of experts at a time, at equal tokens a step."""
    use_compilation_cache()

    def of(width: int = 64, depth: int = 4, experts: int = 8, seq_len: int = 128) -> tuple[ArchSpec, int]:
        return architecture(width, depth, experts, head_dim=width // 2), seq_len

    ladders: dict[str, tuple[Sequence[int], Callable[[int], tuple[ArchSpec, int]]]] = {
        "width": ((32, 64, 128, 256), lambda size: of(width=size)),
        "depth": ((2, 4, 8, 16), lambda size: of(depth=size)),
        "experts, two of them chosen": ((8, 16, 32, 64), lambda size: of(experts=size)),
        "sequence": ((64, 128, 256, 512, 1024), lambda size: of(seq_len=size)),
    }
    rows = []
    for dimension, (sizes, shape_of) in ladders.items():
        found = [(*timed_step(*shape_of(size)), flops(*shape_of(size))) for size in sizes]
        for what, kind in (("step", 0), ("model FLOPs", 2), ("memory", 1)):
            values = [costs[kind] for costs in found]
            show = {0: lambda secs: f"{secs * 1e3:.1f} ms", 1: terminal.num_bytes, 2: terminal.count}[kind]
            cells = ", ".join(f"{show(value)}" for value in values)
            rows.append([dimension, ", ".join(map(str, sizes)), what, cells, exponent(sizes, values)])
    print(
        f"\nTraining step, {STEP_TOKENS:,} tokens; width 64, 4 layers, 8 experts, sequences of 128 where not varied\n"
    )
    print(terminal.table(["dimension", "sizes", "", "by size", "exponent"], rows, markdown=True))


def timed_step(arch: ArchSpec, seq_len: int) -> tuple[float, float]:
    """Median CPU seconds of one thread, and the bytes that the program allots for itself."""
    import jax
    import numpy as np

    from smelt.train.step import compile_step, init_state

    data = DataSpec(
        corpus="none",
        seq_len=seq_len,
        batch_seqs=STEP_TOKENS // seq_len,
        confine_attention=False,
        validation_tokens=seq_len,
    )
    program = compile_step(arch, synthetic.recipe(arch, 0.0)[0], data)
    state = init_state(arch, synthetic.recipe(arch, 0.0)[0], 0)
    window = (data.batch_seqs, seq_len + 1)
    batch = np.random.default_rng(0).integers(1, 256, window, np.int32), np.ones(window, np.int32)
    secs = []
    for _ in range(STEPS + 1):
        started = time.process_time()
        state, _ = jax.block_until_ready(program(state, *batch, np.float32(1e-3), np.float32(1.0)))
        secs.append(time.process_time() - started)
    return statistics.median(secs[1:]), program.memory_analysis().temp_size_in_bytes


def flops(arch: ArchSpec, seq_len: int) -> float:
    return train_flops_per_token(arch, seq_len, "model") * STEP_TOKENS


def tell(what: str, sizes: Sequence[int], costs: Costs) -> None:
    rows = []
    for name, found in costs.items():
        secs, peaks = zip(*found, strict=True)
        cells = [f"{s:.2f} s, {peak / 1e6:.0f} MB" for s, peak in found]
        rows.append([name, *cells, exponent(sizes, secs), exponent(sizes, peaks)])
    print(f"\n{what}\n")
    header = ["", *(f"{size:,}" for size in sizes), "exponent of time", "of memory"]
    print(terminal.table(header, rows, markdown=True))


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> str:
    return f"{math.log(costs[-1] / costs[-2]) / math.log(sizes[-1] / sizes[-2]):.2f}"


if __name__ == "__main__":
    main()
