"""A problem in, the certified minimum of its objective out; many reweighted copies at once.

The objective stands in `objective`. Three steps:

- Starts come from the data: at every point of a grid of exponents and shapes the coefficients are a linear
  least-squares problem (variable projection), so no start sits on a plateau where a term has died.
- The polish alternates reweighted Gauss-Newton steps, which always descend, with Newton steps of the exact Hessian,
  which end in a handful once the rows inside delta are known; a step that does not lower the objective is refused.
  Least absolute deviations are Huber's objective with delta brought down in steps, each from the last one's minimum.
  Parameters can be held where they start, so that a profile is one batch.
- The answer is certified by its gradient, its Hessian and by distinct starts that agree. No solver's word is taken.

Arrays carry their axes: R replicates, K terms, Q coefficients, P parameters, N rows (see `objective`).
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from smelt.fit.objective import (
    ABSOLUTE_DELTA,
    Problem,
    centred,
    derivatives,
    log_terms,
    problem,
    residuals,
    scaled_gradient,
    summed,
    uncentred,
)

__all__ = ["centred", "certificate", "exponent_grid", "lowest", "polish", "problem", "screen", "starts", "uncentred"]

MAX_ITERATIONS = 400
NUM_PROMISING = 600  # of the points of a grid, those at which the objective itself is taken
MAX_VALUES = 400  # of one term's exponents: beyond, a table of pairs of them costs more than it saves
# Relative to the largest gradient the residuals could make. A replicate goes on to the first and is accepted at the
# second: between them the objective's own rounding (1e-16) hides whether a step gains.
GRADIENT_AIM = 1e-9
GRADIENT_TOLERANCE = 1e-6
HIDDEN_GRADIENT = 1e-4  # accepted at most, however small delta is; what a Newton step gains is tested beside it
# Rounding of a residual; relative to a threshold below it in size, that of a gradient.
RESIDUAL_ROUNDING = 1e-14
STARTS_AGREE_RELATIVE = 1e-9
# A term this far below the loss in logarithms changes no predicted digit: its coefficient stops there.
DEAD_TERM_LOG = -25.0
MAX_REFUSED = 14  # steps in a row, half of either kind: the objective's rounding is reached
MAX_EXPONENT_STEP = 1.0  # an iteration, of a shape too: further off the linear model is wrong
MAX_GROWTH = 10.0  # of a coefficient, relative, an iteration
# Thresholds on the way to absolute residuals: a factor of ten changes few of the rows that lie inside.
ABSOLUTE_LADDER = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, ABSOLUTE_DELTA)
LADDER_AIM = 1e-6  # of the gradient, on the way
# Points of a screen over more than three exponents and shapes, where a product grid would be too coarse.
NUM_SCATTERED = 4096
RISING_SHARE = 12  # one in so many of a falling power's exponents is below zero: chosen


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Minima of R replicates in un-centred parameters (ln coefficients, exponents, shapes)."""

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

    For absolute residuals the derivatives are Huber's at `objective.ABSOLUTE_DELTA`: a zero gradient is then a
    subgradient of the sum that is zero, with the multipliers of the rows that are met exactly between -1 and 1.
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


