"""Columns and losses in, a fitted law with its certificate out (Approach 3); bootstrap draws and predictions from it.

The objective stands in `objective`, its minimum in `solver`, the laws in `laws`. Losses are in nats or any other unit;
the floor and the coefficients come out in the same one. What is minimised is a sum over rows of

    huber_log       Huber_delta(ln loss - ln predicted); delta "auto", or 1e-3 by custom (Hoffmann et al. 2022)
    squares_log     half the square of the same
    absolute_log    its absolute value: Huber's with delta brought down to zero
    huber_raw       Huber_delta(loss - predicted), delta in the unit of the loss
    squares_raw     half the square of the same

Row order, the units of the columns and a common factor of the weights change no answer. The unit of the loss (nats or
bits) changes no exponent and scales floor and coefficients under every *_log objective and under squares_raw; under
huber_raw it does so only where delta is scaled with it, as "auto" does.

"auto" is 1.345 standard deviations of the residuals, by their median absolute deviation. A delta far below the scatter
makes the objective one of absolute residuals, whose intervals over-cover and whose estimates scatter up to a quarter
more (`benchmarks/coverage`).
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import binding, intervals, laws, solver, tables
from smelt.fit.binding import Bound
from smelt.fit.checks import check_rows, diagnosed
from smelt.fit.objective import Problem, residuals
from smelt.fit.result import Estimate, Flag, estimate, jsonable

NOISE_STREAM = 2  # apart from the stream that resamples units under the same seed
OBJECTIVES = ("huber_log", "squares_log", "absolute_log", "huber_raw", "squares_raw")
# Huber 1964: 95 % efficient for Gaussian residuals, whose deviation is 1.4826 times their median absolute deviation.
AUTO_DELTA = 1.345 * 1.4826
MAX_UNDECIDED_FRAC = 0.05  # of draws that too few rows made: more move the ends of a 95 % interval
REFUSED_UNDECIDED_FRAC = 0.3  # beyond it the draws say nothing of the rows' scatter: chosen
MIN_DEGREES = 2  # fewer spare rows do not tell the noise
AUTO_DELTA_SETTLED = 1e-7  # relative change of delta between two rounds
MAX_AUTO_ROUNDS = 60
SMALLEST_AUTO_DELTA = 1e-9  # relative to the loss: residuals of a noise-free table have no scale of their own


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceFit:
    """A law fitted to rows.

    parameters        by name, coefficients in the unit of the loss
    estimates         the same with standard errors and intervals; without a bootstrap each says that none was made
    residuals_log     ln loss - ln predicted, one a row, in the order given
    delta             Huber's threshold; infinite for squares, 0 for absolute residuals; `delta_rule` says whose it is
    beyond_delta_frac the share of rows whose residual is larger; None where there is no threshold
    degrees           rows less the parameters fitted to them; of one shared with other groups, its rows' part of one
    noise_log         root mean square of residuals_log, corrected for the fitted parameters; None without spare rows
    noise_loss        the same of loss - predicted, in the unit of the loss
    draws             by parameter name [num_draws], or None; NaN where a draw did not converge
    spread            how far percentiles of the draws are moved out for few rows (`intervals.small_sample_spread`)
    column_ranges     smallest and largest value of each column, and of size times tokens, that the rows have
    """

    law: laws.Law
    parameters: dict[str, float]
    estimates: dict[str, Estimate]
    residuals_log: np.ndarray
    objective: str
    delta: float
    delta_rule: str
    beyond_delta_frac: float | None
    certificate: solver.Certificate
    warnings: tuple[Flag, ...]
    num_rows: int
    degrees: float
    column_ranges: dict[str, tuple[float, float]]
    noise_log: float | None
    noise_loss: float | None
    draws: dict[str, np.ndarray] | None = dataclasses.field(default=None, repr=False)
    spread: float = 1.0
    refit: "_Refit | None" = dataclasses.field(default=None, repr=False)

    def predict(self, columns: Mapping[str, Sequence | np.ndarray | float]) -> np.ndarray:
        """Predicted losses at `columns`, in the unit of the fitted losses."""
        arrays = {name: np.atleast_1d(np.asarray(columns[name], dtype=float)) for name in columns}
        return laws.predicted_loss(self.law, self.parameters, arrays)

    def to_json(self) -> dict:
        value = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("law", "refit", "draws")
        }
        law = {"name": self.law.name, "equation": self.law.equation, "columns": self.law.columns}
        return jsonable({"law": law, **value})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Refit:
    """What it takes to fit the same rows again: under other weights, or with a parameter held."""

    bound: Bound
    weights: np.ndarray
    parameters_P: np.ndarray
    starts_SP: np.ndarray  # centred, where the search began
    places: np.ndarray  # of the rows in the order of their values: what draws them where units have no labels

    @property
    def problem(self) -> Problem:
        return self.bound.problem


def fit_surface(
    columns: Mapping[str, Sequence | np.ndarray],
    loss: Sequence | np.ndarray,
    law: laws.Law | str,
    *,
    objective: str = "huber_log",
    delta: float | str = "auto",
    weights: Sequence | np.ndarray | None = None,
) -> SurfaceFit:
    """Fit `law` to rows: the global minimum of sum_i w_i rho(residual_i), certified.

    `columns` maps the law's column names to one positive number a row (units are free: a column times a constant
    changes its coefficient and no prediction). `objective` is one of `OBJECTIVES`; `delta` is Huber's threshold, or
    "auto": 1.345 x 1.4826 x the median absolute deviation of the residuals of this very fit, a fixed point. Raises
    BadInput for fewer rows than parameters, a column that does not vary, a shape that these rows do not show, and any
    number that is not finite and positive. Hoffmann et al. 2022, approach 3; Besiroglu et al. 2024 for the sum.

    >>> columns = {"compute_flops": [1e15, 1e16, 1e17]}
    >>> fit = fit_surface(columns, [4.0, 2.0, 1.0], "pure")
    >>> round(fit.parameters["alpha"], 6)
    0.30103
    """
    law = laws.law(law)
    first_delta, raw = checked_objective(objective, delta)
    losses = tables.positive("loss", loss)
    arrays = tables.positive_columns(columns, law.columns, len(losses))
    weight_N = np.ones(len(losses)) if weights is None else tables.positive("weights", weights)
    if len(weight_N) != len(losses):
        raise BadInput(f"weights has {len(weight_N)} rows, loss {len(losses)}; give one a run")
    check_rows(law, arrays, losses, num_parameters=len(law.parameters))
    logs = {name: np.log(values) for name, values in arrays.items()}
    bound = binding.bound(law, {"": logs}, {"": np.log(losses)}, delta=first_delta, raw=raw)
    starts_SP = binding.starts(bound, weight_N)
    bound, solution, rule = minimum(bound, starts_SP, weight_N, delta)
    best_P = solution.parameters_RP[int(np.argmin(solution.objective_R))]
    return described(
        bound,
        "",
        arrays,
        losses,
        weight_N,
        best_P,
        num_fitted=len(law.parameters),
        objective=objective,
        delta_rule=rule,
        proof=solver.certificate(bound.problem, best_P, weight_N, solution.objective_R),
        refit=_Refit(
            bound=bound,
            weights=weight_N,
            parameters_P=best_P,
            starts_SP=starts_SP,
            places=tables.places([*arrays.values(), losses]),
        ),
    )


def checked_objective(objective: str, delta: float | str) -> tuple[float, bool]:
    """The threshold that a problem is made with (where "auto" begins: 1e-3), and whether residuals are of the loss."""
    if objective not in OBJECTIVES:
        raise BadInput(f"objective is {objective!r}; choose one of {', '.join(OBJECTIVES)}")
    kind, residual = objective.split("_")
    if delta != "auto" and (not isinstance(delta, int | float | np.number) or not delta > 0):
        raise BadInput(f"delta is {delta!r}; Huber's threshold is a number above 0, 1e-3 by custom, or 'auto'")
    threshold = {"squares": math.inf, "absolute": 0.0, "huber": 1e-3 if delta == "auto" else float(delta)}[kind]
    return threshold, residual == "raw"


def minimum(
    bound: Bound, starts_SP: np.ndarray, weight_N: np.ndarray, delta: float | str
) -> tuple[Bound, solver.Solution, str]:
    """The polished starts under the problem's threshold, or under the one that their own residuals settle at.

    Where the lowest of them is no law (`binding.degenerate`) such minima are many, and a wider screen looks again.
    """
    bound, solution, rule = _settled(bound, starts_SP, weight_N, delta)
    if not binding.degenerate(bound, solution.parameters_RP[int(np.argmin(solution.objective_R))]):
        return bound, solution, rule
    wide_SP = binding.starts(bound, weight_N, wide=True)
    wider = solver.polish(bound.problem, wide_SP, weight_N)
    if wider.objective_R.min() < solution.objective_R.min() * (1 - solver.STARTS_AGREE_RELATIVE):
        again_SP = np.concatenate([starts_SP, solver.centred(bound.problem, wider.parameters_RP)])
        return _settled(bound, again_SP, weight_N, delta)
    names = [field.name for field in dataclasses.fields(solution)]
    both = {name: np.concatenate([getattr(solution, name), getattr(wider, name)]) for name in names}
    return bound, solver.Solution(**both), rule


def _settled(
    bound: Bound, starts_SP: np.ndarray, weight_N: np.ndarray, delta: float | str
) -> tuple[Bound, solver.Solution, str]:
    problem = bound.problem
    if delta != "auto" or not 0 < problem.delta < math.inf:
        rule = {0.0: "none: absolute residuals", math.inf: "none: least squares"}.get(problem.delta, "given")
        return bound, solver.polish(problem, starts_SP, weight_N), rule
    unit = math.exp(problem.log_loss_N.mean()) if problem.raw else 1.0
    problem = dataclasses.replace(problem, delta=problem.delta * unit)
    # A law can meet as many rows as it has parameters. Where these are half of all, their median says nothing.
    met = min(problem.num_parameters, len(weight_N) - 1) if 2 * problem.num_parameters >= len(weight_N) else 0
    scale = f"median of all residuals but the {met} smallest" if met else "MAD of the residuals"
    rule = f"auto: 1.345 x 1.4826 {scale}, not settled after {MAX_AUTO_ROUNDS} rounds"
    for round_ in range(1, MAX_AUTO_ROUNDS + 1):
        solution = solver.polish(problem, starts_SP, weight_N)
        starts_SP = solver.centred(problem, solution.parameters_RP)
        best_RP = starts_SP[int(np.argmin(solution.objective_R))][None]
        residual_N = residuals(problem, best_RP, problem.log_loss_N[None])[0][0]
        size_N = np.abs(residual_N - (0.0 if met else np.median(residual_N)))
        spread = float(np.median(np.sort(size_N)[met:]))
        wanted = max(AUTO_DELTA * spread, SMALLEST_AUTO_DELTA * unit)
        if abs(wanted / problem.delta - 1) < AUTO_DELTA_SETTLED:
            rule = f"auto: 1.345 x 1.4826 {scale}, settled in {round_} rounds"
            break
        if round_ > MAX_AUTO_ROUNDS // 4:  # the median jumps between two rows, and delta with it: halve the steps
            wanted = math.sqrt(wanted * problem.delta)
        problem = dataclasses.replace(problem, delta=wanted)
    else:
        solution = solver.polish(problem, starts_SP, weight_N)
    return dataclasses.replace(bound, problem=problem), solution, rule


def described(
    bound: Bound,
    group: Hashable,
    arrays: Mapping[str, np.ndarray],
    losses: np.ndarray,
    weight_N: np.ndarray,
    parameters_P: np.ndarray,
    *,
    num_fitted: float,
    objective: str,
    delta_rule: str,
    proof: solver.Certificate,
    refit: _Refit | None,
) -> SurfaceFit:
    """What a minimum says of a group's rows, to which `num_fitted` parameters are charged."""
    law, delta = bound.law, bound.problem.delta
    found = binding.named(bound, group, parameters_P[None], losses.min())
    parameters = {name: float(value[0]) for name, value in found.items()}
    residuals_log = np.log(losses) - np.log(laws.predicted_loss(law, parameters, arrays))
    residuals_loss = losses * -np.expm1(-residuals_log)
    spare = len(losses) - num_fitted
    unit_N = weight_N / weight_N.sum()

    def scatter(residual_N: np.ndarray) -> float | None:
        return math.sqrt(float(unit_N @ residual_N**2) * len(losses) / spare) if spare >= 1 else None

    beyond = np.abs(residuals_loss if bound.problem.raw else residuals_log) > delta
    warnings = [*tables.duplicates({**arrays, "loss": losses}), *diagnosed(law, parameters, losses, arrays, proof)]
    if "not settled" in delta_rule:
        warnings.append(Flag(code="delta_not_settled", message=f"delta {delta:.3g} is no fixed point: {delta_rule}"))
    return SurfaceFit(
        law=law,
        parameters=parameters,
        estimates={name: estimate(value, method="point fit") for name, value in parameters.items()},
        residuals_log=residuals_log,
        objective=objective,
        delta=delta,
        delta_rule=delta_rule,
        beyond_delta_frac=float(beyond.mean()) if 0 < delta < math.inf else None,
        certificate=proof,
        warnings=tuple(warnings),
        num_rows=len(losses),
        degrees=spare,
        column_ranges={name: (float(v.min()), float(v.max())) for name, v in _with_compute(arrays).items()},
        noise_log=scatter(residuals_log),
        noise_loss=scatter(residuals_loss),
        refit=refit,
    )


