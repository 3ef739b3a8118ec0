"""Rows of a grid and cells that are not trained -> their losses with 95 % prediction intervals, kept before they train.

    runs/<experiment>/prediction.json      written once the grid is trained, before a predicted run has a row
    fits/<name>.prediction.json            the same beside a committed result

The law is the surface in training FLOPs per token and tokens, fitted to each variant's finished runs of the grid. An
interval holds what the parameters could be and what one new run scatters; it trusts the law's form outside the data.
A pair's difference has an interval of its own, from the residual differences of the grid's pairs.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt import analysis, fit, ledger
from smelt.errors import BadInput
from smelt.files import digest, read_json, write_json
from smelt.fit.result import estimate
from smelt.ledger import Row

if TYPE_CHECKING:
    from smelt.experiment import Experiment
    from smelt.grid import Grid

FILE = "prediction.json"
LAW = "flops_tokens"
COLUMNS = ("flops_per_token", "num_tokens")


def targets(grid: "Grid") -> list[dict[str, Any]]:
    """The grid's prediction cells as labels and the law's columns."""
    return [
        {
            "run_id": cell.run.run_id,
            "variant": cell.variant,
            "size": cell.size,
            "seed": cell.run.seed,
            "budget_flops": cell.budget_flops,
            "flops_per_token": grid.flops_per_token(cell),
            "num_tokens": cell.run.num_tokens,
        }
        for cell in grid.cells
        if cell.role == "prediction"
    ]


def predict(
    rows: Sequence[Row],
    cells: Sequence[Mapping[str, Any]],
    reference: str,
    *,
    draws: int = 1000,
    seed: int = 0,
    delta: float | str = "auto",
    widen: bool = True,
) -> dict[str, Any]:
    """Losses of `cells` (see `targets`), differences of their pairs and savings at their budgets, with intervals.

    `delta` is that of `fit.fit_surface`, `widen` that of `fit.bootstrap`: a prediction says by which it was made.
    What too few rows cannot predict is None with its reason. Raises BadInput without a finished run of the grid.
    """
    columns = analysis.table(rows)
    used = [row for row in rows if row["role"] == "grid" and row["outcome"] == "finished"]
    surfaces, reasons = _surfaces(used, [reference, *(cell["variant"] for cell in cells)], draws, seed, delta, widen)
    covered = max(row["train_flops"] for row in used)
    predicted = []
    for cell in cells:
        surface = surfaces.get(cell["variant"])
        point = None if surface is None else fit.predict(surface, {name: cell[name] for name in COLUMNS}, seed=seed)
        predicted.append(
            {
                **cell,
                "loss_nats": None if point is None else point.estimate,
                "extrapolation_flops": cell["flops_per_token"] * cell["num_tokens"] / covered,
                "warnings": [] if point is None else point.warnings,
                "reason": reasons.get(cell["variant"]),
            }
        )
    partners = {_pair(cell): cell for cell in cells if cell["variant"] == reference}
    differences = [
        {
            **{name: cell[name] for name in ("run_id", "variant", "size", "seed", "budget_flops")},
            "reference_run_id": partners[_pair(cell)]["run_id"],
            "difference_nats": _difference(used, surfaces, cell, partners[_pair(cell)], draws, seed),
        }
        for cell in cells
        if cell["variant"] != reference and _pair(cell) in partners
    ]
    budgets = sorted({cell["budget_flops"] for cell in cells})
    groups = fit.group_analysis(
        columns,
        reference,
        loss_column=analysis.LOSS,
        budgets_flops=budgets,
        draws=draws,
        seed=seed,
        delta=delta,
        widen=widen,
    )
    savings = {
        variant: [s for s in by_kind["surface"]["at_budgets"] or [] if s["budget_flops"] in budgets]
        for variant, by_kind in groups["savings"].items()
    }
    law = fit.FLOPS_TOKENS
    return fit.jsonable(
        {
            "reference": reference,
            "law": {"name": law.name, "equation": law.equation},
            "rows": {"num_rows": len(used), "largest_flops": covered, "digest": rows_digest(used)},
            "cells": predicted,
            "differences": differences,
            "savings": savings,
            "settings": {"draws": draws, "seed": seed, "delta": delta, "widen": widen, "confidence": 0.95},
        }
    )


def rows_digest(rows: Sequence[Row]) -> str:
    """Of run ids and losses of the rows that a prediction stands on."""
    return digest(sorted([row["run_id"], row[analysis.LOSS]] for row in rows))


def _pair(labels: Mapping[str, Any]) -> tuple:
    return labels["budget_flops"], labels["size"], labels["seed"]


def _surfaces(
    used: Sequence[Row], variants: Sequence[str], draws: int, seed: int, delta: float | str, widen: bool
) -> tuple[dict[str, fit.SurfaceFit], dict[str, str]]:
    """A surface a variant, drawn jointly over (budget, size) or trunks, and why a variant has none."""
    groups = {name: [row for row in used if row["variant"] == name] for name in dict.fromkeys(variants)}
    label_of = dict(zip((row["run_id"] for row in used), analysis.units(used), strict=True))
    units = {name: [label_of[row["run_id"]] for row in group] for name, group in groups.items()}
    surfaces, reasons = {}, {}
    counts = fit.joint_counts(units, draws=draws, seed=seed)
    for name, group in groups.items():
        columns = {column: [row[column] for row in group] for column in COLUMNS}
        try:
            surface = fit.fit_surface(columns, [row[analysis.LOSS] for row in group], LAW, delta=delta)
        except BadInput as error:
            reasons[name] = f"{name}: {error}"
            continue
        surfaces[name] = fit.bootstrap(surface, counts=counts[name], widen=widen)
    return surfaces, reasons


def _difference(
    used: Sequence[Row],
    surfaces: Mapping[str, fit.SurfaceFit],
    cell: Mapping[str, Any],
    partner: Mapping[str, Any],
    draws: int,
    seed: int,
) -> fit.Estimate:
    """Loss of `cell` minus loss of its partner: joint draws of both laws, and the scatter of the grid's pairs."""
    method = "prediction interval of joint bootstrap draws and the scatter of paired residuals"
    if cell["variant"] not in surfaces or partner["variant"] not in surfaces:
        return estimate(None, method=method, reason="one of the pair has no fitted law")
    own, other = surfaces[cell["variant"]], surfaces[partner["variant"]]
    points = [{name: np.array([labels[name]]) for name in COLUMNS} for labels in (cell, partner)]
    value = float(own.predict(points[0])[0] - other.predict(points[1])[0])
    residuals = []
    for surface, labels in ((own, cell), (other, partner)):
        group = [row for row in used if row["variant"] == labels["variant"]]
        residuals.append(dict(zip(map(_pair, group), surface.residuals_log, strict=True)))
    shared = sorted(residuals[0].keys() & residuals[1].keys())
    degrees = len(shared) - len(own.law.parameters)
    if degrees < 1:
        return estimate(value, method=method, reason=f"{len(shared)} pairs do not show how pairs scatter")
    paired = np.array([residuals[0][key] - residuals[1][key] for key in shared])
    scatter = math.sqrt(float(paired @ paired) / degrees) * float(other.predict(points[1])[0])
    noise = scatter * np.random.default_rng(seed).standard_t(degrees, size=draws)
    at_draws = [fit.predicted_loss(s.law, s.draws, p) for s, p in zip((own, other), points, strict=True)]
    return estimate(value, at_draws[0] - at_draws[1] + noise, method=method)


