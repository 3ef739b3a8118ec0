"""Frontiers and savings: analytic forms agree with brute force, inversions refuse what the data do not reach."""

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from tests.fit.planted import CHINCHILLA, chinchilla_twin

BUDGETS = np.geomspace(1e18, 1e21, 6)


def noise_free_chinchilla() -> fit.SurfaceFit:
    columns, _ = chinchilla_twin()
    return fit.fit_surface(columns, fit.predicted_loss(fit.CHINCHILLA, CHINCHILLA, columns), "chinchilla")


@pytest.mark.parametrize("flops_per_unit", [6.0, 7.3])
def test_the_frontier_of_chinchilla_is_the_least_loss_on_every_budget(flops_per_unit):
    surface = noise_free_chinchilla()
    frontier = fit.surface_frontier(surface, compute_range_flops=(1e18, 1e22), flops_per_unit=flops_per_unit)
    alpha, beta = CHINCHILLA["alpha"], CHINCHILLA["beta"]
    assert frontier.exponent == pytest.approx(alpha * beta / (alpha + beta), rel=1e-6)
    for compute in (1e18, 1e20, 1e22):
        sizes = np.geomspace(1e7, 1e12, 20001)
        tokens = compute / flops_per_unit / sizes
        losses = surface.predict({"num_params": sizes, "num_tokens": tokens})
        optimum = fit.surface_optimum(surface, compute, flops_per_unit=flops_per_unit)
        assert float(frontier.loss(compute)) == pytest.approx(losses.min(), rel=1e-7)
        assert optimum.loss.value == pytest.approx(losses.min(), rel=1e-7)
        assert optimum.size.value == pytest.approx(sizes[losses.argmin()], rel=2e-3)
        assert optimum.size.value * optimum.num_tokens.value * flops_per_unit == pytest.approx(compute, rel=1e-9)


def test_the_analytic_allocation_exponents_are_those_of_the_law():
    surface = noise_free_chinchilla()
    low, high = (fit.surface_optimum(surface, c, flops_per_unit=6.0) for c in (1e19, 1e23))
    slope = np.log(high.size.value / low.size.value) / np.log(1e4)
    alpha, beta = CHINCHILLA["alpha"], CHINCHILLA["beta"]
    assert slope == pytest.approx(beta / (alpha + beta), rel=1e-6)


def test_saturating_and_pure_frontiers_recover_their_points():
    saturating = fit.fit_frontier(BUDGETS, 1.7 + 40 * BUDGETS**-0.08, saturating=True)
    assert saturating.floor == pytest.approx(1.7, rel=1e-6)
    assert saturating.exponent == pytest.approx(0.08, rel=1e-6)
    pure = fit.fit_frontier(BUDGETS, 40 * BUDGETS**-0.08, saturating=False)
    assert pure.floor == 0.0
    assert pure.exponent == pytest.approx(0.08, rel=1e-9)
    no_floor = fit.fit_frontier(BUDGETS, 40 * BUDGETS**-0.08, saturating=True)
    assert "floor_not_identified" in {flag.code for flag in no_floor.warnings}


def test_inverting_a_frontier_undoes_it_and_its_floor_is_never_reached():
    frontier = fit.given_frontier(1.7, 40.0, 0.08, (1e18, 1e21))
    np.testing.assert_allclose(frontier.compute(frontier.loss(BUDGETS)), BUDGETS, rtol=1e-9)
    assert np.isinf(frontier.compute(1.7))
    assert np.isinf(frontier.compute(1.2))


def test_a_bent_frontier_is_not_called_a_pure_power_law():
    generator = np.random.default_rng(0)
    losses = 1.7 + 5e3 * BUDGETS**-0.2
    draws = losses + 0.001 * generator.standard_normal((500, len(losses)))
    bent = fit.fit_frontier(BUDGETS, losses, saturating=False, loss_draws=draws)
    assert "pure_law_misses" in {flag.code for flag in bent.warnings}
    noise = 0.001 * generator.standard_normal(len(losses))
    straight = 40 * BUDGETS**-0.08 + noise
    draws = straight + 0.001 * generator.standard_normal((500, len(losses)))
    assert not fit.fit_frontier(BUDGETS, straight, saturating=False, loss_draws=draws).warnings


