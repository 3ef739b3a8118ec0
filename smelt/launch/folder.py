"""A run folder -> its state; and the claim that makes one process its only writer.

    planned     no folder, or nothing claimed
    running     claimed by a living process
    stopped     was asked to stop; trains again from its beginning
    failed      raised; the reason is kept, the traceback stands in log.txt
    finished    has a row
    diverged    has a row without a loss
    stale       has a row, made from other code or another corpus than today's

A claim is a lease file made with O_EXCL. It is taken over where its process is gone from this host, or, from
another host, where it has not been touched for STALE_SECS. A row that is damaged is refused by name.
"""

import contextlib
import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.errors import BadInput
from smelt.files import read_json
from smelt.grid import Cell
from smelt.ledger import read_row

STALE_SECS = 180.0
UNWRITTEN_SECS = 10.0
LEASE = "lease.json"


@dataclass(frozen=True, slots=True)
class Status:
    state: str
    reason: str = ""
    step: int | None = None
    num_steps: int | None = None
    loss_nats: float | None = None

    @property
    def done(self) -> bool:
        return self.state in ("finished", "diverged", "stale")


def status(folder: Path, code_fingerprint: str | None = None, corpus_fingerprint: str | None = None) -> Status:
    """The state of a run folder; `stale` is told apart only where today's fingerprints are given."""
    if (folder / "row.json").exists():
        row = read_row(folder)
        for name, today in (("code_fingerprint", code_fingerprint), ("corpus_fingerprint", corpus_fingerprint)):
            if today is not None and row[name] != today:
                return Status("stale", f"{name} was {row[name]}, is {today}", loss_nats=row["val_loss_nats"])
        if row["outcome"] == "diverged":
            return Status("diverged", json.loads(row["null_reasons"]).get("val_loss_nats", ""))
        return Status("finished", num_steps=row["num_steps"], step=row["num_steps"], loss_nats=row["val_loss_nats"])
    facts = _facts(folder / "state.json")
    known: dict[str, Any] = {name: facts.get(name) for name in ("step", "num_steps", "loss_nats")}
    if _claimed(folder):
        return Status("running", **known)
    if facts.get("state") == "failed":
        return Status("failed", facts.get("reason", ""), **known)
    if facts:
        return Status("stopped", facts.get("reason") or "ended without a word, killed perhaps", **known)
    return Status("planned")


def _facts(path: Path) -> dict[str, Any]:
    """What state.json tells. It decides nothing but what is shown, so a torn one never stands in a run's way."""
    if not path.exists():
        return {}
    try:
        facts = read_json(path)
    except BadInput:
        facts = None
    shown = {"step": int, "num_steps": int, "loss_nats": float, "state": str, "reason": str}
    if isinstance(facts, dict) and all(isinstance(facts.get(name), kind | None) for name, kind in shown.items()):
        return facts
    return {"reason": f"{path.name} is damaged"}


def _claimed(folder: Path) -> bool:
    try:
        lease = folder / LEASE
        touched = lease.stat().st_mtime
        holder = lease.read_bytes()
    except OSError:
        return False
    silent_secs = time.time() - touched
    try:
        found = json.loads(holder)
        host, pid, started = found["host"], int(found["pid"]), found.get("started")
    except (ValueError, KeyError, TypeError, AttributeError):
        # Made a moment ago and not yet written, or garbage.
        return silent_secs < UNWRITTEN_SECS
    if host == platform.node():
        return _alive(pid, started)
    return silent_secs < STALE_SECS


def _alive(pid: int, started: str | None) -> bool:
    """Whether this process lives here. The same pid begun at another time is another process, which a restarted machine
    or container soon has."""
    if pid < 1 or (started is not None and _started(pid) != started):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _started(pid: int) -> str | None:
    """When a process began, in what its kernel counts and since which boot; None where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name, in parentheses, may hold spaces; the start is field 22 of proc_pid_stat(5).
        return f"{boot} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process of this host at a time looks at a lease and makes its own; the kernel lets go of the dead. Where a
    file system cannot lock a folder, O_EXCL alone decides."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def claim(folder: Path) -> Iterator[bool]:
    """Try to become the writer of a folder: yields whether it worked, and gives the claim back at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    lease = folder / LEASE
    with _alone(folder):
        mine = not _claimed(folder)
        if mine:
            lease.unlink(missing_ok=True)
            mine = _made(lease)
    try:
        yield mine
    finally:
        if mine and _is_mine(folder):
            lease.unlink(missing_ok=True)


def _made(lease: Path) -> bool:
    try:
        handle = os.open(lease, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    try:
        os.write(handle, _token())
    except OSError:  # a full disk
        lease.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    return True


class Lost(Exception):
    """The claim was taken over by another process, which thought this one dead: leave without another word."""


def heartbeat(folder: Path) -> None:
    """Show other hosts that the claim is alive. Raises Lost where it is another's."""
    if not _is_mine(folder):
        raise Lost(f"the claim on {folder} was taken over")
    os.utime(folder / LEASE)


def _token() -> bytes:
    pid = os.getpid()
    return json.dumps({"host": platform.node(), "pid": pid, "started": _started(pid)}).encode()


def _is_mine(folder: Path) -> bool:
    try:
        return (folder / LEASE).read_bytes() == _token()
    except OSError:
        return False


def pending(cells: list[Cell], folder_of: Callable[[Cell], Path], *, retry_failed: bool) -> list[Cell]:
    """Cells that have no row, failed ones only where they are to be retried."""
    kept = []
    for cell in cells:
        found = status(folder_of(cell))
        if not found.done and (retry_failed or found.state != "failed"):
            kept.append(cell)
    return kept
