"""Training curves with their envelope, or runs with their link of score to loss, as plain JSON -> a figure.

envelope    every run's loss against compute, the lowest of them and its hand-overs; the optimal sizes beside it
link        every run's score against its loss, the sigmoid with its 95 % band, and what was asked
"""

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from smelt.report import style
from smelt.report.tables import short, si

ENVELOPE, HANDOVER = style.INK, style.COLOURS[1]


def envelope(content: Mapping[str, Any], curves: Mapping[str, Mapping[str, Any]], loss: str) -> Figure:
    """`curves`: run -> num_params, and compute_flops and loss along it. `loss` is the label of the axis."""
    found = content["envelope"]
    sizes = sorted({curve["num_params"] for curve in curves.values()})
    shades = dict(zip(sizes, matplotlib.colormaps["viridis_r"](np.linspace(0.2, 0.95, len(sizes))), strict=True))
    compute, handovers = np.array(found["compute_flops"]), found["handovers"]
    with style.styled():
        figure, (left, right) = style.panels(2, 4.0)
        for curve in curves.values():
            left.plot(
                curve["compute_flops"], curve["loss"], color=shades[curve["num_params"]], linewidth=0.9, alpha=0.8
            )
        left.plot(compute, found["loss"], color=ENVELOPE, linewidth=2.4, label="envelope")
        at = np.array(handovers["compute_flops"])
        marks = {"color": HANDOVER, "markersize": 5, "markeredgecolor": "white", "zorder": 5, "linestyle": ""}
        if len(at):
            heights = np.exp(np.interp(np.log(at), np.log(compute), np.log(found["loss"])))
            left.plot(at, heights, "o", label="hand-over between two sizes", **marks)
        left.set_ylabel(loss)
        left.set_title("The lowest of all curves")
        right.plot(compute, found["num_params"], color=ENVELOPE, linewidth=1.2, drawstyle="steps-mid")
        if len(at):
            right.plot(at, handovers["num_params"], "o", **marks)
        law = found["allocation"]["num_params"]
        if law is not None:
            line = np.exp(law["log_coefficient"] + law["exponent"]["value"] * np.log(compute))
            right.plot(compute, line, color=HANDOVER, label=f"C^{short(law['exponent']['value'], 3)}, hand-overs")
        slope = found["exponents_of_all_points"]["num_params"]["value"]
        centre = np.mean(np.log(found["num_params"])) - slope * np.mean(np.log(compute))
        biased = np.exp(centre + slope * np.log(compute))
        right.plot(compute, biased, color=style.SOFT, linestyle="--", label=f"C^{short(slope, 3)}, every point: biased")
        right.set_yscale("log")
        style.log_axis(right.yaxis, min(sizes), max(sizes))
        right.set_ylabel("parameters")
        right.set_title("The size that holds it")
        starts = [curve["compute_flops"][0] for curve in curves.values()]
        ends = [curve["compute_flops"][-1] for curve in curves.values()]
        for axes, low, high in ((left, min(starts), max(ends)), (right, compute.min(), compute.max())):
            axes.set_xscale("log")
            style.log_axis(axes.xaxis, low, high, most=5)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.compact(value)))
            axes.set_xlabel("training FLOPs")
            axes.legend(loc="upper right" if axes is left else "upper left")
        left.set_yscale("log")
        lowest, highest = min(found["loss"]), max(max(curve["loss"]) for curve in curves.values())
        style.log_axis(left.yaxis, lowest, highest)
        left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for size in (sizes[0], sizes[-1]):
            curve = next(curve for curve in curves.values() if curve["num_params"] == size)
            left.annotate(
                si(size), (curve["compute_flops"][0], curve["loss"][0]), xytext=(4, 2), textcoords="offset points",
                color=shades[size], fontsize=8.5, fontweight="bold",
            )  # fmt: skip
    return figure


def link(content: Mapping[str, Any], loss: str) -> Figure:
    """`loss` is the label of the axis."""
    score, runs, band = content["score"], content["runs"], content["curve"]
    with style.styled():
        figure = Figure(figsize=(0.7 * style.WIDTH_INCHES, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.plot(runs["loss"], runs[score], "o", color=style.COLOURS[0], markersize=5, markeredgecolor="white")
        axes.plot(band["loss"], band["value"], color=style.INK, label="link")
        if band["low"][0] is not None:
            axes.fill_between(band["loss"], band["low"], band["high"], color=style.INK, alpha=0.12, linewidth=0)
        base = content["link"]["parameters"]["b"]
        given = "given" if content["link"]["chance"] is not None else "fitted"
        axes.axhline(base, color=style.SOFT, linestyle="--", linewidth=1, label=f"b {short(base, 3)}, {given}")
        for answer in content["predictions"]:
            of_run = answer["estimate"]
            errors = style.errors(of_run["value"], of_run["low"], of_run["high"])
            axes.errorbar(
                answer["loss"], of_run["value"], errors, fmt="s", color=style.COLOURS[1], markersize=5, capsize=3,
                label="a new run" if answer is content["predictions"][0] else None,
            )  # fmt: skip
        axes.set_xlabel(loss)
        axes.set_ylabel(score)
        axes.legend(loc="best")
    return figure
