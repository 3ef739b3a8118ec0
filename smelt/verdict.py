"""A saving and the runs behind it -> the verdict in a word and in sentences that a reader without the code understands.

    less, more    the variant needs less or more compute: the 95 % interval excludes 0
    unresolved    the interval includes 0: one signed number is said, and no direction
    unknown       there is no interval: no number is said, but what is missing

The sentences take parts of `analysis.analyse` and change no number in them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

KIND_NAMES = {
    "surface": "surface of all runs",
    "saturating": "minima, with a floor",
    "pure": "minima, no floor",
}
MIN_BUDGETS, MIN_SIZES = 3, 5  # below them a frontier with a floor, and the noise about a parabola, are not to be had
FAR = 10.0  # times beyond the sizes trained, where a parabola's vertex is no number of parameters any more


def compact(value: float) -> str:
    """A count in three figures or fewer for people: 3e12, 1.5e11."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def percent(value: float | None, *, signed: bool = False) -> str:
    """A share as a percentage without its sign of per cent; `signed` writes a plus too."""
    if value is None:
        return "unbounded"
    return f"{100 * value:{'+' if signed else ''}.1f}".replace("-", "\N{MINUS SIGN}")


def word(estimate: Mapping[str, Any]) -> str:
    """The verdict of an estimated saving; see the module."""
    low, high = estimate["low"], estimate["high"]
    if low is None and high is None:
        return "unknown"
    if low is not None and low > 0:
        return "less"
    if high is not None and high < 0:
        return "more"
    return "unresolved"


