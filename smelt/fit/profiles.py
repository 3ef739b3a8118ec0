"""A fit and the name of a parameter in, how the objective rises as it is held elsewhere and its interval out.

    T(theta) = 2 (A / B) (Q(theta) - Q_min),   A = mean psi',  B = mean psi^2        interval: T(theta) <= F(1, n - P)

Q(theta) is the least objective, over all other parameters, with the parameter held at theta. Why this is a test: near
the truth theta_0

    Q(theta_0) - Q_min  =  1/2 A d' (J'WJ) d,   d = (J'WJ)^-1 J'W psi / A,   cov(J'W psi) = B J'WJ

so that without any constraint twice the rise is B / A times a chi-square with P degrees of freedom, and with q of the
parameters held q of them are left: T is chi-square with q degrees for any psi, once the residuals' own A and B stand in
it (Schrader and Hettmansperger 1980; Ronchetti 1982). For least squares A = 1 and B = RSS / (n - P), so that T is the F
test to the digit, and F(q, n - P) is used for every objective. For absolute residuals T is 4 f(0) times the rise of
their sum (Koenker and Bassett 1982). A and B are those of `refits.scores`.

Measured (`benchmarks/nested`, 400 simulations each of 20, 42, 80 and 240 rows, normal and Student t(4) noise, delta
1e-3, delta at 1.345 standard deviations, least squares): 95 % intervals of E and two exponents cover 94 to 98 %, 95.6 %
in the mean.

What it assumes: rows are independent and scatter alike. It needs no bootstrap, follows a valley that is no ellipse, and
shows a parameter that the rows do not bound: that side of the interval is None.
"""

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, refits, tables
from smelt.fit.result import Estimate, Flag
from smelt.fit.surface import SurfaceFit, refit_held

WIDEST_EXPONENT = 5.0
COARSE = 2.0 ** np.arange(-8.0, 7.0)  # of the parameter's own size: from well inside any interval to any domain's end
REFINED = 6  # points inside a bracket, a round
ROUNDS = 2  # after which the bracket is a fiftieth of what it was, and a straight line ends it
MARGIN = 0.3  # of the interval, that is shown beyond each end
LOWER_MINIMUM = 1e-7  # relative: a held refit this far below the fit itself is another minimum


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The objective along one parameter.

    values, objective, ratio  [points], rising: the parameter, the least objective there (NaN: none found), and T
    level                     of T, at which the interval ends
    interval                  None for a side that the rows do not bound, with the reason
    flat                      whether there is such a side
    others                    the other parameters along the profile, by name [points]
    """

    name: str
    values: np.ndarray
    objective: np.ndarray
    ratio: np.ndarray
    level: float
    interval: Estimate
    flat: bool
    others: dict[str, np.ndarray]
    assumes: str
    warnings: tuple[Flag, ...]


def quantile(degrees: int, spare: int, confidence: float = 0.95) -> float:
    """Of F(degrees, spare)."""
    from scipy import special

    return float(special.fdtri(degrees, spare, confidence))


def ratio(fit: SurfaceFit, name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """T [values] with the parameter held at each, the objectives, and all parameters; NaN where none was found."""
    with np.errstate(all="ignore"):  # terms overflow far out, where the objective is then high as well
        objective, parameters, converged = refit_held(fit, name, values)
    objective = np.where(converged, objective, np.nan)
    rise = np.maximum(objective - fit.certificate.objective, 0.0)
    return refits.per_rise(fit) * rise, objective, parameters


def profile(fit: SurfaceFit, name: str, *, points: int = 41, confidence: float = 0.95) -> Profile:
    """The profile of an exponent, a shape or the floor, with its interval.

    The parameter is held at points that spread from the estimate until T passes the level on both sides, or until its
    domain ends: at 0 for the floor (no floor) and for an exponent that falls (no fall), at 5 for any exponent, at a
    factor of 10,000 for a positive shape. Both ends are then found to a thousandth of the interval or better, and
    `points` are laid over it. Raises BadInput for a parameter that cannot be held, or a fit without rows to spare.

    >>> import numpy as np
    >>> from smelt import fit
    >>> C = np.geomspace(1e15, 1e18, 12)
    >>> loss = (2 + 3e4 * C**-0.3) * np.exp(0.002 * np.sin(np.arange(12.0) ** 2))
    >>> found = fit.profile(fit.fit_surface({"compute_flops": C}, loss, "saturating", objective="squares_log"), "alpha")
    >>> bool(found.interval.low < 0.3 < found.interval.high), found.flat
    (True, False)
    """
    points = intervals.whole("points", points, 3, "a profile needs 3 or more, 41 for a smooth line")
    confidence = tables.number("confidence", confidence, "a share between 0 and 1, such as 0.95", low=0, high=1)
    line, axis = quantile(1, refits.spare_rows(fit), confidence), _axis(fit, name)
    spread = axis.centre + axis.scale * np.append(-COARSE, COARSE)
    grid = np.unique(np.clip(np.append(spread, [axis.low, axis.high]), axis.low, axis.high))
    on_grid, _, _ = ratio(fit, name, axis.values(grid))
    brackets = {side: _bracket(axis.centre, grid, on_grid, line, side) for side in (-1, 1)}
    for _ in range(ROUNDS):
        inside = {
            side: np.linspace(*sorted((inner[0], outer[0])), REFINED + 2)
            for side, (inner, outer) in ((side, found) for side, found in brackets.items() if found)
        }
        if not inside:
            break
        # Both sides at once: what a refit costs hardly grows with how many values are held.
        on_both, _, _ = ratio(fit, name, axis.values(np.concatenate([*inside.values()])))
        for side, found in zip(inside, np.split(on_both, len(inside)), strict=True):
            held = brackets[side]
            brackets[side] = _bracket(axis.centre, inside[side], found, line, side, inner=held[0]) or held
    ends = {side: None if found is None else _crossing(*found, line) for side, found in brackets.items()}
    shown = np.linspace(*_shown(axis, ends), points - 1)
    at = np.unique(np.append(shown, axis.centre))
    along, objective, parameters = ratio(fit, name, axis.values(at))
    return Profile(
        name=name,
        values=axis.values(at),
        objective=objective,
        ratio=along,
        level=line,
        interval=_interval(fit, name, axis, ends, on_grid[[0, -1]], line, confidence),
        flat=None in ends.values(),
        others={key: values for key, values in parameters.items() if key != name},
        assumes="rows that are independent and scatter alike",
        warnings=tuple(_warnings(fit, name, objective)),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Where a parameter may be held: `low` to `high` about `centre`, in logarithms or not, seen in steps of `scale`."""

    centre: float
    low: float
    high: float
    scale: float
    logarithmic: bool = False

    def values(self, at: np.ndarray) -> np.ndarray:
        return np.exp(at) if self.logarithmic else np.asarray(at)


