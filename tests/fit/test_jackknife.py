"""Jackknives: the formula by hand, budgets that share an error, and the residual bootstrap's flag."""

import math

import numpy as np
import pytest
from scipy import stats

from smelt import fit
from smelt.errors import BadInput
from tests.fit.test_diagnostics import grid, noisy


def surface_of(columns, losses, **options):
    return fit.fit_surface(columns, losses, "flops_tokens", **{"objective": "squares_log", **options})


def test_errors_and_intervals_are_the_formula_over_refits_made_by_hand():
    columns, exact, budgets = grid(5, 5)
    losses = noisy(exact)
    surface = surface_of(columns, losses)

    def largest(parameters):
        return float(fit.predicted_loss(surface.law, parameters, {n: v[-1] for n, v in columns.items()}))

    found = fit.jackknife(surface, budgets, {"largest": largest})
    refits = [
        surface_of({n: v[budgets != left] for n, v in columns.items()}, losses[budgets != left])
        for left in np.unique(budgets)
    ]
    quantile = stats.t.ppf(0.975, 4)
    for name, value, without in (
        ("a", surface.parameters["a"], [refit.parameters["a"] for refit in refits]),
        ("largest", largest(surface.parameters), [largest(refit.parameters) for refit in refits]),
    ):
        error = math.sqrt(4 / 5 * np.sum((np.array(without) - np.mean(without)) ** 2))
        estimate = found.estimates[name]
        assert estimate.value == value
        assert estimate.standard_error == pytest.approx(error, rel=1e-4)
        assert [estimate.low, estimate.high] == pytest.approx(
            [value - quantile * error, value + quantile * error], rel=1e-5
        )
        assert found.influence[name] == pytest.approx(value - np.array(without), abs=1e-6)
    assert found.group_names == tuple(str(budget) for budget in np.unique(budgets))
    assert found.estimates["allocation_exponent"].low < 0.45 / 0.8 < found.estimates["allocation_exponent"].high


def test_coefficients_have_intervals_of_their_logarithms():
    columns, exact, budgets = grid(5, 5)
    estimate = fit.jackknife(surface_of(columns, noisy(exact)), budgets).estimates["A"]
    assert estimate.value**2 == pytest.approx(estimate.low * estimate.high)
    assert estimate.low > 0


def test_budgets_that_share_an_error_are_covered_by_leaving_them_out():
    columns, exact, budgets = grid()
    _, place = np.unique(budgets, return_inverse=True)
    covered = {"budgets": 0, "runs": 0}
    for seed in range(25):
        shared = 0.004 * np.random.default_rng([seed, 1]).standard_normal(6)[place]
        surface = surface_of(columns, noisy(exact, seed) * np.exp(shared))
        for words, groups in (("budgets", budgets), ("runs", range(42))):
            estimate = fit.jackknife(surface, groups).estimates["E"]
            covered[words] += estimate.low <= 1.0 <= estimate.high
    assert covered["budgets"] >= 21
    assert covered["runs"] < covered["budgets"]


def test_few_groups_and_medians_are_flagged():
    columns, exact, budgets = grid(4, 5)
    losses = noisy(exact)
    assert [f.code for f in fit.jackknife(surface_of(columns, losses), budgets).warnings] == ["few_groups"]
    medians = surface_of(columns, losses, objective="huber_log", delta=1e-4)
    assert [f.code for f in fit.jackknife(medians, range(20)).warnings] == ["jackknife_of_medians"]
    assert fit.jackknife(surface_of(columns, losses), range(20)).warnings == ()


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([0] * 10 + [1] * 10, "2 groups cannot be left out in turn"),
        ([0, 1, 2], "has 3 labels for 20 rows"),
        ([0] * 18 + [1, 2], "without its largest group the fit has 2 rows"),
    ],
)
def test_groups_that_cannot_be_left_out_are_refused(groups, words):
    columns, exact, _ = grid(4, 5)
    with pytest.raises(BadInput, match=words):
        fit.jackknife(surface_of(columns, noisy(exact)), groups)


@pytest.mark.parametrize("objective", ["squares_log", "squares_raw"])
def test_a_residual_bootstrap_says_that_it_under_covers(objective):
    columns, exact, _ = grid(4, 5)
    surface = surface_of(columns, noisy(exact), objective=objective)
    found = fit.residual_bootstrap(surface, draws=200, seed=3)
    assert found.warnings[-1].code == "under_covers"
    assert "under-cover" in found.estimates["a"].method
    assert found.estimates["a"].low < surface.parameters["a"] < found.estimates["a"].high
    again = fit.residual_bootstrap(surface, draws=200, seed=3)
    assert (again.draws["a"] == found.draws["a"]).all()
    # For least squares the spread is that of the minimum, to the bootstrap's own error.
    error = fit.diagnose(surface, columns, noisy(exact)).standard_errors["a"]
    assert found.estimates["a"].standard_error == pytest.approx(error, rel=0.25)
