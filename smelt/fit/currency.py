"""Two fitted surfaces and a currency other than training FLOPs in; the saving in that currency out.

A measured column q (train_secs, stored_bytes) of each group's rows, at the optima that have one loss:

    ln q = p0 + p1 ln size + p2 ln tokens,    saving_q(C) = 1 - q(optimum at C) / q_ref(reference's optimum at C_ref)

Training plus T tokens of inference, forward a third of training per token, u = k size FLOPs per token:

    cost = u (D + T/3) = C + u T/3,           saving(cost) = 1 - cost / cost_ref

The optimum of a surface E + A s^-a + K D^-c under that cost is sought in ln D, where its condition is monotone and
bent one way only, so that Newton's steps always end at it; the loss along the frontier is then in closed form:

    a A (cost/k)^-a (D + T/3)^(a-1) = c K D^-(c+1),    loss = E + K D^-c (1 + (c/a) (1 + (T/3)/D))

It does not know what hardware a second was spent on, nor whether serving is as efficient as training.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, tables
from smelt.fit.frontier import (
    WHOLE_STEPS,
    Optimum,
    axes,
    frontier_parameters,
    furthest_outside,
    inverted,
    log_optimum,
    outside,
)
from smelt.fit.result import Flag, estimate
from smelt.fit.savings import Saving, savings, too_far, written
from smelt.fit.surface import SurfaceFit

NOISE_STREAM = 5  # apart from the streams that resample units or draw residuals under the same seed
FORWARD_SHARE = 1 / 3  # of training FLOPs per token: backward is twice forward
MAX_SCATTER = 0.1  # of a measured cost about its power law, relative: chosen
NEWTON_STEPS = 60


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One group of a comparison: its surface, the rows that it was fitted to, and what `surface_frontier` needs.

    columns   the law's size and tokens, and the measured currency, one number a row
    fixed     the law's other columns (density = 1 - S for SMELT's)
    """

    surface: SurfaceFit
    columns: Mapping[str, Sequence | np.ndarray]
    flops_per_unit: float | None = None
    fixed: Mapping[str, float] = dataclasses.field(default_factory=dict)


def currency_savings(
    target: Arm,
    reference: Arm,
    budgets_flops: Sequence | np.ndarray,
    *,
    column: str | None = None,
    inference_tokens: float | None = None,
    seed: int = 0,
) -> list[Saving]:
    """The saving at each budget in a measured `column` of both groups' rows, or with `inference_tokens` to serve.

    With `column` a budget is the target's training FLOPs and both groups train at their optimum; with
    `inference_tokens` it is the target's total cost in FLOPs, and each group's optimum is that under the total cost.
    Draws of the two surfaces are taken pairwise (`savings`); those of a measured cost come from the scatter of its own
    fit, with Student's t tails. Refusals and flags are those of `savings`; an optimum counts as outside the data by
    its size, its tokens, their product, or under a total cost their ratio. Raises BadInput for both currencies or
    none, and a column that is not there.
    """
    if (column is None) == (inference_tokens is None):
        raise BadInput("give one currency: the name of a measured column, or a number of inference_tokens")
    if column is not None:
        return _measured_savings(target, reference, budgets_flops, column, seed)
    found = savings(
        serving_frontier(target, inference_tokens), serving_frontier(reference, inference_tokens), budgets_flops
    )
    method = f"training and {inference_tokens:.3g} tokens of inference; both frontiers inverted draw by draw"
    return [dataclasses.replace(s, estimate=dataclasses.replace(s.estimate, method=method)) for s in found]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CostFit:
    """ln q = coefficients @ (1, ln size, ln tokens), by least squares; a term that the rows do not show is zero.

    scatter_log   root mean square residual, corrected for the fitted coefficients; None without spare rows
    root          [3, 3] a square root of the coefficients' covariance
    """

    name: str
    terms: tuple[str, ...]
    coefficients: np.ndarray
    scatter_log: float | None
    spare: int
    root: np.ndarray
    warnings: tuple[Flag, ...]

    def log_value(self, log_size: np.ndarray, log_tokens: np.ndarray) -> np.ndarray:
        p0, p1, p2 = self.coefficients
        return p0 + p1 * log_size + p2 * log_tokens

    def coefficient_draws(self, draws: int, seed: Sequence[int]) -> np.ndarray | None:
        """[draws, 3] with Student's t tails, or None where nothing tells the scatter."""
        if self.scatter_log is None:
            return None
        generator = intervals.generator(*seed)
        normal = generator.standard_normal((draws, 3)) * np.sqrt(
            self.spare / generator.chisquare(self.spare, (draws, 1))
        )
        return self.coefficients + normal @ self.root.T


