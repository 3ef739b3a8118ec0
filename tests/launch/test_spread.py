"""What a user says of devices and hosts; and a run that two processes train together."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from smelt.cli import main
from smelt.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_RESUMABLE, BadInput
from smelt.launch.spread import Hosts, Spread, spread
from tests.conftest import PULSE


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((None, 1, None), Spread()),
        (("data=4,expert=2", 3, None), Spread(mesh=(4, 2), accumulate=3)),
        (("expert=2", 1, None), Spread(mesh=(1, 2))),
        (("data=4", 1, "there:99,2,1"), Spread(mesh=(4, 1), hosts=Hosts(address="there:99", count=2, index=1))),
    ],
)
def test_words_say_a_spread_and_a_worker_is_told_the_same(words, expected):
    asked = spread(*words)
    assert asked == expected
    told = dict(zip(asked.words()[::2], asked.words()[1::2], strict=True))
    assert spread(told.get("--mesh"), int(told["--accumulate"]), told.get("--hosts")) == expected


def test_hosts_are_also_read_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SMELT_HOSTS", "there:99,2,1")
    assert spread("data=2", 1, None).follows
    assert not spread("data=2", 1, "there:99,2,0").follows


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("4x2", 1, None), "--mesh '4x2'"),
        (("data=0", 1, None), "--mesh 'data=0'"),
        (("data=2,data=2", 1, None), "--mesh"),
        ((None, 0, None), "--accumulate is 0"),
        (("data=2", 1, "there,2,0"), "--hosts 'there,2,0'"),
        (("data=2", 1, "there:1,2,2"), "which one this is"),
        ((None, 1, "there:1,2,0"), "without --mesh"),
        (("data=3", 1, "there:1,2,0"), "does not divide over 2 hosts"),
    ],
)
def test_words_that_say_nothing_are_refused_by_name(words, why):
    with pytest.raises(BadInput, match=why):
        spread(*words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--mesh", "data=2", "--workers", "2"), "a mesh is one worker"),
        (("--accumulate", "3"), "--accumulate 3 does not divide a batch of 4"),
        (("--mesh", "expert=99"), "no layer has more than 6 experts to spread, give expert=6 or fewer"),
        (("--mesh", "two"), "--mesh 'two'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_trains(words, why, workplace, capsys):
    assert main(["run", str(workplace(PULSE)), *words]) == EXIT_BAD_INPUT
    assert why in capsys.readouterr().err


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


@pytest.fixture
def smelt(workplace, tmp_path):
    """Starts `smelt run` on the pulse's baseline in a folder of runs of its own, as on hosts that share no disk."""
    started = []

    def start(pulse: str, runs: str, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "smelt", "run", str(workplace(pulse)), "--only", "baseline", "--json", *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SMELT_RUNS": str(tmp_path / runs)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


def on_two_hosts(smelt, pulse: str) -> list[subprocess.Popen]:
    port = free_port()
    spread = ("--accumulate", "2", "--mesh", "data=2,expert=2")
    return [smelt(pulse, f"host{index}", *spread, "--hosts", f"localhost:{port},2,{index}") for index in (0, 1)]


def test_two_processes_train_the_run_of_one_and_the_first_alone_writes(smelt, tmp_path):
    for process in [*on_two_hosts(smelt, PULSE), smelt(PULSE, "alone", "--workers", "1", "--accumulate", "2")]:
        out, err = process.communicate(timeout=300)
        assert process.returncode == EXIT_DONE, out + err

    def row(runs: str) -> dict:
        (found,) = (tmp_path / runs).glob("*/*/row.json")
        return json.loads(found.read_text())

    assert row("host0")["device"].endswith("(data=2, expert=2, accumulate=2)")
    assert row("host0")["run_id"] == row("alone")["run_id"]
    # Float32, in another order of sums, carried along by training.
    assert row("host0")["val_loss_nats"] == pytest.approx(row("alone")["val_loss_nats"], abs=1e-4)
    left = [path for path in (tmp_path / "host1").rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["worker-1.log"]


def test_a_host_that_is_asked_to_stop_stops_the_other_one(smelt, tmp_path):
    processes = on_two_hosts(smelt, PULSE.replace("6e8", "6e10"))
    deadline = time.monotonic() + 240
    while not list((tmp_path / "host0").glob("*/*/metrics.jsonl")):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes)
        time.sleep(0.5)
    processes[1].terminate()
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == EXIT_RESUMABLE, out + err
    (state,) = (tmp_path / "host0").glob("*/*/state.json")
    assert json.loads(state.read_text())["state"] == "stopped"
