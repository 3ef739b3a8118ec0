"""Compute-optimal losses, or a fitted surface, in; the frontier loss = E + A C^-alpha out, to evaluate and to invert.

One form serves three origins: a pure power law through points (E = 0), a saturating one (E free), and the frontier
of a surface E + A F^-a + K D^-c under C = k F D, which is exactly of that form (SMELT, arXiv 2609.01343; Hoffmann et
al. 2022, equation 4):

    F* = (a A (C/k)^c / (c K))^(1/(a+c)),   D* = C / (k F*),   loss* = E + P C^-g,   g = a c / (a + c)
    P  = (1 + a/c) A^(c/(a+c)) (c K k^c / a)^(a/(a+c))

The surface of a law of any other form has its frontier and optima by `traded`, number by number.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, laws, solver, tables, traded
from smelt.fit.checks import SAME_LOG
from smelt.fit.result import Estimate, Flag, estimate
from smelt.fit.surface import SurfaceFit
from smelt.fit.traded import TradedFrontier, estimates, outside

WHOLE_STEPS = 1.02  # runs end on whole steps: an optimum at a nominal budget may lie that far outside its own runs
DEAD_FLOOR = 1e-9  # of the smallest loss, as in `binding.named`
DRAWN = "surface refitted to bootstrap draws by unit"
NOISE_STREAM = 3  # apart from the stream that resamples units under the same seed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """loss = floor + exp(log_coefficient) * C^-exponent, C in FLOPs.

    compute_range_flops  what the data cover; beyond it the frontier extrapolates
    spread               how far percentiles of the draws are moved out, as in `SurfaceFit`
    draws                floor, log_coefficient, exponent [num_draws], NaN where a draw is unusable; or None
    """

    kind: str
    floor: float
    log_coefficient: float
    exponent: float
    compute_range_flops: tuple[float, float]
    estimates: dict[str, Estimate]
    warnings: tuple[Flag, ...] = ()
    draws: dict[str, np.ndarray] | None = dataclasses.field(default=None, repr=False)
    spread: float = 1.0

    def loss(self, compute_flops: np.ndarray | float) -> np.ndarray:
        """Frontier loss at compute, in the unit of the fitted losses."""
        return self.floor + np.exp(self.log_coefficient - self.exponent * np.log(compute_flops))

    def loss_draws(self, compute_flops: Sequence | np.ndarray) -> np.ndarray | None:
        """The same for every draw: [num_draws, num_compute]."""
        if self.draws is None:
            return None
        log_compute = np.log(np.asarray(compute_flops, dtype=float))
        return self.draws["floor"][:, None] + np.exp(
            self.draws["log_coefficient"][:, None] - self.draws["exponent"][:, None] * log_compute
        )

    def compute(self, loss: np.ndarray | float) -> np.ndarray:
        """The compute at which the frontier has this loss; infinite at or below its floor."""
        return inverted(self.floor, self.log_coefficient, self.exponent, loss)

    def compute_draws(self, loss_R: np.ndarray) -> np.ndarray | None:
        """The same for every draw, each at a loss of its own, [num_losses] of no more losses than draws."""
        if self.draws is None:
            return None
        names = ("floor", "log_coefficient", "exponent")
        return inverted(*(self.draws[name][: len(loss_R)] for name in names), loss_R)

    def outside(self, compute_flops: float) -> float:
        """The factor by which a compute lies outside the data, 1 inside."""
        return outside(compute_flops, self.compute_range_flops)


def inverted(floor, log_coefficient, exponent, loss) -> np.ndarray:
    """C with floor + coefficient C^-exponent = loss; infinite where the loss is not above the floor, NaN stays NaN."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        above = np.asarray(loss - floor)
        compute = np.exp((log_coefficient - np.log(np.where(above > 0, above, np.nan))) / exponent)
        return np.where(above <= 0, np.inf, compute)


