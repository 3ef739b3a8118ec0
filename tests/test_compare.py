"""Differences of runs on planted per-document losses, and the tables of what moved between committed groups."""

import json
import re

import numpy as np
import pytest

from smelt import committed, compare
from smelt.cli import main
from smelt.errors import EXIT_BAD_INPUT, EXIT_DONE, BadInput
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


def _difference(value, sums=None):
    documents = {} if sums is None else {"prose": (np.array(sums, float), np.array([10, 30, 20]))}
    return compare.Difference(
        difference_nats=value,
        standard_error_nats=None,
        train_difference_nats=value,
        train_standard_error_nats=0.0,
        by_domain_nats={},
        documents=documents,
    )


def test_the_mean_over_pairs_has_the_error_of_their_scatter():
    mean = compare.mean_difference([_difference(value) for value in (0.01, 0.02, 0.03)], 0.004, ["a", "b", "c"])
    assert mean["difference_nats"] == pytest.approx(0.02)
    assert mean["standard_error_nats"] == pytest.approx(0.01 / 3**0.5)
    assert (mean["seed_spreads"], mean["num_pairs"]) == (pytest.approx(5.0), 3)
    alone = compare.mean_difference([_difference(0.01)], None, ["a"])
    assert (alone["standard_error_nats"], alone["standard_errors"], alone["seed_spreads"]) == (None, None, None)


def test_pairs_of_one_trunk_scatter_as_one():
    pairs = [_difference(value) for value in (0.01, 0.03, 0.05, 0.07)]
    apart, joined = (compare.mean_difference(pairs, None, list(units)) for units in ("abcd", "aabb"))
    assert joined["difference_nats"] == apart["difference_nats"] == pytest.approx(0.04)
    assert joined["standard_error_nats"] == pytest.approx(0.02)  # means 0.02 and 0.06
    assert (joined["num_pairs"], joined["num_units"]) == (4, 2)
    assert compare.mean_difference(pairs, None, ["a"] * 4)["standard_error_nats"] is None


def test_the_mean_over_pairs_has_the_error_of_the_documents_that_they_share():
    """By hand: documents of 10, 30 and 20 tokens whose mean differences are 1, 3 and 5 nats: 9/60 a token, residuals
    -0.5, -1.5 and 2."""
    pairs = [_difference(0.1, [0.0, 2.0, 6.0]), _difference(0.2, [2.0, 4.0, 4.0])]
    mean = compare.mean_difference(pairs, None, ["a", "b"])
    over_documents = (1.5 * (0.5**2 + 1.5**2 + 2.0**2)) ** 0.5 / 60
    assert mean["standard_error_over_documents_nats"] == pytest.approx(over_documents)
    assert mean["standard_error_over_pairs_nats"] == pytest.approx(0.05)
    assert mean["standard_error_nats"] == pytest.approx((over_documents**2 + 0.05**2) ** 0.5)


def test_pairs_of_other_documents_have_no_error_over_documents_in_the_mean():
    others = _difference(0.2, [2.0, 4.0, 4.0])
    others.documents["prose"] = (others.documents["prose"][0], np.array([10, 20, 30]))
    mean = compare.mean_difference([_difference(0.1, [0.0, 2.0, 6.0]), others], None, ["a", "b"])
    assert mean["standard_error_over_documents_nats"] is None
    assert mean["standard_error_nats"] == pytest.approx(0.05)


def _pair(**moved):
    return {"moved": moved}


def test_every_quantity_that_moved_has_a_column_and_what_did_not_has_none():
    rows = [
        [_pair(e_real=[64, 32], flops_per_token=[105.0, 100.0], train_flops=[210.0, 200.0])] * 2,
        [
            _pair(
                **{"arch.router.sigmoid.num_heads": [2, None], "num_params": [101, 100], "optim.peak_lr": [0.1, 0.2]}
            ),
            _pair(**{"arch.router.sigmoid.num_heads": [2, None], "num_params": [103, 100]}),
        ],
        [_pair(e_real=[64, 32]), _pair(e_real=[48, 32], train_flops=[1.00001, 1.0])],
    ]
    header, cells, others = compare.moved_table(rows)
    assert header == ["E_real", "FLOPs a token", "parameters", "sigmoid heads"]
    assert cells == [
        ["32 -> 64", "+5.0%", "=", "="],
        ["=", "=", "+1.0 to +3.0%", "none -> 2"],
        ["+50.0 to +100.0%", "=", "=", "="],
    ]
    assert others == ["optim.peak_lr"]
    assert compare.moved_table([[_pair()]]) == ([], [[]], [])


