import json
import os
import platform
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from smelt import ledger
from smelt.errors import BadInput
from smelt.launch import folder as folders
from tests import synthetic


@cache
def a_row():
    return synthetic.planted_rows(synthetic.planted_grid())[0]


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    return process.pid


@pytest.mark.smoke
def test_a_folder_has_one_writer(tmp_path):
    with folders.claim(tmp_path) as first, folders.claim(tmp_path) as second:
        assert (first, second) == (True, False)
        assert folders.status(tmp_path).state == "running"
    with folders.claim(tmp_path) as third:
        assert third
    assert not (tmp_path / folders.LEASE).exists()


def test_the_claim_of_a_dead_process_is_taken_over(tmp_path):
    (tmp_path / folders.LEASE).write_text(json.dumps({"host": platform.node(), "pid": dead_pid()}))
    assert folders.status(tmp_path).state == "planned"
    with folders.claim(tmp_path) as mine:
        assert mine


def test_a_claim_of_another_host_holds_until_it_is_silent_for_long(tmp_path):
    lease = tmp_path / folders.LEASE
    lease.write_text(json.dumps({"host": "another-host", "pid": 1}))
    with folders.claim(tmp_path) as mine:
        assert not mine
    silent = time.time() - 2 * folders.STALE_SECS
    os.utime(lease, (silent, silent))
    with folders.claim(tmp_path) as mine:
        assert mine


def test_a_claim_that_was_taken_over_is_noticed_and_left_to_its_new_owner(tmp_path):
    lease = tmp_path / folders.LEASE
    with folders.claim(tmp_path) as mine:
        assert mine
        folders.heartbeat(tmp_path)
        lease.write_text(json.dumps({"host": "another-host", "pid": 1}))
        with pytest.raises(folders.Lost, match="taken over"):
            folders.heartbeat(tmp_path)
    assert json.loads(lease.read_text())["host"] == "another-host"


def test_states_are_told_apart(tmp_path):
    assert folders.status(tmp_path).state == "planned"
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"state": "failed", "reason": "MemoryError: none left"}))
    assert folders.status(tmp_path) == folders.Status("failed", "MemoryError: none left")
    state.write_text(json.dumps({"state": "running", "step": 7, "num_steps": 9}))
    found = folders.status(tmp_path)
    assert (found.state, found.step) == ("stopped", 7)
    row = a_row()
    folder = tmp_path / row["run_id"]
    ledger.write(folder, row)
    assert folders.status(folder).state == "finished"
    stale = folders.status(folder, code_fingerprint="b")
    assert stale.state == "stale"
    assert f"was {row['code_fingerprint']}, is b" in stale.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_loss_nats": float("nan")}, "NaN is no number of JSON"),
        ({"outcome": "great"}, "outcome is 'great'"),
        ({"run_id": "abc"}, "is the row of run abc"),
        ({"null_reasons": "[]"}, r"null_reasons is '\[\]'"),
        (None, "is not JSON"),
    ],
)
def test_a_damaged_row_is_refused_by_name_and_never_counts_as_done(tmp_path, change, message):
    row = a_row()
    folder = tmp_path / row["run_id"]
    folder.mkdir()
    text = json.dumps(row | (change or {}))
    (folder / "row.json").write_text(text if change else text[:100])
    for read in (folders.status, lambda folder: ledger.read_folder(folder.parent)):
        with pytest.raises(BadInput, match=message) as caught:
            read(folder)
        assert str(folder / "row.json") in str(caught.value)
        assert "to train the run again" in str(caught.value)


def test_a_run_that_was_moved_aside_is_no_row(tmp_path):
    row = a_row()
    ledger.write(tmp_path / row["run_id"], row)
    ledger.write(tmp_path / f".stale-{row['run_id']}-1", row)
    assert len(ledger.read_folder(tmp_path)) == 1


@pytest.mark.parametrize(
    "content", [b"", b'{"state":"run', b"[]", b"null", b"\xff", b'{"state": 5}', b'{"loss_nats": "x"}']
)
def test_a_torn_state_stands_in_no_runs_way(tmp_path, content):
    (tmp_path / "state.json").write_bytes(content)
    assert folders.status(tmp_path) == folders.Status("stopped", "state.json is damaged")


HERE = platform.node()


@pytest.mark.parametrize(
    "holder",
    [
        "",
        "{{",
        "[]",
        "null",
        "{}",
        json.dumps({"host": HERE, "pid": "x"}),
        json.dumps({"host": HERE, "pid": -1}),
        json.dumps({"host": HERE, "pid": 10**30}),
        json.dumps({"host": HERE, "pid": os.getpid(), "started": "in another life of this machine"}),
    ],
    ids=["empty", "torn", "list", "null", "nobody", "no-number", "negative", "beyond-all", "earlier-life"],
)
def test_a_claim_that_names_no_living_process_is_taken_over(tmp_path, holder):
    lease = tmp_path / folders.LEASE
    lease.write_text(holder)
    long_ago = time.time() - 2 * folders.UNWRITTEN_SECS
    os.utime(lease, (long_ago, long_ago))
    with folders.claim(tmp_path) as mine:
        assert mine
    assert not list(tmp_path.iterdir())


def test_a_claim_that_is_just_being_written_is_left_alone(tmp_path):
    (tmp_path / folders.LEASE).touch()
    with folders.claim(tmp_path) as mine:
        assert not mine


RACE = """
import contextlib, sys, time
from pathlib import Path
from smelt.launch import folder as folders

time.sleep(max(0, float(sys.argv[2]) - time.time()))
with contextlib.ExitStack() as held:
    print(*(folder for folder in sorted(Path(sys.argv[1]).iterdir()) if held.enter_context(folders.claim(folder))))
    sys.stdout.flush()
    sys.stdin.read()
"""


def test_of_processes_that_meet_at_a_stale_claim_one_takes_it(tmp_path):
    cells = sorted(tmp_path / f"{number:03}" for number in range(200))
    for cell in cells:
        cell.mkdir()
        (cell / folders.LEASE).write_text(json.dumps({"host": HERE, "pid": dead_pid() if cell == cells[0] else 2**22}))
    command = [sys.executable, "-c", RACE, str(tmp_path), str(time.time() + 2)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen(command, **pipes) for _ in range(3)]
    claimed = [Path(word) for racer in racers for word in racer.stdout.readline().split()]
    for racer in racers:
        racer.communicate(timeout=60)
    assert sorted(claimed) == cells