@pytest.mark.parametrize(
    ("compute", "saturating"), [([1e18], False), ([1e18, 1e19], True), ([1e18, 1e18, 1e18], False)]
)
def test_too_few_budgets_are_refused(compute, saturating):
    with pytest.raises(BadInput, match="budgets cannot fix"):
        fit.fit_frontier(compute, [3.0] * len(compute), saturating=saturating)


def test_a_saving_is_the_compute_that_the_reference_would_need():
    reference = fit.given_frontier(1.5, 40.0, 0.08, (1e18, 1e21))
    # The target is worth the reference at 1/0.8 of the compute, everywhere.
    target = fit.given_frontier(1.5, 40.0 * 0.8**0.08, 0.08, (1e18, 1e21))
    for saving in fit.savings(target, reference, [1e18, 1e19, 5e20]):
        assert saving.estimate.value == pytest.approx(0.2, rel=1e-9)
        assert saving.reference_flops == pytest.approx(saving.budget_flops / 0.8, rel=1e-9)
        assert saving.estimate.low is None
        assert saving.estimate.reason == "no draws were made"
    backwards = fit.savings(reference, target, [1e19])[0].estimate.value
    assert backwards == pytest.approx(1 - 1 / 0.8, rel=1e-9)


def test_a_loss_below_the_floor_or_far_outside_the_data_gives_a_reason_and_no_number():
    reference = fit.given_frontier(2.0, 40.0, 0.08, (1e18, 1e21))
    below = fit.savings(fit.given_frontier(1.0, 40.0, 0.12, (1e18, 1e21)), reference, [1e21])[0]
    assert below.estimate.value is None
    assert "floor" in below.estimate.reason
    assert [flag.code for flag in below.warnings] == ["no_saving"]
    much = fit.savings(fit.given_frontier(2.0, 30.0, 0.08, (1e18, 1e21)), reference, [1e21])[0]
    assert much.estimate.value is None
    assert "beyond the data" in much.estimate.reason
    some = fit.savings(fit.given_frontier(2.0, 38.0, 0.08, (1e18, 1e21)), reference, [1e21])[0]
    assert some.estimate.value is not None
    assert [flag.code for flag in some.warnings] == ["extrapolated"]


def test_the_other_columns_of_a_law_must_be_given_for_its_frontier():
    generator = np.random.default_rng(0)
    columns = {
        "flops_per_token": 10 ** generator.uniform(8, 10, 30),
        "density": generator.choice([0.15, 0.05, 0.03], 30),
        "num_tokens": 10 ** generator.uniform(10, 11, 30),
    }
    planted = {"E": 1.4, "A": 1.4e3, "K": 2e6, "a": 0.37, "b": 0.15, "c": 0.66}
    surface = fit.fit_surface(columns, fit.predicted_loss(fit.SMELT, planted, columns), "smelt")
    with pytest.raises(BadInput, match="'density'"):
        fit.surface_frontier(surface, compute_range_flops=(1e18, 1e21))
    with pytest.raises(BadInput, match="flops_per_unit"):
        fit.surface_frontier(noise_free_chinchilla(), compute_range_flops=(1e18, 1e21))


def test_an_optimum_says_how_far_it_lies_outside_the_rows():
    sizes = np.geomspace(1e8, 1e10, 8)
    columns = {
        "num_params": np.repeat(sizes, 4),
        "num_tokens": np.concatenate([s * np.array([5, 10, 20, 40]) for s in sizes]),
    }
    surface = fit.fit_surface(columns, fit.predicted_loss(fit.CHINCHILLA, CHINCHILLA, columns), "chinchilla")
    inside = fit.surface_optimum(surface, 1e20, flops_per_unit=6.0)
    assert inside.extrapolation == 1.0
    assert not inside.warnings
    largest = 6 * 1e10 * 4e11
    outside = fit.surface_optimum(surface, 5 * largest, flops_per_unit=6.0)
    assert outside.extrapolation == pytest.approx(5, rel=1e-9)
    assert [flag.code for flag in outside.warnings] == ["extrapolated"]
    assert "5 times outside the rows in compute" in outside.warnings[0].message
    far = fit.surface_optimum(surface, 100 * largest, flops_per_unit=6.0)
    assert [flag.code for flag in far.warnings] == ["extrapolated_far"]
    # Inside the compute that the rows cover, but with fewer tokens than any run has had.
    small = fit.surface_optimum(surface, 6 * 1e8 * 5e8, flops_per_unit=6.0)
    assert small.extrapolation > 1
