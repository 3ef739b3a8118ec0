"""A path, names and filters -> a Table: what was kept under our names, and all that was not, with reasons."""

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smelt.errors import BadInput
from smelt.files import sha256_of_file
from smelt.fit.result import Flag
from smelt.foreign import checks
from smelt.foreign.cells import (
    LOSSES,
    OTHER_LOSS,
    SCORES,
    TEXTS,
    BadCell,
    comparison,
    is_missing,
    is_ours,
    meant,
    number,
    parts,
    quantities,
    value,
)
from smelt.foreign.files import Records, opened


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What was read.

    columns    our name -> float64, one entry a kept row;  texts  the same of words
    rows       of each kept row its place in the file: the line where it ends (csv, tsv, jsonl), or its number (parquet)
    left_out   row and reason of every row that is not kept, in the order of the file
    loss       the name of the loss column, None where none was named;  loss_unit  in words
    notes      what was converted or derived, a sentence each
    selection  the rule of `best_of`, how many rows it chose from and how many it kept, or None
    settings   the arguments of `read`, so that read(path, **settings) reads the same again
    """

    path: Path
    sha256: str
    columns: dict[str, np.ndarray]
    texts: dict[str, tuple[str, ...]]
    rows: tuple[int, ...]
    left_out: tuple[dict[str, Any], ...]
    loss: str | None
    loss_unit: str | None
    notes: tuple[str, ...]
    selection: dict[str, Any] | None
    warnings: tuple[Flag, ...]
    settings: dict[str, Any]


class _Row(NamedTuple):
    """A kept row: its place in the file, its cells as our quantities, and all of its cells."""

    place: int
    values: dict[str, Any]
    record: dict[str, Any]


def read(
    path: Path,
    columns: Mapping[str, str] | None = None,
    *,
    where: Sequence[str] = (),
    flops: str | None = None,
    best_of: Sequence[str] = (),
    skip_bad: bool = False,
    drop_duplicates: bool = False,
) -> Table:
    """Columns of anybody's table under our names; the package's opening says what is understood.

    `columns` maps our names to theirs; without it the columns that already carry our names are taken. Rows with an
    empty loss are left out and listed, and blank rows. NaN, infinite, zero and negative numbers, empty cells and words
    where a number is expected raise BadInput with file, line, column and value, or are listed where `skip_bad`. Rows
    that are equal in every named column are flagged, or kept once and listed where `drop_duplicates`. Raises BadInput
    too for a file that is none of the four kinds, unknown names, columns that are not there or stand there twice, a
    table that has no row left, and losses per token of several tokenizers.
    """
    path = Path(path)
    names, records = opened(path)
    columns = dict(columns) if columns else ours(path)
    sources = _sources(path, names, columns)
    loss = _loss_of(columns)
    kept, left_out = _selected(
        path, records, sources, [comparison(path, names, text) for text in where], loss, skip_bad
    )
    if drop_duplicates:
        repeats = _repeats(kept)
        left_out += [_left(place, f"repeats row {of} in every named column") for place, of in repeats.items()]
        kept = [row for row in kept if row.place not in repeats]
    flags, selection = [], None
    if best_of:
        kept, beaten, selection = _best(path, kept, best_of, loss)
        left_out += beaten
        message = (
            f"{selection['num_kept']} of {selection['num_candidates']} rows are kept, the {selection['rule']}: losses "
            "are biased low by selection, more where a cell has more candidates"
        )
        flags.append(Flag(code="best_of_sweep", message=message))
    flags += checks.duplicate_flags(_repeats(kept))
    flags += checks.cell_flags([(row.place, row.values) for row in kept], loss)
    numbers = {o: np.array([row.values[o] for row in kept], dtype=np.float64) for o in columns if o not in TEXTS}
    texts = {o: tuple(row.values[o] for row in kept) for o in columns if o in TEXTS}
    notes = _convert(numbers)
    notes += _derive(numbers, flops)
    loss = "loss_nats" if loss == "loss_bits" else loss
    flags += checks.column_flags(numbers, given=columns)
    flags += checks.tokenizer_flags(path, columns, texts, loss)
    return Table(
        path=path,
        sha256=sha256_of_file(path),
        columns=numbers,
        texts=texts,
        rows=tuple(row.place for row in kept),
        left_out=tuple(sorted(left_out, key=lambda item: item["row"])),
        loss=loss,
        loss_unit=None if loss is None else _unit(loss),
        notes=tuple(notes),
        selection=selection,
        warnings=tuple(flags),
        settings={
            "columns": columns,
            "where": list(where),
            "flops": flops,
            "best_of": list(best_of),
            "skip_bad": skip_bad,
            "drop_duplicates": drop_duplicates,
        },
    )


def ours(path: Path) -> dict[str, str]:
    """The columns of a file that carry our names, as `read` takes them. Raises BadInput as `read` does."""
    return {name: name for name in opened(Path(path))[0] if is_ours(name)}


def to_csv(table: Table) -> str:
    """The kept rows as CSV under our names; floats keep every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = {**table.columns, **table.texts}
    writer.writerow(columns)
    for row in range(len(table.rows)):
        writer.writerow([repr(float(v[row])) if name in table.columns else v[row] for name, v in columns.items()])
    return text.getvalue()


