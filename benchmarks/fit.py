"""A table of runs in; smelt's fit beside SciPy's loops and the packages that do the same, in one run, with bars, out.

`python -m benchmarks.fit` fits the committed twin of the Chinchilla table; `--table FILE` a CSV with columns params,
tokens and loss, such as the one that Epoch AI read off Hoffmann et al. 2022 (its published filter, which drops the
five highest losses, is known by the file's name). `--peers PYTHON` names an interpreter that has the packages; without
it they are installed into a temporary environment. `--quick` is a rehearsal with fewer of everything.

- The objective is the sum over rows of Huber(ln loss - ln predicted), delta 1e-3, at whatever parameters a method
  gives, also where the method minimised something else.
- The SciPy loops are those of Besiroglu et al. 2024 (arXiv 2404.10102), written here from their description: every
  start of Hoffmann's grid of 4,500 with default tolerances, the best of those that report success. The exact gradient
  is written out, which makes it faster than the automatic one that the published bootstrap has.
- A ratio is the median over interleaved pairs, each of one call here and one there, with the interval that order
  statistics give it; of a loop a pair runs a random tenth of the starts (or draws), times ten, and one full run checks
  the scaling.
- An answer survives a change if no parameter moves: floor over mean loss, both terms at the mean size and tokens over
  mean loss, both exponents. Printed is the largest relative change.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy
from scipy.optimize import minimize

from benchmarks import twin
from smelt import fit, terminal
from tests.fit import planted

DELTA = 1e-3
# By file name: how many of the highest losses the published fit drops, and the least objective (found four ways).
PUBLISHED = {"chinchilla_epoch.csv": (5, 0.001018274017801)}
HOFFMANN_START = [6.0073404, 6.0179186, 0.5267228, 0.33917084, 0.2849083]  # ln A, ln B, ln E, alpha, beta (TeX source)
HOFFMANN_GRID = np.array(
    [
        (a, b, e, alpha, beta)
        for alpha, beta, e, a, b in itertools.product(
            np.arange(0, 2.5, 0.5), np.arange(0, 2.5, 0.5), np.arange(-1, 1.5, 0.5), range(0, 30, 5), range(0, 30, 5)
        )
    ],
    dtype=float,
)
BUDGETS_FLOPS = (1e20, 1e21, 1e22)
SHARE = 10  # a pair runs one SHARE-th of a loop
COLD = """
import csv, sys
from smelt import fit
rows = list(csv.DictReader(open(sys.argv[1])))
columns = {name: [float(row[name]) for row in rows] for name in ("num_params", "num_tokens")}
losses = [float(row["loss_nats"]) for row in rows]
print(repr(fit.fit_surface(columns, losses, "chinchilla", delta=1e-3).certificate.objective))
"""

Columns = dict[str, np.ndarray]
Parameters = dict[str, float]
Method = Callable[[Columns], tuple[Parameters, float]]  # the answer and its seconds
Bar = tuple[str, str, bool]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything a run does."""

    pairs: int
    starts_a_pair: int
    num_draws: int
    chinchilla_grid: str
    full_loops: bool


FULL = Size(pairs=15, starts_a_pair=450, num_draws=4000, chinchilla_grid="readme", full_loops=True)
QUICK = Size(pairs=3, starts_a_pair=45, num_draws=400, chinchilla_grid="small", full_loops=False)


