import json

import numpy as np

from smelt import fit
from smelt.fit import laws
from smelt.fit.result import estimate
from tests.fit import planted


def test_draws_beyond_squaring_leave_the_interval_and_no_standard_error():
    draws = np.concatenate([np.linspace(1.0, 2.0, 99), [1e300]])
    found = estimate(1.5, draws, method="test")
    assert found.standard_error is None
    assert 1.0 <= found.low < found.high <= 2.0


def test_unusable_draws_are_said_and_leave_no_interval():
    draws = np.full(100, np.nan)
    found = estimate(1.5, draws, method="test")
    assert (found.low, found.high, found.standard_error) == (None, None, None)
    assert "no usable value" in found.reason


def test_fewer_draws_than_have_one_beyond_either_end_leave_no_interval():
    draws = np.random.default_rng(0).normal(size=39)
    few, enough = estimate(0.0, draws, method="test"), estimate(0.0, np.append(draws, 0.1), method="test")
    assert (few.low, few.high) == (None, None)
    assert "39 draws do not tell" in few.reason
    assert few.standard_error > 0
    assert enough.low < 0.0 < enough.high
    assert enough.reason is None


def test_an_interval_that_does_not_hold_its_value_says_why():
    draws = np.linspace(1.0, 2.0, 100)
    assert "outside the percentiles of its draws" in estimate(3.0, draws, method="test").reason
    rounding = estimate(2.0 * (1 + 1e-13), np.full(100, 2.0), method="test")
    assert rounding.low == rounding.value == rounding.high
    assert rounding.reason is None


def test_whatever_holds_a_law_is_plain_json():
    columns = planted.columns_of(laws.KAPLAN, num_rows=30)
    losses = fit.predicted_loss(laws.KAPLAN, planted.LAWS["kaplan"], columns) * (1 + 0.002 * np.sin(np.arange(30.0)))
    surface = fit.fit_surface(columns, losses, "kaplan")
    frontier = fit.surface_frontier(surface, compute_range_flops=(1e18, 1e20), flops_per_unit=6.0)
    written = json.loads(json.dumps(fit.jsonable({"surface": surface, "frontier": frontier}), allow_nan=False))
    assert written["surface"]["law"]["name"] == "kaplan"
    assert written["frontier"]["kind"] == "surface"
