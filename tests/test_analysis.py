"""What an analysis says of rows whose law, noise and advantage are planted."""

import dataclasses
import json

import numpy as np
import pytest

from smelt import analysis, fit, grid, variants
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


def test_what_fits_hang_on_is_examined_and_its_flags_are_warnings_by_variant(design):
    rows = synthetic.planted_rows(design)
    odd = next(row for row in rows if row["variant"] == "scaled_heads" and row["role"] == "grid")
    odd[LOSS] *= 1.1
    found = analysis.analyse(rows, "baseline", draws=50)
    diagnosed = found["examined"]["diagnostics"]["scaled_heads"]
    assert [diagnosed["labels"][row] for row in diagnosed["outliers"]] == [odd["run_id"]]
    outliers = [warning for warning in found["warnings"] if warning["code"] == "outlier_rows"]
    assert [warning["variant"] for warning in outliers] == ["scaled_heads"]
    assert odd["run_id"] in outliers[0]["message"]
    assert set(found["examined"]["shared"]) == {"scaled_heads"}
    assert "influence" not in found["examined"]["jackknives"]["baseline"]


def test_no_warning_is_said_twice_and_those_on_verdicts_stand_before_those_on_fits(design):
    rows = [row for row in synthetic.planted_rows(design, saving=-0.3) if row["role"] == "grid"]
    for row in rows:  # the variant gains with compute: frontiers that cross inside the budgets
        if row["variant"] == "scaled_heads":
            row[LOSS] -= 0.13 * np.log(row["budget_flops"] / 1e11) - 0.02
    found = analysis.analyse(rows, "baseline", draws=50)["warnings"]
    assert len({(warning["code"], warning["message"]) for warning in found}) == len(found)
    codes = [warning["code"] for warning in found]
    crossed = found[codes.index("frontiers_cross")]
    assert crossed["variant"] == "scaled_heads"
    assert crossed["message"].startswith("scaled_heads: its frontier and baseline's cross at ")
    assert codes.index("frontiers_cross") < codes.index("few_budgets")


def test_profiles_are_made_of_the_same_surface_and_of_nothing_where_nothing_is_fitted(design):
    rows = synthetic.planted_rows(design)
    found = analysis.analyse(rows, "baseline", draws=50)
    profiles = analysis.profiles(rows, "baseline", delta=found["settings"]["delta"])
    for name, group in found["losses"][LOSS]["groups"].items():
        for parameter, profile in profiles[name].items():
            assert profile["interval"]["value"] == group["surface"]["parameters"][parameter]
    alone = [row for row in rows if row["variant"] == "scaled_heads"]
    assert analysis.profiles(alone, "baseline") == {}


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
    assert found["losses"][LOSS] is found["examined"] is None
    assert found["headline"]["scaled_heads"]["verdict"] == "unknown"
    assert "baseline" in found["headline"]["scaled_heads"]["reason"]


def test_rows_without_a_finished_run_of_the_grid_are_refused(design):
    rows = [row for row in synthetic.planted_rows(design) if row["role"] == "seed"]
    with pytest.raises(BadInput, match="none of 2 rows"):
        analysis.analyse(rows, "baseline")


def branches(num_sizes):
    """Four decays from the trunk of each size."""

    def recipe(arch):
        optim, data = synthetic.recipe(arch, 0.0)
        in_steps = {"warmup_frac": 0.0, "warmup_steps": 10, "decay_frac": 0.0, "decay_steps": 100}
        return dataclasses.replace(optim, **in_steps), data

    return grid.branches(
        ladder=[synthetic.architecture(12 + 4 * size) for size in range(num_sizes)],
        variants=(variants.baseline, synthetic.scaled_heads),
        recipe=recipe,
        fork_steps=(200, 800, 3200, 12800),
        seeds=(0, 1),
        matcher=None,
        held="three_budgets",
        bound=0.04,
    )


def trunk_noise(rows, sd, seed=0):
    """Rows that share their trunk's luck, each arm and seed its own."""
    drawn, generator = {}, np.random.default_rng(seed)
    for row in rows:
        key = (row["variant"], row["size"], row["seed"])
        row[LOSS] += drawn.setdefault(key, sd * float(generator.standard_normal()))
    return rows


def test_the_run_of_a_row_is_the_run_that_it_was_made_from():
    made = [*synthetic.planted_grid().cells, *branches(3).cells]
    rows = [*synthetic.planted_rows(synthetic.planted_grid()), *synthetic.planted_rows(branches(3))]
    assert [analysis.run_of(row) for row in rows] == [cell.run for cell in made]


def test_rows_of_one_trunk_are_drawn_as_one_with_their_partners_and_seeds(design):
    rows = synthetic.planted_rows(branches(5))
    labels = dict(zip(analysis.table(rows)["run_id"], analysis.table(rows)["unit"], strict=True))
    assert len(set(labels.values())) == 5
    assert all(len({labels[row["run_id"]] for row in rows if row["size"] == size}) == 1 for size in range(5))
    assert "unit" not in analysis.table(synthetic.planted_rows(design))


def test_intervals_know_that_rows_of_a_trunk_share_its_luck():
    rows = trunk_noise(synthetic.planted_rows(branches(10), noise=1e-4), sd=0.02)
    found = analysis.pair_differences(rows, "scaled_heads", "baseline")
    naive = 1.99 * found["sd_nats"] / 80**0.5
    assert found["mean_nats"]["method"] == "Student t over trunks"
    assert found["mean_nats"]["high"] - found["mean_nats"]["low"] > 1.5 * 2 * naive
    assert found["mean_nats"]["low"] < 0 < found["mean_nats"]["high"]
    widths = []
    for left_out in ((), ("unit",)):
        columns = {name: values for name, values in analysis.table(rows).items() if name not in left_out}
        fits = fit.fit_groups(columns, "baseline", loss_column=LOSS, draws=DRAWS)
        exponent = fits.surfaces["baseline"].estimates["a"]
        widths.append(exponent.high - exponent.low)
    assert widths[0] > 1.2 * widths[1]


def test_few_trunks_are_a_warning_and_rows_without_trunks_are_none(design):
    assert "trunks of 9 sizes" in analysis.few_trunks(synthetic.planted_rows(branches(9)))
    assert analysis.few_trunks(synthetic.planted_rows(branches(10))) is None
    assert analysis.few_trunks(synthetic.planted_rows(design)) is None
    assert analysis.few_trunks([]) is None


def test_what_is_drawn_as_one_is_all_that_cells_and_trunks_connect(monkeypatch):
    rows = [{"budget_flops": budget, "size": 0} for budget in (1.0, 2.0, 3.0, 3.0, 4.0, 5.0)]
    monkeypatch.setattr(analysis, "trunks", lambda rows: ["a", "b", "b", "c", "c", "d"])
    assert analysis.units(rows) == ["1|0", "2|0", "2|0", "2|0", "2|0", "5|0"]
