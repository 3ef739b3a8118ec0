"""What the verbs share: option types, printing, `a=1` words, and the state of a cell."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from smelt.errors import BadInput

Name = Annotated[Positional[str], arg(metavar="NAME", help="a committed experiment's name, or a path to a file")]
Json = Annotated[bool, arg(help="print JSON on standard output")]
Tables = Annotated[Path | None, arg(help="folder for every table as .csv and .tex")]


def print_json(value: Any) -> None:
    """Strict JSON on standard output."""
    print(json.dumps(value, indent=1, allow_nan=False))


def say(text: str) -> None:
    """A line for people, on standard error."""
    print(text, file=sys.stderr, flush=True)


def rows_of(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """An experiment and its rows: its own run folders', or where nothing was trained here the committed ones."""
    from smelt import committed, ledger
    from smelt import experiment as experiments

    experiment = experiments.load(name)
    rows = ledger.read_folder(experiment.folder)
    kept = committed.folder_of(experiment.name) / f"{experiment.name}.csv"
    if not rows and kept.exists():
        say(f"no run of {experiment.name} here: reading the committed rows {kept}")
        rows = ledger.read_csv(kept)
    if not rows:
        raise BadInput(f"{experiment.name} has no finished run: smelt run {name} trains it")
    return experiment, rows


def assignments(texts: Sequence[str], kind: Any) -> list[tuple[str, Any]]:
    """ "a=1" -> ("a", 1)."""
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        try:
            found.append((key, kind(value)))
        except ValueError:
            equals = ""
        if not (equals and key):
            raise BadInput(f"{text!r} is no assignment: give NAME=VALUE")
        if key in dict(found[:-1]):
            raise BadInput(f"{text!r} gives {key} a second time: give it once")
    return found


def at_least(option: str, value: float | None, low: float, *, low_open: bool = False) -> None:
    """Refuse a number under `low` (or equal to it where `low_open`), NaN and infinity; None is an option left out."""
    if value is None or (math.isfinite(value) and (value > low or (value == low and not low_open))):
        return
    raise BadInput(f"{option} is {value}: give a number {'above' if low_open else 'of at least'} {low}")


def status_of(experiment: Any) -> Callable[[Any], Any]:
    """A cell -> its state, told stale where code or corpus are not today's; each corpus is opened once."""
    from smelt.data.store import folder_of, open_corpus
    from smelt.launch import folder as folders
    from smelt.train.fingerprint import code_fingerprint

    @cache
    def fingerprint(corpus: str) -> str | None:
        try:
            return open_corpus(corpus).fingerprint
        except BadInput:
            # Where there is none nothing can differ from it: results are read on other machines too.
            built = (folder_of(corpus) / "manifest.json").exists()
            return "that of files changed since they were built" if built else None

    def status(cell: Any) -> Any:
        run = cell.run
        code, corpus = code_fingerprint(run.arch.own), fingerprint(run.data.corpus)
        return folders.status(experiment.folder / run.run_id, code, corpus)

    return status
