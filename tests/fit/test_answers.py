"""Questions to fits: planted optima, losses and savings are inside the answers, which say how far they reach."""

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from smelt.fit import answers
from tests.fit.planted import CHINCHILLA
from tests.fit.test_groups import table_of


@pytest.fixture(scope="module")
def fits():
    table = table_of(groups={"dense": 1.0, "sparse": 1.25})
    return fit.fit_groups(table, "dense", law="chinchilla", draws=300)


def planted_optimum(compute: float) -> tuple[float, float]:
    """Size and loss by a fine grid: nothing of what is tested."""
    size = np.geomspace(1e6, 1e12, 200_001)
    loss = fit.predicted_loss(fit.CHINCHILLA, CHINCHILLA, {"num_params": size, "num_tokens": compute / (6 * size)})
    return float(size[loss.argmin()]), float(loss.min())


def test_the_planted_optimum_is_inside_the_answer_inside_and_outside_the_rows(fits):
    for compute in (1e17, 1e18, 1e21):
        (answer,) = answers.optima(fits, [compute], group="dense")
        size, loss = planted_optimum(compute)
        assert answer.size_column == "num_params"
        assert answer.size.low <= size <= answer.size.high
        assert answer.loss.low <= loss <= answer.loss.high
        assert answer.num_tokens.value * answer.size.value * 6 == pytest.approx(compute)


def test_answers_say_how_far_they_reach_and_warn_beyond_ten_times(fits):
    inside, near, far = answers.optima(fits, [1e18, 4e21, 1e24], group="dense")
    assert (inside.extent, inside.warnings) == ("inside", ())
    assert 1 < near.extrapolation < 10
    assert (near.extent[:13], near.warnings) == ("extrapolates ", ())
    assert [flag.code for flag in far.warnings] == ["extrapolated_far"]
    assert far.extrapolation > 1000


def test_every_group_answers_or_the_one_that_is_asked(fits):
    assert [a.group for a in answers.optima(fits, [1e17, 1e18])] == ["dense", "dense", "sparse", "sparse"]
    assert [a.group for a in answers.run_losses(fits, {"num_params": 1e8, "num_tokens": 1e9})] == ["dense", "sparse"]
    with pytest.raises(BadInput, match="there is no group 'moe'; choose one of dense, sparse"):
        answers.optima(fits, [1e18], group="moe")
    with pytest.raises(BadInput, match="compute_flops is -1"):
        answers.optima(fits, [-1.0])


def test_the_loss_of_a_run_is_inside_its_prediction_interval(fits):
    at = {"num_params": 3e8, "num_tokens": 6e9}
    (answer,) = answers.run_losses(fits, at, group="dense")
    assert answer.loss.low <= fit.predicted_loss(fit.CHINCHILLA, CHINCHILLA, at) <= answer.loss.high
    assert answer.extent == "inside"
    with pytest.raises(BadInput, match="num_tokens"):
        answers.run_losses(fits, {"num_params": 3e8})


def test_savings_and_gains_say_the_same_at_matching_budgets_and_losses(fits):
    saved = answers.saved(fits, "sparse", [1e18])
    assert (saved["recommended"], next(kind for kind in saved if kind != "recommended")) == ("surface", "surface")
    (saving,) = saved["surface"]["at_budgets"]
    (gain,) = answers.gained(fits, "sparse", [saving.target_loss])["surface"]["at_losses"]
    assert saving.estimate.low <= 0.2 <= saving.estimate.high
    assert 1 - 1 / gain.gain.value == pytest.approx(saving.estimate.value)
    assert saved["pure"] == {
        "at_budgets": None,
        "reason": "sparse: there is no column budget_flops: without it no IsoFLOP curves",
    }
    with pytest.raises(BadInput, match="dense is the reference itself"):
        answers.saved(fits, "dense", [1e18])


def test_a_loss_at_or_below_the_floor_has_no_gain_but_the_reason(fits):
    (gain,) = answers.gained(fits, "sparse", [1.5])["surface"]["at_losses"]
    assert gain.gain.value is None
    assert "is not above the target's floor" in gain.gain.reason


