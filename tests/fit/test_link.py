"""Links of accuracy to loss: planted sigmoids come back with intervals that cover, and what is not seen is said."""

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput

PLANTED = {"b": 0.25, "a": 0.6, "k": 4.0, "midpoint": 2.8}


def planted(loss):
    return PLANTED["b"] + PLANTED["a"] / (1 + np.exp(PLANTED["k"] * (np.asarray(loss) - PLANTED["midpoint"])))


def runs(num_runs=30, *, noise=0.01, seed=0, low=2.0, high=4.0):
    generator = np.random.default_rng(seed)
    loss = generator.uniform(low, high, num_runs)
    return loss, planted(loss) + noise * generator.standard_normal(num_runs)


def codes(found) -> set[str]:
    return {flag.code for flag in found.warnings}


@pytest.mark.parametrize("chance", [None, 0.25])
@pytest.mark.parametrize("num_runs", [6, 25])
def test_a_noise_free_sigmoid_comes_back_certified(num_runs, chance):
    loss = np.linspace(2.0, 4.0, num_runs)
    link = fit.fit_link(loss, planted(loss), chance=chance, draws=0)
    for name, value in PLANTED.items():
        assert link.parameters[name] == pytest.approx(value, rel=1e-6)
    assert link.certificate.certified
    assert link.certificate.num_starts_agreeing >= 2
    np.testing.assert_allclose(link.accuracy(loss), planted(loss), rtol=1e-9)


def test_no_sigmoid_on_a_fine_grid_has_less_squares():
    loss, accuracy = runs(20, noise=0.04, seed=3)
    link = fit.fit_link(loss, accuracy, draws=0)
    best = float(link.residuals @ link.residuals)
    for k in np.geomspace(0.3, 100, 60):
        for midpoint in np.linspace(1.0, 5.0, 81):
            basis = np.stack([np.ones_like(loss), 1 / (1 + np.exp(np.clip(k * (loss - midpoint), -500, 500)))], axis=1)
            coefficients, *_ = np.linalg.lstsq(basis, accuracy, rcond=None)
            if coefficients[1] > 0:
                residual = accuracy - basis @ coefficients
                assert float(residual @ residual) >= best * (1 - 1e-9)


def test_units_of_the_loss_and_the_order_of_rows_move_nothing():
    loss, accuracy = runs(seed=1)
    one = fit.fit_link(loss, accuracy, draws=0)
    bits = fit.fit_link(loss / np.log(2), accuracy, draws=0)
    assert bits.parameters["k"] == pytest.approx(one.parameters["k"] * np.log(2), rel=1e-6)
    assert bits.parameters["midpoint"] == pytest.approx(one.parameters["midpoint"] / np.log(2), rel=1e-6)
    order = np.random.default_rng(0).permutation(len(loss))
    labels = [f"run {i}" for i in range(len(loss))]
    first = fit.fit_link(loss, accuracy, units=labels, draws=100)
    again = fit.fit_link(loss[order], accuracy[order], units=[labels[i] for i in order], draws=100)
    for name in PLANTED:
        assert again.estimates[name].low == pytest.approx(first.estimates[name].low, rel=1e-6)


def test_an_error_is_the_link_upside_down():
    loss, accuracy = runs(seed=2)
    falling = fit.fit_link(loss, accuracy, chance=0.25, draws=50)
    rising = fit.fit_link(loss, 1 - accuracy, chance=0.75, direction="rising", draws=50)
    assert rising.parameters["a"] == pytest.approx(-falling.parameters["a"], rel=1e-6)
    assert rising.parameters["k"] == pytest.approx(falling.parameters["k"], rel=1e-6)
    np.testing.assert_allclose(rising.accuracy(loss), 1 - falling.accuracy(loss), atol=1e-9)
    with pytest.raises(BadInput, match="give direction='rising'"):
        fit.fit_link(loss, 1 - accuracy)


def test_intervals_of_parameters_and_of_a_new_run_cover_in_most_sets_of_runs():
    inside: dict[str, list[bool]] = {name: [] for name in (*PLANTED, "expected", "run")}
    for seed in range(45):
        loss, accuracy = runs(25, seed=seed)
        link = fit.fit_link(loss, accuracy, draws=200, seed=seed)
        for name, value in PLANTED.items():
            interval = link.estimates[name]
            if interval.low is not None:
                inside[name].append(interval.low <= value <= interval.high)
        prediction = fit.predict_accuracy(link, 2.3, seed=seed)
        inside["expected"].append(prediction.expected.low <= planted(2.3) <= prediction.expected.high)
        new = planted(2.3) + 0.01 * np.random.default_rng([seed, 1]).standard_normal()
        inside["run"].append(prediction.estimate.low <= new <= prediction.estimate.high)
    # Over 600 sets .95 to .96 of the parameters, .93 of what is expected and .955 of runs: 45 sets scatter by .04.
    for name, hits in inside.items():
        assert len(hits) >= 40, name
        assert np.mean(hits) >= 0.85, name


def test_checkpoints_of_one_run_count_as_one_unit():
    loss, accuracy = runs(12, seed=4)
    repeated = np.repeat(loss, 5), np.repeat(accuracy, 5)
    units = np.repeat(np.arange(12), 5)
    once = fit.fit_link(loss, accuracy, units=range(12), draws=300)
    clustered = fit.fit_link(*repeated, units=units.tolist(), draws=300)
    naive = fit.fit_link(*repeated, draws=300)
    assert clustered.estimates["midpoint"].low == pytest.approx(once.estimates["midpoint"].low, rel=1e-6)
    assert clustered.estimates["midpoint"].standard_error > 1.5 * naive.estimates["midpoint"].standard_error


