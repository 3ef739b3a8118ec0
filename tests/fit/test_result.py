import numpy as np

from smelt.fit.result import estimate


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
