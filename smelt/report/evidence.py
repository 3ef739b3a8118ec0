"""An analysis -> figures of what stands behind the answer, one function each: the runs, their curves, what laws miss.

    isoflop, head_to_head   the IsoFLOP curves by variant, and by budget with the variants on one pair of axes
    allocation              where their minima go with compute
    residuals               what the fitted surfaces leave over
    training_curves         the runs themselves

Every function takes plain data and returns a Figure, or None where there is nothing to draw. Intervals are 95 %.
Losses are in nats per token where the data says nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from smelt.analysis import LOSS, compact
from smelt.report import style
from smelt.report.tables import label_of

Analysis = Mapping[str, Any]
CORRECTED: dict[str, Any] = {"marker": "D", "linestyle": "", "markersize": 8, "markerfacecolor": "none", "zorder": 6}


def isoflop(analysis: Analysis) -> Figure | None:
    """IsoFLOP curves, a panel a variant on shared axes; stars are minima with their intervals, diamonds those without
    the parabola's bias."""
    losses = analysis["losses"][LOSS]
    if losses is None:
        return None
    names, shades = list(losses["groups"]), style.budget_colours(losses["budgets_flops"])
    with style.styled():
        figure, panels = style.panels(len(names), 4.0, share=True, most=2)
        sizes = [size for group in losses["groups"].values() for size in group["rows"]["num_params"]]
        for axes, name in zip(panels, names, strict=True):
            group, ends = losses["groups"][name], {}
            for minimum in group["minima"]:
                budget = minimum["budget_flops"]
                at, loss = _of_budget(group, budget)
                axes.plot(at, loss, "o", color=shades[budget], markersize=4.5, zorder=3)
                _parabola(axes, minimum, at, loss, shades[budget])
                ends[f"{compact(budget)} FLOPs"] = (at[-1], loss[-1], shades[budget])
            for corrected in group["minima_corrected"]:
                if corrected["inside"]:
                    size, low = (corrected["estimates"][key]["value"] for key in ("num_params_opt", "loss_min"))
                    axes.plot(size, low, color=shades[corrected["budget_flops"]], **CORRECTED)
            axes.set_xscale("log")
            axes.set_title(name, color=style.colour(analysis["variants"], name))
            axes.set_xlabel(label_of(analysis, "size"))
            style.log_axis(axes.xaxis, min(sizes), max(sizes))
            for label, (x, y, shade) in ends.items():
                axes.annotate(
                    label, (x, y), xytext=(7, 0), textcoords="offset points", va="center", color=shade, fontsize=8.5
                )
        panels[0].set_xlim(min(sizes) / 1.25, max(sizes) * 2.0)
        for axes in panels:
            axes.set_ylabel(label_of(analysis, "loss"))
            axes.label_outer()
        minima = [minimum for group in losses["groups"].values() for minimum in group["minima"]]
        inside = [minimum for minimum in minima if minimum["inside"]]
        handles = []
        if inside:
            bounded = any(minimum["estimates"]["num_params_opt"]["low"] is not None for minimum in inside)
            label = "minimum, 95 % interval" if bounded else "minimum, without an interval"
            handles.append(Line2D([], [], marker="*", color=style.SOFT, linestyle="", markersize=11, label=label))
        if any(found["inside"] for group in losses["groups"].values() for found in group["minima_corrected"]):
            handles.append(Line2D([], [], color=style.SOFT, label="without the parabola's bias", **CORRECTED))
        if len(inside) < len(minima):
            label = "no minimum inside the sizes"
            handles.append(Line2D([], [], color=style.SOFT, linestyle=":", label=label))
        figure.legend(handles=handles, loc="outside upper right", ncols=3)
    return figure


def _of_budget(group: Mapping[str, Any], budget: float) -> tuple[np.ndarray, np.ndarray]:
    rows = group["rows"]
    kept = np.array(rows["budget_flops"]) == budget
    at, loss = np.array(rows["num_params"])[kept], np.array(rows["loss_nats"])[kept]
    order = np.argsort(at)
    return at[order], loss[order]


def _parabola(axes: Axes, minimum: Mapping[str, Any], at: np.ndarray, loss: np.ndarray, shade: Any) -> None:
    if minimum["coefficients"] is None:
        return
    grid = np.geomspace(at[0] / 1.06, at[-1] * 1.06, 80)
    constant, linear, square = minimum["coefficients"]
    values = constant + linear * np.log(grid) + square * np.log(grid) ** 2
    axes.plot(grid, values, color=shade, linewidth=1.4, linestyle="-" if minimum["inside"] else ":")
    if not minimum["inside"]:
        return
    size, low = minimum["estimates"]["num_params_opt"], minimum["estimates"]["loss_min"]
    ends = [None if v is None else min(max(v, grid[0]), grid[-1]) for v in (size["low"], size["high"])]
    axes.errorbar(
        size["value"],
        low["value"],
        xerr=style.errors(size["value"], *ends),
        yerr=style.errors(low["value"], low["low"], low["high"]),
        fmt="none",
        ecolor=shade,
        elinewidth=1.3,
        zorder=4,
    )
    axes.plot(size["value"], low["value"], "*", color=shade, mec="white", mew=0.6, markersize=12, zorder=5)


