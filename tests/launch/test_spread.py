"""What a user says of devices and hosts; and a run that two processes train together."""

import json
import os
import socket
import subprocess
import sys

import pytest

from smelt.errors import EXIT_DONE, BadInput
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


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def test_two_processes_train_the_run_of_one_and_the_first_alone_writes(workplace, tmp_path):
    path = workplace(PULSE)
    port = free_port()

    def smelt(runs: str, *words: str) -> subprocess.Popen:
        """In its own folder of runs, as on hosts that share no disk."""
        command = [sys.executable, "-m", "smelt", "run", str(path), "--only", "baseline", "--json", *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SMELT_RUNS": str(tmp_path / runs)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def row(runs: str) -> dict:
        (found,) = (tmp_path / runs).glob("*/*/row.json")
        return json.loads(found.read_text())

    processes = [smelt(f"host{i}", "--mesh", "data=2,expert=2", "--hosts", f"localhost:{port},2,{i}") for i in (0, 1)]
    processes.append(smelt("alone", "--workers", "1"))
    try:
        for process in processes:
            out, err = process.communicate(timeout=300)
            assert process.returncode == EXIT_DONE, out + err
    finally:
        for process in processes:
            with process:
                process.kill()
    assert row("host0")["device"].endswith("(data=2, expert=2)")
    # Float32, in another order of sums, carried along by training.
    assert row("host0")["val_loss_nats"] == pytest.approx(row("alone")["val_loss_nats"], abs=1e-4)
    assert row("host0")["run_id"] == row("alone")["run_id"]
    left = [path for path in (tmp_path / "host1").rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["worker-1.log"]