def fit_cost(columns: Mapping[str, Sequence | np.ndarray], name: str, *, size_column: str = "num_params") -> CostFit:
    """The power law of the measured column `name` in size and tokens.

    Terms are left out, and named in the warning "cost_terms_left_out", where the rows do not tell them apart: a column
    that does not vary, and tokens that follow the size in every row. Raises BadInput for a column that is missing or
    holds something that is not above 0.

    >>> columns = {"num_params": [1e6, 2e6, 4e6, 4e6], "num_tokens": [4e8, 2e8, 1e8, 2e8], "train_secs": [8, 8, 8, 16]}
    >>> fit_cost(columns, "train_secs").coefficients.round(6)[1:]
    array([1., 1.])
    """
    table = tables.positive_columns(columns, (size_column, "num_tokens", name))
    log_size, log_tokens, y = (np.log(values) for values in table.values())
    num_rows, flags = len(y), []
    if not num_rows:
        raise BadInput(f"{name} has no rows; give what runs cost")
    kept = [word for word, x in (("size", log_size), ("tokens", log_tokens)) if np.ptp(x) > 1e-9]
    x = {"size": log_size, "tokens": log_tokens}
    if len(kept) == 2:
        unit = np.stack([(x[word] - x[word].mean()) / x[word].std() for word in kept], axis=1)
        # As `fit_surface` tells one budget from two: whole steps scatter a line by less than a hundredth.
        if np.linalg.svd(unit, compute_uv=False)[-1] / np.sqrt(num_rows) < 0.01:
            kept = ["size"]
    kept = kept[: max(num_rows - 1, 0)]
    if len(kept) < 2:
        shown = " and ".join(kept) or "neither size nor tokens"
        message = f"{name} is fitted with {shown} alone: its {num_rows} rows show no more, elsewhere it is a guess"
        flags.append(Flag(code="cost_terms_left_out", message=message))
    places = [0, *(1 + ("size", "tokens").index(word) for word in kept)]
    centre = np.array([0.0, log_size.mean(), log_tokens.mean()])
    design = (np.stack([np.ones(num_rows), log_size, log_tokens], axis=1) - centre)[:, places]
    inverse = np.linalg.pinv(design)
    beta = inverse @ y
    spare = num_rows - len(places)
    residual = y - design @ beta
    scatter = float(np.sqrt(residual @ residual / spare)) if spare else None
    # Back from centred columns: the constant gives up what the slopes have at the centre.
    back = np.zeros((3, len(places)))
    back[places, range(len(places))] = 1.0
    back[0] -= centre[places]
    if scatter is not None and scatter > MAX_SCATTER:
        message = (
            f"{name} scatters by {scatter:.0%} about its power law in size and tokens: see what else the runs shared"
        )
        flags.append(Flag(code="cost_scatters", message=message))
    root = np.zeros((3, 3))
    left, singular, _ = np.linalg.svd(back @ inverse, full_matrices=False)
    root[:, : len(singular)] = left * singular * (scatter or 0.0)
    return CostFit(
        name=name,
        terms=tuple(kept),
        coefficients=back @ beta,
        scatter_log=scatter,
        spare=spare,
        root=root,
        warnings=tuple(flags),
    )