def disagreement(estimates: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What the kinds of frontier say where they differ in sign: a clause, or None. `estimates` is kind -> saving."""
    values = {kind: estimates[kind]["value"] for kind in KIND_NAMES if kind in estimates}
    known = {kind: value for kind, value in values.items() if value is not None}
    if len({value > 0 for value in known.values()}) < 2:
        return None
    return ", ".join(f"{KIND_NAMES[kind]}: {percent(value, signed=True)} %" for kind, value in known.items())


def sentence(
    variant: str, reference: str, saving: Mapping[str, Any], estimates: Mapping[str, Mapping[str, Any]]
) -> str:
    """The verdict of a saving that has an interval. `estimates` holds the saving under every kind of frontier."""
    estimate = saving["estimate"]
    value, low, high = estimate["value"], estimate["low"], estimate["high"]
    verdict, at = word(estimate), f"at {compact(saving['budget_flops'])} FLOPs"
    differing = disagreement(estimates)
    if verdict == "unresolved":
        interval = f"[{percent(low, signed=True)}, {percent(high, signed=True)}]"
        text = (
            f"Not resolved: {variant} saves {percent(value)} % {interval} of {reference}'s compute {at} "
            "(below 0 it needs more)."
        )
        return text if differing is None else f"{text} The kinds of frontier disagree in sign ({differing})."
    ends = (low, high) if verdict == "less" else (None if high is None else -high, None if low is None else -low)
    but = "" if differing is None else f", but the kinds of frontier disagree in sign ({differing})"
    return (
        f"{variant} needs {percent(value if verdict == 'less' else -value)} % [{percent(ends[0])}, {percent(ends[1])}] "
        f"{verdict} compute than {reference} for the same loss {at}. Resolved: the 95 % interval excludes 0{but}."
    )


def no_answer(variant: str, why: str, estimates: Mapping[str, Mapping[str, Any]]) -> str:
    """The sentence where there is no interval: what is missing, and no number."""
    text = f"No answer yet on {variant}: {why}."
    return text if disagreement(estimates) is None else f"{text} The kinds of frontier disagree in sign."


def lacking(
    groups: Mapping[str, Mapping[str, Any]], variant: str, reference: str, saving: Mapping[str, Any] | None
) -> str:
    """What `variant` and `reference` lack for an interval: budgets, sizes, minima inside them, or a better fit."""
    for name in (variant, reference):
        if name not in groups:
            return f"{name} has no finished run of the grid"
    shared = sorted(set.intersection(*(set(groups[name]["rows"]["budget_flops"]) for name in (variant, reference))))
    if not shared:
        return f"{variant} and {reference} have no budget in common"
    num_budgets, num_sizes = len(shared), min(_num_sizes(groups[name], shared) for name in (variant, reference))
    add = [f"budgets ({MIN_BUDGETS} or more)"] if num_budgets < MIN_BUDGETS else []
    add += [f"sizes ({MIN_SIZES} or more)"] if num_sizes < MIN_SIZES else []
    design = f"{_count(num_budgets, 'budget')} x {_count(num_sizes, 'size')}"
    gives = "gives" if num_budgets == num_sizes == 1 else "give"
    if add:
        return f"{design} {gives} no interval; add {' and '.join(add)}"
    for name in (variant, reference):
        inside = sum(minimum["inside"] for minimum in groups[name]["minima"])
        if inside < MIN_BUDGETS:
            return f"{name} has a minimum inside its sizes at {inside} of {num_budgets} budgets; widen the sizes"
    if saving is not None and saving["estimate"]["value"] is None:
        if saving["reference_flops"] is None:
            return f"{reference}'s fitted frontier never reaches {variant}'s loss; add larger budgets"
        return f"{reference}'s frontier reaches {variant}'s loss only far beyond the budgets trained; add budgets"
    return f"{design} {gives} no interval that holds: too many refits fail; add budgets, sizes or seeds"


def _num_sizes(group: Mapping[str, Any], budgets: Sequence[float]) -> int:
    """The fewest sizes at any of these budgets."""
    rows = list(zip(group["rows"]["budget_flops"], group["rows"]["num_params"], strict=True))
    return min(len({size for at, size in rows if at == budget}) for budget in budgets)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def note(kind: str, why_no_surface: str) -> str:
    """Which frontier carries the verdict where it is not the surface, and why, for the reader."""
    return (
        f"This is the saving between the minima of the budgets ({KIND_NAMES[kind]}). The surface of all runs, which "
        f"would come first, does not carry the verdict: {why_no_surface}."
    )


def crossed(variant: str, reference: str, crossing: Mapping[str, Any]) -> str:
    """Where the frontiers of the two cross, as `fit.crossing` found it, and what follows; or why they do not."""
    compute, times = crossing["compute"], crossing["extrapolation"]
    if times is None:
        return compute["reason"].replace("the target's", f"{variant}'s").replace("the reference's", f"{reference}'s")
    text = f"{variant}'s frontier and {reference}'s"
    if compute["value"] is None:
        return f"{text} do not cross near the budgets trained, but {times:.3g} times outside them"
    text += f" cross at {compact(compute['value'])} FLOPs"
    if times > 1 + 1e-6:
        return f"{text}, {times:.3g} times outside the budgets trained"
    if not is_bounded(compute):
        return f"{text} as fitted, but the runs do not tell where, and so not which of the two is the better one"
    above, below = (variant, reference) if crossing["better_above"] else (reference, variant)
    interval = f"[{compact(compute['low'])}, {compact(compute['high'])}]"
    return f"{text} {interval}: below it {below} is the better one, above it {above}, whatever a single saving says"


def is_bounded(compute: Mapping[str, Any]) -> bool:
    """Whether an estimated compute has an interval that ends on both sides; one at 0 or at infinity is no end."""
    return compute["low"] is not None and compute["high"] is not None and compute["low"] > 0


def flagged(flag: Mapping[str, str], minimum: Mapping[str, Any]) -> str:
    """A warning of an IsoFLOP minimum; a vertex outside the sizes is said by its side, far off without a number."""
    if flag["code"] != "vertex_outside":
        return flag["message"]
    smallest, largest = minimum["size_range"]
    vertex = minimum["num_params_opt"]  # None where it is beyond any number
    below = "smaller" in flag["message"]
    near = vertex is not None and smallest / FAR <= vertex <= largest * FAR
    side = "below the smallest size" if below else "above the largest size"
    number = f" ({vertex:.3g} parameters)" if near else ""
    head = flag["message"].partition(" the minimum")[0]
    return (
        f"{head} the minimum lies {'' if near else 'far '}{side}{number}; add {'smaller' if below else 'larger'} sizes"
    )