def read(path: Path) -> Columns:
    """num_params, num_tokens and loss_nats of a table that names them params, tokens and loss."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {
        name: np.array([float(row[given]) for row in rows])
        for name, given in (("num_params", "params"), ("num_tokens", "tokens"), ("loss_nats", "loss"))
    }
    drop, _ = PUBLISHED.get(path.name, (0, None))
    if drop:
        kept = columns["loss_nats"] < np.sort(columns["loss_nats"])[-drop]
        columns = {name: values[kept] for name, values in columns.items()}
    return columns


def ours(columns: Columns) -> Parameters:
    return fit.fit_surface(columns, columns["loss_nats"], "chinchilla", delta=DELTA).parameters


def timed(call: Callable) -> tuple:
    start = time.perf_counter()
    value = call()
    return value, time.perf_counter() - start


# The loops of others, from their description.


def log_huber(p: np.ndarray, N: np.ndarray, D: np.ndarray, loss: np.ndarray) -> float:
    predicted = np.log(np.exp(p[0] - p[3] * np.log(N)) + np.exp(p[1] - p[4] * np.log(D)) + np.exp(p[2]))
    residual = np.log(loss) - predicted
    size = np.abs(residual)
    return np.sum(np.where(size <= DELTA, 0.5 * residual**2, DELTA * (size - 0.5 * DELTA)))


def log_huber_gradient(p: np.ndarray, N: np.ndarray, D: np.ndarray, loss: np.ndarray) -> np.ndarray:
    log_N, log_D = np.log(N), np.log(D)
    size_term, token_term, floor = np.exp(p[0] - p[3] * log_N), np.exp(p[1] - p[4] * log_D), np.exp(p[2])
    total = size_term + token_term + floor
    pull = -np.clip(np.log(loss) - np.log(total), -DELTA, DELTA) / total
    by_size, by_tokens = pull * size_term, pull * token_term
    return np.array([by_size.sum(), by_tokens.sum(), floor * pull.sum(), -(by_size @ log_N), -(by_tokens @ log_D)])


def scipy_loop(columns: Columns, starts: np.ndarray, *, exact: bool) -> tuple[Parameters, np.ndarray]:
    """The best of all starts that report success, and the objective of every one."""
    arrays = tuple(columns[name] for name in ("num_params", "num_tokens", "loss_nats"))
    gradient = log_huber_gradient if exact else None
    best, reached = None, []
    with np.errstate(all="ignore"):
        for start in starts:
            found = minimize(log_huber, start, args=arrays, method="L-BFGS-B", jac=gradient)
            reached.append(found.fun)
            if found.success and (best is None or found.fun < best.fun):
                best = found
    assert best is not None, "no start reports success"
    return _named(best.x), np.array(reached)


def scipy_bootstrap(columns: Columns, num_draws: int, generator: np.random.Generator) -> np.ndarray:
    """Parameters [num_draws, 5] of rows drawn with replacement, BFGS from Hoffmann's values with default tolerances."""
    arrays = [columns[name] for name in ("num_params", "num_tokens", "loss_nats")]
    found = np.empty((num_draws, 5))
    with np.errstate(all="ignore"):
        for draw in range(num_draws):
            rows = generator.integers(len(arrays[0]), size=len(arrays[0]))
            drawn = tuple(values[rows] for values in arrays)
            found[draw] = minimize(log_huber, HOFFMANN_START, args=drawn, method="BFGS", jac=log_huber_gradient).x
    return found


def _named(p: np.ndarray) -> Parameters:
    with np.errstate(over="ignore"):
        a, b, e = np.exp(p[:3])
    return {"E": float(e), "A": float(a), "B": float(b), "alpha": float(p[3]), "beta": float(p[4])}


