"""What `smelt power` found, as plain data -> one figure: what grids cost and tell, the chosen one, and how far it sees.

    cost          every grid that was tried: its FLOPs and the width (or saving) that was wanted, by kind
    runs          the chosen grid: size and tokens of each run, the optimum between them
    sight         the smallest saving that it can see against compute, beyond its budgets dashed

A grid that was judged alone has no first panel, and one group no third.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from smelt.report import style
from smelt.verdict import compact

KINDS = ("isoflop", "branches")
SIZE_LABELS = {"num_params": "parameters", "flops_per_token": "training FLOPs per token"}
WANTED_LABELS = {
    "smallest_saving": "smallest visible saving",
    "saving": "width of the saving's interval",
    "size": "relative width of the optimal size",
    "num_tokens": "relative width of the optimal tokens",
}
# Beyond this factor from the best a grid is no choice, and would squeeze those that are.
SHOWN_FACTOR = 20.0


def power(result: Mapping[str, Any]) -> Figure:
    """The panels that the result has data for, beside each other."""
    panels = [_cost] if result["candidates"] else []
    panels += [_runs, *([_sight] if result["curve"] else [])]
    with style.styled():
        width = style.WIDTH_INCHES * (len(panels) / 3) ** 0.5
        figure = Figure(figsize=(width, 3.6), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for draw, place in zip(panels, axes, strict=True):
            draw(place, result)
    return figure


def _cost(axes: Axes, result: Mapping[str, Any]) -> None:
    wanted = result["asked"]["wanted"]
    name = max(wanted, key=lambda one: result["candidates"][0]["widths"][one] / wanted[one])
    least = min(candidate["widths"][name] for candidate in result["candidates"])
    for kind in KINDS:
        of_kind = [c for c in result["candidates"] if c["design"]["kind"] == kind]
        shown = [c for c in of_kind if c["widths"][name] <= SHOWN_FACTOR * least]
        if not shown:
            continue
        shade = style.colour(KINDS, kind)
        for reaches in (False, True):
            part = [c for c in shown if c["reaches"] is reaches]
            axes.scatter(
                [c["cost_flops"] for c in part],
                [c["widths"][name] for c in part],
                s=13,
                marker=style.marker(KINDS, kind),
                facecolor=shade if reaches else "none",
                edgecolor=shade,
                linewidth=0.7,
                alpha=0.6,
            )
    best = result["candidates"][0]
    axes.plot(best["cost_flops"], best["widths"][name], "o", markersize=12, mfc="none", color=style.INK, zorder=5)
    axes.axhline(wanted[name], color=style.INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    costs = [c["cost_flops"] for c in result["candidates"]]
    heights = [min(c["widths"][name], SHOWN_FACTOR * least) for c in result["candidates"]] + [wanted[name]]
    axes.set_xlim(min(costs) / 1.2, max(costs) * 1.2)
    axes.set_ylim(min(heights) / 1.15, max(heights) * 1.15)
    _compute_ticks(axes)
    _plain_ticks(axes, percent=name in WANTED_LABELS)
    axes.set_title("What grids cost and tell")
    axes.set_xlabel("training FLOPs of all runs")
    axes.set_ylabel(WANTED_LABELS.get(name, f"width of the interval of {name}"))
    handles = [
        Line2D([], [], marker=style.marker(KINDS, kind), linestyle="", markersize=5, color=style.colour(KINDS, kind))
        for kind in KINDS
    ]
    handles += [
        Line2D([], [], color=style.INK, linewidth=1),
        Line2D([], [], marker="o", linestyle="", markersize=10, mfc="none", color=style.INK),
    ]
    axes.legend(handles, [*KINDS, "wanted", "chosen"], loc="lower left", handletextpad=0.6)


def _runs(axes: Axes, result: Mapping[str, Any]) -> None:
    grid = result["grid"]
    ladder, rows = grid["ladder"], grid["sizes"]
    shades = style.budget_colours([row["budget_flops"] for row in rows])
    for row in rows:
        sizes = [ladder[index] for index in row["indices"]]
        shade = shades[row["budget_flops"]]
        order = np.argsort(sizes)
        axes.plot(np.array(sizes)[order], np.array(row["num_tokens"])[order], "-", color=shade, linewidth=1, alpha=0.6)
        axes.plot(sizes, row["num_tokens"], "o", color=shade, markersize=5)
    optimal = [row["optimal_size"] for row in rows]
    per_unit = [row["num_tokens"][0] * ladder[row["indices"][0]] for row in rows]
    tokens = [product / size for product, size in zip(per_unit, optimal, strict=True)]
    axes.plot(optimal, tokens, "--", color=style.INK, linewidth=1.2)
    axes.annotate("optimum", (optimal[-1], tokens[-1]), xytext=(5, 5), textcoords="offset points", fontsize=8.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    all_tokens = [count for row in rows for count in row["num_tokens"]]
    for axis, values in ((axes.xaxis, ladder), (axes.yaxis, all_tokens)):
        style.log_axis(axis, min(values) / 1.3, max(values) * 1.3, most=5)
    axes.set_xlim(min(ladder) / 1.3, max(ladder) * 1.3)
    axes.set_ylim(min(all_tokens) / 1.3, max(all_tokens) * 1.3)
    if result["planned"]["design"] and result["planned"]["design"]["kind"] == "branches":
        for index, size in enumerate(ladder):
            horizons = [
                count for row in rows for i, count in zip(row["indices"], row["num_tokens"], strict=True) if i == index
            ]
            axes.plot([size, size], [axes.get_ylim()[0], max(horizons)], color=style.SOFT, linewidth=0.8, zorder=1)
    axes.set_title(f"The grid{'' if result['candidates'] else ' asked about'}, one group")
    axes.set_xlabel(SIZE_LABELS[grid["ladder_column"]])
    axes.set_ylabel("training tokens")


def _sight(axes: Axes, result: Mapping[str, Any]) -> None:
    compute, seen = (np.array(result["curve"][key]) for key in ("compute_flops", "smallest_saving"))
    largest = result["planned"]["largest_budget_flops"]
    inside = compute <= largest * (1 + 1e-9)
    shade = style.COLOURS[0]
    axes.plot(compute[inside], seen[inside], color=shade)
    axes.plot(compute[~inside], seen[~inside], color=shade, linestyle="--")
    at, smallest = result["planned"]["at_flops"], result["planned"]["smallest_saving"]
    axes.plot(at, smallest, "o", color=shade, markersize=6)
    text = f"{100 * smallest:.1f} %"
    axes.annotate(text, (at, smallest), xytext=(-4, 8), textcoords="offset points", ha="right", color=shade)
    axes.axvline(largest, color=style.SOFT, linewidth=0.9)
    axes.annotate(
        " largest budget",
        (largest, 0.97),
        xycoords=("data", "axes fraction"),
        va="top",
        fontsize=8.5,
        color=style.SOFT,
    )
    axes.set_xscale("log")
    axes.set_xlim(compute[0], compute[-1])
    _compute_ticks(axes)
    axes.set_ylim(0, min(1.0, 1.12 * max(*seen, smallest)))
    style.percent_axis(axes)
    axes.set_title("What it can see")
    axes.set_xlabel("training FLOPs")
    axes.set_ylabel("smallest visible saving")


def _compute_ticks(axes: Axes) -> None:
    low, high = axes.get_xlim()
    style.log_axis(axes.xaxis, low, high, most=4)
    axes.xaxis.set_major_formatter(lambda value, _: compact(value))


def _plain_ticks(axes: Axes, *, percent: bool) -> None:
    low, high = axes.get_ylim()
    style.log_axis(axes.yaxis, low, high, most=5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %" if percent else f"{value:.3g}")
