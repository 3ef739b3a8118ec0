"""Differences of runs on planted per-document losses."""

import numpy as np
import pytest

from smelt import compare
from smelt.errors import BadInput
from smelt.train import evaluate
from tests import synthetic


@pytest.fixture
def pair(tmp_path):
    """Two rows of one cell, and their folders with per-document losses: B is A plus 0.02 nats and small noise."""
    rows = synthetic.planted_rows(synthetic.planted_grid())
    row_a, row_b = rows[1], rows[0]
    generator = np.random.default_rng(0)
    lengths = generator.integers(50, 400, 60)
    doc_ids = np.repeat(np.arange(60), lengths)
    difficulty = generator.normal(2.0, 0.5, 60)[doc_ids]
    for row, shift in ((row_a, 0.0), (row_b, 0.02)):
        nats = difficulty + shift + generator.normal(0, 0.01, len(doc_ids))
        evaluate.save(tmp_path / row["run_id"] / "validation.npz", {"prose": evaluate.by_document(nats, doc_ids)})
    return row_a, tmp_path / row_a["run_id"], row_b, tmp_path / row_b["run_id"]


def test_what_is_hard_for_both_cancels(pair):
    difference = compare.compare_runs(*pair)
    assert difference.difference_nats == pytest.approx(-0.02, abs=4 * difference.standard_error_nats)
    assert difference.standard_error_nats < 0.001
    unpaired = evaluate.load(pair[1] / "validation.npz")["prose"].standard_error_nats
    assert unpaired > 20 * difference.standard_error_nats
    assert difference.standard_errors < -20


def test_runs_of_other_text_are_not_compared(pair):
    row_a, folder_a, row_b, folder_b = pair
    with pytest.raises(BadInput, match="other text: corpus_fingerprint"):
        compare.compare_runs(row_a | {"corpus_fingerprint": "x"}, folder_a, row_b, folder_b)
    short = evaluate.by_document(np.ones(5), np.arange(5))
    evaluate.save(folder_b / "validation.npz", {"prose": short})
    with pytest.raises(BadInput, match="other documents"):
        compare.compare_runs(*pair)


def test_a_run_without_a_loss_is_not_compared(pair):
    row_a, folder_a, row_b, folder_b = pair
    with pytest.raises(BadInput, match="has diverged"):
        compare.compare_runs(row_a, folder_a, row_b | {"outcome": "diverged"}, folder_b)


@pytest.mark.parametrize("damage", ["cut", "garbage", "flipped"])
def test_damaged_losses_are_named_and_not_compared(pair, damage):
    path = pair[1] / "validation.npz"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 255
    path.write_bytes({"cut": whole[:200], "garbage": b"garbage", "flipped": bytes(flipped)}[damage])
    with pytest.raises(BadInput, match=r"validation\.npz is damaged .* train the run again"):
        compare.compare_runs(*pair)


def test_a_run_is_not_compared_with_itself(pair):
    with pytest.raises(BadInput, match="both sides are run"):
        compare.compare_runs(*pair[:2], *pair[:2])


def test_groups_are_paired_by_budget_size_and_seed():
    rows = synthetic.planted_rows(synthetic.planted_grid())
    grid_rows = [row for row in rows if row["role"] == "grid"]
    baseline = [row for row in grid_rows if row["variant"] == "baseline"]
    variant = [row for row in grid_rows if row["variant"] != "baseline"]
    found = compare.pairs(variant[::-1], baseline)
    assert len(found) == 20
    assert all(a["size"] == b["size"] and a["budget_flops"] == b["budget_flops"] for a, b in found)
    with pytest.raises(BadInput, match="nothing can be paired"):
        compare.pairs(variant, [row | {"seed": 9} for row in baseline])


def test_the_mean_over_pairs_has_the_error_of_their_scatter():
    mean = compare.mean_difference([{"difference_nats": value} for value in (0.01, 0.02, 0.03)])
    assert mean["difference_nats"] == pytest.approx(0.02)
    assert mean["standard_error_nats"] == pytest.approx(0.01 / 3**0.5)
    assert compare.mean_difference([{"difference_nats": 0.01}])["standard_error_nats"] is None