def _measured_savings(target: Arm, reference: Arm, budgets_flops: Sequence, column: str, seed: int) -> list[Saving]:
    arms = (target, reference)
    size_name = _one_size(target, reference)
    costs = [fit_cost(arm.columns, column, size_column=size_name) for arm in arms]
    points = [_parameters(arm, arm.surface.parameters) for arm in arms]
    num = min(0 if arm.surface.draws is None else len(next(iter(arm.surface.draws.values()))) for arm in arms)
    drawn = [_parameters(arm, {n: v[:num] for n, v in arm.surface.draws.items()}) for arm in arms] if num else None
    drawn_p = [cost.coefficient_draws(num, [seed, NOISE_STREAM, i]) for i, cost in enumerate(costs)]
    if any(p_D3 is None for p_D3 in drawn_p):
        drawn = None
    found = []
    for budget in tables.asked("budgets_flops", budgets_flops):
        loss, needed = (float(value) for value in _matched(points, budget))
        reason, value, factor = None, None, 1.0
        if np.isfinite(needed):
            places = [log_optimum(point, at) for point, at in zip(points, (budget, needed), strict=True)]
            for arm, place in zip(arms, places, strict=True):
                size, tokens = (float(np.exp(x)) for x in place)
                factor = max(factor, _outside(arm.surface, size_name, size, tokens))
            reason = too_far(factor)
            ours, theirs = (cost.log_value(*place) for cost, place in zip(costs, places, strict=True))
            value = None if reason is not None else float(-np.expm1(ours - theirs))
        else:
            reason = f"the target's loss {loss:.4g} is not above the reference's floor {points[1][0]:.4g}"
        draws = None
        if drawn is not None:
            _, needed_D = _matched(drawn, budget)
            at_D = (budget, np.where(np.isinf(needed_D), np.nan, needed_D))
            # A draw whose size term has died has its optimum at no size: it comes out as NaN.
            with np.errstate(over="ignore", invalid="ignore"):
                ours_D, theirs_D = (
                    _cost_draws(p_D3, *log_optimum(found_D, at))
                    for p_D3, found_D, at in zip(drawn_p, drawn, at_D, strict=True)
                )
                draws = np.where(np.isinf(needed_D), 1.0, -np.expm1(ours_D - theirs_D))
        found.append(
            written(
                budget,
                loss,
                value,
                draws,
                reference_flops=needed,
                outside=factor,
                reason=reason,
                method=f"{column} at the optima of one loss, draws of the surfaces and of the cost's scatter",
                spread=max(arm.surface.spread for arm in (target, reference)),
                warnings=[flag for cost in costs for flag in cost.warnings],
            )
        )
    return found


def _one_size(target: Arm, reference: Arm) -> str:
    names = [axes(arm.surface, arm.flops_per_unit)[0] for arm in (target, reference)]
    if names[0] != names[1]:
        raise BadInput(f"the target's law is in {names[0]}, the reference's in {names[1]}; fit one law to both")
    return names[0]


def _outside(surface: SurfaceFit, size_name: str, size: float, num_tokens: float) -> float:
    factor, _ = furthest_outside(surface, size_name, size, num_tokens)
    return 1.0 if factor is None or factor <= WHOLE_STEPS else factor


def _parameters(arm: Arm, parameters: Mapping) -> tuple:
    return frontier_parameters(arm.surface, parameters, arm.flops_per_unit, arm.fixed)


def _matched(both: Sequence[tuple], budget: float) -> tuple[np.ndarray, np.ndarray]:
    """The target's loss at a budget, and the compute at which the reference has it."""
    floor, log_P, g, *_ = both[0]
    loss = floor + np.exp(log_P - g * np.log(budget))
    return loss, inverted(*both[1][:3], loss)


