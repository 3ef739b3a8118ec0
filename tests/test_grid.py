import dataclasses

import pytest

from smelt import budget, grid, match, variants
from smelt.errors import BadInput
from smelt.spec import DataSpec
from tests.conftest import OPTIM, architecture

DATA = DataSpec(corpus="words", seq_len=32, batch_seqs=4, confine_attention=True, validation_tokens=2048)
LADDER = [architecture(width) for width in (12, 16, 24)]


def recipe(arch, budget_flops):
    return dataclasses.replace(OPTIM, peak_lr=0.1 / arch.d_model), DATA


def matcher(baseline, arch):
    return match.match(baseline, arch, context=32, multiples={"d_model": 1, "width": 1})


def make(**changes):
    options = {
        "ladder": LADDER,
        "sizes": {1e9: [0, 1], 4e9: [1, 2]},
        "variants": (variants.baseline, variants.loop_middle),
        "recipe": recipe,
        "seeds": (0,),
        "matcher": matcher,
        "held": "three_budgets",
        "bound": 0.04,
    }
    return grid.isoflop(**(options | changes))


@pytest.mark.smoke
def test_every_combination_is_there_once_and_within_half_a_step_of_its_budget():
    made = make(seeds=(0, 1))
    keys = [(cell.budget_flops, cell.size, cell.variant, cell.run.seed) for cell in made.cells]
    assert len(keys) == len(set(keys)) == 2 * 2 * 2 * 2
    for cell in made.cells:
        step_flops = made.flops_per_token(cell) * DATA.tokens_per_step
        assert abs(made.train_flops(cell) - cell.budget_flops) <= step_flops / 2
        assert made.train_flops(cell) == pytest.approx(
            budget.train_flops_per_token(cell.run.arch, 32) * cell.run.num_tokens
        )


def test_pairs_share_data_and_seed_and_are_matched():
    made = make()
    by_key = {(cell.budget_flops, cell.size, cell.variant): cell for cell in made.cells}
    for (flops, size, variant), cell in by_key.items():
        baseline = by_key[flops, size, "baseline"]
        assert (cell.run.data, cell.run.seed) == (baseline.run.data, baseline.run.seed)
        assert cell.baseline == baseline.run.arch
        if variant != "baseline":
            assert cell.run.arch.effective_depth > cell.baseline.effective_depth
            errors = made.match_errors(cell)
            assert max(abs(errors[name]) for name in ("flops_per_token", "num_params", "kv_cache")) <= 0.04


def test_extra_seeds_belong_to_the_reference_and_predictions_come_last():
    made = make(extra_seeds={(1e9, 0): (1, 2)}, predictions={8e9: [2]})
    roles = [cell.role for cell in made.cells]
    assert roles == sorted(roles, key=grid.ROLES.index)
    assert {cell.variant for cell in made.cells if cell.role == "seed"} == {"baseline"}
    assert [cell.variant for cell in made.cells if cell.role == "prediction"] == ["baseline", "loop_middle"]
    assert made.budgets_flops == (1e9, 4e9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": {1e9: [0, 1]}}, "size 2 of the ladder .* used by no budget"),
        ({"sizes": {1e9: [0, 1, 2], 4e9: []}}, "4e\\+09 has no size"),
        ({"sizes": {1e9: [0, 1, 2, 3]}}, "names size 3, the ladder has 0 to 2"),
        ({"sizes": {-1.0: [0, 1, 2]}}, "no positive number of FLOPs"),
        ({"sizes": {1e6: [0, 1, 2]}}, "steps are needed"),
        ({"extra_seeds": {(2e9, 0): (1,)}}, "no cell of the grid"),
        ({"predictions": {2e9: [0]}}, "not above the largest budget"),
        ({"seeds": (0, 0)}, "are the same run"),
        ({"seeds": ()}, "seeds is \\(\\)"),
        ({"bound": 1e-6}, "the grid's bound is 0.00%|binds"),
    ],
)
def test_a_design_that_cannot_be_meant_is_refused_in_one_line(changes, message):
    with pytest.raises(BadInput, match=message) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)


def test_a_recipe_that_gives_a_pair_other_data_is_refused():
    def unequal(arch, budget_flops):
        return OPTIM, dataclasses.replace(DATA, batch_seqs=4 if arch.loop.num_passes == 1 else 8)

    with pytest.raises(BadInput, match="pairs share data"):
        make(recipe=unequal)


def test_a_sweep_changes_each_cell_in_each_way_and_labels_it():
    def twice(run):
        return dataclasses.replace(run, optim=dataclasses.replace(run.optim, peak_lr=2 * run.optim.peak_lr))

    base = make()
    swept = grid.sweep(base, {"": lambda run: run, "rate x2": twice})
    assert len(swept.cells) == 2 * len(base.cells)
    assert swept.reference == "baseline"
    assert "loop_middle, rate x2" in swept.variants
