"""Planned widths and the smallest visible saving against simulated grids, fitted as users fit them.

Run `python -m benchmarks.power > benchmarks/power.md` (some five minutes on one core; `--quick`: seconds). Every grid
is drawn from its law with its noise, two groups, and fitted again. Is the scatter of every quantity the planned one?
Are the intervals of a bootstrap as wide as planned? Does the comparison see in 80 % of grids the saving of which that
was promised? And what do clipped residuals cost against least squares?
"""

import math
import sys
import time
from collections.abc import Mapping

import numpy as np

from smelt import fit
from smelt.fit import designs, laws, noise, planning, solver, surface

CHINCHILLA = {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}
BYTES = {"E": 1.0, "A": 60.0, "K": 900.0, "a": 0.35, "c": 0.45}
SIXFOLD = {"flops_per_unit": 6.0}
TRUNKED = {"trunk_correlation": 0.5}


def design(kind: str, low: float, count: int, ratio: float, sizes: int, span: float, seeds: int = 1) -> designs.Design:
    budgets = tuple(float(low * ratio**index) for index in range(count))
    return designs.Design(kind=kind, budgets_flops=budgets, num_sizes=sizes, span=span, seeds=seeds)


# name -> law, parameters, k of C = k N D, design, noise, objective
CASES = {
    "4 x 5, noise .002, half shared": (
        "chinchilla",
        CHINCHILLA,
        SIXFOLD,
        design("isoflop", 1e18, 4, 2, 5, 8),
        noise.given_noise(0.002, pair_correlation=0.5),
        "huber_log",
    ),
    "4 x 5, the same by least squares": (
        "chinchilla",
        CHINCHILLA,
        SIXFOLD,
        design("isoflop", 1e18, 4, 2, 5, 8),
        noise.given_noise(0.002, pair_correlation=0.5),
        "squares_log",
    ),
    "5 x 7, noise .004, .9 shared": (
        "chinchilla",
        CHINCHILLA,
        SIXFOLD,
        design("isoflop", 1e18, 5, 3, 7, 16),
        noise.given_noise(0.004, pair_correlation=0.9),
        "huber_log",
    ),
    "5 x 7, the same by least squares": (
        "chinchilla",
        CHINCHILLA,
        SIXFOLD,
        design("isoflop", 1e18, 5, 3, 7, 16),
        noise.given_noise(0.004, pair_correlation=0.9),
        "squares_log",
    ),
    "5 x 7 of bytes, .005 nats, apart": (
        "flops_tokens",
        BYTES,
        {},
        design("isoflop", 1e11, 5, 2, 7, 8),
        noise.given_noise(0.005, unit="nats"),
        "huber_log",
    ),
    "4 x 5 x 3 seeds, noise .004, 2/3 of it seeds'": (
        "chinchilla",
        CHINCHILLA,
        SIXFOLD,
        design("isoflop", 1e18, 4, 3, 5, 8, 3),
        noise.given_noise(0.004, pair_correlation=0.3, seed_frac=2 / 3),
        "huber_log",
    ),
    "trunks, 5 horizons, 5 sizes": (
        "chinchilla",
        CHINCHILLA,
        SIXFOLD,
        design("branches", 1e18, 5, 2, 5, 8),
        noise.given_noise(0.002, pair_correlation=0.5, **TRUNKED),
        "huber_log",
    ),
    "trunks, 6 horizons, 7 sizes, least squares": (
        "chinchilla",
        CHINCHILLA,
        SIXFOLD,
        design("branches", 1e18, 6, 2, 7, 16),
        noise.given_noise(0.003, pair_correlation=0.5, **TRUNKED),
        "squares_log",
    ),
}
# Designs that a plan warns of: the rows of the table say why.
FLAGGED = {
    "3 x 5 within 4 times, noise .01": (
        "chinchilla",
        CHINCHILLA,
        SIXFOLD,
        design("isoflop", 1e18, 3, 2, 5, 4),
        noise.given_noise(0.01),
        "huber_log",
    ),
    "4 x 5, noise .02": (
        "chinchilla",
        CHINCHILLA,
        SIXFOLD,
        design("isoflop", 1e18, 4, 2, 5, 8),
        noise.given_noise(0.02),
        "huber_log",
    ),
}


