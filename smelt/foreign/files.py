"""A file of one of four kinds -> the names of its columns, and its rows as cells with their places.

    .csv .tsv   UTF-8 with or without a mark, quoted fields; a row has as many fields as the header; cells are text
    .jsonl      an object a line; nested ones under dotted names, as loggers write them: {"config": {"lr": 1}} config.lr
    .parquet    numbers as Python's own, so that no product of integers overflows

It knows no quantity: what a cell should be is for `cells`.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from smelt.errors import BadInput
from smelt.foreign.cells import BadCell

Records = Iterator[tuple[int, dict[str, Any] | BadCell]]


def opened(path: Path) -> tuple[list[str], Records]:
    """(columns, (place, column -> cell) a row); a row that cannot be read is a BadCell in the record's place."""
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    if path.is_dir():
        raise BadInput(f"{path} is a folder: give the name of a file")
    kinds = {".csv": _of_csv, ".tsv": _of_csv, ".parquet": _of_parquet, ".jsonl": _of_jsonl}
    if path.suffix not in kinds:
        raise BadInput(f"cannot read {path.name}: give a file that ends in {', '.join(kinds)}")
    return kinds[path.suffix](path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8") from None


def _of_csv(path: Path) -> tuple[list[str], Records]:
    delimiter = "\t" if path.suffix == ".tsv" else ","
    reader = csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise BadInput(f"{path}:{reader.line_num} is not CSV ({error}): mend the line") from None

    def records() -> Records:
        try:
            for fields in reader:
                if len(fields) not in (0, len(names)):
                    raise BadInput(
                        f"{path}:{reader.line_num} has {len(fields)} fields, the header {len(names)}: mend it (a "
                        "number with thousands separators stands in quotes)"
                    )
                if fields:
                    yield reader.line_num, dict(zip(names, fields, strict=True))
        except csv.Error as error:
            raise BadInput(f"{path}:{reader.line_num} is not CSV ({error}): mend the line") from None

    return names, records()


def _of_jsonl(path: Path) -> tuple[list[str], Records]:
    found: list[tuple[int, Any]] = []
    names: dict[str, None] = {}
    lines = _text(path).split("\n")
    last = max((number for number, line in enumerate(lines, start=1) if line.strip()), default=0)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == last:
                found.append((number, BadCell("is torn: the last line is not whole JSON")))
                continue
            raise BadInput(f"{path}:{number} is not JSON ({error}): mend the line") from None
        if not isinstance(record, dict):
            raise BadInput(f"{path}:{number} holds {type(record).__name__}, not an object with a row's columns")
        flat = dict(_flattened(record, ""))
        names |= dict.fromkeys(flat)
        found.append((number, flat))
    return list(names), iter(found)


def _flattened(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Nested objects under dotted names, as loggers write them: {"config": {"lr": 1}} -> config.lr."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _of_parquet(path: Path) -> tuple[list[str], Records]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{path} is no parquet file ({str(error).splitlines()[0]})") from None
    names = table.column_names
    cells = [column.to_pylist() for column in table.columns]
    return names, (
        (row, dict(zip(names, values, strict=True))) for row, values in enumerate(zip(*cells, strict=True), start=1)
    )
