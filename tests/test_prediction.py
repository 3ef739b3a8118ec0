"""Predictions: what was said before, kept as it was said, and scored as hit or miss."""

import copy

import pytest

from smelt import analysis, ledger, prediction
from smelt.errors import BadInput
from smelt.experiment import Experiment
from smelt.files import read_json
from tests import synthetic

PLANTED = 0.06


@pytest.fixture(scope="module")
def design():
    return synthetic.planted_grid()


@pytest.fixture(scope="module")
def rows(design):
    return synthetic.planted_rows(design, saving=PLANTED, minutes_late=40)


@pytest.fixture(scope="module")
def known(rows):
    return [row for row in rows if row["role"] != "prediction"]


@pytest.fixture(scope="module")
def predicted(design, known):
    return prediction.predict(known, prediction.targets(design), "baseline", draws=300)


@pytest.fixture
def experiment(design, tmp_path, monkeypatch):
    monkeypatch.setenv("SMELT_RUNS", str(tmp_path))
    return Experiment(name="planted", path=tmp_path / "planted.py", docstring="Planted?", grid=design)


def test_the_planted_runs_hit_their_predictions(predicted, rows):
    scored = prediction.score_prediction(predicted, rows)
    assert [cell["hit"] for cell in scored["cells"]] == [True, True]
    assert [pair["hit"] for pair in scored["differences"]] == [True]
    assert scored["num_hits"] == scored["num_scored"] == 3
    own, pair = scored["cells"][0], scored["differences"][0]
    numbers = f"{own['measured']:.3f} in [{own['low']:.3f}, {own['high']:.3f}]"
    assert scored["sentence"].startswith(f"At 3e12 FLOPs: baseline hit ({numbers}), scaled_heads hit (")
    assert f"difference of scaled_heads hit (\u2212{-pair['measured']:.4f} in [" in scored["sentence"]


def test_the_difference_of_a_pair_is_predicted_closer_than_its_losses(predicted):
    difference = predicted["differences"][0]["difference_nats"]
    losses = [cell["loss_nats"]["high"] - cell["loss_nats"]["low"] for cell in predicted["cells"]]
    assert difference["high"] - difference["low"] < 0.7 * min(losses)
    assert all(cell["extrapolation_flops"] == pytest.approx(2, rel=0.02) for cell in predicted["cells"])
    saving = predicted["savings"]["scaled_heads"][0]
    assert saving["budget_flops"] == 3e12
    assert saving["estimate"]["value"] == pytest.approx(PLANTED, abs=0.03)


def test_a_measured_loss_outside_the_interval_is_a_miss(predicted, rows):
    moved = copy.deepcopy(rows)
    next(row for row in moved if row["role"] == "prediction" and row["variant"] == "scaled_heads")[analysis.LOSS] += 0.1
    scored = prediction.score_prediction(predicted, moved)
    assert [cell["hit"] for cell in scored["cells"]] == [True, False]
    assert [pair["hit"] for pair in scored["differences"]] == [False]
    assert f"scaled_heads missed ({scored['cells'][1]['measured']:.3f} outside [" in scored["sentence"]


def test_a_run_that_is_not_trained_or_diverged_is_not_scored(design, predicted, known, rows):
    assert "not trained yet" in prediction.score_prediction(predicted, known)["sentence"]
    lost = [cell["run_id"] for cell in predicted["cells"]]
    scored = prediction.score_prediction(predicted, synthetic.planted_rows(design, diverged=lost))
    assert [cell["hit"] for cell in scored["cells"]] == [None, None]
    assert "loss_nats is nan" in scored["cells"][0]["reason"]


def test_a_prediction_is_kept_once_its_run_has_a_row(experiment, known, rows):
    assert prediction.read_prediction(experiment.folder) is None
    path = prediction.write_prediction(experiment, known[:30])
    first = read_json(path)
    prediction.write_prediction(experiment, known)  # nothing that it predicts is known yet
    second = prediction.read_prediction(experiment.folder)
    assert first["rows"]["num_rows"] < second["rows"]["num_rows"]
    trained = next(row for row in rows if row["role"] == "prediction")
    with pytest.raises(BadInput, match=f"{trained['run_id']} has a row: .* is kept as it is"):
        prediction.write_prediction(experiment, [*known, trained])
    ledger.write(experiment.folder / trained["run_id"], trained)
    with pytest.raises(BadInput, match="is kept as it is"):
        prediction.write_prediction(experiment, known)
    assert prediction.read_prediction(experiment.folder) == second
    path.unlink()
    with pytest.raises(BadInput, match="would know the answer"):
        prediction.write_prediction(experiment, known)


def test_a_prediction_that_was_written_late_is_called_none(predicted, rows):
    early = prediction.score_prediction({**predicted, "written_at": "2026-11-30T12:01:00+00:00"}, rows)
    late = prediction.score_prediction({**predicted, "written_at": "2026-11-30T12:39:59+00:00"}, rows)
    assert not early["made_late"]
    assert late["made_late"]
    assert "it is no prediction" in late["sentence"]


def test_too_few_runs_predict_nothing_and_say_why(design, known):
    few = [row for row in known if row["variant"] == "baseline" or row["size"] == known[0]["size"]]
    found = prediction.predict(few, prediction.targets(design), "baseline", draws=50)
    losses = {cell["variant"]: cell for cell in found["cells"]}
    assert losses["baseline"]["loss_nats"]["low"] is not None
    assert losses["scaled_heads"]["loss_nats"] is None
    assert losses["scaled_heads"]["reason"].startswith("scaled_heads: ")
    assert found["differences"][0]["difference_nats"]["value"] is None
