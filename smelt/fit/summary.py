"""All fits of a table of runs in; one dict of plain JSON out: numbers, lists, None with a reason beside it.

    reference, group_names, loss_column, budgets_flops
    groups.<name>     rows, minima[], minima_corrected[] (one a budget), surface, optima[] (one a budget), frontiers,
                      frontier_curves, reasons; exponents of optimal size and tokens in compute: allocation by the
                      minima, allocation_corrected by those without their bias, allocation_surface by the surface
    savings.<name>    recommended, crossing (of the recommended frontiers), and per kind at_budgets[], curve, reason
    predictions[], method, rows_used, rows_left_out[], warnings[]

It fits nothing itself: every number is read off `groups.fit_groups` and what is asked of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.fit import answers, isoflop, tables
from smelt.fit.frontier import Frontier, surface_optimum
from smelt.fit.groups import FRONTIER_KINDS, Groups, attempt, fit_groups, is_frontier, recommended, why_no_frontier
from smelt.fit.result import jsonable, tail_share
from smelt.fit.savings import crossing, savings
from smelt.fit.surface import SurfaceFit, predict
from smelt.fit.traded import TradedFrontier

CURVE_POINTS = 41
QUANTITIES = ("num_params", "num_tokens")


def group_analysis(
    table: Mapping[str, Sequence],
    reference: str | None = None,
    *,
    predict_rows: Mapping[str, Sequence] | None = None,
    seed: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Everything that a report shows of a grid of runs: `fit_groups` with its options, written down.

    `predict_rows` is a table of runs that the fits have not seen (group, num_params, num_tokens, train_flops, the loss
    where it is known): each is predicted from its group's surface, and is a hit where its loss lies in the interval.
    """
    fits = fit_groups(table, reference, seed=seed, **options)
    predictions = [] if predict_rows is None else _predictions(predict_rows, fits.surfaces, fits.loss_column, seed)
    return {**written(fits), "predictions": jsonable(predictions)}


def written(fits: Groups) -> dict[str, Any]:
    """The fits as one dict of plain JSON; docs/fitting.md lists its keys."""
    reference, points = fits.reference, list(fits.points_flops)
    corrected, groups = _corrected(fits), {}
    for name in fits.names:
        group, why, surface = fits.rows[name], fits.reasons[name], fits.surfaces[name]
        covered, frontiers = fits.compute_range_flops[name], fits.frontiers[name]
        optima = []
        if surface is not None and "surface" in frontiers and not is_frontier(fits.law):
            optima = [surface_optimum(surface, point, **fits.frontier_options[name]) for point in points]
        compute = "budget_flops" if "budget_flops" in group else "train_flops"
        band = points if "budget_flops" in group else covered
        groups[name] = {
            "num_rows": len(group["loss_nats"]),
            "compute_range_flops": covered,
            "rows": {
                key: group[key] for key in ("label", compute, "num_params", "num_tokens", "loss_nats") if key in group
            },
            "minima": fits.minima[name],
            "minima_corrected": [_correction(found) for found in corrected[name]],
            "allocation": {
                quantity: attempt(why, f"allocation {quantity}", isoflop.allocation, fits.minima[name], quantity)
                for quantity in QUANTITIES
            },
            "allocation_corrected": {
                quantity: attempt(why, f"allocation corrected {quantity}", _allocation, corrected[name], quantity)
                for quantity in QUANTITIES
            },
            "allocation_surface": _of_surface(fits, name),
            "surface": None if surface is None else surface.to_json(),
            "optima": optima,
            "frontiers": {kind: _plain(frontiers.get(kind)) for kind in FRONTIER_KINDS},
            "frontier_curves": {kind: _band(f, band) for kind, f in frontiers.items()},
            "reasons": why,
        }
    return jsonable(
        {
            "reference": reference,
            "group_names": fits.names,
            "loss_column": fits.loss_column,
            "budgets_flops": points,
            "groups": groups,
            "savings": {name: _compared(fits, name) for name in fits.names[1:]},
            "predictions": [],
            "method": fits.method,
            "rows_used": sum(len(group["loss_nats"]) for group in fits.rows.values()),
            "rows_left_out": fits.rows_left_out,
            "warnings": fits.warnings,
        }
    )


def flags_of_group(group: Mapping[str, Any], diagnosed: Mapping[str, Any] | None) -> list[Mapping[str, str]]:
    """Warnings on a group as it is written, other than those on single minima: what `diagnosed` says of its surface
    (`Diagnostics` as plain JSON), and of what both say the latter, which says what to do."""
    of_surface = [] if group["surface"] is None else group["surface"]["warnings"]
    of_rows = [] if diagnosed is None else diagnosed["flags"]
    said = {flag["code"] for flag in of_rows}
    of_bias = [flag for found in group["minima_corrected"] for flag in found["warnings"]]
    fitted = [*group["allocation"].values(), *group["frontiers"].values()]
    return [
        *(flag for flag in of_surface if flag["code"] not in said),
        *of_rows,
        # What else is said of a corrected minimum is said of the raw one.
        *(flag for flag in of_bias if flag["code"] == "bias_beyond_interval"),
        *(flag for part in fitted if part is not None for flag in part["warnings"]),
    ]


def flags_of_groups(
    written: Mapping[str, Any], diagnosed: Mapping[str, Mapping[str, Any] | None]
) -> list[dict[str, Any]]:
    """Warnings on the fits of every group, each once: code, message, and the group, None where there is only one."""
    found: list[dict[str, Any]] = []
    for name, group in written["groups"].items():
        of_minima = [flag for minimum in group["minima"] for flag in minimum["warnings"]]
        for flag in (*of_minima, *flags_of_group(group, diagnosed[name])):
            about = name if len(written["groups"]) > 1 else None
            warning = {"code": flag["code"], "message": flag["message"], "group": about}
            if warning not in found:
                found.append(warning)
    return found


