"""Warnings of an analysis -> what a reader needs of them: a head in plain words, worst first, each said once.

A warning is a code and a message of its own, with the number and the mend; the message stays what it is. `HEADS` says
what a code is about to somebody who has not read how fits are tested. `TOUCHES_VERDICT` is what can change the verdict
or what it means, worst first; everything else is about the evidence behind it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from smelt.analysis import compact
from smelt.report import words

TOUCHES_VERDICT = (
    "laws_disagree",
    "verdict_not_of_surface",
    "frontiers_cross",
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
    "lower_minimum",
    "no_intervals",
    "draws_undecided",
    "budget_effect",
    "rows_not_independent",
    "extrapolation_missed",
    "residual_pattern",
    "outliers_decide",
    "influential_row",
    "outlier_rows",
    "optimum_outside",
    "run_left_out",
    "rows_left_out",
    "budget_missed",
    "duplicated_rows",
    "unpaired_runs",
    "exponent_implausible",
)

HEADS = {
    # the verdict, and what was compared
    "laws_disagree": "The kinds of frontier disagree",
    "verdict_not_of_surface": "The verdict is not the surface's",
    "frontiers_cross": "Which is better depends on the budget",
    "no_saving": "No saving can be given",
    "extrapolated": "Beyond the data",
    "extrapolated_far": "Far beyond the data",
    "unmatched_pairs": "The pairs are not matched",
    "unpaired_runs": "Runs without a partner",
    "mixed_corpora": "Several corpora",
    "mixed_conventions": "FLOPs counted in several ways",
    "mixed_code": "Several versions of the code",
    "mixed_devices": "Several kinds of device",
    "mixed_jax": "Several versions of jax",
    "repeated_data": "Training text was read again",
    # rows
    "not_fitted": "Not fitted",
    "run_left_out": "A run is left out",
    "rows_left_out": "Runs are left out",
    "runs_left_out": "Training curves are left out",
    "duplicated_rows": "Runs stand twice",
    "budget_missed": "A budget is missed",
    "flops_per_unit_varies": "FLOPs are not one multiple of size times tokens",
    "rows_taken_for_frontier": "Every row is taken for the best of its compute",
    "few_rows": "Few runs for the law",
    "few_budgets": "Few budgets",
    "few_groups": "Few budgets to leave out in turn",
    "few_runs": "Few sizes",
    "few_trunks": "Few trunks",
    "narrow_range": "A narrow range",
    "narrow_ratio": "Size and tokens grow together",
    # minima
    "too_few_sizes": "Few sizes at a budget",
    "wide_grid": "Sizes too far apart for one parabola",
    "flat_parabola": "A minimum that hardly shows",
    "opens_downward": "A curve without a minimum",
    "vertex_outside": "The minimum is not among the sizes trained",
    "minimum_left_out": "A budget's minimum is not used",
    "bias_beyond_interval": "The parabola's bias is larger than its interval",
    "pure_law_misses": "A line without a floor misses the minima",
    # the law's parameters
    "not_certified": "Not proven to be the best fit",
    "lower_minimum": "A better fit exists",
    "delta_not_settled": "Huber's threshold did not settle",
    "ill_conditioned": "Parameters are not told apart",
    "tied_parameters": "Two parameters are hardly told apart",
    "exponent_implausible": "An exponent that cannot be",
    "exponent_unsure": "An exponent is hardly resolved",
    "flat_profile": "A longer interval than its error says",
    "profile_not_converged": "A profile with gaps",
    "floor_not_identified": "No irreducible loss shows",
    "floor_unsure": "The irreducible loss could be zero",
    "shape_not_identified": "A curve that the runs do not show",
    # its intervals
    "no_intervals": "No interval can be given",
    "draws_not_converged": "Some refits failed",
    "draws_undecided": "Intervals of few runs",
    "under_covers": "An interval that is too narrow by its method",
    "jackknife_of_medians": "A jackknife of absolute residuals",
    # what it hangs on
    "outlier_rows": "Runs off the law",
    "outliers_decide": "The answer hangs on what is called an outlier",
    "influential_row": "One run moves the answer",
    "high_leverage": "Runs that decide their own prediction",
    "extrapolation_missed": "The law does not carry upwards",
    "residual_pattern": "The law bends where it should not",
    "uneven_scatter": "Runs scatter unevenly",
    "budget_effect": "Runs of a budget share an error",
    "rows_not_independent": "Runs of a size miss the law alike",
    "optimum_outside": "The law's best size was not trained",
    # training curves
    "mid_schedule": "Points from the middle of a schedule",
    "early_points": "Points from the warm-up",
    "lowest_curve_ends": "A run ends while it is the best",
    "curves_do_not_overlap": "Curves that do not meet",
    "held_by_an_end": "The end of the sizes holds the envelope",
    # accuracy from loss
    "no_bend": "No bend shows between loss and score",
    "no_slope": "A step would fit as well",
    "low_end_open": "The best score is not seen",
    "high_end_open": "The worst score is not seen",
    "midpoint_outside": "The middle of the curve was not seen",
    "at_chance": "Scores next to chance",
    # costs
    "cost_scatters": "Costs scatter",
    "cost_terms_left_out": "Costs on fewer terms",
    # plans
    "not_first_order": "Beyond what a plan can be trusted with",
    "noise_uncertain": "The noise is hardly known",
    "pairing_unknown": "What pairs share is not known",
    "law_misses": "The pilot's law misses its runs",
    "trunk_correlation_assumed": "What rows of a trunk share is assumed",
}

# Warnings that differ in numbers: where one stands ("": none is said), and the sentence for all of them with the least
# and the largest.
COMMON = {
    "extrapolated": (r"extrapolates ([\d.]+) times", "the saving extrapolates up to {1:g} times beyond the data"),
    "draws_not_converged": (r"([\d.]+)%", "up to {1:g} % of the bootstrap refits did not converge and are left out"),
    "flat_parabola": (
        r"is (-?[\d.e+-]+) standard",
        "the curvature is {0:g} to {1:g} standard errors: the minimum is not discernible",
    ),
    "opens_downward": (r"curvature (-?[\d.e+-]+)", "the parabola bends down and has no minimum; widen the sizes"),
    "narrow_range": (r"spans ([\d.]+) times", "columns span {0:g} to {1:g} times; an exponent needs 4 or more"),
    "floor_not_identified": ("", "runs, or minima, do not show an irreducible loss: extrapolate with care"),
    "floor_unsure": (
        r"that \w+ is ([\d.]+) rather",
        "a law without its floor fits as well as with {0:g} to {1:g}: do not extrapolate on it, and add runs at larger "
        "compute",
    ),
    "exponent_unsure": (
        r"error of ([\d.e+-]+):",
        "exponents have standard errors of {0:g} to {1:g}, above a quarter of each: hardly resolved; runs over a wider "
        "range narrow them most",
    ),
    "flat_profile": (
        r"ratio ([\d.e+-]+) of",
        "moved by three standard errors an exponent costs next to nothing: its interval is longer on that side than "
        "the standard error says; take the profile",
    ),
    "tied_parameters": (
        r"correlate by ([+-][\d.]+)",
        "estimates of two parameters correlate by {0:+g} to {1:+g}: the runs tell a combination of them and hardly "
        "each alone; widen the ranges, or quote predictions, not parameters",
    ),
}
SEVERAL = 3  # messages of one code from which the first stands for all
ABOUT_NO_BUDGET = ("laws_disagree", "verdict_not_of_surface", "frontiers_cross", "unmatched_pairs")


def warnings(found: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """An analysis's warnings as a reader needs them, worst first: code, head, text, places (variants with their
    budgets) and whether the verdict hangs on it. `names` are those of `words.run_names`."""
    by_code: dict[str, list[tuple[str, str | None, str | None]]] = {}
    for flag in found:
        code, name, text, budget = flag["code"], flag["variant"], flag["message"], None
        if name is not None:
            text = text.removeprefix(f"{name}: ")
            if code not in ABOUT_NO_BUDGET:
                budget, text = _without_budget(text)
        by_code.setdefault(code, []).append((words.named(text, names), name, budget))
    rank = {code: place for place, code in enumerate(TOUCHES_VERDICT)}
    entries = []
    for code in sorted(by_code, key=lambda code: rank.get(code, len(rank))):
        said = by_code[code]
        texts = list(dict.fromkeys(text for text, _, _ in said))
        if code in COMMON or (code not in rank and len(texts) >= SEVERAL):
            parts = [(_common(code, texts), said)]
        else:
            parts = [(text, [entry for entry in said if entry[0] == text]) for text in texts]
        entries += [
            {
                "code": code,
                "head": HEADS[code],
                "text": text,
                "places": _places(of_text),
                "touches_verdict": code in rank,
            }
            for text, of_text in parts
        ]
    return entries


def _without_budget(text: str) -> tuple[str | None, str]:
    """The budget that a warning names, and the warning without it."""
    at = re.search(r"\bat (\d[\d.e+]*) FLOPs:? ?", text)
    if at is None:
        return None, text
    return compact(float(at[1])), (text[: at.start()] + text[at.end() :]).strip()


def _places(said: Sequence[tuple[str, str | None, str | None]]) -> str:
    where: dict[str, list[str]] = {}
    for _, name, budget in said:
        if name is not None:
            where.setdefault(name, []).extend([] if budget is None else [budget])
    return "; ".join(
        f"{name} at {', '.join(dict.fromkeys(budgets))} FLOPs" if budgets else name for name, budgets in where.items()
    )


def _common(code: str, texts: Sequence[str]) -> str:
    """One sentence for all of these."""
    if len(texts) == 1:
        return texts[0]
    if code not in COMMON:
        return f"{texts[0]} (and {len(texts) - 1} more of this kind)"
    pattern, sentence = COMMON[code]
    numbers = [float(found[1]) for text in texts if pattern and (found := re.search(pattern, text))]
    return sentence.format(min(numbers), max(numbers)) if numbers else sentence
