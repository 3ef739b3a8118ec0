"""Fits of groups and a question in; plain answers out: the optimum at a compute, the loss of a run, what is saved.

Every answer says how far it reaches outside the rows, as a factor and in words; beyond ten times it carries a warning.
It fits nothing: what a group lacks is None with the reason that the fit gave.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.fit import laws, tables, traded
from smelt.fit.currency import (
    Arm,
    CostFit,
    currency_savings,
    fit_cost,
    serving_frontier,
    serving_optimum,
)
from smelt.fit.frontier import Frontier, frontier_parameters, log_optimum, surface_optimum
from smelt.fit.groups import FRONTIER_KINDS, Groups, is_frontier, recommended, why_no_frontier
from smelt.fit.refits import allocation_exponent
from smelt.fit.result import Estimate, Flag, estimate
from smelt.fit.savings import gain_at_loss, savings
from smelt.fit.surface import SurfaceFit, predict
from smelt.fit.traded import TradedFrontier

FAR = 10.0  # times outside the rows
COST_STREAM = 6  # apart from the streams of other draws under the same seed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The optimum of a group at a compute; or, where `columns` are given, the loss of a run that has them.

    loss          at the optimum an interval of the law's loss; of a run a prediction interval, its scatter included
    compute_flops   of training; of training and inference where tokens are to be served
    size          in `size_column`: num_params, or as `traded.size_column` says
    size_within_1_percent   the sizes that reach the optimum's loss with 1 % more compute
    cost          the measured column that was asked for (train_secs, stored_bytes) at the optimum
    extrapolation   the factor by which the compute (or any column) leaves the rows, 1 inside; extent the same in words
    reason        why there is no answer
    """

    group: str
    compute_flops: float | None
    columns: dict[str, float] | None = None
    size_column: str | None = None
    size: Estimate | None = None
    num_tokens: Estimate | None = None
    tokens_per_param: Estimate | None = None
    loss: Estimate | None = None
    size_within_1_percent: tuple[float, float] | None = None
    cost: Estimate | None = None
    extrapolation: float | None = None
    extent: str | None = None
    reason: str | None = None
    warnings: tuple[Flag, ...] = ()


def extent(factor: float) -> str:
    """How far an answer reaches, for people.

    >>> extent(1.0), extent(3.2), extent(1234.0)
    ('inside', 'extrapolates 3.2x', 'extrapolates 1230x')
    """
    return "inside" if factor <= 1 + 1e-6 else f"extrapolates {float(f'{factor:.3g}'):g}x"


def known(fits: Groups, name: str | None) -> list[str]:
    """[name], or all groups; BadInput for a name that is none of them."""
    if name is not None and name not in fits.names:
        raise BadInput(f"there is no group {name!r}; choose one of {', '.join(fits.names)}")
    return list(fits.names) if name is None else [name]


def optima(
    fits: Groups,
    compute_flops: Sequence[float],
    *,
    group: str | None = None,
    fixed: Mapping[str, float] | None = None,
    column: str | None = None,
    inference_tokens: float | None = None,
) -> list[Answer]:
    """Optimal size, tokens, tokens per parameter and loss of every group (or of one) at every compute, with intervals.

    `fixed` replaces the law's fixed columns (density=0.05). `column` adds what a run at the optimum costs in a measured
    column; with `inference_tokens` to serve the compute is that of training and inference. The law is the surface; a
    law in compute alone has a loss and no size. Raises BadInput for a compute that is not above 0, an unknown group and
    a column that the rows have not.
    """
    points = tables.asked("compute_flops", compute_flops)
    found = []
    for name in known(fits, group):
        surface, frontier = fits.surfaces[name], fits.frontiers[name].get("surface")
        if surface is None or frontier is None:
            reason = why_no_frontier(fits, name, "surface")
            found += [Answer(group=name, compute_flops=float(point), reason=reason) for point in points]
        elif is_frontier(fits.law):
            if column is not None or inference_tokens is not None:
                raise BadInput(f"{fits.law.equation} knows no size: fit a law in size and tokens to ask for its cost")
            found += [_of_frontier(frontier, name, float(point)) for point in points]
        else:
            arm = _arm(fits, name, fixed)
            if (column is not None or inference_tokens is not None) and not traded.is_closed(fits.law):
                raise BadInput(f"{fits.law.equation} has optima at training FLOPs alone; leave the other currency out")
            cost = None if column is None else fit_cost(arm.columns, column, size_column=_size_column(fits))
            found += [_of_surface(fits, name, arm, float(point), cost, inference_tokens) for point in points]
    return found