class Peers:
    """The packages, each call a line to a process of their environment."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("fit_peers.py")
        self.process = subprocess.Popen(
            [python, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        self.versions = json.loads(self.process.stdout.readline())

    def __call__(self, columns: Columns, package: str, /, **options) -> tuple[Parameters, float]:
        given = {name: columns[name].tolist() for name in ("num_params", "num_tokens")}
        request = {"package": package, "columns": {**given, "loss": columns["loss_nats"].tolist()}, "options": options}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["parameters"], answer["secs"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)


def installed_peers(folder: str) -> tuple[str, list[str]]:
    """An environment with whatever of the packages installs; its interpreter, and those that did not."""
    venv.create(folder, with_pip=True)
    python = str(Path(folder) / "bin" / "python")
    missing = []
    for requirement in ("chinchilla", "vpnls[scipy]", "simple-scaling-laws", "scaling-audit"):
        done = subprocess.run([python, "-m", "pip", "install", "-qq", requirement], capture_output=True)
        if done.returncode:
            missing.append(requirement)
    return python, missing


# What is compared.


def changed(columns: Columns) -> dict[str, Columns]:
    """The same runs in another order, other units, another base of the loss, and with losses moved by rounding."""
    order = np.random.default_rng(1).permutation(len(columns["loss_nats"]))
    return {
        "row order": {name: values[order] for name, values in columns.items()},
        "N in 1e6, D in 1e9": {
            "num_params": columns["num_params"] / 1e6,
            "num_tokens": columns["num_tokens"] / 1e9,
            "loss_nats": columns["loss_nats"],
        },
        "loss in bits": {**columns, "loss_nats": columns["loss_nats"] / math.log(2)},
        "loss x (1 + 1e-12)": {**columns, "loss_nats": columns["loss_nats"] * (1 + 1e-12)},
    }


def invariant(parameters: Parameters, columns: Columns) -> np.ndarray:
    """The law in numbers that no unit moves."""
    size, tokens, loss = (math.exp(np.log(columns[name]).mean()) for name in ("num_params", "num_tokens", "loss_nats"))
    size_term = parameters["A"] * size ** -parameters["alpha"]
    token_term = parameters["B"] * tokens ** -parameters["beta"]
    return np.array(
        [parameters["E"] / loss, size_term / loss, token_term / loss, parameters["alpha"], parameters["beta"]]
    )


def largest_changes(method: Callable[[Columns], Parameters], columns: Columns) -> dict[str, float | None]:
    """By change, the largest relative move of any number of `invariant`; None where the method gave up."""
    base = invariant(method(columns), columns)
    moves: dict[str, float | None] = {}
    for name, other in changed(columns).items():
        try:
            here = invariant(method(other), other)
        except (RuntimeError, AssertionError):
            moves[name] = None
            continue
        moves[name] = float(np.max(np.abs(here - base) / np.maximum(np.abs(base), np.abs(here))))
    return moves


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """The median and the order statistics that bound it with 95 % confidence or as near as so many values allow."""
    ordered, count = sorted(values), len(values)
    rank = 0
    while rank + 1 < count / 2 and sum(math.comb(count, k) for k in range(rank + 2)) / 2**count <= 0.025:
        rank += 1
    return statistics.median(values), ordered[rank], ordered[count - 1 - rank]


def full_bootstrap(columns: Columns, num_draws: int) -> dict[str, fit.Estimate]:
    """Point fit, draws, and intervals on parameters, allocation, optima, frontier and savings over Hoffmann's law."""
    found = fit.fit_surface(columns, columns["loss_nats"], "chinchilla", delta=DELTA)
    found = fit.bootstrap(found, draws=num_draws, seed=0)
    flops = 6 * columns["num_params"] * columns["num_tokens"]
    span = (float(flops.min()), float(flops.max()))
    frontier = fit.surface_frontier(found, compute_range_flops=span, flops_per_unit=6.0)
    a, b, e, alpha, beta = HOFFMANN_START
    exponent = alpha * beta / (alpha + beta)
    coefficient = (1 + alpha / beta) * math.exp(
        (beta * a + alpha * (math.log(beta / alpha) + b + beta * math.log(6))) / (alpha + beta)
    )
    reference = fit.given_frontier(math.exp(e), coefficient, exponent, span)
    # A printed law has no draws; taken as exact it has the same value in each.
    known = {"floor": math.exp(e), "log_coefficient": math.log(coefficient), "exponent": exponent}
    reference = dataclasses.replace(reference, draws={key: np.full(num_draws, v) for key, v in known.items()})
    estimates = dict(found.estimates)
    share = found.draws["beta"] / (found.draws["alpha"] + found.draws["beta"])
    value = found.parameters["beta"] / (found.parameters["alpha"] + found.parameters["beta"])
    estimates["allocation"] = fit.estimate(value, share, method="bootstrap")
    for budget in BUDGETS_FLOPS:
        optimum = fit.surface_optimum(found, budget, flops_per_unit=6.0)
        for name in ("size", "num_tokens", "loss", "tokens_per_param"):
            estimates[f"{name} at {budget:.0e}"] = getattr(optimum, name)
    for saving in fit.savings(frontier, reference, BUDGETS_FLOPS):
        estimates[f"saving at {saving.budget_flops:.0e}"] = saving.estimate
    estimates["frontier exponent"] = frontier.estimates["exponent"]
    return estimates


def cold_secs(columns: Columns, folder: Path) -> tuple[float, float]:
    """Objective and wall time of a first fit in a fresh process: interpreter, imports, reading the file, fitting."""
    path = folder / "table.csv"
    rows = zip(*(columns[name] for name in ("num_params", "num_tokens", "loss_nats")), strict=True)
    path.write_text("num_params,num_tokens,loss_nats\n" + "\n".join(",".join(map(repr, map(float, r))) for r in rows))
    root = Path(__file__).resolve().parent.parent
    done, secs = timed(
        lambda: subprocess.run(
            [sys.executable, "-c", COLD, str(path)], capture_output=True, text=True, check=True, cwd=root
        )
    )
    return float(done.stdout), secs


