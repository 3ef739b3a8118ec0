"""Envelopes of planted training curves: exponents come back, and what an envelope cannot show is said."""

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from tests.fit.planted import CHINCHILLA

SIZE_EXPONENT = CHINCHILLA["beta"] / (CHINCHILLA["alpha"] + CHINCHILLA["beta"])


def curves(num_sizes=8, ratio=2.0, *, noise=0.0, seed=0, num_seeds=1, tokens_per_param=(0.5, 200.0), floor=None):
    """Points of training curves of Chinchilla's law, a run a size and seed, each off by a factor of its own."""
    generator = np.random.default_rng(seed)
    law = CHINCHILLA if floor is None else {**CHINCHILLA, "E": floor}
    columns: dict[str, list] = {"run": [], "num_params": [], "num_tokens": [], "loss": []}
    for index, size in enumerate(5e7 * ratio ** np.arange(num_sizes)):
        tokens = size * np.geomspace(*tokens_per_param, 50)
        clean = fit.predicted_loss(fit.CHINCHILLA, law, {"num_params": size, "num_tokens": tokens})
        for repeat in range(num_seeds):
            columns["run"] += [f"{index}.{repeat}"] * len(tokens)
            columns["num_params"] += [size] * len(tokens)
            columns["num_tokens"] += list(tokens)
            columns["loss"] += list(clean * np.exp(noise * generator.normal()))
    return columns


def codes(found: fit.Envelope) -> set[str]:
    return {flag.code for flag in found.warnings}


@pytest.mark.parametrize(("num_sizes", "ratio"), [(6, 2.0), (8, 2.0), (12, 1.5)])
def test_noise_free_curves_give_the_exponents_and_a_line_through_all_points_does_not(num_sizes, ratio):
    found = fit.envelope(**curves(num_sizes, ratio), flops_per_unit=6.0, draws=0)
    assert found.allocation["num_params"].exponent.value == pytest.approx(SIZE_EXPONENT, abs=0.0005)
    assert found.allocation["num_tokens"].exponent.value == pytest.approx(1 - SIZE_EXPONENT, abs=0.0005)
    assert found.exponents_of_all_points["num_params"].value < SIZE_EXPONENT - 0.05


def test_sizes_tokens_and_losses_of_the_envelope_are_those_of_the_lowest_run():
    columns = curves()
    found = fit.envelope(**columns, flops_per_unit=6.0, draws=0)
    np.testing.assert_allclose(6 * found.num_params * found.num_tokens, found.compute_flops, rtol=1e-9)
    sizes = np.unique(columns["num_params"])
    for compute, size, loss in zip(found.compute_flops[::40], found.num_params[::40], found.loss[::40], strict=True):
        possible = sizes[(compute / 6 / sizes >= 0.5 * sizes) & (compute / 6 / sizes <= 200 * sizes)]
        clean = fit.predicted_loss(
            fit.CHINCHILLA, CHINCHILLA, {"num_params": possible, "num_tokens": compute / 6 / possible}
        )
        assert size == pytest.approx(possible[clean.argmin()], rel=1e-9)
        assert loss == pytest.approx(clean.min(), rel=1e-4)  # a line between points of a curve


def test_the_size_of_the_law_is_the_optimal_one():
    found = fit.envelope(**curves(), flops_per_unit=6.0, draws=0)
    a, b = CHINCHILLA["alpha"], CHINCHILLA["beta"]
    for compute in (1e19, 1e21):
        best = (a * CHINCHILLA["A"] * (compute / 6) ** b / (b * CHINCHILLA["B"])) ** (1 / (a + b))
        assert float(found.allocation["num_params"].at(compute)) == pytest.approx(best, rel=0.05)
        assert float(found.allocation["num_tokens"].at(compute)) == pytest.approx(compute / 6 / best, rel=0.05)


def test_the_frontier_of_a_law_without_a_floor_is_its_power_law():
    found = fit.envelope(**curves(floor=1e-9, num_sizes=10), flops_per_unit=6.0, draws=200)
    a, b = CHINCHILLA["alpha"], CHINCHILLA["beta"]
    assert found.frontier.exponent == pytest.approx(a * b / (a + b), rel=0.005)
    assert found.frontier.draws["exponent"].shape == (200,)
    low, high = found.frontier.compute_range_flops
    assert found.compute_flops[0] < low < high < found.compute_flops[-1]


