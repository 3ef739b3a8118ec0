"""An analysis, rows, a plan, run states and a prediction -> one HTML file: no script, no font, no address to fetch.

The answer stands first, in a sentence and a figure; then the numbers; then what a doubter would ask; then how it was
made. A grid that is not finished gets the same page and says so. `write_experiment` gathers what `write` needs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from smelt import cores, ledger
from smelt.analysis import LOSS, compact
from smelt.analysis import profiles as profiles_of
from smelt.errors import BadInput
from smelt.experiment import Experiment
from smelt.files import write_json, write_text
from smelt.grid import Cell
from smelt.launch.folder import Status, status
from smelt.ledger import Row
from smelt.plan import plan
from smelt.prediction import read_prediction, score_prediction
from smelt.report import evidence, figures, fit_figures, fits, flags, style, tables, words


def write(
    experiment_name: str,
    analysis: Mapping[str, Any],
    rows: Sequence[Row],
    plan_rows: Sequence[Mapping[str, Any]],
    statuses: Mapping[str, Any],
    prediction: Mapping[str, Any] | None,
    out: Path,
    *,
    docstring: str = "",
    profiles: Mapping[str, Mapping[str, Any]] | None = None,
    runs_folder: Path | None = None,
    command: str | None = None,
    files: Path | None = None,
    tables_folder: Path | None = None,
) -> Path:
    """Write the page to `out` and return it.

    plan_rows: `plan.plan(...).rows`; empty where only committed rows are at hand. statuses: run_id ->
    `launch.folder.Status`. prediction: as kept by `prediction.write_prediction`, scored here. docstring: the
    experiment's. profiles: `analysis.profiles`. runs_folder: where metrics.jsonl of the runs lie. command: what
    reproduces the page. files: a folder for the figures as svg and pdf, the rows as csv and parquet, and the analysis
    as json. tables_folder: one for every table as csv and tex.
    """
    if out.suffix != ".html":
        raise BadInput(f"a report is one .html file, got {out.name}")
    scored = None if prediction is None else score_prediction(prediction, rows)
    drawings = _drawings(analysis, scored, curves(runs_folder, plan_rows, rows), profiles or {})
    captions = words.captions(analysis, figures.frontier_kind(analysis))
    inlined = cores.results([partial(_inlined, drawing, name, captions) for name, drawing in drawings.items()])
    made = _tables(analysis, rows, plan_rows, statuses, scored, profiles or {})
    context = {
        "name": experiment_name,
        "analysis": analysis,
        "progress": words.progress(plan_rows, statuses, rows),
        "verdicts": list(analysis["headline"].values()),
        "pairs": [words.paired(name, analysis) for name in analysis["pairs"]],
        "docstring": words.sections(docstring),
        "figures": {name: svg for name, svg in zip(drawings, inlined, strict=True) if svg is not None},
        "captions": captions,
        "warnings": flags.warnings(analysis["warnings"], words.run_names(analysis)),
        "hangs_on": _hangs_on(analysis, profiles or {}),
        "tables": made,
        "degenerate": words.degenerate(analysis),
        "domains": words.by_domain(analysis),
        "scored": scored,
        "prediction": prediction,
        "law": (analysis["losses"][LOSS] or {}).get("method"),
        "command": command or f"smelt run {experiment_name}\nsmelt report {experiment_name}",
    }
    write_text(out, _template().render(context))
    if files is not None:
        _write_files(files, _made(drawings), rows, analysis)
    if tables_folder is not None:
        tables.write(made, tables_folder)
    return out


def write_experiment(
    experiment: Experiment,
    rows: Sequence[Row],
    analysis: Mapping[str, Any],
    out: Path,
    *,
    status_of: Callable[[Cell], Status] | None = None,
    prediction: Mapping[str, Any] | None = None,
    files: Path | None = None,
    tables_folder: Path | None = None,
) -> Path:
    """`write` for an experiment whose folder of runs is at hand, or whose rows are committed.

    status_of: the state of a cell; by default that of its folder, without telling stale ones apart. prediction: where
    the experiment's folder holds none.
    """
    states = {
        cell.run.run_id: status_of(cell) if status_of else status(experiment.folder / cell.run.run_id)
        for cell in experiment.grid.cells
    }
    # Rows know how often they read the training split, so its size need not be looked up.
    sizes = {row["data.corpus"]: round(row["num_tokens"] / row["epochs"]) for row in rows}
    num_train_tokens = {cell.run.data.corpus: sizes.get(cell.run.data.corpus) for cell in experiment.grid.cells}
    planned = plan(
        experiment.grid,
        num_train_tokens=num_train_tokens,
        calibration=None,
        num_workers=1,
        state_of=lambda cell: states[cell.run.run_id].state,
    )
    return write(
        experiment.name,
        analysis,
        rows,
        planned.rows,
        states,
        read_prediction(experiment.folder) or prediction,
        out,
        docstring=experiment.docstring,
        profiles=profiles_of(rows, analysis["reference"], delta=analysis["settings"]["delta"]),
        runs_folder=experiment.folder,
        files=files,
        tables_folder=tables_folder,
    )


def draw(
    analysis: Mapping[str, Any],
    scored: Mapping[str, Any] | None,
    training: Sequence[Mapping[str, Any]],
    profiles: Mapping[str, Mapping[str, Any]],
) -> dict[str, Figure]:
    """All figures that there is something to draw for, by name."""
    return _made(_drawings(analysis, scored, training, profiles))


Drawing = Callable[[], Figure | None]


def _made(drawings: Mapping[str, Drawing]) -> dict[str, Figure]:
    made = {name: drawing() for name, drawing in drawings.items()}
    return {name: figure for name, figure in made.items() if figure is not None}


def _inlined(drawing: Drawing, name: str, captions: Mapping[str, str]) -> Markup | None:
    figure = drawing()
    return None if figure is None else style.inline(figure, name, captions[name])


def _drawings(
    analysis: Mapping[str, Any],
    scored: Mapping[str, Any] | None,
    training: Sequence[Mapping[str, Any]],
    profiles: Mapping[str, Mapping[str, Any]],
) -> dict[str, Drawing]:
    variants, examined = analysis["variants"], analysis["examined"] or {"diagnostics": {}}
    names = words.run_names(analysis)
    diagnosed = {name: _named(found, names) for name, found in examined["diagnostics"].items() if found is not None}
    return {
        "frontiers": partial(figures.frontiers, analysis),
        "saving": partial(figures.saving, analysis),
        "savings_by_law": partial(figures.savings_by_law, analysis),
        "savings_by_domain": partial(figures.savings_by_domain, analysis),
        "pair_differences": partial(figures.pair_differences, analysis),
        "prediction": lambda: None if scored is None else figures.prediction(scored, variants),
        "isoflop": partial(evidence.isoflop, analysis),
        "head_to_head": partial(evidence.head_to_head, analysis),
        "allocation": partial(evidence.allocation, analysis),
        "residuals": partial(evidence.residuals, analysis),
        "training_curves": partial(evidence.training_curves, training, variants),
        **_of_groups(variants, diagnosed, profiles),
    }


def draw_fit(content: Mapping[str, Any], profiles: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    """The figures of a fit of anybody's table (`fitted.fit_table`) and of its profiles, by group and parameter; one
    of a group carries its name where there are several."""
    view = fits.view(content)
    drawings: dict[str, Drawing] = {
        "frontiers": lambda: figures.frontiers(view) if _has_compute(view) else None,
        "saving": partial(figures.saving, view),
        "savings_by_law": partial(figures.savings_by_law, view),
        "isoflop": lambda: evidence.isoflop(view) if _has_curves(view) else None,
        "residuals": lambda: evidence.residuals(view) if _has_compute(view) else None,
    }
    return _made(drawings | _of_groups(view["variants"], content["examined"]["diagnostics"], profiles))


def _of_groups(
    groups: Sequence[str],
    diagnosed: Mapping[str, Mapping[str, Any] | None],
    profiles: Mapping[str, Mapping[str, Any]],
) -> dict[str, Drawing]:
    """What the fit of each group hangs on."""
    drawings: dict[str, Drawing] = {}
    for name in groups:
        of, found = words.suffix(groups, name), diagnosed.get(name)
        drawings[f"profiles{of}"] = partial(fit_figures.profiles, list(profiles.get(name, {}).values()))
        if found is not None:
            drawings[f"residual_panels{of}"] = partial(fit_figures.residual_panels, found)
            drawings[f"leverage{of}"] = partial(fit_figures.leverage, found)
            drawings[f"largest_left_out{of}"] = partial(fit_figures.largest_left_out, found)
    return drawings


def _named(diagnosed: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Diagnostics whose runs have the names that people find them by."""
    held = diagnosed["largest_out"]
    if held is not None:
        held = {**held, "rows": [names.get(label, label) for label in held["rows"]]}
    return {**diagnosed, "labels": [names.get(label, label) for label in diagnosed["labels"]], "largest_out": held}