def _selected(
    path: Path,
    records: Records,
    sources: Mapping[str, tuple[str, float]],
    tests: Sequence[Callable[[Mapping[str, Any]], str | None]],
    loss: str | None,
    skip_bad: bool,
) -> tuple[list[_Row], list[dict[str, Any]]]:
    """The rows that pass, and those that do not with the first reason why."""
    kept: list[_Row] = []
    left_out = []
    for place, record in records:
        try:
            if isinstance(record, BadCell):
                raise record
            reason = _why_not(record, tests, None if loss is None else sources[loss][0])
            if reason is None:
                values = {ours: value(ours, *source, record) for ours, source in sources.items()}
                kept.append(_Row(place, values, record))
        except BadCell as error:
            if not skip_bad:
                where = f"{path}, row {place}," if path.suffix == ".parquet" else f"{path}:{place}:"
                raise BadInput(f"{where} {error}; mend or drop the row, or skip bad rows (--skip-bad)") from None
            reason = str(error)
        if reason is not None:
            left_out.append(_left(place, reason))
    if not kept and not left_out:
        raise BadInput(f"{path} holds no rows")
    if not kept:
        raise BadInput(f"{path} has no row left of {len(left_out)}, the first: {left_out[0]['reason']}; leave out less")
    return kept, left_out


def _why_not(record: Mapping[str, Any], tests: Sequence[Callable], loss: str | None) -> str | None:
    if all(is_missing(cell) for cell in record.values()):
        return "blank row"
    if loss is not None and is_missing(record.get(loss)):
        return "no loss"
    return next((reason for reason in (test(record) for test in tests) if reason), None)


def _left(place: int, reason: str) -> dict[str, Any]:
    return {"row": place, "reason": reason}


def _sources(path: Path, header: Sequence[str], columns: Mapping[str, str]) -> dict[str, tuple[str, float]]:
    """Our name -> (column of the file, or of a word A+B; what its cells are multiplied by)."""
    if not columns:
        has = ", ".join(header) or "none"
        raise BadInput(
            f"no column of {path} is named: give OURS=THEIRS (--columns), such as num_params=N num_tokens=D "
            f"loss_nats=loss; it has {has}"
        )
    found = {}
    for ours, theirs in columns.items():
        if not is_ours(ours):
            like = " or ".join(meant(ours))
            raise BadInput(
                f"{ours!r} is no quantity known here{f'; {like} may be meant' if like else ''}: choose from "
                f"{', '.join([*LOSSES, 'loss:NAME', *(name for name in quantities() if name not in LOSSES)])}"
            )
        name, factor = theirs, 1.0
        if name not in header and "*" in name and ours not in TEXTS:
            name, _, by = theirs.rpartition("*")
            name = name.strip()
            try:
                factor = number(by.strip(), "count")
            except BadCell:
                factor = math.nan
            if not (math.isfinite(factor) and factor > 0):
                raise BadInput(f"{ours}={theirs}: {by.strip()!r} is no factor; give COLUMN*NUMBER, such as C*1e9")
        for part in parts(name, header) if ours in TEXTS else [name]:
            if part not in header:
                raise BadInput(f"{path} has no column {part!r}: it has {', '.join(header) or 'none'}{_glued(header)}")
            if list(header).count(part) > 1:
                raise BadInput(f"{path} has {list(header).count(part)} columns {part!r}: rename or drop all but one")
        found[ours] = (name, factor)
    if {"density", "sparsity"} <= set(columns):
        raise BadInput("density and sparsity say the same, 1 - S and S: name one of them")
    return found


def _glued(header: Sequence[str]) -> str:
    """A hint where the header is one name that another separator would split."""
    mark = next((mark for mark in ";\t" if len(header) == 1 and mark in header[0]), None)
    names = {";": "semicolons", "\t": "tabs"}
    return f"; they stand between {names[mark]}: save it with commas, or as .tsv with tabs" if mark else ""


