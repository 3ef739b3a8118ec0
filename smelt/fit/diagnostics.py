"""A fit and its rows in; what the answer hangs on, where the law fails and what to do about it out, in words and data.

    leverage        h_i = w_i J_i (J' W J)^-1 J_i', how much a row decides its own prediction; they sum to P
    influence       the law fitted again without each row, without the worst rows and without the largest budget
    patterns        what residuals still know of the columns, of budgets and of one another
    identifiability are the parameters told apart, and does the objective rise where one is moved?
    ranges          what the rows span, and whether the best sizes lie among those trained

Each finding is a Flag: a stable code, and a sentence with the number and the mend. `leave_out` and `patterns` say how
they test. It does not know how the runs were trained; it says which to look at.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from smelt.fit import leave_out, nested, patterns, refits, solver
from smelt.fit.leave_out import HeldOut, WithoutWorst
from smelt.fit.patterns import BudgetEffect, Neighbours, Pattern
from smelt.fit.profiles import quantile, ratio
from smelt.fit.refits import Rows
from smelt.fit.result import Flag
from smelt.fit.surface import SurfaceFit

HIGH_LEVERAGE = 3.0  # times the mean
OUTLIER_SIGMAS = 5.0
NARROW_RANGE = 4.0
CORRELATED = 0.98
UNSURE_FRAC = 0.25  # of an exponent
FLATNESS_ERRORS = 3.0  # standard errors that a parameter is moved by to see whether the objective rises


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identifiability:
    """Are the parameters told apart?

    condition_number  of the Gauss-Newton matrix in centred logarithms
    correlations      of the estimates of exponents, shapes and floor, by "one, other"
    rise              by exponent and side, and for a law without its floor: the robust ratio T of `profiles` there, 9
                      where the minimum is a parabola and the parameter moved by three standard errors
    level             of T, below which a value is inside the 95 % interval; the floor's test is one-sided
                      (`nested.floor_test`)
    """

    condition_number: float
    correlations: dict[str, float]
    rise: dict[str, float]
    level: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interior:
    """A budget's sizes, and the size that the law says is best there."""

    budget: float
    smallest_size: float
    largest_size: float
    best_size: float
    inside: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """What a fit hangs on. Arrays have one entry a row, in the order of the rows.

    labels            names of the rows
    axes              ln of each column, of compute (size times tokens) and of tokens per size
    residuals_log     ln loss - ln predicted
    leverage          0 to 1; the mean is parameters / rows
    high_leverage     indices of rows above three times the mean
    influence         by exponent, shape, floor and allocation exponent: estimate with the row less without it, in
                      standard errors; NaN where the refit failed
    standard_errors   those errors
    without_worst     the fit without 0 to 5 rows of largest residuals
    largest_out       the largest budget (or compute) predicted from the rest
    outliers          indices of rows beyond 5 robust standard deviations
    ranges            largest over smallest value of each column, of compute and of tokens per size
    reasons           part -> why there is none
    """

    labels: tuple[str, ...]
    axes: dict[str, np.ndarray]
    residuals_log: np.ndarray
    leverage: np.ndarray
    high_leverage: tuple[int, ...]
    influence: dict[str, np.ndarray]
    standard_errors: dict[str, float]
    without_worst: tuple[WithoutWorst, ...]
    largest_out: HeldOut | None
    patterns: tuple[Pattern, ...]
    budget_effect: BudgetEffect | None
    neighbours: Neighbours | None
    outliers: tuple[int, ...]
    identifiability: Identifiability
    interiors: tuple[Interior, ...]
    ranges: dict[str, float]
    flags: tuple[Flag, ...]
    reasons: dict[str, str]