def head_to_head(analysis: Analysis) -> Figure | None:
    """The same curves, a panel a budget: variants on one pair of axes, all panels of one height in nats."""
    losses, names = analysis["losses"][LOSS], analysis["variants"]
    if losses is None:
        return None
    budgets = [b for b in losses["budgets_flops"] if any(len(_of_budget(g, b)[0]) for g in losses["groups"].values())]
    with style.styled():
        figure, panels = style.panels(len(budgets), 3.0, most=min(4, len(budgets)))
        spans = []
        for axes, budget in zip(panels, budgets, strict=True):
            drawn: list[float] = []
            for name, group in losses["groups"].items():
                at, loss = _of_budget(group, budget)
                if not len(at):
                    continue
                shade = style.colour(names, name)
                axes.plot(at, loss, style.marker(names, name), color=shade, markersize=5, label=name, zorder=3)
                drawn += list(loss)
                for minimum in group["minima"]:
                    if minimum["budget_flops"] == budget:
                        _parabola(axes, minimum, at, loss, shade)
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            style.log_axis(axes.xaxis, low, high, most=4)
            axes.set_title(f"{compact(budget)} FLOPs")
            axes.set_xlabel("parameters")
            spans.append((min(drawn), max(drawn)))
        height = 1.25 * max(high - low for low, high in spans) or 0.1
        for axes, (low, high) in zip(panels, spans, strict=True):
            axes.set_ylim((low + high) / 2 - height / 2, (low + high) / 2 + height / 2)
        panels[0].set_ylabel(label_of(analysis, "loss"))
        _legend(figure, names, list(losses["groups"]))
    return figure


def _legend(figure: Figure, variants: Sequence[str], names: Sequence[str], linestyle: str = "") -> None:
    """One legend of variants above all panels."""
    handles = [
        Line2D(
            [],
            [],
            marker=None if linestyle else style.marker(variants, name),
            linestyle=linestyle,
            color=style.colour(variants, name),
            label=name,
        )
        for name in names
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))


def allocation(analysis: Analysis) -> Figure | None:
    """Parameters, tokens and tokens per parameter at the minima against compute, with their power laws."""
    losses, names = analysis["losses"][LOSS], analysis["variants"]
    if losses is None or not any(m["inside"] for g in losses["groups"].values() for m in g["minima"]):
        return None
    parts = {
        "num_params": "optimal parameters",
        "num_tokens": "optimal tokens",
        "ratio": "tokens per parameter",
    }
    with style.styled():
        figure, panels = style.panels(3, 3.3)
        for axes, (quantity, title) in zip(panels, parts.items(), strict=True):
            for index, (name, group) in enumerate(losses["groups"].items()):
                shade = style.colour(names, name)
                nudge = style.beside(losses["budgets_flops"], index, len(losses["groups"]))
                for minimum in group["minima"]:
                    point = _optimum(minimum, quantity)
                    if point is None:
                        continue
                    value, low, high = point
                    axes.errorbar(
                        minimum["budget_flops"] * nudge,
                        value,
                        yerr=style.errors(value, low, high),
                        fmt=style.marker(names, name),
                        color=shade,
                        capsize=2.5,
                        markersize=5.5,
                    )
                if not _allocation_line(axes, group, quantity, name, shade) and any(
                    _optimum(minimum, quantity) for minimum in group["minima"]
                ):
                    axes.plot([], [], style.marker(names, name), color=shade, markersize=5.5, label=name)
            axes.set_yscale("log")
            style.compute_axis(axes, losses["budgets_flops"])
            low, high = axes.get_ylim()
            rises = quantity != "ratio"
            # Room for the legend above what rises.
            axes.set_ylim(low, high * (high / low) ** (0.13 * len(losses["groups"]) if rises else 0))
            style.log_axis(axes.yaxis, *axes.get_ylim())
            axes.set_title(title)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="upper left" if rises else "best")
    return figure


def _optimum(minimum: Mapping[str, Any], quantity: str) -> tuple[float, float | None, float | None] | None:
    if not minimum["inside"] or minimum["num_tokens_opt"] is None:
        return None
    if quantity == "ratio":
        return minimum["num_tokens_opt"] / minimum["num_params_opt"], None, None
    estimate = minimum["estimates"][f"{quantity}_opt"]
    return estimate["value"], estimate["low"], estimate["high"]


