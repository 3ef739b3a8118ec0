"""Grids simulated from planted laws in; how often 95 % intervals hold the truth, and which grids are warned of, out.

    python -m benchmarks.coverage [--simulations 1000] [--others 300] [--only NAME ...] [--processes 2]

Two well-posed grids with `--simulations` each, and grids that something is wrong with (`--others` each): noise that
grows towards small runs, one run gone wrong, narrow and off-centre grids, exponents far apart, an error that runs of a
budget share, few runs, a law of another form. Each is fitted by what `smelt fit` recommends: Huber on log residuals
with delta at 1.345 residual deviations, (budget, pair) resampled jointly over both groups, percentiles.

A simulation counts as covered where the truth lies in the interval; an interval that is refused with a reason counts
apart. "claims" is the share of simulations whose saving has an interval that leaves out zero. "warned" is the share
with a warning that a person should stop at, whatever it is called (`NOTES` are the ones that accompany any small grid).
"""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from smelt import fit
from smelt.fit.examine import diagnosed

# A byte-level quickstart in shape: losses of 3.7 to 2 nats at 1e11 FLOPs and up.
BYTES = {"E": 1.0, "A": 60.0, "K": 900.0, "a": 0.35, "c": 0.45}
# Hoffmann's law as replicated (Besiroglu et al. 2024), in F = 6 N: A and a are those of N^-a.
WEB = {"E": 1.8172, "A": 482.01 * 6.0**0.3478, "K": 2085.43, "a": 0.3478, "c": 0.3658}
APART = {"E": 1.0, "A": 3000.0, "K": 30.0, "a": 0.6, "c": 0.2}
NOTES = {"few_budgets", "high_leverage"}  # the corners of any wide grid have leverage
DRAWS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """An IsoFLOP grid of matched pairs, base and target, and what its losses suffer.

    sizes span a factor `span` either side of `centre` times the optimum. `saving` is the share of compute that the
    target saves, at every compute. Noise in log loss: `shared` by a pair, `own` of a run, `budget` shared by a
    budget's runs. `spoil(table, generator)` changes losses further. `fails` says that coverage is not promised.
    """

    name: str
    law: Mapping[str, float]
    budgets_flops: tuple[float, ...]
    num_sizes: int
    span: float
    centre: float = 1.0
    saving: float = 0.0
    shared: float = 0.002
    own: float = 0.002
    budget: float = 0.0
    spoil: Callable[[dict, np.random.Generator], None] | None = None
    fails: bool = False


def noisy_when_small(table: dict, generator: np.random.Generator) -> None:
    """The smallest runs scatter ten times as much as the largest."""
    size = np.log(table["flops_per_token"])
    position = (size.max() - size) / np.ptp(size)
    table["loss_nats"] *= np.exp(0.002 * 10**position * generator.standard_normal(len(size)))


def one_run_gone_wrong(table: dict, generator: np.random.Generator) -> None:
    table["loss_nats"][generator.integers(len(table["loss_nats"]))] *= 1.05


def another_form(table: dict, generator: np.random.Generator) -> None:
    """Losses of a law whose token term bends: a small interaction between size and tokens, 1 % at the corners."""
    size, tokens = (np.log(table[name]) for name in ("flops_per_token", "num_tokens"))
    bend = (size - size.mean()) * (tokens - tokens.mean())
    table["loss_nats"] *= np.exp(0.02 * bend / np.abs(bend).max())


def checkpoints_as_runs(table: dict, generator: np.random.Generator) -> None:
    """Every size has an error of its own at all budgets, as checkpoints of one run have."""
    sizes, where = np.unique(np.round(np.log(table["flops_per_token"]), 6), return_inverse=True)
    table["loss_nats"] *= np.exp(0.006 * generator.standard_normal(len(sizes))[where])