def diagnose(
    fit: SurfaceFit,
    columns: Mapping[str, Sequence | np.ndarray],
    losses: Sequence | np.ndarray,
    *,
    budgets: Sequence | None = None,
    units: Sequence[Hashable] | None = None,
    labels: Sequence | None = None,
) -> Diagnostics:
    """Leverage, influence, hold-outs, residual patterns, identifiability and ranges of `fit`, with flags.

    `columns` and `losses` are those that were fitted, in the same order. `budgets` names each row's nominal budget;
    without it the largest fifth of compute is held out. `units` labels rows that are one run (or whatever else is
    resampled as one); `labels` are names of rows for the sentences, else "row 0" and on. Raises BadInput where no row
    is to spare over the parameters, and for rows that are not those of the fit.

    >>> import numpy as np
    >>> from smelt import fit
    >>> N, D = (grid.ravel() for grid in np.meshgrid(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6)))
    >>> loss = 1.8 + 480 / N**0.35 + 2000 / D**0.37 + 0.003 * np.random.default_rng(0).normal(size=36)
    >>> loss[21] += 0.1  # an untuned run
    >>> columns = {"num_params": N, "num_tokens": D}
    >>> [flag.code for flag in fit.diagnose(fit.fit_surface(columns, loss, "chinchilla"), columns, loss).flags]
    ['outlier_rows']
    """
    rows = refits.rows_of(fit, columns, losses, budgets=budgets, units=units, labels=labels)
    reasons: dict[str, str] = {}
    errors = refits.standard_errors(rows)
    influence, without_worst, largest_out = leave_out.left_out(rows, errors, reasons)
    trends = patterns.patterns(rows, reasons)
    effect = patterns.budget_effect(rows, reasons)
    neighbours = patterns.neighbours(rows, reasons)
    limit = HIGH_LEVERAGE * rows.rank / len(rows.losses)
    high_leverage = _above(rows.leverage, limit)
    outliers = _above(np.abs(rows.residual), OUTLIER_SIGMAS * rows.scores.sigma)
    identifiability = _identifiability(rows, errors)
    interiors = _interiors(rows, reasons)
    logs = {name: np.log(values) for name, values in rows.columns.items()} | rows.axes
    ranges = {name: float(np.exp(np.ptp(values))) for name, values in logs.items()}
    flags = [
        *_outlier_flags(rows, outliers),
        *leave_out.worst_flags(without_worst, errors, len(rows.losses)),
        *leave_out.influence_flags(rows, influence, errors, without_worst[0].parameters),
        *leave_out.held_out_flags(largest_out),
        *patterns.pattern_flags(trends),
        *patterns.budget_flags(rows, effect),
        *patterns.neighbour_flags(neighbours),
        *_identifiability_flags(fit, identifiability, errors),
        *_interior_flags(interiors),
        *_range_flags(ranges),
        *_leverage_flags(rows, high_leverage, limit),
    ]
    return Diagnostics(
        labels=rows.labels,
        axes=rows.axes,
        residuals_log=fit.residuals_log,
        leverage=rows.leverage,
        high_leverage=high_leverage,
        influence=influence,
        standard_errors=errors,
        without_worst=without_worst,
        largest_out=largest_out,
        patterns=trends,
        budget_effect=effect,
        neighbours=neighbours,
        outliers=outliers,
        identifiability=identifiability,
        interiors=interiors,
        ranges=ranges,
        flags=tuple(flags),
        reasons=reasons,
    )


def _above(values: np.ndarray, limit: float) -> tuple[int, ...]:
    """Indices of the larger ones, largest first."""
    return tuple(int(i) for i in np.argsort(-values, kind="stable") if values[i] > limit)


def _leverage_flags(rows: Rows, high: Sequence[int], limit: float) -> list[Flag]:
    if not high:
        return []
    message = (
        f"{rows.named(high)} {'decides' if len(high) == 1 else 'decide up to'} {rows.leverage[high[0]]:.0%} of the "
        f"law's own value there (leverage; the mean is {limit / HIGH_LEVERAGE:.1%}): an error in such a run goes into "
        "the parameters; check it first, and add runs near it"
    )
    return [Flag(code="high_leverage", message=message)]


def _outlier_flags(rows: Rows, outliers: Sequence[int]) -> list[Flag]:
    if not outliers:
        return []
    raw = refits.own_rows(rows.fit).problem.raw
    sigma = rows.scores.sigma / (float(np.median(rows.losses)) if raw else 1.0)
    one = len(outliers) == 1
    furthest = math.expm1(rows.fit.residuals_log[outliers[0]])
    message = (
        f"{rows.named(outliers)} {'lies' if one else 'lie'} more than {OUTLIER_SIGMAS:g} robust standard deviations "
        f"off the law, the furthest {furthest:+.2%} of the loss where rows scatter by {sigma:.2%}: look whether "
        f"{'it' if one else 'they'} diverged, stopped early or trained at another rate; leave a run out for such a "
        "reason only"
    )
    return [Flag(code="outlier_rows", message=message)]


def _identifiability(rows: Rows, errors: dict[str, float]) -> Identifiability:
    fit = rows.fit
    place = {name: index for index, name in enumerate(fit.law.parameters)}
    names = [name for name in refits.inner_names(fit) if name in errors]
    root = np.sqrt(np.diag(rows.inverse))
    correlations = {
        f"{one}, {other}": float(rows.inverse[place[one], place[other]] / root[place[one]] / root[place[other]])
        for index, one in enumerate(names)
        for other in names[index + 1 :]
    }
    return Identifiability(
        condition_number=fit.certificate.condition_number,
        correlations=correlations,
        rise=_rise(rows, errors),
        level=quantile(1, refits.spare_rows(fit)),
    )