def flags_of_crossing(compared: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """The warning that the recommended frontiers cross inside the data of both. Where they cross outside, one of the
    two is the better throughout the data."""
    crossed = compared["crossing"]
    return [] if crossed is None else [flag for flag in crossed["warnings"] if flag["code"] == "frontiers_cross"]


def _corrected(fits: Groups) -> dict[str, list[isoflop.Correction]]:
    """The minima of every group without the parabola's bias; none where there are no minima."""
    if not any(fits.minima.values()):
        return {name: [] for name in fits.names}
    draws, seed = fits.method["num_draws"], fits.method["seed"]
    return isoflop.correct_minima_of_groups(fits.rows, fits.surfaces, draws=draws, seed=seed)


def _correction(found: isoflop.Correction) -> dict[str, Any]:
    known, minimum = found.reason is None, found.minimum
    return {
        "budget_flops": minimum.budget_flops,
        "inside": known and minimum.usable,
        "estimates": minimum.estimates if known else {},
        "size_bias_percent": found.size_bias_percent,
        "loss_bias_nats": found.loss_bias_nats,
        "warnings": minimum.warnings if known else (),
        "reason": found.reason,
    }


def _allocation(found: Sequence[isoflop.Correction], quantity: str) -> isoflop.Allocation:
    known = [correction.minimum for correction in found if correction.reason is None]
    if found and not known:
        raise BadInput(f"no minimum is corrected: {found[0].reason}")
    return isoflop.allocation(known, quantity)


def _of_surface(fits: Groups, name: str) -> dict[str, Any]:
    """Exponents of the law's size (parameters or FLOPs per token) and of tokens along the surface's frontier."""
    found = answers.exponents(fits, name)
    return {"size": found.get("size_exponent"), "num_tokens": found.get("token_exponent")}


def _compared(fits: Groups, name: str) -> dict[str, Any]:
    compared: dict[str, Any] = {"recommended": (kind := recommended(fits, name)), "crossing": None}
    if kind is not None:
        compared["crossing"] = crossing(fits.frontiers[name][kind], fits.frontiers[fits.reference][kind])
    points = list(fits.points_flops)
    for kind in FRONTIER_KINDS:
        pair = fits.frontiers[name].get(kind), fits.frontiers[fits.reference].get(kind)
        if None in pair:
            reason = why_no_frontier(fits, name if pair[0] is None else fits.reference, kind)
            compared[kind] = {"at_budgets": None, "curve": None, "reason": reason}
            continue
        compared[kind] = {
            "at_budgets": savings(*pair, points),
            "curve": _savings_curve(*pair, points),
            "reason": None,
        }
    return compared


def _plain(frontier: Frontier | TradedFrontier | None) -> Any:
    return frontier.to_json() if isinstance(frontier, TradedFrontier) else frontier


def _band(frontier: Frontier, budgets: Sequence[float]) -> dict[str, Any]:
    """The frontier and its 95 % band over the budgets, for drawing."""
    compute = np.geomspace(min(budgets), max(budgets), CURVE_POINTS)
    draws = frontier.loss_draws(compute)
    low = high = None
    if draws is not None and not np.isnan(draws).all():
        usable = draws[~np.isnan(draws).any(axis=1)]
        with np.errstate(invalid="ignore"):  # where the percentile itself is infinite the band has no end
            tail = tail_share(spread=frontier.spread)
            low, high = np.quantile(usable, [tail, 1 - tail], axis=0)
    return {"compute_flops": compute, "loss_nats": frontier.loss(compute), "low": low, "high": high}


def _savings_curve(target: Frontier, reference: Frontier, budgets: Sequence[float]) -> dict[str, Any]:
    compute = np.geomspace(min(budgets), max(budgets), CURVE_POINTS)
    found = [saving.estimate for saving in savings(target, reference, compute)]
    return {
        "compute_flops": compute,
        "value": [e.value for e in found],
        "low": [e.low for e in found],
        "high": [e.high for e in found],
    }


def _predictions(
    table: Mapping[str, Sequence], surfaces: Mapping[str, SurfaceFit | None], loss_column: str, seed: int
) -> list[dict[str, Any]]:
    measured = list(table[loss_column]) if loss_column in table else [None] * len(table["group"])
    names = [name for name in table if name not in ("group", loss_column) and not _is_text(table[name])]
    found = []
    for row, group in enumerate(table["group"]):
        if group not in surfaces:
            raise BadInput(f"row {row} to predict is of the group {group!r}; choose one of {', '.join(surfaces)}")
        columns = {name: float(tables.positive(name, [table[name][row]])[0]) for name in names}
        if {"train_flops", "num_tokens"} <= columns.keys():
            columns["flops_per_token"] = columns["train_flops"] / columns["num_tokens"]
        fit, loss = surfaces[group], measured[row]
        prediction = None if fit is None else predict(fit, columns, seed=seed)
        hit = None
        if loss is not None and prediction is not None and prediction.estimate.low is not None:
            hit = bool(prediction.estimate.low <= loss <= prediction.estimate.high)
        found.append({"group": group, "columns": columns, "prediction": prediction, "loss_nats": loss, "hit": hit})
    return found


def _is_text(values: Sequence) -> bool:
    return any(isinstance(value, str) or value is None for value in values)