GRIDS = (
    Grid(name="bytes 7x7, A/A", law=BYTES, budgets_flops=tuple(np.geomspace(1e11, 6.4e12, 7)), num_sizes=7, span=4),
    Grid(
        name="web 7x9, saving 15 %",
        law=WEB,
        budgets_flops=tuple(np.geomspace(1e18, 1e21, 7)),
        num_sizes=9,
        span=6,
        saving=0.15,
    ),
    Grid(
        name="small runs noisier",
        law=BYTES,
        budgets_flops=tuple(np.geomspace(1e11, 3.2e12, 6)),
        num_sizes=7,
        span=4,
        shared=0.0,
        own=0.0,
        spoil=noisy_when_small,
    ),
    Grid(
        name="one run gone wrong",
        law=BYTES,
        budgets_flops=tuple(np.geomspace(1e11, 3.2e12, 6)),
        num_sizes=7,
        span=4,
        spoil=one_run_gone_wrong,
    ),
    Grid(
        name="exponents apart",
        law=APART,
        budgets_flops=tuple(np.geomspace(1e11, 3.2e12, 6)),
        num_sizes=7,
        span=4,
    ),
    Grid(
        name="off centre",
        law=BYTES,
        budgets_flops=tuple(np.geomspace(1e11, 3.2e12, 6)),
        num_sizes=7,
        span=2,
        centre=4.0,
        fails=True,
    ),
    Grid(
        name="narrow grid",
        law=BYTES,
        budgets_flops=tuple(np.geomspace(1e11, 2e11, 4)),
        num_sizes=5,
        span=1.4,
        fails=True,
    ),
    Grid(
        name="few runs",
        law=BYTES,
        budgets_flops=tuple(np.geomspace(1e11, 8e11, 3)),
        num_sizes=3,
        span=3,
        fails=True,
    ),
    Grid(
        name="budgets share an error",
        law=BYTES,
        budgets_flops=tuple(np.geomspace(1e11, 3.2e12, 6)),
        num_sizes=7,
        span=4,
        budget=0.006,
        fails=True,
    ),
    Grid(
        name="sizes share an error",
        law=BYTES,
        budgets_flops=tuple(np.geomspace(1e11, 3.2e12, 6)),
        num_sizes=7,
        span=4,
        spoil=checkpoints_as_runs,
        fails=True,
    ),
    Grid(
        name="law of another form",
        law=BYTES,
        budgets_flops=tuple(np.geomspace(1e11, 3.2e12, 6)),
        num_sizes=7,
        span=4,
        spoil=another_form,
        fails=True,
    ),
)
WELL_POSED = 2  # the first of them


def optimum(law: Mapping[str, float], compute: float) -> tuple[float, float]:
    """(FLOPs per token, loss) of least loss at a compute."""
    a, c, A, K = (law[name] for name in ("a", "c", "A", "K"))
    size = (a * A * compute**c / (c * K)) ** (1 / (a + c))
    return size, law["E"] + A * size**-a + K * (compute / size) ** -c


def simulate(grid: Grid, generator: np.random.Generator) -> dict[str, np.ndarray | list]:
    """One table of runs, as `fit.fit_groups` takes it."""
    law = grid.law
    columns: dict[str, list] = {
        name: [] for name in ("group", "pair", "budget_flops", "num_params", "num_tokens", "train_flops", "loss_nats")
    }
    ratio = grid.span ** (2 / (grid.num_sizes - 1))
    for budget in grid.budgets_flops:
        best = grid.centre * optimum(law, budget)[0]
        best = ratio ** round(np.log(best) / np.log(ratio))  # all budgets' sizes stand on one ladder, as real ones do
        of_budget = grid.budget * generator.standard_normal()
        for index in range(grid.num_sizes):
            size = best * ratio ** (index - (grid.num_sizes - 1) / 2)
            of_pair = grid.shared * generator.standard_normal()
            for group, worth in (("base", 1.0), ("target", (1 - grid.saving) ** -0.5)):
                loss = law["E"] + law["A"] * (size * worth) ** -law["a"]
                loss += law["K"] * (budget / size * worth) ** -law["c"]
                noise = of_budget + of_pair + grid.own * generator.standard_normal()
                values = (group, f"size {index}", budget, size / 6, budget / size, budget, loss * np.exp(noise))
                for name, value in zip(columns, values, strict=True):
                    columns[name].append(value)
    table: dict[str, np.ndarray | list] = {
        name: values if name in ("group", "pair") else np.array(values) for name, values in columns.items()
    }
    table["flops_per_token"] = table["train_flops"] / table["num_tokens"]
    if grid.spoil is not None:
        grid.spoil(table, generator)
    return table