def write_prediction(experiment: "Experiment", rows: Sequence[Row]) -> Path | None:
    """Predict the experiment's prediction cells from `rows` and keep it in its folder; None where it has no such cell.

    Raises BadInput where a predicted run has a row already: what is known cannot be predicted.
    """
    cells = targets(experiment.grid)
    if not cells:
        return None
    path = experiment.folder / FILE
    known = {row["run_id"] for row in rows} & {cell["run_id"] for cell in cells}
    known |= {cell["run_id"] for cell in cells if (experiment.folder / cell["run_id"] / "row.json").exists()}
    if known:
        kept = f"{path} is kept as it is" if path.exists() else "a prediction made now would know the answer"
        raise BadInput(f"the predicted run {sorted(known)[0]} has a row: {kept}")
    prediction = predict(rows, cells, experiment.grid.reference)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    write_json(path, {"experiment": experiment.name, "written_at": now, **prediction})
    return path


def read_prediction(folder: Path) -> dict[str, Any] | None:
    """What `write_prediction` kept in an experiment's folder of runs, or None."""
    return read_json(folder / FILE) if (folder / FILE).exists() else None


def score_prediction(prediction: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """Hits and misses: is the measured loss (and the pair's difference) inside its prediction interval?

    hit is None where there is no measurement or no interval yet, with the reason. `made_before` says whether the
    prediction was written before each predicted run began (its end less its seconds), None where that is not known.
    """
    by_id = {row["run_id"]: row for row in rows}
    cells = []
    for cell in prediction["cells"]:
        row = by_id.get(cell["run_id"])
        measured, reason = _measured(row)
        cells.append(
            {
                **{name: cell[name] for name in ("run_id", "variant", "size", "seed", "budget_flops")},
                **_scored(cell["loss_nats"], measured, reason or cell["reason"]),
                "made_before": None if row is None else _made_before(prediction.get("written_at"), row),
            }
        )
    differences = []
    for pair in prediction["differences"]:
        own, why = _measured(by_id.get(pair["run_id"]))
        other, why_other = _measured(by_id.get(pair["reference_run_id"]))
        measured = None if own is None or other is None else own - other
        labels = {name: pair[name] for name in ("variant", "size", "seed", "budget_flops")}
        differences.append({**labels, **_scored(pair["difference_nats"], measured, why or why_other)})
    scored = [item["hit"] for item in (*cells, *differences) if item["hit"] is not None]
    late = any(cell["made_before"] is False for cell in cells)
    return {
        "cells": cells,
        "differences": differences,
        "num_scored": len(scored),
        "num_hits": sum(scored),
        "made_late": late,
        "sentence": _sentence(cells, differences, late),
    }


def _measured(row: Row | None) -> tuple[float | None, str | None]:
    if row is None:
        return None, "the run is not trained yet"
    if row[analysis.LOSS] is None:
        return None, f"the run has no loss: {analysis.why_null(row, analysis.LOSS)}"
    return row[analysis.LOSS], None


def _scored(predicted: Mapping[str, Any] | None, measured: float | None, reason: str | None) -> dict[str, Any]:
    ends = (None, None) if predicted is None else (predicted["low"], predicted["high"])
    hit = None
    if measured is not None and None not in ends:
        hit = bool(ends[0] <= measured <= ends[1])
    elif reason is None:
        reason = "the prediction has no interval"
    return {
        "predicted": None if predicted is None else predicted["value"],
        "low": ends[0],
        "high": ends[1],
        "measured": measured,
        "hit": hit,
        "reason": reason if hit is None else None,
    }


def _made_before(written_at: str | None, row: Row) -> bool | None:
    if written_at is None or row["total_secs"] is None:
        return None
    ended = datetime.datetime.fromisoformat(row["finished_at"])
    began = ended - datetime.timedelta(seconds=row["total_secs"])
    # Both times are kept to the second.
    return datetime.datetime.fromisoformat(written_at) <= began + datetime.timedelta(seconds=2)


def _sentence(cells: Sequence[Mapping[str, Any]], differences: Sequence[Mapping[str, Any]], late: bool) -> str:
    if not cells:
        return "Nothing was predicted."
    if all(cell["hit"] is None for cell in cells):
        return f"Not scored yet: {cells[0]['reason']}."
    sentences = []
    for flops in dict.fromkeys(cell["budget_flops"] for cell in cells):
        parts = [f"{cell['variant']} {_outcome(cell, 3)}" for cell in cells if cell["budget_flops"] == flops]
        parts += [
            f"difference of {pair['variant']} {_outcome(pair, 4)}"
            for pair in differences
            if pair["budget_flops"] == flops
        ]
        sentences.append(f"At {analysis.compact(flops)} FLOPs: {', '.join(parts)}.")
    if late:
        sentences.append("It was written after a predicted run had begun, so it is no prediction.")
    return " ".join(sentences)


def _outcome(item: Mapping[str, Any], digits: int) -> str:
    """hit or missed with the measured loss and its interval in nats, or why neither."""
    if item["hit"] is None:
        return f"not scored ({item['reason']})"
    measured, low, high = (
        f"{item[name]:.{digits}f}".replace("-", "\N{MINUS SIGN}") for name in ("measured", "low", "high")
    )
    return f"hit ({measured} in [{low}, {high}])" if item["hit"] else f"missed ({measured} outside [{low}, {high}])"


def rederived(committed: Mapping[str, Any], rows: Sequence[ledger.Row]) -> dict[str, Any]:
    """The prediction again from rows, for the same cells and settings."""
    names = ("run_id", "variant", "size", "seed", "budget_flops", *COLUMNS)
    cells = [{name: cell[name] for name in names} for cell in committed["cells"]]
    settings = {name: value for name, value in committed["settings"].items() if name != "confidence"}
    return predict(rows, cells, committed["reference"], **settings)
