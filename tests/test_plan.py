import dataclasses

import pytest

from smelt import plan
from smelt.launch.calibration import Calibration, assumed
from tests import synthetic
from tests.test_grid import make


def timed(*points) -> Calibration:
    return Calibration(
        "a core",
        tuple(
            {"flops_per_token": f, "flops_per_sec": rate, "compile_secs": 2.0, "temp_bytes_per_token": 1000.0}
            for f, rate in points
        ),
    )


def price(grid, calibration=None, num_train_tokens=10**9, state="planned"):
    return plan.plan(
        grid,
        num_train_tokens={"words": num_train_tokens, "builtin": num_train_tokens},
        calibration=calibration,
        num_workers=2,
        state_of=lambda cell: state,
    )


def codes(priced) -> set[str]:
    return {warning["code"] for warning in priced.warnings}


@pytest.mark.smoke
def test_without_a_calibration_the_price_is_unknown_and_says_why():
    totals = price(make()).totals
    assert totals["wall_secs"] is None
    assert totals["peak_memory_bytes"] is None
    assert "--calibrate" in totals["null_reason"]


def test_seconds_follow_the_rate_between_timed_shapes():
    grid = make()
    low, high = (f(map(grid.flops_per_token, grid.cells)) for f in (min, max))
    flat = price(grid, timed((low, 1e9), (high, 1e9)))
    expected = sum(grid.train_flops(cell) for cell in grid.cells) / 1e9 + 2.0 * len(grid.cells)
    assert flat.totals["wall_secs"] == pytest.approx(expected / 2)
    assert "price_extrapolated" not in codes(flat)
    assert "price_extrapolated" in codes(price(grid, timed((low / 100, 1e9), (low / 50, 1e9))))
    assert flat.totals["peak_memory_bytes"] > 2 * plan.PROCESS_BYTES


def test_an_assumed_machine_is_taken_at_its_word_and_has_no_memory():
    priced = price(make(), assumed(1e12))
    assert "price_extrapolated" not in codes(priced)
    assert priced.totals["peak_memory_bytes"] is None
    assert "assumed" in priced.totals["device"]


def test_what_is_trained_is_not_priced_again():
    assert price(make(), assumed(1e12), state="finished").totals["wall_secs"] == 0
    assert price(make(), assumed(1e12), state="finished").totals["num_to_train"] == 0


def test_repeated_data_few_steps_and_few_sizes_are_flagged():
    found = price(make(), num_train_tokens=10_000)
    assert {"repeated_data", "few_sizes"} <= codes(found)
    assert all(row["epochs"] > 1 for row in found.rows)
    assert "repeated_data" not in codes(price(make()))
    assert price(make(), num_train_tokens=None).rows[0]["epochs"] is None


def test_a_one_sided_budget_is_flagged_by_the_expected_optimum():
    grid = synthetic.planted_grid()
    centred = dataclasses.replace(grid, expected_optimum=lambda flops: 3e4 * (flops / 1e11) ** 0.6)
    assert "one_sided" not in codes(price(centred))
    above = dataclasses.replace(grid, expected_optimum=lambda flops: 1e9)
    assert "one_sided" in codes(price(above))
