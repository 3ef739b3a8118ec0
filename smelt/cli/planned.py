"""What `smelt power` found, as plain data, in; its sentences and tables for a terminal out.

Widths are of 95 % intervals from end to end; of what is known by a factor they are relative. Decides nothing.
"""

from collections.abc import Mapping
from typing import Any

from smelt import terminal

SHOWN = 8
MANY_BUDGETS = 15  # that many lines are no table of budgets: the runs do not stand at budgets
WORTH_SAYING = 1.1  # of a smallest saving that another objective would make smaller by as much


def compact(value: float) -> str:
    from smelt.verdict import compact

    return compact(value)


NAMES = {
    "allocation": "allocation exponent (size)",
    "frontier_exponent": "frontier exponent",
    "size": "optimal size",
    "num_tokens": "optimal tokens",
    "loss": "loss",
    "saving": "saving",
    "saving_at_largest": "saving at the largest budget",
}


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{0 if abs(value) >= 10 else digits}f} %"


def describe(design: Mapping[str, Any]) -> str:
    """A design for people, on one line."""
    budgets = design["budgets_flops"]
    ratio = (budgets[-1] / budgets[0]) ** (1 / (len(budgets) - 1))
    seeds = terminal.plural(design["seeds"], "seed")
    return (
        f"{design['kind']}: {len(budgets)} budgets {compact(budgets[0])} to {compact(budgets[-1])} (x{ratio:.3g}), "
        f"{design['num_sizes']} sizes over {design['span']:g}x, {seeds}"
    )


def sentences(result: Mapping[str, Any]) -> list[str]:
    """The answer first; what it rests on after it."""
    asked, found, grid = result["asked"], result["planned"], result["planned"]["design"]
    at, told = compact(asked["at_flops"]), list[str]()
    price = f"{found['num_runs']} runs, {compact(found['cost_flops'])} FLOPs"
    if asked["budget_flops"]:
        price += f", {_percent(found['cost_flops'] / asked['budget_flops'], 0)} of the budget"
    two = "two groups" if found["groups"] == 2 else "one group"
    what = "The grid that stands" if grid is None else f"Recommended is {describe(grid)}"
    if grid is not None and not result["candidates"]:
        what = f"Judged is {describe(grid)}"
    if result["reaches"] is False:
        off = result["candidates"][0]["ratio"]
        what = f"No grid within the budget reaches it. Nearest, at {off:.2f} times what was asked, is {describe(grid)}"
    told.append(f"{what}; {two}, {price}.")
    if found["smallest_saving"] is not None:
        text = (
            f"The smallest saving that it can see at {at} FLOPs (two-sided 5 % test, 80 % power) is "
            f"{_percent(found['smallest_saving'])}, or {_percent(found['smallest_excess'])} more compute."
        )
        if (by_interval := found["smallest_saving_by_interval"]) > WORTH_SAYING * found["smallest_saving"]:
            text += f" The intervals of so few rows are wider, and exclude 0 as often from {_percent(by_interval)} on."
        if ends := result["what_if"]["noise_low_high"]:
            text += f" Within what is known of the noise it is {_percent(ends[0])} to {_percent(ends[1])}."
        told.append(text)
        least = result["what_if"]["least_squares"]
        if not asked["objective"].startswith("squares") and found["smallest_saving"] > WORTH_SAYING * least:
            told.append(
                f"Fitted by least squares it would see {_percent(least)}: clipped residuals cost precision where "
                "noise is Gaussian, most where pairs share it; they pay where runs go astray."
            )
    if result["reaches"] is False and result["noise"]["seed_frac"] == 1:
        needed = found["cost_flops"] * result["candidates"][0]["ratio"] ** 2
        told.append(
            f"Widths fall with the root of the runs: by more seeds it would take about {compact(needed)} FLOPs."
        )
    if (high := result["what_if"]["trunk_correlation_high"]) is not None:
        told.append(f"Were rows of a trunk to share 0.9 of their variance, it would see {_percent(high)}.")
    if found["chance"] is not None:
        told.append(
            f"The saving of {_percent(asked['saving'])} that is assumed would be seen with a chance of "
            f"{_percent(found['chance'], 0)}."
        )
    return told + _other_kind(result)


def _other_kind(result: Mapping[str, Any]) -> list[str]:
    """What the cheapest grid of the kind that was not recommended costs, and what trunks rest on."""
    if not result["reaches"]:
        return []
    best = result["candidates"][0]
    other = next(
        (c for c in result["candidates"] if c["reaches"] and c["design"]["kind"] != best["design"]["kind"]), None
    )
    if other is None:
        return []
    return [
        f"The cheapest grid of {other['design']['kind']} that reaches it costs {compact(other['cost_flops'])} FLOPs "
        f"({other['cost_flops'] / best['cost_flops']:.2f} times as much)."
    ]