def _cost_draws(p_D3: np.ndarray, log_size_D: np.ndarray, log_tokens_D: np.ndarray) -> np.ndarray:
    return p_D3[:, 0] + p_D3[:, 1] * log_size_D + p_D3[:, 2] * log_tokens_D


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServingFrontier:
    """The least loss of a surface against the total cost of training and inference, to evaluate and to invert.

    It answers what a `Frontier` answers, with total cost in the place of compute. `point` and `draws` hold E, ln A, a,
    ln K and c by name, with what `fixed` columns give folded into ln A.
    """

    surface: SurfaceFit
    size_column: str
    flops_per_unit: float
    inference_tokens: float
    tokens_per_size_range: tuple[float, float]
    point: dict[str, np.ndarray]
    draws: dict[str, np.ndarray] | None = dataclasses.field(repr=False)

    @property
    def spread(self) -> float:
        return self.surface.spread

    @property
    def floor(self) -> float:
        return float(self.point["floor"])

    def loss(self, cost_flops: np.ndarray | float) -> np.ndarray:
        """The least loss at a total cost."""
        return self._loss(self.point, self._log_tokens(self.point, np.log(cost_flops)))

    def loss_draws(self, cost_flops: Sequence | np.ndarray) -> np.ndarray | None:
        """The same for every draw: [num_draws, num_costs]."""
        if self.draws is None:
            return None
        columns = {name: values[:, None] for name, values in self.draws.items()}
        return self._loss(columns, self._log_tokens(columns, np.log(np.asarray(cost_flops, dtype=float))))

    def compute(self, loss: np.ndarray | float) -> np.ndarray:
        """The total cost at which the frontier has this loss; infinite at or below the floor."""
        return self._cost(self.point, loss)

    def compute_draws(self, loss_R: np.ndarray) -> np.ndarray | None:
        """The same for every draw, each at a loss of its own."""
        if self.draws is None:
            return None
        return self._cost({name: values[: len(loss_R)] for name, values in self.draws.items()}, loss_R)

    def outside(self, cost_flops: float) -> float:
        """The factor by which the optimum at a cost leaves the rows: in size, tokens, their product or their ratio."""
        log_size, log_tokens = self._optimum(self.point, np.log(cost_flops))
        size, tokens = float(np.exp(log_size)), float(np.exp(log_tokens))
        factor = _outside(self.surface, self.size_column, size, tokens)
        return max(factor, outside(tokens / size, self.tokens_per_size_range))

    def _log_tokens(self, p: Mapping[str, np.ndarray], log_cost: np.ndarray) -> np.ndarray:
        """ln tokens at the optimum: the root of a function that rises everywhere and is bent one way only."""
        a, c, log_t = p["a"], p["c"], _log(FORWARD_SHARE * self.inference_tokens)
        level = np.log(a / c) + p["log_A"] - p["log_K"] - a * (log_cost - np.log(self.flops_per_unit))
        v = -level / (a + c)  # where nothing is to be served
        for _ in range(NEWTON_STEPS):
            total = np.logaddexp(v, log_t)
            step = (level + (a - 1) * total + (1 + c) * v) / ((a - 1) * np.exp(v - total) + 1 + c)
            v = v - step
            if not np.any(np.abs(step) > 1e-13 * (1 + np.abs(v))):
                break
        return v

    def _optimum(self, p: Mapping[str, np.ndarray], log_cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        v = self._log_tokens(p, log_cost)
        served = np.logaddexp(v, _log(FORWARD_SHARE * self.inference_tokens))
        return log_cost - np.log(self.flops_per_unit) - served, v

    def _loss(self, p: Mapping[str, np.ndarray], v: np.ndarray) -> np.ndarray:
        ratio = p["c"] / p["a"]
        return p["floor"] + np.exp(p["log_K"] - p["c"] * v) * (
            1 + ratio * (1 + FORWARD_SHARE * self.inference_tokens * np.exp(-v))
        )

    def _cost(self, p: Mapping[str, np.ndarray], loss: np.ndarray | float) -> np.ndarray:
        a, c, log_t = p["a"], p["c"], _log(FORWARD_SHARE * self.inference_tokens)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            above = np.asarray(loss - p["floor"])
            log_above = np.log(np.where(above > 0, above, np.nan))
            plain, serving = np.log1p(c / a), np.log(c / a) + log_t
            v = (p["log_K"] + plain - log_above) / c  # where nothing is to be served: from there Newton only rises
            for _ in range(NEWTON_STEPS):
                total = np.logaddexp(plain, serving - v)
                step = (p["log_K"] - c * v + total - log_above) / (c + np.exp(serving - v - total))
                v = v + step
                if not np.any(np.abs(step) > 1e-13 * (1 + np.abs(v))):
                    break
            served = np.log(a / c) + p["log_A"] - p["log_K"] + (a - 1) * np.logaddexp(v, log_t) + (1 + c) * v
            return np.where(above <= 0, np.inf, np.exp(served / a + np.log(self.flops_per_unit)))


def _log(value: float) -> float:
    return float(np.log(value)) if value > 0 else -np.inf


def serving_frontier(arm: Arm, inference_tokens: float) -> ServingFrontier:
    """The frontier of a group's surface under the cost of training and of serving `inference_tokens`.

    With none to serve it is `surface_frontier`. Draws of the surface carry over. Raises BadInput for a number of
    tokens below 0 and where the law has no size and token terms to trade.
    """
    if inference_tokens != 0:
        tables.number("inference_tokens", inference_tokens, "0 or more tokens to serve", low=0)
    size_name, k, *_ = axes(arm.surface, arm.flops_per_unit)
    table = tables.positive_columns(arm.columns, (size_name, "num_tokens"))
    ratio = table["num_tokens"] / table[size_name]

    def named(parameters: Mapping) -> dict[str, np.ndarray]:
        floor, _, g, log_A, a, log_K, c, _ = _parameters(arm, parameters)
        values = {"floor": floor, "log_A": log_A, "a": a, "log_K": log_K, "c": c}
        usable = np.isfinite(g) & np.isfinite(log_A) & np.isfinite(log_K)
        return {name: np.where(usable, value, np.nan) for name, value in values.items()}

    point = named(arm.surface.parameters)
    if not all(np.isfinite(value) for value in point.values()):
        raise BadInput(f"the surface has no frontier: {arm.surface.parameters} leave nothing to trade; add runs")
    return ServingFrontier(
        surface=arm.surface,
        size_column=size_name,
        flops_per_unit=k,
        inference_tokens=float(inference_tokens),
        tokens_per_size_range=(float(ratio.min()), float(ratio.max())),
        point=point,
        draws=None if arm.surface.draws is None else named(arm.surface.draws),
    )


def serving_optimum(frontier: ServingFrontier, cost_flops: float) -> Optimum:
    """Size, tokens and loss of least loss at a total cost (`Optimum.compute_flops` holds that cost).

    Tokens per parameter takes the size as in `surface_optimum`.
    """
    cost_flops = tables.number("cost_flops", cost_flops, "FLOPs above 0", low=0)
    per_unit = 6.0 if frontier.size_column == "flops_per_token" else 1.0

    def at(p: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        log_size, log_tokens = frontier._optimum(p, np.log(cost_flops))
        loss = frontier._loss(p, log_tokens)
        return np.exp(log_size), np.exp(log_tokens), loss, per_unit * np.exp(log_tokens - log_size)

    values = at(frontier.point)
    draws = (None,) * 4 if frontier.draws is None else at(frontier.draws)
    method = f"surface refitted to bootstrap draws by unit, {frontier.inference_tokens:.3g} tokens of inference"
    size, tokens, loss, per_param = (
        estimate(float(value), draw, method=method, spread=frontier.spread)
        for value, draw in zip(values, draws, strict=True)
    )
    factor = frontier.outside(cost_flops)
    flags = []
    if factor > 1 + 1e-6:
        message = f"the optimum at a total cost of {cost_flops:.3g} FLOPs lies {factor:.3g} times outside the rows"
        flags.append(Flag(code="extrapolated" if factor <= 10 else "extrapolated_far", message=message))
    return Optimum(
        compute_flops=float(cost_flops),
        size=size,
        num_tokens=tokens,
        loss=loss,
        tokens_per_param=per_param,
        extrapolation=factor,
        warnings=tuple(flags),
    )
