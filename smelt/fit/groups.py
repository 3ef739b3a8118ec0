"""A table of runs in groups in; minima, allocations, surfaces, frontiers and savings over a reference out, as one dict.

The dict is plain JSON: numbers, lists, None with a reason beside it. Groups are drawn jointly: a run of one group
and its partner in another, named by an equal `pair` label at an equal budget, are in or out of a bootstrap draw
together and share correlated noise, so that what they have in common cancels in the savings. Call it once for each
loss column (validation, one domain, bits per byte).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, isoflop, laws, tables
from smelt.fit.frontier import Frontier, fit_frontier, surface_frontier, surface_optimum
from smelt.fit.result import Flag, jsonable
from smelt.fit.savings import savings
from smelt.fit.surface import SurfaceFit, bootstrap, fit_surface, predict

FRONTIER_KINDS = ("pure", "saturating", "surface")
CURVE_POINTS = 41
# A budget's runs end on whole steps; further from the nominal budget than this, an IsoFLOP curve is not one.
MAX_BUDGET_MISS = 0.02


def group_analysis(
    table: Mapping[str, Sequence],
    reference: str,
    *,
    loss_column: str = "loss_nats",
    law: laws.Law | str = "flops_tokens",
    fixed: Mapping[str, float] | None = None,
    flops_per_unit: float | None = None,
    budgets_flops: Sequence[float] = (),
    predict_rows: Mapping[str, Sequence] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Everything that a report shows of a grid of runs.

    `table` holds one list or array a column, one entry a run: group, budget_flops (nominal, a label), num_params,
    num_tokens, train_flops (as achieved) and `loss_column`; pair (the label of the size that matched runs of several
    groups share) and seed where there are any; and the law's further columns. Training FLOPs per token are
    train_flops / num_tokens; a column flops_per_token that says otherwise is refused.

    `law` is fitted to each group and its frontier taken under C = flops_per_token * num_tokens (`fixed` gives
    density for SMELT's law), or under C = flops_per_unit * num_params * num_tokens for a law in num_params.
    `budgets_flops` adds budgets to those of the table at which savings are given. `predict_rows` is a table of runs
    that the fits have not seen (group, num_params, num_tokens, train_flops, the loss where it is known): each is
    predicted from its group's surface, and is a hit where its loss lies in the interval.

    A loss that is None is a run without a measurement: it is left out and listed. Raises BadInput for a missing
    column, an unknown reference, and NaN or non-positive numbers; what a table has too few runs for is None in the
    result, with the reason under "reasons".
    """
    law = laws.law(law)
    rows, left_out, flags = _rows(table, loss_column, law)
    names = list(dict.fromkeys(rows["group"]))
    if reference not in names:
        raise BadInput(f"no run is of the group {reference!r}; choose one of {', '.join(map(str, names))}")
    names.sort(key=lambda name: name != reference)  # stable: the reference first, the others as they came
    by_group = {name: _selected(rows, np.flatnonzero(rows["group"] == name)) for name in names}
    flags += _pairing_flags(by_group, reference)
    all_budgets = sorted({float(b) for b in rows["budget_flops"]} | {float(b) for b in budgets_flops})

    reasons: dict[str, dict[str, str]] = {name: {} for name in names}
    shared: dict[str, str] = {}
    minima = _attempt(shared, "minima", isoflop.minima_of_groups, by_group, draws=draws, seed=seed)
    minima = minima or {name: [] for name in names}
    counts = intervals.joint_counts({name: by_group[name]["unit"] for name in names}, draws=draws, seed=seed)
    options = {"flops_per_unit": flops_per_unit, **(fixed or {})}
    frontiers: dict[str, dict[str, Frontier]] = {name: {} for name in names}
    surfaces: dict[str, SurfaceFit | None] = {}
    groups = {}
    for name in names:
        group, why = by_group[name], reasons[name]
        why.update(shared)
        covered = (float(group["train_flops"].min()), float(group["train_flops"].max()))
        surface = surfaces[name] = _attempt(why, "surface", _surface, group, law, counts[name])
        found = {}
        if surface is not None:
            found["surface"] = _attempt(
                why, "frontier surface", surface_frontier, surface, compute_range_flops=covered, **options
            )
        for kind in ("pure", "saturating"):
            found[kind] = _attempt(
                why, f"frontier {kind}", _through_minima, minima[name], saturating=kind == "saturating", seed=seed
            )
        frontiers[name] = {kind: frontier for kind, frontier in found.items() if frontier is not None}
        optima = []
        if surface is not None and "surface" in frontiers[name]:
            optima = [surface_optimum(surface, budget, **options) for budget in all_budgets]
        groups[name] = {
            "num_rows": len(group["loss_nats"]),
            "compute_range_flops": covered,
            "rows": {key: group[key] for key in ("label", "budget_flops", "num_params", "num_tokens", "loss_nats")},
            "minima": minima[name],
            "allocation": {
                quantity: _attempt(why, f"allocation {quantity}", isoflop.allocation, minima[name], quantity)
                for quantity in ("num_params", "num_tokens")
            },
            "surface": None if surface is None else surface.to_json(),
            "optima": optima,
            "frontiers": {kind: frontiers[name].get(kind) for kind in FRONTIER_KINDS},
            "frontier_curves": {kind: _band(f, all_budgets) for kind, f in frontiers[name].items()},
            "reasons": why,
        }
    compared: dict[str, Any] = {}
    for name in names[1:]:
        compared[name] = {"recommended": None}
        for kind in FRONTIER_KINDS:
            pair = frontiers[name].get(kind), frontiers[reference].get(kind)
            if None in pair:
                missing = name if pair[0] is None else reference
                reason = reasons[missing].get(f"frontier {kind}") or reasons[missing].get("surface") or "no frontier"
                compared[name][kind] = {"at_budgets": None, "curve": None, "reason": f"{missing}: {reason}"}
                continue
            # The surface is unbiased and covers in simulation; a pure law is biased wherever the loss saturates.
            if compared[name]["recommended"] in (None, "pure") or kind == "surface":
                compared[name]["recommended"] = kind
            compared[name][kind] = {
                "at_budgets": savings(*pair, all_budgets),
                "curve": _savings_curve(*pair, all_budgets),
                "reason": None,
            }
    return jsonable(
        {
            "reference": reference,
            "group_names": names,
            "loss_column": loss_column,
            "budgets_flops": all_budgets,
            "groups": groups,
            "savings": compared,
            "predictions": [] if predict_rows is None else _predictions(predict_rows, surfaces, loss_column, seed),
            "method": {
                "law": {"name": law.name, "equation": law.equation},
                "surface": "Huber (delta 1e-3) of log residuals, summed; (budget, pair) resampled jointly over groups",
                "minima": "parabola of the loss in ln size; noise pooled over budgets, correlated over matched runs",
                "minima_bias": isoflop.BIAS_NOTE,
                "confidence": 0.95,
                "num_draws": draws,
                "seed": seed,
            },
            "rows_used": len(rows["loss_nats"]),
            "rows_left_out": left_out,
            "warnings": flags,
        }
    )


