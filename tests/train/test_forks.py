"""A branch that begins where another run left their trunk is the run that was trained alone, to the last bit."""

import dataclasses
import json
import shutil

import pytest

from smelt import grid, trunk, variants
from smelt.spec import DataSpec
from smelt.train import forks
from smelt.train import run as running
from tests.conftest import OPTIM, architecture

DATA = DataSpec(corpus="words", seq_len=16, batch_seqs=2, confine_attention=True, validation_tokens=512)
IN_STEPS = dataclasses.replace(OPTIM, warmup_frac=0.0, warmup_steps=4, decay_frac=0.0, decay_steps=8)
FORKS = (20, 36, 60)


def views(arch):
    """Further views ramped up, heads that are summed, biases that no gradient moves: all that a state can hold."""
    return variants.multi_view(
        variants.multi_router(variants.sigmoid_router(variants.latent_moe(arch, width=8, shared_width=8)))
    )


def branches(arch):
    return grid.branches(
        ladder=[arch],
        variants=(variants.baseline,),
        recipe=lambda arch: (IN_STEPS, DATA),
        fork_steps=FORKS,
        seeds=(0,),
        matcher=None,
        held="none",
        bound=0.0,
    )


def never():
    pass


class Killed(BaseException):
    """Passes every handler, as a process that ends does."""


def killed_after(polls):
    count = 0

    def stop():
        nonlocal count
        count += 1
        if count > polls:
            raise Killed

    return stop


class Shared:
    """Cells of a grid trained as a worker does, in one process; counts the steps that are executed."""

    def __init__(self, made, root, corpus):
        self.made, self.root, self.corpus = made, root, corpus
        self.programs = running.Programs()
        self.executed = 0

    def train(self, cell, stop=never, alone=False):
        folder = self.root / ("alone" if alone else "shared") / cell.run.run_id
        folder.mkdir(parents=True, exist_ok=True)
        ended = {path.parent.name for path in folder.parent.glob("*/row.json")}
        others = [other.run for other in self.made.cells if other.run.run_id not in {cell.run.run_id, *ended}]
        program = self.programs.step(cell.run)

        def counting(*args):
            self.executed += 1
            return program(*args)

        self.programs.steps = dict.fromkeys(self.programs.steps, counting)
        try:
            siblings = () if alone else others
            running.train_cell("e", self.made, cell, folder, self.corpus, self.programs, stop, siblings)
        finally:
            self.programs.steps = dict.fromkeys(self.programs.steps, program)
        return folder

    def kept(self):
        return sorted(int(path.name) for path in (self.root / "shared" / forks.TRUNKS).glob("*/[0-9]*"))


def results(folder):
    """Everything that was measured, as bytes."""
    row = json.loads((folder / "row.json").read_text())
    weights = next((folder / "checkpoints").iterdir())
    arrays = [path.read_bytes() for path in sorted((weights / "params").rglob("*")) if path.is_file()]
    return {
        "metrics": (folder / "metrics.jsonl").read_text(),
        "documents": (folder / "validation.npz").read_bytes(),
        "row": {name: value for name, value in row.items() if "loss" in name or "run_id" in name},
        "weights": arrays,
    }


@pytest.fixture(params=["plain", "views"])
def shared(request, words_corpus, tmp_path):
    arch = architecture(num_layers=1)
    return Shared(branches(arch if request.param == "plain" else views(arch)), tmp_path, words_corpus)


@pytest.fixture
def plain(words_corpus, tmp_path):
    return Shared(branches(architecture(num_layers=1)), tmp_path, words_corpus)


@pytest.mark.smoke
def test_branches_of_a_trunk_are_the_runs_trained_alone_and_no_step_is_trained_twice(shared):
    alone = [results(shared.train(cell, alone=True)) for cell in shared.made.cells]
    assert shared.executed == sum(cell.run.num_steps for cell in shared.made.cells)
    shared.executed = 0
    kept = []
    for cell, expected in zip(shared.made.cells, alone, strict=True):
        assert results(shared.train(cell)) == expected
        kept.append(shared.kept())
    assert shared.executed == FORKS[-1] + len(FORKS) * IN_STEPS.decay_steps
    assert shared.executed == sum(trunk.executed_steps(cell.run for cell in shared.made.cells).values())
    assert kept == [[20], [36], []]


def test_a_kill_loses_no_more_than_the_work_since_the_last_kept_state(plain):
    first, second, _ = plain.made.cells
    plain.train(first)
    for polls in (3, 30):  # on the way to the second fork, and behind it
        with pytest.raises(Killed):
            plain.train(second, killed_after(polls))
    assert plain.kept() == [20, 36]
    plain.executed = 0
    folder = plain.train(second)
    assert plain.executed == IN_STEPS.decay_steps
    assert json.loads((folder / "fork.json").read_text())["step"] == 36
    assert results(folder) == results(plain.train(second, alone=True))


def test_what_is_left_of_a_state_is_never_begun_from_and_what_was_half_written_is_swept(plain):
    first, second, _ = plain.made.cells
    kept = forks.folder_of(plain.root / "shared", first.run) / "20"
    plain.train(first)
    half = kept.with_name(".20.1.tmp")
    half.mkdir()
    shutil.rmtree(kept / "state")
    plain.executed = 0
    folder = plain.train(second)
    assert plain.executed == second.run.num_steps
    assert not half.exists()
    assert not (folder / "fork.json").exists()
    assert results(folder) == results(plain.train(second, alone=True))


@pytest.mark.parametrize("name", forks.DECIDE)
def test_a_state_of_other_code_or_another_corpus_is_none(plain, name):
    first, second, _ = plain.made.cells
    plain.train(first)
    (told,) = (plain.root / "shared").glob(f"{forks.TRUNKS}/*/20/fork.json")
    facts = json.loads(told.read_text())
    told.write_text(json.dumps(facts | {"provenance": facts["provenance"] | {name: "another"}}))
    plain.executed = 0
    plain.train(second)
    assert plain.executed == second.run.num_steps


def test_in_any_order_a_run_keeps_what_others_need_and_begins_at_the_furthest_that_it_may(plain):
    first, second, third = plain.made.cells
    plain.train(third)
    assert plain.kept() == [20, 36]
    plain.executed = 0
    plain.train(second)
    plain.train(first)
    assert plain.executed == 2 * IN_STEPS.decay_steps
    assert plain.kept() == []


def test_a_row_tells_what_a_run_costs_alone_and_what_was_spent_on_it(plain):
    first, second, _ = plain.made.cells
    rows = [json.loads((plain.train(cell) / "row.json").read_text()) for cell in (first, second)]
    kept = json.loads((plain.root / "shared" / second.run.run_id / "fork.json").read_text())
    assert kept["secs"]["train"] < rows[0]["train_secs"]
    assert rows[1]["train_secs"] > kept["secs"]["train"]
    assert rows[1]["train_secs"] - kept["secs"]["train"] < rows[1]["total_secs"]
