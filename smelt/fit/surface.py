"""Columns and losses in, a fitted law with its certificate out (Approach 3); bootstrap draws and predictions from it.

The objective and its solver stand in `solver`, the laws in `laws`. Losses are in nats or any other unit; the floor
and the coefficients come out in the same one.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, laws, solver, tables
from smelt.fit.result import Estimate, Flag, estimate, jsonable

NUM_STARTS = 8
NOISE_STREAM = 2  # apart from the stream that resamples units under the same seed
OBJECTIVES = ("huber_log", "squares_log")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceFit:
    """A law fitted to rows.

    parameters     by name, coefficients in the unit of the loss
    estimates      the same with standard errors and intervals; without a bootstrap each says that none was made
    residuals_log  ln loss - ln predicted, one a row, in the order given
    noise_log      root mean square of residuals_log, corrected for the fitted parameters; None without spare rows
    noise_loss     the same of loss - predicted, in the unit of the loss
    draws          by parameter name [num_draws], or None; NaN where a draw did not converge
    column_ranges  smallest and largest value of each column, and of size times tokens, that the rows have
    """

    law: laws.Law
    parameters: dict[str, float]
    estimates: dict[str, Estimate]
    residuals_log: np.ndarray
    objective: str
    delta: float
    certificate: solver.Certificate
    warnings: tuple[Flag, ...]
    num_rows: int
    column_ranges: dict[str, tuple[float, float]]
    noise_log: float | None
    noise_loss: float | None
    draws: dict[str, np.ndarray] | None = None
    refit: "_Refit | None" = None

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
    """What a bootstrap needs to fit the same rows again under other weights."""

    problem: solver.Problem
    weights: np.ndarray
    parameters_P: np.ndarray


def fit_surface(
    columns: Mapping[str, Sequence | np.ndarray],
    loss: Sequence | np.ndarray,
    law: laws.Law | str,
    *,
    objective: str = "huber_log",
    delta: float = 1e-3,
    weights: Sequence | np.ndarray | None = None,
) -> SurfaceFit:
    """Fit `law` to rows: the global minimum of sum_i w_i Huber_delta(ln loss_i - ln predicted_i), certified.

    `columns` maps the law's column names to one positive number a row (units are free: a column times a constant
    changes its coefficient and no prediction). `objective` "squares_log" is least squares of log residuals and
    ignores `delta`. Raises BadInput for fewer rows than parameters, a column that does not vary, and any number
    that is not finite and positive. Hoffmann et al. 2022, approach 3; Besiroglu et al. 2024 for the sum.

    >>> columns = {"compute_flops": [1e15, 1e16, 1e17]}
    >>> fit = fit_surface(columns, [4.0, 2.0, 1.0], "pure")
    >>> round(fit.parameters["alpha"], 6)
    0.30103
    """
    law = laws.law(law)
    if objective not in OBJECTIVES:
        raise BadInput(f"objective is {objective!r}; choose one of {', '.join(OBJECTIVES)}")
    if not delta > 0:
        raise BadInput(f"delta is {delta}; the Huber threshold of a log residual is above 0, 1e-3 by custom")
    losses = tables.positive("loss", loss)
    arrays = tables.positive_columns(columns, law.columns, len(losses))
    weight_N = np.ones(len(losses)) if weights is None else tables.positive("weights", weights)
    if len(weight_N) != len(losses):
        raise BadInput(f"weights has {len(weight_N)} rows, loss {len(losses)}; give one a run")
    if len(losses) < len(law.parameters):
        raise BadInput(
            f"{len(losses)} rows cannot fix the {len(law.parameters)} parameters of {law.equation}; add runs or fit a "
            "law with fewer"
        )
    for name, values in arrays.items():
        if np.ptp(np.log(values)) < 1e-9:
            raise BadInput(f"{name} is {values[0]:g} in every row; a law in {name} needs runs that differ in it")
    _refuse_one_line(arrays)

    threshold = delta if objective == "huber_log" else math.inf
    problem = solver.problem(law.design({k: np.log(v) for k, v in arrays.items()}), np.log(losses), threshold)
    signs = [next(p.sign for t in law.terms for p in t.powers if p.exponent == name) for name in law.exponents]
    starts = solver.screen(problem, solver.exponent_grid(signs), weight_N, NUM_STARTS)
    solution = solver.polish(problem, starts, weight_N)
    best = int(np.argmin(solution.objective_R))
    best_P = solution.parameters_RP[best]
    proof = solver.certificate(problem, best_P, weight_N, solution.objective_R)
    parameters = {name: float(value[0]) for name, value in _named(law, best_P[None], losses.min()).items()}
    residuals = np.log(losses) - np.log(laws.predicted_loss(law, parameters, arrays))
    spare = len(losses) - len(law.parameters)
    unit_N = weight_N / weight_N.sum()

    def scatter(residual_N: np.ndarray) -> float | None:
        return math.sqrt(float(unit_N @ residual_N**2) * len(losses) / spare) if spare else None

    warnings = [*tables.duplicates({**arrays, "loss": losses}), *_diagnosed(law, parameters, losses, arrays, proof)]
    return SurfaceFit(
        law=law,
        parameters=parameters,
        estimates={name: estimate(value, method="point fit") for name, value in parameters.items()},
        residuals_log=residuals,
        objective=objective,
        delta=threshold,
        certificate=proof,
        warnings=tuple(warnings),
        num_rows=len(losses),
        column_ranges={name: (float(v.min()), float(v.max())) for name, v in _with_compute(arrays).items()},
        noise_log=scatter(residuals),
        noise_loss=scatter(losses * -np.expm1(-residuals)),
        refit=_Refit(problem=problem, weights=weight_N, parameters_P=best_P),
    )


def _refuse_one_line(arrays: Mapping[str, np.ndarray]) -> None:
    """BadInput where the columns follow one another: one budget, or one ratio of tokens to size."""
    logs = np.stack([np.log(values) for values in arrays.values()], axis=1)
    unit = (logs - logs.mean(axis=0)) / logs.std(axis=0)
    # A hundredth: whole steps and rounded sizes scatter a single budget by less, two budgets a factor 2 apart by more.
    if len(arrays) > 1 and np.linalg.svd(unit, compute_uv=False)[-1] / math.sqrt(len(unit)) < 0.01:
        raise BadInput(
            f"{' and '.join(arrays)} follow one another in all {len(unit)} rows (one budget, or one ratio); a law that "
            "tells them apart needs runs off that line"
        )


def _with_compute(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns, and size times tokens where both are there: a run can be large by the product alone."""
    sizes = [name for name in ("flops_per_token", "num_params") if name in columns and "num_tokens" in columns]
    return {**columns, **{f"{name} x num_tokens": columns[name] * columns["num_tokens"] for name in sizes}}