def main() -> None:
    if os.environ.get("OMP_NUM_THREADS") != "1":  # read when numpy is loaded: too late to set here
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.fit", *sys.argv[1:]], environment)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path)
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--loops", action="store_true", help="only SciPy's loops beside ours, in half a minute")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    columns = twin.read() if options.table is None else read(options.table)
    optimum = twin.objective(columns) if options.table is None else PUBLISHED.get(options.table.name, (0, None))[1]
    if options.loops:
        return loops(columns, optimum, size)
    with tempfile.TemporaryDirectory() as folder:
        if options.peers is None:
            python, missing = installed_peers(str(Path(folder) / "peers"))
        else:
            python, missing = options.peers, []
        peers = Peers(python)
        try:
            compare(columns, optimum, peers, missing, size, Path(folder), options)
        finally:
            peers.close()


def loops(columns: Columns, optimum: float | None, size: Size) -> None:
    """SciPy's loops beside ours, pair by pair, and our bootstrap: what binds when the solver changes."""
    sample = HOFFMANN_GRID[np.random.default_rng(0).choice(4500, size.starts_a_pair, replace=False)]
    ours(columns)
    here: list[float] = []
    rows = []
    for label, starts, exact, wanted in (("exact", sample, True, 300), ("numeric", sample[::5], False, 500)):
        ratios = []
        for _ in range(size.pairs):
            _, secs = timed(lambda: ours(columns))
            _, there = _scaled(columns, starts, 4500 / len(starts), exact=exact)
            here.append(secs)
            ratios.append(there / secs)
        middle, low, high = median_interval(ratios)
        passed = "PASS" if middle >= wanted else "FAIL"
        rows.append(
            [f"{label} gradient, {len(starts)} of 4,500 starts", f"{middle:.0f}", f"{low:.0f} to {high:.0f}", passed]
        )
    _, drawn = timed(lambda: full_bootstrap(columns, size.num_draws))
    num_rows, warm = len(columns["loss_nats"]), statistics.median(here)
    print(f"{num_rows} rows, {size.pairs} interleaved pairs a loop; a fit {warm:.3f} s;")
    print(f"{size.num_draws} draws with all intervals {drawn:.2f} s.")
    if optimum:
        print(f"Objective {twin.objective(columns, ours(columns)) / optimum - 1:+.1e} of the least known.")
    print()
    print(terminal.table(["SciPy L-BFGS-B", "times smelt's", "95 %", ""], rows, markdown=True))


def compare(
    columns: Columns,
    optimum: float | None,
    peers: Peers,
    missing: list[str],
    size: Size,
    folder: Path,
    options: argparse.Namespace,
) -> None:
    start = time.perf_counter()
    have = [f"{name} {version}" for name, version in peers.versions.items() if version]
    name = "the committed twin" if options.table is None else options.table.name
    print(f"# Fits beside others{' (rehearsal)' if options.quick else ''}\n")
    print(f"{len(columns['loss_nats'])} rows of {name}. {_processor()}, one thread,")
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}"
    print(f"{versions}; {', '.join(have) or 'no packages'}.")
    if missing:
        print(f"Not installable from the package index here: {', '.join(missing)}.")
    bars: list[Bar] = []
    _point_fits(columns, optimum, peers, size, folder, bars)
    _bootstraps(columns, peers, size, bars)
    _comparison(size, bars)
    print("\n## Bars\n")
    rows = [[text, measured, "PASS" if passed else "FAIL"] for text, measured, passed in bars]
    print(terminal.table(["required", "measured", ""], rows, markdown=True))
    print(f"\nThe whole run took {(time.perf_counter() - start) / 60:.0f} min.")


