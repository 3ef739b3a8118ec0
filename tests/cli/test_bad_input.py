"""What users give by mistake: one line that names it and its mend, exit code 2, and nothing written."""

import os
import re

import pytest

from smelt.cli import main
from smelt.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from tests.conftest import PULSE

VARIANTS = "variants=(variants.baseline, variants.loop_middle)"
TABLE = ["N,D,L", *(f"{n},{d},{1.7 + 400 / n**0.34 + 1500 / d**0.37!r}" for n in (1e6, 1e7, 3e7) for d in (2e7, 5e8))]
COLUMNS = ["--columns", "num_params=N", "num_tokens=D", "loss_nats=L"]


def smelt(capsys, *words) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys, *words) -> str:
    """The one line of a refusal."""
    code, out, err = smelt(capsys, *words)
    assert (code, out) == (EXIT_BAD_INPUT, ""), err
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("RUNS =", "x = (\nRUNS =", r"pulse.py:\d+: .*: mend the file"),
        ("RUNS =", "1 / 0\nRUNS =", r"pulse.py:15 raised ZeroDivisionError: division by zero"),
        ("RUNS =", "raise SystemExit(3)\nRUNS =", r"pulse.py:15 raised SystemExit: 3"),
        (
            "from smelt import grid",
            "import nopackage\nfrom smelt import grid",
            r"pulse.py:4 raised ModuleNotFoundError",
        ),
        ("peak_lr=0.02, ", "", r"pulse.py:9 raised TypeError: .*peak_lr"),
        ("ladder=[architecture()]", "ladder=[]", r"ladder is \[\]: give a list with at least one"),
        ("ladder=[architecture()]", "ladder=[16]", r"size 0 of the ladder is 16: give an ArchSpec"),
        (VARIANTS, "variants=()", r"variants is \(\): give a list"),
        (VARIANTS, "variants=('baseline', 'loop_middle')", r"variant 'baseline' has no name .* made with def"),
        (VARIANTS, "variants=(variants.baseline, lambda arch: arch)", r"variant <function <lambda>.* made with def"),
        (VARIANTS, "variants=(variants.baseline, variants.baseline)", r"two variants are named baseline"),
        (VARIANTS, "variants=(variants.baseline, repr)", r"variant repr gives .* of size 0: it must give an ArchSpec"),
        ("6e8: [0]", "float('inf'): [0]", r"budget inf is no positive number of FLOPs"),
        ("6e8: [0]", "'6e8': [0]", r"budget '6e8' is no positive number of FLOPs"),
        ("6e8: [0]", "6e8: 0", r"budget 6e\+08 has no size"),
        ("6e8: [0]", "6e8: [0.0]", r"names size 0.0, the ladder has 0 to 0"),
        ("{6e8: [0]}", "[6e8]", r"\[600000000.0\] is no mapping"),
        ("seeds=(0,)", "seeds=0", r"seeds is 0: give a list"),
        ("seeds=(0,)", "seeds=(2**32,)", r"seed 4294967296 is too large"),
        ("bound=0.04", "bound='4%'", r"bound is '4%': give a relative error"),
        ("bound=0.04", "bound=float('nan')", r"bound is nan: give a relative error"),
    ],
)
def test_a_faulty_experiment_file_is_one_line_that_says_where(workplace, capsys, tmp_path, old, new, message):
    assert old in PULSE
    path = workplace(PULSE.replace(old, new, 1))
    assert re.search(message, refused(capsys, "plan", path))
    assert [file.name for file in tmp_path.iterdir() if file.name != "__pycache__"] == ["pulse.py"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "--workers", "0"], "--workers is 0: give a number of at least 1"),
        (["plan", "--assume-flops-per-sec", "inf"], "--assume-flops-per-sec is inf"),
        (["plan", "--max-hours", "nan"], "--max-hours is nan"),
        (["plan", "--rate-per-hour", "-3"], "--rate-per-hour is -3.0"),
        (["run", "--workers", "-2"], "--workers is -2"),
        (["run", "--limit", "-3"], "--limit is -3: give a number of at least 1"),
        (["run", "--only", ""], "--only has an empty word"),
        (["match", "--variant"], "--variant names no function"),
        (["match", "--variant", "loop_span"], "variant 'loop_span' wants num_layers"),
        (["match", "--multiple", "width=1", "width=2"], "gives width a second time"),
        (["fit", "--draws", "0"], "--draws is 0: give a number of at least 2"),
        (["fit", "--law", "smelt"], "--law says nothing about an experiment"),
        (["report", "--draws", "-1"], "--draws is -1"),
    ],
)
def test_an_option_out_of_range_is_refused(workplace, capsys, tmp_path, words, message):
    path = workplace(PULSE)
    assert message in refused(capsys, words[0], path, *words[1:])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*TABLE, "1,000,000,1e8,3"], "theirs.csv:8 has 5 fields, the header 3"),
        ([*TABLE, "1e6"], "theirs.csv:8 has 1 fields"),
        ([*TABLE, "1Mio,1e8,3"], "theirs.csv:8: N is '1Mio': expected a number"),
        ([*TABLE[:3], "", *TABLE[3:], "-1,1e8,3"], "theirs.csv:9: N is -1"),
        (["N,N,D,L", *("5," + line for line in TABLE[1:])], "has 2 columns 'N'"),
        (["N;D;L"], "has no column 'N': it has N;D;L"),
        ([], "has no column 'N': it has none"),
        (["N,D,L"], "holds no rows"),
        ([*TABLE, "\udcff,1,1"], "is not UTF-8"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused_by_its_line(workplace, capsys, tmp_path, lines, message):
    workplace(PULSE)
    (tmp_path / "theirs.csv").write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    for verb in (["fit", "--csv", "theirs.csv", *COLUMNS], ["import", "theirs.csv", *COLUMNS, "--out", "ours.csv"]):
        assert message in refused(capsys, *verb)
    assert not (tmp_path / "ours.csv").exists()


GRID = [(n, d, 1.7 + 400 / n**0.34 + 1500 / d**0.37) for n in (1e6, 1e7, 3e7) for d in (2e7, 5e8, 1e9)]


def rows_of(grid, header="N,D,L"):
    return [header, *(",".join(map(repr, row)) for row in grid)]


@pytest.mark.parametrize(
    ("lines", "words", "message"),
    [
        (rows_of(GRID[:4]), [], "4 rows cannot fix the 5 parameters"),
        (rows_of([(n, 1e15 / n, loss) for n, _, loss in GRID]), [], "N follow one another|follow one another in all"),
        (rows_of([(1e6, d, loss) for _, d, loss in GRID]), [], "num_params is 1e+06 in every row"),
        (rows_of([(n, 1e9, loss) for n, _, loss in GRID]), [], "num_tokens is 1e+09 in every row"),
        (rows_of([*GRID, (1e6, 1e8, float("nan"))]), [], "theirs.csv:11: L is nan"),
        (rows_of([*GRID, (1e6, 1e8, -3.0)]), [], "theirs.csv:11: L is -3.0"),
        (rows_of([*GRID, (1e6, 1e8, 0.0)]), [], "theirs.csv:11: L is 0.0"),
        (rows_of([(*row, i % 2) for i, row in enumerate(GRID)], "N,D,L,T"), ["--columns", "tokenizer=T"], "tokenizers"),
        (
            rows_of([(*row, i % 2) for i, row in enumerate(GRID)], "N,D,L,T"),
            ["--group", "T"],
            "no reference; choose one",
        ),
        (
            rows_of([(*row, i % 2) for i, row in enumerate(GRID)], "N,D,L,T"),
            ["--group", "T", "--reference", "moe"],
            "no run is of the group 'moe'; choose one of 0, 1",
        ),
        (rows_of(GRID), ["--group", "who"], "has no column 'who': it has N, D, L"),
        (rows_of(GRID), ["--law", "hoffmann"], "no law is called 'hoffmann'; choose one of chinchilla"),
        (rows_of(GRID), ["--law", "flops_tokens"], "the table has no column 'train_flops'"),
        (rows_of(GRID), ["--objective", "l1"], "objective is 'l1'; choose one of huber_log"),
        (rows_of(GRID), ["--delta", "small"], "--delta is 'small': give a number above 0, or auto"),
        (rows_of(GRID), ["--delta", "-1"], "delta is -1"),
        (rows_of(GRID), ["--at", "-1"], "budgets_flops is -1"),
        (rows_of(GRID), ["--columns", "loss_bits=L"], "two losses are named, loss_nats and loss_bits"),
        (rows_of(GRID), ["--columns", "num_passes=P"], "has no column 'P'"),
        (rows_of(GRID), ["--columns", "loss=L"], "'loss' is no quantity known here"),
        (rows_of(GRID), ["--where", "L>9"], "has no row left of 9"),
        (rows_of(GRID), ["--flops", "8ND"], "flops is '8ND'"),
        (rows_of(GRID), ["--best-of", "width"], "best of 'width'"),
        (rows_of(GRID), ["--variants", "a"], "--variants says nothing about --csv"),
    ],
)
def test_a_table_that_no_law_can_be_fitted_to_is_refused_in_one_line(
    workplace, capsys, tmp_path, lines, words, message
):
    workplace(PULSE)
    (tmp_path / "theirs.csv").write_text("\n".join(lines) + "\n")
    assert re.search(message.replace("+", r"\+"), refused(capsys, "fit", "--csv", "theirs.csv", *COLUMNS, *words))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", b"", "has no column 'N': it has none"),
        ("empty.jsonl", b"", "has no column 'N': it has none"),
        ("latin.csv", "N,D,L\n1,2,3 \u20ac\n".encode("cp1252"), "is not UTF-8"),
        ("none.parquet", b"PAR1 is what it is not", "is no parquet file"),
        ("torn.jsonl", b'{"N": 1, "D": 2, "L": 3}\n{"N": 1, "D"', "torn.jsonl:2: is torn"),
        ("table.xlsx", b"", "cannot read table.xlsx: give a file that ends in .csv, .tsv, .parquet, .jsonl"),
        (".", b"", "is a folder"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_line(workplace, capsys, tmp_path, name, content, message):
    workplace(PULSE)
    if name != ".":
        (tmp_path / name).write_bytes(content)
    assert message in refused(capsys, "fit", "--csv", name, *COLUMNS)


def test_repeated_rows_and_narrow_ranges_are_fitted_with_their_warnings(workplace, capsys, tmp_path):
    workplace(PULSE)
    narrow = [(n, d, 1.7 + 400 / n**0.34 + 1500 / d**0.37) for n in (1e6, 2e6, 3e6) for d in (2e7, 4e7, 5e7)]
    (tmp_path / "theirs.csv").write_text("\n".join(rows_of([*narrow, narrow[0]])) + "\n")
    code, out, err = smelt(capsys, "fit", "--csv", "theirs.csv", *COLUMNS, "--draws", 50)
    assert code == EXIT_DONE, err
    assert out.count("warning (duplicated_rows)") == 1
    assert "warning (narrow_range)" in out


def test_a_table_where_a_fit_is_expected_is_told_what_to_do_with_it(workplace, capsys, tmp_path):
    workplace(PULSE)
    (tmp_path / "theirs.csv").write_text("\n".join(rows_of(GRID)) + "\n")
    assert "smelt fit --csv theirs.csv --columns" in refused(capsys, "fit", "theirs.csv")
    for verb, asked in (("predict", "--flops"), ("savings", "--at")):
        assert "theirs.csv is a table: fit it first" in refused(capsys, verb, "theirs.csv", asked, 1)
    assert "takes a FIT.json" in refused(capsys, "fit", "--again", "theirs.csv")
    split = refused(capsys, "fit", "--csv", "theirs.csv", "--columns", "num_params=Model", "size")
    assert '"num_params=Model size"' in split


def test_what_a_fit_cannot_answer_is_refused_or_has_its_reason(workplace, capsys, tmp_path):
    workplace(PULSE)
    (tmp_path / "theirs.csv").write_text("\n".join(rows_of(GRID)) + "\n")
    fit = ["fit", "--csv", "theirs.csv", *COLUMNS, "--draws", 50, "--out", "fit.json"]
    assert smelt(capsys, *fit)[0] == EXIT_DONE
    assert (
        "the compute of the rows is not known; give train_flops"
        in smelt(capsys, "predict", "fit.json", "--flops", 1)[1]
    )
    assert "nothing is asked: give --flops X" in refused(capsys, "predict", "fit.json")
    assert "--draws says nothing about fit.json" in refused(capsys, "predict", "fit.json", "--flops", 1, "--draws", 9)
    assert "has num_tokens too: give --num-tokens" in refused(capsys, "predict", "fit.json", "--num-params", "7B")
    assert "num_params is 'seven'" in refused(capsys, "predict", "fit.json", "--num-params", "seven")
    assert "there is no group 'moe'" in refused(capsys, "predict", "fit.json", "--flops", "1e18", "--group", "moe")
    assert "has one group only, all" in refused(capsys, "savings", "fit.json")
    assert "no run is of the group 'moe'" in refused(capsys, "savings", "fit.json", "--reference", "moe")
    assert "is no fit of a table" in refused(capsys, "savings", write(tmp_path, "{}"))
    lacking = '{"content": "a fit of anybody\'s table", "table": {"file": "theirs.csv"}}'
    assert "lacks the table, settings or options" in refused(capsys, "savings", write(tmp_path, lacking))
    assert "is not JSON" in refused(capsys, "fit", "--again", write(tmp_path, "{"))
    assert "absent.json does not exist" in refused(capsys, "fit", "--again", "absent.json")
    assert "--law says nothing about --again" in refused(capsys, "fit", "--again", "fit.json", "--law", "pure")
    assert "--at asks at budgets and --loss at losses" in refused(capsys, "savings", "fit.json", "--at", 1, "--loss", 1)


def write(folder, text):
    (folder / "other.json").write_text(text)
    return folder / "other.json"


def test_a_table_from_a_spreadsheet_is_read_and_its_labels_come_back_whole(workplace, capsys, tmp_path):
    import csv

    workplace(PULSE)
    (tmp_path / "theirs.csv").write_bytes(
        b'\xef\xbb\xbfname, N, D, L\r\n"a, b", 1e6, 1e8, 3\r\n\r\n"c""d", 1e6, 2e8, 3\r\n'
    )
    columns = [*COLUMNS, "label=name"]
    assert smelt(capsys, "import", "theirs.csv", *columns, "--out", "ours.csv")[0] == EXIT_DONE
    with open("ours.csv", newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == ["a, b", 'c"d']
    assert "ends in .csv" in refused(capsys, "import", "theirs.csv", *columns, "--out", "ours.xlsx")


@pytest.mark.parametrize("place", ["folder", "file/ours.csv", ""])
def test_a_place_that_cannot_be_written_is_told_in_one_line(workplace, capsys, tmp_path, place):
    path = workplace(PULSE)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    code, _, err = smelt(capsys, "plan", path, "--csv", place)
    assert code == EXIT_BAD_INPUT
    assert re.fullmatch(r"error: \S+ (is a folder: give the name of a file|cannot be used \(File exists\): .*)\n", err)
    assert [found for found in sorted(tmp_path.rglob("*")) if "__pycache__" not in found.parts] == before


def test_options_that_nothing_reads_are_refused(workplace, capsys, tmp_path):
    workplace(PULSE)
    for words, option in (
        (["--vocab-size", "300"], "--vocab-size"),
        (["--validation-bytes", "0"], "--validation-bytes"),
        (["--tokens", "a.bin", "--text", "prose=a.txt"], "--text"),
        (["--tokens", "a.bin", "--tokenizer", "bpe:4096"], "--tokenizer"),
    ):
        assert f"{option} says nothing about" in refused(capsys, "corpus", "build", "mine", *words)
    assert "is no name of a corpus" in refused(capsys, "corpus", "build", "builtin", "--name", f"a{os.sep}b")


def test_runs_of_a_corpus_that_was_edited_are_stale_and_of_an_absent_one_are_not(
    workplace, capsys, monkeypatch, tmp_path
):
    import json
    import shutil

    from smelt import ledger
    from smelt.data.store import open_corpus
    from smelt.train.fingerprint import code_fingerprint
    from tests import synthetic

    path = workplace(PULSE)
    shutil.copytree(os.environ["SMELT_CORPORA"], tmp_path / "corpora")
    monkeypatch.setenv("SMELT_CORPORA", str(tmp_path / "corpora"))
    today = {"corpus_fingerprint": open_corpus("words").fingerprint, "code_fingerprint": code_fingerprint()}
    row = synthetic.planted_rows(synthetic.planted_grid())[0] | today
    for cell in json.loads(smelt(capsys, "plan", path, "--json")[1])["rows"]:
        ledger.write(tmp_path / "runs" / "pulse" / cell["run_id"], row | {"run_id": cell["run_id"]})

    def states():
        return [run["state"] for run in json.loads(smelt(capsys, "status", path, "--json")[1])]

    assert states() == ["finished", "finished"]
    tokens = tmp_path / "corpora" / "words" / "train.bin"
    content = bytearray(tokens.read_bytes())
    content[100] ^= 1
    tokens.write_bytes(content)
    assert states() == ["stale", "stale"]
    assert "train.bin has another content" in refused(capsys, "run", path)
    shutil.rmtree(tmp_path / "corpora")
    assert states() == ["finished", "finished"]


def test_runs_that_failed_before_are_told_by_a_run_that_leaves_them_alone(workplace, capsys, tmp_path):
    import json

    path = workplace(PULSE)
    cells = json.loads(smelt(capsys, "plan", path, "--json")[1])["rows"]
    for cell in cells:
        folder = tmp_path / "runs" / "pulse" / cell["run_id"]
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"state": "failed", "reason": "MemoryError: none left"}))
    code, out, err = smelt(capsys, "run", path)
    assert (code, out) == (EXIT_FAILED, "0 computed, 0 reused, 0 diverged, 2 failed, 0 left\n")
    assert err.count("MemoryError: none left") == 2
    assert "--retry-failed" in err