def polish(
    problem: Problem,
    start_RP: np.ndarray,
    weight_RN: np.ndarray,
    *,
    log_loss_RN: np.ndarray | None = None,
    held: np.ndarray | Sequence[bool] | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> Solution:
    """Descend from centred starts; every replicate has its own damping and stops by its own gradient.

    `log_loss_RN` gives each replicate losses of its own; without it all share the problem's. `held`, [P] or [R, P],
    marks parameters that stay where they start (in centred coordinates: an exponent, a shape, or the coefficient of a
    term without powers, such as the floor).
    """
    start_RP = np.array(start_RP, dtype=float)
    weight_RN = np.broadcast_to(np.asarray(weight_RN, dtype=float), (len(start_RP), len(problem.log_loss_N)))
    log_loss = problem.log_loss_N[None] if log_loss_RN is None else log_loss_RN
    log_loss = np.broadcast_to(log_loss, weight_RN.shape)
    held_RP = np.broadcast_to(False if held is None else np.asarray(held, dtype=bool), start_RP.shape)
    if problem.delta > 0:
        return _polish(problem, start_RP, weight_RN, log_loss, held_RP, max_iterations)
    for delta in ABSOLUTE_LADDER:
        stage = dataclasses.replace(problem, delta=delta)
        aim = GRADIENT_AIM if delta == ABSOLUTE_DELTA else LADDER_AIM
        solution = _polish(stage, start_RP, weight_RN, log_loss, held_RP, max_iterations, aim)
        start_RP = centred(problem, solution.parameters_RP)
    residual_RN, _ = residuals(problem, start_RP, log_loss)
    return dataclasses.replace(solution, objective_R=summed(residual_RN, weight_RN, 0.0))


def _polish(
    problem: Problem,
    start_RP: np.ndarray,
    weight: np.ndarray,
    log_loss: np.ndarray,
    held: np.ndarray,
    max_iterations: int,
    aim: float = GRADIENT_AIM,
) -> Solution:
    num_replicates, num_parameters = start_RP.shape
    count = problem.num_coefficients
    done_RP, gradient_R = start_RP.copy(), np.ones(num_replicates)
    objective_R, converged_R = np.full(num_replicates, np.inf), np.zeros(num_replicates, dtype=bool)
    lowest_P, highest_P = np.full(num_parameters, -np.inf), np.full(num_parameters, np.inf)
    lowest_P[:count] = least = DEAD_TERM_LOG + log_loss.min()
    shapes = slice(num_parameters - len(problem.bounds_S), num_parameters)
    lowest_P[shapes], highest_P[shapes] = problem.bounds_S.T
    unit, tolerance = _residual_unit(problem), _gradient_tolerance(problem)

    active = np.arange(num_replicates)
    point = start_RP.copy()
    residual, share = residuals(problem, point, log_loss)
    value = summed(residual, weight, problem.delta)
    damping = np.full((2, num_replicates), 1e-3)  # Gauss-Newton, Newton
    stalled = np.zeros(num_replicates, dtype=int)
    diagonal = np.arange(num_parameters)
    any_held = held.any()
    for iteration in range(max_iterations):
        kind = iteration % 2
        slopes = derivatives(problem, point, residual, share, weight, log_loss, hessian=bool(kind))
        down, gauss_newton, hessian = slopes.down_RP, slopes.gauss_newton, slopes.hessian
        # A term at its lower bound that would go lower is where it wants to be; so is a shape at either.
        down[(point <= lowest_P) & (down < 0) | (point >= highest_P) & (down > 0) | held] = 0.0
        scaled = scaled_gradient(down, slopes.scale_RP)
        tiny = value <= 1e-26 * unit**2 * weight.sum(axis=1)
        finished = (scaled <= aim) | tiny
        ended = finished | (stalled >= MAX_REFUSED) | (iteration == max_iterations - 1)
        if ended.any():
            where = active[ended]
            done_RP[where], objective_R[where] = point[ended], value[ended]
            gradient_R[where], converged_R[where] = (
                np.where(tiny, 0.0, scaled)[ended],
                ((scaled <= tolerance) | tiny)[ended],
            )
            keep = ~ended
            if not keep.any():
                break
            active, point, value = active[keep], point[keep], value[keep]
            log_loss, weight, damping, stalled = log_loss[keep], weight[keep], damping[:, keep], stalled[keep]
            residual, share, held = residual[keep], share[keep], held[keep]
            down, gauss_newton = down[keep], gauss_newton[keep]
            hessian = None if hessian is None else hessian[keep]
        matrix = gauss_newton.copy() if hessian is None else hessian
        ridge = np.einsum("RPP->RP", gauss_newton)
        ridge = ridge + 1e-12 * ridge.max(axis=1, keepdims=True) + 1e-300
        matrix[:, diagonal, diagonal] += damping[kind][:, None] * ridge
        if any_held:
            matrix[held[:, :, None] | held[:, None, :]] = 0.0
            matrix[:, diagonal, diagonal] += held
        low = np.maximum(lowest_P - point, -MAX_EXPONENT_STEP)
        high = np.minimum(highest_P - point, MAX_EXPONENT_STEP)
        low[:, :count] = np.minimum(np.expm1(least - point[:, :count]), 0.0)
        high[:, :count] = MAX_GROWTH
        step = _bounded_step(matrix, down, ridge, low, high)
        trial = point + step
        with np.errstate(divide="ignore"):  # a step of -1 takes the term out: it stops at its lowest
            trial[:, :count] = np.maximum(point[:, :count] + np.log1p(step[:, :count]), least)
        if any_held:
            trial = np.where(held, point, trial)
        trial_residual, trial_share = residuals(problem, trial, log_loss)
        trial_value = summed(trial_residual, weight, problem.delta)
        better = trial_value < value
        if better.all():
            point, residual, share, value = trial, trial_residual, trial_share, trial_value
        else:
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


def lowest(problem: Problem) -> float:
    """The logarithm at which a coefficient without powers has died."""
    return DEAD_TERM_LOG + float(problem.log_loss_N.min())


def _residual_unit(problem: Problem) -> float:
    """What a residual is small against: 1 in logarithms, the loss itself where residuals are in its unit."""
    return float(np.exp(problem.log_loss_N.mean())) if problem.raw else 1.0


def _gradient_tolerance(problem: Problem) -> float:
    if problem.delta == 0:
        return max(GRADIENT_TOLERANCE, RESIDUAL_ROUNDING / problem.smooth_delta)
    # Rounding of residuals is 2e-16 / delta of the objective, and a gradient gains as its square.
    hidden = math.sqrt(np.finfo(float).eps * _residual_unit(problem) / problem.delta)
    return max(GRADIENT_TOLERANCE, min(hidden, HIDDEN_GRADIENT))


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


def exponent_grid(
    signs: Sequence[int], ranges: Sequence[tuple[float, float]] = (), *, wide: bool = False
) -> np.ndarray:
    """Points [G, M + S] that span every exponent a loss has been seen with, and the `ranges` of shapes.

    A growing power (sign 1) is tried with exponents of both signs evenly, a falling one with a few that rise: where the
    rows show no fall, the minimum lies there. `wide` tries both signs of all evenly, out to a term that one row alone
    has. About 3,000 points of a product grid in up to three
    dimensions; in more, a fixed low-discrepancy sequence of 4,096 (Roberts 2018: powers of the generalised golden
    ratio), in which every single axis is filled evenly.
    """

    def axis(dimension: int, count: int) -> np.ndarray:
        if dimension >= len(signs):
            return np.linspace(*ranges[dimension - len(signs)], count)
        if wide:
            return np.concatenate([-np.geomspace(8.0, 0.02, count // 2), np.geomspace(0.02, 8.0, count - count // 2)])
        if signs[dimension] > 0:
            return np.linspace(-0.6, 1.2, count)
        rising = max(2, count // RISING_SHARE)
        return np.concatenate([-np.geomspace(0.5, 0.02, rising), np.geomspace(0.02, 2.5, count - rising)])

    size = len(signs) + len(ranges)
    if size > 3:
        golden = 2.0
        for _ in range(60):
            golden = (1 + golden) ** (1 / (size + 1))
        place_GM = np.arange(1, NUM_SCATTERED + 1)[:, None] * golden ** -np.arange(1.0, size + 1) % 1.0
        ticks_GM = np.floor(place_GM * NUM_SCATTERED).astype(int)
        return np.stack([axis(m, NUM_SCATTERED)[ticks_GM[:, m]] for m in range(size)], axis=1)
    count = min(400, max(6, round(3000 ** (1 / max(size, 1)))))
    growing = [m < len(signs) and signs[m] > 0 for m in range(size)]
    return np.array(list(itertools.product(*(axis(m, min(count, 19) if growing[m] else count) for m in range(size)))))


def starts(
    problem: Problem, grid_GM: np.ndarray, weight_N: np.ndarray, fixed_log_Q: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Centred parameters [G, P] and objectives [G] at given exponents and shapes, the coefficients solved for.

    Coefficients minimise sum weight ((loss - prediction) / loss)^2, near enough to any of the objectives to start
    from. One that comes out negative is set to a thousandth of the loss, a live term that can grow back, and the others
    are solved for again. Those that are finite in `fixed_log_Q` are not solved for.
    """
    count, num_rows = problem.num_coefficients, len(problem.log_loss_N)
    parameters_GP = np.concatenate([np.zeros((len(grid_GM), count)), grid_GM], axis=1)
    log_basis_GKN = log_terms(problem, parameters_GP)
    # Each column scaled to a mean of one over the loss, else the normal equations overflow at large exponents.
    log_basis_GKN -= problem.log_loss_N
    if count == len(problem.owner_KN) and (problem.owner_KN == np.arange(count)[:, None]).all():
        log_basis_GQN = log_basis_GKN
    else:
        log_basis_GQN = np.full((len(grid_GM), count, num_rows), -np.inf)
        for k, owner_N in enumerate(problem.owner_KN):
            log_basis_GQN[:, owner_N, np.arange(num_rows)] = log_basis_GKN[:, k]
    shift_GQ = log_basis_GQN.max(axis=2)
    basis_GQN = np.exp(log_basis_GQN - shift_GQ[:, :, None])
    weighted_GQN = basis_GQN * weight_N
    gram_GQQ = basis_GQN @ weighted_GQN.transpose(0, 2, 1)
    right_GQ = weighted_GQN.sum(axis=2)
    trace_G = np.einsum("GQQ->G", gram_GQQ)
    gram_GQQ[:, np.arange(count), np.arange(count)] += 1e-13 * trace_G[:, None]
    held_Q = np.zeros(count, dtype=bool) if fixed_log_Q is None else np.isfinite(fixed_log_Q)
    if held_Q.any():
        fixed_GQ = np.where(held_Q, np.exp(np.where(held_Q, fixed_log_Q, 0.0) + shift_GQ), 0.0)
        right_GQ = np.where(held_Q, fixed_GQ, right_GQ - np.einsum("GPQ,GQ->GP", gram_GQQ, fixed_GQ))
        gram_GQQ[:, held_Q] = 0.0
        gram_GQQ[:, :, held_Q] = 0.0
        gram_GQQ[:, held_Q, held_Q] = 1.0
    num_own_Q = np.array([(problem.owner_KN == q).sum() for q in range(count)])
    smallest_GQ = np.where(held_Q, -np.inf, 1e-3 * num_own_Q / basis_GQN.sum(axis=2))
    coefficient_GQ = _least_squares(gram_GQQ, right_GQ, smallest_GQ)
    relative_GN = np.einsum("GQ,GQN->GN", coefficient_GQ, basis_GQN)
    residual_GN = np.exp(problem.log_loss_N) * (1 - relative_GN) if problem.raw else -np.log(relative_GN)
    parameters_GP[:, :count] = np.log(coefficient_GQ) - shift_GQ
    return parameters_GP, summed(residual_GN, weight_N, problem.delta)


def _least_squares(gram_GQQ: np.ndarray, right_GQ: np.ndarray, smallest_GQ: np.ndarray) -> np.ndarray:
    """Coefficients of `smallest_GQ` or more: where some come out below they are set there, the others solved again."""
    found_GQ = np.linalg.solve(gram_GQQ, right_GQ[..., None])[..., 0]
    cut = np.flatnonzero((found_GQ < smallest_GQ).any(axis=1))
    if cut.size:
        held = found_GQ[cut] < smallest_GQ[cut]
        fixed = np.where(held, smallest_GQ[cut], 0.0)
        inner = np.where(held[:, :, None] | held[:, None, :], 0.0, gram_GQQ[cut])
        index = np.arange(held.shape[1])
        inner[:, index, index] += held
        right = np.where(held, fixed, right_GQ[cut] - np.einsum("GPQ,GQ->GP", gram_GQQ[cut], fixed))
        found_GQ[cut] = np.linalg.solve(inner, right[..., None])[..., 0]
    return np.maximum(found_GQ, smallest_GQ)


def _least_squares_first(problem: Problem, grid_GM: np.ndarray, weight_N: np.ndarray) -> np.ndarray | None:
    """The NUM_PROMISING points of a product grid with the least squared residuals, or None for any other grid.

    A term without a curve depends on its own exponents alone, of which a product grid has few values: the normal
    equations of every point are then looked up in tables of those values, and no row is touched once a point.
    """
    count = problem.num_coefficients
    own = len(problem.owner_KN) == count and (problem.owner_KN == np.arange(count)[:, None]).all()
    if problem.curves or not own or len(grid_GM) <= NUM_PROMISING:
        return None
    bases, places = [], []
    for k in range(count):
        slope_NM = problem.jacobian_KNP[k][:, count:]
        used = np.flatnonzero(np.any(slope_NM != 0, axis=0))
        values, place_G = np.unique(grid_GM[:, used], axis=0, return_inverse=True)
        if len(values) > MAX_VALUES:
            return None
        log_basis = values @ slope_NM[:, used].T - problem.log_loss_N
        if problem.offset_KN is not None:
            log_basis += problem.offset_KN[k]
        bases.append(np.exp(log_basis - log_basis.max(axis=1, keepdims=True)))
        places.append(place_G.ravel())
    gram_GQQ = np.empty((len(grid_GM), count, count))
    right_GQ = np.stack([(bases[q] @ weight_N)[places[q]] for q in range(count)], axis=1)
    smallest_GQ = np.stack([1e-3 * len(weight_N) / bases[q].sum(axis=1)[places[q]] for q in range(count)], axis=1)
    for p, q in itertools.combinations_with_replacement(range(count), 2):
        table = (bases[p] * weight_N) @ bases[q].T
        gram_GQQ[:, p, q] = gram_GQQ[:, q, p] = table[places[p], places[q]]
    ridge = 1e-13 * np.einsum("GQQ->G", gram_GQQ)[:, None, None] * np.eye(count)
    coefficient_GQ = _least_squares(gram_GQQ + ridge, right_GQ, smallest_GQ)
    squares_G = ((gram_GQQ @ coefficient_GQ[..., None])[..., 0] - 2 * right_GQ) * coefficient_GQ
    return np.sort(np.argsort(squares_G.sum(axis=1), kind="stable")[:NUM_PROMISING])


def screen(problem: Problem, grid_GM: np.ndarray, weight_N: np.ndarray, num_starts: int) -> np.ndarray:
    """The best, mutually distant of the `starts` at the points of a grid: [num_starts, P], centred."""
    promising = _least_squares_first(problem, grid_GM, weight_N)
    grid_GM = grid_GM if promising is None else grid_GM[promising]
    size = 1 + 2_000_000 // problem.log_loss_N.size  # points at a time: the screen of a long table fits in memory
    parts = [starts(problem, grid_GM[i : i + size], weight_N) for i in range(0, len(grid_GM), size)]
    starts_GP = np.concatenate([part[0] for part in parts])
    objective_G = np.concatenate([part[1] for part in parts])
    # Distance in logarithms of the exponents, with their sign: neighbours on the grid would polish to one another's
    # minimum. Of a shape, in thirds of its range.
    num_exponents = problem.centre_QM.shape[1]
    shapes_GS = grid_GM[:, num_exponents:]
    span_S = np.maximum(np.ptp(shapes_GS, axis=0), 1e-300)
    exponents_GM = grid_GM[:, :num_exponents]
    signed_GM = np.sign(exponents_GM) * np.log1p(np.abs(exponents_GM) / 0.02)
    place_GM = np.concatenate([signed_GM, 3 * shapes_GS / span_S], axis=1)
    chosen: list[int] = []
    for index in np.argsort(objective_G, kind="stable"):
        if not np.isfinite(objective_G[index]):
            break
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
    log_loss_RN = problem.log_loss_N[None]
    residual, share = residuals(problem, point_RP, log_loss_RN)
    objective = float(summed(residual, weight_RN, problem.delta)[0])
    found = derivatives(problem, point_RP, residual, share, weight_RN, log_loss_RN)
    rounding = 1e-12 * _residual_unit(problem)  # all that a noise-free table leaves: nothing to be relative to
    exact = float(summed(residual, weight_RN, np.inf)[0]) <= rounding**2 * weight_RN.sum()
    nothing = (rounding if problem.delta == 0 else rounding**2) * weight_RN.sum()
    # A term that has died moves no prediction: the point is a minimum in the others, and the fit says what died.
    count = problem.num_coefficients
    largest_Q = np.array([share[0][problem.owner_KN == q].max() for q in range(count)])
    live = np.concatenate([largest_Q > 1e-9, np.ones(len(parameters_P) - count, dtype=bool)])
    down, gauss_newton = found.down_RP[:, live], found.gauss_newton[:, live][:, :, live]
    scaled = float(scaled_gradient(down, found.scale_RP[:, live])[0])
    unit = np.sqrt(np.maximum(np.diag(gauss_newton[0]), 1e-300))
    unit_hessian = found.hessian[0][live][:, live] / np.outer(unit, unit)
    eigenvalues = np.linalg.eigvalsh(unit_hessian)
    condition = float(np.linalg.cond(gauss_newton[0] / np.outer(unit, unit)))
    step = np.linalg.lstsq(unit_hessian, down[0] / unit, rcond=None)[0]
    smooth = float(summed(residual, weight_RN, problem.smooth_delta)[0])
    decrement = 0.0 if exact else float(0.5 * abs(step @ (down[0] / unit)) / smooth)
    agreeing = int(np.sum(start_objectives <= objective * (1 + STARTS_AGREE_RELATIVE) + nothing))
    why_not = None
    tolerance = _gradient_tolerance(problem)
    if not exact and scaled > tolerance:
        why_not = f"the scaled gradient is {scaled:.1e}, above {tolerance:.0e}"
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
