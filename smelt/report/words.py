"""An analysis, a plan and a docstring -> the sentences of a report: what a figure shows, said once, in plain words.

Needs no matplotlib. The verdict's own sentence stands in the analysis (`headline`), since it is committed with it.
`flags` has the warnings.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from smelt import verdict
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
    corrected = any(minimum["inside"] for group in groups for minimum in group["minima_corrected"])
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
        + ("Stars are the minima of the parabolas." if inside else "No parabola has its minimum inside the sizes.")
        + (" Diamonds are the minima without the parabola's bias, by the surface." if corrected else ""),
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
        **_of_variants(analysis),
    }


def _of_variants(analysis: Mapping[str, Any]) -> dict[str, str]:
    """Captions of the figures of `hangs_on`, a variant each."""
    found: dict[str, str] = {}
    for name, diagnosed in (analysis["examined"] or {"diagnostics": {}})["diagnostics"].items():
        if diagnosed is None:
            continue
        of = suffix(analysis["variants"], name)
        if diagnosed["largest_out"]:
            found[f"largest_left_out{of}"] = (
                f"{name}: the runs of the largest budget against what the law, fitted without them, predicts: bars are "
                "95 % intervals of a run."
            )
        found[f"leverage{of}"] = (
            f"{name}: a run far to the right decides its own prediction, one far up or down lies off the law."
        )
        found[f"profiles{of}"] = (
            f"{name}: how the fit suffers where a parameter is held elsewhere. Below the dashed line a value is inside "
            "its 95 % interval; a curve that stays below it is a parameter that the runs do not bound."
        )
        found[f"residual_panels{of}"] = f"{name}: what the law leaves over; a pattern is named above its panel."
    return found


def suffix(variants: Sequence[str], name: str) -> str:
    """What tells a variant's figures from those of others; nothing where there is one variant."""
    if len(variants) < 2:
        return ""
    return f"_{list(variants).index(name)}_{re.sub(r'[^A-Za-z0-9]+', '-', name)}"


COLUMNS = {
    "num_params": "parameters",
    "num_tokens": "training tokens",
    "flops_per_token": "training FLOPs per token",
    "compute_flops": "training FLOPs",
    "compute": "size \u00d7 tokens",
    "tokens per size": "tokens per size",
}
SHAPES = {"slope": "a slope", "bend": "a bend", "spread": "an uneven scatter"}
PATTERN_LEVEL = 0.01  # below it, after correction for their number, a pattern is named: as the fit flags it


def run_names(analysis: Mapping[str, Any]) -> dict[str, str]:
    """run_id -> its parameters and budget, by which a person finds a run."""
    groups = (analysis["losses"][LOSS] or {"groups": {}})["groups"].values()
    return {
        run_id: f"{tables.si(size)} at {compact(budget)}"
        for group in groups
        for run_id, size, budget in zip(
            *(group["rows"][k] for k in ("label", "num_params", "budget_flops")), strict=True
        )
    }


def named(text: str, names: Mapping[str, str]) -> str:
    """The text with every run that `names` knows by its size and budget before its id."""
    return re.sub(r"\b[0-9a-f]{12}\b", lambda at: f"{names[at[0]]} ({at[0]})" if at[0] in names else at[0], text)


OF_ONE = ("largest_out", "floor", "runs", "patterns")
OF_TWO = ("shared", "crossing")


