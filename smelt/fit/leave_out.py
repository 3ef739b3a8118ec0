"""Rows of a fit in, the fit without one, without the worst and without the largest in one batch out, with what moved.

The largest budget predicted from the rest is the nearest that rows come to the question a law is asked. Its test is
Chow's (1960): F = e' (V J V_0 J' + s^2 I)^-1 e / m on m and n - P degrees, e the errors of the m rows, which takes into
account that a law that is a little off misses all of them together. It does not know why a row is odd.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from smelt.fit import laws, refits
from smelt.fit.refits import Rows
from smelt.fit.result import Flag

LEVEL = 0.01
MOVES_STANDARD_ERRORS = 1.0
# Without one of n rows a parameter moves by sqrt(P / n) standard errors or so, and by this many times it by chance.
MOVES_BY_CHANCE = 3.5
MAX_WORST = 5
WORST_FRAC = 0.05  # of the rows: dropping so few should decide nothing
TOP_FRAC = 0.2  # of the rows, held out where there are no budgets
MAX_REFITS = 500  # above, rows that move least by one Newton step keep that step's figure


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WithoutWorst:
    """Parameters and allocation exponent without the `num_left_out` rows of largest residuals; NaN: no minimum."""

    num_left_out: int
    rows: tuple[str, ...]
    parameters: dict[str, float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Rows predicted from a fit without them.

    relative_error  measured / predicted - 1, one a row of `rows`: above 0 where the law was too hopeful
    low, high       95 % prediction intervals of the loss: parameters (as if normal) and one run's scatter
    hits            how many of the rows lie inside
    p_value         of Chow's test: how often would a law that holds miss all of them together by this much?
    parameters      of that fit, and its allocation exponent
    """

    what: str
    rows: tuple[str, ...]
    row_indices: tuple[int, ...]
    predicted: np.ndarray
    measured: np.ndarray
    relative_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    hits: int
    p_value: float
    parameters: dict[str, float]


def left_out(
    rows: Rows, errors: dict[str, float], reasons: dict[str, str]
) -> tuple[dict[str, np.ndarray], tuple[WithoutWorst, ...], HeldOut | None]:
    """Influence by name [rows] in standard errors, the fits without the worst rows, and the largest rows predicted.

    Adds to `reasons` why there is no prediction or no influence, where there is none.
    """
    fit, count = rows.fit, rows.fit.num_rows
    step = _one_step(rows)
    reach = np.max([np.zeros(count), *(np.abs(step[name]) / errors[name] for name in errors if name in step)], axis=0)
    singles = np.sort(np.argsort(-reach, kind="stable")[:MAX_REFITS])
    num_worst = min(MAX_WORST, count - len(fit.law.parameters) - 1)
    worst = np.argsort(-np.abs(rows.residual), kind="stable")[:num_worst]
    held = _largest(rows, reasons)
    weight_RN = np.ones((len(singles) + num_worst + (held is not None), count))
    weight_RN[np.arange(len(singles)), singles] = 0.0
    for dropped in range(1, num_worst + 1):
        weight_RN[len(singles) + dropped - 1, worst[:dropped]] = 0.0
    if held is not None:
        weight_RN[-1, held[1]] = 0.0
    parameters = refits.weighted(fit, weight_RN)
    values, at = refits.with_allocation(fit, parameters), refits.with_allocation(fit, fit.parameters)

    influence = {name: step.get(name, np.full(count, np.nan)) / error for name, error in errors.items()}
    for name, error in errors.items():
        influence[name][singles] = (at[name] - values[name][: len(singles)]) / error
    if count <= len(fit.law.parameters) + 1:
        reasons["influence"] = f"without a row {count - 1} are left for {len(fit.law.parameters)} parameters"
        influence = {}
    without = [WithoutWorst(num_left_out=0, rows=(), parameters={n: float(v) for n, v in at.items()})]
    for dropped in range(1, num_worst + 1):
        here = {name: float(value[len(singles) + dropped - 1]) for name, value in values.items()}
        names = tuple(rows.labels[i] for i in worst[:dropped])
        without.append(WithoutWorst(num_left_out=dropped, rows=names, parameters=here))
    predicted = None
    if held is not None:
        predicted = _held_out(rows, *held, {name: float(v[-1]) for name, v in values.items()}, reasons)
    return influence, tuple(without), predicted


def _one_step(rows: Rows) -> dict[str, np.ndarray]:
    """The estimate less the one without a row, by one Newton step, [rows] of each parameter."""
    psi = rows.weight * np.clip(rows.residual, -rows.scores.delta, rows.scores.delta)
    push = psi / np.maximum(1 - rows.leverage, 1e-3) / rows.scores.slope
    moved = rows.jacobian @ np.nan_to_num(rows.inverse) * push[:, None]
    return dict(zip(rows.fit.law.parameters, moved.T, strict=True))


def _largest(rows: Rows, reasons: dict[str, str]) -> tuple[str, np.ndarray] | None:
    """What is held out in words, and its rows; None where the rest is no design."""
    count, num_parameters = len(rows.losses), len(rows.fit.law.parameters)
    if rows.budgets is not None:
        levels = np.unique(rows.budgets)
        out = np.flatnonzero(rows.budgets == levels[-1])
        what = "the largest budget, " + f"{levels[-1]:.4g}".replace("e+", "e")
        if len(levels) < 3:
            reasons["largest_out"] = f"{len(levels)} budgets: without the largest, one budget is no surface"
            return None
    else:
        alone = next(iter(rows.axes.values())) if len(rows.axes) == 1 else None
        reach = rows.axes.get("compute", alone)
        if reach is None:
            reasons["largest_out"] = "neither budgets nor size and tokens tell which rows are the largest"
            return None
        out = np.argsort(reach, kind="stable")[-max(1, round(TOP_FRAC * count)) :]
        what = "the row of largest compute" if len(out) == 1 else f"the {len(out)} rows of largest compute"
    if count - len(out) < num_parameters + 2:
        reasons["largest_out"] = f"without {what} {count - len(out)} rows are left for {num_parameters} parameters"
        return None
    return what, out