def errors(
    points: designs.Points, made_of: noise.Noise, seeds: int, num_grids: int, generator: np.random.Generator
) -> np.ndarray:
    """Standard normal errors [2 groups, num_grids, seeds x rows], correlated as the noise says."""
    num_rows = len(points.budgets_flops)
    trunks = np.arange(num_rows) if points.trunks is None else points.trunks
    along = made_of.trunk_correlation or 0.0 if points.trunks is not None else 0.0

    def rows(*shape: int) -> np.ndarray:
        trunk = generator.standard_normal((*shape, trunks.max() + 1))[..., trunks]
        return math.sqrt(along) * trunk + math.sqrt(1 - along) * generator.standard_normal((*shape, num_rows))

    def part() -> np.ndarray:
        lasting, fresh = rows(num_grids, 1), rows(num_grids, seeds)
        both = math.sqrt(1 - made_of.seed_frac) * lasting + math.sqrt(made_of.seed_frac) * fresh
        return both.reshape(num_grids, -1)

    shared, own = math.sqrt(made_of.pair_correlation), math.sqrt(1 - made_of.pair_correlation)
    common = part()
    return np.stack([shared * common + own * part() for _ in range(2)])


def drawn(
    law: str,
    parameters: Mapping[str, float],
    made_of: noise.Noise,
    plan: designs.Design,
    *,
    flops_per_unit: float | None = None,
    saving: float = 0.0,
    num_grids: int,
    seed: int = 0,
) -> tuple[designs.Ground, dict[str, np.ndarray], np.ndarray]:
    """(law, columns of one grid with its seeds, log losses [2 groups, num_grids, rows])."""
    base = designs.ground(law, parameters, flops_per_unit)
    points = designs.design_points(base, None, plan)
    columns = {name: np.tile(values, plan.seeds) for name, values in points.columns.items()}
    scatter = errors(points, made_of, plan.seeds, num_grids, np.random.default_rng(seed))
    log_loss = []
    for group, truth in enumerate((base, base.worth(saving))):
        loss = laws.predicted_loss(truth.law, truth.parameters, columns)
        if made_of.unit == "log":
            log_loss.append(np.log(loss) + made_of.total * scatter[group])
        else:
            log_loss.append(np.log(loss + made_of.total * scatter[group]))
    return base, columns, np.stack(log_loss)


def refitted(base: designs.Ground, columns: Mapping[str, np.ndarray], log_loss: np.ndarray, objective: str):
    """Parameters [2 groups, num_grids, P] of every grid, ln of coefficients first, each from the true law; NaN where a
    fit did not converge."""
    law = base.law
    delta, raw = surface.checked_objective(objective, 1e-3)
    design_KMN = law.design({name: np.log(values) for name, values in columns.items()})
    problem = solver.problem(design_KMN, log_loss[0, 0], delta, raw=raw)
    truth = [math.log(base.parameters[n]) if n in law.coefficients else base.parameters[n] for n in law.parameters]
    start = solver.centred(problem, np.repeat(np.array(truth)[None], log_loss.shape[1], axis=0))
    found = []
    for group in log_loss:
        solution = solver.polish(problem, start, np.ones(log_loss.shape[2]), log_loss_RN=group)
        found.append(np.where(solution.converged_R[:, None], solution.parameters_RP, np.nan))
    return np.stack(found)


