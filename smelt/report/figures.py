"""An analysis -> figures of the answer, one function each, in the order in which a doubter would ask.

    frontiers, saving   loss against compute with frontiers, and what that saves with its band; `answer` is both
    savings_by_law      does the answer hang on the law?
    savings_by_domain   on the text?
    pair_differences    and without any law?
    prediction          did it hold where nobody had looked?

Every function takes plain data (`analysis.analyse`, `fits.view`, a scored prediction, curves) and returns a Figure, or
None where there is nothing to draw. Intervals are 95 %. Losses are in nats per token where the data says nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from smelt.analysis import BITS, KINDS, LOSS, compact
from smelt.report import style
from smelt.report.tables import label_of
from smelt.verdict import KIND_NAMES

Analysis = Mapping[str, Any]


def frontier_kind(analysis: Analysis) -> str:
    """The law of the headlines; the first that any group has where there is no headline."""
    for head in analysis["headline"].values():
        if head["kind"]:
            return head["kind"]
    groups = (analysis["losses"][LOSS] or {"groups": {}})["groups"].values()
    return next((kind for kind in KINDS if any(group["frontiers"][kind] for group in groups)), KINDS[0])


def answer(analysis: Analysis) -> Figure | None:
    """`frontiers` and `saving` beside each other in one figure."""
    if analysis["losses"][LOSS] is None:
        return None
    with style.styled():
        figure = Figure(figsize=(style.WIDTH_INCHES, 4.1), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        loss_against_compute(left, analysis, frontier_kind(analysis))
        saving_against_compute(right, analysis)
    return figure


def frontiers(analysis: Analysis) -> Figure | None:
    """Every run, the minima of its budgets, and the frontiers; half a page wide."""
    if analysis["losses"][LOSS] is None:
        return None
    with style.styled():
        figure = Figure(figsize=(style.WIDTH_INCHES / 2, 4.1), layout="constrained")
        loss_against_compute(figure.subplots(), analysis, frontier_kind(analysis))
    return figure


def saving(analysis: Analysis) -> Figure | None:
    """Compute saved at equal loss; half a page wide."""
    if analysis["losses"][LOSS] is None or not analysis["headline"]:
        return None
    with style.styled():
        figure = Figure(figsize=(style.WIDTH_INCHES / 2, 4.1), layout="constrained")
        saving_against_compute(figure.subplots(), analysis)
    return figure


def loss_against_compute(axes: Axes, analysis: Analysis, kind: str) -> None:
    """Runs, minima with intervals, and frontiers of one kind with bands."""
    losses, names = analysis["losses"][LOSS], analysis["variants"]
    ends, colours = {}, {name: style.colour(names, name) for name in names}
    for index, (name, group) in enumerate(losses["groups"].items()):
        shade = colours[name]
        nudge = style.beside(losses["budgets_flops"], index, len(losses["groups"]))
        rows = group["rows"]
        axes.scatter(
            np.array(rows["budget_flops"]) * nudge,
            rows["loss_nats"],
            s=14,
            marker=style.marker(names, name),
            facecolor="none",
            edgecolor=shade,
            alpha=0.45,
            linewidth=0.8,
        )
        for minimum in group["minima"]:
            if not minimum["inside"]:
                continue
            loss = minimum["estimates"]["loss_min"]
            axes.errorbar(
                minimum["budget_flops"] * nudge,
                loss["value"],
                yerr=style.errors(loss["value"], loss["low"], loss["high"]),
                fmt=style.marker(names, name),
                color=shade,
                markersize=6,
                capsize=2.5,
                zorder=4,
            )
        curve = group["frontier_curves"].get(kind)
        if curve:
            axes.plot(curve["compute_flops"], curve["loss_nats"], color=shade, zorder=3)
            _band(axes, curve, shade)
            ends[name] = (curve["compute_flops"][-1], curve["loss_nats"][-1])
        else:
            lowest = int(np.argmin(rows["loss_nats"]))
            ends[name] = (rows["budget_flops"][lowest], rows["loss_nats"][lowest])
    axes.set_title("Loss against compute")
    axes.set_ylabel(label_of(analysis, "loss"))
    style.compute_axis(axes, losses["budgets_flops"])
    style.label_lines(axes, ends, colours)
    groups = losses["groups"].values()
    handles = [Line2D([], [], marker="o", color=style.SOFT, linestyle="", markersize=4, mfc="none", label="a run")]
    if any(minimum["inside"] for group in groups for minimum in group["minima"]):
        label = "minimum of a budget"
        handles.insert(0, Line2D([], [], marker="o", color=style.SOFT, linestyle="", markersize=6, label=label))
    if any(group["frontier_curves"].get(kind) for group in groups):
        handles.append(Line2D([], [], color=style.SOFT, label=f"frontier ({KIND_NAMES[kind]})"))
    axes.legend(handles=handles, loc="upper right")


def _band(axes: Axes, curve: Mapping[str, Any], shade: str) -> None:
    if curve["low"] is None or curve["high"] is None:
        return
    low, high = (np.array([np.nan if v is None else v for v in curve[end]]) for end in ("low", "high"))
    axes.fill_between(curve["compute_flops"], low, high, color=shade, alpha=0.16, linewidth=0)


def saving_against_compute(axes: Axes, analysis: Analysis) -> None:
    """Compute saved over the reference at equal loss, by the headline's law, with 95 % bands."""
    losses, names = analysis["losses"][LOSS], analysis["variants"]
    ends, colours, drawn = {}, {name: style.colour(names, name) for name in names}, [0.0]
    for name, head in analysis["headline"].items():
        if head["kind"] is None:
            continue
        compared = losses["savings"][name][head["kind"]]
        curve, shade = compared["curve"], colours[name]
        values = [np.nan if value is None else value for value in curve["value"]]
        axes.plot(curve["compute_flops"], values, color=shade, zorder=3)
        _band(axes, curve, shade)
        for saving in compared["at_budgets"]:
            estimate = saving["estimate"]
            if estimate["value"] is None:
                continue
            axes.errorbar(
                saving["budget_flops"],
                estimate["value"],
                yerr=style.errors(estimate["value"], estimate["low"], estimate["high"]),
                fmt=style.marker(names, name),
                color=shade,
                capsize=2.5,
                markersize=5,
            )
            drawn += [v for v in (estimate["value"], estimate["low"], estimate["high"]) if v is not None]
        if known := np.flatnonzero(~np.isnan(values)).tolist():
            ends[name] = (curve["compute_flops"][known[-1]], values[known[-1]])
    if not ends:
        axes.text(0.5, 0.5, "no saving could be estimated", transform=axes.transAxes, ha="center", color=style.SOFT)
    else:
        axes.axhline(0, color=style.INK, linewidth=1)
    low, high = max(min(drawn), -1.0), min(max(drawn), 1.0)
    margin = 0.18 * (high - low) or 0.05
    axes.set_ylim(low - margin, high + margin)
    style.compute_axis(axes, losses["budgets_flops"])
    style.percent_axis(axes)
    style.label_lines(axes, ends, colours)
    axes.set_title(f"Compute saved over {analysis['reference']} at equal loss")
    axes.set_ylabel("saving (above 0: needs less)")


