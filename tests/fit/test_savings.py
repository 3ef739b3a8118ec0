"""Gains at matched loss and crossings: inverse to one another, covered by their intervals, refused out of reach."""

import dataclasses

import numpy as np
import pytest

from smelt import fit
from tests.fit.planted import grid, only

RANGE = (1e18, 1e21)
REFERENCE = fit.given_frontier(1.5, 40.0, 0.08, RANGE)
BETTER = fit.given_frontier(1.5, 40.0 * 0.8**0.08, 0.08, RANGE)  # worth the reference at 1/0.8 of the compute


def with_draws(frontier: fit.Frontier, noise: float, seed: int, num_draws: int = 2000) -> fit.Frontier:
    """The frontier with draws whose logarithm of the loss above the floor scatters by `noise` at 1e20 FLOPs."""
    generator = np.random.default_rng(seed)
    exponent = frontier.exponent * (1 + 0.02 * generator.standard_normal(num_draws))
    shift = noise * generator.standard_normal(num_draws) + (exponent - frontier.exponent) * np.log(1e20)
    draws = {
        "floor": np.full(num_draws, frontier.floor),
        "log_coefficient": frontier.log_coefficient + shift,
        "exponent": exponent,
    }
    return dataclasses.replace(frontier, draws=draws)


def test_the_gain_at_a_loss_is_the_saving_where_the_target_has_that_loss():
    for budget in (1e18, 1e19, 5e20):
        loss = float(BETTER.loss(budget))
        gain = fit.gain_at_loss(BETTER, REFERENCE, [loss])[0]
        saving = fit.savings(BETTER, REFERENCE, [budget])[0]
        assert gain.gain.value == pytest.approx(1.25, rel=1e-9)
        assert gain.saving.value == pytest.approx(saving.estimate.value, rel=1e-9)
        assert gain.target_flops == pytest.approx(budget, rel=1e-9)
        assert gain.reference_flops == pytest.approx(saving.reference_flops, rel=1e-9)
        assert gain.extrapolation == pytest.approx(saving.extrapolation, rel=1e-9)


def test_a_gain_has_the_interval_of_the_joint_draws():
    target, reference = with_draws(BETTER, 0.001, 1), with_draws(REFERENCE, 0.001, 2)
    gain = fit.gain_at_loss(target, reference, [float(BETTER.loss(1e20))])[0]
    assert gain.gain.low < 1.25 < gain.gain.high
    # ln gain = difference of the two shifts over the exponent, 2 x 0.001 squared; the exponents add a little.
    assert np.log(gain.gain.high / gain.gain.low) == pytest.approx(2 * 1.96 * np.sqrt(2) * 0.001 / 0.08, rel=0.1)
    assert gain.saving.low == pytest.approx(1 - 1 / gain.gain.low, rel=1e-9)
    assert gain.unreached_frac == 0
    assert gain.share_positive > 0.99
    same = fit.gain_at_loss(target, target, [float(BETTER.loss(1e20))])[0]
    assert same.gain.low == same.gain.high == 1.0


@pytest.mark.parametrize(
    ("loss", "words"),
    [(1.4, "target's floor"), (1.6, "reference's floor"), (3.6, "beyond the data")],
)
def test_a_loss_that_a_frontier_never_reaches_or_far_from_the_data_gives_a_reason(loss, words):
    reference = fit.given_frontier(1.7, 40.0, 0.08, RANGE)
    gain = fit.gain_at_loss(BETTER, reference, [loss])[0]
    assert gain.gain.value is None
    assert gain.saving.value is None
    assert words in gain.gain.reason
    assert [flag.code for flag in gain.warnings] == ["no_saving"]


def test_draws_that_never_reach_a_loss_are_counted():
    floors = np.linspace(1.4, 1.8, 400)
    draws = {"floor": floors, "log_coefficient": np.full(400, np.log(40.0)), "exponent": np.full(400, 0.08)}
    reference = dataclasses.replace(REFERENCE, draws=draws)
    loss = float(BETTER.loss(1e21))
    gain = fit.gain_at_loss(with_draws(BETTER, 1e-6, 0, 400), reference, [loss])[0]
    assert gain.unreached_frac == pytest.approx(np.mean(floors >= loss), abs=1e-9)


def test_frontiers_cross_where_their_losses_are_equal_and_say_so_inside_the_data():
    steep = fit.given_frontier(1.5, 40.0 * (1e20) ** 0.02, 0.10, RANGE)  # equal to the reference at 1e20
    found = fit.crossing(steep, REFERENCE)
    assert found.compute.value == pytest.approx(1e20, rel=1e-9)
    assert found.loss == pytest.approx(float(REFERENCE.loss(1e20)), rel=1e-9)
    assert found.better_above
    assert found.extrapolation == 1.0
    assert [flag.code for flag in found.warnings] == ["frontiers_cross"]
    assert not fit.crossing(REFERENCE, steep).better_above


