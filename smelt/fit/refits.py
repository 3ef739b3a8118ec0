"""A fit with other weights or other losses in, the law fitted again to each out; and the spread that its minimum shows.

At the minimum of sum w rho(r) with psi = rho' an M-estimate has, for large n,

    covariance = B / A^2 (J' W J)^-1,   A = mean psi'(r),   B = mean psi(r)^2                 (Huber 1964, 1973)

with J the derivatives of the prediction that r is taken from. B has n - P in its denominator, as the variance of least
squares has, to which the formula reduces with A = 1. A needs care where Huber's delta is far below the residuals: then
psi' is not 0 in the P rows that the law meets exactly, and almost nowhere else. A is taken from the density of
residuals near zero instead,

    A = (delta / h) (rows with |r| <= h, less P) / (n - P),   h = max(delta, 0.8 sigma),   sigma = 1.4826 median |r|

(the median over the n - P largest), which is what A is for a density that is flat inside h; for absolute residuals
delta goes to 0 and with it A and psi, the ratio stays. Rows are taken to be independent here: where rows of a budget
share an error, resample or leave out whole budgets instead.
"""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import binding, frontier, laws, solver, tables
from smelt.fit.objective import ABSOLUTE_DELTA
from smelt.fit.surface import SurfaceFit

BANDWIDTH_SIGMAS = 0.8
NORMAL_SIGMAS = 1.4826  # median |r| of normal noise is its standard deviation over this
WINSOR_SIGMAS = 1.345  # residuals are clipped there where one outlier should not make a pattern
EXACT_LOG = 1e-11  # residuals of a noise-free table, measured: 1e-14 to 1e-12
ALLOCATION = "allocation_exponent"
TOKENS_PER_SIZE = "tokens per size"
BATCH = 250  # replicates at a time: their arrays stay in the cache


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """A (`slope`) and B (`square`) of a fit, sigma, a standard deviation of its residuals that outliers do not move,
    and the delta that A and B are Huber's of."""

    slope: float
    square: float
    sigma: float
    delta: float

    @property
    def variance(self) -> float:
        """What multiplies (J' W J)^-1."""
        return self.square / self.slope**2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A fit with its rows and the algebra at its minimum, which every diagnostic reads.

    axes      ln of each column that varies, of compute and of tokens per size
    weight    [rows], mean 1
    residual  [rows], as the objective sums it
    jacobian  [rows, parameters] of what residuals are taken from; `inverse` is (J' W J)^-1
    basis     [rows, rank], orthonormal: what the parameters can do to W^1/2 times residuals
    leverage  [rows], 0 to 1
    """

    fit: SurfaceFit
    columns: dict[str, np.ndarray]
    losses: np.ndarray
    labels: tuple[str, ...]
    budgets: np.ndarray | None
    units: tuple | None
    axes: dict[str, np.ndarray]
    weight: np.ndarray
    scores: Scores
    residual: np.ndarray
    jacobian: np.ndarray
    inverse: np.ndarray
    basis: np.ndarray
    leverage: np.ndarray

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    def named(self, indices: Sequence[int], most: int = 3) -> str:
        """Labels of rows for a sentence."""
        names = [self.labels[i] for i in indices[:most]]
        return ", ".join(names) + (f" and {len(indices) - most} more" if len(indices) > most else "")

    def absorbed(self, values: np.ndarray) -> np.ndarray:
        """`values` [rows, ...] less what the parameters can absorb of them."""
        return values - self.basis @ (self.basis.T @ values)

    def clipped(self) -> np.ndarray:
        """Residuals times root weights, without the reach of outliers."""
        limit = WINSOR_SIGMAS * self.scores.sigma
        return np.sqrt(self.weight) * np.clip(self.residual, -limit, limit)


def rows_of(
    fit: SurfaceFit,
    columns: Mapping[str, Sequence | np.ndarray],
    losses: Sequence | np.ndarray,
    *,
    budgets: Sequence | None = None,
    units: Sequence[Hashable] | None = None,
    labels: Sequence | None = None,
) -> Rows:
    """Checked; BadInput where they are not the rows of the fit, in its order."""
    loss = tables.positive("losses", losses)
    arrays = tables.positive_columns(columns, fit.law.columns, len(loss))
    for name, values in {"losses": loss, "budgets": budgets, "units": units, "labels": labels}.items():
        if values is not None and len(values) != fit.num_rows:
            raise BadInput(f"{name} has {len(values)} entries, the fit {fit.num_rows} rows; give the fitted ones")
    miss = float(np.abs(np.log(loss) - np.log(fit.predict(arrays)) - fit.residuals_log).max())
    if miss > 1e-6:
        raise BadInput(f"these are not the rows of the fit (residuals differ by {miss:.3g}); give them in its order")
    if budgets is not None:
        budgets = tables.one_number_a_budget(tables.positive("budgets", budgets))
    if units is not None:
        units = tables.labels("units", units)
    weight = own_rows(fit).weights / own_rows(fit).weights.mean()
    slopes = jacobian(fit, arrays)
    found, basis = inverse(slopes, weight)
    return Rows(
        fit=fit,
        columns=arrays,
        losses=loss,
        labels=tuple(f"row {i}" for i in range(len(loss))) if labels is None else tuple(str(name) for name in labels),
        budgets=budgets,
        units=None if units is None else tuple(units),
        axes=axes(arrays),
        weight=weight,
        scores=scores(fit),
        residual=residuals(fit),
        jacobian=slopes,
        inverse=found,
        basis=basis,
        leverage=np.sum(basis**2, axis=1),
    )


def size_column(columns: Mapping[str, np.ndarray]) -> str | None:
    """The column that tokens are traded against."""
    return next((n for n in ("flops_per_token", "num_params") if n in columns and "num_tokens" in columns), None)


def axes(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """ln of each column that varies, of compute and of tokens per size, without those that repeat another."""
    logs = {name: np.log(values) for name, values in columns.items()}
    size = size_column(columns)
    if size is not None:
        logs["compute"] = logs[size] + logs["num_tokens"]
        logs[TOKENS_PER_SIZE] = logs["num_tokens"] - logs[size]
    kept: dict[str, np.ndarray] = {}
    for name, values in logs.items():
        if np.ptp(values) > 1e-9 and all(abs(np.corrcoef(values, other)[0, 1]) < 1 - 1e-9 for other in kept.values()):
            kept[name] = values
    return kept


def own_rows(fit: SurfaceFit):
    """The rows that the fit was made from; BadInput where they are not its alone."""
    if fit.refit is None:
        raise BadInput("this fit shares parameters with other groups; fit its rows alone to ask what they decide")
    return fit.refit


def residuals(fit: SurfaceFit) -> np.ndarray:
    """The residuals that the objective sums [rows]: of the loss's logarithm, or of the loss for a raw objective."""
    problem = own_rows(fit).problem
    return np.exp(problem.log_loss_N) * -np.expm1(-fit.residuals_log) if problem.raw else fit.residuals_log


def spare_rows(fit: SurfaceFit) -> int:
    """Rows beyond the parameters; BadInput where there are none."""
    spare = fit.num_rows - len(fit.law.parameters)
    if spare < 1:
        raise BadInput(
            f"{fit.num_rows} rows for {len(fit.law.parameters)} parameters leave none to tell the scatter by; add runs"
        )
    return spare


def refuse_exact(residuals_log: np.ndarray) -> None:
    """BadInput for residuals of rounding alone: a noise-free table has no scatter to hold anything against."""
    if np.abs(residuals_log).max() < EXACT_LOG:
        raise BadInput("the law meets the rows exactly; there is no scatter to tell how sure its parameters are")


def scores(fit: SurfaceFit) -> Scores:
    """A, B and sigma at the minimum. BadInput where no row is to spare, and where the law meets all of them."""
    spare_rows(fit)
    refuse_exact(fit.residuals_log)
    return scores_of(residuals(fit), own_rows(fit).weights, fit.delta, len(fit.law.parameters))


def scores_of(residual_N: np.ndarray, weight_N: np.ndarray, delta: float, num_parameters: int) -> Scores:
    """A, B and sigma of residuals that `num_parameters` were fitted to, at more rows than that."""
    spare = len(residual_N) - num_parameters
    weight_N = weight_N / weight_N.mean()
    size = np.abs(residual_N)
    sigma = NORMAL_SIGMAS * float(np.median(np.sort(size)[num_parameters:]))
    delta = delta or ABSOLUTE_DELTA
    width = max(delta, BANDWIDTH_SIGMAS * sigma)
    inside = float(weight_N[size <= width].sum()) - num_parameters
    slope = 1.0 if np.isinf(delta) else delta / width * inside / spare
    square = float(np.sum((weight_N * np.clip(residual_N, -delta, delta)) ** 2)) / spare
    if not (slope > 0 and square > 0):
        raise BadInput("the law meets the rows exactly; there is no scatter to tell how sure its parameters are")
    return Scores(slope=slope, square=square, sigma=sigma, delta=delta)


def jacobian(
    fit: SurfaceFit, columns: Mapping[str, np.ndarray], parameters: Mapping[str, float] | None = None
) -> np.ndarray:
    """Derivatives [rows, parameters] of what residuals are taken from, by the law's parameters in their order."""
    at = fit.parameters if parameters is None else parameters
    slopes = laws.loss_gradient(fit.law, at, columns)
    by_parameter = np.stack([np.broadcast_to(slopes[n], len(columns[fit.law.columns[0]])) for n in fit.law.parameters])
    if own_rows(fit).problem.raw:
        return by_parameter.T
    return (by_parameter / laws.predicted_loss(fit.law, at, columns)).T


def inverse(jacobian_NP: np.ndarray, weight_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(J' W J)^-1 [P, P], and an orthonormal basis [N, rank] of what the parameters can do to W^1/2 times residuals.

    A parameter that moves no prediction (of a term that has died) has NaN in its row and column.
    """
    weighted = np.sqrt(weight_N)[:, None] * jacobian_NP
    # The coefficient of a power law is of the size N^alpha: columns are scaled before anything is inverted.
    length = np.linalg.norm(weighted, axis=0)
    live = length > 0
    left, singular, right = np.linalg.svd(weighted[:, live] / length[live], full_matrices=False)
    kept = singular > 1e-12 * singular[0]
    spread = right[kept].T / singular[kept] / length[live][:, None]
    found = np.full((len(length), len(length)), np.nan)
    found[np.ix_(live, live)] = spread @ spread.T
    return found, left[:, kept]


def weighted(fit: SurfaceFit, weight_RN: np.ndarray) -> dict[str, np.ndarray]:
    """The law fitted again under each row of weights (times the fit's own): parameters by name [R].

    Each starts at the fitted point and keeps delta; NaN where no minimum is reached.
    """
    own = own_rows(fit)
    return _again(fit, own.weights * weight_RN, np.broadcast_to(own.problem.log_loss_N, weight_RN.shape))


def relabelled(fit: SurfaceFit, log_loss_RN: np.ndarray) -> dict[str, np.ndarray]:
    """The law fitted again to each row of log losses under the fit's own weights: parameters by name [R], or NaN."""
    return _again(fit, np.broadcast_to(own_rows(fit).weights, log_loss_RN.shape), log_loss_RN)


def _again(fit: SurfaceFit, weight_RN: np.ndarray, log_loss_RN: np.ndarray) -> dict[str, np.ndarray]:
    own = own_rows(fit)
    start_P = solver.centred(own.problem, own.parameters_P[None])
    found = []
    for first in range(0, len(weight_RN), BATCH):
        rows = slice(first, first + BATCH)
        starts = np.repeat(start_P, len(weight_RN[rows]), axis=0)
        solution = solver.polish(own.problem, starts, weight_RN[rows], log_loss_RN=log_loss_RN[rows])
        found.append(np.where(solution.converged_R[:, None], solution.parameters_RP, np.nan))
    return binding.named(own.bound, "", np.concatenate(found), float(np.exp(own.problem.log_loss_N.min())))


def allocation_exponent(fit: SurfaceFit, parameters: Mapping[str, np.ndarray | float]) -> np.ndarray | None:
    """beta / (alpha + beta): the best size grows as compute to this power. None for a law without size and tokens."""
    try:
        size, _, size_term, token_term = frontier.axes(fit, 1.0)
    except BadInput:
        return None
    alpha, beta = (
        sum(-power.value(parameters) for power in term.powers if power.column == column)
        for term, column in ((size_term, size), (token_term, "num_tokens"))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(beta / (np.asarray(alpha) + beta))


def per_rise(fit: SurfaceFit) -> float:
    """What a rise of the objective is multiplied by to be q times F's first argument: 2 A / B (see `profiles`)."""
    spare_rows(fit)
    refuse_exact(fit.residuals_log)
    return per_rise_of(residuals(fit), own_rows(fit).weights, fit.delta, len(fit.law.parameters))


def per_rise_of(residual_N: np.ndarray, weight_N: np.ndarray, delta: float, num_parameters: int) -> float:
    """The same, of residuals that `num_parameters` were fitted to."""
    found = scores_of(residual_N, weight_N, delta, num_parameters)
    # The sum of absolute residuals is Huber's over delta, as delta goes to zero; A and B are Huber's.
    unit = ABSOLUTE_DELTA if delta == 0 else 1.0
    return 2 * found.slope / found.square * unit / float(weight_N.mean())


def inner_names(fit: SurfaceFit) -> list[str]:
    """Parameters that stand for themselves: exponents, shapes and the floor; a coefficient goes with its exponent."""
    law = fit.law
    return [*law.exponents, *(shape.name for shape in law.shapes), *([law.floor] if law.floor else [])]


def with_allocation(fit: SurfaceFit, parameters: Mapping[str, np.ndarray | float]) -> dict:
    """Parameters and, where the law has one, the allocation exponent."""
    allocation = allocation_exponent(fit, parameters)
    return {**parameters, **({} if allocation is None else {ALLOCATION: allocation})}


def standard_errors(rows: Rows) -> dict[str, float]:
    """Of what stands for itself: from the bootstrap where the fit has one, else from the minimum; not of what died."""
    fit, place = rows.fit, {name: index for index, name in enumerate(rows.fit.law.parameters)}
    errors = {}
    for name in inner_names(fit):
        own = fit.estimates[name].standard_error
        errors[name] = own if own else float(np.sqrt(rows.scores.variance * rows.inverse[place[name], place[name]]))
    allocation = allocation_exponent(fit, fit.parameters)
    if allocation is not None and fit.draws is not None:
        errors[ALLOCATION] = float(np.nanstd(allocation_exponent(fit, fit.draws)))
    elif allocation is not None:
        names = list(fit.law.exponents)
        step = 1e-6
        moved = [allocation_exponent(fit, {**fit.parameters, name: fit.parameters[name] + step}) for name in names]
        slope = (np.array(moved) - allocation) / step
        used = [place[name] for name in names]
        errors[ALLOCATION] = float(np.sqrt(rows.scores.variance * slope @ rows.inverse[np.ix_(used, used)] @ slope))
    return {name: error for name, error in errors.items() if np.isfinite(error) and error > 0}
