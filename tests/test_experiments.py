"""Every committed experiment: it asks, predicts and says what was found, and its plan is the one that was written down.

`python -m tests.test_experiments` writes the plans down again, after a change that is meant to move them.
"""

import json
import sys
from pathlib import Path

import pytest

from smelt import experiment as experiments
from smelt import plan
from smelt.launch import calibration

GOLDEN = Path(__file__).parent / "golden"
NAMES = experiments.names()


def planned(name: str) -> dict:
    """What must not move by accident: the runs, in order, and what they cost."""
    grid = experiments.load(name).grid
    return {
        "runs": [cell.run.run_id for cell in grid.cells],
        "labels": [f"{cell.variant}|{cell.size}|{cell.role}|{cell.run.num_steps}" for cell in grid.cells],
        "train_flops": sum(grid.train_flops(cell) for cell in grid.cells),
        "worst_match": max(
            (abs(grid.match_errors(cell)[error]) for cell in grid.cells for error in ("flops_per_token", "num_params")),
        ),
    }


@pytest.mark.smoke
@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_the_one_that_was_written_down(name):
    kept = json.loads((GOLDEN / f"{name}.json").read_text())
    now = planned(name)
    assert now["labels"] == kept["labels"]
    assert now["runs"] == kept["runs"]
    assert now["train_flops"] == pytest.approx(kept["train_flops"], rel=1e-12)
    assert now["worst_match"] == pytest.approx(kept["worst_match"], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_asks_predicts_and_says_what_was_found(name):
    docstring = experiments.load(name).docstring
    assert docstring.splitlines()[0].endswith("?")
    for part in ("Prediction", "Varies", "Fixed", "Found"):
        assert part in docstring, f"{name} has no {part}"
    assert "to be filled in" not in docstring


def test_the_quickstart_is_what_a_newcomer_can_afford():
    grid = experiments.load("quickstart").grid
    assert len(grid.budgets_flops) >= 4
    assert grid.budgets_flops[-1] / grid.budgets_flops[0] >= 8
    for flops in grid.budgets_flops:
        assert len({cell.size for cell in grid.cells if cell.budget_flops == flops and cell.role == "grid"}) == 5
    for cell in grid.cells:
        errors = grid.match_errors(cell)
        assert max(abs(errors[name]) for name in ("flops_per_token", "num_params", "kv_cache")) <= 0.01
    assert sum(grid.train_flops(cell) for cell in grid.cells) < 1.2e13


def test_the_paper_plan_prices_itself_on_a_machine_that_is_not_at_hand():
    grid = experiments.load("smelt_paper").grid
    priced = plan.plan(
        grid,
        num_train_tokens={"web-49152": None},
        calibration=calibration.assumed(4e14),
        num_workers=1,
        state_of=lambda cell: "planned",
    )
    assert priced.totals["num_cells"] == 2 * 3 * 2 * 6
    assert priced.totals["wall_secs"] == pytest.approx(priced.totals["executed_flops"] / 4e14, rel=1e-3)
    # Six horizons read 612 B tokens as whole runs and 266 B as branches of one trunk (of baselines: looped cells cost
    # alike).
    assert priced.totals["executed_flops"] / priced.totals["train_flops"] == pytest.approx(266 / 612, rel=5e-3)
    assert priced.totals["peak_memory_bytes"] is None
    # The paper prints its fitted window as 1.3e19 to 2.2e21 FLOPs.
    assert f"{min(row['train_flops'] for row in priced.rows):.1e}" == "1.3e+19"
    assert f"{max(row['train_flops'] for row in priced.rows):.1e}" == "2.2e+21"


if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        (GOLDEN / f"{name}.json").write_text(json.dumps(planned(name), indent=0) + "\n")