def _named(law: laws.Law, parameters_RP: np.ndarray, smallest_loss: float) -> dict[str, np.ndarray]:
    """By name, coefficients out of their logarithms; a floor at the solver's bound is the zero that it stands for."""
    count = len(law.coefficients)
    with np.errstate(over="ignore"):
        values_RP = np.concatenate([np.exp(parameters_RP[:, :count]), parameters_RP[:, count:]], axis=1)
    by_name = dict(zip(law.parameters, values_RP.T, strict=True))
    if law.floor is not None:
        by_name[law.floor] = np.where(by_name[law.floor] < 1e-9 * smallest_loss, 0.0, by_name[law.floor])
    return by_name


def _diagnosed(law, parameters, losses, arrays, proof) -> list[Flag]:
    flags = []
    if not proof.certified:
        flags.append(Flag(code="not_certified", message=f"the minimum of {law.name} is not proven: {proof.why_not}"))
    if len(losses) < 2 * len(law.parameters):
        flags.append(
            Flag(
                code="few_rows", message=f"{len(losses)} rows for {len(law.parameters)} parameters: intervals are rough"
            )
        )
    if law.floor is not None and parameters[law.floor] < 0.02 * losses.min():
        flags.append(
            Flag(
                code="floor_not_identified",
                message=f"{law.floor} is {parameters[law.floor]:.3g}, next to nothing of the smallest loss "
                f"{losses.min():.4g}: the rows do not show an irreducible loss, extrapolate with care",
            )
        )
    for term in law.terms:
        for power in term.powers:
            value = parameters[power.exponent]
            if power.sign < 0 and not 0 < value < 2.5:
                flags.append(
                    Flag(
                        code="exponent_implausible",
                        message=f"{power.exponent} is {value:.3g}: no fall with {power.column} is seen",
                    )
                )
    if proof.condition_number > 1e7:
        flags.append(
            Flag(
                code="ill_conditioned",
                message=f"the condition number is {proof.condition_number:.1e}: some parameters are not told apart by "
                "these rows, only their combination",
            )
        )
    for name, values in arrays.items():
        if values.max() / values.min() < 4:
            flags.append(
                Flag(
                    code="narrow_range",
                    message=f"{name} spans {values.max() / values.min():.2g} times; its exponent needs 4 or more",
                )
            )
    return flags