def test_the_exponent_is_inside_its_interval_in_most_of_forty_sets_of_noisy_curves():
    inside = []
    for seed in range(40):
        found = fit.envelope(
            **curves(10, 1.7, noise=0.002, num_seeds=2, seed=seed), flops_per_unit=6.0, draws=100, num_points=200
        )
        exponent = found.allocation["num_params"].exponent
        inside.append(exponent.low <= SIZE_EXPONENT <= exponent.high)
    assert np.mean(inside) >= 0.9


def test_given_compute_is_the_same_as_counted_compute_and_one_of_them_is_needed():
    columns = curves(6)
    counted = fit.envelope(**columns, flops_per_unit=6.0, draws=0)
    compute = 6 * np.array(columns["num_params"]) * np.array(columns["num_tokens"])
    given = fit.envelope(**columns, train_flops=compute, draws=0)
    assert given.allocation["num_params"].exponent == counted.allocation["num_params"].exponent
    with pytest.raises(BadInput, match="not known, or known twice"):
        fit.envelope(**columns)


def test_the_order_of_points_moves_nothing():
    columns = curves(6, noise=0.002)
    order = np.random.default_rng(0).permutation(len(columns["loss"]))
    shuffled = {name: [values[i] for i in order] for name, values in columns.items()}
    one, two = (fit.envelope(**c, flops_per_unit=6.0, draws=50) for c in (columns, shuffled))
    assert one.allocation["num_params"].exponent == two.allocation["num_params"].exponent


def test_what_an_envelope_cannot_show_is_said():
    plain = fit.envelope(**curves(), flops_per_unit=6.0, draws=0)
    assert codes(plain) == {"mid_schedule", "held_by_an_end"}
    finished = fit.envelope(**curves(), flops_per_unit=6.0, draws=0, finished_points=True)
    assert "mid_schedule" not in codes(finished)
    few = fit.envelope(**curves(4), flops_per_unit=6.0, draws=0)
    assert "few_runs" in codes(few)
    short = fit.envelope(**curves(tokens_per_param=(0.5, 15.0)), flops_per_unit=6.0, draws=0)
    assert "lowest_curve_ends" in codes(short)


def test_sizes_that_share_no_compute_are_named_or_refused():
    near, far = curves(4), curves(4)
    far["num_params"] = [1e3 * size for size in far["num_params"]]
    far["num_tokens"] = [1e3 * tokens for tokens in far["num_tokens"]]
    far["run"] = [f"far {run}" for run in far["run"]]
    both = {name: near[name] + far[name] for name in near}
    assert "curves_do_not_overlap" in codes(fit.envelope(**both, flops_per_unit=6.0, draws=0))
    alone = curves(2, ratio=1e3)
    with pytest.raises(BadInput, match="no two sizes"):
        fit.envelope(**alone, flops_per_unit=6.0)


def test_warm_up_points_are_flagged_and_can_be_left_out():
    columns = curves(tokens_per_param=(0.5, 2000.0))
    assert "early_points" in codes(fit.envelope(**columns, flops_per_unit=6.0, draws=0))
    skipped = fit.envelope(**columns, flops_per_unit=6.0, draws=0, skip_tokens=1e8)
    assert "early_points" not in codes(skipped)
    assert skipped.num_tokens.min() >= 1e8
    late = fit.envelope(**columns, flops_per_unit=6.0, draws=0, skip_tokens=2e11)
    assert all("a curve needs 2" in reason for reason in late.runs_left_out.values())
    assert "runs_left_out" in codes(late)


def test_an_envelope_with_one_hand_over_has_points_and_no_exponent():
    found = fit.envelope(**curves(2), flops_per_unit=6.0, draws=20)
    assert found.allocation["num_params"] is None
    assert "an exponent needs 2" in found.reasons["num_params"]
    assert found.frontier is None
    assert len(found.handovers["compute_flops"]) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["num_params"].__setitem__(0, 1e6), "each size a run of its own"),
        (lambda c: c["num_tokens"].__setitem__(1, c["num_tokens"][0]), "repeats a point"),
        (lambda c: c["run"].pop(), "labels for .* rows; give one a row"),
        (lambda c: c["loss"].__setitem__(3, float("nan")), "loss is nan in row 3"),
    ],
)
def test_curves_that_are_none_are_refused(change, words):
    columns = curves(3)
    change(columns)
    with pytest.raises(BadInput, match=words):
        fit.envelope(**columns, flops_per_unit=6.0)
