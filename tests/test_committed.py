"""Committed results come out again from their committed rows."""

import random

import pytest

from smelt import committed, prediction
from smelt.errors import BadInput
from smelt.files import read_json, write_json
from tests import synthetic


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A committed synthetic result; its folder."""
    folder = tmp_path_factory.mktemp("fits")
    design = synthetic.planted_grid()
    rows = synthetic.planted_rows(design, saving=0.06)
    predicted = prediction.predict(rows, prediction.targets(design), "baseline", draws=100)
    committed.commit("planted", rows, "baseline", predicted=predicted, folder=folder, draws=100)
    return folder


def test_every_committed_fit_is_made_again_from_its_rows():
    for name in committed.names():
        assert committed.rederive(name) == []


def test_a_fit_that_was_just_committed_is_made_again(kept):
    assert committed.names(kept) == ["planted"]
    assert committed.rederive("planted", kept) == []


def test_the_order_of_rows_does_not_change_what_is_committed(kept, tmp_path):
    rows, analysis, _ = committed.read("planted", kept)
    random.Random(0).shuffle(rows)
    again = committed.commit("planted", rows, "baseline", folder=tmp_path, draws=100)
    assert {"experiment": "planted", **again} == analysis
    assert (tmp_path / "planted.csv").read_text() == (kept / "planted.csv").read_text()


def test_an_edited_number_is_found(kept, tmp_path):
    for path in kept.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    value = read_json(tmp_path / "planted.json")
    value["headline"]["scaled_heads"]["saving"]["estimate"]["value"] += 1e-4
    write_json(tmp_path / "planted.json", value)
    value = read_json(tmp_path / "planted.prediction.json")
    value["cells"][0]["loss_nats"]["value"] += 1e-4
    write_json(tmp_path / "planted.prediction.json", value)
    assert [difference["path"] for difference in committed.rederive("planted", tmp_path)] == [
        "planted.headline.scaled_heads.saving.estimate.value",
        "planted.prediction.cells[0].loss_nats.value",
    ]


@pytest.mark.parametrize(
    ("kept", "again", "paths"),
    [
        ({"value": 2.0}, {"value": 2.0 * (1 + 1e-7)}, []),
        ({"value": 2.0}, {"value": 2.0 * (1 + 1e-5)}, ["x.value"]),
        ({"influence": {"a": [0.01]}}, {"influence": {"a": [0.01 + 5e-7]}}, []),
        ({"influence": {"a": [0.01]}}, {"influence": {"a": [0.01 + 5e-6]}}, ["x.influence.a[0]"]),
        ({"value": 1.0, "low": 0.9, "high": 1.1}, {"value": 1.0, "low": 0.901, "high": 1.1}, []),
        ({"value": 1.0, "low": 0.9, "high": 1.1}, {"value": 1.0, "low": 0.93, "high": 1.1}, ["x.low"]),
        ({"reason": None}, {"reason": "none", "new": 1}, ["x.reason", "x.new"]),
    ],
)
def test_rounding_is_no_difference_and_a_change_is(kept, again, paths):
    assert [found["path"] for found in committed.differences(kept, again, "x")] == paths


def test_an_unknown_result_names_the_known_ones(kept):
    with pytest.raises(BadInput, match=r"no committed result 'other' .* known are planted"):
        committed.read("other", kept)
