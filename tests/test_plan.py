import dataclasses

import pytest

from smelt import papers, plan, variants
from smelt.grid import branches
from smelt.launch.calibration import Calibration, assumed
from smelt.spec import DataSpec
from tests import synthetic
from tests.conftest import OPTIM
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


SMELT_DECAY_STEPS = round(papers.SMELT_DECAY_TOKENS / papers.SMELT_BATCH_TOKENS)


def smelt_branches():
    """The paper's own schedule: six decays of 10 B tokens from one constant-rate run of 196,075 steps."""
    in_steps = {"warmup_frac": 0.0, "warmup_steps": 2000, "decay_frac": 0.0, "decay_steps": SMELT_DECAY_STEPS}
    optim = dataclasses.replace(OPTIM, **in_steps)
    data = DataSpec(
        corpus="words", seq_len=papers.SMELT_CONTEXT, batch_seqs=256, confine_attention=True, validation_tokens=2**23
    )
    return branches(
        ladder=[papers.smelt_baseline("100M", 64)],
        variants=(variants.baseline,),
        recipe=lambda arch: (optim, data),
        fork_steps=papers.SMELT_BRANCH_STEPS,
        seeds=(0,),
        matcher=None,
        held="three_budgets",
        bound=0.04,
        convention="smelt",
    )


def test_smelts_six_horizons_read_612_billion_tokens_as_whole_runs_and_266_as_branches():
    grid = smelt_branches()
    horizons = [cell.run.num_tokens for cell in grid.cells]
    assert horizons == pytest.approx(papers.SMELT_HORIZONS_TOKENS, abs=papers.SMELT_BATCH_TOKENS / 2)
    priced = price(grid, assumed(4e14))
    per_token = grid.flops_per_token(grid.cells[0])
    assert round(priced.totals["train_flops"] / per_token / 1e9) == 612
    assert round(priced.totals["executed_flops"] / per_token / 1e9) == 266
    assert sum(row["executed_flops"] for row in priced.rows) == pytest.approx(priced.totals["executed_flops"])
    compile_secs = assumed(4e14).compile_secs(per_token)
    assert priced.totals["num_workers"] == 2  # of which a trunk occupies one
    assert priced.totals["wall_secs"] == pytest.approx(priced.totals["executed_flops"] / 4e14 + compile_secs)
    assert priced.rows[0]["executed_steps"] == priced.rows[0]["num_steps"]
    assert priced.rows[1]["executed_steps"] == 10_000 + SMELT_DECAY_STEPS


def test_what_is_left_of_a_trunk_is_priced_from_its_beginning_where_no_state_is_known_to_be_kept():
    grid = smelt_branches()
    ended = {cell.run.run_id for cell in grid.cells[:4]}
    priced = plan.plan(
        grid,
        num_train_tokens={"words": None},
        calibration=assumed(4e14),
        num_workers=2,
        state_of=lambda cell: "finished" if cell.run.run_id in ended else "planned",
    )
    steps = priced.totals["executed_flops_left"] / grid.flops_per_token(grid.cells[0]) / papers.SMELT_BATCH_TOKENS
    assert steps == pytest.approx(196_075 + 2 * SMELT_DECAY_STEPS)


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


def test_sizes_that_do_not_grow_with_the_width_are_flagged_under_mup():
    grid = make()
    wide = {cell: dataclasses.replace(cell.run.arch, mup_base_width=8) for cell in grid.cells}

    def under_mup(widths):
        cells = []
        for cell, times in zip(grid.cells, widths * len(grid.cells), strict=False):
            arch = dataclasses.replace(wide[cell], d_model=16 * times)
            cells.append(dataclasses.replace(cell, run=dataclasses.replace(cell.run, arch=arch)))
        return dataclasses.replace(grid, cells=tuple(cells))

    assert "mup_proportions" not in codes(price(grid))
    assert "mup_proportions" not in codes(price(dataclasses.replace(grid, cells=under_mup([1]).cells[:1])))
    messages = [w["message"] for w in price(under_mup([1, 1, 4, 4])).warnings if w["code"] == "mup_proportions"]
    assert any("attention width over d_model" in message for message in messages)
    assert any("expert width over d_model" in message for message in messages)


def test_a_one_sided_budget_is_flagged_by_the_expected_optimum():
    grid = synthetic.planted_grid()
    centred = dataclasses.replace(grid, expected_optimum=lambda flops: 3e4 * (flops / 1e11) ** 0.6)
    assert "one_sided" not in codes(price(centred))
    above = dataclasses.replace(grid, expected_optimum=lambda flops: 1e9)
    assert "one_sided" in codes(price(above))
