"""What the verbs share: option types, printing, `a=1` words, and the state of a cell."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from tyro.conf import Positional, arg

from smelt.errors import BadInput

Name = Annotated[Positional[str], arg(metavar="NAME", help="a committed experiment's name, or a path to a file")]
Json = Annotated[bool, arg(help="print JSON on standard output")]


def print_json(value: Any) -> None:
    """Strict JSON on standard output."""
    print(json.dumps(value, indent=1, allow_nan=False))


def say(text: str) -> None:
    """A line for people, on standard error."""
    print(text, file=sys.stderr, flush=True)


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
    return found


def status_of(experiment: Any, cell: Any) -> Any:
    """The state of a cell, told stale where code or corpus are not today's."""
    from smelt.data.store import open_corpus
    from smelt.launch import folder as folders
    from smelt.train.fingerprint import code_fingerprint

    try:
        corpus = open_corpus(cell.run.data.corpus).fingerprint
    except BadInput:
        corpus = None
    return folders.status(experiment.folder / cell.run.run_id, code_fingerprint(), corpus)