def estimates(base: designs.Ground, parameters_GRP: np.ndarray, computes: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Every planned quantity of every grid [num_grids], in logarithms where it is known by a factor.

    `computes` names the computes of the savings, told as ln C_ref - ln C; size, tokens and loss are those at the first.
    Written out here from the law alone, so that nothing of the plan's own algebra is taken for granted.
    """
    law, k = base.law, base.flops_per_unit
    size_term, token_term = (next(t for t in law.terms if t.powers[0].column == n) for n in (base.size, "num_tokens"))
    place = {name: index for index, name in enumerate(law.parameters)}

    def frontier(group: np.ndarray, compute: float) -> tuple[np.ndarray, ...]:
        log_A, log_K = (group[:, place[t.coefficient]] for t in (size_term, token_term))
        a, c = (group[:, place[t.powers[0].exponent]] for t in (size_term, token_term))
        log_size = (np.log(a / c) + log_A - log_K + c * np.log(compute / k)) / (a + c)
        log_tokens = np.log(compute / k) - log_size
        reducible = np.exp(log_A - a * log_size) + np.exp(log_K - c * log_tokens)
        return np.exp(group[:, place[law.floor]]), reducible, a, c, log_size, log_tokens

    first = next(iter(computes.values()))
    reference, target = parameters_GRP
    floor, reducible, a, c, log_size, log_tokens = frontier(reference, first)
    found = {name: floor if name == law.floor else reference[:, place[name]] for name in law.parameters}
    found |= {"allocation": c / (a + c), "frontier_exponent": a * c / (a + c), "size": log_size}
    found |= {"num_tokens": log_tokens, "loss": floor + reducible}
    for name, compute in computes.items():
        floor, reducible, a, c, *_ = frontier(reference, compute)
        other_floor, other_reducible, *_ = frontier(target, compute)
        # A target below the reference's floor saves everything: infinite.
        above = np.maximum(other_floor + other_reducible - floor, 0.0)
        with np.errstate(divide="ignore"):
            found[name] = (a + c) / (a * c) * (np.log(reducible) - np.log(above))
    return found


def usual(
    base: designs.Ground,
    columns: Mapping[str, np.ndarray],
    log_loss_GN: np.ndarray,
    plan: designs.Design,
    objective: str,
    at_flops: float,
    seed: int,
) -> fit.Estimate:
    """The saving as a user gets it: global fits, 200 draws of whole units, percentiles. A unit is a cell (a pair with
    its seeds), or a trunk with all its decays."""
    k = None if base.size == "flops_per_token" else base.flops_per_unit
    points = designs.design_points(base, None, plan)
    cells = np.arange(len(points.budgets_flops)) if points.trunks is None else points.trunks
    units = np.tile(cells, plan.seeds).tolist()
    counts = fit.joint_counts({"reference": units, "target": units}, draws=200, seed=seed)
    covered = (min(plan.budgets_flops), max(plan.budgets_flops))
    fronts = []
    for name, losses in zip(counts, log_loss_GN, strict=True):
        fitted = fit.fit_surface(columns, np.exp(losses), base.law, objective=objective)
        fitted = fit.bootstrap(fitted, counts=counts[name])
        fronts.append(fit.surface_frontier(fitted, compute_range_flops=covered, flops_per_unit=k))
    return fit.savings(fronts[1], fronts[0], [at_flops])[0].estimate


def scatter_ratios(case: tuple, num_grids: int, seed: int = 0) -> tuple[fit.Planned, dict[str, float]]:
    """What is planned, at twice the largest budget, and the standard deviation over grids of every quantity relative to
    it; grids without a finite value are left out."""
    law, parameters, options, plan, made_of, objective = case
    top = plan.budgets_flops[-1]
    planned = fit.power(law, parameters, made_of, plan, at_flops=2 * top, objective=objective, **options)
    base, columns, log_loss = drawn(law, parameters, made_of, plan, num_grids=num_grids, seed=seed, **options)
    refits = refitted(base, columns, log_loss, objective)
    found = estimates(base, refits, {"saving": 2 * top, "saving_at_largest": top})
    ratios = {}
    for name, width in planned.widths.items():
        finite = found[name][np.isfinite(found[name])]
        ratios[name] = float(finite.std(ddof=1)) / width.standard_error
    return planned, ratios


def detection(case: tuple, num_grids: int, seed: int = 1) -> dict[str, float]:
    """Grids whose true saving is the smallest that was promised: how many see it, and how wide their intervals are."""
    law, parameters, options, plan, made_of, objective = case
    top = plan.budgets_flops[-1]
    promised = fit.power(law, parameters, made_of, plan, objective=objective, **options).smallest_saving
    planned = fit.power(law, parameters, made_of, plan, objective=objective, saving=promised, **options)
    width = planned.widths["saving"]
    base, columns, log_loss = drawn(
        law, parameters, made_of, plan, saving=promised, num_grids=num_grids, seed=seed, **options
    )
    gain = estimates(base, refitted(base, columns, log_loss, objective), {"saving": top})["saving"]
    found = [usual(base, columns, log_loss[:, index], plan, objective, top, seed=index) for index in range(num_grids)]
    known = [one for one in found if one.low is not None and one.high is not None]
    return {
        "promised": promised,
        "seen": float(np.mean(gain > planning.TWO_SIDED * width.standard_error)),
        "seen_by_interval": sum(one.low > 0 for one in known) / num_grids,
        "covered": sum(one.low <= promised <= one.high for one in known) / num_grids,
        "width_ratio": float(np.median([one.high - one.low for one in known])) / width.width,
    }


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def main(num_grids: int, num_bootstrapped: int) -> None:
    started = time.perf_counter()
    print("# Plans against simulation\n")
    print(f"`python -m benchmarks.power`: {num_grids} grids a row, {num_bootstrapped} with 200 bootstrap draws each.")
    print("Chinchilla's law (Besiroglu et al. 2024) with C = 6 N D from 1e18 FLOPs, unless of bytes; fits by Huber's")
    print("objective with delta 1e-3, unless by least squares. Size, tokens, loss and saving are asked at twice the")
    print("largest budget.\n\n## Standard deviation over grids / planned standard error\n")
    shown = ("allocation", "size", "loss", "saving", "saving_at_largest")
    rows = []
    for name, case in {**CASES, **FLAGGED}.items():
        planned, ratios = scatter_ratios(case, num_grids)
        exponents = [ratios[exponent] for exponent in laws.law(case[0]).exponents]
        codes = dict.fromkeys(flag.code for flag in planned.warnings if flag.code != "extrapolated")
        numbers = [ratios["E"], *exponents, *(ratios[key] for key in shown)]
        rows.append([name, *(f"{number:.2f}" for number in numbers), ", ".join(codes)])
    headings = ["design", "E", "size exponent", "token exponent", "allocation", "size", "loss", "saving at 2x"]
    print(markdown([*headings, "saving at the largest", "warnings"], rows))

    print("\n## The smallest saving that was promised, at the largest budget\n")
    print("Seen by the planned test: the estimate exceeds 1.96 planned standard errors. By intervals: the user's own")
    print(
        "bootstrap interval excludes 0 (units are pairs; of trunks, whole trunks). Width: its median over the planned"
    )
    print("one.\n")
    rows = []
    for name, case in CASES.items():
        one = detection(case, num_bootstrapped)
        shares = (one["seen"], one["seen_by_interval"], one["covered"], one["width_ratio"])
        rows.append([name, f"{one['promised']:.1%}", *(f"{share:.2f}" for share in shares)])
    print(markdown(["design", "promised", "seen by the planned test", "by intervals", "covered", "width"], rows))

    print("\n## What clipped residuals cost\n")
    print("5 budgets x 7 sizes, both objectives on the same grids: standard error of alpha, and of the saving at the")
    print("largest budget, under Huber's objective (delta 1e-3) over that of least squares; planned, then simulated.\n")
    rows = []
    law, parameters, options, plan, *_ = CASES["5 x 7, noise .004, .9 shared"]
    for level in (0.0005, 0.001, 0.002, 0.004, 0.01):
        cells = [f"{level:g}", f"{1e-3 / level:g}"]
        for name, shared in (("alpha", 0.0), ("saving_at_largest", 0.0), ("saving_at_largest", 0.9)):
            made_of = noise.given_noise(level, pair_correlation=shared)
            both = {}
            for objective in surface.OBJECTIVES:
                case = (law, parameters, options, plan, made_of, objective)
                planned, ratios = scatter_ratios(case, num_grids, seed=2)
                error = planned.widths[name].standard_error
                both[objective] = np.array([error, error * ratios[name]])
            cells += [f"{number:.2f}" for number in both["huber_log"] / both["squares_log"]]
        rows.append(cells)
    headings = ["noise", "delta / noise", "alpha", "simulated", "saving, pairs share 0", "simulated"]
    print(markdown([*headings, "saving, pairs share .9", "simulated"], rows))
    asked = {"at_flops": 1e21, "smallest_budget_flops": 1e19, "flops_per_unit": 6.0, "max_extrapolation": 10.0}
    made_of, begun = noise.given_noise(0.003, pair_correlation=0.5), time.perf_counter()
    ranked = fit.cheapest("chinchilla", CHINCHILLA, made_of, 1e23, {"smallest_saving": 0.1}, **asked)
    print(f"\nA search ranked {len(ranked)} designs, each at 9 scales, in {time.perf_counter() - begun:.2f} s;")
    print(f"all of the above took {time.perf_counter() - started:.0f} s, on one core of a shared machine.")


if __name__ == "__main__":
    main(*(100, 12) if "--quick" in sys.argv else (500, 300))