def test_runs_that_the_disk_cannot_hold_are_refused_before_they_train(workplace, capsys, monkeypatch, tmp_path):
    import shutil
    from types import SimpleNamespace

    path = workplace(PULSE)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=300_000))
    assert re.search(r"has 0\.3 MB free, 2 runs need 0\.\d+ MB: make room", refused(capsys, "run", path))
    assert not (tmp_path / "runs").exists()


def test_a_worker_that_ends_early_is_told_with_its_log(workplace, capsys, monkeypatch, tmp_path):
    import sys

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    # A file that loads here and not in a worker, whose environment has this variable.
    path = workplace(PULSE + "\nimport os\n\nassert 'TF_CPP_MIN_LOG_LEVEL' not in os.environ, 'in a worker'\n")
    code, out, err = smelt(capsys, "run", path, "--workers", 1)
    assert (code, out) == (EXIT_FAILED, "0 computed, 0 reused, 0 diverged, 0 failed, 2 left\n")
    assert "a worker ended before its runs did: see" in err
    assert "raised AssertionError: in a worker" in (tmp_path / "runs" / "pulse" / "worker-0.log").read_text()


def test_a_plan_says_why_it_does_not_know_how_often_data_repeats(workplace, capsys):
    code, _, err = smelt(capsys, "plan", workplace(PULSE.replace('corpus="words"', 'corpus="absent"')))
    assert code == EXIT_DONE
    assert re.match(r"epochs are not known: there is no corpus at .*absent; build one", err)


def test_a_dry_run_moves_no_stale_run_and_counts_it_as_to_be_trained(workplace, capsys, tmp_path):
    import json

    from smelt import ledger
    from tests import synthetic

    path = workplace(PULSE)
    row = synthetic.planted_rows(synthetic.planted_grid())[0] | {"code_fingerprint": "another code"}
    for cell in json.loads(smelt(capsys, "plan", path, "--json")[1])["rows"]:
        ledger.write(tmp_path / "runs" / "pulse" / cell["run_id"], row | {"run_id": cell["run_id"]})
    before = sorted((tmp_path / "runs").rglob("*"))
    assert "0 runs would be trained, 2 are there" in "".join(smelt(capsys, "run", path, "--dry-run")[1:])
    assert "2 runs would be trained, 0 are there" in "".join(
        smelt(capsys, "run", path, "--dry-run", "--retrain-stale")[1:]
    )
    assert sorted((tmp_path / "runs").rglob("*")) == before