def _loss_of(columns: Mapping[str, str]) -> str | None:
    named = [name for name in columns if name in LOSSES or name.startswith(OTHER_LOSS)]
    if len(named) > 1:
        named = [name for name in named if name not in SCORES]
    if len(named) > 1:
        raise BadInput(f"two losses are named, {named[0]} and {named[1]}: name one, a fit is of one")
    return named[0] if named else None


def _unit(loss: str) -> str:
    return LOSSES[loss].split(",")[0] if loss in LOSSES else f"{loss.removeprefix(OTHER_LOSS)}, its own unit"


def _repeats(kept: Sequence[_Row]) -> dict[int, int]:
    """Place of a row -> that of the first row that is equal to it in every named column."""
    first: dict[tuple, int] = {}
    found = {}
    for row in kept:
        of = first.setdefault(tuple(row.values.values()), row.place)
        if of != row.place:
            found[row.place] = of
    return found


def _best(
    path: Path, kept: Sequence[_Row], best_of: Sequence[str], loss: str | None
) -> tuple[list[_Row], list[dict[str, Any]], dict[str, Any]]:
    """The row of the lowest loss of every cell, the others with the reason, and the rule."""
    if loss is None:
        raise BadInput(f"the best of {', '.join(best_of)} is that of the lowest loss: name the loss column")
    values, record = kept[0].values, kept[0].record
    for name in best_of:
        if name not in values and name not in record:
            raise BadInput(f"best of {name!r}: it is neither named nor a column of {path}; have {', '.join(values)}")
    by = list(dict.fromkeys([*best_of, *(["group"] if "group" in values else [])]))
    cells: dict[tuple, list[_Row]] = {}
    for row in kept:
        key = tuple(row.values[name] if name in values else str(row.record.get(name)).strip() for name in by)
        cells.setdefault(key, []).append(row)
    chosen, beaten = [], []
    for rows in cells.values():
        best = min(rows, key=lambda row: row.values[loss])
        chosen.append(best)
        beaten += [
            _left(
                row.place, f"best of {len(rows)}: {row.values[loss]:.6g}, row {best.place} has {best.values[loss]:.6g}"
            )
            for row in rows
            if row is not best
        ]
    chosen.sort(key=lambda row: row.place)
    return (
        chosen,
        beaten,
        {
            "rule": f"lowest loss of each ({', '.join(by)})",
            "num_candidates": len(kept),
            "num_kept": len(chosen),
            "most_candidates": max(map(len, cells.values())),
            "bias": "biased low by selection",
        },
    )


def _convert(numbers: dict[str, np.ndarray]) -> list[str]:
    """Turns bits and sparsities into what laws know, in place; says so."""
    notes = []
    if "loss_bits" in numbers:
        numbers["loss_nats"] = numbers.pop("loss_bits") * math.log(2)
        notes.append("loss_nats is loss_bits times ln 2: bits per token became nats")
    if "sparsity" in numbers:
        numbers["density"] = 1.0 - numbers.pop("sparsity")
        notes.append("density is 1 - sparsity")
    return notes


def _derive(numbers: dict[str, np.ndarray], flops: str | None) -> list[str]:
    """Adds what follows from the columns by definition, and by 6ND where that was asked for; says so."""
    notes = []

    def derive(name: str, values: np.ndarray, how: str) -> None:
        numbers[name] = values
        notes.append(f"{name} is {how}")

    size = "num_params_active" if "num_params_active" in numbers else "num_params"
    if flops is not None:
        if flops != "6ND":
            raise BadInput(f"flops is {flops!r}: the one rule known here is 6ND")
        C, N, D = (numbers.get(name) for name in ("train_flops", size, "num_tokens"))
        if sum(part is None for part in (C, N, D)) != 1:
            has = [name for name in ("train_flops", size, "num_tokens") if name in numbers]
            raise BadInput(
                f"6ND gives the one of train_flops, num_params and num_tokens that is missing; the table has "
                f"{', '.join(has) or 'none'}: {'leave it out' if len(has) == 3 else 'name two of them'}"
            )
        if C is None:
            derive("train_flops", 6 * N * D, f"6 {size} num_tokens, as asked")
        elif D is None:
            derive("num_tokens", C / (6 * N), f"train_flops / (6 {size}), as asked")
        else:
            derive(size, C / (6 * D), "train_flops / (6 num_tokens), as asked")
    if "train_flops" not in numbers:
        if {"flops_per_token", "num_tokens"} <= numbers.keys():
            derive(
                "train_flops", numbers["flops_per_token"] * numbers["num_tokens"], "flops_per_token times num_tokens"
            )
        elif "compute_flops" in numbers:
            derive("train_flops", numbers["compute_flops"], "compute_flops")
        elif "budget_flops" in numbers:
            derive("train_flops", numbers["budget_flops"], "budget_flops, what was aimed at")
    return notes