def test_a_crossing_outside_the_data_is_flagged_and_far_outside_has_a_reason():
    near = fit.crossing(fit.given_frontier(1.5, 40.0 * (5e21) ** 0.02, 0.10, RANGE), REFERENCE)
    assert near.compute.value == pytest.approx(5e21, rel=1e-9)
    assert near.extrapolation == pytest.approx(5, rel=1e-9)
    assert [flag.code for flag in near.warnings] == ["extrapolated"]
    far = fit.crossing(fit.given_frontier(1.5, 40.0 * (1e24) ** 0.02, 0.10, RANGE), REFERENCE)
    assert far.compute.value is None
    assert "cross at 1e+24" in far.compute.reason
    assert "1e+03 times" in far.compute.reason


def test_frontiers_that_never_cross_say_which_is_the_lower():
    for pair, word in (((BETTER, REFERENCE), "below"), ((REFERENCE, BETTER), "above"), ((BETTER, BETTER), "the same")):
        found = fit.crossing(*pair)
        assert found.compute.value is None
        assert word in found.compute.reason
        assert found.better_above is None


def test_of_two_crossings_the_one_nearest_the_data_is_given():
    # A lower floor, a smaller coefficient and a smaller exponent: worse in the middle only.
    target = fit.given_frontier(1.0, 6.0, 0.02, (1e10, 1e30))
    reference = fit.given_frontier(1.5, 40.0, 0.08, (1e10, 1e30))
    compute = np.geomspace(1e2, 1e80, 400_001)
    gap = target.loss(compute) - reference.loss(compute)
    roots = compute[np.flatnonzero(np.diff(np.sign(gap)))]
    assert len(roots) == 2
    found = fit.crossing(target, reference)
    middle = 1e20
    nearest = min(roots, key=lambda root: abs(np.log(root / middle)))
    assert fit.crossing(target, reference).loss == pytest.approx(float(target.loss(nearest)), rel=1e-3)
    assert found.better_above == (gap[np.searchsorted(compute, nearest) - 10] > 0)


def test_the_interval_of_a_crossing_counts_draws_without_one_at_the_end_where_they_belong():
    steep = fit.given_frontier(1.5, 40.0 * (1e20) ** 0.02, 0.10, RANGE)
    generator = np.random.default_rng(0)
    shift = 0.01 * generator.standard_normal(2000)
    draws = {
        "floor": np.full(2000, 1.5),
        "log_coefficient": steep.log_coefficient + shift,
        "exponent": np.full(2000, 0.10),
    }
    fixed = {
        "floor": np.full(2000, 1.5),
        "log_coefficient": np.full(2000, np.log(40.0)),
        "exponent": np.full(2000, 0.08),
    }
    found = fit.crossing(dataclasses.replace(steep, draws=draws), dataclasses.replace(REFERENCE, draws=fixed))
    assert found.crossing_frac == 1.0
    assert np.log(found.compute.low / 1e20) == pytest.approx(-1.96 * 0.01 / 0.02, rel=0.1)
    assert np.log(found.compute.high / 1e20) == pytest.approx(1.96 * 0.01 / 0.02, rel=0.1)
    # A tenth of the draws are parallel to the reference and worse: the target gets ahead at no compute.
    draws["exponent"] = np.where(np.arange(2000) < 200, 0.08, 0.10)
    draws["log_coefficient"] = np.where(np.arange(2000) < 200, np.log(41.0), draws["log_coefficient"])
    found = fit.crossing(dataclasses.replace(steep, draws=draws), dataclasses.replace(REFERENCE, draws=fixed))
    assert found.crossing_frac == pytest.approx(0.9)
    assert found.compute.high is None
    assert "infinite" in found.compute.reason


def test_the_gain_of_a_planted_saving_is_inside_its_interval_in_most_of_forty_grids():
    inside = []
    for seed in range(40):
        table = grid(seed, saving=0.1)
        rows_of = {group: only(table, group) for group in ("base", "target")}
        units = {
            group: [f"{b:g} {p}" for b, p in zip(rows["budget_flops"], rows["pair"], strict=True)]
            for group, rows in rows_of.items()
        }
        counts = fit.joint_counts(units, draws=200, seed=seed)
        frontiers = {}
        for group, rows in rows_of.items():
            surface = fit.bootstrap(fit.fit_surface(rows, rows["loss_nats"], "flops_tokens"), counts=counts[group])
            frontiers[group] = fit.surface_frontier(surface, compute_range_flops=(1e11, 8e11))
        loss = float(frontiers["base"].loss(4e11))
        gain = fit.gain_at_loss(frontiers["target"], frontiers["base"], [loss])[0].gain
        inside.append(gain.low <= 1 / 0.9 <= gain.high)
    assert np.mean(inside) >= 0.9
