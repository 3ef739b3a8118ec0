"""States of a trunk on disk at the steps where runs leave it -> the furthest from which a run can go on.

    <experiment>/.trunks/<trunk_id>/<step>/     state/  metrics.jsonl  fork.json

A fork is written whole or not at all: beside, then renamed. metrics.jsonl holds the lines of all steps before it;
fork.json tells the seconds that they took and the fingerprint under which they were made. A fork of other code,
another corpus or other micro-batches is none; other devices, meshes, threads and versions move the last bits of what
follows, as they do in a row.

Who writes here holds the claim on the trunk's folder (`launch.folder`); nothing here asks for it.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt import trunk
from smelt.errors import BadInput
from smelt.files import read_json, write_json, write_text
from smelt.spec import RunSpec
from smelt.train import checkpoint
from smelt.train.step import State

TRUNKS = ".trunks"  # the dot keeps it out of what reads run folders
DECIDE = ("code_fingerprint", "corpus_fingerprint", "accumulate")


@dataclass(frozen=True, slots=True)
class Fork:
    """A state after `step` steps, the metrics of each of them a line, and what they took in wall seconds by purpose."""

    step: int
    state: State
    metrics: str
    secs: dict[str, float]

    def losses_nats(self) -> list[float]:
        """The training loss of every step."""
        return [json.loads(line)["loss_nats"] for line in self.metrics.splitlines()]


def folder_of(experiment_folder: Path, run: RunSpec) -> Path:
    """Where the states of a run's trunk are kept."""
    return experiment_folder / TRUNKS / trunk.trunk_of(run).trunk_id


def save(folder: Path, fork: Fork, provenance: dict[str, Any]) -> None:
    """Keep a fork, in place of one that could not be used."""
    target = folder / str(fork.step)
    beside = folder / f".{fork.step}.{os.getpid()}.tmp"
    beside.mkdir(parents=True)
    checkpoint.save_state(beside / "state", fork.state)
    write_text(beside / "metrics.jsonl", fork.metrics)
    write_json(beside / "fork.json", {"secs": fork.secs, "provenance": provenance})
    if target.exists():
        shutil.rmtree(target)
    os.rename(beside, target)


def furthest(folder: Path, upto: int, like: State, provenance: dict[str, Any]) -> Fork | None:
    """The fork of this code and corpus with the most steps, `upto` at most; None where there is none. One that cannot
    be read stands in no run's way: it costs the steps that it would have saved."""
    for step in sorted(_kept(folder, provenance), reverse=True):
        place = folder / str(step)
        with contextlib.suppress(Exception):  # whatever orbax makes of a disk that failed
            if step <= upto:
                state = checkpoint.load_state(place / "state", like)
                return Fork(step, state, (place / "metrics.jsonl").read_text(), read_json(place / "fork.json")["secs"])
    return None


def sweep(folder: Path, wanted: Iterable[int], provenance: dict[str, Any]) -> None:
    """Remove every state from which no run would begin that leaves the trunk at one of the steps `wanted`, and what
    attempts that were killed left half-written."""
    needed = trunk.best_forks(_kept(folder, provenance), wanted)
    for place in folder.glob("*"):
        if place.is_dir() and place.name not in {str(step) for step in needed}:
            shutil.rmtree(place)


def sweep_empty(experiment_folder: Path) -> None:
    """Remove the folders of trunks that hold nothing, and their common one where it holds nothing then."""
    with contextlib.suppress(OSError):
        for place in (experiment_folder / TRUNKS).glob("*"):
            with contextlib.suppress(OSError):
                place.rmdir()
        (experiment_folder / TRUNKS).rmdir()


def _kept(folder: Path, provenance: dict[str, Any]) -> Iterator[int]:
    """Steps of whole forks of this code and corpus."""
    for place in folder.glob("*"):
        if place.name.isdigit():
            with contextlib.suppress(BadInput, KeyError, TypeError):
                made = read_json(place / "fork.json")["provenance"]
                if all(made[name] == provenance[name] for name in DECIDE):
                    yield int(place.name)
