"""A run -> its trunk: the steps that it has in common, to the bit, with runs that end otherwise.

    trunk_id    hash of all that decides the steps before the rate falls: architecture, what is read, seed, peak rate,
                warm-up in steps, constants of AdamW; neither the length of the run nor the form of its decay
    fork_step   the step from which on its rate falls

Runs of one trunk_id agree at every step below the smaller of their fork_steps: a batch is a function of seed and step,
and so is the rate until it falls. A branch is therefore no other kind of run: begun from the state of another at a step
that both have, it is the same run with the same row. In order of fork_step a run has to be trained from the last
fork before it on:

    executed steps = num_steps - largest fork_step of those before it

How states are kept is for `train.forks`, what it saves for `plan`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from smelt.files import digest
from smelt.spec import RunSpec, to_dict

# What decides only the steps from the fork on, or no training step at all.
_OF_THE_END = ("schedule", "warmup_frac", "warmup_steps", "decay_frac", "decay_steps", "final_frac")
_OF_VALIDATION = ("validation_tokens",)


class Trunk(NamedTuple):
    trunk_id: str
    fork_step: int


def trunk_of(run: RunSpec) -> Trunk:
    """The trunk of a run and the step at which it leaves it, 0 where it shares nothing."""
    optim = {name: value for name, value in to_dict(run.optim).items() if name not in _OF_THE_END}
    data = {name: value for name, value in to_dict(run.data).items() if name not in _OF_VALIDATION}
    warmup_steps = run.optim.num_warmup_steps(run.num_steps)
    decided_by = [to_dict(run.arch), optim, data, warmup_steps, run.seed]
    return Trunk(digest(decided_by), max(0, run.num_steps - run.optim.num_decay_steps(run.num_steps)))


def by_trunk(runs: Iterable[RunSpec]) -> dict[str, list[RunSpec]]:
    """Runs by their trunk_id, each list in the order in which they are trained: the first to leave comes first."""
    found: dict[str, list[tuple[int, int, RunSpec]]] = {}
    for run in runs:
        trunk_id, fork_step = trunk_of(run)
        found.setdefault(trunk_id, []).append((fork_step, run.num_steps, run))
    return {trunk_id: [run for *_, run in sorted(those, key=lambda t: t[:2])] for trunk_id, those in found.items()}


def executed_steps(runs: Iterable[RunSpec]) -> dict[str, int]:
    """run_id -> the steps that are trained for it when each trunk is trained once, by the first run that needs them.

    SMELT's six branches of 10 B tokens (arXiv 2609.01343) read 266 B tokens a trunk, 612 B as whole runs:
    `experiments/smelt_paper.py`.
    """
    steps = {}
    for those in by_trunk(runs).values():
        done = 0
        for run in those:
            steps[run.run_id] = run.num_steps - done
            done = trunk_of(run).fork_step
    return steps


def forks_to_keep(run: RunSpec, siblings: Sequence[RunSpec]) -> list[int]:
    """The steps, in order, at which the state of `run` serves other runs of its trunk that are still to be trained."""
    own = trunk_of(run).fork_step
    others = [trunk_of(sibling).fork_step for sibling in siblings]
    return sorted({min(own, fork_step) for fork_step in others} - {0})


def best_forks(kept: Iterable[int], wanted: Iterable[int]) -> set[int]:
    """Of the steps whose states are kept, those from which a run that leaves at a wanted step would begin."""
    steps = sorted(kept)
    return {max(step for step in steps if step <= fork) for fork in wanted if steps and steps[0] <= fork}