def savings_by_law(analysis: Analysis) -> Figure | None:
    """Savings at every budget under each frontier law: does the answer hang on the law?"""
    losses, names = analysis["losses"][LOSS], analysis["variants"]
    shown = {name: by_law for name, by_law in (losses or {"savings": {}})["savings"].items() if _has_values(by_law)}
    if not shown:
        return None
    with style.styled():
        figure, panels = style.panels(len(shown), 3.2, most=2)
        for axes, (name, by_law) in zip(panels, shown.items(), strict=True):
            drawn = [0.0]
            for index, kind in enumerate(KINDS):
                nudge = style.beside(losses["budgets_flops"], index, len(KINDS))
                shade = (style.colour(names, name), style.SOFT, "#a9a9a9")[index]
                for saving in by_law[kind]["at_budgets"] or []:
                    value, low, high = (saving["estimate"][key] for key in ("value", "low", "high"))
                    if value is None:
                        continue
                    drawn += [v for v in (value, low, high) if v is not None]
                    axes.errorbar(
                        saving["budget_flops"] * nudge,
                        value,
                        yerr=style.errors(value, low, high),
                        fmt="osD"[index],
                        color=shade,
                        capsize=2.5,
                        markersize=5,
                    )
            axes.axhline(0, color=style.INK, linewidth=1)
            low, high = max(min(drawn), -1.0), min(max(drawn), 1.0)
            margin = 0.2 * (high - low) or 0.05
            axes.set_ylim(low - margin, high + margin)
            style.compute_axis(axes, losses["budgets_flops"])
            style.percent_axis(axes)
            axes.set_title(name, color=style.colour(names, name))
            axes.set_ylabel("saving at equal loss")
        handles = [
            Line2D(
                [], [], marker="osD"[index], linestyle="", color=(style.INK, style.SOFT, "#a9a9a9")[index], label=label
            )
            for index, label in enumerate(KIND_NAMES.values())
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=3)
    return figure


