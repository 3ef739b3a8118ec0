"""An analysis, a plan and a docstring -> the sentences of a report: what a figure shows, said once, in plain words.

Needs no matplotlib. The verdict's own sentence stands in the analysis (`headline`), since it is committed with it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from smelt.analysis import LOSS, compact
from smelt.ledger import Row
from smelt.report import tables

DONE = ("finished", "diverged", "stale")
HEADINGS = ("Prediction", "Varies", "Fixed", "Found")


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


def paired(variant: str, analysis: Mapping[str, Any]) -> str:
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
    """A sentence on every variant, or several that are alike, whose parabolas have no minimum inside their sizes."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, group in (analysis["losses"][LOSS] or {"groups": {}})["groups"].items():
        budgets = tuple(compact(found["budget_flops"]) for found in group["minima"] if not found["inside"])
        if budgets:
            alike.setdefault(budgets, []).append(name)
    return [
        f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} no minimum inside the sizes trained at "
        f"{' and '.join(budgets)} FLOPs: {'this budget enters' if len(budgets) == 1 else 'these budgets enter'} no "
        "frontier through minima."
        for budgets, names in alike.items()
    ]


def sections(docstring: str) -> list[tuple[str, str]]:
    """An experiment's docstring as (heading, text): the question, then each of `HEADINGS` that it has."""
    if not docstring.strip():
        return []
    parts = re.split(rf"(?:^|\s{{2,}})({'|'.join(HEADINGS)})\s{{2,}}", docstring.strip(), flags=re.MULTILINE)
    found = [("Question", parts[0]), *zip(parts[1::2], parts[2::2], strict=True)]
    return [(heading, " ".join(text.split())) for heading, text in found if text.strip()]


def by_domain(analysis: Mapping[str, Any]) -> str:
    """How the domains' savings agree with the overall one, in a sentence a variant."""
    sentences = []
    for variant, found in analysis["domains"].items():
        domains = {column: found[column] for column in found if column.startswith(f"{LOSS}.")}
        verdicts: dict[str, list[str]] = {}
        for column, domain in domains.items():
            verdicts.setdefault(domain["verdict"], []).append(column.removeprefix(f"{LOSS}."))
        words = {
            "less": "needs less compute in",
            "more": "needs more compute in",
            "unresolved": "is not resolved in",
            "unknown": "has no estimate in",
        }
        parts = [f"{words[verdict]} {', '.join(verdicts[verdict])}" for verdict in words if verdict in verdicts]
        if parts:
            sentences.append(f"{variant} {' and '.join(parts)}.")
    return " ".join(sentences)