def _rows(table: Mapping[str, Sequence], loss_column: str, law: laws.Law) -> tuple[dict, list[dict], list[Flag]]:
    needed = ("group", "budget_flops", "num_params", "num_tokens", "train_flops", loss_column)
    extra = tuple(c for c in law.columns if c not in (*needed, "flops_per_token"))
    for name in (*needed, *extra):
        if name not in table:
            raise BadInput(f"the table has no column {name!r}; give it, have {', '.join(table) or 'none'}")
    num_rows = len(table[loss_column])
    for name in table:
        if len(table[name]) != num_rows:
            raise BadInput(f"{name} has {len(table[name])} rows, {loss_column} {num_rows}; give one a run")
    losses = list(table[loss_column])
    kept = [i for i, value in enumerate(losses) if value is not None]
    labels = list(table["run_id"]) if "run_id" in table else list(range(num_rows))
    left_out = [
        {"row": i, "run_id": labels[i], "group": table["group"][i], "reason": f"{loss_column} is null"}
        for i in range(num_rows)
        if losses[i] is None
    ]
    if not kept:
        raise BadInput(f"no row of {num_rows} has a {loss_column}; there is nothing to fit")
    numbers = {name: [table[name][i] for i in kept] for name in (*needed[1:], *extra)}
    rows: dict[str, Any] = tables.positive_columns(numbers, list(numbers))
    rows["loss_nats"] = rows.pop(loss_column)
    rows["flops_per_token"] = rows["train_flops"] / rows["num_tokens"]
    flags = []
    if left_out:
        flags.append(Flag(code="rows_left_out", message=f"{len(left_out)} of {num_rows} rows have no {loss_column}"))
    if "flops_per_token" in table:
        given = tables.positive("flops_per_token", [table["flops_per_token"][i] for i in kept])
        ratio = rows["flops_per_token"] / given
        worst = int(np.argmax(np.abs(np.log(ratio))))
        if abs(np.log(ratio[worst])) > 0.02:
            raise BadInput(
                f"flops_per_token is {given[worst]:.6g} in row {kept[worst]}, where train_flops / num_tokens is "
                f"{rows['flops_per_token'][worst]:.6g}; give training FLOPs per token, forward and backward"
            )
    miss = np.abs(np.log(rows["train_flops"] / rows["budget_flops"]))
    if miss.max() > MAX_BUDGET_MISS:
        worst = int(np.argmax(miss))
        flags.append(
            Flag(
                code="budget_missed",
                message=f"row {kept[worst]} spent {rows['train_flops'][worst]:.4g} FLOPs of a budget of "
                f"{rows['budget_flops'][worst]:.4g}; its IsoFLOP curve mixes budgets",
            )
        )
    rows["group"] = np.array([str(table["group"][i]) for i in kept], dtype=object)
    rows["label"] = [labels[i] for i in kept]
    if "pair" in table:
        rows["cell"] = [str(table["pair"][i]) for i in kept]
    else:
        # Without labels nothing says which runs are partners: groups are then drawn apart.
        rows["cell"] = [f"{g}:{n:.12g}" for g, n in zip(rows["group"], rows["num_params"], strict=True)]
    rows["unit"] = [f"{b:.12g}|{c}" for b, c in zip(rows["budget_flops"], rows["cell"], strict=True)]
    checked = {k: rows[k] for k in ("budget_flops", "num_params", "num_tokens", "loss_nats")}
    checked["group"] = np.unique(rows["group"].astype(str), return_inverse=True)[1].astype(float)
    flags += tables.duplicates(checked)
    return rows, left_out, flags


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


