import dataclasses

import pytest

from smelt.train.schedule import learning_rate
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