def _allocation_line(axes: Axes, group: Mapping[str, Any], quantity: str, name: str, shade: str) -> bool:
    """Draw a group's power law; False where it has none."""
    laws = group["allocation"]
    if laws["num_params"] is None or laws["num_tokens"] is None:
        return False
    compute = np.geomspace(*group["compute_range_flops"], 20)
    lines = {
        key: np.exp(law["log_coefficient"] + law["exponent"]["value"] * np.log(compute)) for key, law in laws.items()
    }
    if quantity == "ratio":
        axes.plot(compute, lines["num_tokens"] / lines["num_params"], color=shade, linewidth=1.3, label=name)
        return True
    exponent = laws[quantity]["exponent"]
    label = f"{name}: C^{exponent['value']:.2f}"
    if exponent["low"] is not None and exponent["high"] is not None:
        label += f" [{exponent['low']:.2f}, {exponent['high']:.2f}]"
    axes.plot(compute, lines[quantity], color=shade, linewidth=1.3, label=label)
    return True


def residuals(analysis: Analysis) -> Figure | None:
    """What the fitted surfaces leave over, against those of parameters, tokens and compute that all groups have."""
    losses, names = analysis["losses"][LOSS], analysis["variants"]
    groups = {name: group for name, group in (losses or {"groups": {}})["groups"].items() if group["surface"]}
    if not groups:
        return None
    parts = {"num_params": label_of(analysis, "size"), "num_tokens": "training tokens", "budget_flops": "FLOPs"}
    everywhere = (key for key in parts if all(group["rows"].get(key) is not None for group in groups.values()))
    parts = {key: parts[key] for key in everywhere}
    if not parts:
        return None
    with style.styled():
        figure, panels = style.panels(len(parts), 3.1)
        for axes, (column, title) in zip(panels, parts.items(), strict=True):
            for index, (name, group) in enumerate(groups.items()):
                nudge = style.beside(group["rows"][column], index, len(groups))
                axes.plot(
                    np.array(group["rows"][column]) * nudge,
                    100 * np.array(group["surface"]["residuals_log"]),
                    style.marker(names, name),
                    color=style.colour(names, name),
                    markersize=4.5,
                    alpha=0.85,
                    label=name,
                )
            axes.axhline(0, color=style.INK, linewidth=1)
            axes.set_xscale("log")
            if column == "budget_flops":
                style.compute_axis(axes, losses["budgets_flops"])
            else:
                style.log_axis(axes.xaxis, *axes.get_xlim(), most=5)
                axes.set_xlabel(title)
        panels[0].set_ylabel("measured over fitted loss \u2212 1 (%)")
        _legend(figure, names, list(groups))
    return figure


def training_curves(curves: Sequence[Mapping[str, Any]], variants: Sequence[str]) -> Figure | None:
    """Training loss against tokens, a panel a budget. A curve: variant, budget_flops, num_tokens, loss_nats."""
    if not curves:
        return None
    budgets = sorted({curve["budget_flops"] for curve in curves})
    with style.styled():
        figure, panels = style.panels(len(budgets), 3.0, most=min(4, len(budgets)))
        for axes, budget in zip(panels, budgets, strict=True):
            here = [curve for curve in curves if curve["budget_flops"] == budget]
            for curve in here:
                tokens, loss = smoothed(curve["num_tokens"], curve["loss_nats"])
                axes.plot(tokens, loss, color=style.colour(variants, curve["variant"]), linewidth=0.9, alpha=0.75)
            ends = [smoothed(curve["num_tokens"], curve["loss_nats"])[1] for curve in here]
            axes.set_ylim(
                0.98 * min(v.min() for v in ends), min(max(v.max() for v in ends), 2 * max(v[-1] for v in ends))
            )
            axes.set_xscale("log")
            style.log_axis(axes.xaxis, *axes.get_xlim(), most=4)
            axes.set_title(f"{compact(budget)} FLOPs")
            axes.set_xlabel("tokens")
        panels[0].set_ylabel("training loss (nats per token)")
        _legend(figure, variants, list(dict.fromkeys(curve["variant"] for curve in curves)), linestyle="-")
    return figure


def smoothed(tokens: Sequence[float], loss: Sequence[float], num_points: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Means of the loss over stretches of equal length in ln tokens; steps before the first stretch are dropped."""
    at, values = np.asarray(tokens, dtype=float), np.asarray(loss, dtype=float)
    edges = np.geomspace(at[0], at[-1] * (1 + 1e-9), min(num_points, len(at)) + 1)
    bins = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(bins, minlength=len(edges) - 1)
    kept = counts > 0
    means = np.bincount(bins, values, minlength=len(edges) - 1)[kept] / counts[kept]
    return (np.bincount(bins, at, minlength=len(edges) - 1)[kept] / counts[kept]), means
