"""Which steps runs have in common, without training any."""

import dataclasses

import pytest

from smelt import trunk
from smelt.spec import RunSpec
from smelt.train.schedule import learning_rate, view_ramp
from tests.test_spec import ARCH, DATA, IN_STEPS

RUN = RunSpec(arch=ARCH, optim=IN_STEPS, data=DATA, num_steps=100, seed=0)


def with_optim(run, **changes):
    return dataclasses.replace(run, optim=dataclasses.replace(run.optim, **changes))


def in_shares(run):
    return with_optim(run, warmup_steps=None, warmup_frac=0.1, decay_steps=None, decay_frac=0.3)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(RUN, num_steps=400),
        with_optim(RUN, final_frac=0.5),
        with_optim(RUN, decay_steps=None, decay_frac=0.5),
        with_optim(RUN, decay_steps=None, decay_frac=1.0, schedule="cosine"),
        in_shares(RUN),
        dataclasses.replace(RUN, data=dataclasses.replace(DATA, validation_tokens=8192)),
    ],
)
def test_runs_of_one_trunk_have_equal_rates_until_the_first_leaves_and_not_beyond(other):
    (trunk_id, fork_step), (other_id, other_step) = trunk.trunk_of(RUN), trunk.trunk_of(other)
    assert trunk_id == other_id
    until = min(fork_step, other_step)
    for rule in (learning_rate, view_ramp):
        mine, its = ([rule(run.optim, run.num_steps, step) for step in range(80)] for run in (RUN, other))
        assert mine[:until] == its[:until]
    if fork_step != other_step:
        mine, its = (learning_rate(run.optim, run.num_steps, until) for run in (RUN, other))
        assert mine != its


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(RUN, seed=1),
        dataclasses.replace(RUN, arch=dataclasses.replace(ARCH, norm_gain=False)),
        dataclasses.replace(RUN, data=dataclasses.replace(DATA, batch_seqs=16)),
        with_optim(RUN, peak_lr=0.02),
        with_optim(RUN, warmup_steps=11),
        with_optim(RUN, clip_norm=2.0),
        dataclasses.replace(in_shares(RUN), num_steps=200),
    ],
)
def test_runs_that_differ_before_the_decay_have_no_trunk_in_common(other):
    assert trunk.trunk_of(other).trunk_id != trunk.trunk_of(RUN).trunk_id


def test_a_trunk_is_executed_once_and_each_decay_once():
    lengths = (400, 100, 150)
    runs = [dataclasses.replace(RUN, num_steps=length) for length in lengths]
    alone = dataclasses.replace(RUN, seed=1)
    steps = trunk.executed_steps([*runs, alone])
    assert [steps[run.run_id] for run in (*runs, alone)] == [400 - 130, 100, 150 - 80, 100]
    assert sum(steps.values()) == 380 + 3 * 20 + 100
    assert [run.num_steps for run in trunk.by_trunk(runs)[trunk.trunk_of(RUN).trunk_id]] == [100, 150, 400]


def test_states_are_kept_where_others_leave_and_no_further_than_the_run_goes():
    short, middle, long = (dataclasses.replace(RUN, num_steps=n) for n in (100, 200, 300))
    assert trunk.forks_to_keep(short, [middle, long]) == [80]
    assert trunk.forks_to_keep(long, [short, middle]) == [80, 180]
    assert trunk.forks_to_keep(long, []) == []
    assert trunk.forks_to_keep(short, [with_optim(short, final_frac=0.5)]) == [80]
    assert trunk.best_forks([20, 80, 180], [180, 100]) == {80, 180}
    assert trunk.best_forks([80], [50]) == trunk.best_forks([], [50]) == set()
