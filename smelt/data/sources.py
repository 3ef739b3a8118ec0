"""A user's own text -> sources: folders, globs and files of text, JSON lines and parquet.

    .txt .md            one document a file, or several where a separator is named
    .jsonl .jsonl.gz    one document a line: its field `column`
    .parquet            one document a row: its column `column`

Text is UTF-8. What cannot be read is refused by name, never skipped: a corpus that silently lacks a file is another
corpus.
"""

import glob
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO

from smelt.data.documents import Document, Recipe, Source
from smelt.errors import BadInput
from smelt.files import sha256_of_file

VALIDATION_BYTES = 1_000_000  # as the builtin recipe; a small text holds out a tenth


def text_recipe(
    name: str,
    paths: Mapping[str, Sequence[str | Path]],
    *,
    column: str = "text",
    separator: str | None = None,
    licences: Mapping[str, str] | None = None,
    validation_bytes: int = VALIDATION_BYTES,
) -> Recipe:
    """A recipe over the user's files: domain -> files, folders or globs.

    `column` is the field of JSON lines and parquet that holds the text; `separator` cuts the .txt and .md files
    into documents. Raises BadInput for a path that matches nothing and a file of an unknown kind.
    """
    given = licences or {}
    sources = [
        text_source(domain, of_domain, column=column, separator=separator, licence=given.get(domain))
        for domain, of_domain in paths.items()
    ]
    return Recipe(name=name, sources=tuple(sources), validation_bytes=validation_bytes)


def text_source(
    domain: str,
    paths: Sequence[str | Path],
    *,
    column: str = "text",
    separator: str | None = None,
    licence: str | None = None,
) -> Source:
    """The text of `paths` as one source; see `text_recipe`."""
    found = _files(paths)
    if separator == "":
        raise BadInput("the separator of documents is empty; leave it out for one document a file")

    def documents(left_out: Counter) -> Iterator[Document]:
        for name, path in found.items():
            for number, text in enumerate(_READERS[_kind(path)](path, column, separator)):
                try:
                    content = text.encode()
                except UnicodeEncodeError:
                    raise BadInput(f"{path}: document {number} holds a lone surrogate; mend or drop it") from None
                # Grouped by content: a split that does not depend on file names or on the documents around.
                group = sha256(content).hexdigest()
                yield Document(identity=f"{name}#{number}", group=group, domain=domain, content=content)

    return Source(
        name=domain,
        domains=(domain,),
        licence=licence,
        request={
            "files": {name: sha256_of_file(path) for name, path in found.items()},
            "column": column,
            "separator": separator,
        },
        documents=documents,
    )


def from_texts(domain: str, texts: Mapping[str, str], *, licence: str | None = None) -> Source:
    """Documents that are in memory: name -> text."""

    def documents(left_out: Counter) -> Iterator[Document]:
        for name, text in texts.items():
            yield Document(identity=name, group=name, domain=domain, content=text.encode())

    digest = sha256("\x00".join(part for item in texts.items() for part in item).encode()).hexdigest()
    return Source(name=domain, domains=(domain,), licence=licence, request={"sha256": digest}, documents=documents)


def _kind(path: Path) -> str | None:
    return next((suffix for suffix in _READERS if path.name.lower().endswith(suffix)), None)


def _files(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Name -> file, sorted by name. Names are relative to what was given, so that a moved folder is the same corpus."""
    found: dict[str, Path] = {}
    for given in map(Path, paths):
        if given.is_dir():
            here = {path.relative_to(given).as_posix(): path for path in given.rglob("*") if _kind(path)}
        else:
            matches = [given] if given.is_file() else [Path(match) for match in glob.glob(str(given), recursive=True)]
            here = {path.name: path for path in matches if path.is_file()}
        if not here:
            raise BadInput(f"{given} names no file; give a file, a folder or a glob of {' '.join(_READERS)} files")
        for name, path in here.items():
            if not _kind(path):
                raise BadInput(f"{path} is of no known kind; use one of {' '.join(_READERS)}")
            if name in found and found[name] != path:
                name = path.as_posix().lstrip("/")
            found[name] = path
    return dict(sorted(found.items()))


def _decoded(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} is not UTF-8 at byte {error.start} (0x{content[error.start]:02x}); convert it, or leave it out"
        ) from None


def _plain(path: Path, column: str, separator: str | None) -> Iterator[str]:
    text = _decoded(path.read_bytes(), path)
    yield from (text,) if separator is None else (part for part in text.split(separator) if part.strip())


def _json_lines(path: Path, column: str, separator: str | None) -> Iterator[str]:
    open_file = gzip.open if path.name.lower().endswith(".gz") else open
    with open_file(path, "rb") as file:
        for number, raw in enumerate(_whole_lines(file, path), start=1):
            line = _decoded(raw, path)
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadInput(f"{path} line {number} is not JSON ({error}); mend or drop it") from None
            fields = sorted(record) if isinstance(record, dict) else []
            if column not in fields:
                raise BadInput(f"{path} line {number} has no field {column!r}; it has {_listed(fields)}")
            yield _text(record[column], column, f"{path} line {number}")


def _whole_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path} is no whole gzip file ({error}); copy or compress it again") from None


def _parquet(path: Path, column: str, separator: str | None) -> Iterator[str]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise BadInput(f"{path} is no parquet file ({str(error).splitlines()[0]})") from None
    with table:
        if column not in table.schema_arrow.names:
            raise BadInput(f"{path} has no column {column!r}; it has {_listed(table.schema_arrow.names)}")
        row = 0
        batches = table.iter_batches(columns=[column], batch_size=1024)
        while True:
            try:
                batch = next(batches, None)
                values = [] if batch is None else batch.column(0).to_pylist()
            except (OSError, ValueError) as error:  # pyarrow's own derive from them
                raise BadInput(f"{path} is damaged after row {row} ({str(error).splitlines()[0]})") from None
            if batch is None:
                return
            for value in values:
                yield _text(value, column, f"{path} row {row}")
                row += 1


def _text(value: object, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{where}: {column!r} is {type(value).__name__}, not text; name the column that holds the text")
    return value


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(str, names)) or "none"


_READERS: dict[str, Callable[[Path, str, str | None], Iterator[str]]] = {
    ".txt": _plain,
    ".md": _plain,
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".parquet": _parquet,
}
