import json
import os
import subprocess
import sys
import time

import pytest

from smelt.launch import folder as folders


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
    import platform

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
    row = {"outcome": "finished", "num_steps": 9, "val_loss_nats": 2.5, "code_fingerprint": "a"}
    (tmp_path / "row.json").write_text(json.dumps(row))
    assert folders.status(tmp_path).state == "finished"
    stale = folders.status(tmp_path, code_fingerprint="b")
    assert stale.state == "stale"
    assert "was a, is b" in stale.reason
