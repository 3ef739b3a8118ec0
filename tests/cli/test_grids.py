"""The spine in one temporary folder, through the command line: plan, run, run again, status, compare, export."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from smelt.cli import main
from smelt.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE
from tests.conftest import PULSE


def smelt(capsys, *words) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def environment(tmp_path):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.smoke
def test_the_pulse_runs_end_to_end_and_a_second_run_trains_nothing(workplace, capsys, monkeypatch, tmp_path):
    path = workplace(PULSE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    code, out, _ = smelt(capsys, "plan", path, "--json")
    assert code == EXIT_DONE
    planned = json.loads(out)
    assert [row["state"] for row in planned["rows"]] == ["planned", "planned"]
    assert planned["totals"]["wall_secs"] is None
    assert "calibrate" in planned["totals"]["null_reason"]
    assert {"few_sizes", "few_steps"} >= {warning["code"] for warning in planned["warnings"]} - {
        "match_off",
        "budget_off",
    }

    code, out, err = smelt(capsys, "run", path, "--workers", 2)
    assert code == EXIT_DONE, err
    assert out.startswith("2 computed, 0 reused")
    code, out, _ = smelt(capsys, "run", path)
    assert (code, out) == (EXIT_DONE, "0 computed, 2 reused, 0 diverged, 0 failed, 0 left\n")

    code, out, _ = smelt(capsys, "status", path, "--json")
    states = json.loads(out)
    assert [state["state"] for state in states] == ["finished", "finished"]

    code, out, _ = smelt(capsys, "compare", "pulse/loop_middle", "pulse/baseline", "--json")
    compared = json.loads(out)
    assert code == EXIT_DONE
    assert compared["seed_spread_nats"] is None
    (pair,) = compared["pairs"]
    losses = {state["run_id"]: state["loss_nats"] for state in states}
    assert pair["difference_nats"] == pytest.approx(losses[pair["run_a"]] - losses[pair["run_b"]], abs=1e-6)
    assert pair["moved"]["effective_depth"] == [3, 2]

    code, out, _ = smelt(capsys, "diff", pair["run_a"], pair["run_b"], "--json")
    assert "arch.loop.num_passes" in json.loads(out)
    code, out, _ = smelt(capsys, "repro", pair["run_a"][:6])
    assert out.startswith("smelt run pulse --only " + pair["run_a"])
    code, out, _ = smelt(capsys, *out.splitlines()[0].split()[1:])
    assert (code, out[:20]) == (EXIT_DONE, "0 computed, 1 reused")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pulse.py").write_text(PULSE.replace("0.02", "0.03"))
    code, out, err = smelt(capsys, "run", elsewhere / "pulse.py")
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert "holds the runs of" in err
    code, out, _ = smelt(capsys, "run", path, "--dry-run", "--json")
    assert json.loads(out) == {"would_train": [], "reused": 2}

    code, out, _ = smelt(capsys, "export", path, "--out", tmp_path / "rows.csv")
    assert out.startswith("2 rows")
    code, out, _ = smelt(capsys, "merge", tmp_path / "rows.csv", tmp_path / "rows.csv", "--out", tmp_path / "all.csv")
    assert out.startswith("2 rows")
    code, out, _ = smelt(capsys, "report", path)
    assert code == EXIT_DONE
    assert (tmp_path / "runs" / "pulse" / "report.html").read_text().startswith("<!")


def test_a_failing_cell_is_told_and_its_neighbour_goes_on(workplace, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    source = PULSE.replace("validation_tokens=2048", "validation_tokens=2048 if arch.d_model else 0")
    path = workplace(source.replace('corpus="words"', 'corpus="words" if budget_flops < 7e8 else "absent"'))
    cells = json.loads(smelt(capsys, "plan", path, "--json")[1])["rows"]
    folder = tmp_path / "runs" / "pulse" / cells[0]["run_id"]
    folder.mkdir(parents=True)
    (folder / "checkpoints").write_text("in the way")
    code, out, err = smelt(capsys, "run", path, "--workers", 1)
    assert code == EXIT_FAILED
    assert "1 computed" in out
    assert "1 failed" in out
    assert re.search(rf"failed: run {cells[0]['run_id']} \(.*Error", err)
    assert "Traceback" in (folder / "log.txt").read_text()
    (folder / "checkpoints").unlink()
    code, out, _ = smelt(capsys, "run", path, "--workers", 1)
    assert "0 computed, 1 reused" in out
    code, out, _ = smelt(capsys, "run", path, "--workers", 1, "--retry-failed")
    assert (code, out[:10]) == (EXIT_DONE, "1 computed")


def test_a_terminated_launcher_stops_its_workers_and_the_run_goes_on_later(workplace, capsys, monkeypatch, tmp_path):
    path = workplace(PULSE.replace("6e8", "6e10"))
    command = [sys.executable, "-m", "smelt", "run", str(path), "--workers", "1", "--only", "baseline"]
    process = subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    states = tmp_path / "runs" / "pulse"
    deadline = time.monotonic() + 240
    while not list(states.glob("*/metrics.jsonl")):
        assert time.monotonic() < deadline, "no run began"
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_RESUMABLE, err
    (state,) = states.glob("*/state.json")
    assert json.loads(state.read_text())["state"] == "stopped"
    assert not list(states.glob("*/lease.json"))
    assert not list(states.glob("*/row.json"))


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "nothing"], "unknown experiment 'nothing'"),
        (["plan", "absent.py"], "no experiment file absent.py"),
        (["fit"], "give either an experiment's NAME or --csv"),
        (["fit", "--csv", "absent.csv", "--columns", "num_params=N", "loss_nats=l"], "absent.csv does not exist"),
        (["fit", "--csv", "absent.csv", "--columns", "num_params"], "'num_params' names nothing: give OURS=THEIRS"),
        (["compare", "aaaaaa", "bbbbbb"], "no run id begins with 'aaaaaa'"),
        (["repro", "zzz"], "no run id begins with 'zzz'"),
        (["corpus"], "wants a verb"),
        (["corpus", "info", "absent"], "smelt corpus build"),
        (["corpus", "build", "absent-recipe"], "absent-recipe"),
        (["merge", "absent.csv", "--out", "all.csv"], "absent.csv does not exist"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(workplace, capsys, tmp_path, words, message):
    code, out, err = smelt(capsys, *words)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert message in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir()), "something was written"


def test_an_experiment_that_has_no_grid_or_no_question_is_refused(workplace, capsys):
    path = workplace('"""A question."""\n')
    assert "has no RUNS" in smelt(capsys, "plan", path)[2]
    path = workplace(PULSE.split('"""', 2)[2])
    assert "has no docstring" in smelt(capsys, "plan", path)[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("architecture()", "dataclasses.replace(architecture(), vocab_size=100)"),
            "vocab_size 100 is under the corpus's 256",
        ),
        (("validation_tokens=2048", "validation_tokens=10**9"), "validation_tokens 1000000000 is more than the"),
        (('corpus="words"', 'corpus="absent"'), "smelt corpus build"),
    ],
)
def test_a_corpus_that_cannot_serve_the_grid_is_told_before_anything_trains(
    workplace, capsys, tmp_path, change, message
):
    path = workplace(PULSE.replace("from smelt import", "import dataclasses\nfrom smelt import", 1).replace(*change))
    code, out, err = smelt(capsys, "run", path)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_every_verb_has_help_with_an_example(capsys):
    from smelt.cli import CORPUS_VERBS, VERBS

    for verbs, prefix in ((VERBS, []), (CORPUS_VERBS, ["corpus"])):
        for verb in verbs:
            with pytest.raises(SystemExit) as ended:
                main([*prefix, verb, "--help"] if verb != "corpus" else ["--help"])
            assert ended.value.code == 0
            assert "smelt " in capsys.readouterr().out