def _point_fits(
    columns: Columns, optimum: float | None, peers: Peers, size: Size, folder: Path, bars: list[Bar]
) -> None:
    starts = HOFFMANN_GRID[np.random.default_rng(0).choice(4500, size.starts_a_pair, replace=False)]
    scale = 4500 / len(starts)
    numeric, exact = "SciPy L-BFGS-B, numeric gradient", "SciPy L-BFGS-B, exact gradient"
    methods: dict[str, Method] = {
        "smelt": lambda c: timed(lambda: ours(c)),
        numeric: lambda c: _scaled(c, starts, scale, exact=False),
        exact: lambda c: _scaled(c, starts, scale, exact=True),
    }
    if peers.versions["vpnls"]:
        methods["vpnls, grid .01 (raw Huber)"] = lambda c: peers(c, "vpnls", method="grid")
        methods["vpnls, scipy (raw Huber)"] = lambda c: peers(c, "vpnls", method="scipy")
    if peers.versions["simple-scaling-laws"]:
        methods["simple-scaling-laws (raw squares)"] = lambda c: peers(c, "simple-scaling-laws", draws=2)
    # Minutes a call: timed once.
    slow: dict[str, Method] = {}
    if peers.versions["chinchilla"]:
        grid = size.chinchilla_grid
        slow["chinchilla (log Huber)"] = lambda c: peers(c, "chinchilla", loss="log_huber", grid=grid)
        slow["chinchilla (its default)"] = lambda c: peers(c, "chinchilla", loss=None, grid=grid)

    first, warm, ratio = {}, {}, {}
    reached: dict[str, Parameters] = {}
    for label, method in methods.items():
        reached[label], first[label] = method(columns)
    cold = [cold_secs(columns, folder) for _ in range(size.pairs)]
    pairs: dict[str, list[tuple[float, float]]] = {label: [] for label in methods if label != "smelt"}
    for _ in range(size.pairs):
        for label, timings in pairs.items():
            _, here = methods["smelt"](columns)
            _, there = methods[label](columns)
            timings.append((here, there))
    for label, timings in pairs.items():
        warm[label] = statistics.median(there for _, there in timings)
        ratio[label] = median_interval([there / here for here, there in timings])
    warm["smelt"] = statistics.median(here for timings in pairs.values() for here, _ in timings)
    whole = {}
    if size.full_loops:
        for label in (numeric, exact):
            (reached[label], ends), secs = timed(
                lambda label=label: scipy_loop(columns, HOFFMANN_GRID, exact=label == exact)
            )
            whole[label] = (ends, secs)
    for label, method in slow.items():
        reached[label], warm[label] = method(columns)
        ratio[label] = (warm[label] / warm["smelt"],) * 3
    tried = {**methods, **{label: method for label, method in slow.items() if "Huber" in label}}
    moves = {label: largest_changes(lambda c, m=method: m(c)[0], columns) for label, method in tried.items()}

    objectives = {label: twin.objective(columns, parameters) for label, parameters in reached.items()}
    target = min(objectives.values()) if optimum is None else optimum
    print(f"\n## Point fit\n\nLeast objective known: {target:.16g}. Loops: 4,500 starts; seconds of a random")
    print(f"{len(starts)} of them times {scale:.0f}, and their moves from those starts. A raw Huber threshold has the")
    print("unit of the loss: in another base it is another objective.\n")
    table = []
    for label in reached:
        middle, low, high = ratio.get(label, (1.0, 1.0, 1.0))
        spread = "one call" if label in slow else "" if label == "smelt" else f"{low:.3g} to {high:.3g}"
        table.append(
            [
                label,
                f"{objectives[label]:.13f}",
                f"{objectives[label] / target - 1:.1e}",
                _secs(first[label]) if label in first else "",
                _secs(warm[label]),
                f"{middle:.3g}",
                spread,
                *([_move(move) for move in moves[label].values()] if label in moves else ["not tried"] * 4),
            ]
        )
    header = ["method", "objective", "excess", "first call s", "warm s", "times smelt's", "95 %", *changed(columns)]
    print(terminal.table(header, table, markdown=True))
    cold_median = statistics.median(secs for _, secs in cold)
    print("\nsmelt in a fresh process (interpreter, imports, reading, fit): ", end="")
    print(f"{_secs(cold_median)} s, median of {len(cold)}.\n")
    for label, (ends, secs) in whole.items():
        print(f"- {label}, full run: {secs:.1f} s, {secs / warm[label]:.2f} of what the share of it says; least")
        print(f"  objective {ends.min():.16g}, within 1e-9 of the least known from ", end="")
        print(f"{np.mean(ends <= target * (1 + 1e-9)):.1%} of the starts.\n")
    names = ("E", "A", "B", "alpha", "beta")
    rows = [[label, *(f"{found[name]:.6g}" for name in names)] for label, found in reached.items()]
    print(terminal.table(["method", *names], rows, markdown=True))

    excess = objectives["smelt"] / target - 1
    worst = max(math.inf if move is None else move for move in moves["smelt"].values())
    bars += [
        ("objective within 1e-9 of the least known", f"{excess:.1e}", abs(excess) <= 1e-9),
        ("point fit warm < 0.2 s", f"{warm['smelt']:.3f} s", warm["smelt"] < 0.2),
        ("point fit with start-up < 3 s", f"{cold_median:.2f} s", cold_median < 3),
        (">= 500 times faster than the numeric loop", f"{ratio[numeric][0]:.0f}", ratio[numeric][0] >= 500),
        (">= 300 times faster than the exact loop", f"{ratio[exact][0]:.0f}", ratio[exact][0] >= 300),
        ("no change moves a parameter by 1e-6", f"{worst:.0e}", worst <= 1e-6),
    ]