def test_the_moved_quantities_of_a_pair_are_all_the_fields_and_counts_in_which_its_rows_differ(pair):
    row_a, folder_a, row_b, folder_b = pair
    row_a = row_a | {"arch.ffn.latent.width": 32, "num_params": 2, "seed": 9, "num_steps": 3, "num_params_total": 4}
    moved = compare.as_row(row_a, row_b, compare.compare_runs(row_a, folder_a, row_b, folder_b), None)["moved"]
    assert moved["arch.ffn.latent.width"] == [32, None]
    assert moved["num_params"] == [2, row_b["num_params"]]
    assert "num_params_total" in moved
    assert "seed" not in moved
    assert "num_steps" not in moved


@pytest.fixture
def committed_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("SMELT_RUNS", str(tmp_path / "runs"))


def smelt(capsys, *words):
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_several_groups_stand_in_one_table_each_against_its_own_reference(committed_alone, capsys):
    words = ["siblings/loop_all", "siblings/dense", "--to", "siblings/baseline", "siblings/dense_loop_all", "--md"]
    code, out, _ = smelt(capsys, "compare", *words)
    assert code == EXIT_DONE
    header, _, first, second, *_ = (line.strip("| ").split(" | ") for line in out.splitlines())
    assert first[:3] == ["siblings/loop_all", "siblings/baseline", "6"]
    assert second[:2] == ["siblings/dense", "siblings/dense_loop_all"]
    assert dict(zip(header, first, strict=True))["E_real"] == "32 -> 16"
    assert dict(zip(header, second, strict=True))["parameters"] == "+99.7 to +99.8%"
    assert "Also moved: num_params_total, arch.loop.num_layers, arch.loop.num_passes." in out


def test_committed_rows_are_compared_where_nothing_was_trained(committed_alone, capsys):
    code, out, _ = smelt(capsys, "compare", "siblings/loop_all", "siblings/baseline", "--json")
    found = json.loads(out)
    rows = {row["run_id"]: row for row in committed.read("siblings")[0]}
    assert code == EXIT_DONE
    for pair in found["pairs"]:
        of_a, of_b = rows[pair["run_a"]], rows[pair["run_b"]]
        assert pair["difference_nats"] == of_a["val_loss_nats"] - of_b["val_loss_nats"]
        assert pair["by_domain_nats"].keys() == {"code", "docs", "prose"}
        assert pair["standard_error_nats"] is None
    assert found["mean"]["standard_error_over_pairs_nats"] > 0
    code, out, _ = smelt(
        capsys, "compare", "siblings/loop_all", "siblings/dense", "--to", "siblings/baseline", "--json"
    )
    assert [item["a"] for item in json.loads(out)["comparisons"]] == ["siblings/loop_all", "siblings/dense"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["siblings/dense"], "1 sides and no --to: give two sides"),
        (["siblings/dense", "siblings/loop_all", "siblings/baseline"], "3 sides and no --to"),
        (["--to", "siblings/baseline"], "--to stands alone"),
        (["a/b", "c/d", "e/f", "--to", "g/h", "i/j"], "--to names 2 for 3 sides: give one for all, or one each"),
        (["siblings/dense", "siblings/absent"], "no finished run of group 'absent' in .*: known are baseline, dense"),
    ],
)
def test_sides_that_cannot_be_compared_are_refused_in_one_line(committed_alone, capsys, words, message):
    code, out, err = smelt(capsys, "compare", *words)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert re.search(message, err)
    assert err.count("\n") == 1


def test_a_run_is_not_compared_with_a_group(pair):
    row_a, folder_a, row_b, folder_b = pair
    run = compare.Side(label="a", rows=[row_a], all_rows=[row_a], folder=folder_a.parent, is_group=False)
    group = compare.Side(label="x/b", rows=[row_b], all_rows=[row_b], folder=folder_b.parent, is_group=True)
    with pytest.raises(BadInput, match="a and x/b: give two runs or two groups"):
        compare.compare_sides(run, group, {"sd": None, "degrees_of_freedom": 0})