def _rise(rows: Rows, errors: dict[str, float]) -> dict[str, float]:
    """T where an exponent is moved by three standard errors to either side, and where the floor is taken away.

    An exponent takes one polish from the fit itself: an upper bound of T, in practice the same to a few digits.
    """
    fit, own = rows.fit, refits.own_rows(rows.fit)
    places = own.bound.index[""]
    moves: dict[str, tuple[int, float]] = {}
    for name in fit.law.exponents:
        if name in errors:
            reach = FLATNESS_ERRORS * errors[name]
            moves[f"{name} - {FLATNESS_ERRORS:g} errors"] = (places[name], fit.parameters[name] - reach)
            moves[f"{name} + {FLATNESS_ERRORS:g} errors"] = (places[name], fit.parameters[name] + reach)
    without_floor = {}
    if fit.law.floor is not None:
        at_zero, _, _ = ratio(fit, fit.law.floor, np.array([0.0]))
        without_floor = {f"{fit.law.floor} = 0": float(at_zero[0])} if np.isfinite(at_zero[0]) else {}
    if not moves:
        return without_floor
    start_RP = np.repeat(solver.centred(own.problem, own.parameters_P[None]), len(moves), axis=0)
    held_RP = np.zeros(start_RP.shape, dtype=bool)
    for row, (column, value) in enumerate(moves.values()):
        start_RP[row, column], held_RP[row, column] = value, True
    solution = solver.polish(own.problem, start_RP, own.weights, held=held_RP)
    rises = refits.per_rise(fit) * np.maximum(solution.objective_R - fit.certificate.objective, 0.0)
    return {name: float(rises[row]) for row, name in enumerate(moves) if solution.converged_R[row]} | without_floor


def _identifiability_flags(fit: SurfaceFit, found: Identifiability, errors: dict[str, float]) -> list[Flag]:
    flags = []
    pair = max(found.correlations, key=lambda pair: abs(found.correlations[pair]), default=None)
    if pair is not None and abs(found.correlations[pair]) > CORRELATED:
        message = (
            f"the estimates of {pair.replace(', ', ' and ')} correlate by {found.correlations[pair]:+.3f}: the rows "
            "tell a combination of them and hardly each alone; widen the ranges, or quote predictions, not parameters"
        )
        flags.append(Flag(code="tied_parameters", message=message))
    for name in fit.law.exponents:
        if name in errors and errors[name] > UNSURE_FRAC * abs(fit.parameters[name]):
            message = (
                f"{name} is {fit.parameters[name]:.3g} with a standard error of {errors[name]:.2g}: hardly resolved; "
                "runs over a wider range narrow it most"
            )
            flags.append(Flag(code="exponent_unsure", message=message))
    for where, rise in found.rise.items():
        if where.endswith("= 0"):
            name = where.split()[0]
            # The fit says itself where the floor is 0.
            p_value = nested.floor_p_value(fit, rise)
            if fit.parameters[name] > 0 and p_value >= nested.LEVEL:
                message = (
                    f"a law without {name} fits these rows as well (robust ratio {rise:.2g}, p = {p_value:.2g}): they "
                    f"do not show that {name} is {fit.parameters[name]:.4g} rather than 0; do not extrapolate on it, "
                    "and add runs at larger compute"
                )
                flags.append(Flag(code="floor_unsure", message=message))
        elif rise < found.level:
            message = (
                f"the objective hardly rises at {where} (robust ratio {rise:.2g} of {found.level:.3g}): the interval "
                "is longer on that side than the standard error says; take the profile"
            )
            flags.append(Flag(code="flat_profile", message=message))
    return flags


def _interiors(rows: Rows, reasons: dict[str, str]) -> tuple[Interior, ...]:
    size = refits.size_column(rows.columns)
    if rows.budgets is None or size is None or rows.fit.law.effective:
        reasons["interiors"] = "needs budgets, and a law in size and num_tokens as they are"
        return ()
    found = []
    for budget in np.unique(rows.budgets):
        here = {name: values[rows.budgets == budget] for name, values in rows.columns.items()}
        sizes = np.unique(here[size])
        if len(sizes) < 3:
            continue
        middle = {name: float(np.exp(np.log(values).mean())) for name, values in here.items()}
        grid = np.geomspace(sizes[0] / 30, sizes[-1] * 30, 2000)
        at = {name: np.full(len(grid), value) for name, value in middle.items()}
        at |= {size: grid, "num_tokens": middle[size] * middle["num_tokens"] / grid}
        best = float(grid[np.argmin(rows.fit.predict(at))])
        found.append(
            Interior(
                budget=float(budget),
                smallest_size=float(sizes[0]),
                largest_size=float(sizes[-1]),
                best_size=best,
                inside=bool(sizes[0] <= best <= sizes[-1]),
            )
        )
    return tuple(found)


def _interior_flags(found: Sequence[Interior]) -> list[Flag]:
    outside = [interior for interior in found if not interior.inside]
    if not outside:
        return []
    first = outside[0]
    side = "larger" if first.best_size > first.largest_size else "smaller"
    message = (
        f"at {len(outside)} of {len(found)} budgets the law's best size is not among the sizes trained (at "
        f"{first.budget:.3g}: {first.best_size:.3g}, trained {first.smallest_size:.3g} to {first.largest_size:.3g}): "
        f"the optimum there is extrapolated; add {side} sizes"
    )
    return [Flag(code="optimum_outside", message=message)]


def _range_flags(ranges: dict[str, float]) -> list[Flag]:
    """Of tokens per size; the fit itself flags narrow columns."""
    ratio = ranges.get(refits.TOKENS_PER_SIZE, NARROW_RANGE)
    if ratio >= NARROW_RANGE:
        return []
    message = (
        f"tokens per size span {ratio:.2g} times only: size and tokens grow together and their exponents are hardly "
        "told apart; add runs of other shapes at one compute"
    )
    return [Flag(code="narrow_ratio", message=message)]
