"""Figures: the same for the same data, legible ticks, labels that do not overlap."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from smelt import analysis
from smelt.report import evidence, figures, style, tables
from tests import synthetic


@pytest.fixture(scope="module")
def found():
    return analysis.analyse(synthetic.planted_rows(synthetic.planted_grid(), saving=0.05), "baseline", draws=60)


def test_a_figure_is_the_same_file_twice(found):
    twice = [style.as_file(figures.savings_by_domain(found), "svg") for _ in range(2)]
    assert twice[0] == twice[1]
    assert style.as_file(figures.savings_by_domain(found), "pdf").startswith(b"%PDF")


def test_labels_beside_lines_are_moved_apart_and_stay_inside(found):
    with style.styled():
        figure = Figure(figsize=(5, 4))
        axes = figure.subplots()
        axes.set_ylim(0, 1)
        ends = {f"line {index}": (1.0, 0.01 + 0.001 * index) for index in range(5)}
        style.label_lines(axes, ends, dict.fromkeys(ends, "black"))
        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = sorted((text.get_window_extent(renderer) for text in axes.texts), key=lambda box: box.y0)
    assert len(boxes) == 5
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in itertools.pairwise(boxes))
    assert boxes[0].y0 >= axes.get_window_extent(renderer).y0 - 1


@pytest.mark.parametrize(("low", "high"), [(9e4, 1.2e5), (1.6e4, 7e5), (1e3, 4e6), (1e2, 1e12)])
def test_logarithmic_axes_have_a_few_round_ticks(low, high):
    axes = Figure().subplots()
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    style.log_axis(axes.xaxis, low, high)
    ticks = axes.xaxis.get_majorticklocs()
    assert 2 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)
    assert all(float(f"{tick:.1e}") == pytest.approx(tick) for tick in ticks)


def test_variants_differ_in_colour_and_in_marker():
    names = ["baseline", "one", "two", "three", "four"]
    assert len({style.colour(names, name) for name in names}) == len(names)
    assert len({style.marker(names, name) for name in names}) == len(names)


def test_what_cannot_be_drawn_is_left_out(found):
    empty = {**found, "losses": dict.fromkeys(found["losses"]), "pairs": {}, "domains": {}}
    made = (
        figures.answer,
        figures.frontiers,
        figures.saving,
        figures.savings_by_law,
        figures.savings_by_domain,
        figures.pair_differences,
    )
    made += (evidence.isoflop, evidence.head_to_head, evidence.allocation, evidence.residuals)
    assert [make(empty) for make in made] == [None] * len(made)
    assert evidence.training_curves([], found["variants"]) is None


def test_smoothing_keeps_the_mean_and_the_ends():
    tokens = np.arange(1, 2001) * 512
    at, loss = evidence.smoothed(tokens, np.full(2000, 2.5))
    assert np.allclose(loss, 2.5)
    assert at[0] == 512
    assert at[-1] <= tokens[-1]
    assert np.all(np.diff(at) > 0)


def test_numbers_are_written_as_people_read_them():
    estimate = {"value": -0.0123, "low": -0.02, "high": None}
    assert tables.interval(estimate, 1, 100, " %") == "\u22121.2 % [\u22122.0, \u2013]"
    assert tables.interval({"value": None, "low": None, "high": None}) == "\u2013"
    assert [tables.si(value) for value in (512, 65_000, 1_234_567, 3e9)] == ["512", "65k", "1.23M", "3B"]
    assert [tables.secs(value) for value in (5.0, 600.0, 7200.0, None)] == ["5.0 s", "10.0 min", "2.0 h", "\u2013"]


def test_tables_need_no_matplotlib():
    check = "import sys, smelt.report.tables, smelt.report.words; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout.strip() == "False"
