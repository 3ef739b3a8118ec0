"""How every figure looks: a colour and a marker a variant, readable logarithmic ticks, labels beside their lines.

Colours are Okabe and Ito's, told apart under the common colour blindnesses; each has a marker of its own besides, so
that a figure reads in grey as well. The reference is always the first. Figures are made without pyplot: nothing is
global, and nothing needs a display.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from smelt.analysis import compact
from smelt.files import write_bytes
from smelt.report.tables import si

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B5B5B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, SOFT, GRID = "#222222", "#6b6b6b", "#e6e6e6"
WIDTH_INCHES = 10.0
RC = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters everywhere
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "text.color": INK,
    "figure.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "smelt",  # the same figure gives the same file
    "pdf.fonttype": 42,
}


@contextmanager
def styled() -> Iterator[None]:
    """matplotlib's settings inside the block; every figure is made and written in one."""
    with matplotlib.rc_context(RC):
        yield


def colour(variants: Sequence[str], name: str) -> str:
    return COLOURS[list(variants).index(name) % len(COLOURS)]


def marker(variants: Sequence[str], name: str) -> str:
    return MARKERS[list(variants).index(name) % len(MARKERS)]


def budget_colours(budgets: Sequence[float]) -> dict[float, Any]:
    """Light to dark with the budget."""
    shades = matplotlib.colormaps["viridis_r"](np.linspace(0.3, 0.95, len(budgets)))
    return dict(zip(sorted(budgets), shades, strict=True))


def panels(num_panels: int, height_inches: float, *, share: bool = False, most: int = 4) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width with `num_panels` axes, `most` a row at most."""
    columns = min(num_panels, most)
    rows = -(-num_panels // columns)
    figure = Figure(figsize=(WIDTH_INCHES, height_inches * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).ravel()
    for spare in axes[num_panels:]:
        spare.remove()
    return figure, list(axes[:num_panels])


def log_axis(axis: Any, low: float, high: float, most: int = 6) -> None:
    """Round ticks, `most` of them at most, written with a letter."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks: list[float] = []
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(ticks) <= most:
            break
    axis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // most) or 1]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: si(value)))
    axis.set_minor_formatter(NullFormatter())


def compute_axis(axes: Axes, budgets: Sequence[float]) -> None:
    """A logarithmic axis of training FLOPs whose ticks are the budgets, thinned where they would touch."""
    axes.set_xscale("log")
    kept: list[float] = []
    span = np.log(max(budgets) / min(budgets)) or 1.0
    for budget in sorted(budgets):
        if not kept or np.log(budget / kept[-1]) > 0.11 * span:
            kept.append(budget)
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    if len(set(budgets)) == 1:
        axes.set_xlim(budgets[0] / 1.3, budgets[0] * 1.3)
    axes.set_xlabel("training FLOPs")


def beside(budgets: Sequence[float], index: int, count: int) -> float:
    """A factor that moves the `index`-th of `count` marks at one budget a little aside, so that none hides another."""
    span = np.log(max(budgets) / min(budgets)) or 1.0
    return float(np.exp(0.02 * span * (index - (count - 1) / 2)))


def percent_axis(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %".replace("-", "\u2212")))


def label_lines(axes: Axes, ends: Mapping[str, tuple[float, float]], colours: Mapping[str, Any], **text: Any) -> None:
    """Write each name right of its line's end (x, y), moved apart where they would overlap."""
    if not ends:
        return
    low, high = axes.get_ylim()
    gap = 0.062 * (high - low) * 3.4 / (axes.figure.get_size_inches()[1] * 0.8)
    names = sorted(ends, key=lambda name: ends[name][1])
    heights = [ends[name][1] for name in names]
    for _ in range(50):
        for lower in range(len(heights) - 1):
            overlap = gap - (heights[lower + 1] - heights[lower])
            if overlap > 1e-12:
                heights[lower] -= overlap / 2
                heights[lower + 1] += overlap / 2
    lift = max(0.0, low + gap / 2 - heights[0])
    for name, height in zip(names, np.array(heights) + lift, strict=True):
        axes.annotate(
            name,
            (ends[name][0], height),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            ha="left",
            color=colours[name],
            annotation_clip=False,
            **{"fontsize": 8.5, "fontweight": "bold", **text},
        )


def errors(value: float, low: float | None, high: float | None) -> list[list[float]]:
    """matplotlib's two lengths of an interval, nought where it has no end."""
    return [[max(0.0, value - low) if low is not None else 0.0], [max(0.0, high - value) if high is not None else 0.0]]


def as_file(figure: Figure, kind: str) -> bytes:
    """The figure as the bytes of an svg, pdf or png file, the same for the same figure."""
    metadata: dict[str, Any] = {
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
        "png": {"Software": None},
    }[kind]
    written, canvas = io.BytesIO(), figure.canvas
    with styled():
        if kind == "svg":
            # `savefig` draws once more, for nothing but the layout, with which drawing begins anyway.
            FigureCanvasSVG(figure).print_svg(written, metadata=metadata)
            figure.set_canvas(canvas)
        else:
            figure.savefig(written, format=kind, metadata=metadata, dpi=144)
    return written.getvalue()


def write(drawn: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Every figure as NAME.svg and NAME.pdf in the folder; returns the files."""
    files = [folder / f"{name}.{kind}" for name in drawn for kind in ("svg", "pdf")]
    for file in files:
        write_bytes(file, as_file(drawn[file.stem], file.suffix[1:]))
    return files


def inline(figure: Figure, prefix: str, description: str) -> Markup:
    """The figure as an <svg> element for a page: described, without a namespace's address, with ids of its own."""
    text = as_file(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", text)
    label = Markup('<svg role="img" aria-label="{}"').format(description)
    return Markup(text.replace("<svg", label, 1))