def lines(result: Mapping[str, Any]) -> list[str]:
    """Everything that the verb prints."""
    law, noise, asked, found = (result[key] for key in ("law", "noise", "asked", "planned"))
    numbers = ", ".join(f"{name} {value:.5g}" for name, value in law["parameters"].items())
    unit = "of ln loss" if noise["unit"] == "log" else "nats"
    told = [
        f"law    {law['equation']}: {numbers} ({law['source']})",
        f"noise  {noise['total']:.3g} {unit} a run, {_percent(noise['pair_correlation'], 0)} of its variance a pair's "
        f"({noise['source']})",
        f"fits   {asked['objective']}: standard errors {found['inflation']:.2f} times those of least squares",
        *(f"       {sentence}" for sentence in asked["assumed"]),
    ]
    if result["candidates"]:
        told += ["", *_ranking(result)]
    told += ["", *_grid_lines(result["grid"], found)]
    standing = result["standing"] if found["design"] is not None else None
    told += ["", _widths(found, standing, compact(asked["at_flops"]))]
    told += ["", *result["sentences"]]
    return [*told, *(f"warning ({flag['code']}): {flag['message']}" for flag in result["warnings"])]


def _ranking(result: Mapping[str, Any]) -> list[str]:
    wanted = result["asked"]["wanted"]
    shown, seen = [], set[str]()
    for candidate in result["candidates"][:SHOWN]:
        shown.append(candidate)
        seen.add(candidate["design"]["kind"])
    # The best of a kind that did not make the table is what a reader asks for next.
    shown += [c for c in result["candidates"][SHOWN:] if c["design"]["kind"] not in seen][:1]
    doubtful = not all(c["trusted"] for c in shown)
    rows = [
        [
            describe(c["design"]),
            str(c["num_runs"]),
            compact(c["cost_flops"]),
            *(f"{c['widths'][name]:.3g}" for name in wanted),
            _percent(c["smallest_saving"]),
            "yes" if c["reaches"] else f"x{c['ratio']:.2f}",
            *(["" if c["trusted"] else "rough"] if doubtful else []),
        ]
        for c in shown
    ]
    headings = ["design", "runs", "FLOPs", *(f"{name} (<= {width:g})" for name, width in wanted.items())]
    table = terminal.table([*headings, "sees", "reaches", *([""] if doubtful else [])], rows)
    return [f"{result['num_candidates']} grids within the budget, the cheapest that reach first", table]


def _grid_lines(grid: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    count = terminal.count
    size = {"flops_per_token": "training FLOPs per token", "num_params": "num_params"}[grid["ladder_column"]]
    if len(grid["sizes"]) > MANY_BUDGETS:
        tokens = [tokens for row in grid["sizes"] for tokens in row["num_tokens"]]
        return [
            f"{len(tokens)} runs: {size} {count(min(grid['ladder']))} to {count(max(grid['ladder']))}, "
            f"tokens {count(min(tokens))} to {count(max(tokens))}"
        ]
    rows = []
    for row in grid["sizes"]:
        ladder = [grid["ladder"][index] for index in row["indices"]]
        indices = sorted(set(row["indices"]))
        rows.append(
            [
                compact(row["budget_flops"]),
                f"{indices[0]} to {indices[-1]}",
                f"{count(min(ladder))} to {count(max(ladder))}",
                count(row["optimal_size"]),
                f"{count(max(row['num_tokens']))} to {count(min(row['num_tokens']))}",
            ]
        )
    lines = [terminal.table(["budget, FLOPs", "sizes", size, "optimal", "tokens"], rows)]
    if found["design"] is not None:
        taken = ", ".join(f"{row['budget_flops']:.4g}: {tuple(row['indices'])}" for row in grid["sizes"])
        how = "" if found["design"]["kind"] == "isoflop" else "  # one trunk a size, decayed at each of its budgets"
        lines += [f"ladder: {', '.join(count(size) for size in grid['ladder'])}", f"sizes={{{taken}}}{how}"]
    return lines


def _widths(found: Mapping[str, Any], standing: Mapping[str, Any] | None, at: str) -> str:
    rows = []
    for name, width in found["widths"].items():
        share = width["scale"] == "saving"
        numbers = [width[key] for key in ("value", "low", "high")]
        shown = [_percent(v) for v in numbers] if share else [terminal.estimate(v) for v in numbers]
        wide = _percent(width["width"]) if share or width["scale"] == "log" else f"{width['width']:.3g}"
        label = NAMES.get(name, name)
        label += f" at {at}" if name in ("size", "num_tokens", "loss", "saving") else ""
        row = [label, *shown, wide]
        if standing is not None:
            other = standing["widths"][name]["width"]
            row.append(_percent(other) if share or width["scale"] == "log" else f"{other:.3g}")
        rows.append(row)
    headings = ["quantity", "value", "95 % low", "high", "width"]
    return terminal.table(headings if standing is None else [*headings, "the standing grid's"], rows)
