"""Log losses and a law's design in; the objective of fitting it, with exact derivatives, for many copies at once.

    objective = sum_i weight_i * rho(residual_i),   residual_i = ln loss_i - ln predicted_i, or loss_i - predicted_i
    ln predicted_i = logsumexp_k u_ki,   u_ki = c_k + sum_m Z_kmi exponent_m + sum_j power_kj * l_j(shapes)_i

rho is Huber's function: half-square inside delta and linear outside; delta = inf is least squares, delta = 0 the
absolute residual (least absolute deviations). The objective is a *sum*: the mean with a solver's default tolerances
stops early and reports success (Besiroglu et al. 2024). l_j is the logarithm of a column that moves with the shapes:
a `Curve`. c_k is the logarithm of the coefficient that owns term k in row i; a table in groups has several.

Columns are centred in logarithms, which takes the condition number of the Chinchilla problem from 6.7e6 to 5.8e3.

Arrays carry their axes: R replicates, K terms, N rows, Q coefficients (K in one group), M exponents, S shapes,
P = Q + M + S parameters in this order: ln coefficients, exponents, shapes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.fit import jets

# Below this least absolute residuals and Huber's function differ by less than any digit that a loss is printed with.
ABSOLUTE_DELTA = 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A factor of one term, in a run of rows, whose log column moves with shapes.

    power       the constant exponent with its sign, or the sign alone where `exponent` names a parameter
    exponent    index of the parameter that multiplies the log column, or None
    shapes      indices of the parameters that `log_column` takes, in its order
    log_column  shapes (arrays [R, 1], or jets of them) -> its logarithm [R, rows]
    """

    term: int
    rows: slice
    power: float
    exponent: int | None
    shapes: tuple[int, ...]
    log_column: Callable[[Sequence[Any]], Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows as the solver sees them: centred design, log losses, and the residual that is summed."""

    jacobian_KNP: np.ndarray  # d u_k / d parameter where it is constant
    outer_KN_PP: np.ndarray  # the outer products of its rows in `plain` terms, flattened for one matrix product
    places: tuple[tuple[int, int], ...]  # the (k, p) of which that is not nought: most parameters stand in one term
    plain: tuple[int, ...]  # terms without a curve
    curves: tuple[Curve, ...]
    offset_KN: np.ndarray | None  # the part of u_k that no parameter moves, centred
    owner_KN: np.ndarray  # the coefficient of term k in row n
    log_loss_N: np.ndarray
    delta: float
    raw: bool  # residuals of the loss, else of its logarithm
    centre_QM: np.ndarray
    centre_Q: np.ndarray  # of the offset
    bounds_S: np.ndarray  # [S, 2] what shapes are kept between
    num_coefficients: int

    @property
    def smooth_delta(self) -> float:
        """The Huber threshold that derivatives are taken with."""
        return self.delta if self.delta > 0 else ABSOLUTE_DELTA

    @property
    def num_parameters(self) -> int:
        return self.jacobian_KNP.shape[2]


def problem(
    design_KMN: np.ndarray,
    log_loss_N: np.ndarray,
    delta: float,
    *,
    raw: bool = False,
    offset_KN: np.ndarray | None = None,
    owner_KN: np.ndarray | None = None,
    curves: Sequence[Curve] = (),
    bounds_S: Sequence[tuple[float, float]] = (),
) -> Problem:
    """The problem of a constant design [terms, exponents, rows], and what moves with shapes."""
    num_terms, num_exponents, num_rows = design_KMN.shape
    if owner_KN is None:
        owner_KN = np.repeat(np.arange(num_terms)[:, None], num_rows, axis=1)
    num_coefficients = int(owner_KN.max()) + 1
    size = num_coefficients + num_exponents + len(bounds_S)
    last = num_coefficients + num_exponents
    centre_QM = np.zeros((num_coefficients, num_exponents))
    centre_Q = np.zeros(num_coefficients)
    jacobian_KNP = np.zeros((num_terms, num_rows, size))
    offset_KN = None if offset_KN is None else np.array(offset_KN, dtype=float)
    for k in range(num_terms):
        jacobian_KNP[k, np.arange(num_rows), owner_KN[k]] = 1.0
        jacobian_KNP[k, :, num_coefficients:last] = design_KMN[k].T
        for q in np.unique(owner_KN[k]):
            own = owner_KN[k] == q
            centre_QM[q] = design_KMN[k][:, own].mean(axis=1)
            jacobian_KNP[k, own, num_coefficients:last] -= centre_QM[q]
            if offset_KN is not None:
                centre_Q[q] = offset_KN[k, own].mean()
                offset_KN[k, own] -= centre_Q[q]
    plain = tuple(k for k in range(num_terms) if all(curve.term != k for curve in curves))
    flat = jacobian_KNP[list(plain)]
    outer = np.einsum("KNP,KNQ->KNPQ", flat, flat)
    # Steps are relative changes of the coefficients, in which the loss is linear: no second derivative of its own.
    for place, k in enumerate(plain):
        outer[place, np.arange(num_rows), owner_KN[k], owner_KN[k]] = 0.0
    return Problem(
        jacobian_KNP=jacobian_KNP,
        outer_KN_PP=outer.reshape(len(plain) * num_rows, size * size),
        places=tuple((int(k), int(p)) for k, p in np.argwhere(jacobian_KNP.any(axis=1))),
        plain=plain,
        curves=tuple(curves),
        offset_KN=offset_KN,
        owner_KN=owner_KN,
        log_loss_N=np.asarray(log_loss_N, dtype=float),
        delta=float(delta),
        raw=raw,
        centre_QM=centre_QM,
        centre_Q=centre_Q,
        bounds_S=np.reshape(np.asarray(bounds_S, dtype=float), (-1, 2)),
        num_coefficients=num_coefficients,
    )


def log_terms(problem: Problem, centred_RP: np.ndarray) -> np.ndarray:
    """u [R, K, N] of centred parameters; NaN where a formula has no value there."""
    num_terms, num_rows, size = problem.jacobian_KNP.shape
    u_RKN = (centred_RP @ problem.jacobian_KNP.reshape(-1, size).T).reshape(-1, num_terms, num_rows)
    if problem.offset_KN is not None:
        u_RKN += problem.offset_KN
    for curve in problem.curves:
        log_column, _ = _curve_values(curve, centred_RP)
        with np.errstate(invalid="ignore"):
            u_RKN[:, curve.term, curve.rows] += _power(curve, centred_RP) * log_column
    return u_RKN


def _power(curve: Curve, parameters_RP: np.ndarray) -> np.ndarray:
    """What multiplies the log column, [R, 1]."""
    if curve.exponent is None:
        return np.full((len(parameters_RP), 1), curve.power)
    return curve.power * parameters_RP[:, curve.exponent, None]


def _curve_values(curve: Curve, parameters_RP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The log column less its mean over the rows, [R, rows], and that mean [R]."""
    with np.errstate(all="ignore"):  # a step that leaves a formula's domain is refused by its NaN
        values = curve.log_column([parameters_RP[:, shape, None] for shape in curve.shapes])
        mean_R = np.mean(values, axis=1)
        return values - mean_R[:, None], mean_R


def residuals(problem: Problem, centred_RP: np.ndarray, log_loss_RN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Residuals [R, N] and each term's share of the predicted loss [R, K, N]."""
    u_RKN = log_terms(problem, centred_RP)
    top_RN = u_RKN.max(axis=1)
    u_RKN -= top_RN[:, None]
    np.exp(u_RKN, out=u_RKN)
    total_RN = u_RKN.sum(axis=1)
    u_RKN /= total_RN[:, None]
    log_predicted_RN = top_RN + np.log(total_RN)
    if not problem.raw:
        return log_loss_RN - log_predicted_RN, u_RKN
    with np.errstate(over="ignore"):  # an infinite prediction makes an infinite objective, which no step is taken to
        return np.exp(log_loss_RN) - np.exp(log_predicted_RN), u_RKN


def summed(residual_RN: np.ndarray, weight_RN: np.ndarray, delta: float) -> np.ndarray:
    """The objective [R]; at delta 0 the sum of absolute residuals."""
    size_RN = np.abs(residual_RN)
    if delta == 0:
        return (weight_RN * size_RN).sum(axis=1)
    clipped_RN = np.minimum(size_RN, delta)
    with np.errstate(invalid="ignore"):
        return (weight_RN * clipped_RN * (size_RN - 0.5 * clipped_RN)).sum(axis=1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Derivatives:
    """Minus the gradient, the reweighted Gauss-Newton matrix, the exact Hessian, and the gradient's largest scale."""

    down_RP: np.ndarray
    gauss_newton: np.ndarray
    hessian: np.ndarray | None
    scale_RP: np.ndarray


def derivatives(
    problem: Problem,
    centred_RP: np.ndarray,
    residual_RN: np.ndarray,
    share_RKN: np.ndarray,
    weight_RN: np.ndarray,
    log_loss_RN: np.ndarray,
    *,
    hessian: bool = True,
) -> Derivatives:
    """At a point with these residuals and shares; without the Hessian, half the time, where a step does not take it."""
    curved = {k: _curved(problem, k, centred_RP) for k in sorted({curve.term for curve in problem.curves})}
    jacobian_RNP = np.zeros((*residual_RN.shape, problem.num_parameters))
    for k, p in problem.places:
        if k not in curved:
            jacobian_RNP[:, :, p] += share_RKN[:, k] * problem.jacobian_KNP[k, :, p]
    for k, (slope_RNP, _) in curved.items():
        jacobian_RNP += share_RKN[:, k, :, None] * slope_RNP
    delta = problem.smooth_delta
    size_RN = np.abs(residual_RN)
    inside_RN = size_RN <= delta
    psi_RN = weight_RN * np.clip(residual_RN, -delta, delta)
    irls_RN = weight_RN * np.minimum(1.0, delta / np.maximum(size_RN, 1e-300))
    newton_RN = weight_RN * inside_RN
    if problem.raw:
        # predicted = exp(ln predicted): its first derivative carries one factor, its square two.
        predicted_RN = np.exp(log_loss_RN) - residual_RN
        psi_RN = psi_RN * predicted_RN
        irls_RN = irls_RN * predicted_RN**2
        newton_RN = newton_RN * predicted_RN**2
    else:
        newton_RN = newton_RN + psi_RN
    down_RP = np.einsum("RN,RNP->RP", psi_RN, jacobian_RNP)
    scale_RP = np.einsum("RN,RNP->RP", np.abs(psi_RN), np.abs(jacobian_RNP))
    transposed = jacobian_RNP.transpose(0, 2, 1)
    gauss_newton = transposed @ (irls_RN[:, :, None] * jacobian_RNP)
    if not hessian:
        return Derivatives(down_RP=down_RP, gauss_newton=gauss_newton, hessian=None, scale_RP=scale_RP)
    # Hessian = J' newton J - sum psi sum_k share_k (U_k U_k' + W_k), with U_k, W_k the derivatives of u_k: the second
    # derivative of a predicted loss relative to it; of its logarithm, the same less J J' (U_k U_k' without the entry of
    # the coefficient itself).
    exact = transposed @ (newton_RN[:, :, None] * jacobian_RNP)
    plain = list(problem.plain)
    if plain:
        push_RKN = psi_RN[:, None, :] * (share_RKN if len(plain) == share_RKN.shape[1] else share_RKN[:, plain])
        exact -= (push_RKN.reshape(len(psi_RN), -1) @ problem.outer_KN_PP).reshape(exact.shape)
    for k, (slope_RNP, bends) in curved.items():
        push_RN = psi_RN * share_RKN[:, k]
        outer = slope_RNP.transpose(0, 2, 1) @ (push_RN[:, :, None] * slope_RNP)
        for q in np.unique(problem.owner_KN[k]):
            outer[:, q, q] = 0.0  # one-hot: all of that entry is the coefficient's own
        for (p, q), rows, bend in bends:
            value_R = (push_RN[:, rows] * bend).sum(axis=1)
            outer[:, p, q] += value_R
            if p != q:
                outer[:, q, p] += value_R
        exact -= outer
    return Derivatives(down_RP=down_RP, gauss_newton=gauss_newton, hessian=exact, scale_RP=scale_RP)


def _curved(problem: Problem, term: int, centred_RP: np.ndarray) -> tuple[np.ndarray, list]:
    """Of u of a term with curves: its derivatives [R, N, P], and second ones as ((p, q), rows, [R, rows])."""
    num_replicates = len(centred_RP)
    slope_RNP = np.repeat(problem.jacobian_KNP[term][None], num_replicates, axis=0)
    bends = []
    for curve in problem.curves:
        if curve.term != term:
            continue
        with np.errstate(all="ignore"):
            jet = curve.log_column(jets.variables([centred_RP[:, shape, None] for shape in curve.shapes]))
        shape = (num_replicates, slope_RNP[:, curve.rows].shape[1])

        def about_mean(values, shape=shape):
            values = np.broadcast_to(values, shape)
            return values - values.mean(axis=1, keepdims=True)

        power_RN = _power(curve, centred_RP)
        for i, by_i in jet.first.items():
            centred = about_mean(by_i)
            slope_RNP[:, curve.rows, curve.shapes[i]] += power_RN * centred
            if curve.exponent is not None:
                bends.append(((curve.exponent, curve.shapes[i]), curve.rows, curve.power * centred))
        for (i, j), by_ij in jet.second.items():
            bends.append(((curve.shapes[i], curve.shapes[j]), curve.rows, power_RN * about_mean(by_ij)))
        if curve.exponent is not None:
            slope_RNP[:, curve.rows, curve.exponent] += curve.power * about_mean(jet.value)
    return slope_RNP, bends


def scaled_gradient(down_RP: np.ndarray, scale_RP: np.ndarray) -> np.ndarray:
    """The largest entry relative to what it would be were all residuals of one sign, 0 to 1.

    A term that has died (a share below a thousandth of the largest) moves no residual of its own and is held to the
    scale of the others.
    """
    floor_RP = 1e-3 * scale_RP.max(axis=1, keepdims=True) + 1e-300
    return np.max(np.abs(down_RP) / np.maximum(scale_RP, floor_RP), axis=1)


def _shift(problem: Problem, parameters_RP: np.ndarray) -> np.ndarray:
    """What centring adds to each log coefficient [R, Q]; the coefficients in `parameters_RP` do not matter."""
    count = problem.num_coefficients
    last = count + problem.centre_QM.shape[1]
    shift_RQ = parameters_RP[:, count:last] @ problem.centre_QM.T + problem.centre_Q
    for curve in problem.curves:
        _, mean_R = _curve_values(curve, parameters_RP)
        owner = problem.owner_KN[curve.term, curve.rows.start]
        shift_RQ[:, owner] += _power(curve, parameters_RP)[:, 0] * mean_R
    return shift_RQ


def uncentred(problem: Problem, centred_RP: np.ndarray) -> np.ndarray:
    parameters_RP = np.array(centred_RP)
    parameters_RP[:, : problem.num_coefficients] -= _shift(problem, centred_RP)
    return parameters_RP


def centred(problem: Problem, parameters_RP: np.ndarray) -> np.ndarray:
    centred_RP = np.array(parameters_RP)
    centred_RP[:, : problem.num_coefficients] += _shift(problem, parameters_RP)
    return centred_RP
