"""Rows simulated from planted laws in; coverage of profiles and jackknives, size and power of tests, alarms, out.

    python -m benchmarks.nested [--simulations 400] [--only profile jackknife shared floor alarms]

    profile     how often T at the true exponents and floor is below its level: what a 95 % interval covers
    jackknife   how often intervals over budgets hold the truth, with and without an error that budgets share
    shared      how often shared_test calls p < 0.05 where exponents are the same, and where one differs
    floor       the same of floor_test, without and with a floor
    alarms      how often diagnose flags what is not there, and what is

Grids are IsoFLOP grids of a byte-level quickstart in shape. One process, a few minutes.
"""

import argparse
import collections
import math
import time

import numpy as np

from smelt import fit
from smelt.fit import laws, nested, profiles, refits, solver
from smelt.fit.objective import residuals

LAW = {"E": 1.0, "A": 60.0, "K": 900.0, "a": 0.35, "c": 0.45}
NOISE = 0.003
DELTAS = {"1e-3": 1e-3, "1.345 sd": 1.345 * NOISE, "squares": math.inf}


def grid(num_budgets: int, num_sizes: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns and budgets of an IsoFLOP grid about the planted law's optima, a factor of 8 in compute."""
    a, c, A, K = (LAW[name] for name in ("a", "c", "A", "K"))
    budgets = np.repeat(np.geomspace(1e11, 8e11, num_budgets), num_sizes)
    best = (a * A * budgets**c / (c * K)) ** (1 / (a + c))
    sizes = best * 1.7 ** np.tile(np.arange(num_sizes) - (num_sizes - 1) / 2, num_budgets)
    return {"flops_per_token": sizes, "num_tokens": budgets / sizes}, budgets


def noise(generator: np.random.Generator, shape: tuple[int, ...], kind: str = "normal") -> np.ndarray:
    """Of standard deviation `NOISE`."""
    if kind == "t(4)":
        return NOISE * generator.standard_t(4, shape) / math.sqrt(2)
    return NOISE * generator.standard_normal(shape)


def profile_coverage(simulations: int) -> None:
    """All simulations of a grid are one batch: the fit, and one more with each parameter held at the truth."""
    print("\nprofile: share of simulations whose T at the truth is below the 95 % level\n")
    print("| rows | noise | delta | E | a | c |\n|---|---|---|---|---|---|")
    law = laws.FLOPS_TOKENS
    everything = []
    for num_budgets, num_sizes in ((4, 5), (6, 7), (8, 10), (12, 20)):
        columns, _ = grid(num_budgets, num_sizes)
        log_predicted = np.log(laws.predicted_loss(law, LAW, columns))
        count, num_parameters = len(log_predicted), len(law.parameters)
        truth_P = np.array([np.log(LAW[n]) if n in law.coefficients else LAW[n] for n in law.parameters])
        for kind in ("normal", "t(4)"):
            shape = (simulations, count)
            log_loss = log_predicted + noise(np.random.default_rng(count), shape, kind)
            for words, delta in DELTAS.items():
                design = law.design({name: np.log(values) for name, values in columns.items()})
                problem = solver.problem(design, log_predicted, delta)
                start = np.repeat(solver.centred(problem, truth_P[None]), simulations, axis=0)
                free = solver.polish(problem, start, np.ones(count), log_loss_RN=log_loss)
                left, _ = residuals(problem, solver.centred(problem, free.parameters_RP), log_loss)
                per_rise = np.array([refits.per_rise_of(r, np.ones(count), delta, num_parameters) for r in left])
                level = profiles.quantile(1, count - num_parameters, 0.95)
                covered = []
                for name in ("E", "a", "c"):
                    held = np.array([other == name for other in law.parameters])
                    tied = solver.polish(problem, start, np.ones(count), log_loss_RN=log_loss, held=held)
                    covered.append(float(np.mean(per_rise * (tied.objective_R - free.objective_R) <= level)))
                everything += covered
                print(f"| {count} | {kind} | {words} | {' | '.join(f'{share:.3f}' for share in covered)} |", flush=True)
    print(f"\nmean {np.mean(everything):.3f}, from {min(everything):.3f} to {max(everything):.3f}")


def jackknife_coverage(simulations: int) -> None:
    print("\njackknife over budgets, 95 % intervals\n")
    print("| budgets x sizes | error that a budget shares | E | a | c | allocation | the same, runs as units: E |")
    print("|---|---|---|---|---|---|---|")
    truth = {**LAW, refits.ALLOCATION: LAW["c"] / (LAW["a"] + LAW["c"])}
    names = ("E", "a", "c", refits.ALLOCATION)
    for num_budgets, num_sizes in ((5, 7), (8, 7)):
        columns, budgets = grid(num_budgets, num_sizes)
        predicted = laws.predicted_loss(laws.FLOPS_TOKENS, LAW, columns)
        place = np.unique(budgets, return_inverse=True)[1]
        for shared in (0.0, NOISE):
            hits: collections.Counter = collections.Counter()
            for seed in range(simulations):
                generator = np.random.default_rng(seed)
                common = shared * generator.standard_normal(num_budgets)[place]
                loss = predicted * np.exp(common + noise(generator, predicted.shape))
                found = fit.fit_surface(columns, loss, "flops_tokens", delta="auto")
                over_budgets = fit.jackknife(found, budgets).estimates
                over_runs = fit.jackknife(found, range(len(loss))).estimates["E"]
                for name in names:
                    low, high = over_budgets[name].low, over_budgets[name].high
                    hits[name] += low is not None and low <= truth[name] <= high
                hits["runs"] += over_runs.low is not None and over_runs.low <= 1.0 <= over_runs.high
            shares = " | ".join(f"{hits[name] / simulations:.3f}" for name in (*names, "runs"))
            print(f"| {num_budgets} x {num_sizes} | {shared:g} | {shares} |", flush=True)


def shared_rates(simulations: int) -> None:
    print("\nshared_test of both exponents, two groups: share of p < 0.05\n")
    print("| budgets x sizes | pairs share | a apart | T, delta auto | T, delta 1e-3 | joint draws, delta auto |")
    print("|---|---|---|---|---|---|")
    for num_budgets, num_sizes in ((4, 5), (6, 7)):
        columns, _ = grid(num_budgets, num_sizes)
        size, tokens = columns["flops_per_token"], columns["num_tokens"]
        middle = np.exp(np.log(size).mean())
        for common, own in ((0.0, NOISE), (NOISE, NOISE / 3)):
            for apart in (0.0, 0.04):
                hits: collections.Counter = collections.Counter()
                for seed in range(simulations):
                    generator = np.random.default_rng(seed)
                    shared = common * generator.standard_normal(len(size))
                    losses = {}
                    for name, more in (("base", 0.0), ("target", apart)):
                        term = LAW["A"] * middle ** -LAW["a"] * (size / middle) ** -(LAW["a"] + more)
                        exact = LAW["E"] + term + LAW["K"] * tokens ** -LAW["c"]
                        losses[name] = exact * np.exp(shared + own * generator.standard_normal(len(size)))
                    tables = dict.fromkeys(losses, columns)
                    units = {name: list(range(len(size))) for name in losses} if common else None
                    options = {"units": units, "law": "flops_tokens"}
                    one = nested.shared_test(tables, losses, draws=200, **options)
                    two = nested.shared_test(tables, losses, draws=2, delta=1e-3, **options)
                    hits["auto"] += one.p_value < 0.05
                    hits["small"] += two.p_value < 0.05
                    hits["joint"] += one.joint_p_value is not None and one.joint_p_value < 0.05
                shares = " | ".join(f"{hits[key] / simulations:.3f}" for key in ("auto", "small", "joint"))
                print(f"| {num_budgets} x {num_sizes} | {common:g} | {apart:g} | {shares} |", flush=True)


def floor_rates(simulations: int) -> None:
    print("\nfloor_test: share of p < 0.05; the planted floor as a share of the smallest loss\n")
    print("| budgets x sizes | floor | delta auto | delta 1e-3 |\n|---|---|---|---|")
    for num_budgets, num_sizes in ((4, 5), (6, 7)):
        columns, _ = grid(num_budgets, num_sizes)
        reducible = laws.predicted_loss(laws.FLOPS_TOKENS, {**LAW, "E": 0.0}, columns)
        for share in (0.0, 0.1, 0.2):
            floor = share / (1 - share) * reducible.min()
            hits: collections.Counter = collections.Counter()
            for seed in range(simulations):
                loss = (floor + reducible) * np.exp(noise(np.random.default_rng(seed), reducible.shape))
                for delta in ("auto", 1e-3):
                    found = fit.fit_surface(columns, loss, "flops_tokens", delta=delta)
                    hits[delta] += nested.floor_test(found).p_value < 0.05
            rates = " | ".join(f"{hits[key] / simulations:.3f}" for key in ("auto", 1e-3))
            print(f"| {num_budgets} x {num_sizes} | {share:g} | {rates} |", flush=True)


def alarms(simulations: int) -> None:
    print("\nalarms of diagnose on a 6 x 7 grid (4 x 5 where named), share of simulations by flag, delta auto\n")
    print("| rows | flags |\n|---|---|")

    def spoiled(kind: str, columns: dict, budgets: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        size = np.log(columns["flops_per_token"])
        error = noise(generator, size.shape)
        if kind == "an error that budgets share":
            _, place = np.unique(budgets, return_inverse=True)
            return error + NOISE * generator.standard_normal(place.max() + 1)[place]
        if kind == "one run 5 % off":
            error[generator.integers(len(error))] += 0.05
        if kind == "small runs scatter four times as much":
            error *= np.where(size < np.median(size), 4.0, 1.0)
        if kind == "a cubic bend of 0.4 % a standard deviation of size":
            error = error + 0.004 * ((size - size.mean()) / size.std()) ** 3
        return error

    kinds = (
        ("as the law says, 4 x 5", (4, 5)),
        ("as the law says", (6, 7)),
        ("an error that budgets share", (6, 7)),
        ("one run 5 % off", (6, 7)),
        ("small runs scatter four times as much", (6, 7)),
        ("a cubic bend of 0.4 % a standard deviation of size", (6, 7)),
    )
    for kind, shape in kinds:
        columns, budgets = grid(*shape)
        predicted = laws.predicted_loss(laws.FLOPS_TOKENS, LAW, columns)
        seen: collections.Counter = collections.Counter()
        for seed in range(simulations):
            loss = predicted * np.exp(spoiled(kind, columns, budgets, np.random.default_rng(seed)))
            found = fit.fit_surface(columns, loss, "flops_tokens", delta="auto")
            codes = {flag.code for flag in fit.diagnose(found, columns, loss, budgets=budgets).flags}
            seen.update(codes or {"none"})
        words = ", ".join(f"{code} {times / simulations:.2f}" for code, times in seen.most_common())
        print(f"| {kind} | {words} |", flush=True)


PARTS = {
    "profile": profile_coverage,
    "jackknife": jackknife_coverage,
    "shared": shared_rates,
    "floor": floor_rates,
    "alarms": alarms,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=400)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    for name in options.only:
        began = time.perf_counter()
        PARTS[name](options.simulations)
        print(f"\n{options.simulations} simulations each; {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
