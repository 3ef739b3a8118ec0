"""What `smelt power` found, as plain JSON -> tables of text: the grids that were tried, the one chosen, what it tells.

    candidates   every grid that is kept, the cheapest that reach what is wanted first; only where one was sought
    runs         the chosen grid, a row a run
    widths       95 % intervals that it will give

It needs no matplotlib and computes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from smelt.report.tables import NONE, Table, flops, number, percent, short, si

SIZES = {"flops_per_token": "training FLOPs per token", "num_params": "parameters"}


def of_power(result: Mapping[str, Any]) -> dict[str, Table]:
    """All tables, by name."""
    found = {"runs": runs(result["grid"]), "widths": widths(result["planned"])}
    return {"candidates": candidates(result), **found} if result["candidates"] else found


def candidates(result: Mapping[str, Any]) -> Table:
    """Every grid that is kept, with the width of what was wanted and whether it reaches it."""
    wanted, rows = result["asked"]["wanted"], []
    for found in result["candidates"]:
        grid = found["design"]
        rows.append(
            [
                grid["kind"],
                *(
                    number(len(grid["budgets_flops"]), 0),
                    flops(grid["budgets_flops"][0]),
                    flops(grid["budgets_flops"][-1]),
                ),
                *(number(grid["num_sizes"], 0), short(grid["span"], 3), number(grid["seeds"], 0)),
                *(number(found["num_runs"], 0), flops(found["cost_flops"])),
                *(short(found["widths"][name], 3) for name in wanted),
                percent(found["smallest_saving"]),
                "yes" if found["reaches"] else "no",
            ]
        )
    of_grid = ("budgets", "smallest FLOPs", "largest FLOPs", "sizes", "span", "seeds", "runs", "all FLOPs")
    names = (*of_grid, *(f"{name} (wanted {short(width, 3)})" for name, width in wanted.items()), "sees")
    note = f"{len(rows)} of {result['num_candidates']} grids within the budget, the cheapest that reach first."
    return _made({"kind": False, **dict.fromkeys(names, True), "reaches": False}, rows, note)


def runs(grid: Mapping[str, Any]) -> Table:
    """Size and tokens of every run of one group, and the best size of its budget."""
    rows = [
        [flops(row["budget_flops"]), si(grid["ladder"][index]), si(tokens), si(row["optimal_size"])]
        for row in grid["sizes"]
        for index, tokens in zip(row["indices"], row["num_tokens"], strict=True)
    ]
    return _made(dict.fromkeys(("budget FLOPs", SIZES[grid["ladder_column"]], "tokens", "optimal size"), True), rows)


def widths(planned: Mapping[str, Any]) -> Table:
    """What the grid will tell: values as assumed, their intervals and how wide these are."""
    rows = []
    for name, width in planned["widths"].items():
        numbers = [width[key] for key in ("value", "low", "high", "width")]
        rows.append([name, *(NONE if value is None else short(value, 4) for value in numbers)])
    note = "low and high end 95 % intervals; the width of what is known by a factor is relative, of a saving its share."
    return _made({"quantity": False, **dict.fromkeys(("value", "low", "high", "width"), True)}, rows, note)


def _made(headings: Mapping[str, bool], rows: Sequence[Sequence[str]], note: str = "") -> Table:
    return Table(
        headings=tuple(headings), numeric=tuple(headings.values()), rows=tuple(tuple(row) for row in rows), note=note
    )
