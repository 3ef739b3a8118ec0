"""The verbs fit, predict and savings on anybody's table and on an experiment: what is printed, written, made again."""

import csv
import json
import re
import shutil

import numpy as np
import pytest

from smelt import fit as fitting
from smelt.cli import main
from smelt.errors import EXIT_DONE, EXIT_FAILED, BadInput
from tests.fit.planted import CHINCHILLA

COLUMNS = ["--columns", "num_params=N", "num_tokens=D", "loss_nats=L", "--flops", "6ND"]


def smelt(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def done(capsys, *words):
    code, out, err = smelt(capsys, *words)
    assert code == EXIT_DONE, err
    return out


def as_json(capsys, *words):
    return json.loads(done(capsys, *words, "--json"))


def lines_of(groups, num_rows=24):
    generator = np.random.default_rng(3)
    lines = ["who,N,D,L"]
    for group, factor in groups.items():
        for _ in range(num_rows):
            n = float(np.exp(generator.uniform(np.log(1e7), np.log(1e9))))
            d = n * float(np.exp(generator.uniform(np.log(2), np.log(200))))
            at = {"num_params": n * factor**0.5, "num_tokens": d * factor**0.5}
            loss = float(fitting.predicted_loss(fitting.CHINCHILLA, CHINCHILLA, at))
            lines.append(f"{group},{n!r},{d!r},{loss * (1 + 0.002 * generator.standard_normal())!r}")
    return lines


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = lines_of({"dense": 1.0, "sparse": 1.25})
    (tmp_path / "theirs.csv").write_text("\n".join([*lines, "dense,1e7,2e8,", "dense,1e7,2e8,9.5"]) + "\n")
    return tmp_path


FIT = ["fit", "--csv", "theirs.csv", *COLUMNS, "--where", "L<9", "--draws", "100"]


def test_a_fit_prints_estimates_the_optimum_what_was_left_out_and_warnings(theirs, capsys):
    out = done(capsys, *FIT, "--where", "who=dense")
    assert out.startswith("24 rows of theirs.csv; loss_nats in nats per token\n")
    assert "train_flops is 6 num_params num_tokens, as asked" in out
    assert (
        "26 rows left out: 24 x where who=dense, 1 x no loss, 1 x where L<9; the first is row 26, where who=dense: who"
        in out
    )
    for word in ("alpha", "optimal size ~ C^x", "frontier: loss above the floor", "tokens per parameter", "inside"):
        assert word in out


def test_what_a_fit_hangs_on_is_told_in_the_output(theirs, capsys):
    lines = (theirs / "theirs.csv").read_text().splitlines()
    who, n, d, loss = lines[5].split(",")
    lines[5] = ",".join([who, n, d, str(1.2 * float(loss))])
    (theirs / "theirs.csv").write_text("\n".join(lines) + "\n")
    out = done(capsys, *FIT, "--group", "who", "--reference", "dense")
    assert "warning (outlier_rows): dense: row 6 lies more than 5 robust standard deviations off the law" in out
    assert "is E above zero?" in out
    assert "are alpha, beta the same in dense, sparse?" in out
    assert "where does its frontier cross dense's?" in out


def test_options_that_are_given_twice_add_up(theirs, capsys):
    once = as_json(capsys, *FIT, "--where", "who=dense", "N<1e8")
    twice = as_json(capsys, *FIT, "--where", "who=dense", "--where", "N<1e8")
    assert once["table"]["settings"]["where"] == twice["table"]["settings"]["where"] == ["L<9", "who=dense", "N<1e8"]
    assert once["table"]["rows"] == twice["table"]["rows"]


def test_a_fit_names_its_rows_and_comes_out_again_from_them(theirs, capsys):
    done(capsys, *FIT, "--group", "who", "--reference", "dense", "--out", "kept/fit.json")
    kept = json.loads((theirs / "kept" / "fit.json").read_text())
    assert kept["table"]["file"] == "../theirs.csv"
    assert kept["table"]["rows"] == list(range(2, 50))
    assert kept["table"]["left_out"] == [
        {"row": 50, "reason": "no loss"},
        {"row": 51, "reason": "where L<9: L is 9.5"},
    ]
    assert set(kept["estimates"]) == {"dense", "sparse"}
    assert done(capsys, "fit", "--again", "kept/fit.json") == "kept/fit.json comes out the same from its rows\n"
    moved = theirs / "moved.csv"
    shutil.move(theirs / "theirs.csv", moved)
    code, _, err = smelt(capsys, "fit", "--again", "kept/fit.json")
    assert (code, "does not exist: restore it, or give its place with --csv" in err) == (2, True)
    done(capsys, "fit", "--again", "kept/fit.json", "--csv", moved)
    moved.write_text(moved.read_text().replace("dense,1e7,2e8,9.5", "dense,1e7,2e8,3.5"))
    code, out, _ = smelt(capsys, "fit", "--again", "kept/fit.json", "--csv", moved)
    assert code == EXIT_FAILED
    assert "fit.table.sha256" in out
    shutil.move(moved, theirs / "theirs.csv")
    for verb in (["predict", "kept/fit.json", "--flops", "1e18"], ["savings", "kept/fit.json"]):
        code, _, err = smelt(capsys, *verb)
        assert code == 2
        assert "theirs.csv is not the file that kept/fit.json was made from (sha256 " in err


def test_an_edited_number_of_a_fit_is_found(theirs, capsys):
    done(capsys, *FIT, "--out", "fit.json")
    kept = json.loads((theirs / "fit.json").read_text())
    kept["estimates"]["all"]["alpha"]["value"] += 1e-4
    (theirs / "fit.json").write_text(json.dumps(kept))
    code, out, _ = smelt(capsys, "fit", "--again", "fit.json", "--json")
    assert code == EXIT_FAILED
    assert [item["path"] for item in json.loads(out)] == ["fit.estimates.all.alpha.value"]


def test_savings_of_a_table_cover_what_was_planted_at_budgets_and_at_losses(theirs, capsys):
    done(capsys, *FIT, "--group", "who", "--reference", "dense", "--out", "fit.json")
    found = as_json(capsys, "savings", "fit.json", "--at", "1e17", "1e18")
    (low, high) = (found["savings"]["sparse"]["surface"]["at_budgets"][1]["estimate"][end] for end in ("low", "high"))
    assert (found["reference"], low <= 0.2 <= high) == ("dense", True)
    back = as_json(capsys, "savings", "fit.json", "--at", "1e18", "--reference", "sparse")
    assert back["savings"]["dense"]["surface"]["at_budgets"][0]["estimate"]["value"] < 0
    gain = as_json(capsys, "savings", "fit.json", "--loss", "2.6")["savings"]["sparse"]["surface"]["at_losses"][0][
        "gain"
    ]
    assert gain["low"] <= 1.25 <= gain["high"]
    assert "gain, surface of all runs" in done(capsys, "savings", "fit.json", "--loss", "2.6", "--variant", "sparse")
    assert "is not above the target's floor" in done(capsys, "savings", "fit.json", "--loss", "1.5")


def test_predictions_say_how_far_they_extrapolate(theirs, capsys):
    done(capsys, *FIT, "--out", "fit.json")
    found = as_json(capsys, "predict", "fit.json", "--flops", "1e18", "5.76e23")
    assert [answer["extent"][:12] for answer in found["optima"]] == ["inside", "extrapolates"]
    assert [flag["code"] for flag in found["optima"][1]["warnings"]] == ["extrapolated_far"]
    assert found["optima"][0]["size"]["low"] < found["optima"][0]["size"]["high"]
    run = as_json(capsys, "predict", "fit.json", "--num-params", "300M", "--num-tokens", "6e9")["runs"][0]
    truth = fitting.predicted_loss(fitting.CHINCHILLA, CHINCHILLA, {"num_params": 3e8, "num_tokens": 6e9})
    assert run["loss"]["low"] <= truth <= run["loss"]["high"]
    text = done(capsys, "predict", "fit.json", "--flops", "5.76e23")
    assert "extrapolates" in text
    assert "warning (extrapolated_far)" in text


def test_an_experiment_is_asked_in_the_same_words(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SMELT_RUNS", str(tmp_path))
    found = as_json(capsys, "savings", "quickstart", "--draws", "60", "--at", "4.8e11")
    kinds = found["savings"]["loop_middle"]
    assert next(kind for kind in kinds if kind != "recommended") == kinds["recommended"]
    answers = as_json(capsys, "predict", "quickstart", "--flops", "1e12", "--draws", "60")["optima"]
    assert [answer["group"] for answer in answers] == ["baseline", "loop_middle"]
    assert all(answer["size_column"] == "flops_per_token" for answer in answers)
    gains = as_json(capsys, "savings", "quickstart", "--draws", "60", "--loss", "2.9", "--variant", "loop_middle")
    assert gains["savings"]["loop_middle"]["surface"]["at_losses"][0]["gain"]["value"] > 0


def test_savings_and_optima_are_given_in_other_currencies(theirs, capsys, monkeypatch):
    done(capsys, *FIT, "--group", "who", "--reference", "dense", "--out", "fit.json")
    served = as_json(capsys, "savings", "fit.json", "--at", "1e18", "--currency", "flops+inference:1B")
    assert served["savings"]["sparse"]["surface"]["at_budgets"][0]["estimate"]["value"] > 0
    assert "FLOPs with 1B tokens served" in done(
        capsys, "predict", "fit.json", "--flops", "1e18", "--currency", "flops+inference:1B"
    )
    for words, message in (
        (["savings", "fit.json", "--currency", "euros"], "--currency is 'euros': give flops, secs, bytes or flops+inf"),
        (["savings", "fit.json", "--loss", "2.6", "--currency", "secs"], "--loss compares training FLOPs"),
        (
            ["predict", "fit.json", "--flops", "1e18", "--currency", "secs"],
            "have no train_secs: name train_secs=COLUMN",
        ),
        (["savings", "fit.json", "--at", "1e18", "--currency", "secs"], "have no train_secs: name train_secs=COLUMN"),
    ):
        code, out, err = smelt(capsys, *words)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert message in err
    monkeypatch.setenv("SMELT_RUNS", str(theirs))
    secs = done(capsys, "predict", "quickstart", "--flops", "2e11", "--draws", "60", "--currency", "secs")
    assert "training seconds" in secs
    stored = done(capsys, "savings", "quickstart", "--draws", "60", "--currency", "bytes")
    assert stored.startswith("stored_bytes is 2 bytes a parameter")


def test_tables_are_written_with_their_numbers(theirs, capsys):
    done(capsys, *FIT, "--group", "who", "--reference", "dense", "--tables", "t")
    assert sorted(path.name for path in (theirs / "t").iterdir()) == [
        f"{name}.{kind}" for name in ("estimates", "left_out", "optima", "savings", "tests") for kind in ("csv", "tex")
    ]
    with open(theirs / "t" / "estimates.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    alpha = next(row for row in rows if (row["group"], row["quantity"]) == ("dense", "alpha"))
    assert float(alpha["estimate low"]) < float(alpha["estimate"]) < float(alpha["estimate high"])


def test_a_fit_in_compute_alone_is_drawn_from_the_columns_that_it_has(theirs, capsys):
    compute = np.geomspace(1e18, 1e21, 12)
    loss = (2 + 3e3 * compute**-0.2) * np.exp(0.002 * np.sin(np.arange(12.0) ** 2))
    (theirs / "c.csv").write_text("\n".join(["C,L", *(f"{c},{y}" for c, y in zip(compute, loss, strict=True))]) + "\n")
    words = ["--columns", "train_flops=C", "loss_nats=L", "--law", "saturating", "--draws", "50"]
    done(capsys, "fit", "--csv", "c.csv", *words, "--figures", "f")
    assert (theirs / "f" / "residuals.svg").exists()


def test_a_fit_with_options_left_out_is_kept_and_asked_again(theirs):
    from smelt import fitted, foreign

    columns = {"num_params": "N", "num_tokens": "D", "loss_nats": "L", "group": "who"}
    table = foreign.read("theirs.csv", columns, where=["L<9"], flops="6ND")
    made = fitted.fit_table(table, law="chinchilla", reference="dense", draws=20)
    fitted.save(made, "kept.json")
    assert fitted.load("kept.json")["options"] == {**made.content["options"], "budgets_flops": []}
    _, groups = fitted.asked("kept.json")
    assert groups.surfaces["sparse"].parameters == made.groups.surfaces["sparse"].parameters
    with pytest.raises(BadInput, match="does not keep 'widen'"):
        fitted.fit_table(table, law="chinchilla", reference="dense", widen=False)


EDITED = {
    "options": [
        *(("draws", "forty"), ("draws", 4.5), ("seed", True), ("law", {"a": 1}), ("delta", None), ("fixed", [1])),
        *(("budgets_flops", None), ("reference", 5)),
    ],
    "settings": [("columns", ["N"]), ("columns", {"num_params": 5}), ("where", 5), ("best_of", [5])],
    "table": [("file", 5), ("sha256", None)],
}


def test_a_fit_s_file_that_was_edited_into_something_else_is_refused_in_one_line(theirs, capsys):
    done(capsys, *FIT, "--where", "who=dense", "--out", "fit.json")
    kept = (theirs / "fit.json").read_text()
    for place, changes in EDITED.items():
        for name, value in changes:
            content = json.loads(kept)
            parts = {**content, "settings": content["table"]["settings"]}
            parts[place][name] = value
            (theirs / "fit.json").write_text(json.dumps(content))
            for verb in (["fit", "--again", "fit.json"], ["predict", "fit.json", "--flops", "1e20"]):
                code, _, err = smelt(capsys, *verb)
                assert (code, err.count("\n")) == (2, 1), (name, value)
                assert f"fit.json was edited: its {name} is" in err


def test_nothing_is_written_over_the_table_that_it_is_made_from(theirs, capsys):
    before = (theirs / "theirs.csv").read_bytes()
    imported = ["import", "theirs.csv", *COLUMNS, "--where", "L<9"]
    for words, message in (
        ([*FIT, "--where", "who=dense"], "does not end in .json"),
        (imported, "is the table itself"),
    ):
        code, _, err = smelt(capsys, *words, "--out", "theirs.csv")
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
        assert (theirs / "theirs.csv").read_bytes() == before


def test_a_table_of_tests_shows_the_p_that_its_sentence_goes_by():
    from smelt.report import fits

    found = {"question": "q", "sentence": "s", "p_value": 0.4, "joint_p_value": 0.003, "decisive": "joint_p_value"}
    content = {
        "examined": {"floors": {}, "shared": {"b": found}},
        "fit": {"group_names": ["b"], "savings": {}, "reference": "a"},
    }
    (row,) = fits.tests(content).rows
    assert "0.003" in str(row)
    assert "0.4" not in str(row)


def test_budgets_give_isoflop_curves_and_their_figure(tmp_path, monkeypatch, capsys):
    from tests.fit.planted import grid

    monkeypatch.chdir(tmp_path)
    table = grid(0, saving=0.15)
    columns = ("group", "pair", "budget_flops", "num_params", "num_tokens", "train_flops", "loss_nats")
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*(table[c] for c in columns), strict=True))]
    (tmp_path / "ours.csv").write_text("\n".join(lines) + "\n")
    words = ["--law", "flops_tokens", "--reference", "base", "--draws", "100"]
    found = as_json(capsys, "fit", "--csv", "ours.csv", *words, "--figures", "f")
    assert len(found["fit"]["groups"]["base"]["minima"]) == 4
    saving = found["fit"]["savings"]["target"]["surface"]["at_budgets"][1]["estimate"]
    assert saving["low"] <= 0.15 <= saving["high"]
    drawn = {path.name for path in (tmp_path / "f").iterdir()}
    names = ("frontiers", "isoflop", "residuals", "saving", "savings_by_law", "profiles_0_base", "profiles_1_target")
    assert drawn >= {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")}


def test_an_experiment_writes_its_tables_and_figures_too(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SMELT_RUNS", str(tmp_path / "runs"))
    done(capsys, "fit", "quickstart", "--draws", "60", "--tables", tmp_path / "t", "--figures", tmp_path / "f")
    assert {"savings.csv", "savings.tex", "exponents.tex", "minima.csv"} <= {p.name for p in (tmp_path / "t").iterdir()}
    assert {"frontiers.svg", "isoflop.pdf"} <= {p.name for p in (tmp_path / "f").iterdir()}


def test_what_is_imported_is_fitted_without_naming_a_column(theirs, capsys):
    out = done(capsys, "import", "theirs.csv", *COLUMNS[:4], "--where", "L<9", "--out", "ours.csv")
    assert out.startswith("48 rows in ours.csv\n")
    assert (theirs / "ours.csv").read_text().startswith("num_params,num_tokens,loss_nats\n")
    one, two = (
        as_json(capsys, "fit", "--csv", name, *words, "--flops", "6ND", "--draws", "50")["estimates"]["all"]["E"]
        for name, words in (("ours.csv", ()), ("theirs.csv", [*COLUMNS[:4], "--where", "L<9"]))
    )
    assert one == two


def test_an_answer_carries_the_warnings_of_the_fit_that_it_is_read_off(theirs, capsys):
    lines = (theirs / "theirs.csv").read_text().splitlines()
    who, n, d, loss = lines[5].split(",")
    lines[5] = ",".join([who, n, d, str(1.2 * float(loss))])
    (theirs / "theirs.csv").write_text("\n".join(lines) + "\n")
    fitted = as_json(capsys, *FIT, "--group", "who", "--reference", "dense", "--out", "fit.json")
    told = [flag for flag in fitted["warnings"] if flag["code"] == "outlier_rows"]
    assert [flag["group"] for flag in told] == ["dense"]
    for words in (["predict", "fit.json", "--flops", "1e18"], ["savings", "fit.json", "--at", "1e18"]):
        found = as_json(capsys, *words)["warnings"]
        assert told[0] in found
        assert [flag for flag in found if found.count(flag) > 1] == []
        assert "warning (outlier_rows): dense: row 6 lies more than" in done(capsys, *words)
    other = as_json(capsys, "predict", "fit.json", "--flops", "1e18", "--group", "sparse")["warnings"]
    assert "dense" not in {flag["group"] for flag in other}
    text = done(capsys, "savings", "fit.json", "--at", "1e18")
    assert "'Draws that save' is the plain share of the draws; intervals are moved out from theirs" in text


def test_an_estimate_says_whose_delta_it_has_and_how_many_rows_lie_beyond(theirs, capsys):
    dense = ["--where", "who=dense"]
    found = as_json(capsys, *FIT, *dense)["fit"]["groups"]["all"]["surface"]
    said = re.search(r"Huber delta (\S+) \(1.345 residual deviations\), (\d+) % of rows", done(capsys, *FIT, *dense))
    assert float(said[1]) == pytest.approx(found["delta"], rel=0.01)
    assert int(said[2]) == round(100 * found["beyond_delta_frac"])
    assert "Huber delta 0.002 (given)" in done(capsys, *FIT, *dense, "--delta", "0.002")
    assert "Huber delta" not in done(capsys, *FIT, *dense, "--objective", "squares_log")


def test_intervals_of_one_fit_are_told_three_ways_with_what_each_assumes(tmp_path, monkeypatch, capsys):
    from tests.fit.planted import grid

    monkeypatch.chdir(tmp_path)
    table = grid(0, saving=0.15)
    columns = ("group", "pair", "budget_flops", "num_params", "num_tokens", "train_flops", "loss_nats")
    rows = [row for row in zip(*(table[c] for c in columns), strict=True) if row[0] == "base"]
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "ours.csv").write_text("\n".join(lines) + "\n")
    words = ["fit", "--csv", "ours.csv", "--law", "flops_tokens", "--draws", "100"]
    assert "profile" not in as_json(capsys, *words)
    out = done(capsys, *words, "--profiles", "--out", "fit.json")
    (heading,) = (
        line for line in out.splitlines() if "jackknife" in line and "bootstrap" in line and "What" not in line
    )
    assert heading.split() == ["quantity", "estimate", "bootstrap", "jackknife", "profile"]
    (alpha,) = (line for line in out.splitlines() if line.startswith("a ") and line.count("[") == 3)
    kept = json.loads((tmp_path / "fit.json").read_text())
    profile, jackknife = kept["profiles"]["base"]["a"], kept["examined"]["jackknives"]["base"]["estimates"]["a"]
    for found in (profile, jackknife):
        assert f"[{found['low']:.4g}, {found['high']:.4g}]" in alpha
    assert "the profile rows that are independent and scatter alike" in out
    assert "comes out the same" in done(capsys, "fit", "--again", "fit.json")


def test_a_table_without_rows_is_not_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = ["C,L", *(f"{c!r},{3e4 * c**-0.3!r}" for c in (1e15, 3e15, 1e16, 3e16, 1e17))]
    (tmp_path / "points.csv").write_text("\n".join(lines) + "\n")
    words = ["--columns", "compute_flops=C", "loss_nats=L", "--law", "pure", "--draws", "60"]
    out = done(capsys, "fit", "--csv", "points.csv", *words)
    assert "\n\n\n" not in out
    assert "question" not in out


def test_an_experiment_is_asked_for_another_loss(theirs, capsys, monkeypatch):
    monkeypatch.setenv("SMELT_RUNS", str(theirs))
    words = ["predict", "quickstart", "--flops", "2e11", "--draws", "60", "--group", "baseline"]
    losses = {}
    for asked, column in (("bits_per_byte", "bits_per_byte"), ("code", "val_loss_nats.code"), (None, "val_loss_nats")):
        found = as_json(capsys, *words, *(["--loss-column", asked] if asked else []))
        assert found["loss"] == column
        losses[column] = found["optima"][0]["loss"]["value"]
    assert losses["bits_per_byte"] == pytest.approx(losses["val_loss_nats"] / np.log(2), rel=0.02)
    assert losses["val_loss_nats.code"] < losses["val_loss_nats"]
    text = done(capsys, "savings", "quickstart", "--draws", "60", "--loss-column", "bits_per_byte")
    assert text.startswith("of bits_per_byte (bits per byte)\n")
    done(capsys, *FIT, "--out", "fit.json")
    for place, message in (
        ("quickstart", "there is no loss 'perplexity': choose one of val_loss_nats"),
        ("fit.json", "--loss-column says nothing"),
    ):
        code, out, err = smelt(capsys, "predict", place, "--flops", "1e18", "--loss-column", "perplexity")
        assert (code, out, message in err) == (2, "", True)