def truths(grid: Grid) -> dict[str, float]:
    """What the intervals should hold: of the reference group, and of the saving."""
    law, largest = grid.law, max(grid.budgets_flops)
    a, c = law["a"], law["c"]
    size, loss = optimum(law, largest)
    return {
        "E": law["E"],
        "a": a,
        "c": c,
        "N* exponent": c / (a + c),
        "frontier exponent": a * c / (a + c),
        "N*": size / 6,
        "D*": largest / size,
        "loss": loss,
        "loss at 4x": optimum(law, 4 * largest)[1],
        "saving, least": grid.saving,
        "saving, largest": grid.saving,
    }


def estimates(table: Mapping, seed: int, draws: int) -> tuple[dict[str, fit.Estimate | None], set[str]]:
    """The recommended method's estimates under the names of `truths`, and the codes of its warnings."""
    found = fit.fit_groups(table, "base", draws=draws, seed=seed)
    codes = {flag.code for flag in found.warnings}
    for name in found.names:
        if (surface := found.surfaces[name]) is None:
            return {}, codes | {"no_surface"}
        codes |= {flag.code for flag in surface.warnings}
        codes |= {flag.code for flag in diagnosed(found, name).flags}
    surface = found.surfaces["base"]
    frontiers = [found.frontiers[name].get("surface") for name in ("target", "base")]
    if None in frontiers:
        return {}, codes | {"no_surface"}
    largest = max(table["budget_flops"])
    at, beyond = (fit.surface_optimum(surface, times * largest) for times in (1, 4))
    least, most = (saving.estimate for saving in fit.savings(*frontiers, [min(table["budget_flops"]), largest]))
    a, c = surface.draws["a"], surface.draws["c"]
    allocation = surface.parameters["c"] / (surface.parameters["a"] + surface.parameters["c"])
    return {
        **{name: surface.estimates[name] for name in ("E", "a", "c")},
        "N* exponent": fit.estimate(allocation, c / (a + c), method="bootstrap by unit"),
        "frontier exponent": frontiers[1].estimates["exponent"],
        "N*": at.size,
        "D*": at.num_tokens,
        "loss": at.loss,
        "loss at 4x": beyond.loss,
        "saving, least": least,
        "saving, largest": most,
    }, codes


def one(grid: Grid, seed: int, draws: int) -> tuple[dict[str, bool | None], bool, set[str], float]:
    """(covered by name, None where the interval is refused; whether a saving is claimed; warnings; CPU seconds)."""
    started = time.process_time()
    table = simulate(grid, np.random.default_rng([seed, GRIDS.index(grid)]))
    found, codes = estimates(table, seed, draws)
    covered: dict[str, bool | None] = {}
    for name, truth in truths(grid).items():
        value = found.get(name)
        known = value is not None and value.low is not None and value.high is not None
        scale = 6.0 if name == "N*" else 1.0  # estimated in FLOPs per token
        covered[name] = bool(value.low <= truth * scale <= value.high) if known else None
    saving = found.get("saving, largest")
    claims = saving is not None and saving.low is not None and not saving.low <= 0 <= saving.high
    return covered, bool(claims), codes, time.process_time() - started


