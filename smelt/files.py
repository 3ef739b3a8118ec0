"""Small files, whole or not at all: written beside, fsynced, renamed over the old one, the folder fsynced.

A reader sees the old content or the new, never half of either (reliability: a crash between write and rename
leaves only a `.tmp` beside it, which nothing reads).
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from smelt.errors import BadInput


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically and durably, making its folder where it is missing."""
    if not path.name or path.is_dir():
        raise BadInput(f"{path} is a folder: give the name of a file")
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(beside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # the place asked for, not the one beside it
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def write_json(path: Path, value: Any) -> None:
    """Strict JSON: NaN and infinity are refused, since a reader could not tell them from a measurement. Any name but
    one in .json is refused too: a table's own name, given twice, would be written over."""
    if path.name and not path.is_dir() and path.suffix != ".json":
        raise BadInput(f"{path} does not end in .json, as what is written there does: give another name")
    write_text(path, json.dumps(value, indent=1, sort_keys=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """What `write_json` wrote: NaN and infinity are refused here too."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refused)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:  # of the text, of its encoding, of its depth
        raise BadInput(f"{path} is not JSON ({error}); restore it or delete it") from None


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def sha256_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: Any, length: int = 12) -> str:
    """Hex digest of a JSON value: keys sorted, floats by repr, so that equal specs have equal digests."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:length]