def _bootstraps(columns: Columns, peers: Peers, size: Size, bars: list[Bar]) -> None:
    draws, tenth = size.num_draws, size.num_draws // SHARE
    generator = np.random.default_rng(0)
    estimates = full_bootstrap(columns, draws)
    timings = []
    for _ in range(size.pairs):
        _, here = timed(lambda: full_bootstrap(columns, draws))
        _, there = timed(lambda: scipy_bootstrap(columns, tenth, generator))
        timings.append((here, SHARE * there))
    secs = statistics.median(here for here, _ in timings)
    middle, low, high = median_interval([there / here for here, there in timings])
    print(f"\n## Bootstrap, {draws:,} draws\n")
    table = [
        ["smelt: parameters, allocation, optima, frontier, savings", f"{secs:.2f}", "1", ""],
        [
            f"SciPy BFGS from Hoffmann's values: parameters alone ({tenth} draws times {SHARE})",
            f"{statistics.median(there for _, there in timings):.1f}",
            f"{middle:.1f}",
            f"{low:.1f} to {high:.1f}",
        ],
    ]
    if peers.versions["simple-scaling-laws"]:
        others = []
        for _ in range(3):
            _, here = timed(lambda: full_bootstrap(columns, draws))
            others.append((peers(columns, "simple-scaling-laws", draws=draws)[1], here))
        table.append(
            [
                "simple-scaling-laws: wild bootstrap of its raw least squares (3 pairs)",
                f"{statistics.median(there for there, _ in others):.2f}",
                f"{statistics.median(there / here for there, here in others):.1f}",
                "",
            ]
        )
    print(terminal.table(["method", "seconds", "times smelt's", "95 %"], table, markdown=True))
    if size.full_loops:
        found, full = timed(lambda: scipy_bootstrap(columns, draws, np.random.default_rng(42)))
        errors = np.std(np.concatenate([np.exp(found[:, :3]), found[:, 3:]], axis=1), axis=0, ddof=1)
        names = ("A", "B", "E", "alpha", "beta")
        print(f"\nSciPy's full run: {full:.1f} s. Standard errors, SciPy's and ours (other draws): ", end="")
        both = (f"{n} {e:.4g}, {estimates[n].standard_error:.4g}" for n, e in zip(names, errors, strict=True))
        print("; ".join(both) + ".")
    print()
    shown = [[name, f"{e.value:.4g}", f"{e.low:.4g} to {e.high:.4g}"] for name, e in estimates.items()]
    print(terminal.table(["estimate", "value", "95 %"], shown, markdown=True))
    bars.append((f"{draws:,}-draw bootstrap with every interval < 8 s", f"{secs:.2f} s", secs < 8))
    bars.append((">= 6 times faster than SciPy's bootstrap loop", f"{middle:.1f}", middle >= 6))


def _comparison(size: Size, bars: list[Bar]) -> None:
    draws = size.num_draws // 2
    grid = planted.grid(0, saving=0.1)
    timings = [timed(lambda: fit.group_analysis(grid, "base", draws=draws))[1] for _ in range(5)]
    secs = statistics.median(timings[1:])
    print(
        f"\n## Two architectures\n\n{len(grid['group'])} rows in two groups, all fits and {draws:,} joint draws "
        f"(`group_analysis`): {secs:.2f} s, first call {timings[0]:.2f} s."
    )
    bars.append((f"{draws:,}-draw comparison of two architectures < 10 s", f"{secs:.2f} s", secs < 10))


def _scaled(columns: Columns, starts: np.ndarray, scale: float, *, exact: bool) -> tuple[Parameters, float]:
    (found, _), secs = timed(lambda: scipy_loop(columns, starts, exact=exact))
    return found, secs * scale


def _secs(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"


def _move(value: float | None) -> str:
    return "failed" if value is None else f"{value:.0e}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.machine()


if __name__ == "__main__":
    main()