def _has_values(by_law: Mapping[str, Any]) -> bool:
    found = [saving for kind in KINDS for saving in by_law[kind]["at_budgets"] or []]
    return any(saving["estimate"]["value"] is not None for saving in found)


def savings_by_domain(analysis: Analysis) -> Figure | None:
    """The saving at the largest budget in every loss column, a row each."""
    domains = {name: found for name, found in analysis["domains"].items() if any(c["saving"] for c in found.values())}
    if not domains:
        return None
    columns = list(next(iter(domains.values())))
    with style.styled():
        figure = Figure(figsize=(style.WIDTH_INCHES, 0.9 + 0.42 * len(columns) * len(domains)), layout="constrained")
        axes = figure.subplots()
        ticks, labels = [], []
        for row, column in enumerate(columns):
            for index, (name, found) in enumerate(domains.items()):
                height = -(row * (len(domains) + 0.4) + index)
                shade = style.colour(analysis["variants"], name)
                ticks.append(height)
                title = domain_title(column)
                labels.append(f"{title}, {name}" if len(domains) > 1 else title)
                saving = found[column]["saving"]
                if saving is None:
                    axes.text(0, height, "  no saving could be estimated", va="center", color=style.SOFT, fontsize=8.5)
                    continue
                estimate = saving["estimate"]
                axes.errorbar(
                    estimate["value"],
                    height,
                    xerr=style.errors(estimate["value"], estimate["low"], estimate["high"]),
                    fmt=style.marker(analysis["variants"], name),
                    color=shade,
                    capsize=3,
                    markersize=7 if column == LOSS else 5.5,
                    elinewidth=2.2 if column == LOSS else 1.4,
                )
        axes.axvline(0, color=style.INK, linewidth=1)
        axes.set_yticks(ticks, labels)
        axes.grid(axis="y", visible=False)
        axes.set_ylim(min(ticks) - 0.6, max(ticks) + 0.6)
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %".replace("-", "\u2212"))
        budgets = {c["saving"]["budget_flops"] for found in domains.values() for c in found.values() if c["saving"]}
        at = ", ".join(compact(budget) for budget in sorted(budgets))
        axes.set_xlabel(f"compute saved over {analysis['reference']} at equal loss, at {at} FLOPs (right of 0: less)")
    return figure


def domain_title(column: str) -> str:
    """A loss column for people."""
    if column == LOSS:
        return "all domains"
    return "bits per byte" if column == BITS else column.removeprefix(f"{LOSS}.")