def hangs_on(analysis: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """By variant and part what its fit hangs on, a sentence or two each: `OF_ONE`, and `OF_TWO` for a variant that is
    compared. A part that was not asked has no sentence."""
    examined, losses, names = analysis["examined"], analysis["losses"][LOSS], run_names(analysis)
    found: dict[str, dict[str, str]] = {}
    for name in losses["groups"] if examined else []:
        diagnosed, floor = examined["diagnostics"][name], examined["floors"][name]
        parts = found[name] = {}
        if diagnosed is not None:
            parts["largest_out"] = _largest_out(diagnosed)
        if floor is not None:
            parts["floor"] = f"{_capital(floor['sentence'])}."
        if diagnosed is not None:
            parts["runs"] = _odd_runs(diagnosed, names)
            parts["patterns"] = _patterns(diagnosed)
        if shared := examined["shared"].get(name):
            parts["shared"] = _shared(shared, name, analysis["reference"])
        if crossing := losses["savings"].get(name, {}).get("crossing"):
            parts["crossing"] = f"{_capital(verdict.crossed(name, analysis['reference'], crossing))}."
    return {name: parts for name, parts in found.items() if parts}


def _shared(shared: Mapping[str, Any], name: str, reference: str) -> str:
    """Do the runs tell a variant's exponents from the reference's, and how far apart could they be?"""
    differences = shared["differences"][name]
    apart = ", ".join(f"{key} differs by {tables.significant(value, 2)}" for key, value in differences.items())
    answer = shared["sentence"].rpartition(": ")[2]
    return f"Exponents {', '.join(differences)} of {name} and {reference}: {answer}; {apart}."


def _capital(text: str) -> str:
    """A sentence's first letter as a capital; a name stays as it is written."""
    word = text.split()[0]
    return text if not word.isalpha() or len(word) == 1 else text[0].upper() + text[1:]


def _largest_out(diagnosed: Mapping[str, Any]) -> str:
    found = diagnosed["largest_out"]
    if found is None:
        return f"The largest budget was not left out: {diagnosed['reasons']['largest_out']}."
    off = sum(found["relative_error"]) / len(found["rows"])
    text = (
        f"Fitted without {found['what']} FLOPs, the law has {found['hits']} of the {len(found['rows'])} losses there "
        f"inside its 95 % intervals; they lie {tables.percent(abs(off), 2)} {'above' if off > 0 else 'below'} it on "
        f"average (p = {_p(found['p_value'])})"
    )
    return f"{text}: it does not carry upwards." if found["p_value"] < PATTERN_LEVEL else f"{text}."


def _p(value: float) -> str:
    return tables.short(value, 2)


def _odd_runs(diagnosed: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Which runs lie off the law, which moves it most, and how much one decides."""
    labels, at = diagnosed["labels"], diagnosed["without_worst"][0]["parameters"]
    odd = [named(labels[row], names) for row in diagnosed["outliers"]]
    text = "No run lies more than 5 robust standard deviations off the law"
    if odd:
        text = (
            f"{', '.join(odd)} {'lies' if len(odd) == 1 else 'lie'} more than 5 robust standard deviations off the law"
        )
    moves = {
        (name, row): abs(value)
        for name, values in diagnosed["influence"].items()
        for row, value in enumerate(values)
        if value is not None
    }
    if moves:
        name, row = max(moves, key=lambda key: moves[key])
        errors = diagnosed["influence"][name][row]
        without = at[name] - errors * diagnosed["standard_errors"][name]
        text += (
            f"; the one that moves it most is {named(labels[row], names)}: without it {_parameter(name)} goes "
            f"from {tables.short(at[name], 3)} to {tables.short(without, 3)}, {abs(errors):.1f} standard errors"
        )
    most = max(range(len(labels)), key=lambda row: diagnosed["leverage"][row])
    share = tables.percent(diagnosed["leverage"][most], 0)
    if diagnosed["high_leverage"]:
        return (
            f"{text}. {named(labels[most], names)} decides {share} of the law's own value there, more than three times "
            "the mean."
        )
    return f"{text}. No run decides more than {share} of the law's own value there."


def _parameter(name: str) -> str:
    return f"the {name.replace('_', ' ')}" if "_" in name else name


def _patterns(diagnosed: Mapping[str, Any]) -> str:
    """What residuals still know of sizes, tokens and budgets."""
    if "patterns" in diagnosed["reasons"]:
        return f"What is left over was not searched for patterns: {diagnosed['reasons']['patterns']}."
    seen = [pattern for pattern in diagnosed["patterns"] if pattern["p_adjusted"] < PATTERN_LEVEL]
    columns = [COLUMNS.get(column, column) for column in diagnosed["axes"]]
    text = f"What is left over shows no slope, bend or uneven scatter along {', '.join(columns)}"
    if seen:
        words = [
            f"{SHAPES[pattern['shape']]} along {COLUMNS.get(pattern['column'], pattern['column'])} "
            f"({tables.number(pattern['correlation'], 2)}, p = {_p(pattern['p_adjusted'])})"
            for pattern in seen
        ]
        text = f"What is left over shows {', '.join(words)}"
    effect = diagnosed["budget_effect"]
    if effect is not None:
        together = effect["p_value"] < PATTERN_LEVEL
        text += (
            f"; runs of one budget {'miss the law together' if together else 'do not clearly miss it together'} "
            f"(p = {_p(effect['p_value'])})"
        )
    return f"{text}."
