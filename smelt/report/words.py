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
            "unknown": "has no answer in",
        }
        parts = [f"{words[verdict]} {', '.join(verdicts[verdict])}" for verdict in words if verdict in verdicts]
        if parts:
            sentences.append(f"{variant} {' and '.join(parts)}.")
    return " ".join(sentences)


def captions(analysis: Mapping[str, Any], kind: str) -> dict[str, str]:
    """What every figure shows, by name; bands, intervals and minima only where there are any. `kind`: of the frontiers
    drawn first."""
    losses = analysis["losses"][LOSS] or {"groups": {}}
    groups = list(losses["groups"].values())
    inside = any(minimum["inside"] for group in groups for minimum in group["minima"])
    curves = [group["frontier_curves"][kind] for group in groups if group["frontier_curves"].get(kind)]
    shown = ["every run of the grid"]
    shown += ["the minimum of each budget's parabola"] if inside else []
    shown += ["the fitted frontiers"] if curves else []
    frontiers = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    bands = any(curve["low"] is not None for curve in curves)
    savings = [head["saving"]["estimate"] for head in analysis["headline"].values() if head["saving"]]
    saving = "No saving could be estimated."
    if savings:
        bounded = any(estimate["low"] is not None or estimate["high"] is not None for estimate in savings)
        saving = "The share of compute that a variant saves where it reaches the same loss as the reference; " + (
            "an interval that includes 0 is no result." if bounded else "without an interval no point is a result."
        )
    laws = any(group["allocation"]["num_params"] for group in groups)
    return {
        "frontiers": frontiers[0].upper() + frontiers[1:] + (", with 95 % bands." if bands else "."),
        "saving": saving,
        "isoflop": "Each curve is one budget: same training FLOPs, different sizes. "
        + ("Stars are the minima of the parabolas." if inside else "No parabola has its minimum inside the sizes."),
        "head_to_head": "The same runs budget by budget; all panels have the same height in nats.",
        "allocation": f"Where the minima go with compute{', and the power law through them' if laws else ''}.",
        "savings_by_law": "The saving under each kind of frontier: if they disagree, the answer is the law's and not "
        "the runs'.",
        "savings_by_domain": "The saving at the largest budget, in all domains and in each.",
        "pair_differences": "Negative: the variant has the lower loss than its partner of equal budget, size and seed. "
        "At each budget sizes stand from the smallest, left, to the largest.",
        "residuals": "A trend here is a law that bends where it should not.",
        "training_curves": "Mean training loss over stretches of equal length on this axis; runs of the grid only.",
        "prediction": "Bars are 95 % prediction intervals, ticks their middle; points are what was then measured.",
    }


# What can change the verdict or what it means, worst first; everything else is about the evidence behind it.
TOUCHES_VERDICT = (
    "laws_disagree",
    "verdict_not_of_surface",
    "no_saving",
    "extrapolated",
    "unmatched_pairs",
    "mixed_corpora",
    "mixed_conventions",
    "mixed_code",
    "mixed_devices",
    "mixed_jax",
    "not_fitted",
    "not_certified",
    "run_left_out",
    "rows_left_out",
    "budget_missed",
    "duplicated_rows",
    "unpaired_runs",
    "exponent_implausible",
)
# Warnings that differ in one number: where it stands, and the sentence for all of them with the least and the largest.
COMMON = {
    "draws_not_converged": (r"([\d.]+)%", "up to {1:g} % of the bootstrap refits did not converge and are left out"),
    "flat_parabola": (
        r"is (-?[\d.e+-]+) standard",
        "the curvature is {0:g} to {1:g} standard errors: the minimum is not discernible",
    ),
    "opens_downward": (r"curvature (-?[\d.e+-]+)", "the parabola bends down and has no minimum; widen the sizes"),
}


def warnings(analysis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The warnings as a reader needs them, worst first: code, text, places (variants with their budgets) and whether
    the verdict hangs on it. What is said of several variants or budgets is said once."""
    grouped: dict[tuple[str, str], dict[str, Any]] = {}
    for flag in analysis["warnings"]:
        code, name, text = flag["code"], flag["variant"], flag["message"]
        budget = None
        if name is not None:
            text = text.removeprefix(f"{name}: ")
            if code not in ("laws_disagree", "verdict_not_of_surface", "unmatched_pairs"):
                budget, text = _without_budget(text)
        key = (code, code if code in COMMON else text)
        entry = grouped.setdefault(key, {"code": code, "texts": [], "where": {}})
        entry["texts"].append(text)
        if name is not None:
            entry["where"].setdefault(name, []).extend([] if budget is None else [budget])
    found = [
        {
            "code": entry["code"],
            "text": _said_once(entry["code"], entry["texts"]),
            "places": "; ".join(
                f"{name} at {', '.join(dict.fromkeys(budgets))} FLOPs" if budgets else name
                for name, budgets in entry["where"].items()
            ),
            "touches_verdict": entry["code"] in TOUCHES_VERDICT,
        }
        for entry in grouped.values()
    ]
    rank = {code: place for place, code in enumerate(TOUCHES_VERDICT)}
    return sorted(found, key=lambda entry: rank.get(entry["code"], len(rank)))


def _without_budget(text: str) -> tuple[str | None, str]:
    """The budget that a warning names, and the warning without it."""
    at = re.search(r"\bat (\d[\d.e+]*) FLOPs:? ?", text)
    if at is None:
        return None, text
    return compact(float(at[1])), (text[: at.start()] + text[at.end() :]).strip()


def _said_once(code: str, texts: Sequence[str]) -> str:
    if code not in COMMON or len(set(texts)) == 1:
        return texts[0]
    pattern, sentence = COMMON[code]
    numbers = [float(found[1]) for text in texts if (found := re.search(pattern, text))]
    return sentence.format(min(numbers), max(numbers))
