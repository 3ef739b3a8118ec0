"""Log losses and a law's design in, the certified minimum of a robust objective out; many reweighted copies at once.

    objective = sum_i weight_i * Huber_delta(ln loss_i - logsumexp_k u_ki),   u_k = c_k + sum_m Z_kmi exponent_m

Huber_delta is half-square inside delta and linear outside (delta = inf: least squares). The objective is a *sum*:
the mean with a solver's default tolerances stops early and reports success (Besiroglu et al. 2024).

- Columns are centred in logarithms, which takes the condition number of the Chinchilla problem from 6.7e6 to 5.8e3.
- Starts come from the data: at every point of a grid of exponents the coefficients are a linear least-squares
  problem (variable projection), so no start sits on a plateau where a term has died.
- The polish alternates reweighted Gauss-Newton steps, which always descend, with Newton steps of the exact Hessian,
  which end in a handful once the rows inside delta are known; a step that does not lower the objective is refused.
- The answer is certified by its gradient, its Hessian and by distinct starts that agree. No solver's word is taken.

Arrays carry their axes: R replicates, K coefficients, M exponents, P = K + M parameters, N rows.
"""

import dataclasses
import itertools

import numpy as np

MAX_ITERATIONS = 400
# Relative to the largest gradient the residuals could make. A replicate goes on to the first and is accepted at the
# second: between them the objective's own rounding (1e-16) hides whether a step gains.
GRADIENT_AIM = 1e-9
GRADIENT_TOLERANCE = 1e-6
STARTS_AGREE_RELATIVE = 1e-9
# A term this far below the loss in logarithms changes no predicted digit: its coefficient stops there.
DEAD_TERM_LOG = -25.0
MAX_REFUSED = 14  # steps in a row, half of either kind: the objective's rounding is reached
MAX_EXPONENT_STEP = 1.0  # an iteration: further off the linear model is wrong
MAX_GROWTH = 10.0  # of a coefficient, relative, an iteration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows as the solver sees them: centred design, log losses, row weights, and the Huber threshold."""

    jacobian_KNP: np.ndarray  # d u_k / d parameter; does not depend on the parameters
    outer_KN_PP: np.ndarray  # the outer products of its rows, flattened for one matrix product
    log_loss_N: np.ndarray
    delta: float
    centre_KM: np.ndarray
    num_coefficients: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Minima of R replicates in un-centred parameters (ln coefficients, then exponents)."""

    parameters_RP: np.ndarray
    objective_R: np.ndarray
    gradient_R: np.ndarray  # largest scaled gradient entry, 0 to 1
    converged_R: np.ndarray


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Why the point is believed to be the minimum, each condition with its number.

    scaled_gradient     largest |sum of row contributions| / sum of |row contributions| over parameters
    newton_decrement    what a Newton step would still gain, relative to the objective
    min_eigenvalue      of the exact Hessian scaled to unit Gauss-Newton diagonal
    condition_number    of the Gauss-Newton matrix in centred logarithms, unit diagonal
    """

    certified: bool
    objective: float
    scaled_gradient: float
    newton_decrement: float
    min_eigenvalue: float
    condition_number: float
    num_starts: int
    num_starts_agreeing: int
    why_not: str | None


def problem(design_KMN: np.ndarray, log_loss_N: np.ndarray, delta: float) -> Problem:
    num_coefficients, num_exponents, num_rows = design_KMN.shape
    centre_KM = design_KMN.mean(axis=2)
    size = num_coefficients + num_exponents
    jacobian_KNP = np.zeros((num_coefficients, num_rows, size))
    for index in range(num_coefficients):
        jacobian_KNP[index, :, index] = 1.0
        jacobian_KNP[index, :, num_coefficients:] = (design_KMN[index] - centre_KM[index][:, None]).T
    outer = np.einsum("KNP,KNQ->KNPQ", jacobian_KNP, jacobian_KNP)
    # Steps are relative changes of the coefficients, in which the loss is linear: no second derivative of its own.
    for index in range(num_coefficients):
        outer[index, :, index, index] = 0.0
    return Problem(
        jacobian_KNP=jacobian_KNP,
        outer_KN_PP=outer.reshape(num_coefficients * num_rows, size * size),
        log_loss_N=np.asarray(log_loss_N, dtype=float),
        delta=float(delta),
        centre_KM=centre_KM,
        num_coefficients=num_coefficients,
    )


