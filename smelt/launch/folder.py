"""A run folder -> its state; and the claim that makes one process its only writer.

    planned     no folder, or nothing claimed
    running     claimed by a living process
    stopped     was asked to stop; trains again from its beginning
    failed      raised; the reason is kept, the traceback stands in log.txt
    finished    has a row
    diverged    has a row without a loss
    stale       has a row, made from other code or another corpus than today's

A claim is a lease file made with O_EXCL. It is taken over where its process is gone from this host, or, from
another host, where it has not been touched for STALE_SECS.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.files import read_json
from smelt.grid import Cell

STALE_SECS = 180.0
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
        row = read_json(folder / "row.json")
        for name, today in (("code_fingerprint", code_fingerprint), ("corpus_fingerprint", corpus_fingerprint)):
            if today is not None and row[name] != today:
                return Status("stale", f"{name} was {row[name]}, is {today}", loss_nats=row["val_loss_nats"])
        if row["outcome"] == "diverged":
            return Status("diverged", json.loads(row["null_reasons"]).get("val_loss_nats", ""))
        return Status("finished", num_steps=row["num_steps"], step=row["num_steps"], loss_nats=row["val_loss_nats"])
    facts = read_json(folder / "state.json") if (folder / "state.json").exists() else {}
    known: dict[str, Any] = {name: facts.get(name) for name in ("step", "num_steps", "loss_nats")}
    if _claimed(folder):
        return Status("running", **known)
    if facts.get("state") == "failed":
        return Status("failed", facts.get("reason", ""), **known)
    if facts:
        return Status("stopped", facts.get("reason") or "ended without a word, killed perhaps", **known)
    return Status("planned")


def _claimed(folder: Path) -> bool:
    try:
        lease = folder / LEASE
        holder = json.loads(lease.read_text())
        touched = lease.stat().st_mtime
    except (OSError, json.JSONDecodeError):
        return False
    if holder["host"] == platform.node():
        return _alive(holder["pid"])
    return time.time() - touched < STALE_SECS


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def claim(folder: Path) -> Iterator[bool]:
    """Try to become the writer of a folder: yields whether it worked, and gives the claim back at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    lease = folder / LEASE
    if lease.exists() and not _claimed(folder):
        # Only one process can rename the stale lease away, so only one goes on to make the next.
        try:
            os.rename(lease, folder / f".{LEASE}.{os.getpid()}.gone")
            (folder / f".{LEASE}.{os.getpid()}.gone").unlink(missing_ok=True)
        except FileNotFoundError:
            pass
    try:
        handle = os.open(lease, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        yield False
        return
    try:
        os.write(handle, _token())
        os.close(handle)
        yield True
    finally:
        if _is_mine(folder):
            lease.unlink(missing_ok=True)


class Lost(Exception):
    """The claim was taken over by another process, which thought this one dead: leave without another word."""


def heartbeat(folder: Path) -> None:
    """Show other hosts that the claim is alive. Raises Lost where it is another's."""
    if not _is_mine(folder):
        raise Lost(f"the claim on {folder} was taken over")
    os.utime(folder / LEASE)


def _token() -> bytes:
    return json.dumps({"host": platform.node(), "pid": os.getpid()}).encode()


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
