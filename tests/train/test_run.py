"""One cell trained in this process: its folder, its row, and what must not depend on anything but the spec."""

import dataclasses
import json
import math

import numpy as np
import pytest

from smelt import experiment as experiments
from smelt import ledger
from smelt.train import checkpoint, evaluate
from smelt.train import run as running
from smelt.train.step import init_state
from tests.conftest import PULSE


def never():
    pass


@pytest.fixture(scope="module")
def programs():
    return running.Programs()


@pytest.fixture
def experiment(workplace):
    return experiments.load(str(workplace(PULSE)))


def train(experiment, cell, folder, corpus, programs, stop=never):
    folder.mkdir(parents=True)
    return running.train_cell(experiment.name, experiment.grid, cell, folder, corpus, programs, stop)


def unigram_entropy_nats(corpus) -> float:
    counts = np.bincount(corpus.train_tokens(), minlength=256)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@pytest.mark.smoke
def test_a_run_beats_the_unigram_entropy_and_leaves_a_whole_folder(experiment, words_corpus, programs, tmp_path):
    cell = experiment.grid.cells[0]
    row = train(experiment, cell, tmp_path / "a", words_corpus, programs)
    assert row["val_loss_nats"] < unigram_entropy_nats(words_corpus)
    assert row["outcome"] == "finished"
    assert row["train_flops"] == experiment.grid.train_flops(cell)
    assert row["bits_per_byte"] == pytest.approx(row["val_loss_nats"] / math.log(2), rel=0.02)
    assert 0 < row["train_loss_se_nats"] < 0.2
    assert ledger.check(json.loads((tmp_path / "a" / "row.json").read_text()), "row") == row
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(cell.run.num_steps))
    like = init_state(cell.run.arch, cell.run.optim, 0).params
    params = checkpoint.load_params(tmp_path / "a", like)
    slices = running.pipeline.validation_windows(words_corpus, 32, 2048)
    again = evaluate.validation_losses(programs.evaluation(cell.run), params, slices, cell.run.data.batch_seqs)
    assert np.mean([documents.loss_nats for documents in again.values()]) == row["val_loss_nats"]


def test_the_same_spec_gives_the_same_losses_to_the_last_bit(experiment, words_corpus, programs, tmp_path):
    cell = experiment.grid.cells[1]
    rows = [train(experiment, cell, tmp_path / name, words_corpus, programs) for name in ("a", "b")]
    assert rows[0]["val_loss_nats"] == rows[1]["val_loss_nats"]
    first, second = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("a", "b"))
    assert first == second


def test_a_pair_sees_the_same_tokens(experiment, words_corpus):
    baseline, variant = experiment.grid.cells
    assert baseline.run.data == variant.run.data
    assert baseline.run.seed == variant.run.seed
    assert baseline.run.arch != variant.run.arch


def test_a_rate_that_explodes_ends_as_a_diverged_row_without_a_loss(experiment, words_corpus, programs, tmp_path):
    cell = experiment.grid.cells[0]
    optim = dataclasses.replace(cell.run.optim, peak_lr=10.0, weight_decay=10.0, clip_norm=1e6, warmup_frac=0.0)
    wild = dataclasses.replace(cell, run=dataclasses.replace(cell.run, optim=optim))
    row = train(experiment, wild, tmp_path / "a", words_corpus, running.Programs())
    assert row["outcome"] == "diverged"
    assert row["val_loss_nats"] is None
    assert "at step" in json.loads(row["null_reasons"])["val_loss_nats"]


def test_a_stop_is_obeyed_between_steps_and_leaves_no_row(experiment, words_corpus, programs, tmp_path):
    calls = 0

    def stop():
        nonlocal calls
        calls += 1
        if calls > 10:
            raise running.Stopped

    with pytest.raises(running.Stopped):
        train(experiment, experiment.grid.cells[0], tmp_path / "a", words_corpus, programs, stop)
    assert not (tmp_path / "a" / "row.json").exists()


def test_decay_leaves_the_norm_gains_alone(experiment):
    from smelt.train.step import _decayed

    state = init_state(experiment.grid.cells[0].run.arch, experiment.grid.cells[0].run.optim, 0)
    mask = _decayed(state.params)
    assert mask["final_norm"]["gain_D"] is False
    assert mask["embedding"]["w_VD"] is True
