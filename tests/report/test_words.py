"""Sentences on what a fit hangs on: an odd run, a budget that is missed, a floor, frontiers that cross."""

import numpy as np
import pytest

from smelt import analysis, verdict
from smelt.analysis import LOSS
from smelt.report import tables, words
from tests import synthetic


@pytest.fixture(scope="module")
def found():
    """A grid of which one run of the baseline is far off, the largest budget of the variant a little."""
    rows = [row for row in synthetic.planted_rows(synthetic.planted_grid(), saving=0.06) if row["role"] == "grid"]
    own = [row for row in rows if row["variant"] == "baseline"]
    own[12][LOSS] += 0.2
    for row in rows:
        if row["variant"] == "scaled_heads" and row["budget_flops"] == synthetic.BUDGETS_FLOPS[-1]:
            row[LOSS] += 0.05
    return own[12], analysis.analyse(rows, "baseline", draws=60)


def test_a_run_off_the_law_is_named_by_size_and_budget(found):
    odd, analysed = found
    sentence = words.hangs_on(analysed)["baseline"]["runs"]
    place = f"{tables.si(odd['num_params'])} at {analysis.compact(odd['budget_flops'])} ({odd['run_id']})"
    assert sentence.startswith(f"{place} lies more than 5 robust standard deviations off the law")
    assert "No run lies more than 5" in words.hangs_on(analysed)["scaled_heads"]["runs"]


def test_a_largest_budget_that_is_missed_is_said_with_its_hits_and_side(found):
    sentence = words.hangs_on(found[1])["scaled_heads"]["largest_out"]
    held = found[1]["examined"]["diagnostics"]["scaled_heads"]["largest_out"]
    assert held["hits"] < 5
    assert f"{held['hits']} of the 5 losses" in sentence
    assert " above it on average" in sentence
    assert sentence.endswith("it does not carry upwards.")
    assert "extrapolation_missed" in [w["code"] for w in found[1]["warnings"] if w["variant"] == "scaled_heads"]


def test_every_variant_is_asked_and_only_those_compared_are_compared(found):
    said = words.hangs_on(found[1])
    assert set(said["baseline"]) == set(words.OF_ONE)
    assert set(said["scaled_heads"]) == {*words.OF_ONE, *words.OF_TWO}
    assert "a differs by " in said["scaled_heads"]["shared"]
    assert all(sentence.endswith(".") for parts in said.values() for sentence in parts.values())


def test_the_table_of_tests_says_the_same(found):
    table = tables.tests(found[1])
    assert [row[0] for row in table.rows] == ["baseline", "scaled_heads"]
    assert table.rows[0][3:] == (tables.NONE, tables.NONE)
    held = found[1]["examined"]["diagnostics"]["scaled_heads"]["largest_out"]
    assert table.rows[1][1].startswith(f"{held['hits']} of 5 inside, +")


def test_where_nothing_was_fitted_nothing_is_said(found):
    empty = {**found[1], "examined": None, "losses": dict.fromkeys(found[1]["losses"])}
    assert words.hangs_on(empty) == {}
    assert words.run_names(empty) == {}
    assert tables.tests(empty).rows == tables.refits(empty).rows == ()


@pytest.mark.parametrize(
    ("crossing", "sentence"),
    [
        (
            {"value": 2e11, "low": 1e11, "high": 3e11, "times": 1.0},
            "b's frontier and a's cross at 2e11 FLOPs [1e11, 3e11]: below it a is the better one, above it b, whatever "
            "a single saving says",
        ),
        (
            {"value": 2e11, "low": 0.0, "high": None, "times": 1.0},
            "b's frontier and a's cross at 2e11 FLOPs as fitted, but the runs do not tell where, and so not which of "
            "the two is the better one",
        ),
        (
            {"value": 2e12, "low": None, "high": None, "times": 4.0},
            "b's frontier and a's cross at 2e12 FLOPs, 4 times outside the budgets trained",
        ),
        (
            {"value": None, "low": None, "high": None, "times": 20.0},
            "b's frontier and a's do not cross near the budgets trained, but 20 times outside them",
        ),
        (
            {"value": None, "low": None, "high": None, "times": None},
            "b's frontier is above a's at every compute",
        ),
    ],
)
def test_a_crossing_is_told_as_far_as_it_is_known(crossing, sentence):
    compute = {name: crossing[name] for name in ("value", "low", "high")}
    compute["reason"] = "the target's frontier is above the reference's at every compute"
    told = verdict.crossed("b", "a", {"compute": compute, "better_above": True, "extrapolation": crossing["times"]})
    assert told == sentence


def test_corrected_minima_have_a_row_each_with_the_bias_or_the_reason(found):
    table = tables.minima_corrected(found[1])
    assert len(table.rows) == 8
    few = {**found[1]["losses"][LOSS]}
    for group in few["groups"].values():
        assert all(np.isfinite(m["size_bias_percent"]["value"]) for m in group["minima_corrected"])
    none = {"budget_flops": 1e11, "inside": False, "estimates": {}, "size_bias_percent": None, "loss_bias_nats": None}
    group = {"minima_corrected": [{**none, "warnings": [], "reason": "the group has no surface"}]}
    table = tables.minima_corrected({"losses": {LOSS: {"groups": {"a": group}}}})
    assert table.rows[0][-1] == "the group has no surface"