def _held_out(rows: Rows, what: str, out: np.ndarray, parameters: dict, reasons: dict[str, str]) -> HeldOut | None:
    from scipy import special

    fit, raw = rows.fit, refits.own_rows(rows.fit).problem.raw
    if not all(math.isfinite(value) for value in parameters.values()):
        reasons["largest_out"] = f"the refit without {what} did not converge"
        return None
    kept = np.setdiff1d(np.arange(len(rows.losses)), out)
    predicted_N = laws.predicted_loss(fit.law, parameters, rows.columns)
    error_N = rows.losses - predicted_N if raw else np.log(rows.losses / predicted_N)
    jacobian = refits.jacobian(fit, rows.columns, parameters)
    inverse, _ = refits.inverse(jacobian[kept], rows.weight[kept])
    spare = len(kept) - len(fit.law.parameters)
    scores = refits.scores_of(error_N[kept], rows.weight[kept], fit.delta, len(fit.law.parameters))
    noise = float(np.sum(error_N[kept] ** 2)) / spare
    spread = scores.variance * jacobian[out] @ np.nan_to_num(inverse) @ jacobian[out].T + noise * np.eye(len(out))
    half = float(special.stdtrit(spare, 0.975)) * np.sqrt(np.diag(spread))
    predicted, measured = predicted_N[out], rows.losses[out]
    low, high = (predicted - half, predicted + half) if raw else (predicted * np.exp(-half), predicted * np.exp(half))
    chow = float(error_N[out] @ np.linalg.solve(spread, error_N[out])) / len(out)
    return HeldOut(
        what=what,
        rows=tuple(rows.labels[i] for i in out),
        row_indices=tuple(int(i) for i in out),
        predicted=predicted,
        measured=measured,
        relative_error=measured / predicted - 1,
        low=low,
        high=high,
        hits=int(np.sum((low <= measured) & (measured <= high))),
        p_value=float(special.fdtrc(len(out), spare, chow)),
        parameters=parameters,
    )


def influence_flags(
    rows: Rows, influence: dict[str, np.ndarray], errors: dict[str, float], at: dict[str, float]
) -> list[Flag]:
    """Rows that move a parameter by more than its standard error, and by more than chance does in so few rows."""
    if not influence:
        return []
    limit = max(MOVES_STANDARD_ERRORS, MOVES_BY_CHANCE * math.sqrt(rows.rank / len(rows.losses)))
    moves = {name: np.nan_to_num(values) for name, values in influence.items()}
    most = np.max(np.abs(list(moves.values())), axis=0)
    moving = [int(i) for i in np.argsort(-most, kind="stable") if most[i] > limit]
    if not moving:
        return []
    first = moving[0]
    name = max(moves, key=lambda name: abs(moves[name][first]))
    without = at[name] - moves[name][first] * errors[name]
    count = "no other row moves" if len(moving) == 1 else f"{len(moving)} rows move"
    message = (
        f"without {rows.labels[first]} {name} goes from {at[name]:.4g} to {without:.4g}, {most[first]:.1f} standard "
        f"errors; {count} a parameter by more than {limit:.2g}: look whether it diverged, stopped early or was "
        "untuned, and quote the fit with and without it"
    )
    return [Flag(code="influential_row", message=message)]


def worst_flags(without: Sequence[WithoutWorst], errors: dict[str, float], num_rows: int) -> list[Flag]:
    """Dropping a twentieth of the rows should not move a parameter by more than its standard error."""
    few = [fit for fit in without if fit.num_left_out <= max(1, int(WORST_FRAC * num_rows))]
    moves = {
        name: max(abs(fit.parameters[name] - few[0].parameters[name]) for fit in few) / error
        for name, error in errors.items()
        if all(math.isfinite(fit.parameters[name]) for fit in few)
    }
    name = max(moves, key=lambda name: moves[name], default=None)
    limit = max(MOVES_STANDARD_ERRORS, MOVES_BY_CHANCE * math.sqrt(len(errors) / num_rows))
    if name is None or moves[name] <= limit:
        return []
    path = ", ".join(f"{fit.parameters[name]:.4g}" for fit in few)
    message = (
        f"{name} is {path} without 0 to {len(few) - 1} rows of largest residuals, a move of {moves[name]:.1f} standard "
        "errors: the answer hangs on what is called an outlier; state the rule that leaves rows out before the fit, "
        "and show this table"
    )
    return [Flag(code="outliers_decide", message=message)]


def held_out_flags(found: HeldOut | None) -> list[Flag]:
    if found is None or found.p_value >= LEVEL:
        return []
    mean = float(np.mean(found.relative_error))
    side = "above" if mean > 0 else "below"
    message = (
        f"fitted without {found.what}, the law is off there: losses are {abs(mean):.2%} {side} it on average and "
        f"{found.hits} of {len(found.rows)} lie inside 95 % intervals (p = {found.p_value:.1g}); it "
        "does not carry upwards: leave out the smallest budgets or try another law before predicting further"
    )
    return [Flag(code="extrapolation_missed", message=message)]
