import dataclasses

import pytest

from smelt import budget, grid, match, trunk, variants
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


IN_STEPS = dataclasses.replace(OPTIM, warmup_frac=0.0, warmup_steps=4, decay_frac=0.0, decay_steps=10)


def make_branches(**changes):
    options = {
        "ladder": LADDER,
        "variants": (variants.baseline, variants.loop_middle),
        "recipe": lambda arch: (IN_STEPS, DATA),
        "fork_steps": (20, 40, 100),
        "seeds": (0,),
        "matcher": matcher,
        "held": "three_budgets",
        "bound": 0.04,
    }
    return grid.branches(**(options | changes))


def test_branches_of_a_size_share_their_trunk_and_pairs_their_horizon():
    made = make_branches(seeds=(0, 1))
    assert len(made.cells) == 3 * 3 * 2 * 2
    trunks = trunk.by_trunk(cell.run for cell in made.cells)
    assert len(trunks) == 3 * 2 * 2
    for runs in trunks.values():
        assert [run.num_steps for run in runs] == [30, 50, 110]
    for cell in made.cells:
        per_token = budget.train_flops_per_token(cell.baseline, DATA.seq_len)
        assert cell.budget_flops == per_token * cell.run.num_tokens
        assert made.worst_held_error(cell) <= 0.04


@pytest.mark.parametrize("decay", [{"decay_steps": 10}, {"decay_steps": None, "decay_frac": 0.1}])
def test_horizons_are_told_by_their_end_or_by_where_the_decay_begins(decay):
    optim = dataclasses.replace(IN_STEPS, **decay)
    by_fork = make_branches(recipe=lambda arch: (optim, DATA), fork_steps=(20, 41, 100))
    assert [trunk.trunk_of(cell.run).fork_step for cell in by_fork.cells[::6]] == [20, 41, 100]
    tokens = sorted({cell.run.num_tokens for cell in by_fork.cells})
    by_end = make_branches(recipe=lambda arch: (optim, DATA), fork_steps=None, num_tokens=tokens)
    assert [cell.run.run_id for cell in by_end.cells] == [cell.run.run_id for cell in by_fork.cells]


def test_a_longer_horizon_moves_no_other_run():
    ids = {cell.run.run_id for cell in make_branches().cells}
    assert ids < {cell.run.run_id for cell in make_branches(fork_steps=(20, 40, 100, 900)).cells}


def test_an_isoflop_grid_whose_warm_up_is_in_steps_decays_one_trunk_a_size():
    def in_steps(arch, budget_flops):
        return dataclasses.replace(IN_STEPS, decay_steps=None, decay_frac=0.2), DATA

    for rule, num_trunks in ((recipe, 8), (in_steps, 6)):
        assert len(trunk.by_trunk(cell.run for cell in make(recipe=rule).cells)) == num_trunks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tokens": (1e6,)}, "one of num_tokens .* and fork_steps"),
        ({"fork_steps": None}, "one of num_tokens .* and fork_steps"),
        ({"fork_steps": ()}, "fork_steps is \\(\\)"),
        ({"fork_steps": (20, 20)}, "are the same run"),
        ({"fork_steps": (20.5,)}, "has 20.5: give whole steps"),
        ({"fork_steps": (-20,)}, "-20 is no positive number of steps"),
        ({"fork_steps": (3, 40)}, "warmup_steps 4 .* decay_steps 10 are more than the 13 of the run"),
        (
            {
                "recipe": lambda arch: (dataclasses.replace(IN_STEPS, decay_steps=None, decay_frac=0.9), DATA),
                "fork_steps": (3,),
            },
            "leave its trunk at step 3 of 30, within its warm-up",
        ),
        ({"fork_steps": (9,)}, "gets 19 steps: give a smaller batch"),
        ({"recipe": lambda arch: (OPTIM, DATA)}, "warms up over a share of its steps.*: give warmup_steps"),
        (
            {"recipe": lambda arch: (dataclasses.replace(OPTIM, schedule="cosine", decay_frac=1.0), DATA)},
            "decays throughout: .* give wsd",
        ),
        (
            {"recipe": lambda arch: (IN_STEPS, dataclasses.replace(DATA, batch_seqs=arch.effective_depth))},
            "other data or decay than its baseline",
        ),
    ],
)
def test_branches_that_share_no_trunk_or_cannot_be_meant_are_refused(changes, message):
    with pytest.raises(BadInput, match=message) as caught:
        make_branches(**changes)
    assert "\n" not in str(caught.value)
