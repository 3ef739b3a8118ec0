"""Planned widths and the smallest visible saving against simulated grids, fitted as users fit them.

Run `python -m benchmarks.power > benchmarks/power.md` (some ten minutes on one core; `--quick`: seconds). Every grid
is drawn from its law with its noise, two groups, and fitted again. Is the scatter of every quantity the planned one?
Are the intervals of a bootstrap as wide as planned? Does the comparison see in 80 % of grids the saving of which that
was promised? And what do clipped residuals cost against least squares?
"""

import dataclasses
import math
import sys
import time
from collections.abc import Mapping

import numpy as np

from smelt import fit
from smelt.fit import designs, laws, noise, planning, solver, surface

CHINCHILLA = {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}
BYTES = {"E": 1.0, "A": 60.0, "K": 900.0, "a": 0.35, "c": 0.45}


def design(kind: str, low: float, count: int, ratio: float, sizes: int, span: float, seeds: int = 1) -> designs.Design:
    budgets = tuple(float(low * ratio**index) for index in range(count))
    return designs.Design(kind=kind, budgets_flops=budgets, num_sizes=sizes, span=span, seeds=seeds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A design with the law, the noise and the fits that it is planned and simulated with."""

    plan: designs.Design
    noise: noise.Noise
    law: str = "chinchilla"
    parameters: dict[str, float] = dataclasses.field(default_factory=lambda: CHINCHILLA)
    flops_per_unit: float | None = 6.0
    objective: str = "huber_log"
    delta: float | str = "auto"

    def planned(self, **options) -> fit.Planned:
        return fit.power(
            self.law,
            self.parameters,
            self.noise,
            self.plan,
            flops_per_unit=self.flops_per_unit,
            objective=self.objective,
            delta=self.delta,
            **options,
        )


FOUR_BY_FIVE = Case(plan=design("isoflop", 1e18, 4, 2, 5, 8), noise=noise.given_noise(0.002, pair_correlation=0.5))
FIVE_BY_SEVEN = Case(plan=design("isoflop", 1e18, 5, 3, 7, 16), noise=noise.given_noise(0.004, pair_correlation=0.9))
OF_BYTES = Case(
    plan=design("isoflop", 1e11, 5, 2, 7, 8),
    noise=noise.given_noise(0.005, unit="nats"),
    law="flops_tokens",
    parameters=BYTES,
    flops_per_unit=None,
)
CUSTOM, SQUARES = {"delta": 1e-3}, {"objective": "squares_log"}
CASES = {
    "4 x 5, noise .002, half shared": FOUR_BY_FIVE,
    "the same, delta 1e-3": dataclasses.replace(FOUR_BY_FIVE, **CUSTOM),
    "the same, least squares": dataclasses.replace(FOUR_BY_FIVE, **SQUARES),
    "5 x 7, noise .004, .9 shared": FIVE_BY_SEVEN,
    "5 x 7, .9 shared, delta 1e-3": dataclasses.replace(FIVE_BY_SEVEN, **CUSTOM),
    "5 x 7, .9 shared, least squares": dataclasses.replace(FIVE_BY_SEVEN, **SQUARES),
    "5 x 7 of bytes, .005 nats, apart": OF_BYTES,
    "4 x 5 x 3 seeds, noise .004, 2/3 of it the seeds'": Case(
        plan=design("isoflop", 1e18, 4, 3, 5, 8, 3),
        noise=noise.given_noise(0.004, pair_correlation=0.3, seed_frac=2 / 3),
    ),
    "trunks, 5 horizons, 5 sizes": Case(
        plan=design("branches", 1e18, 5, 2, 5, 8),
        noise=noise.given_noise(0.002, pair_correlation=0.5, trunk_correlation=0.5),
    ),
    "trunks, 6 horizons, 7 sizes": Case(
        plan=design("branches", 1e18, 6, 2, 7, 16),
        noise=noise.given_noise(0.003, pair_correlation=0.5, trunk_correlation=0.5),
    ),
}
# Designs that a plan warns of: the rows of the table say why.
FLAGGED = {
    "3 x 5 within 4 times, noise .01": Case(plan=design("isoflop", 1e18, 3, 2, 5, 4), noise=noise.given_noise(0.01)),
    "4 x 5, noise .02": Case(plan=design("isoflop", 1e18, 4, 2, 5, 8), noise=noise.given_noise(0.02)),
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
    case: Case, num_grids: int, *, saving: float = 0.0, seed: int = 0
) -> tuple[designs.Ground, dict[str, np.ndarray], np.ndarray]:
    """(law, columns of one grid with its seeds, log losses [2 groups, num_grids, rows])."""
    base = designs.ground(case.law, case.parameters, case.flops_per_unit)
    points = designs.design_points(base, None, case.plan)
    columns = {name: np.tile(values, case.plan.seeds) for name, values in points.columns.items()}
    scatter = errors(points, case.noise, case.plan.seeds, num_grids, np.random.default_rng(seed))
    log_loss = []
    for group, truth in enumerate((base, base.worth(saving))):
        loss = laws.predicted_loss(truth.law, truth.parameters, columns)
        off = case.noise.total * scatter[group]
        log_loss.append(np.log(loss) + off if case.noise.unit == "log" else np.log(loss + off))
    return base, columns, np.stack(log_loss)


def refitted(case: Case, base: designs.Ground, columns: Mapping[str, np.ndarray], log_loss: np.ndarray) -> np.ndarray:
    """Parameters [2 groups, num_grids, P] of every grid, ln of coefficients first, each from the true law; NaN where a
    fit did not converge. The automatic delta is the one that the true noise gives."""
    law = base.law
    delta, raw = surface.checked_objective(case.objective, case.delta)
    if case.delta == "auto" and case.objective == "huber_log":
        delta = planning.AUTO_SHARE * float(case.noise.log_sd(np.exp(log_loss.mean())))
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
    case: Case,
    base: designs.Ground,
    columns: Mapping[str, np.ndarray],
    log_loss_GN: np.ndarray,
    at_flops: float,
    seed: int,
) -> fit.Estimate:
    """The saving as a user gets it: global fits, 200 draws of whole units, percentiles. A unit is a cell (a pair with
    its seeds), or a trunk with all its decays."""
    points = designs.design_points(base, None, case.plan)
    cells = np.arange(len(points.budgets_flops)) if points.trunks is None else points.trunks
    units = np.tile(cells, case.plan.seeds).tolist()
    counts = fit.joint_counts({"reference": units, "target": units}, draws=200, seed=seed)
    covered = (min(case.plan.budgets_flops), max(case.plan.budgets_flops))
    fronts = []
    for name, losses in zip(counts, log_loss_GN, strict=True):
        fitted = fit.fit_surface(columns, np.exp(losses), base.law, objective=case.objective, delta=case.delta)
        fitted = fit.bootstrap(fitted, counts=counts[name])
        fronts.append(fit.surface_frontier(fitted, compute_range_flops=covered, flops_per_unit=case.flops_per_unit))
    return fit.savings(fronts[1], fronts[0], [at_flops])[0].estimate


def scatter_ratios(case: Case, num_grids: int, seed: int = 0) -> tuple[fit.Planned, dict[str, float]]:
    """What is planned, at twice the largest budget, and the standard deviation over grids of every quantity relative to
    it; grids without a finite value are left out."""
    top = case.plan.budgets_flops[-1]
    planned = case.planned(at_flops=2 * top)
    base, columns, log_loss = drawn(case, num_grids, seed=seed)
    found = estimates(base, refitted(case, base, columns, log_loss), {"saving": 2 * top, "saving_at_largest": top})
    ratios = {}
    for name, width in planned.widths.items():
        finite = found[name][np.isfinite(found[name])]
        ratios[name] = float(finite.std(ddof=1)) / width.standard_error
    return planned, ratios


def seen_share(case: Case, num_grids: int, seed: int = 1) -> float:
    """Of grids whose true saving is the smallest that was promised: how many estimate it 1.96 planned standard errors
    above 0."""
    promised, top = case.planned().smallest_saving, case.plan.budgets_flops[-1]
    base, columns, log_loss = drawn(case, num_grids, saving=promised, seed=seed)
    gain = estimates(base, refitted(case, base, columns, log_loss), {"saving": top})["saving"]
    return float(np.mean(gain > planning.TWO_SIDED * case.planned(saving=promised).widths["saving"].standard_error))


def detection(case: Case, num_grids: int, seed: int = 1) -> dict[str, float]:
    """Grids with the saving that intervals were promised to see: how many do, and how wide they are over the plan."""
    promised, top = case.planned().smallest_saving_by_interval, case.plan.budgets_flops[-1]
    width = case.planned(saving=promised).widths["saving"].width
    base, columns, log_loss = drawn(case, num_grids, saving=promised, seed=seed)
    found = [usual(case, base, columns, log_loss[:, index], top, seed=index) for index in range(num_grids)]
    known = [one for one in found if one.low is not None and one.high is not None]
    return {
        "promised": promised,
        "seen": sum(one.low > 0 for one in known) / num_grids,
        "covered": sum(one.low <= promised <= one.high for one in known) / num_grids,
        "width_ratio": float(np.median([one.high - one.low for one in known])) / width,
    }


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def main(num_grids: int, num_bootstrapped: int) -> None:
    started = time.perf_counter()
    print("# Plans against simulation\n")
    print(f"`python -m benchmarks.power`: {num_grids} grids a row, {num_bootstrapped} with 200 bootstrap draws each.")
    print("Chinchilla's law (Besiroglu et al. 2024) with C = 6 N D from 1e18 FLOPs, unless of bytes; fits by Huber's")
    print(
        "objective with its automatic delta, unless named. Size, tokens, loss and saving are asked at twice the largest"
    )
    print("budget.\n\n## Standard deviation over grids / planned standard error\n")
    shown = ("allocation", "size", "loss", "saving", "saving_at_largest")
    rows = []
    for name, case in {**CASES, **FLAGGED}.items():
        planned, ratios = scatter_ratios(case, num_grids)
        exponents = [ratios[exponent] for exponent in laws.law(case.law).exponents]
        codes = dict.fromkeys(flag.code for flag in planned.warnings if flag.code != "extrapolated")
        numbers = [ratios["E"], *exponents, *(ratios[key] for key in shown)]
        rows.append([name, *(f"{number:.2f}" for number in numbers), ", ".join(codes)])
    headings = ["design", "E", "size exponent", "token exponent", "allocation", "size", "loss", "saving at 2x"]
    print(markdown([*headings, "saving at the largest", "warnings"], rows))

    print("\n## The smallest saving that was promised, at the largest budget\n")
    print("Seen by a test: of grids with that saving, those that estimate it 1.96 planned standard errors above 0.")
    print(
        "Seen by intervals: of grids with the saving promised for them, those whose own bootstrap interval excludes 0"
    )
    print("(units are pairs; of trunks, whole trunks). Nominal .80 for both. Width: median of these intervals over the")
    print("planned one.\n")
    rows = []
    for name, case in CASES.items():
        one = detection(case, num_bootstrapped)
        promised, seen = case.planned().smallest_saving, seen_share(case, num_grids)
        shares = [f"{one[key]:.2f}" for key in ("seen", "covered", "width_ratio")]
        rows.append([name, f"{promised:.1%}", f"{seen:.2f}", f"{one['promised']:.1%}", *shares])
    headings = ["design", "promised to a test", "seen", "promised to intervals", "seen", "covered", "width"]
    print(markdown(headings, rows))

    print("\n## What clipped residuals cost\n")
    print(
        "5 budgets x 7 sizes, all objectives on the same grids: the standard error of alpha, and of the saving at the"
    )
    print("largest budget, over that of least squares; planned / simulated.\n")
    rows = []
    for level in (0.0005, 0.001, 0.002, 0.004, 0.01):
        for delta in (1e-3, "auto"):
            cells = [f"{level:g}", str(delta)]
            for name, shared in (("alpha", 0.0), ("saving_at_largest", 0.0), ("saving_at_largest", 0.9)):
                both = []
                for objective in ("huber_log", "squares_log"):
                    made_of = noise.given_noise(level, pair_correlation=shared)
                    case = dataclasses.replace(FIVE_BY_SEVEN, noise=made_of, objective=objective, delta=delta)
                    planned, ratios = scatter_ratios(case, num_grids, seed=2)
                    error = planned.widths[name].standard_error
                    both.append(np.array([error, error * ratios[name]]))
                cells.append(" / ".join(f"{number:.2f}" for number in both[0] / both[1]))
            rows.append(cells)
    print(markdown(["noise", "delta", "alpha", "saving, pairs share 0", "saving, pairs share .9"], rows))
    asked = {"at_flops": 1e21, "smallest_budget_flops": 1e19, "flops_per_unit": 6.0, "max_extrapolation": 10.0}
    made_of, begun = noise.given_noise(0.003, pair_correlation=0.5), time.perf_counter()
    ranked = fit.cheapest("chinchilla", CHINCHILLA, made_of, 1e23, {"smallest_saving": 0.1}, **asked)
    print(f"\nA search ranked {len(ranked)} designs, each at 9 scales, in {time.perf_counter() - begun:.2f} s;")
    print(f"all of the above took {time.perf_counter() - started:.0f} s, on one core of a shared machine.")


if __name__ == "__main__":
    main(*(100, 12) if "--quick" in sys.argv else (500, 300))
