import dataclasses

import pytest

from smelt.train.schedule import learning_rate, view_ramp
from tests.conftest import OPTIM

WSD = dataclasses.replace(OPTIM, decay_frac=0.25)
COSINE = dataclasses.replace(WSD, schedule="cosine", decay_frac=1.0)


@pytest.mark.parametrize("optim", [WSD, COSINE])
@pytest.mark.parametrize("num_steps", [1, 7, 200])
def test_the_rate_ends_at_the_final_fraction_and_never_passes_the_peak(optim, num_steps):
    rates = [learning_rate(optim, num_steps, step) for step in range(num_steps)]
    assert max(rates) <= optim.peak_lr * (1 + 1e-12)
    assert min(rates) > 0
    if num_steps > 10:
        assert rates[-1] == pytest.approx(optim.peak_lr * optim.final_frac)


def test_wsd_is_flat_between_warm_up_and_decay_and_falls_as_one_minus_a_root():
    rates = [learning_rate(WSD, 200, step) for step in range(200)]
    assert rates[0] == pytest.approx(0.01 / 20)
    assert set(rates[19:150]) == {0.01}
    quarter = (0.01 - rates[150 + 12]) / (0.01 - rates[-1])
    assert quarter == pytest.approx((13 / 50) ** 0.5)


def test_cosine_is_halfway_down_in_the_middle():
    rates = [learning_rate(COSINE, 220, step) for step in range(220)]
    assert rates[22 + 98] == pytest.approx((0.01 + 0.0005) / 2, rel=1e-3)


def test_a_warm_up_and_a_decay_in_whole_steps_are_the_same_for_every_length_of_run():
    in_steps = dataclasses.replace(OPTIM, warmup_frac=0.0, warmup_steps=7, decay_frac=0.0, decay_steps=11)
    rates = {n: [learning_rate(in_steps, n, step) for step in range(n)] for n in (18, 33, 501)}
    for n, found in rates.items():
        assert found[:7] == rates[18][:7]
        assert set(found[6 : n - 11]) == {0.01}
        assert found[-11:] == rates[18][-11:]


def test_whole_steps_give_the_rates_of_the_shares_that_round_to_them():
    shares = dataclasses.replace(OPTIM, warmup_frac=0.05, decay_frac=0.3)
    for n in (20, 101, 999):
        steps = {"warmup_steps": shares.num_warmup_steps(n), "decay_steps": shares.num_decay_steps(n)}
        stated = dataclasses.replace(shares, warmup_frac=0.0, decay_frac=0.0, **steps)
        assert [learning_rate(stated, n, s) for s in range(n)] == [learning_rate(shares, n, s) for s in range(n)]


def test_views_are_ramped_in_a_straight_line_over_the_warm_up():
    assert [view_ramp(WSD, 40, step) for step in (0, 1, 2, 3, 4, 39)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    stated = dataclasses.replace(WSD, warmup_frac=0.0, warmup_steps=2)
    assert [view_ramp(stated, 40, step) for step in (0, 1, 2)] == [0.0, 0.5, 1.0]
    assert view_ramp(dataclasses.replace(WSD, warmup_frac=0.0), 40, 0) == 1.0