def _axis(fit: SurfaceFit, name: str) -> _Axis:
    if name not in fit.parameters:
        raise BadInput(f"{fit.law.name} has no parameter {name!r}; choose one of {', '.join(refits.inner_names(fit))}")
    value = fit.parameters[name]
    if name == fit.law.floor:
        smallest = float(np.exp(refits.own_rows(fit).problem.log_loss_N.min()))
        return _Axis(centre=value, low=0.0, high=smallest * (1 - 1e-6), scale=max(value, 0.1 * smallest))
    shape = next((shape for shape in fit.law.shapes if shape.name == name), None)
    if shape is not None and shape.positive:
        centre, reach = float(np.log(value)), float(np.log(1e4))
        return _Axis(centre=centre, low=centre - reach, high=centre + reach, scale=reach / 4, logarithmic=True)
    if shape is not None:
        span = shape.high - shape.low
        return _Axis(centre=value, low=value - 4 * span, high=value + 4 * span, scale=span)
    falls = {p.sign for term in fit.law.terms for p in term.powers if p.exponent == name} == {-1}
    widest = max(WIDEST_EXPONENT, 2 * abs(value))
    return _Axis(centre=value, low=1e-6 if falls and value > 0 else -widest, high=widest, scale=max(abs(value), 0.1))


def _bracket(centre: float, xs: np.ndarray, ts: np.ndarray, line: float, side: int, inner=None):
    """The last point below the line and the first above it on the way outwards: ((x, T), (x, T)), or None."""
    known = np.isfinite(ts) & (side * xs > side * centre)
    order = np.argsort(side * xs[known])
    way = [inner or (centre, 0.0), *zip(xs[known][order].tolist(), ts[known][order].tolist(), strict=True)]
    return next(((one, next_) for one, next_ in itertools.pairwise(way) if next_[1] > line >= one[1]), None)


def _crossing(one: tuple[float, float], other: tuple[float, float], line: float) -> float:
    """T rises as a square: its root is the straighter line."""
    low, high = one[1] ** 0.5, other[1] ** 0.5
    return one[0] + (line**0.5 - low) / (high - low) * (other[0] - one[0])


def _shown(axis: _Axis, ends: Mapping[int, float | None]) -> tuple[float, float]:
    """The interval and a margin; on an open side as far as on the other; all of the axis where both are open."""
    reach = {side: abs(end - axis.centre) for side, end in ends.items() if end is not None}
    if not reach:
        return axis.low, axis.high
    widest = max(reach.values())
    left, right = (axis.centre + side * (1 + MARGIN) * reach.get(side, widest) for side in (-1, 1))
    return max(left, axis.low), min(right, axis.high)


def _interval(fit, name, axis: _Axis, ends, outermost: np.ndarray, line: float, confidence: float) -> Estimate:
    reasons = []
    for side, reached in zip((-1, 1), outermost, strict=True):
        if ends[side] is not None:
            continue
        where = (
            f"a law without {name} fits as well" if name == fit.law.floor and side < 0 else "the objective stays low"
        )
        reasons.append(
            f"not identified from {'below' if side < 0 else 'above'}: {where} (T {reached:.2g} of {line:.3g})"
        )
    low, high = (None if ends[side] is None else float(axis.values(ends[side])) for side in (-1, 1))
    return Estimate(
        value=fit.parameters[name],
        low=low,
        high=high,
        confidence=confidence,
        method=f"profile of the objective, robust ratio T against F(1, {refits.spare_rows(fit)})",
        reason="; ".join(reasons) or None,
    )


def _warnings(fit: SurfaceFit, name: str, objective: np.ndarray) -> list[Flag]:
    warnings = []
    lost = float(np.mean(np.isnan(objective)))
    if lost:
        message = f"with {name} held, {lost:.0%} of the refits of the profile did not converge and are left out"
        warnings.append(Flag(code="profile_not_converged", message=message))
    least = float(np.nanmin(np.append(objective, np.inf)))
    if least < fit.certificate.objective * (1 - LOWER_MINIMUM):
        message = (
            f"with {name} held the objective comes to {least:.9g}, below the fit's {fit.certificate.objective:.9g}: "
            "the fit is not the minimum, and neither its parameters nor this profile can be trusted"
        )
        warnings.append(Flag(code="lower_minimum", message=message))
    return warnings
