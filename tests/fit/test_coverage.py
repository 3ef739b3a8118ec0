"""A small sample of `benchmarks/coverage`: the study itself takes half an hour, and its output is committed."""

import numpy as np
import pytest

from benchmarks import coverage

SPOILED = [grid for grid in coverage.GRIDS if grid.fails]


@pytest.mark.parametrize("grid", coverage.GRIDS[: coverage.WELL_POSED], ids=lambda grid: grid.name)
def test_intervals_of_well_posed_grids_hold_the_truth(grid):
    found = coverage.study(grid, 20, 1, draws=300)
    assert max(found["refused"].values()) == 0
    # 20 grids x 11 quantities that move together; the study over 1,000 has .93 to .97 in each.
    assert np.mean(list(found["covered"].values())) > 0.85
    assert found["warned"] <= 0.2
    assert found["claims"] == (1.0 if grid.saving else pytest.approx(0.0, abs=0.15))


@pytest.mark.parametrize("grid", SPOILED, ids=lambda grid: grid.name)
def test_grids_whose_intervals_fail_are_warned_of(grid):
    assert coverage.study(grid, 4, 1, draws=100)["warned"] == 1.0


def test_the_truths_are_those_of_the_law():
    for grid in coverage.GRIDS:
        truth = coverage.truths(grid)
        table = {"flops_per_token": 6 * truth["N*"], "num_tokens": truth["D*"]}
        law = grid.law
        loss = law["E"] + law["A"] * table["flops_per_token"] ** -law["a"] + law["K"] * table["num_tokens"] ** -law["c"]
        assert loss == pytest.approx(truth["loss"], rel=1e-12)
        nearby = [coverage.optimum(law, max(grid.budgets_flops) * times)[1] for times in (0.5, 1, 2)]
        assert nearby[0] > nearby[1] > nearby[2]
