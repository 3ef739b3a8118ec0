"""Losses and benchmark scores of runs in; the sigmoid that links them, and the score at another loss, out.

    accuracy = b + a / (1 + exp(k (loss - midpoint))),    k > 0

b is what a high loss scores (chance), b + a what a low loss would. An accuracy falls as the loss rises (a > 0), an
error rises (a < 0). For given k and midpoint, b and a are a linear problem (variable projection); k and midpoint are
sought over all of a grid, polished by Newton steps of the exact reduced Hessian, and the point is certified as a law's
is. The form is that of task losses and accuracies in Bhagia et al. 2024 (arXiv 2412.04403).

A percentile of resampled rows is too narrow by the parameters fitted, and knows no Student's t: draws are spread about
the point by `widening` before their percentiles are taken (for a mean: Hesterberg 2015, The American Statistician 69,
371). It does not know that a score has bounds, nor whether another family of models keeps the link.

Arrays carry their axes: R replicates, N rows, G points of the grid.
"""

import dataclasses
import math
from collections.abc import Hashable, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, tables
from smelt.fit.result import Estimate, Flag, estimate
from smelt.fit.solver import Certificate

NOISE_STREAM = 4  # apart from the stream that resamples units under the same seed
NUM_STARTS = 8
# In spans of the losses seen. A smaller k is a straight line to half a per cent, a larger one a step between two rows;
# a midpoint further off leaves an exponential.
SLOPES = (0.5, 400.0)
MIDPOINTS = (-2.5, 2.5)
GRADIENT_TOLERANCE = 1e-7  # relative to what the residuals could make; rounding leaves 1e-9 or less
STARTS_AGREE_RELATIVE = 1e-9
MAX_STEPS = 200
DIRECTIONS = {"falling": 1.0, "rising": -1.0}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A fitted link.

    parameters, estimates   b, a, k, midpoint; k in one over the unit of the loss
    chance       b as given, or None where it is fitted
    noise        root mean square residual, corrected for the fitted parameters; None without spare rows
    widening     factor by which draws of anything are spread about its value, for few units
    draws        by parameter name [num_draws], not spread; NaN where a draw has too few different losses
    """

    parameters: dict[str, float]
    estimates: dict[str, Estimate]
    direction: str
    chance: float | None
    residuals: np.ndarray
    noise: float | None
    certificate: Certificate
    warnings: tuple[Flag, ...]
    num_rows: int
    loss_range: tuple[float, float]
    widening: float
    draws: dict[str, np.ndarray] | None = dataclasses.field(repr=False)

    def accuracy(self, loss: Sequence | np.ndarray | float) -> np.ndarray:
        """The link at losses, in the unit of the scores."""
        return _accuracy(self.parameters, np.asarray(loss, dtype=float))


def _accuracy(parameters: dict, loss: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    return parameters["b"] + parameters["a"] * expit(-parameters["k"] * (loss - parameters["midpoint"]))


def fit_link(
    loss: Sequence | np.ndarray,
    accuracy: Sequence | np.ndarray,
    *,
    units: Sequence[Hashable] | None = None,
    chance: float | None = None,
    direction: str = "falling",
    weights: Sequence | np.ndarray | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Link:
    """The least-squares link of scores to losses, one row a run or a checkpoint, with 95 % intervals by unit.

    `units` labels rows that were drawn together (checkpoints of one run); None: every row its own. `chance` holds b,
    the score of a model that knows nothing (0.25; for an error 0.75, with `direction` "rising"). `weights` are one over
    a variance, where questions differ in number. Intervals are percentiles of `draws` in which whole units are
    resampled and the link is sought anew over the whole grid. Raises BadInput for fewer rows or losses than
    parameters, a score that does not vary or goes the other way, and numbers that are not finite.

    >>> import numpy as np
    >>> loss = np.linspace(2.0, 4.0, 9)
    >>> link = fit_link(loss, 0.25 + 0.6 / (1 + np.exp(4.0 * (loss - 2.8))), chance=0.25, draws=0)
    >>> {name: round(value, 6) for name, value in link.parameters.items()}
    {'b': 0.25, 'a': 0.6, 'k': 4.0, 'midpoint': 2.8}
    """
    losses = tables.positive("loss", loss)
    scores = _finite("accuracy", accuracy, len(losses))
    weight_N = np.ones(len(losses)) if weights is None else tables.positive("weights", weights)
    if len(weight_N) != len(losses):
        raise BadInput(f"weights has {len(weight_N)} rows, loss {len(losses)}; give one a row")
    if not isinstance(direction, str) or direction not in DIRECTIONS:
        raise BadInput(f"direction is {direction!r}; an accuracy is falling with the loss, an error rising")
    if units is None:  # a row is drawn by its place among the values, not in the file
        labels = tables.places([losses, scores, weight_N]).tolist()
    else:
        labels = tables.labels("units", units, len(losses))
    num_parameters = 4 if chance is None else 3
    num_losses = len(np.unique(np.round(np.log(losses), 9)))
    if num_losses < num_parameters:
        raise BadInput(
            f"{num_losses} different losses cannot fix the {num_parameters} parameters of the link; add "
            "runs" + ("" if chance is not None else ", or give chance")
        )
    if np.ptp(scores) == 0:
        raise BadInput(f"accuracy is {scores[0]:g} in every row; a link needs runs that differ in it")
    if chance is not None:
        chance = _checked_chance(chance, scores, direction)
    low, high = float(losses.min()), float(losses.max())
    rows = _Rows(
        z_N=(losses - 0.5 * (low + high)) / (high - low),
        y_N=scores,
        chance=chance,
        sign=DIRECTIONS[direction],
    )
    starts_S2 = _screen(rows, weight_N[None], NUM_STARTS)[0]
    ends = _polish(rows, np.repeat(weight_N[None], len(starts_S2), axis=0), starts_S2)
    best = int(np.argmin(ends.value_R))
    if ends.a_R[best] == 0:
        other = next(name for name in DIRECTIONS if name != direction)
        raise BadInput(f"the scores are not {direction} with the loss: give direction={other!r}, or check the columns")
    point = {name: float(values[0]) for name, values in _named(ends.at([best]), low, high).items()}
    residuals = scores - _accuracy(point, losses)
    spare = len(losses) - num_parameters
    unit_N = weight_N / weight_N.sum()
    noise = math.sqrt(float(unit_N @ residuals**2) * len(losses) / spare) if spare else None
    held = _at_bound(ends.theta_R2[[best]])[0]
    drawn, held_R = None, np.zeros(0, dtype=bool)
    if draws:
        drawn, held_R = _drawn(rows, weight_N, labels, ends.theta_R2[best], (low, high), num_parameters, draws, seed)
    proof = _certificate(ends, best, held)
    num_units = len(set(labels))
    widening = _widening(num_units, num_parameters)
    open_sides = _open_sides(rows, weight_N, proof.objective, spare)
    return Link(
        parameters=point,
        estimates=_estimates(point, drawn, held_R, chance, widening, open_sides),
        direction=direction,
        chance=rows.chance,
        residuals=residuals,
        noise=noise,
        certificate=proof,
        warnings=tuple(_diagnosed(point, rows, losses, noise, proof, open_sides, num_units)),
        num_rows=len(losses),
        loss_range=(low, high),
        widening=widening,
        draws=drawn,
    )


def _finite(name: str, values: Sequence | np.ndarray, num_rows: int) -> np.ndarray:
    array = tables.numbers(name, values)
    if len(array) != num_rows:
        raise BadInput(f"{name} has {len(array)} rows, loss {num_rows}; give one number a row")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise BadInput(f"{name} is {array[bad[0]]:g} in row {bad[0]}; leave the row out")
    return array


def _checked_chance(chance: float, scores: np.ndarray, direction: str) -> float:
    """What a model that knows nothing scores, in the unit of the scores: some of them must be better."""
    chance = tables.number("chance", chance, "the score of a model that knows nothing, such as 0.25")
    best = float(scores.max() if direction == "falling" else scores.min())
    side = "above" if direction == "falling" else "below"
    if not (best > chance if direction == "falling" else best < chance):
        raise BadInput(f"chance is {chance:g} and no score is {side} it, the best is {best:g}; give it in their unit")
    if 0 < chance < 1 < scores.max():
        raise BadInput(
            f"chance is {chance:g} and scores go to {scores.max():g}; give both as shares, or both in per cent"
        )
    return chance


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Losses in spans from their middle, scores, and what is known of b and of the sign of a."""

    z_N: np.ndarray
    y_N: np.ndarray
    chance: float | None
    sign: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """Links at theta = (ln k, midpoint) in spans, with derivatives of half the squared residuals, [R] of each."""

    theta_R2: np.ndarray
    b_R: np.ndarray
    a_R: np.ndarray
    value_R: np.ndarray
    gradient_R2: np.ndarray
    scale_R2: np.ndarray  # what the gradient would be were all residuals of one sign
    hessian_R22: np.ndarray
    gauss_newton_R22: np.ndarray
    total_R: np.ndarray  # half the squares about the mean, or about chance

    def at(self, where: Sequence[int] | np.ndarray) -> "_Ends":
        return _Ends(**{f.name: getattr(self, f.name)[where] for f in dataclasses.fields(self)})