def _hangs_on(analysis: Mapping[str, Any], profiles: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By variant: its name, what tells its figures apart, sentences on its fit, and on it beside the reference."""
    found = []
    for name, parts in words.hangs_on(analysis).items():
        of_profiles = [flag for profile in profiles.get(name, {}).values() for flag in profile["warnings"]]
        found.append(
            {
                "name": name,
                "suffix": words.suffix(analysis["variants"], name),
                "sentences": [parts[part] for part in words.OF_ONE if part in parts],
                "compared": [parts[part] for part in words.OF_TWO if part in parts],
                "profile_warnings": [f"{flags.HEADS[flag['code']]}: {flag['message']}." for flag in of_profiles],
            }
        )
    return found


def _has_compute(view: Mapping[str, Any]) -> bool:
    return all(group["rows"]["budget_flops"] is not None for group in view["losses"][LOSS]["groups"].values())


def _has_curves(view: Mapping[str, Any]) -> bool:
    return any(group["minima"] for group in view["losses"][LOSS]["groups"].values())


def _tables(
    analysis: Mapping[str, Any],
    rows: Sequence[Row],
    plan_rows: Sequence[Mapping[str, Any]],
    statuses: Mapping[str, Any],
    scored: Mapping[str, Any] | None,
    profiles: Mapping[str, Mapping[str, Any]],
) -> dict[str, tables.Table]:
    num_failed = sum(status.state == "failed" for status in statuses.values()) if plan_rows else None
    made = {
        **tables.of_analysis(analysis, num_failed),
        "intervals": _intervals(analysis, profiles),
        "plan": tables.plan(plan_rows, statuses, rows),
        "troubles": tables.troubles(plan_rows, statuses, rows),
    }
    return made if scored is None else {**made, "prediction": tables.prediction(scored)}


def _intervals(analysis: Mapping[str, Any], profiles: Mapping[str, Mapping[str, Any]]) -> tables.Table:
    """Of floor and exponents, by each way that was taken."""
    losses = analysis["losses"][LOSS] or {"groups": {}}
    held = {name: {key: found["interval"] for key, found in of_group.items()} for name, of_group in profiles.items()}
    return fits.intervals(losses["groups"], analysis["examined"] or {"jackknives": {}}, held)


def curves(
    runs_folder: Path | None, plan_rows: Sequence[Mapping[str, Any]], rows: Sequence[Row]
) -> list[dict[str, Any]]:
    """Training losses of the grid's runs from their metrics.jsonl, of those that still lie there."""
    if runs_folder is None:
        return []
    cells = [(cell, cell["batch_tokens"]) for cell in plan_rows] or [
        (row, row["data.seq_len"] * row["data.batch_seqs"]) for row in rows
    ]
    found = []
    for cell, tokens_per_step in cells:
        path = runs_folder / cell["run_id"] / "metrics.jsonl"
        if cell["role"] != "grid" or not path.exists():
            continue
        steps, losses = _read_metrics(path)
        if len(steps) > 1:
            tokens = [(step + 1) * tokens_per_step for step in steps]
            labels = {name: cell[name] for name in ("run_id", "variant", "budget_flops", "size")}
            found.append({**labels, "num_tokens": tokens, "loss_nats": losses})
    return found


def _read_metrics(path: Path) -> tuple[list[int], list[float]]:
    steps, losses = [], []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break  # a run that was killed leaves half a last line
        steps.append(record["step"])
        losses.append(record["loss_nats"])
    return steps, losses


def _template() -> Any:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["compact"] = compact
    return environment.get_template("page.html")


def _write_files(folder: Path, drawn: Mapping[str, Figure], rows: Sequence[Row], analysis: Mapping[str, Any]) -> None:
    style.write(drawn, folder)
    for kind in ("csv", "parquet"):
        ledger.export(rows, folder / f"results.{kind}")
    write_json(folder / "analysis.json", analysis)
