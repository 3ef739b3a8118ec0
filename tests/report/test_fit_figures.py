"""Figures of a fit's diagnostics: what they name, the same from JSON, and nothing where there is nothing."""

import json

import numpy as np
import pytest

from smelt import fit
from smelt.report import fit_figures, style
from tests.fit.test_diagnostics import grid, noisy


@pytest.fixture(scope="module")
def found():
    columns, exact, budgets = grid(4, 5)
    losses = noisy(exact)
    losses[2] *= 1.05
    surface = fit.fit_surface(columns, losses, "flops_tokens")
    names = [f"run-{row}" for row in range(20)]
    diagnostics = fit.diagnose(surface, columns, losses, budgets=budgets, labels=names)
    return surface, diagnostics


def texts(figure) -> str:
    return " ".join(
        [*(t.get_text() for a in figure.axes for t in a.texts), *(a.get_title(loc="left") for a in figure.axes)]
    )


def test_a_run_off_the_law_is_named_in_every_panel(found):
    figure = fit_figures.residual_panels(found[1])
    assert len(figure.axes) == 4
    assert all("run-2" in [text.get_text() for text in axes.texts] for axes in figure.axes)
    assert "run-2" in texts(fit_figures.leverage(found[1]))


@pytest.mark.parametrize("draw", [fit_figures.residual_panels, fit_figures.leverage, fit_figures.largest_left_out])
def test_a_figure_from_json_is_the_figure_from_the_fit(found, draw):
    plain = json.loads(json.dumps(fit.jsonable(found[1])))
    assert style.as_file(draw(plain), "svg") == style.as_file(draw(found[1]), "svg")


def test_the_largest_budget_is_titled_with_its_hits(found):
    held = found[1].largest_out
    assert f"{held.hits} of 5 inside" in texts(fit_figures.largest_left_out(found[1]))


def test_a_profile_shows_its_interval_and_which_side_is_open(found):
    columns, _, _ = grid()
    bare = noisy(
        fit.predicted_loss(fit.FLOPS_TOKENS, {"E": 0.0, "A": 60.0, "K": 900.0, "a": 0.35, "c": 0.45}, columns), 3
    )
    profiles = [
        fit.profile(found[0], "a", points=9),
        fit.profile(fit.fit_surface(columns, bare, "flops_tokens"), "E", points=9),
    ]
    figure = fit_figures.profiles(profiles)
    bounded, open_below = figure.axes
    assert "not identified" not in [text.get_text() for text in bounded.texts]
    assert "not identified" in [text.get_text() for text in open_below.texts]
    assert "[open, " in open_below.get_xlabel()
    assert bounded.get_title(loc="left") == "a"


def test_what_is_not_there_is_not_drawn(found):
    assert fit_figures.profiles([]) is None
    plain = {**fit.jsonable(found[1]), "largest_out": None, "axes": {}}
    assert fit_figures.largest_left_out(plain) is None
    assert fit_figures.residual_panels(plain) is None


def test_rows_too_few_to_test_are_not_called_without_a_pattern(found):
    assert "no pattern" in texts(fit_figures.residual_panels(found[1]))
    said = texts(fit_figures.residual_panels({**fit.jsonable(found[1]), "patterns": []}))
    assert "too few rows" in said
    assert "no pattern" not in said


def test_refits_that_failed_are_no_odd_rows(found):
    plain = fit.jsonable(found[1])
    plain["influence"] = {name: [None] * 20 for name in plain["influence"]}
    plain["outliers"] = []
    assert not np.isin("run-2", [text.get_text() for axes in fit_figures.leverage(plain).axes for text in axes.texts])
