"""A run on a mesh: its row is that of one device up to rounding, and what one mesh wrote another goes on with."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from smelt import grid, parallel, variants
from smelt.spec import DataSpec
from smelt.train import checkpoint, forks
from smelt.train import run as running
from smelt.train.step import init_state, state_shardings
from tests.conftest import OPTIM, architecture
from tests.model.shapes import MULTI_VIEW

DATA = DataSpec(corpus="words", seq_len=16, batch_seqs=4, confine_attention=True, validation_tokens=512)
IN_STEPS = dataclasses.replace(OPTIM, warmup_frac=0.0, warmup_steps=4, decay_frac=0.0, decay_steps=8)


@pytest.mark.parametrize("other", [None, (8, 1), (2, 3)], ids=str)
def test_a_state_written_of_one_mesh_is_read_on_another_bit_by_bit(other, tmp_path):
    state = init_state(MULTI_VIEW, OPTIM, 0)
    first = parallel.mesh(2, 4)
    checkpoint.save_state(tmp_path / "state", parallel.spread(state, state_shardings(first, state)))
    read = checkpoint.load_state(tmp_path / "state", jax.eval_shape(lambda: state))
    if other is not None:
        mesh = parallel.mesh(*other)
        read = parallel.spread(read, state_shardings(mesh, state))
        assert len(read.params["head"]["w_DV"].devices()) == mesh.size
    for one, same in zip(jax.tree.leaves(read), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(one, same)


def test_a_run_goes_on_on_another_mesh_from_where_its_trunk_was_left(words_corpus, tmp_path):
    made = grid.branches(
        ladder=[architecture(num_layers=1)],
        variants=(variants.baseline,),
        recipe=lambda arch: (IN_STEPS, DATA),
        fork_steps=(12, 20),
        seeds=(0,),
        matcher=None,
        held="none",
        bound=0.0,
    )
    short, long = made.cells

    def trained(where, cell, programs, siblings=()):
        folder = tmp_path / where / cell.run.run_id
        folder.mkdir(parents=True, exist_ok=True)
        row = running.train_cell("e", made, cell, folder, words_corpus, programs, lambda: None, siblings)
        losses = [json.loads(line)["loss_nats"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return folder, row, losses

    _, alone_row, alone = trained("alone", long, running.Programs())
    _, row, _ = trained("shared", short, running.Programs(parallel.mesh(4, 1)), [long.run])
    assert row["device"].startswith("4 x ")
    assert row["device"].endswith("(data=4, expert=1)")
    folder, row, losses = trained("shared", long, running.Programs(parallel.mesh(1, 2)))
    assert json.loads((folder / "fork.json").read_text())["step"] == 12
    told = json.loads((folder / "fingerprint.json").read_text())
    assert told["mesh"] == {"data": 1, "expert": 2}
    # Float32 on other devices: the first losses differ in the last digits, and training carries that along.
    np.testing.assert_allclose(losses, alone, rtol=0, atol=1e-4)
    assert row["val_loss_nats"] == pytest.approx(alone_row["val_loss_nats"], abs=1e-4)


def test_a_fork_of_other_micro_batches_is_none(words_corpus, tmp_path):
    state = init_state(MULTI_VIEW, OPTIM, 0)
    provenance = {"code_fingerprint": "a", "corpus_fingerprint": "b", "accumulate": 2}
    forks.save(tmp_path, forks.Fork(7, state, "", {}), provenance)
    assert forks.furthest(tmp_path, 9, state, provenance).step == 7
    assert forks.furthest(tmp_path, 9, state, provenance | {"accumulate": 1}) is None