def _arm(fits: Groups, name: str, fixed: Mapping[str, float] | None = None) -> Arm:
    options = {**fits.frontier_options[name], **(fixed or {})}
    surface = fits.surfaces[name]
    assert surface is not None
    return Arm(
        surface=surface, columns=fits.rows[name], flops_per_unit=options.pop("flops_per_unit", None), fixed=options
    )


def _size_column(fits: Groups) -> str:
    return traded.size_column(fits.law) or "num_params"


def _of_frontier(frontier: Frontier | TradedFrontier, name: str, compute: float) -> Answer:
    factor = frontier.outside(compute)
    return Answer(
        group=name,
        compute_flops=compute,
        loss=_frontier_loss(frontier, compute),
        extrapolation=factor,
        extent=extent(factor),
        warnings=_reach(factor, f"{compute:.3g} FLOPs", name),
    )


def _of_surface(
    fits: Groups, name: str, arm: Arm, compute: float, cost: CostFit | None, inference_tokens: float | None
) -> Answer:
    if inference_tokens is None:
        optimum = surface_optimum(arm.surface, compute, flops_per_unit=arm.flops_per_unit, **arm.fixed)
        factor = max(fits.frontiers[name]["surface"].outside(compute), optimum.extrapolation or 1.0)
    else:
        optimum = serving_optimum(serving_frontier(arm, inference_tokens), compute)
        factor = optimum.extrapolation or 1.0
    return Answer(
        group=name,
        compute_flops=compute,
        size_column=_size_column(fits),
        size=optimum.size,
        num_tokens=optimum.num_tokens,
        tokens_per_param=optimum.tokens_per_param,
        loss=optimum.loss,
        size_within_1_percent=optimum.size_within_1_percent,
        cost=None if cost is None else _cost_at_optimum(arm, cost, compute, fits.method["seed"]),
        extrapolation=factor,
        extent=extent(factor),
        reason=None if optimum.loss.value is not None else optimum.loss.reason,
        warnings=_reach(factor, f"the optimum at {compute:.3g} FLOPs", name) + (() if cost is None else cost.warnings),
    )


def _cost_at_optimum(arm: Arm, cost: CostFit, compute: float, seed: int) -> Estimate:
    """The measured cost of a run at the optimum: draws of the surface and of the cost's own fit."""

    def place(parameters: Mapping) -> tuple:
        return log_optimum(frontier_parameters(arm.surface, parameters, arm.flops_per_unit, arm.fixed), compute)

    value, draws = float(np.exp(cost.log_value(*place(arm.surface.parameters)))), None
    if arm.surface.draws is not None:
        log_size, log_tokens = place(arm.surface.draws)
        p_D3 = cost.coefficient_draws(len(log_size), [seed, COST_STREAM])
        if p_D3 is not None:
            with np.errstate(over="ignore"):
                draws = np.exp(p_D3[:, 0] + p_D3[:, 1] * log_size + p_D3[:, 2] * log_tokens)
    reason = None if draws is not None else "nothing tells the scatter of the cost"
    return estimate(
        value, draws, method=f"{cost.name} at the optimum, draws of both fits", spread=arm.surface.spread, reason=reason
    )


def _frontier_loss(frontier: Frontier | TradedFrontier, compute: float) -> Estimate:
    draws = frontier.loss_draws([compute])
    return estimate(
        float(frontier.loss(compute)),
        None if draws is None else draws[:, 0],
        method="law fitted again to draws",
        spread=frontier.spread,
    )


def _reach(factor: float, what: str, name: str) -> tuple[Flag, ...]:
    if factor <= FAR:
        return ()
    message = f"{name}: {what} lies {factor:.3g} times outside the rows: the answer is an opinion of the law's form"
    return (Flag(code="extrapolated_far", message=message),)


def run_losses(fits: Groups, columns: Mapping[str, float], *, group: str | None = None, seed: int = 0) -> list[Answer]:
    """The predicted loss of one new run in every group (or in one), with a prediction interval.

    `columns` holds the law's columns; fixed ones need not be given again. Raises BadInput for a column that lacks.
    """
    found = []
    for name in known(fits, group):
        surface = fits.surfaces[name]
        at = {**{k: v for k, v in fits.frontier_options[name].items() if k != "flops_per_unit"}, **columns}
        if surface is None:
            reason = why_no_frontier(fits, name, "surface")
            found.append(Answer(group=name, compute_flops=None, columns=at, reason=reason))
            continue
        prediction = predict(surface, at, seed=seed)
        found.append(
            Answer(
                group=name,
                compute_flops=None,
                columns=at,
                loss=prediction.estimate,
                extrapolation=prediction.extrapolation,
                extent=extent(prediction.extrapolation),
                warnings=_reach(prediction.extrapolation, "the run", name),
            )
        )
    return found