def study(grid: Grid, simulations: int, processes: int, draws: int = DRAWS, first_seed: int = 0) -> dict:
    """Coverage by quantity, refused intervals, claims and warnings over `simulations` seeds."""
    seeds = range(first_seed, first_seed + simulations)
    if processes > 1:
        with ProcessPoolExecutor(processes) as pool:
            results = list(pool.map(one, [grid] * simulations, seeds, [draws] * simulations, chunksize=5))
    else:
        results = [one(grid, seed, draws) for seed in seeds]
    covered, refused = {}, {}
    for name in truths(grid):
        known = [result[0][name] for result in results if result[0][name] is not None]
        covered[name] = float(np.mean(known)) if known else None
        refused[name] = 1 - len(known) / simulations
    codes = sorted({code for result in results for code in result[2]})
    return {
        "grid": grid,
        "simulations": simulations,
        "covered": covered,
        "refused": refused,
        "claims": float(np.mean([result[1] for result in results])),
        "warned": float(np.mean([bool(result[2] - NOTES) for result in results])),
        "codes": {code: float(np.mean([code in result[2] for result in results])) for code in codes},
        "cpu_secs": sum(result[3] for result in results),
    }


def report(studies: Sequence[dict]) -> list[str]:
    """Two tables and what passes, in Markdown."""
    names = list(truths(GRIDS[0]))
    lines = ["| grid | simulations | " + " | ".join(names) + " | claims | warned |", "|---" * (len(names) + 4) + "|"]
    for found in studies:
        cells = [
            "none"
            if found["covered"][n] is None
            else f"{found['covered'][n]:.3f}"[1:].replace(".000", "1.00")
            + (f" ({found['refused'][n]:.0%} refused)" if found["refused"][n] > 0.005 else "")
            for n in names
        ]
        lines.append(
            f"| {found['grid'].name} | {found['simulations']} | "
            + " | ".join(cells)
            + f" | {found['claims']:.3f} | {found['warned']:.2f} |"
        )
    lines += ["", "| grid | warnings, share of simulations |", "|---|---|"]
    for found in studies:
        common = sorted(((share, code) for code, share in found["codes"].items() if share >= 0.05), reverse=True)
        lines.append(f"| {found['grid'].name} | " + ", ".join(f"`{c}` {s:.2f}" for s, c in common) + " |")
    lines.append("")
    for found in studies:
        grid, known = found["grid"], [v for v in found["covered"].values() if v is not None]
        verdict = []
        if grid in GRIDS[:WELL_POSED]:
            inside = all(0.93 <= value <= 0.97 for value in known) and len(known) == len(names)
            verdict.append(
                f"coverage {min(known):.3f} to {max(known):.3f}: {'PASS' if inside else 'FAIL'} (0.93 to 0.97)"
            )
            if grid.saving == 0:
                verdict.append(
                    f"claims {found['claims']:.3f}: {'PASS' if found['claims'] <= 0.065 else 'FAIL'} (0.065)"
                )
        elif not known or min(known) < 0.9:
            low = f"{min(known):.3f}" if known else "no interval"
            verdict.append(
                f"coverage falls to {low}; warned {found['warned']:.2f}: "
                f"{'PASS' if found['warned'] >= 0.9 else 'FAIL'} (0.9)"
            )
        else:
            verdict.append(f"coverage {min(known):.3f} to {max(known):.3f}")
        lines.append(f"- {grid.name}: " + "; ".join(verdict) + f" [{found['cpu_secs']:.0f} CPU s]")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--others", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=[grid.name for grid in GRIDS])
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    studies = []
    for index, grid in enumerate(GRIDS):
        if given.only and grid.name not in given.only:
            continue
        num = given.simulations if index < WELL_POSED else given.others
        studies.append(study(grid, num, given.processes, first_seed=given.first_seed))
        print(f"{grid.name}: {studies[-1]['cpu_secs']:.0f} CPU s", file=sys.stderr, flush=True)
    print("\n".join(report(studies)))


if __name__ == "__main__":
    main()
