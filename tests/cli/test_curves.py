"""The verbs envelope and link on anybody's table: planted laws come back in words, JSON and a figure."""

import json

import numpy as np
import pytest

from smelt import fit as fitting
from smelt.cli import main
from smelt.errors import EXIT_BAD_INPUT, EXIT_DONE
from tests.fit.planted import CHINCHILLA

ENVELOPE = ["envelope", "--csv", "curves.csv", "--columns", "run_id=run", "num_params=N", "num_tokens=D", "loss_nats=L"]
LINK = ["link", "--csv", "runs.csv", "--columns", "loss_nats=L", "accuracy=acc"]
SIZE_EXPONENT = CHINCHILLA["beta"] / (CHINCHILLA["alpha"] + CHINCHILLA["beta"])


def smelt(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def done(capsys, *words):
    code, out, err = smelt(capsys, *words)
    assert code == EXIT_DONE, err
    return out


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["run,N,D,C,L"]
    for index, size in enumerate(5e7 * 2.0 ** np.arange(7)):
        for tokens in size * np.geomspace(0.5, 200, 30):
            at = {"num_params": size, "num_tokens": tokens}
            loss = float(fitting.predicted_loss(fitting.CHINCHILLA, CHINCHILLA, at))
            lines.append(f"r{index},{float(size)!r},{float(tokens)!r},{float(6e-9 * size * tokens)!r},{loss!r}")
    (tmp_path / "curves.csv").write_text("\n".join(lines) + "\n")
    generator = np.random.default_rng(1)
    lines = ["run,L,acc,err"]
    for index, loss in enumerate(np.linspace(2.0, 4.0, 30)):
        accuracy = 0.25 + 0.6 / (1 + np.exp(4 * (loss - 2.8))) + 0.01 * generator.standard_normal()
        lines.append(f"r{index // 2},{float(loss)!r},{float(accuracy)!r},{float(1 - accuracy)!r}")
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_an_envelope_gives_the_planted_exponents_and_calls_those_of_every_point_biased(tables, capsys):
    words = [*ENVELOPE, "--flops", "6ND", "--draws", "60"]
    found = json.loads(done(capsys, *words, "--json", "--out", "kept.json"))
    assert found == json.loads((tables / "kept.json").read_text())
    exponent = found["envelope"]["allocation"]["num_params"]["exponent"]
    assert exponent["value"] == pytest.approx(SIZE_EXPONENT, abs=0.002)
    assert found["envelope"]["exponents_of_all_points"]["num_params"]["value"] < SIZE_EXPONENT - 0.05
    assert {"mid_schedule", "held_by_an_end"} <= {flag["code"] for flag in found["warnings"]}
    out = done(capsys, *words, "--figure", "envelope.svg", "--tables", "t")
    lines = out.splitlines()
    assert lines[0] == "210 rows of curves.csv; loss_nats in nats per token"
    biased = [line for line in lines if "every point" in line and "biased" in line]
    assert [line.split("~")[0].strip() for line in biased] == ["optimal parameters", "optimal tokens", "lowest loss"]
    assert "warning (mid_schedule)" in out
    assert "repeated_cells" not in out
    assert (tables / "envelope.svg").read_text().startswith("<?xml")
    assert {path.name for path in (tables / "t").iterdir()} == {
        f"{name}.{kind}" for name in ("exponents", "handovers") for kind in ("csv", "tex")
    }


def test_compute_that_was_logged_in_another_unit_gives_the_same_envelope(tables, capsys):
    words = ["--draws", "20", "--finished-points", "--json"]
    one = json.loads(done(capsys, *ENVELOPE, "--flops", "6ND", *words))["envelope"]
    other = json.loads(done(capsys, *ENVELOPE, "train_flops=C*1e9", *words))["envelope"]
    assert other["handovers"]["num_params"] == pytest.approx(one["handovers"]["num_params"], rel=1e-9)
    assert other["frontier"]["exponent"] == pytest.approx(one["frontier"]["exponent"], rel=1e-9)
    assert "mid_schedule" not in {flag["code"] for flag in one["warnings"]}


def test_a_link_gives_the_planted_sigmoid_and_the_score_at_a_loss(tables, capsys):
    words = [*LINK, "run_id=run", "--chance", "0.25", "--draws", "100", "--at", "2.5", "1.5"]
    found = json.loads(done(capsys, *words, "--json"))
    for name, value in {"a": 0.6, "k": 4.0, "midpoint": 2.8}.items():
        estimate = found["link"]["estimates"][name]
        assert estimate["low"] <= value <= estimate["high"]
    inside, outside = found["predictions"]
    truth = 0.25 + 0.6 / (1 + np.exp(4 * (2.5 - 2.8)))
    assert inside["expected"]["low"] <= truth <= inside["expected"]["high"]
    assert inside["estimate"]["high"] - inside["estimate"]["low"] > inside["expected"]["high"] - truth
    assert (inside["loss_outside"], outside["loss_outside"]) == (0.0, pytest.approx(0.5))
    assert found["explained_frac"] > 0.99
    out = done(capsys, *words, "--figure", "link.pdf")
    assert "accuracy = b + a / (1 + exp(k (loss" in out
    assert "0.5 outside the losses seen" in out
    assert "warning (extrapolated): the loss 1.5" in out
    assert (tables / "link.pdf").read_bytes().startswith(b"%PDF")


def test_an_error_is_linked_as_one_less_the_accuracy(tables, capsys):
    words = ["--chance", "0.25", "--draws", "40", "--at", "2.5", "--json"]
    right = json.loads(done(capsys, *LINK, *words))
    wrong = json.loads(done(capsys, *LINK[:-1], "error=err", *words))
    assert wrong["link"]["parameters"]["b"] == 0.75
    one, other = (found["predictions"][0]["expected"]["value"] for found in (right, wrong))
    assert other == pytest.approx(1 - one, abs=1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (ENVELOPE, "the compute of curves.csv is not known: add train_flops=COLUMN to --columns, or --flops 6ND"),
        ([*ENVELOPE[:4], *ENVELOPE[5:]], "add --columns run_id=COLUMN"),
        ([*ENVELOPE[:-1], "--flops", "6ND"], "has no loss named: add loss_nats=COLUMN"),
        ([*ENVELOPE, "--flops", "6ND", "--best-of", "N"], "--best-of says nothing about curves"),
        ([*ENVELOPE, "--flops", "6ND", "--figure", "a.gif"], "cannot draw to 'a.gif'"),
        (LINK[:-1], "name accuracy=COLUMN or error=COLUMN beside it; have loss_nats alone"),
        ([*LINK, "error=err"], "a link is of one score to a loss"),
        ([*LINK, "--chance", "25"], "--chance is 25: give the accuracy of guessing"),
        (["link", "--csv", "runs.csv", "--columns", "accuracy=acc"], "has no loss named"),
        (["link", "--csv", "runs.csv", "--columns", "error=err"], "have error alone"),
        (["link", "--csv", "runs.csv", "--columns", "loss_nats=L", "accuracy=L"], "an accuracy is a share from 0 to 1"),
        (["fit", "--csv", "curves.csv", *ENVELOPE[3:], "error=L*0.1"], "smelt link takes both"),
    ],
)
def test_what_is_no_table_of_curves_or_scores_is_refused_with_its_mend(tables, capsys, words, message):
    code, out, err = smelt(capsys, *words)
    assert (code, out, len(err.splitlines())) == (EXIT_BAD_INPUT, "", 1)
    assert message in err
