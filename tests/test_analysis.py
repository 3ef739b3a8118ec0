"""What an analysis says of rows whose law, noise and advantage are planted."""

import json

import numpy as np
import pytest

from smelt import analysis, variants
from smelt.analysis import LOSS
from smelt.errors import BadInput
from tests import synthetic

DRAWS = 200


@pytest.fixture(scope="module")
def design():
    return synthetic.planted_grid()


@pytest.mark.parametrize(("saving", "verdict"), [(0.08, "less"), (0.0, "unresolved"), (-0.08, "more")])
def test_the_verdict_follows_the_planted_advantage(design, saving, verdict):
    found = analysis.analyse(synthetic.planted_rows(design, saving=saving), "baseline", draws=DRAWS)
    head = found["headline"]["scaled_heads"]
    assert head["verdict"] == verdict
    assert head["saving"]["estimate"]["value"] == pytest.approx(saving, abs=0.025)
    sentence = head["sentence"]
    assert ("Not resolved" in sentence) == (verdict == "unresolved")
    if verdict != "unresolved":
        assert f" {verdict} compute than baseline" in sentence
        assert f"{100 * abs(head['saving']['estimate']['value']):.1f} %" in sentence
    mean = found["pairs"]["scaled_heads"]["mean_nats"]
    assert (mean["high"] < 0) == (verdict == "less")
    assert (mean["low"] > 0) == (verdict == "more")


def test_an_analysis_is_plain_json_and_the_same_for_the_same_rows(design):
    rows = synthetic.planted_rows(design, saving=0.05)
    texts = [json.dumps(analysis.analyse(rows, "baseline", draws=50), allow_nan=False) for _ in range(2)]
    assert texts[0] == texts[1]


def test_a_diverged_run_enters_no_fit_and_is_listed_with_its_reason(design):
    lost = next(cell.run.run_id for cell in design.cells if cell.variant == "scaled_heads")
    found = analysis.analyse(synthetic.planted_rows(design, diverged=[lost]), "baseline", draws=50)
    assert [row["run_id"] for row in found["left_out"]] == [lost]
    assert "loss_nats is nan" in found["left_out"][0]["reason"]
    assert lost not in found["losses"][LOSS]["groups"]["scaled_heads"]["rows"]["label"]
    assert "run_left_out" in [warning["code"] for warning in found["warnings"]]
    assert found["pairs"]["scaled_heads"]["num_pairs"] == 19
    assert found["device"]["by_role"]["diverged"]["num_runs"] == 1


def test_only_runs_of_the_grid_are_fitted(design):
    rows = synthetic.planted_rows(design)
    fitted = analysis.table(rows)
    assert len(fitted[LOSS]) == 40 == sum(row["role"] == "grid" for row in rows)
    assert set(fitted["pair"]) == {row["size"] for row in rows if row["role"] == "grid"}


def test_pairs_that_are_not_matched_are_said_beside_the_number():
    design = synthetic.planted_grid(arms=(variants.baseline, variants.loop_middle), held="none")
    found = analysis.analyse(synthetic.planted_rows(design, saving=0.08), "baseline", draws=50)
    match = found["match"]["loop_middle"]
    assert not match["is_matched"]
    assert match["largest"]["match_error_kv"] == pytest.approx(0.5)
    assert "The pairs are not matched: FLOPs per token" in found["headline"]["loop_middle"]["sentence"]
    assert "unmatched_pairs" in [warning["code"] for warning in found["warnings"]]


def test_matched_pairs_are_not_called_unmatched(design):
    found = analysis.match_errors(synthetic.planted_rows(design), "scaled_heads")
    assert found["is_matched"]
    assert found["worst"] == 0


def test_the_seed_spread_is_that_of_the_cell_with_three_seeds(design):
    rows = synthetic.planted_rows(design)
    extra = [row for row in rows if row["role"] == "seed"]
    label = (extra[0]["budget_flops"], extra[0]["size"])
    losses = [row[LOSS] for row in rows if row["variant"] == "baseline" and (row["budget_flops"], row["size"]) == label]
    found = analysis.seed_spread(rows)
    assert len(losses) == 3
    assert found["sd"] == pytest.approx(np.std(losses, ddof=1), rel=1e-12)
    assert found["degrees_of_freedom"] == 2
    alone = analysis.seed_spread([row for row in rows if row["role"] == "grid"])
    assert alone["sd"] is None
    assert alone["reason"]


def test_device_time_is_told_apart_by_what_runs_were_for(design):
    rows = synthetic.planted_rows(design)
    rows[0]["device"] = "4 x planted law"
    rows[1]["total_secs"] = None
    found = analysis.device_time(rows)
    assert found["total"]["num_runs"] == 44
    assert found["total"]["num_unknown"] == 1
    assert set(found["by_role"]) == {"grid", "seed", "prediction"}
    expected = 3 * rows[0]["total_secs"] + sum(row["total_secs"] or 0 for row in rows)
    assert found["total"]["device_secs"] == pytest.approx(expected)
    assert sum(part["device_secs"] for part in found["by_role"].values()) == pytest.approx(expected)


def test_rows_of_two_corpora_or_two_codes_are_a_warning(design):
    rows = synthetic.planted_rows(design)
    rows[0]["corpus_fingerprint"] = "0ddba11"
    rows[1]["code_fingerprint"] = "0ddba11"
    codes = [warning["code"] for warning in analysis.analyse(rows, "baseline", draws=50)["warnings"]]
    assert {"mixed_corpora", "mixed_code"} <= set(codes)


def test_a_grid_of_two_budgets_has_an_answer_or_a_reason(design):
    rows = [row for row in synthetic.planted_rows(design) if row["budget_flops"] < 3e11 and row["role"] == "grid"]
    few = [row for row in rows if row["variant"] == "baseline" or row["budget_flops"] == 1e11]
    head = analysis.analyse(few, "baseline", draws=50)["headline"]["scaled_heads"]
    assert head["saving"] is None or head["saving"]["budget_flops"] == 1e11
    assert head["verdict"] in ("unknown", "unresolved", "less", "more")
    alone = analysis.analyse([row for row in rows if row["variant"] == "baseline"], "baseline", draws=50)
    assert alone["headline"] == {}


def test_a_variant_without_its_reference_has_a_reason_and_no_number(design):
    rows = [row for row in synthetic.planted_rows(design) if row["variant"] == "scaled_heads"]
    found = analysis.analyse(rows, "baseline", draws=50)
    assert found["losses"][LOSS] is None
    assert found["headline"]["scaled_heads"]["verdict"] == "unknown"
    assert "baseline" in found["headline"]["scaled_heads"]["reason"]


def test_rows_without_a_finished_run_of_the_grid_are_refused(design):
    rows = [row for row in synthetic.planted_rows(design) if row["role"] == "seed"]
    with pytest.raises(BadInput, match="none of 2 rows"):
        analysis.analyse(rows, "baseline")