def pair_differences(analysis: Analysis) -> Figure | None:
    """Loss of a variant minus its partner's, pair by pair against compute; grey is the spread of seeds."""
    found = {name: pairs for name, pairs in analysis["pairs"].items() if pairs["pairs"]}
    if not found:
        return None
    spread = analysis["seed_spread"][LOSS]["sd"]
    with style.styled():
        figure, panels = style.panels(len(found), 3.2, most=2)
        for axes, (name, pairs) in zip(panels, found.items(), strict=True):
            shade = style.colour(analysis["variants"], name)
            budgets = sorted({pair["budget_flops"] for pair in pairs["pairs"]})
            for budget in budgets:
                here = sorted((p for p in pairs["pairs"] if p["budget_flops"] == budget), key=lambda p: p["size"])
                axes.plot(
                    [budget * style.beside(budgets, index, len(here)) for index in range(len(here))],
                    [1e3 * pair["difference"][LOSS] for pair in here],
                    style.marker(analysis["variants"], name),
                    color=shade,
                    markersize=5.5,
                    alpha=0.85,
                )
            handles = []
            if pairs["mean_nats"]:
                handles.append(Line2D([], [], color=shade, linestyle="--", label="mean over pairs, 95 % interval"))
            if spread is not None:
                band = 1e3 * spread * np.sqrt(2)
                axes.axhspan(-band, band, color="#bbbbbb", alpha=0.3, linewidth=0)
                handles.append(Patch(color="#bbbbbb", alpha=0.5, label="seed spread of unpaired runs"))
            if handles:
                axes.legend(handles=handles, loc="best")
            axes.axhline(0, color=style.INK, linewidth=1)
            mean = pairs["mean_nats"]
            if mean:
                axes.axhline(1e3 * mean["value"], color=shade, linewidth=1.2, linestyle="--")
                axes.axhspan(1e3 * mean["low"], 1e3 * mean["high"], color=shade, alpha=0.15, linewidth=0)
            style.compute_axis(axes, budgets)
            low, high = axes.get_xlim()
            axes.set_xlim(low / 1.15, high * 1.15)
            axes.set_ylabel("loss difference (millinats)")
            axes.set_title(f"{name} \u2212 {analysis['reference']}, pair by pair", color=shade)
    return figure


def prediction(scored: Mapping[str, Any], variants: Sequence[str]) -> Figure | None:
    """Prediction intervals with the measured losses in or out of them; pairs' differences beside."""
    cells = [cell for cell in scored["cells"] if cell["predicted"] is not None]
    pairs = [pair for pair in scored["differences"] if pair["predicted"] is not None]
    if not cells:
        return None
    with style.styled():
        height = 1.1 + 0.5 * max(len(cells), len(pairs))
        figure = Figure(figsize=(style.WIDTH_INCHES, height), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _intervals(left, cells, variants, 1.0)
        left.set_xlabel("validation loss (nats per token)")
        left.set_title("Loss")
        if pairs:
            _intervals(right, pairs, variants, 1e3)
            right.axvline(0, color=style.INK, linewidth=1)
            right.set_xlabel("loss difference to the partner (millinats)")
            right.set_title("Difference of the pair")
        else:
            right.remove()
    return figure


def _intervals(axes: Axes, items: Sequence[Mapping[str, Any]], variants: Sequence[str], scale: float) -> None:
    for row, item in enumerate(items):
        shade = style.colour(variants, item["variant"])
        value, low, high = (None if item[k] is None else scale * item[k] for k in ("predicted", "low", "high"))
        axes.errorbar(
            value,
            -row,
            xerr=style.errors(value, low, high),
            fmt="|",
            color=shade,
            elinewidth=7,
            alpha=0.35,
            markersize=12,
        )
        if item["measured"] is not None:
            axes.plot(scale * item["measured"], -row, "o", color=shade, markersize=7, markeredgecolor="white", zorder=4)
            word = {True: "hit", False: "miss", None: ""}[item["hit"]]
            axes.annotate(
                word,
                (scale * item["measured"], -row),
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                fontweight="bold",
                color=style.INK if item["hit"] else "#b00020",
            )
    labels = [f"{item['variant']}\n{compact(item['budget_flops'])} FLOPs" for item in items]
    axes.set_yticks([-row for row in range(len(items))], labels)
    axes.set_ylim(-len(items) + 0.4, 0.7)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
