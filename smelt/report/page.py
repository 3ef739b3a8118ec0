"""An analysis, rows, a plan, run states and a prediction -> one HTML file: no script, no font, no address to fetch.

The answer stands first, in a sentence and a figure; then the numbers; then what a doubter would ask; then how it was
made. A grid that is not finished gets the same page and says so. `write` is all that the rest of smelt needs.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from smelt import ledger
from smelt.analysis import LOSS, compact, domain_reading
from smelt.errors import BadInput
from smelt.files import write_bytes, write_json, write_text
from smelt.ledger import Row
from smelt.prediction import score_prediction
from smelt.report import evidence, figures, style, tables

BESIDE = ("svg", "pdf", "csv", "parquet", "json")
DONE = ("finished", "diverged", "stale")
HEADINGS = ("Prediction", "Varies", "Fixed", "Found")
CAPTIONS = {
    "answer": "Left: every run of the grid, the minimum of each budget's parabola, and the frontier under the law of "
    "the verdict, with its 95 % band. Right: the share of compute that a variant saves where it reaches the same loss "
    "as the reference; an interval that includes 0 is no result.",
    "isoflop": "Each curve is one budget: same training FLOPs, different sizes. Stars are the minima of the parabolas.",
    "head_to_head": "The same runs budget by budget; all panels have the same height in nats.",
    "allocation": "Where the minima go with compute, and the power law through them.",
    "savings_by_law": "The saving under three frontiers: if they disagree, the answer is the law's and not the runs'.",
    "savings_by_domain": "The saving at the largest budget, in all domains and in each.",
    "pair_differences": "Negative: the variant has the lower loss than its partner of equal budget, size and seed. At "
    "each budget sizes stand from the smallest, left, to the largest.",
    "residuals": "A trend here is a law that bends where it should not.",
    "training_curves": "Mean training loss over stretches of equal length on this axis; runs of the grid only.",
    "prediction": "Bars are 95 % prediction intervals, ticks their middle; points are what was then measured.",
}


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
    runs_folder: Path | None = None,
    command: str | None = None,
    beside: Collection[str] = (),
) -> Path:
    """Write the page to `out` and return it.

    plan_rows: `plan.plan(...).rows`; empty where only committed rows are at hand. statuses: run_id ->
    `launch.folder.Status`. prediction: as kept by `prediction.write_prediction`, scored here. docstring: the
    experiment's. runs_folder: where metrics.jsonl of the runs lie. command: what reproduces the page. beside: which of
    `BESIDE` to write next to it: figures as svg or pdf, rows as csv or parquet, the analysis as json.
    """
    if unknown := sorted(set(beside) - set(BESIDE)):
        raise BadInput(f"cannot write {unknown[0]} beside a report: choose from {', '.join(BESIDE)}")
    if out.suffix != ".html":
        raise BadInput(f"a report is one .html file, got {out.name}")
    scored = None if prediction is None else score_prediction(prediction, rows)
    drawn = draw(analysis, scored, curves(runs_folder, plan_rows, rows))
    context = {
        "name": experiment_name,
        "analysis": analysis,
        "progress": progress(plan_rows, statuses, rows),
        "verdicts": list(analysis["headline"].values()),
        "pairs": [pair_sentence(name, analysis) for name in analysis["pairs"]],
        "docstring": sections(docstring),
        "figures": {name: style.inline(figure, name, CAPTIONS[name]) for name, figure in drawn.items()},
        "captions": CAPTIONS,
        "tables": _tables(analysis, rows, plan_rows, statuses, scored),
        "degenerate": degenerate(analysis),
        "domains": domain_reading(analysis),
        "scored": scored,
        "prediction": prediction,
        "law": (analysis["losses"][LOSS] or {}).get("method"),
        "command": command or f"smelt run {experiment_name}\nsmelt report {experiment_name}",
    }
    write_text(out, _template().render(context))
    _write_beside(out, drawn, rows, analysis, beside)
    return out


def draw(
    analysis: Mapping[str, Any], scored: Mapping[str, Any] | None, training: Sequence[Mapping[str, Any]]
) -> dict[str, Figure]:
    """All figures that there is something to draw for, by name."""
    variants = analysis["variants"]
    made = {
        "answer": figures.answer(analysis),
        "savings_by_law": figures.savings_by_law(analysis),
        "savings_by_domain": figures.savings_by_domain(analysis),
        "pair_differences": figures.pair_differences(analysis),
        "prediction": None if scored is None else figures.prediction(scored, variants),
        "isoflop": evidence.isoflop(analysis),
        "head_to_head": evidence.head_to_head(analysis),
        "allocation": evidence.allocation(analysis),
        "residuals": evidence.residuals(analysis),
        "training_curves": evidence.training_curves(training, variants),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def _tables(
    analysis: Mapping[str, Any],
    rows: Sequence[Row],
    plan_rows: Sequence[Mapping[str, Any]],
    statuses: Mapping[str, Any],
    scored: Mapping[str, Any] | None,
) -> dict[str, tables.Table]:
    num_failed = sum(status.state == "failed" for status in statuses.values()) if plan_rows else None
    made = {
        "savings": tables.savings(analysis),
        "exponents": tables.exponents(analysis),
        "minima": tables.minima(analysis),
        "match": tables.match(analysis),
        "seed_spread": tables.seed_spread(analysis),
        "device_time": tables.device_time(analysis, num_failed),
        "provenance": tables.provenance(analysis),
        "plan": tables.plan(plan_rows, statuses, rows),
        "troubles": tables.troubles(plan_rows, statuses, rows),
    }
    return made if scored is None else {**made, "prediction": tables.prediction(scored)}


def progress(
    plan_rows: Sequence[Mapping[str, Any]], statuses: Mapping[str, Any], rows: Sequence[Row]
) -> dict[str, Any]:
    """How much of the grid is done: num_done, num_cells (None without a plan), a sentence, and whether provisional."""
    by_id = {row["run_id"]: row for row in rows}
    grid = [cell for cell in plan_rows if cell["role"] == "grid"]
    if not grid:
        done = sum(row["role"] == "grid" for row in rows)
        return {"num_done": done, "num_cells": None, "provisional": False, "sentence": f"{done} runs of the grid"}
    states = [tables.state(cell, statuses, by_id.get(cell["run_id"])) for cell in grid]
    done = sum(state in DONE for state in states)
    stale = states.count("stale")
    provisional = done < len(grid)
    sentence = f"{'Provisional: ' if provisional else ''}{done} of {len(grid)} cells"
    if stale:
        sentence += f", {stale} of them stale (made by other code or from another corpus)"
    return {"num_done": done, "num_cells": len(grid), "provisional": provisional, "sentence": sentence}


def pair_sentence(variant: str, analysis: Mapping[str, Any]) -> str:
    """The paired difference in words, beside the spread of seeds."""
    pairs, spread = analysis["pairs"][variant], analysis["seed_spread"][LOSS]
    if pairs["mean_nats"] is None:
        return f"{variant}: no mean difference of pairs: {pairs['reason']}."
    mean = tables.interval(pairs["mean_nats"], 1, 1e3)
    text = (
        f"Without any law: in {pairs['num_lower']} of {pairs['num_pairs']} pairs {variant} ends with the lower loss; "
        f"the mean difference is {mean} millinats"
    )
    if spread["sd"] is None:
        return f"{text}; the spread of seeds is not known ({spread['reason']})."
    return (
        f"{text}, where one run spreads by {1e3 * spread['sd']:.1f} millinats over seeds "
        f"({spread['degrees_of_freedom']} degrees of freedom)."
    )


def degenerate(analysis: Mapping[str, Any]) -> list[str]:
    """A sentence a variant that has budgets without a minimum inside their sizes."""
    sentences = []
    for name, group in (analysis["losses"][LOSS] or {"groups": {}})["groups"].items():
        budgets = [compact(found["budget_flops"]) for found in group["minima"] if not found["inside"]]
        if budgets:
            which = "this budget enters" if len(budgets) == 1 else "these budgets enter"
            sentences.append(
                f"{name} has no minimum inside its sizes at {' and '.join(budgets)} FLOPs: {which} no frontier through "
                "minima."
            )
    return sentences


def sections(docstring: str) -> list[tuple[str, str]]:
    """An experiment's docstring as (heading, text): the question, then each of `HEADINGS` that it has."""
    if not docstring.strip():
        return []
    parts = re.split(rf"(?:^|\s{{2,}})({'|'.join(HEADINGS)})\s{{2,}}", docstring.strip(), flags=re.MULTILINE)
    found = [("Question", parts[0]), *zip(parts[1::2], parts[2::2], strict=True)]
    return [(heading, " ".join(text.split())) for heading, text in found if text.strip()]


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


def _write_beside(
    out: Path,
    drawn: Mapping[str, Figure],
    rows: Sequence[Row],
    analysis: Mapping[str, Any],
    beside: Collection[str],
) -> None:
    for kind in beside:
        if kind in ("csv", "parquet"):
            ledger.export(rows, out.with_name(f"results.{kind}"))
        elif kind == "json":
            write_json(out.with_name("analysis.json"), analysis)
        else:
            for name, figure in drawn.items():
                write_bytes(out.with_name(f"{name}.{kind}"), style.as_file(figure, kind))
