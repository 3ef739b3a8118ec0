"""Profiles and diagnostics of a fit -> figures of what its answer hangs on, one function each.

    profiles            how the objective rises as each parameter is held elsewhere, with the 95 % line and interval
    residual_panels     what the law leaves over against size, tokens, compute and their ratio, odd rows by name
    leverage            how much a row decides against how far off it lies
    largest_left_out    the largest budget predicted from the rest, with what was measured

Every function takes `fit.Profile` or `fit.Diagnostics`, or the same read back from JSON (`fit.jsonable`), and returns a
Figure, or None where there is nothing to draw.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from smelt import fit
from smelt.analysis import compact
from smelt.report import style
from smelt.report.tables import short
from smelt.report.words import COLUMNS

LINE, POINT, ODD = style.COLOURS[0], style.COLOURS[0], style.COLOURS[1]
MOST_LETTERED = 1e15  # larger counts are written as 1e18
WIDE = 20  # times: a profile that goes so far is drawn against a logarithm
MAX_NAMES = 6  # odd rows that are named in a panel


def profiles(found: Sequence[fit.Profile | Mapping[str, Any]]) -> Figure | None:
    """A panel a parameter: T rises from 0 at the estimate to the line at which its 95 % interval ends."""
    if not found:
        return None
    with style.styled():
        figure, panels = style.panels(len(found), 3.3, most=3)
        for axes, profile in zip(panels, map(fit.jsonable, found), strict=True):
            _profile(axes, profile)
        for axes in panels[:: min(3, len(panels))]:
            axes.set_ylabel("rise of the objective (ratio T)")
    return figure


def _profile(axes: Axes, profile: Mapping[str, Any]) -> None:
    values, level, interval = np.array(profile["values"]), profile["level"], profile["interval"]
    rise = np.array([np.nan if t is None else t for t in profile["ratio"]])
    axes.plot(values, rise, color=LINE)
    axes.axhline(level, color=style.SOFT, linestyle="--", linewidth=1)
    middle = axes.get_yaxis_transform()
    axes.text(0.5, level, "95 %", transform=middle, va="bottom", ha="center", color=style.SOFT, fontsize=8.5)
    low, high = interval["low"], interval["high"]
    axes.axvspan(values[0] if low is None else low, values[-1] if high is None else high, color=LINE, alpha=0.1, lw=0)
    axes.plot(interval["value"], 0, "o", color=LINE, markersize=5, clip_on=False, zorder=4)
    axes.set_xlim(values[0], values[-1])
    axes.set_ylim(0, 2.2 * level)
    if values[0] > 0 and values[-1] > WIDE * values[0]:
        axes.set_xscale("log")
    axes.set_title(profile["name"])
    ends = ["open" if end is None else short(end, 4) for end in (low, high)]
    axes.set_xlabel(f"{short(interval['value'], 4)} [{', '.join(ends)}]")
    for end, x, side in ((low, 0.02, "left"), (high, 0.98, "right")):
        if end is None:
            axes.text(x, 0.9, "not identified", transform=axes.transAxes, ha=side, color=ODD, fontsize=8.5)


def residual_panels(diagnostics: fit.Diagnostics | Mapping[str, Any]) -> Figure | None:
    """A panel a column: residuals in per cent of the loss; rows that diagnostics name stand out."""
    plain = fit.jsonable(diagnostics)
    if not plain["axes"]:
        return None
    percent = 100 * np.expm1(np.array(plain["residuals_log"]))
    odd = _odd_rows(plain)
    with style.styled():
        figure, panels = style.panels(len(plain["axes"]), 3.2, most=2 if len(plain["axes"]) != 3 else 3)
        for axes, (name, logs) in zip(panels, plain["axes"].items(), strict=True):
            at = np.exp(np.array(logs))
            axes.axhline(0, color=style.INK, linewidth=1)
            _points(axes, at, percent, odd, plain["labels"])
            axes.set_xscale("log")
            style.log_axis(axes.xaxis, at.min(), at.max(), most=5)
            if at.max() > MOST_LETTERED:
                axes.xaxis.set_major_formatter(lambda value, _: compact(value))
            axes.set_xlim(at.min() / 1.3, at.max() * 1.3)
            axes.set_xlabel(COLUMNS.get(name, name))
            seen = [p for p in plain["patterns"] if p["column"] == name and p["p_adjusted"] < 0.01]
            words = ", ".join(f"{p['shape']} {p['correlation']:+.2f}" for p in seen)
            none = "no pattern" if plain["patterns"] else "too few rows to see a pattern"
            words = f"pattern: {words}".replace("-", "\u2212") if seen else none
            axes.set_title(words, fontsize=9, color=ODD if seen else style.SOFT, fontweight="normal")
            axes.set_ylabel("loss above the law (%)")
        _legend(figure, odd)
    return figure


def leverage(diagnostics: fit.Diagnostics | Mapping[str, Any]) -> Figure:
    """Rows to the right decide their own prediction, those far up or down lie off the law; who does both rules it."""
    plain = fit.jsonable(diagnostics)
    percent, decides = 100 * np.expm1(np.array(plain["residuals_log"])), np.array(plain["leverage"])
    odd = _odd_rows(plain)
    with style.styled():
        figure = Figure(figsize=(0.62 * style.WIDTH_INCHES, 3.9), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0, color=style.INK, linewidth=1)
        mean = decides.mean()
        axes.axvline(3 * mean, color=style.SOFT, linestyle="--", linewidth=1)
        axes.annotate(
            "3 \u00d7 the mean", (3 * mean, 1), xycoords=("data", "axes fraction"), xytext=(4, -10),
            textcoords="offset points", color=style.SOFT, fontsize=8.5,
        )  # fmt: skip
        _points(axes, decides, percent, odd, plain["labels"])
        axes.set_xlim(0, 1.15 * max(decides.max(), 3 * mean))
        axes.set_xlabel("leverage: the share of the law's value there that the row decides")
        axes.set_ylabel("loss above the law (%)")
        _legend(figure, odd)
    return figure


def largest_left_out(diagnostics: fit.Diagnostics | Mapping[str, Any]) -> Figure | None:
    """Measured losses of the largest budget against those that a fit of the rest predicts, with 95 % intervals."""
    held = fit.jsonable(diagnostics)["largest_out"]
    if held is None:
        return None
    order = np.argsort(held["predicted"], kind="stable")
    with style.styled():
        figure = Figure(figsize=(0.62 * style.WIDTH_INCHES, 3.9), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0, color=style.INK, linewidth=1)
        predicted, measured, low, high = (
            np.array(held[key])[order] for key in ("predicted", "measured", "low", "high")
        )
        places = np.arange(len(order))
        off = [100 * (values / predicted - 1) for values in (measured, low, high)]
        axes.vlines(places, off[1], off[2], color=LINE, alpha=0.3, linewidth=max(1.5, min(7.0, 160 / len(order))))
        hit = (low <= measured) & (measured <= high)
        for mask, colour, mark in ((hit, LINE, "o"), (~hit, ODD, "s")):
            axes.plot(places[mask], off[0][mask], mark, color=colour, markersize=5, markeredgecolor="white", zorder=4)
        names = np.array(held["rows"])[order]
        if len(order) <= 12:
            axes.set_xticks(places, names, rotation=30, ha="right")
        else:
            axes.set_xticks([])
            axes.set_xlabel(f"{len(order)} rows, lowest predicted loss first")
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("measured above predicted (%)")
        what = held["what"]
        axes.set_title(f"{what[0].upper()}{what[1:]}, from a fit of the rest: {held['hits']} of {len(order)} inside")
    return figure


def _odd_rows(plain: Mapping[str, Any]) -> dict[int, str]:
    """Rows to name, those most off first, and why."""
    odd = dict.fromkeys(plain["outliers"], "off the law")
    influence = [np.nan_to_num(np.array(values, dtype=float)) for values in plain["influence"].values()]
    if influence:
        most = np.max(np.abs(influence), axis=0)
        odd = {**dict.fromkeys((int(i) for i in np.argsort(-most) if most[i] > 1), "moves a parameter"), **odd}
    return odd


def _points(axes: Axes, x: np.ndarray, y: np.ndarray, odd: Mapping[int, str], labels: Sequence[str]) -> None:
    plain = np.array([row not in odd for row in range(len(x))])
    axes.plot(x[plain], y[plain], "o", color=POINT, markersize=4, alpha=0.55, markeredgewidth=0)
    rows = list(odd)
    axes.plot(x[rows], y[rows], "s", color=ODD, markersize=5, markeredgecolor="white", zorder=4)
    middle = np.median(x)
    for row in sorted(rows, key=lambda row: -abs(y[row]))[:MAX_NAMES]:
        left = x[row] > middle
        axes.annotate(
            labels[row],
            (x[row], y[row]),
            xytext=(-6 if left else 6, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            fontsize=8,
            color=ODD,
        )


def _legend(figure: Figure, odd: Mapping[int, str]) -> None:
    if not odd:
        return
    handles = [
        Line2D([], [], marker="o", color=POINT, linestyle="", markersize=4, label="a row"),
        Line2D([], [], marker="s", color=ODD, linestyle="", markersize=5, label="off the law, or moves a parameter"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=2)