def _with_compute(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns, and size times tokens where both are there: a run can be large by the product alone."""
    sizes = [name for name in ("flops_per_token", "num_params") if name in columns and "num_tokens" in columns]
    return {**columns, **{f"{name} x num_tokens": columns[name] * columns["num_tokens"] for name in sizes}}


def bootstrap(
    fit: SurfaceFit,
    units: Sequence[Hashable] | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
    counts: np.ndarray | None = None,
    widen: bool = True,
) -> SurfaceFit:
    """`fit` with draws and 95 % percentile intervals: whole units are resampled and the law is fitted again.

    `units` labels each row (rows of one run, or of one budget where budgets share an error, carry one label; None:
    every row its own, in the order of its values and not of the file). `counts` [draws, rows] overrides them, so that
    several groups can be drawn jointly (`intervals.joint_counts`). Each draw starts at the fitted point, and keeps
    delta. Refits that do not converge are NaN in `draws` and are flagged. `widen` moves the percentiles out by
    `intervals.small_sample_spread`, for what few rows and many parameters hide; False leaves plain percentiles. No
    draws are kept where fewer than two rows are spare, or where many draws have fewer different rows than parameters:
    the estimates say why.
    """
    if fit.refit is None:
        raise BadInput("this fit shares parameters with other groups; draw them together with bootstrap_shared")
    if counts is None:
        labels = fit.refit.places.tolist() if units is None else tables.labels("units", units, fit.num_rows)
        counts = intervals.joint_counts({"": labels}, draws=draws, seed=seed)[""]
    counts = checked_counts("counts", counts, fit.num_rows)
    parameters_RP = redrawn(fit.refit.problem, fit.refit.parameters_P, fit.refit.weights * counts)
    spread = intervals.small_sample_spread(counts, fit.degrees) if widen else 1.0
    smallest = float(np.exp(fit.refit.problem.log_loss_N.min()))
    undecided_R = (counts > 0).sum(axis=1) < len(fit.law.parameters)
    return with_draws(fit, binding.named(fit.refit.bound, "", parameters_RP, smallest), undecided_R, spread)


def checked_counts(name: str, counts: np.ndarray, num_rows: int) -> np.ndarray:
    """Bootstrap counts as an array [draws, rows], or BadInput."""
    array = np.asarray(counts, dtype=float)
    if array.ndim != 2 or array.shape[1] != num_rows or len(array) < 2:
        raise BadInput(f"{name} has shape {array.shape}; give two draws or more of {num_rows} rows each")
    if not (np.isfinite(array).all() and (array >= 0).all() and (array.sum(axis=1) > 0).all()):
        raise BadInput(f"{name} holds a draw without rows, or a number below 0; give how often each row is drawn")
    return array


def redrawn(problem: Problem, parameters_P: np.ndarray, weight_RN: np.ndarray) -> np.ndarray:
    """Minima [R, P] under other weights, from the point of the fit; NaN where one is not reached."""
    start_RP = np.repeat(solver.centred(problem, parameters_P[None]), len(weight_RN), axis=0)
    size = int(np.clip(120_000 // len(problem.log_loss_N), 16, 500))  # of a batch: its arrays stay in the cache
    parts = [
        solver.polish(problem, start_RP[i : i + size], weight_RN[i : i + size]) for i in range(0, len(start_RP), size)
    ]
    parameters_RP = np.concatenate([part.parameters_RP for part in parts])
    parameters_RP[~np.concatenate([part.converged_R for part in parts])] = np.nan
    return parameters_RP


def with_draws(
    fit: SurfaceFit, by_name: dict[str, np.ndarray], undecided_R: np.ndarray, spread: float = 1.0
) -> SurfaceFit:
    """`fit` with the percentile intervals of draws of its parameters; `undecided_R` marks those of too few rows."""
    lost = np.isnan(by_name[fit.law.parameters[0]])
    method = f"percentiles of {len(lost)} bootstrap draws by unit"
    if spread != 1.0:
        method += f", moved out by {spread:.4g} for {fit.num_rows} rows"
    reason = None
    if fit.degrees < MIN_DEGREES:
        reason = f"{fit.num_rows} rows leave {fit.degrees:.3g} to tell the noise from: add runs"
    elif np.mean(undecided_R) > REFUSED_UNDECIDED_FRAC:
        share = np.mean(undecided_R)
        reason = f"{share:.0%} of the bootstrap draws have fewer different rows than parameters: add runs"
    if reason is not None:
        refused = {name: estimate(value, method=method, reason=reason) for name, value in fit.parameters.items()}
        flag = Flag(code="no_intervals", message=f"no interval can be given: {reason}")
        return dataclasses.replace(fit, draws=None, estimates=refused, warnings=(*fit.warnings, flag))
    warnings = list(fit.warnings)
    if lost.any():
        warnings.append(
            Flag(
                code="draws_not_converged",
                message=f"{np.mean(lost):.1%} of {len(lost)} bootstrap refits did not converge: left out",
            )
        )
    if np.mean(undecided_R) > MAX_UNDECIDED_FRAC:
        warnings.append(
            Flag(
                code="draws_undecided",
                message=f"{np.mean(undecided_R):.0%} of the bootstrap draws have fewer different rows than parameters: "
                "they stay near the fitted point, and the intervals are too narrow; add runs",
            )
        )
    return dataclasses.replace(
        fit,
        draws=by_name,
        spread=spread,
        estimates={
            name: estimate(v, by_name[name], method=method, spread=spread) for name, v in fit.parameters.items()
        },
        warnings=tuple(warnings),
    )


def refit_held(
    fit: SurfaceFit, name: str, values: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """The least objective with one parameter held at each of `values` [V]: objectives, parameters by name, converged.

    For profiles. `name` is an exponent, a shape, or the floor (0 takes it out of the law). All values are polished in
    one batch, from the fitted point and from where the fit began; then each from its neighbours' minima, so that a
    profile has no step that a start made. Raises BadInput for another parameter, or a value that it cannot take.
    """
    if fit.refit is None:
        raise BadInput("this fit shares parameters with other groups; it has no profile of its own")
    bound, weight_N = fit.refit.bound, fit.refit.weights
    problem, count = bound.problem, bound.problem.num_coefficients
    place = bound.index[""].get(name, -1)
    held_at_V = _held_coordinates(bound, name, values)
    guesses_SM = np.concatenate([fit.refit.parameters_P[None, count:], fit.refit.starts_SP[:, count:]])
    starts_VSP = np.empty((len(held_at_V), len(guesses_SM), problem.num_parameters))
    for v, held_at in enumerate(held_at_V):
        fixed_Q = np.full(count, np.nan)
        if place < count:
            fixed_Q[place] = held_at
        else:
            guesses_SM[:, place - count] = held_at
        starts_VSP[v] = solver.starts(problem, guesses_SM, weight_N, fixed_Q)[0]
    held_P = np.arange(problem.num_parameters) == place

    def best_of(starts_VSP: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        solution = solver.polish(problem, starts_VSP.reshape(-1, problem.num_parameters), weight_N, held=held_P)
        shape = starts_VSP.shape[:2]
        objective_VS = solution.objective_R.reshape(shape)
        # A point that is no minimum is taken only where there is no other.
        rank_VS = np.where(solution.converged_R.reshape(shape), objective_VS, np.inf)
        pick = (
            np.arange(shape[0]),
            np.argmin(np.where(np.isinf(rank_VS).all(1, keepdims=True), objective_VS, rank_VS), 1),
        )
        return (
            objective_VS[pick],
            solution.parameters_RP.reshape(*shape, -1)[pick],
            solution.converged_R.reshape(shape)[pick],
        )

    objective_V, parameters_VP, converged_V = best_of(starts_VSP)
    order = np.argsort(held_at_V)
    found_VP = solver.centred(problem, parameters_VP)
    neighbours = np.empty((len(order), 2, problem.num_parameters))
    for side, shifted in enumerate((np.roll(order, 1), np.roll(order, -1))):
        neighbours[order, side] = found_VP[shifted]
    neighbours[:, :, place] = held_at_V[:, None]
    again_V, again_VP, again_converged_V = best_of(neighbours)
    better_V = again_converged_V & (~converged_V | (again_V < objective_V))
    parameters_VP = np.where(better_V[:, None], again_VP, parameters_VP)
    smallest = float(np.exp(problem.log_loss_N.min()))
    return (
        np.where(better_V, again_V, objective_V),
        binding.named(bound, "", parameters_VP, smallest),
        converged_V | better_V,
    )


def _held_coordinates(bound: Bound, name: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """`values` of a parameter as the solver holds them."""
    law = bound.law
    shapes = {shape.name: shape for shape in law.shapes if shape.centre is None}
    if name not in (law.floor, *law.exponents, *shapes):
        known = ", ".join(n for n in (law.floor, *law.exponents, *shapes) if n)
        raise BadInput(f"{name!r} cannot be held in {law.name}; choose an exponent, a shape or the floor: {known}")
    held = np.atleast_1d(np.asarray(values, dtype=float))
    logarithmic = name == law.floor or (name in shapes and shapes[name].positive)
    bad = ~np.isfinite(held) | (held < 0 if name == law.floor else held <= 0 if logarithmic else False)
    if bad.any():
        raise BadInput(f"{name} cannot be held at {held[bad][0]:g}; give a finite number above zero")
    if not logarithmic:
        return held
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(held), solver.lowest(bound.problem) if name == law.floor else -np.inf)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The loss of one new run: `estimate` is a prediction interval; `extrapolation` the largest factor by which a
    column, or size times tokens, leaves the fitted range (1 inside)."""

    estimate: Estimate
    extrapolation: float
    warnings: tuple[Flag, ...]


def predict(fit: SurfaceFit, columns: Mapping[str, float], *, draws: int = 1000, seed: int = 0) -> Prediction:
    """Predicted loss of one new run with a 95 % prediction interval.

    The interval adds two things, in logarithms: what the parameters could be (bootstrap draws; made by rows if `fit`
    has none) and what one run scatters (the residuals' root mean square, relative or absolute, whichever is wider at
    the prediction, with Student's t tails). It does not know how wrong the law's form is where no run has been: see
    `extrapolation`.
    """
    if fit.draws is None:
        fit = bootstrap(fit, draws=draws, seed=seed)
    if missing := [name for name in fit.law.columns if name not in columns]:
        raise BadInput(
            f"a run of {fit.law.equation} has {missing[0]} too; give it, have {', '.join(columns) or 'none'}"
        )
    words = f"one number above 0, {tables.SMALLEST:g} to {tables.LARGEST:g}"
    ends = {"low": tables.SMALLEST, "high": tables.LARGEST}
    point = {name: np.array([tables.number(name, columns[name], words, **ends)]) for name in fit.law.columns}
    value = float(fit.predict(point)[0])
    flags = []
    reach = _with_compute(point)
    factor = max(
        max(float(reach[n][0]) / high, low / float(reach[n][0]), 1.0) for n, (low, high) in fit.column_ranges.items()
    )
    if factor > 1.0 + 1e-9:
        flags.append(
            Flag(
                code="extrapolated" if factor <= 10 else "extrapolated_far",
                message=f"the run lies a factor of {factor:.3g} outside the fitted rows; the interval assumes that the "
                "law holds there",
            )
        )
    if fit.draws is None:  # too few rows: the bootstrap said why
        reason = next(iter(fit.estimates.values())).reason
        found = estimate(value, method="prediction interval", reason=reason)
        return Prediction(estimate=found, extrapolation=factor, warnings=tuple(flags))
    at_draws = laws.predicted_loss(fit.law, fit.draws, point)
    assert fit.noise_log is not None
    assert fit.noise_loss is not None
    # Whether runs scatter by a share of the loss or by an amount is not known away from the rows: the wider is taken.
    scatter = max(fit.noise_log, fit.noise_loss / value)
    noise = scatter * intervals.generator(seed, NOISE_STREAM).standard_t(fit.degrees, size=len(at_draws))
    method = f"prediction interval of {len(at_draws)} bootstrap draws and residual noise"
    with np.errstate(over="ignore"):  # far out, where the loss is next to nothing of the scatter seen
        found = estimate(value, at_draws * np.exp(noise), method=method)
    return Prediction(estimate=found, extrapolation=factor, warnings=tuple(flags))