def fit_frontier(
    compute_flops: Sequence | np.ndarray,
    loss_nats: Sequence | np.ndarray,
    saturating: bool,
    *,
    loss_draws: np.ndarray | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Frontier:
    """A power law through frontier points, by least squares of log residuals.

    `loss_draws` [num_draws, num_points] are draws of the points themselves (`Minimum.draws`); the law is fitted again
    to each. Without them the scatter about the law is drawn, with Student's t tails, where more points than
    parameters leave any. Raises BadInput for fewer points than parameters or a single budget.
    """
    columns = {"compute_flops": compute_flops, "loss_nats": loss_nats}
    compute, losses = tables.positive_columns(columns, list(columns)).values()
    num_parameters = 3 if saturating else 2
    form = "E + A C^-alpha" if saturating else "A C^-alpha"
    num_budgets = len(np.unique(tables.one_number_a_budget(compute)))
    if num_budgets < num_parameters:
        raise BadInput(f"{num_budgets} budgets cannot fix the {num_parameters} parameters of {form}; add budgets")
    if np.ptp(np.log(losses)) < SAME_LOG:
        raise BadInput(f"the loss is {losses[0]:g} at every compute; a frontier needs points that differ in it")
    log_compute, log_loss = np.log(compute), np.log(losses)
    law = laws.SATURATING if saturating else laws.PURE
    problem = solver.problem(law.design({"compute_flops": log_compute}), log_loss, np.inf)
    ones = np.ones(len(losses))
    solution = solver.polish(problem, solver.screen(problem, solver.exponent_grid([-1]), ones, 6), ones)
    point_P = solution.parameters_RP[int(np.argmin(solution.objective_R))]
    floor, log_coefficient, exponent = _unpacked(point_P[None], saturating, losses.min())
    residual = log_loss - np.log(_loss(floor, log_coefficient, exponent, log_compute))[0]

    values = {"floor": float(floor[0]), "log_coefficient": float(log_coefficient[0]), "exponent": float(exponent[0])}
    flags = _flags(values, losses, saturating, num_budgets)
    method = "the law fitted to draws of its points"
    spare = len(losses) - num_parameters
    rms = float(np.sqrt(residual @ residual / spare)) if spare else 0.0
    draws = intervals.whole("draws", draws, 0, "give a whole number, 1000 for percentiles, or 0 for none")
    if loss_draws is not None:
        loss_draws = np.asarray(loss_draws, dtype=float)
        if loss_draws.ndim != 2 or loss_draws.shape[1] != len(losses):
            raise BadInput(f"loss_draws has shape {loss_draws.shape}; give [draws, {len(losses)}], one loss a point")
    if loss_draws is None and spare and draws:
        generator = intervals.generator(seed, NOISE_STREAM)
        noise = rms * generator.standard_normal((draws, len(losses)))
        noise *= np.sqrt(spare / generator.chisquare(spare, size=(draws, 1)))
        loss_draws = np.exp(log_loss - residual + noise)
        method = f"draws of the scatter about the law, {spare} degrees of freedom"
    elif loss_draws is not None and not saturating and spare:
        flags += _bent(log_compute, log_loss, residual, loss_draws)
    by_name = None
    if loss_draws is not None:
        by_name = _refitted(problem, point_P, loss_draws, saturating)
    reason = None if by_name is not None else "as many points as parameters: nothing tells the noise"
    kept = ("floor", "exponent") if saturating else ("exponent",)
    return Frontier(
        kind=law.name,
        **values,
        compute_range_flops=(float(compute.min()), float(compute.max())),
        estimates=estimates(values, by_name, names=kept, method=method, reason=reason),
        warnings=tuple(flags),
        draws=by_name,
    )


def _unpacked(
    parameters_RP: np.ndarray, saturating: bool, smallest_loss: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Floor, ln coefficient and exponent; a floor at the solver's bound is the zero that it stands for."""
    if saturating:
        floor_R = np.exp(parameters_RP[:, 0])
        floor_R = np.where(floor_R < DEAD_FLOOR * smallest_loss, 0.0, floor_R)
        return floor_R, parameters_RP[:, 1], parameters_RP[:, 2]
    return np.zeros(len(parameters_RP)), parameters_RP[:, 0], parameters_RP[:, 1]


def _loss(floor, log_coefficient, exponent, log_compute) -> np.ndarray:
    return floor[:, None] + np.exp(log_coefficient[:, None] - exponent[:, None] * log_compute)


def _refitted(problem: solver.Problem, point_P: np.ndarray, loss_draws: np.ndarray, saturating: bool) -> dict:
    usable = np.isfinite(loss_draws).all(axis=1) & (loss_draws > 0).all(axis=1)
    parameters_RP = np.full((len(loss_draws), len(point_P)), np.nan)
    if usable.any():
        start = np.repeat(solver.centred(problem, point_P[None]), int(usable.sum()), axis=0)
        log_loss = np.log(loss_draws[usable])
        solution = solver.polish(problem, start, np.ones(loss_draws.shape[1]), log_loss_RN=log_loss)
        found = solution.parameters_RP
        found[~solution.converged_R] = np.nan
        parameters_RP[usable] = found
    floor, log_coefficient, exponent = _unpacked(parameters_RP, saturating, float(np.exp(problem.log_loss_N.min())))
    unusable = np.isnan(parameters_RP[:, 0])
    return {"floor": np.where(unusable, np.nan, floor), "log_coefficient": log_coefficient, "exponent": exponent}


def _bent(log_compute: np.ndarray, log_loss: np.ndarray, residual: np.ndarray, loss_draws: np.ndarray) -> list[Flag]:
    """A flag where the points' own noise does not explain how far they lie off a line (5 % level)."""
    powers = np.stack([np.ones_like(log_compute), log_compute], axis=1)
    off_line = np.eye(len(log_compute)) - powers @ np.linalg.pinv(powers)
    usable = loss_draws[(loss_draws > 0).all(axis=1)]  # a draw whose parabola has no minimum is NaN
    noise_squares = (((np.log(usable) - log_loss) @ off_line) ** 2).sum(axis=1)
    share = float(np.mean(noise_squares >= residual @ residual)) if noise_squares.size else 1.0
    if share >= 0.05:
        return []
    return [
        Flag(
            code="pure_law_misses",
            message=f"the points lie {np.sqrt(np.mean(residual**2)):.2%} (rms) off a pure power law, as far as noise "
            f"takes them in {share:.1%} of draws: it is bent, savings from it are biased at the ends",
        )
    ]


def _flags(values: Mapping[str, float], losses: np.ndarray, saturating: bool, num_budgets: int) -> list[Flag]:
    flags = []
    if num_budgets < (5 if saturating else 3):
        flags.append(
            Flag(code="few_budgets", message=f"{num_budgets} budgets leave the form of the frontier next to unchecked")
        )
    if saturating and values["floor"] < 0.02 * losses.min():
        message = "the frontier through these points has next to no floor: they show no irreducible loss"
        flags.append(Flag(code="floor_not_identified", message=message))
    if values["exponent"] <= 0:
        flags.append(
            Flag(
                code="exponent_implausible",
                message=f"the loss does not fall with compute (exponent {values['exponent']:.3g})",
            )
        )
    return flags


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """Where a surface's loss is least at a compute: size (`traded.size_column`), tokens and loss.

    extrapolation   the largest factor by which the compute, the size or the tokens leave the fitted rows (1 inside);
                    None for a law that was given, not fitted
    size_within_1_percent   the smallest and the largest size that reach this loss with 1 % more compute, by the law
                    as fitted: how flat the optimum is; None without one, and where tokens are to be served
    """

    compute_flops: float
    size: Estimate
    num_tokens: Estimate
    loss: Estimate
    tokens_per_param: Estimate
    extrapolation: float | None
    warnings: tuple[Flag, ...]
    size_within_1_percent: tuple[float, float] | None = None


def axes(fit: SurfaceFit, flops_per_unit: float | None) -> tuple[str, float, laws.Term, laws.Term]:
    """The size column, k of C = k size tokens, and the two terms of a law whose frontier is in closed form."""
    terms = {
        name: [term for term in fit.law.terms for power in term.powers if power.column == name]
        for name in ("flops_per_token", "num_params", "num_tokens")
    }
    size = next((name for name in ("flops_per_token", "num_params") if terms[name]), "num_params")
    both = terms[size] + terms["num_tokens"]
    if not traded.is_closed(fit.law):
        raise BadInput(f"{fit.law.equation} has no size term and token term to trade; fit chinchilla or smelt")
    if size == "flops_per_token":
        if flops_per_unit not in (None, 1.0):
            raise BadInput(f"flops_per_unit is {flops_per_unit}, but C = flops_per_token x num_tokens; leave it out")
        return size, 1.0, *both
    if not (flops_per_unit is not None and 0 < flops_per_unit < np.inf):
        raise BadInput(
            f"a law in num_params needs flops_per_unit, k of C = k N D (6 by Chinchilla's count); got {flops_per_unit}"
        )
    return size, float(flops_per_unit), *both


def frontier_parameters(fit, parameters: Mapping, flops_per_unit, fixed: Mapping[str, float]):
    """(floor, ln P, g, ln A', a, ln K, c) for numbers or for arrays of draws."""
    size, k, *terms = axes(fit, flops_per_unit)
    exponents, log_coefficients = [], []
    for term, column in zip(terms, (size, "num_tokens"), strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            log_coefficient = np.log(parameters[term.coefficient])
        for power in term.powers:
            if power.column == column:
                exponents.append(-power.value(parameters))
                continue
            if power.column not in fixed:
                raise BadInput(f"the frontier depends on {power.column!r}; give its value as {power.column}=...")
            log_coefficient = log_coefficient + power.value(parameters) * np.log(fixed[power.column])
        log_coefficients.append(log_coefficient)
    (a, c), (log_A, log_K) = exponents, log_coefficients
    a, c = (np.broadcast_to(exponent, np.shape(log_A)) for exponent in (a, c))  # one that is not fitted is one number
    floor = parameters[fit.law.floor] if fit.law.floor else np.zeros_like(np.asarray(a))
    with np.errstate(divide="ignore", invalid="ignore"):
        both_fall = (np.asarray(a) > 0) & (np.asarray(c) > 0)
        a, c = np.where(both_fall, a, np.nan), np.where(both_fall, c, np.nan)
        log_P = np.log1p(a / c) + c / (a + c) * log_A + a / (a + c) * (np.log(c / a) + log_K + c * np.log(k))
    return floor, log_P, a * c / (a + c), log_A, a, log_K, c, k


def surface_frontier(
    fit: SurfaceFit,
    *,
    compute_range_flops: tuple[float, float],
    flops_per_unit: float | None = None,
    **fixed: float,
) -> Frontier | TradedFrontier:
    """The frontier of a fitted surface under C = flops_per_token * num_tokens, or C = flops_per_unit * N * D.

    `fixed` gives the law's other columns (density = 1 - S for SMELT's), recurrent_share of a looped model's law and
    total_per_active of one in both (`traded.trade` says what goes with the size). Draws of the fit carry over. Raises
    BadInput where the law has no size and tokens to trade, or its loss falls to one end of all sizes.
    """
    compute_range_flops = covered_range(compute_range_flops)
    if not traded.is_closed(fit.law):
        return traded.traded_frontier(
            fit.law,
            fit.parameters,
            fit.draws,
            traded.valley(fit.law, flops_per_unit, fixed, _covered(fit)),
            compute_range_flops=compute_range_flops,
            spread=fit.spread,
            method=DRAWN,
        )
    traded.trade(fit.law, flops_per_unit, fixed)  # what lacks, or goes with the size, is refused alike for every law
    floor, log_P, g, *_ = frontier_parameters(fit, fit.parameters, flops_per_unit, fixed)
    if not np.isfinite(log_P):
        raise BadInput(f"the surface has no frontier: its exponents {fit.parameters} are not both above 0; add runs")
    draws = None
    if fit.draws is not None:
        floor_R, log_P_R, g_R, *_ = frontier_parameters(fit, fit.draws, flops_per_unit, fixed)
        draws = {"floor": np.where(np.isnan(g_R), np.nan, floor_R), "log_coefficient": log_P_R, "exponent": g_R}
    values = {"floor": float(floor), "log_coefficient": float(log_P), "exponent": float(g)}
    return Frontier(
        kind="surface",
        **values,
        compute_range_flops=compute_range_flops,
        estimates=estimates(
            values,
            draws,
            names=("floor", "exponent") if fit.law.floor else ("exponent",),
            method=DRAWN,
            spread=fit.spread,
        ),
        draws=draws,
        spread=fit.spread,
    )


def surface_optimum(
    fit: SurfaceFit, compute_flops: float, *, flops_per_unit: float | None = None, **fixed: float
) -> Optimum:
    """Size, tokens, loss and tokens per parameter where the surface's loss is least at `compute_flops`.

    Tokens per parameter takes the size as a number of parameters, or as flops_per_token / 6 where the law is in FLOPs
    (SMELT). An optimum outside the fitted rows is flagged "extrapolated", beyond ten times "extrapolated_far". Where
    the loss falls to one end of all sizes there is no number but the reason. `fixed` is as in `surface_frontier`.
    """
    compute_flops = tables.number("compute_flops", compute_flops, "FLOPs above 0", low=0)
    valley = traded.valley(fit.law, flops_per_unit, fixed, _covered(fit))
    size_name, closed, log_compute = valley.trade.size_column, traded.is_closed(fit.law), float(np.log(compute_flops))

    def at(parameters):
        if closed:
            floor, log_P, g, *_ = found = frontier_parameters(fit, parameters, flops_per_unit, fixed)
            log_size, log_tokens = log_optimum(found, compute_flops)
            with np.errstate(over="ignore"):
                loss = floor + np.exp(log_P - g * log_compute)
        else:
            log_size = valley.log_best(parameters, log_compute)
            log_tokens = log_compute - np.log(valley.trade.flops_per_size) - log_size
            loss = traded.least(valley, parameters, log_compute)
        with np.errstate(over="ignore"):  # of draws whose exponents are next to nothing
            per_param = np.exp(log_tokens - log_size) * (6.0 if size_name == "flops_per_token" else 1.0)
            return np.exp(log_size), np.exp(log_tokens), loss, per_param

    values = at(fit.parameters)
    draws = (None,) * 4 if fit.draws is None else at(fit.draws)
    known = bool(np.isfinite(values[0]))
    size, tokens, loss, per_param = (
        estimate(float(value), draw, method=DRAWN, spread=fit.spread, reason=None if known else traded.NO_OPTIMUM)
        for value, draw in zip(values, draws, strict=True)
    )
    flat = valley.flat(fit.parameters, log_compute, float(np.log(values[0]))) if known else None
    flags = []
    if closed:
        factor, what = furthest_outside(fit, size_name, float(values[0]), float(values[1]))
    else:
        factor, what = _columns_outside(fit, valley, float(values[0]), float(values[1]))
    if factor is not None and factor > WHOLE_STEPS:
        message = f"the optimum at {compute_flops:.3g} FLOPs lies {factor:.3g} times outside the rows in {what}"
        flags.append(Flag(code="extrapolated" if factor <= 10 else "extrapolated_far", message=message))
    return Optimum(
        compute_flops=compute_flops,
        size=size,
        num_tokens=tokens,
        loss=loss,
        tokens_per_param=per_param,
        extrapolation=factor,
        warnings=tuple(flags),
        size_within_1_percent=None if flat is None else (float(np.exp(flat[0])), float(np.exp(flat[1]))),
    )


def _covered(fit: SurfaceFit) -> Mapping[str, tuple[float, float]]:
    return getattr(fit, "column_ranges", {})  # a law that was given comes without rows


def log_optimum(found: tuple, compute_flops: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """ln size and ln tokens of least loss at a compute, for what `frontier_parameters` found (numbers or draws)."""
    _, _, _, log_A, a, log_K, c, k = found
    with np.errstate(divide="ignore", invalid="ignore"):
        log_size = (np.log(a / c) + log_A - log_K + c * np.log(compute_flops / k)) / (a + c)
    return log_size, np.log(compute_flops / k) - log_size


def furthest_outside(fit: SurfaceFit, size_name: str, size: float, num_tokens: float) -> tuple[float | None, str]:
    """The largest factor by which a size, tokens or their product leave the fitted rows (1 inside), and which."""
    covered = _covered(fit)
    values = {
        "size": (size_name, size),
        "tokens": ("num_tokens", num_tokens),
        "compute": (f"{size_name} x num_tokens", size * num_tokens),
    }
    factors = {word: outside(value, covered[name]) for word, (name, value) in values.items() if name in covered}
    if not factors or not all(np.isfinite(list(factors.values()))):
        return None, ""
    what = max(factors, key=lambda word: factors[word])
    return factors[what], what


def _columns_outside(
    fit: SurfaceFit, valley: traded.Valley, size: float, num_tokens: float
) -> tuple[float | None, str]:
    """The same of every column that follows the size or is held, and of num_params times tokens."""
    covered, values = _covered(fit), valley.column_values(size, num_tokens)
    values |= {f"{name} x num_tokens": value * num_tokens for name, value in values.items()}
    factors = {name: outside(value, covered[name]) for name, value in values.items() if name in covered}
    if not factors or not all(np.isfinite(list(factors.values()))):
        return None, ""
    what = max(factors, key=lambda name: factors[name])
    return factors[what], what


def given_frontier(
    floor: float, coefficient: float, exponent: float, compute_range_flops: tuple[float, float]
) -> Frontier:
    """A frontier from printed coefficients: no draws, so nothing that is made from it has an interval."""
    if not (0 <= floor < np.inf and 0 < coefficient < np.inf and 0 < exponent < np.inf):
        raise BadInput(f"a frontier needs E >= 0, A > 0, alpha > 0; got {floor}, {coefficient}, {exponent}")
    return Frontier(
        kind="given",
        floor=float(floor),
        log_coefficient=float(np.log(coefficient)),
        exponent=float(exponent),
        compute_range_flops=covered_range(compute_range_flops),
        estimates={},
    )


def covered_range(compute_range_flops: Sequence[float]) -> tuple[float, float]:
    """The compute that data cover, checked: (smallest, largest)."""
    ends = tables.asked("compute_range_flops", compute_range_flops)
    if len(ends) != 2 or ends[0] > ends[1]:
        raise BadInput(f"compute_range_flops is {compute_range_flops}; give the smallest and the largest compute")
    return float(ends[0]), float(ends[1])