def bootstrap(
    fit: SurfaceFit,
    units: Sequence[Hashable] | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
    counts: np.ndarray | None = None,
) -> SurfaceFit:
    """`fit` with draws and 95 % percentile intervals: whole units are resampled and the law is fitted again.

    `units` labels each row (rows of one run, or of one budget where budgets share an error, carry one label; None:
    every row its own). `counts` [draws, rows] overrides them, so that several groups can be drawn jointly
    (`intervals.joint_counts`). Each draw starts at the fitted point. Refits that do not converge are NaN in `draws`
    and are flagged.
    """
    assert fit.refit is not None
    if counts is None:
        labels = list(range(fit.num_rows)) if units is None else list(units)
        if len(labels) != fit.num_rows:
            raise BadInput(f"units has {len(labels)} labels, the fit {fit.num_rows} rows; give one a row")
        counts = intervals.joint_counts({"": labels}, draws=draws, seed=seed)[""]
    problem, weights = fit.refit.problem, fit.refit.weights
    start_RP = np.repeat(solver.centred(problem, fit.refit.parameters_P[None]), len(counts), axis=0)
    parts = [
        solver.polish(problem, start_RP[i : i + 500], weights * counts[i : i + 500]) for i in range(0, len(counts), 500)
    ]
    parameters_RP = np.concatenate([part.parameters_RP for part in parts])
    converged_R = np.concatenate([part.converged_R for part in parts])
    parameters_RP[~converged_R] = np.nan
    by_name = _named(fit.law, parameters_RP, float(np.exp(problem.log_loss_N.min())))
    method = f"percentiles of {len(counts)} bootstrap draws by unit"
    warnings = list(fit.warnings)
    if not converged_R.all():
        warnings.append(
            Flag(
                code="draws_not_converged",
                message=f"{np.mean(~converged_R):.1%} of {len(counts)} bootstrap refits did not converge: left out",
            )
        )
    return dataclasses.replace(
        fit,
        draws=by_name,
        estimates={name: estimate(v, by_name[name], method=method) for name, v in fit.parameters.items()},
        warnings=tuple(warnings),
    )


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
    assert fit.draws is not None
    point = tables.positive_columns({name: [value] for name, value in columns.items()}, fit.law.columns)
    value = float(fit.predict(point)[0])
    num_draws = len(next(iter(fit.draws.values())))
    generator = np.random.default_rng([seed, NOISE_STREAM])
    spare = fit.num_rows - len(fit.law.parameters)
    method = f"prediction interval of {num_draws} bootstrap draws and residual noise"
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
    if fit.noise_log is None or spare < 1:
        reason = "as many parameters as rows: the scatter of a run is unknown"
        return Prediction(
            estimate=estimate(value, method=method, reason=reason), extrapolation=factor, warnings=tuple(flags)
        )
    at_draws = laws.predicted_loss(fit.law, fit.draws, point)
    assert fit.noise_loss is not None
    # Whether runs scatter by a share of the loss or by an amount is not known away from the rows: the wider is taken.
    noise = max(fit.noise_log, fit.noise_loss / value) * generator.standard_t(spare, size=num_draws)
    return Prediction(
        estimate=estimate(value, at_draws * np.exp(noise), method=method),
        extrapolation=factor,
        warnings=tuple(flags),
    )