def _linear(rows: _Rows, weight_RN: np.ndarray, g_RN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """b and a at sigmoids, a kept to its sign; a sigmoid that is flat over the rows gets no a."""
    total = weight_RN.sum(axis=1)
    given = rows.chance is not None
    base = np.zeros(len(total)) if given else (weight_RN * g_RN).sum(axis=1) / total
    off_RN = g_RN - base[:, None]
    square = (weight_RN * off_RN**2).sum(axis=1)
    bent = square > 1e-12 * total
    a = (weight_RN * off_RN * (rows.y_N - (rows.chance or 0.0))).sum(axis=1) / np.where(bent, square, 1.0)
    a = np.where(bent & (a * rows.sign > 0), a, 0.0)
    b = np.full(len(total), rows.chance) if given else weight_RN @ rows.y_N / total - a * base
    return b, a


def _ends(rows: _Rows, weight_RN: np.ndarray, theta_R2: np.ndarray) -> _Ends:
    from scipy.special import expit

    k = np.exp(theta_R2[:, :1])
    u_RN = k * (rows.z_N - theta_R2[:, 1:])
    g_RN = expit(-u_RN)
    b, a = _linear(rows, weight_RN, g_RN)
    residual_RN = rows.y_N - b[:, None] - a[:, None] * g_RN
    # g falls with u at the rate h; u moves by u with ln k and by -k with the midpoint.
    h_RN = g_RN * (1 - g_RN)
    first = np.stack([-h_RN * u_RN, h_RN * k], axis=1)
    bend = h_RN * (1 - 2 * g_RN)
    cross = -bend * u_RN * k + h_RN * k
    second = np.stack([bend * u_RN**2 - h_RN * u_RN, cross, cross, bend * k**2], axis=1).reshape(len(k), 2, 2, -1)
    weighted = weight_RN * residual_RN
    down = np.einsum("RN,RJN->RJ", weighted, first)
    gauss_newton = a[:, None, None] ** 2 * np.einsum("RIN,RJN,RN->RIJ", first, first, weight_RN)
    hessian = gauss_newton - a[:, None, None] * np.einsum("RN,RIJN->RIJ", weighted, second)
    # b and a follow theta: what they take of the curvature is subtracted (a Schur complement).
    basis = g_RN[:, None] if rows.chance is not None else np.stack([np.ones_like(g_RN), g_RN], axis=1)
    inner = np.einsum("RIN,RJN,RN->RIJ", basis, basis, weight_RN)
    inner += 1e-14 * np.einsum("RII->R", inner)[:, None, None] * np.eye(inner.shape[1])
    mixed = a[:, None, None] * np.einsum("RJN,RKN,RN->RJK", first, basis, weight_RN)
    gauss_newton = gauss_newton - mixed @ np.linalg.solve(inner, mixed.transpose(0, 2, 1))
    mixed[:, :, -1] -= down
    hessian = hessian - mixed @ np.linalg.solve(inner, mixed.transpose(0, 2, 1))
    centre = rows.chance if rows.chance is not None else (weight_RN @ rows.y_N / weight_RN.sum(axis=1))[:, None]
    return _Ends(
        theta_R2=theta_R2,
        b_R=b,
        a_R=a,
        value_R=0.5 * (weighted * residual_RN).sum(axis=1),
        gradient_R2=-a[:, None] * down,
        scale_R2=np.abs(a)[:, None] * np.einsum("RN,RJN->RJ", np.abs(weighted), np.abs(first)),
        hessian_R22=hessian,
        gauss_newton_R22=gauss_newton,
        total_R=0.5 * (weight_RN * (rows.y_N - centre) ** 2).sum(axis=1),
    )


LOW_2 = np.array([math.log(SLOPES[0]), MIDPOINTS[0]])
HIGH_2 = np.array([math.log(SLOPES[1]), MIDPOINTS[1]])


def _at_bound(theta_R2: np.ndarray) -> np.ndarray:
    return ((theta_R2 <= LOW_2 + 1e-9) | (theta_R2 >= HIGH_2 - 1e-9)).any(axis=1)


def _screen(rows: _Rows, weight_RN: np.ndarray, num_starts: int) -> np.ndarray:
    """The best starts [R, num_starts, 2] of a grid of links that span all the data can show, apart from one another."""
    from scipy.special import expit

    slopes, midpoints = np.geomspace(*SLOPES, 24), np.linspace(*MIDPOINTS, 61)
    theta_G2 = np.array([(math.log(k), m) for k in slopes for m in midpoints])
    g_GN = expit(-np.exp(theta_G2[:, :1]) * (rows.z_N - theta_G2[:, 1:]))
    total_R1, y_R1 = weight_RN.sum(axis=1, keepdims=True), (weight_RN @ rows.y_N)[:, None]
    g_RG, gg_RG, gy_RG = weight_RN @ g_GN.T, weight_RN @ (g_GN**2).T, (weight_RN * rows.y_N) @ g_GN.T
    if rows.chance is not None:
        slope_RG, square_RG = gy_RG - rows.chance * g_RG, gg_RG
    else:
        slope_RG, square_RG = gy_RG - g_RG * y_R1 / total_R1, gg_RG - g_RG**2 / total_R1
    # Of the squares the sigmoid explains slope^2 / square, if a has its sign; a flat stretch of it explains nothing.
    usable = (slope_RG * rows.sign > 0) & (square_RG > 1e-12 * total_R1)
    gain_RG = np.where(usable, slope_RG**2 / np.where(usable, square_RG, 1.0), 0.0)
    if num_starts == 1:
        return theta_G2[gain_RG.argmax(axis=1)][:, None]
    found = []
    for gain_G in gain_RG:
        chosen: list[int] = []
        for index in np.argsort(-gain_G, kind="stable"):
            apart = np.abs(theta_G2[chosen] - theta_G2[index]) > (0.5, 0.25)
            if apart.any(axis=1).all():
                chosen.append(int(index))
            if len(chosen) == num_starts:
                break
        found.append(theta_G2[chosen])
    return np.stack(found)


def _polish(rows: _Rows, weight_RN: np.ndarray, theta_R2: np.ndarray) -> _Ends:
    """Newton steps inside the box, each with its own damping; a step that does not descend is refused."""
    here = _ends(rows, weight_RN, np.clip(theta_R2, LOW_2, HIGH_2))
    damping = np.full(len(theta_R2), 1e-3)
    for _ in range(MAX_STEPS):
        open_R = ~_finished(here) & (damping < 1e12)
        where = np.flatnonzero(open_R)
        if not where.size:
            break
        now = here.at(where)
        gradient, free = _free_gradient(now)
        ridge = np.einsum("RII->RI", now.gauss_newton_R22)
        ridge = ridge + 1e-9 * ridge.max(axis=1, keepdims=True) + 1e-300
        convex = np.linalg.eigvalsh(now.hessian_R22)[:, 0] > 0
        matrix = np.where(convex[:, None, None], now.hessian_R22, now.gauss_newton_R22)
        matrix = matrix + (damping[where][:, None] * ridge)[:, :, None] * np.eye(2)
        matrix = np.where(free[:, :, None] & free[:, None, :], matrix, 0.0) + (~free)[:, :, None] * np.eye(2)
        step = -np.linalg.solve(matrix, gradient[:, :, None])[:, :, 0]
        trial = _ends(rows, weight_RN[where], np.clip(now.theta_R2 + np.clip(step, -1.0, 1.0), LOW_2, HIGH_2))
        better = trial.value_R < now.value_R
        for f in dataclasses.fields(_Ends):
            getattr(here, f.name)[where[better]] = getattr(trial, f.name)[better]
        damping[where] = np.where(better, np.maximum(damping[where] * 0.2, 1e-12), damping[where] * 10)
    return here


def _free_gradient(ends: _Ends) -> tuple[np.ndarray, np.ndarray]:
    """The gradient without the entries that would leave the box, and which entries are free."""
    theta, gradient = ends.theta_R2, ends.gradient_R2
    held = ((theta <= LOW_2) & (gradient > 0)) | ((theta >= HIGH_2) & (gradient < 0))
    return np.where(held, 0.0, gradient), ~held


def _scaled_gradient(ends: _Ends) -> np.ndarray:
    gradient, _ = _free_gradient(ends)
    scaled = np.abs(gradient) / (ends.scale_R2 + 1e-3 * ends.scale_R2.max(axis=1, keepdims=True) + 1e-300)
    return np.where(_exact(ends), 0.0, scaled.max(axis=1))


def _exact(ends: _Ends) -> np.ndarray:
    """The link meets every row to rounding: nothing is left for a gradient to be relative to."""
    return ends.value_R <= 1e-24 * ends.total_R


def _finished(ends: _Ends) -> np.ndarray:
    return (_scaled_gradient(ends) <= 1e-2 * GRADIENT_TOLERANCE) | (ends.a_R == 0)


def _named(ends: _Ends, low: float, high: float) -> dict[str, np.ndarray]:
    span, middle = high - low, 0.5 * (low + high)
    k, midpoint = np.exp(ends.theta_R2[:, 0]) / span, middle + span * ends.theta_R2[:, 1]
    return {"b": ends.b_R, "a": ends.a_R, "k": k, "midpoint": midpoint}


def _drawn(
    rows: _Rows,
    weight_N: np.ndarray,
    labels: Sequence[Hashable],
    point_2: np.ndarray,
    loss_range: tuple[float, float],
    num_parameters: int,
    draws: int,
    seed: int,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Links of resampled units by parameter name, and which of them lie on the box: a draw without a bend."""
    counts = intervals.joint_counts({"": labels}, draws=draws, seed=seed)[""]
    block = max(1, 500_000 // len(weight_N))
    parts = []
    for first in range(0, len(counts), block):
        weight_RN = weight_N * counts[first : first + block]
        found = _polish(rows, weight_RN, _screen(rows, weight_RN, 1)[:, 0])
        other = _polish(rows, weight_RN, np.repeat(point_2[None], len(weight_RN), axis=0))
        lower = other.value_R < found.value_R
        parts.append(
            {
                f.name: np.where(
                    lower.reshape(-1, *[1] * (getattr(found, f.name).ndim - 1)),
                    getattr(other, f.name),
                    getattr(found, f.name),
                )
                for f in dataclasses.fields(_Ends)
            }
        )
    ends = _Ends(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    by_name = _named(ends, *loss_range)
    places = np.unique(rows.z_N, return_inverse=True)[1]
    num_losses = ((counts @ np.eye(places.max() + 1)[places]) > 0).sum(axis=1)
    unusable = (num_losses < num_parameters) | (ends.a_R == 0)
    return {name: np.where(unusable, np.nan, values) for name, values in by_name.items()}, _at_bound(ends.theta_R2)


def _widening(num_units: int, num_parameters: int) -> float:
    """sqrt(n / (n - p)) t / z at 95 % for n units and p parameters."""
    from scipy.special import ndtri, stdtrit

    spare = max(num_units - num_parameters, 1)
    return math.sqrt(num_units / spare) * float(stdtrit(spare, 0.975) / ndtri(0.975))


def _estimates(
    point: dict[str, float],
    drawn: dict[str, np.ndarray] | None,
    held_R: np.ndarray,
    chance: float | None,
    widening: float,
    open_sides: dict[str, str],
) -> dict[str, Estimate]:
    found = {}
    for name, value in point.items():
        if name == "b" and chance is not None:
            found[name] = estimate(value, method="given", reason="given, not fitted")
            continue
        if drawn is None:
            found[name] = estimate(value, method="point fit")
            continue
        shown = np.where(held_R, np.nan, drawn[name])
        reason, open_frac = None, float(np.isnan(shown).mean())
        if open_sides:
            shown, reason = None, f"{next(iter(open_sides.values()))} fits as well"
        elif open_frac > 0.05:
            shown, reason = None, f"{open_frac:.0%} of the draws show no bend: the interval is open"
        elif name == "k":  # k is above 0, and so is what it is spread to
            shown = value * (shown / value) ** widening
        else:
            shown = value + widening * (shown - value)
        method = f"percentiles of {len(held_R)} bootstrap draws by unit, spread by {widening:.2f}"
        found[name] = estimate(value, shown, method=method, reason=reason)
    return found


def _certificate(ends: _Ends, best: int, held: bool) -> Certificate:
    end = ends.at([best])
    unit = np.sqrt(np.maximum(np.diagonal(end.gauss_newton_R22[0]), 1e-300))
    hessian = end.hessian_R22[0] / np.outer(unit, unit)
    eigenvalue = float(np.linalg.eigvalsh(hessian)[0])
    condition = float(np.linalg.cond(end.gauss_newton_R22[0] / np.outer(unit, unit)))
    value, exact = float(end.value_R[0]), bool(_exact(end)[0])
    scaled = float(_scaled_gradient(end)[0])
    gradient = _free_gradient(end)[0][0] / unit
    decrement = 0.0 if exact else 0.5 * abs(float(gradient @ np.linalg.lstsq(hessian, gradient, rcond=None)[0])) / value
    agreeing = int(np.sum(ends.value_R <= value * (1 + STARTS_AGREE_RELATIVE) + 1e-24 * end.total_R[0]))
    why_not = None
    if held:
        why_not = "k or the midpoint went as far as it is followed: the data show no bend of their own"
    elif scaled > GRADIENT_TOLERANCE:
        why_not = f"the scaled gradient is {scaled:.1e}, above {GRADIENT_TOLERANCE:.0e}"
    elif eigenvalue <= 0:
        why_not = f"the Hessian has an eigenvalue of {eigenvalue:.1e}: the minimum is flat or a saddle"
    elif agreeing < 2:
        why_not = f"only {agreeing} of {len(ends.value_R)} distinct starts reached it"
    return Certificate(
        certified=why_not is None,
        objective=value,
        scaled_gradient=scaled,
        newton_decrement=decrement,
        min_eigenvalue=eigenvalue,
        condition_number=condition,
        num_starts=len(ends.value_R),
        num_starts_agreeing=agreeing,
        why_not=why_not,
    )


def _diagnosed(
    point: dict[str, float],
    rows: _Rows,
    losses: np.ndarray,
    noise: float | None,
    proof: Certificate,
    open_sides: dict[str, str],
    num_units: int,
) -> list[Flag]:
    flags = []

    def flag(code: str, message: str) -> None:
        flags.append(Flag(code=code, message=message))

    if not proof.certified:
        flag("not_certified", f"the minimum of the link is not proven: {proof.why_not}")
    num_parameters = 4 if rows.chance is None else 3
    if num_units < 2 * num_parameters:
        flag("few_rows", f"{num_units} units for {num_parameters} parameters: intervals are rough")
    for code, words in open_sides.items():
        flag(
            code,
            f"{words} fits the scores as well: a, k and midpoint are not told apart, accuracies between the "
            "losses seen are",
        )
    midpoint = point["midpoint"]
    if not losses.min() <= midpoint <= losses.max():
        side, end = ("below", "low") if midpoint < losses.min() else ("above", "high")
        flag(
            "midpoint_outside",
            f"the midpoint ({midpoint:.4g}) lies {side} the losses seen: how the link ends at {end} losses is not seen",
        )
    if noise:
        off = np.abs(rows.y_N - point["b"]) > 2 * noise
        if off.mean() < 0.5 or off.sum() < num_parameters:
            flag(
                "at_chance",
                f"{np.sum(~off)} of {len(off)} scores lie within two standard deviations of chance ({point['b']:.3g}): "
                "they do not show the slope",
            )
    return flags


# Sides of the box, and what a link there would be.
SIDES = {
    "no_bend": (0, 0, "a straight line"),
    "no_slope": (0, 1, "a step"),
    "low_end_open": (1, 0, "a link that does not level off at low losses"),
    "high_end_open": (1, 1, "a link that does not level off at high losses"),
}


def _half_squares(rows: _Rows, weight_N: np.ndarray, theta_G2: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    g_GN = expit(-np.exp(theta_G2[:, :1]) * (rows.z_N - theta_G2[:, 1:]))
    b, a = _linear(rows, np.broadcast_to(weight_N, g_GN.shape), g_GN)
    return 0.5 * (rows.y_N - b[:, None] - a[:, None] * g_GN) ** 2 @ weight_N


def _open_sides(rows: _Rows, weight_N: np.ndarray, best: float, spare: int) -> dict[str, str]:
    """Code -> what fits as well as the link does: sides of the box that an F test at the 5 % level does not exclude."""
    from scipy.special import fdtri

    if spare < 1 or best == 0:
        return {}
    allowed = best * (1 + float(fdtri(1, spare, 0.95)) / spare)
    found = {}
    for code, (axis, end, words) in SIDES.items():
        theta_G2 = np.linspace(LOW_2, HIGH_2, 400)
        theta_G2[:, axis] = (LOW_2, HIGH_2)[end][axis]
        if _half_squares(rows, weight_N, theta_G2).min() <= allowed:
            found[code] = words
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyPrediction:
    """The score at a loss.

    estimate       of one run: the link's, the loss's and a run's own uncertainty
    expected       of the mean over runs: the link's and the loss's
    loss_outside   how far the loss lies outside those seen, in the unit of the loss (0 inside)
    """

    estimate: Estimate
    expected: Estimate
    loss_outside: float
    warnings: tuple[Flag, ...]


def predict_accuracy(
    link: Link, loss: float, loss_draws: Sequence | np.ndarray | None = None, *, seed: int = 0
) -> AccuracyPrediction:
    """The score at `loss` with 95 % intervals, from the draws of the link, those of the loss and a run's scatter.

    `loss_draws` are draws of a predicted loss (`Frontier.loss_draws`), taken as independent of the link; without them
    the loss counts as known. A run scatters by the residuals' root mean square with Student's t tails. Raises BadInput
    for a loss that is not above 0.
    """
    value = tables.number("loss", loss, "a loss above 0", low=0)
    expected = float(link.accuracy(value))
    low, high = link.loss_range
    outside = max(low - value, value - high, 0.0)
    flags = []
    if outside > 0:
        far = outside > 0.5 * (high - low)
        flags.append(
            Flag(
                code="extrapolated_far" if far else "extrapolated",
                message=f"the loss {value:.4g} lies {outside:.3g} outside those seen, {low:.4g} to {high:.4g}: the "
                "interval assumes that the sigmoid holds there",
            )
        )
    if link.noise and abs(expected - link.parameters["b"]) < 2 * link.noise:
        flags.append(
            Flag(
                code="at_chance",
                message=f"at a loss of {value:.4g} the score is within two standard deviations of chance "
                f"({link.parameters['b']:.3g})",
            )
        )
    spare = link.num_rows - (4 if link.chance is None else 3)
    if loss_draws is not None:
        loss_draws = np.asarray(loss_draws, dtype=float).ravel()
        if not loss_draws.size:
            raise BadInput("loss_draws is empty; give draws of the loss, or none for a loss that is known")
    known = "" if loss_draws is None else ", of the loss"
    expected_D = None
    if link.draws is not None:
        known_D = _accuracy(link.draws, np.full(len(link.draws["b"]), value))
        expected_D = expected + link.widening * (known_D - expected)
        if loss_draws is not None:
            expected_D += _accuracy(link.draws, np.resize(loss_draws, len(known_D))) - known_D
    run_D, reason = None, None
    if link.noise is None:
        reason = "as many parameters as rows: the scatter of a run is unknown"
    elif expected_D is not None:
        generator = intervals.generator(seed, NOISE_STREAM)
        run_D = expected_D + link.noise * generator.standard_t(spare, size=len(expected_D))
    return AccuracyPrediction(
        estimate=estimate(expected, run_D, method=f"draws of the link{known} and of a run's scatter", reason=reason),
        expected=estimate(expected, expected_D, method=f"draws of the link{known}"),
        loss_outside=outside,
        warnings=tuple(flags),
    )