def test_a_loss_that_is_uncertain_widens_the_accuracy_by_its_slope():
    link = fit.fit_link(*runs(200, noise=0.002), draws=200)
    draws = 2.8 + 0.02 * np.random.default_rng(0).standard_normal(4000)
    known, drawn = fit.predict_accuracy(link, 2.8), fit.predict_accuracy(link, 2.8, loss_draws=draws)
    slope = 0.6 * 4.0 / 4  # of the sigmoid at its midpoint
    assert drawn.expected.standard_error == pytest.approx(0.02 * slope, rel=0.15)
    assert known.expected.standard_error < 0.2 * drawn.expected.standard_error
    assert known.estimate.standard_error > known.expected.standard_error


def test_losses_on_one_side_of_the_bend_leave_the_other_end_open():
    one_side = fit.fit_link(*runs(40, low=3.1, seed=5), draws=100)
    assert "low_end_open" in codes(one_side)
    assert one_side.estimates["midpoint"].low is None
    assert "level off at low losses" in one_side.estimates["midpoint"].reason
    straight = fit.fit_link(*runs(40, noise=0.03, low=2.9, high=3.3, seed=1), draws=100)
    assert "no_bend" in codes(straight)
    inside = fit.predict_accuracy(straight, 3.1).expected
    assert inside.low < planted(3.1) < inside.high
    whole = fit.fit_link(*runs(40), draws=100)
    assert not whole.warnings


def test_a_midpoint_outside_the_losses_and_scores_at_chance_are_flagged():
    high_only = fit.fit_link(*runs(40, low=3.0, seed=5), chance=0.25, draws=0)
    assert "midpoint_outside" in codes(high_only)
    flat = fit.fit_link(*runs(40, noise=0.03, low=2.9, high=6.0, seed=2), chance=0.25, draws=0)
    assert "at_chance" in codes(flat)


def test_a_prediction_outside_the_losses_seen_or_at_chance_says_so():
    link = fit.fit_link(*runs(40), draws=100)
    assert fit.predict_accuracy(link, 2.5).loss_outside == 0
    below = fit.predict_accuracy(link, 1.8)
    assert below.loss_outside == pytest.approx(link.loss_range[0] - 1.8)
    assert codes(below) == {"extrapolated"}
    assert "extrapolated_far" in codes(fit.predict_accuracy(link, 0.5))
    assert "at_chance" in codes(fit.predict_accuracy(link, 3.99))


@pytest.mark.parametrize(
    ("loss", "accuracy", "options", "words"),
    [
        ([2, 3, 4], [0.6, 0.4, 0.3], {}, "3 different losses cannot fix the 4 parameters"),
        ([2, 3, 3, 3], [0.6, 0.4, 0.3, 0.3], {"chance": 0.2}, "2 different losses"),
        ([2, 3, 4, 5], [0.3] * 4, {}, "0.3 in every row"),
        ([2, 3, 4, 5], [0.6, 0.5, np.nan, 0.3], {}, "nan in row 2"),
        ([2, 3, 4, -5], [0.6, 0.5, 0.4, 0.3], {}, "loss is -5 in row 3"),
        ([2, 3, 4, 5], [0.6, 0.5, 0.4], {}, "one number a row"),
        ([2, 3, 4, 5], ["a"] * 4, {}, "no number"),
        ([2, 3, 4, 5], [0.6, 0.5, 0.4, 0.3], {"direction": "down"}, "direction is 'down'"),
        ([2, 3, 4, 5], [0.6, 0.5, 0.4, 0.3], {"units": ["a"]}, "one a row"),
        ([2, 3, 4, 5], [60, 50, 40, 30], {"chance": 0.25}, "both as shares, or both in per cent"),
        ([2, 3, 4, 5], [0.6, 0.5, 0.4, 0.3], {"chance": 25}, "no score is above it, the best is 0.6"),
        ([2, 3, 4, 5], [0.4, 0.5, 0.6, 0.7], {"chance": 0.3, "direction": "rising"}, "no score is below it"),
        ([2, 3, 4, 5], [0.6, 0.5, 0.4, 0.3], {"chance": float("nan")}, "chance is nan"),
        ([2, 2 + 1e-12, 2 + 2e-12, 2 + 3e-12], [0.6, 0.5, 0.4, 0.3], {}, "1 different losses"),
    ],
)
def test_rows_that_no_link_can_be_fitted_to_are_refused(loss, accuracy, options, words):
    with pytest.raises(BadInput, match=words):
        fit.fit_link(loss, accuracy, **options)


def test_as_many_rows_as_parameters_leave_the_scatter_unknown():
    loss = np.array([2.0, 2.6, 3.0, 3.6])
    link = fit.fit_link(loss, planted(loss), draws=20)
    assert link.noise is None
    prediction = fit.predict_accuracy(link, 2.8)
    assert prediction.estimate.low is None
    assert "scatter of a run is unknown" in prediction.estimate.reason
    assert fit.jsonable(link)["loss_range"] == [2.0, 3.6]


def test_no_draws_of_a_loss_are_no_draws_at_zero():
    loss = np.linspace(2.0, 4.0, 9)
    link = fit.fit_link(loss, planted(loss), draws=40)
    with pytest.raises(BadInput, match="loss_draws is empty"):
        fit.predict_accuracy(link, 2.5, loss_draws=[])