def _selected(rows: Mapping, where: np.ndarray) -> dict:
    return {k: v[where] if isinstance(v, np.ndarray) else [v[i] for i in where] for k, v in rows.items()}


def _pairing_flags(by_group: Mapping[str, Mapping], reference: str) -> list[Flag]:
    own = set(by_group[reference]["unit"])
    flags = []
    for name, group in by_group.items():
        alone = len(set(group["unit"]) ^ own)
        if name != reference and alone:
            flags.append(
                Flag(
                    code="unpaired_runs",
                    message=f"{alone} cells (budget, pair) of {name} and {reference} have no partner: drawn alone",
                )
            )
    return flags


def _attempt(reasons: dict[str, str], part: str, make: Callable, *args: Any, **options: Any) -> Any:
    """What `make` returns, or None and its refusal under reasons[part]: a grid that is half run has a report too."""
    try:
        return make(*args, **options)
    except BadInput as error:
        reasons[part] = str(error)
        return None


def _surface(group: Mapping, law: laws.Law, counts: np.ndarray) -> SurfaceFit:
    return bootstrap(fit_surface(group, group["loss_nats"], law), counts=counts)


def _through_minima(minima: Sequence[isoflop.Minimum], *, saturating: bool, seed: int) -> Frontier:
    used = [m for m in minima if m.usable]
    if not used:
        raise BadInput("no budget has a minimum inside its sizes; a frontier needs 2 or more")
    draws = None
    if all(m.draws for m in used):
        draws = np.stack([m.draws["loss_min"] for m in used], axis=1)
    return fit_frontier(
        [m.budget_flops for m in used], [m.loss_min for m in used], saturating, loss_draws=draws, seed=seed
    )


def _band(frontier: Frontier, budgets: Sequence[float]) -> dict[str, Any]:
    """The frontier and its 95 % band over the budgets, for drawing."""
    compute = np.geomspace(min(budgets), max(budgets), CURVE_POINTS)
    draws = frontier.loss_draws(compute)
    low = high = None
    if draws is not None and not np.isnan(draws).all():
        usable = draws[~np.isnan(draws).any(axis=1)]
        low, high = np.quantile(usable, [0.025, 0.975], axis=0)
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