def saved(fits: Groups, name: str, budgets_flops: Sequence[float]) -> dict[str, Any]:
    """Savings of a group over the reference at budgets, under every kind of frontier, the recommended one first.

    recommended, and kind -> {"at_budgets": a Saving a budget or None, "reason"}. Raises BadInput for an unknown group.
    """
    return _compared(fits, name, "at_budgets", lambda pair: savings(*pair, budgets_flops))


def saved_in(
    fits: Groups,
    name: str,
    budgets_flops: Sequence[float],
    *,
    column: str | None = None,
    inference_tokens: float | None = None,
) -> dict[str, Any]:
    """Savings in a measured column, or of training and inference (the budgets are then of both): of the surfaces alone,
    which know sizes and tokens."""
    _other(fits, name)
    found: dict[str, Any] = {"recommended": None, "surface": {"at_budgets": None, "reason": None}}
    lacking = [group for group in (name, fits.reference) if "surface" not in fits.frontiers[group]]
    if lacking:
        found["surface"]["reason"] = why_no_frontier(fits, lacking[0], "surface")
    else:
        pair = _arm(fits, name), _arm(fits, fits.reference)
        try:
            savings_found = currency_savings(*pair, budgets_flops, column=column, inference_tokens=inference_tokens)
            found |= {"recommended": "surface", "surface": {"at_budgets": savings_found, "reason": None}}
        except BadInput as error:
            found["surface"]["reason"] = f"{name}: {error}"
    for kind in ("saturating", "pure"):
        found[kind] = {"at_budgets": None, "reason": "minima: they know compute alone"}
    return found


def gained(fits: Groups, name: str, losses: Sequence[float]) -> dict[str, Any]:
    """The same at losses: kind -> {"at_losses": a Gain a loss or None, "reason"}."""
    return _compared(fits, name, "at_losses", lambda pair: gain_at_loss(*pair, losses))


def _other(fits: Groups, name: str) -> None:
    known(fits, name)
    if name == fits.reference:
        raise BadInput(f"{name} is the reference itself; give another group, or another reference")


def _compared(fits: Groups, name: str, key: str, compare: Callable[[tuple], list]) -> dict[str, Any]:
    _other(fits, name)
    best = recommended(fits, name)
    found: dict[str, Any] = {"recommended": best}
    for kind in sorted(FRONTIER_KINDS, key=lambda kind: kind != best):
        pair = fits.frontiers[name].get(kind), fits.frontiers[fits.reference].get(kind)
        if None in pair:
            reason = why_no_frontier(fits, name if pair[0] is None else fits.reference, kind)
            found[kind] = {key: None, "reason": reason}
        else:
            found[kind] = {key: compare(pair), "reason": None}
    return found


def exponents(fits: Groups, name: str) -> dict[str, Estimate]:
    """Estimates of a group's law: its parameters, the constants that papers print in their place, the exponents of
    optimal size and tokens in compute (N* ~ C^a), and that of the frontier; what the law has not is left out."""
    surface, frontier = fits.surfaces[name], fits.frontiers[name].get("surface")
    found: dict[str, Estimate] = {} if surface is None else {**surface.estimates, **_constants(surface)}
    if surface is not None and isinstance(frontier, Frontier) and not is_frontier(fits.law):
        found |= _allocation(surface)
        found["frontier_exponent"] = frontier.estimates["exponent"]
    return found


def _constants(surface: SurfaceFit) -> dict[str, Estimate]:
    """Those of `laws.CONSTANTS` that are no parameters of the law."""
    constants = laws.CONSTANTS.get(surface.law.name)
    if constants is None:
        return {}
    values, draws = constants(surface.parameters), {} if surface.draws is None else constants(surface.draws)
    return {
        key: _of_draws(surface, value, draws.get(key)) for key, value in values.items() if key not in surface.parameters
    }


def _allocation(surface: SurfaceFit) -> dict[str, Estimate]:
    """N* ~ C^a and D* ~ C^(1-a), a = beta / (alpha + beta) for exponents alpha of size and beta of tokens."""
    a = allocation_exponent(surface, surface.parameters)
    drawn = None if surface.draws is None else allocation_exponent(surface, surface.draws)
    assert a is not None
    return {
        "size_exponent": _of_draws(surface, a, drawn),
        "token_exponent": _of_draws(surface, 1 - a, None if drawn is None else 1 - drawn),
    }


def _of_draws(surface: SurfaceFit, value: Any, draws: np.ndarray | None) -> Estimate:
    return estimate(float(value), draws, method="surface refitted to bootstrap draws by unit", spread=surface.spread)