def _residuals(problem: Problem, centred_RP: np.ndarray, log_loss_RN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log residuals [R, N] and each term's share of the predicted loss [R, K, N]."""
    u_RKN = np.einsum("KNP,RP->RKN", problem.jacobian_KNP, centred_RP, optimize=True)
    top_RN = u_RKN.max(axis=1)
    u_RKN -= top_RN[:, None]
    np.exp(u_RKN, out=u_RKN)
    total_RN = u_RKN.sum(axis=1)
    u_RKN /= total_RN[:, None]
    return log_loss_RN - (top_RN + np.log(total_RN)), u_RKN


def _objective(residual_RN: np.ndarray, weight_RN: np.ndarray, delta: float) -> np.ndarray:
    size_RN = np.abs(residual_RN)
    clipped_RN = np.minimum(size_RN, delta)
    return (weight_RN * clipped_RN * (size_RN - 0.5 * clipped_RN)).sum(axis=1)


def _derivatives(
    problem: Problem, residual_RN: np.ndarray, share_RKN: np.ndarray, weight_RN: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Minus the gradient, the reweighted Gauss-Newton matrix, the exact Hessian, and the gradient's largest scale."""
    jacobian_RNP = sum(share_RKN[:, k, :, None] * problem.jacobian_KNP[k] for k in range(problem.num_coefficients))
    size_RN = np.abs(residual_RN)
    inside_RN = size_RN <= problem.delta
    psi_RN = weight_RN * np.clip(residual_RN, -problem.delta, problem.delta)
    irls_RN = weight_RN * np.minimum(1.0, problem.delta / np.maximum(size_RN, 1e-300))
    down_RP = np.einsum("RN,RNP->RP", psi_RN, jacobian_RNP)
    scale_RP = np.einsum("RN,RNP->RP", np.abs(psi_RN), np.abs(jacobian_RNP))
    transposed = jacobian_RNP.transpose(0, 2, 1)
    gauss_newton = transposed @ (irls_RN[:, :, None] * jacobian_RNP)
    # Hessian = J' 1{inside} J - sum psi * second derivative of ln loss, which is sum_k share_k U_k U_k' - J J'
    # (U_k U_k' without the entry of coefficient k itself).
    own = transposed @ ((weight_RN * inside_RN + psi_RN)[:, :, None] * jacobian_RNP)
    flat = (psi_RN[:, None, :] * share_RKN).reshape(len(psi_RN), -1) @ problem.outer_KN_PP
    hessian = own - flat.reshape(own.shape)
    return down_RP, gauss_newton, hessian, scale_RP


def _scaled_gradient(down_RP: np.ndarray, scale_RP: np.ndarray) -> np.ndarray:
    """The largest entry relative to what it would be were all residuals of one sign, 0 to 1.

    A term that has died (a share below a thousandth of the largest) moves no residual of its own and is held to the
    scale of the others.
    """
    floor_RP = 1e-3 * scale_RP.max(axis=1, keepdims=True) + 1e-300
    return np.max(np.abs(down_RP) / np.maximum(scale_RP, floor_RP), axis=1)


def polish(
    problem: Problem,
    start_RP: np.ndarray,
    weight_RN: np.ndarray,
    *,
    log_loss_RN: np.ndarray | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> Solution:
    """Descend from centred starts; every replicate has its own damping and stops by its own gradient.

    `log_loss_RN` gives each replicate losses of its own; without it all share the problem's.
    """
    start_RP = np.array(start_RP, dtype=float)
    weight_RN = np.broadcast_to(np.asarray(weight_RN, dtype=float), (len(start_RP), len(problem.log_loss_N)))
    log_loss = problem.log_loss_N[None] if log_loss_RN is None else log_loss_RN
    log_loss = np.broadcast_to(log_loss, weight_RN.shape)
    num_replicates, num_parameters = start_RP.shape
    count = problem.num_coefficients
    done_RP, gradient_R = start_RP.copy(), np.ones(num_replicates)
    objective_R, converged_R = np.full(num_replicates, np.inf), np.zeros(num_replicates, dtype=bool)
    lowest = DEAD_TERM_LOG + log_loss.min()

    active = np.arange(num_replicates)
    point, weight = start_RP.copy(), weight_RN
    residual, share = _residuals(problem, point, log_loss)
    value = _objective(residual, weight, problem.delta)
    damping = np.full((2, num_replicates), 1e-3)  # Gauss-Newton, Newton
    stalled = np.zeros(num_replicates, dtype=int)
    diagonal = np.arange(num_parameters)
    for iteration in range(max_iterations):
        down, gauss_newton, hessian, scale = _derivatives(problem, residual, share, weight)
        # A term at its lower bound that would go lower is where it wants to be.
        down[:, :count][(point[:, :count] <= lowest) & (down[:, :count] < 0)] = 0.0
        scaled = _scaled_gradient(down, scale)
        tiny = value <= 1e-26 * weight.sum(axis=1)
        finished = (scaled <= GRADIENT_AIM) | tiny
        ended = finished | (stalled >= MAX_REFUSED) | (iteration == max_iterations - 1)
        if ended.any():
            where = active[ended]
            done_RP[where], objective_R[where] = point[ended], value[ended]
            gradient_R[where], converged_R[where] = (
                np.where(tiny, 0.0, scaled)[ended],
                ((scaled <= GRADIENT_TOLERANCE) | tiny)[ended],
            )
            keep = ~ended
            if not keep.any():
                break
            active, point, value = active[keep], point[keep], value[keep]
            log_loss, weight, damping, stalled = log_loss[keep], weight[keep], damping[:, keep], stalled[keep]
            residual, share = residual[keep], share[keep]
            down, gauss_newton, hessian = down[keep], gauss_newton[keep], hessian[keep]
        kind = iteration % 2
        curvature = hessian if kind else gauss_newton
        ridge = np.einsum("RPP->RP", gauss_newton)
        ridge = ridge + 1e-12 * ridge.max(axis=1, keepdims=True) + 1e-300
        matrix = curvature.copy()
        matrix[:, diagonal, diagonal] += damping[kind][:, None] * ridge
        low, high = np.full_like(point, -MAX_EXPONENT_STEP), np.full_like(point, MAX_EXPONENT_STEP)
        low[:, :count] = np.minimum(np.expm1(lowest - point[:, :count]), 0.0)
        high[:, :count] = MAX_GROWTH
        step = _bounded_step(matrix, down, ridge, low, high)
        trial = point + step
        trial[:, :count] = np.maximum(point[:, :count] + np.log1p(step[:, :count]), lowest)
        trial_residual, trial_share = _residuals(problem, trial, log_loss)
        trial_value = _objective(trial_residual, weight, problem.delta)
        better = trial_value < value
        point = np.where(better[:, None], trial, point)
        residual = np.where(better[:, None], trial_residual, residual)
        share = np.where(better[:, None, None], trial_share, share)
        value = np.where(better, trial_value, value)
        # A refused step jumps to a damping that matters: one that has sunk to 1e-12 would take all tries to rise.
        damping[kind] = np.where(better, np.maximum(damping[kind] * 0.2, 1e-12), np.maximum(damping[kind] * 10, 1e-5))
        stalled = np.where(better, 0, stalled + 1)
    return Solution(
        parameters_RP=uncentred(problem, done_RP),
        objective_R=objective_R,
        gradient_R=gradient_R,
        converged_R=converged_R,
    )


def _bounded_step(
    matrix: np.ndarray, down_RP: np.ndarray, ridge_RP: np.ndarray, low_RP: np.ndarray, high_RP: np.ndarray
) -> np.ndarray:
    """The step, its entries between `low_RP` and `high_RP`; where one is cut off the others are solved for again.

    A dying term would go below zero, and the rest of such a step is meant for a point that is not reached.
    """
    step_RP = _solve(matrix, down_RP, ridge_RP)
    held_RP = (step_RP < low_RP) | (step_RP > high_RP)
    cut = np.flatnonzero(held_RP.any(axis=1))
    if cut.size:
        held, low, high = held_RP[cut], low_RP[cut], high_RP[cut]
        fixed = np.where(held, np.clip(step_RP[cut], low, high), 0.0)
        inner = np.where(held[:, :, None] | held[:, None, :], 0.0, matrix[cut])
        index = np.arange(held.shape[1])
        inner[:, index, index] += held
        right = np.where(held, fixed, down_RP[cut] - np.einsum("RPQ,RQ->RP", matrix[cut], fixed))
        step_RP[cut] = np.clip(_solve(inner, right, ridge_RP[cut]), low, high)
    return step_RP


def _solve(matrix: np.ndarray, right_RP: np.ndarray, ridge_RP: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.solve(matrix, right_RP[..., None])[..., 0]
    except np.linalg.LinAlgError:  # one exactly singular replicate fails the whole batch
        matrix = matrix.copy()
        index = np.arange(matrix.shape[-1])
        matrix[:, index, index] += 1e-8 * ridge_RP
        return np.einsum("RPQ,RQ->RP", np.linalg.pinv(matrix), right_RP)


def uncentred(problem: Problem, centred_RP: np.ndarray) -> np.ndarray:
    parameters_RP = np.array(centred_RP)
    count = problem.num_coefficients
    parameters_RP[:, :count] -= centred_RP[:, count:] @ problem.centre_KM.T
    return parameters_RP


def centred(problem: Problem, parameters_RP: np.ndarray) -> np.ndarray:
    centred_RP = np.array(parameters_RP)
    count = problem.num_coefficients
    centred_RP[:, :count] += parameters_RP[:, count:] @ problem.centre_KM.T
    return centred_RP


def exponent_grid(signs: list[int]) -> np.ndarray:
    """Points [G, M] that span every exponent a loss has been seen with; both signs for a growing power.

    About 3,000 points in all, whatever the number of exponents.
    """
    count = max(6, round(3000 ** (1 / len(signs))))
    axes = [
        np.geomspace(0.02, 2.5, min(count, 400)) if sign < 0 else np.linspace(-0.6, 1.2, min(count, 19))
        for sign in signs
    ]
    return np.array(list(itertools.product(*axes)))


def screen(problem: Problem, exponents_GM: np.ndarray, weight_N: np.ndarray, num_starts: int) -> np.ndarray:
    """The best, mutually distant starts [num_starts, P] (centred) after solving the coefficients at each grid point.

    Coefficients minimise sum weight ((loss - prediction) / loss)^2, near enough to log residuals to start from.
    A coefficient that comes out negative is set to a thousandth of the loss, a live term that can grow back.
    """
    count = problem.num_coefficients
    log_basis_GKN = np.einsum("KNM,GM->GKN", problem.jacobian_KNP[:, :, count:], exponents_GM, optimize=True)
    # Each column scaled to a mean of one over the loss, else the normal equations overflow at large exponents.
    log_basis_GKN -= problem.log_loss_N
    shift_GK = log_basis_GKN.max(axis=2)
    basis_GKN = np.exp(log_basis_GKN - shift_GK[:, :, None])
    weighted_GKN = basis_GKN * weight_N
    gram_GKK = basis_GKN @ weighted_GKN.transpose(0, 2, 1)
    trace_G = np.einsum("GKK->G", gram_GKK)
    gram_GKK[:, np.arange(count), np.arange(count)] += 1e-13 * trace_G[:, None]
    coefficient_GK = np.linalg.solve(gram_GKK, weighted_GKN.sum(axis=2)[..., None])[..., 0]
    mean_basis_GK = basis_GKN.mean(axis=2)
    coefficient_GK = np.maximum(coefficient_GK, 1e-3 / mean_basis_GK)
    prediction_GN = np.einsum("GK,GKN->GN", coefficient_GK, basis_GKN)
    objective_G = _objective(-np.log(prediction_GN), weight_N, problem.delta)
    starts_GP = np.concatenate([np.log(coefficient_GK) - shift_GK, exponents_GM], axis=1)
    # Distance in logarithms of the exponents: neighbours on the grid would polish to one another's minimum.
    place_GM = np.log(np.abs(exponents_GM) + 0.02)
    chosen: list[int] = []
    for index in np.argsort(objective_G, kind="stable"):
        if all(np.abs(place_GM[index] - place_GM[other]).max() > 0.3 for other in chosen):
            chosen.append(int(index))
        if len(chosen) == num_starts:
            break
    return starts_GP[chosen]


def certificate(
    problem: Problem, parameters_P: np.ndarray, weight_N: np.ndarray, start_objectives: np.ndarray
) -> Certificate:
    """Test the point: gradient, Newton decrement, Hessian, and how many distinct starts ended as low."""
    point_RP = centred(problem, parameters_P[None])
    weight_RN = np.asarray(weight_N, dtype=float)[None]
    residual, share = _residuals(problem, point_RP, problem.log_loss_N[None])
    objective = float(_objective(residual, weight_RN, problem.delta)[0])
    down, gauss_newton, hessian, scale = _derivatives(problem, residual, share, weight_RN)
    exact = objective <= 1e-24 * weight_RN.sum()  # a noise-free table: nothing is left to be relative to
    # A term that has died moves no prediction: the point is a minimum in the others, and the fit says what died.
    count = problem.num_coefficients
    live = np.concatenate([share[0].max(axis=1) > 1e-9, np.ones(len(parameters_P) - count, dtype=bool)])
    down, gauss_newton, hessian = down[:, live], gauss_newton[:, live][:, :, live], hessian[:, live][:, :, live]
    scaled = float(_scaled_gradient(down, scale[:, live])[0])
    unit = np.sqrt(np.maximum(np.diag(gauss_newton[0]), 1e-300))
    unit_hessian = hessian[0] / np.outer(unit, unit)
    eigenvalues = np.linalg.eigvalsh(unit_hessian)
    condition = float(np.linalg.cond(gauss_newton[0] / np.outer(unit, unit)))
    step = np.linalg.lstsq(unit_hessian, down[0] / unit, rcond=None)[0]
    decrement = 0.0 if exact else float(0.5 * abs(step @ (down[0] / unit)) / objective)
    agreeing = int(np.sum(start_objectives <= objective * (1 + STARTS_AGREE_RELATIVE) + 1e-24 * weight_RN.sum()))
    why_not = None
    if not exact and scaled > GRADIENT_TOLERANCE:
        why_not = f"the scaled gradient is {scaled:.1e}, above {GRADIENT_TOLERANCE:.0e}"
    elif decrement > 1e-9:
        why_not = f"a Newton step would still gain {decrement:.1e} of the objective"
    elif eigenvalues[0] <= 0:
        why_not = f"the Hessian has an eigenvalue of {eigenvalues[0]:.1e}: the minimum is flat or a saddle"
    elif agreeing < min(2, len(start_objectives)):
        why_not = f"only {agreeing} of {len(start_objectives)} distinct starts reached it"
    return Certificate(
        certified=why_not is None,
        objective=objective,
        scaled_gradient=0.0 if exact else scaled,
        newton_decrement=decrement,
        min_eigenvalue=float(eigenvalues[0]),
        condition_number=condition,
        num_starts=len(start_objectives),
        num_starts_agreeing=agreeing,
        why_not=why_not,
    )