def test_exponents_of_allocation_are_those_of_the_law(fits):
    found = answers.exponents(fits, "dense")
    alpha, beta = CHINCHILLA["alpha"], CHINCHILLA["beta"]
    assert found["size_exponent"].low <= beta / (alpha + beta) <= found["size_exponent"].high
    assert found["size_exponent"].value + found["token_exponent"].value == pytest.approx(1)
    assert found["frontier_exponent"].low <= alpha * beta / (alpha + beta) <= found["frontier_exponent"].high


def test_the_constants_that_papers_print_stand_beside_the_parameters():
    table = table_of(groups={"dense": 1.0})
    N, D = np.array(table["num_params"]), np.array(table["num_tokens"])
    # Kaplan et al. 2020, table 2: ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D.
    truth = {"N_c": 6.4e13, "D_c": 1.8e13, "alpha_N": 0.076, "alpha_D": 0.103}
    loss = ((truth["N_c"] / N) ** (truth["alpha_N"] / truth["alpha_D"]) + truth["D_c"] / D) ** truth["alpha_D"]
    noisy = loss * np.exp(0.002 * np.random.default_rng(0).normal(size=len(N)))
    found = answers.exponents(fit.fit_groups({**table, "loss_nats": noisy}, law="kaplan", draws=300), "dense")
    for name, value in truth.items():
        assert found[name].low < value < found[name].high, name
    assert list(found) == ["K", "alpha_D", "ratio", "balance", "N_c", "D_c", "alpha_N"]


def test_a_group_without_a_law_answers_with_its_reason():
    table = table_of(groups={"dense": 1.0, "few": 1.0})
    kept = [*range(40), 40, 41, 42]
    few = fit.fit_groups({k: [v[i] for i in kept] for k, v in table.items()}, "dense", law="chinchilla", draws=50)
    (answer,) = answers.optima(few, [1e18], group="few")
    assert (answer.size, answer.loss) == (None, None)
    assert answer.reason.startswith("few: 3 rows cannot fix the 5 parameters")
    assert answers.saved(few, "few", [1e18])["recommended"] is None


def test_savings_in_seconds_are_those_of_the_rows_and_other_frontiers_know_compute_alone():
    table = table_of(groups={"dense": 1.0, "sparse": 1.0})
    # The sparse arm is as good and takes twice the time for its FLOPs.
    table["train_secs"] = [
        flops / 1e12 * (2 if group == "sparse" else 1)
        for group, flops in zip(table["group"], table["train_flops"], strict=True)
    ]
    fits = fit.fit_groups(table, "dense", law="chinchilla", draws=200)
    found = answers.saved_in(fits, "sparse", [1e18], column="train_secs")
    estimate = found["surface"]["at_budgets"][0].estimate
    assert estimate.low <= -1 <= estimate.high
    assert found["pure"]["reason"] == "minima: they know compute alone"
    for name, secs in (("dense", 1e6), ("sparse", 2e6)):
        (answer,) = answers.optima(fits, [1e18], group=name, column="train_secs")
        assert answer.cost.value == pytest.approx(secs, rel=1e-6)
        assert answer.cost.low <= answer.cost.value <= answer.cost.high
    with pytest.raises(BadInput, match="stored_bytes"):
        answers.optima(fits, [1e18], column="stored_bytes")
    assert "stored_bytes" in answers.saved_in(fits, "sparse", [1e18], column="stored_bytes")["surface"]["reason"]


def test_tokens_to_serve_make_the_best_model_smaller(fits):
    (plain,) = answers.optima(fits, [1e18], group="dense")
    (free,) = answers.optima(fits, [1e18], group="dense", inference_tokens=0.0)
    (served,) = answers.optima(fits, [1e18], group="dense", inference_tokens=1e10)
    assert free.size.value == pytest.approx(plain.size.value)
    assert served.size.high < plain.size.low
    assert served.loss.value > plain.loss.value
    found = answers.saved_in(fits, "sparse", [1e18], inference_tokens=1e9)["surface"]["at_budgets"][0].estimate
    assert 0 < found.low <= found.value
