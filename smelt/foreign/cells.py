"""A cell of anybody's table and the quantity it should be -> a number, or what is wrong with it.

The names of quantities state their units: `LOSSES`, `COUNTS`, `SECS`, `SHARES`, `BYTES`, `TEXTS`, any column that a
law names, and loss:NAME for a loss in a unit of its own. It knows single cells and rows, never a file.
"""

import decimal
import difflib
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from smelt.errors import BadInput
from smelt.fit import laws

LOSSES = {
    "loss_nats": "nats per token",
    "loss_bits": "bits per token; becomes loss_nats",
    "bits_per_byte": "bits per byte of text, whatever the tokenizer",
    "error": "share of a benchmark that is wrong, 0 to 1 or with %",
}
OTHER_LOSS = "loss:"  # loss:NAME is a loss in a unit of its own
COUNTS = {
    "num_params": "parameters N, counted one way in all rows",
    "num_params_active": "parameters that one token uses",
    "num_params_total": "parameters with embedding and head",
    "num_params_once": "parameters outside the loop",
    "num_params_recurrent": "parameters inside the loop",
    "num_passes": "passes through the loop",
    "num_tokens": "training tokens D, repeats included",
    "num_unique_tokens": "training tokens without repeats",
    "train_flops": "training FLOPs C of the run",
    "compute_flops": "the same, of a point of a frontier",
    "flops_per_token": "training FLOPs per token F, forward and backward",
    "num_experts": "experts of a layer",
    "budget_flops": "training FLOPs aimed at: rows of one IsoFLOP curve carry one number",
}
SECS = {"train_secs": "seconds of training, or with s, min, h, d"}
SHARES = {
    "density": "active share 1 - S",
    "sparsity": "S; becomes density = 1 - S",
    "accuracy": "share of a benchmark that is right, a score to link to the loss",
}
SCORES = ("accuracy", "error")  # beside a loss an error is a score too
BYTES = {"stored_bytes": "bytes of the stored model"}
TEXTS = {
    "group": "what is compared: rows of one architecture carry one word",
    "pair": "rows of several groups that were matched carry one word",
    "seed": "the seed",
    "run_id": "the run; its checkpoints are one unit of the bootstrap",
    "unit": "what was drawn independently, where it is not the run",
    "tokenizer": "of the loss in nats or bits per token",
    "label": "for people",
}
OWN_LABEL = {"label", "seed"}  # may be empty; an empty group, pair, run or unit would be one with all other empty ones

SUFFIXES = {"k": 3, "K": 3, "m": 6, "M": 6, "b": 9, "B": 9, "G": 9, "t": 12, "T": 12, "P": 15}
SECS_SUFFIXES = {"s": 1.0, "sec": 1.0, "secs": 1.0, "min": 60.0, "h": 3600.0, "hr": 3600.0, "d": 86400.0}
BYTE_SUFFIXES = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SUFFIXES_MEANT = {
    "count": f", or one with {' '.join(SUFFIXES)}",
    "bytes": f", or one with {' '.join(BYTE_SUFFIXES)}",
    "secs": f" of seconds, or one with {' '.join(SECS_SUFFIXES)}",
    "share": ", or one with %",
    "loss": " without letters",
}
MISSING = {"", "na", "n/a", "null", "none"}
NUMBER = re.compile(r"([+-]?(?:\d{1,3}(?:[,_]\d{3})+|\d+|(?=\.\d))(?:\.\d*)?)([eE][+-]?\d+)?\s*([A-Za-z]*|%)")
COMPARISON = re.compile(r"<=|>=|!=|==|<|>|=")
COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class BadCell(ValueError):
    """A cell that no law can use; the message is what it is and what was expected."""


def is_ours(name: str) -> bool:
    return name in quantities() or (name.startswith(OTHER_LOSS) and name != OTHER_LOSS)


def quantities() -> list[str]:
    """All names but loss:NAME: losses first, then what a law or a saving reads, words last."""
    return list(dict.fromkeys([*LOSSES, *COUNTS, *SECS, *SHARES, *BYTES, *sorted(law_columns()), *TEXTS]))


def meant(name: str) -> list[str]:
    """Quantities that somebody who wrote `name` may have meant.

    >>> meant("params"), meant("loss"), meant("num_tokns")
    (['num_params'], ['loss_nats', 'loss_bits'], ['num_tokens'])
    """
    word, known = name.strip().lower(), quantities()
    alike = [ours for ours in known if word in ours.split("_")]
    fewest = min((ours.count("_") for ours in alike), default=0)
    return [ours for ours in alike if ours.count("_") == fewest][:3] or difflib.get_close_matches(
        word, known, cutoff=0.75
    )


def law_columns() -> set[str]:
    return {column for law in laws.NAMED.values() for column in law.columns}


def is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING)


def _kind(ours: str) -> str:
    if ours in SHARES or ours == "error":
        return "share"
    if ours in LOSSES or ours.startswith(OTHER_LOSS):
        return "loss"
    return "bytes" if ours in BYTES else "secs" if ours in SECS else "count"


def value(ours: str, theirs: str, factor: float, record: Mapping[str, Any]) -> Any:
    """The cell as our quantity, or BadCell."""
    cell = record.get(theirs)
    if ours in TEXTS:
        names = parts(theirs, record)
        words = ["" if record.get(name) is None else str(record[name]).strip() for name in names]
        if "" in words and ours not in OWN_LABEL:
            raise BadCell(f"{names[words.index('')]} is empty: a {ours} is expected")
        return " ".join(words)
    if is_missing(cell):
        raise BadCell(f"{theirs} is empty: {ours} is expected")
    try:
        found = number(cell, _kind(ours)) * factor
    except BadCell as error:
        raise BadCell(f"{theirs} {error}") from None
    shown = f"{theirs} is {str(cell).strip()}"
    if ours == "sparsity":
        if not 0 <= found < 1:
            raise BadCell(f"{shown}: a sparsity is a share from 0 to below 1, or written with %")
    elif ours == "accuracy":
        if not 0 <= found <= 1:
            raise BadCell(f"{shown}: an accuracy is a share from 0 to 1, or written with %")
    elif not (math.isfinite(found) and found > 0):
        raise BadCell(f"{shown}: {ours} must be finite and above 0")
    elif ours in ("density", "error") and found > 1:
        raise BadCell(f"{shown}: a share is at most 1, or written with %")
    return found


def parts(theirs: str, header: Collection[str]) -> list[str]:
    """The columns that a word is made of: A+B is two, unless a column is called so."""
    return [theirs] if theirs in header else [name.strip() for name in theirs.split("+")]


def number(cell: Any, kind: str) -> float:
    """A cell as a float, or BadCell: a count may carry a letter (1.3B), bytes and seconds a unit, a share %; a loss has
    none of them."""
    if isinstance(cell, int | float | decimal.Decimal) and not isinstance(cell, bool):
        try:
            return float(cell)
        except OverflowError:  # of an integer beyond every float, as JSON may hold one
            return math.inf
    if not isinstance(cell, str):
        raise BadCell(f"is {cell!r}: expected a number")
    text = cell.strip()
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return float(text)
    found = NUMBER.fullmatch(text)
    if found is None:
        hint = " with a decimal point" if re.fullmatch(r"[+-]?\d+,\d+", text) else ""
        raise BadCell(f"is {text!r}: expected a number{hint}")
    digits, exponent, suffix = found[1], found[2] or "", found[3]
    if kind in ("loss", "share") and "," in digits:
        raise BadCell(f"is {text!r}: expected a number with a decimal point")
    digits = digits.replace(",", "").replace("_", "")
    if not suffix:
        return float(digits + exponent)
    if suffix == "%" and kind == "share":
        return float(digits + exponent) / 100
    if kind == "bytes" and suffix in BYTE_SUFFIXES:
        return float(digits + exponent) * BYTE_SUFFIXES[suffix]
    if kind == "secs" and suffix in SECS_SUFFIXES:
        return float(digits + exponent) * SECS_SUFFIXES[suffix]
    if kind == "count" and suffix in SUFFIXES and not exponent:
        return float(f"{digits}e{SUFFIXES[suffix]}")  # one rounding, as if the zeros had been written
    raise BadCell(f"is {text!r}: expected a number{SUFFIXES_MEANT[kind]}")


def comparison(path: Any, header: Sequence[str], text: str) -> Callable[[Mapping[str, Any]], str | None]:
    """A test of a row by COLUMN<VALUE: None where it holds, else why it does not; BadCell where a word is compared by
    size. COLUMN=A|B holds where the cell is one of them, COLUMN!=A|B where it is none. Raises BadInput for a text that
    compares nothing, and for columns that are not there."""
    splits = [(text[: m.start()].strip(), m[0], text[m.end() :].strip()) for m in COMPARISON.finditer(text)]
    if not splits:
        raise BadInput(f"where {text!r} compares nothing: give COLUMN<VALUE (or <=, >, >=, =, !=)")
    column, sign, wanted = next((split for split in splits if split[0] in header), splits[0])
    if column not in header:
        raise BadInput(f"where {text!r}: {path} has no column {column!r}: it has {', '.join(header) or 'none'}")
    holds, bound = COMPARED.get(sign), _as_number(wanted)  # by size, or None: by equality
    several = [wanted, *(part.strip() for part in wanted.split("|"))]  # a value may have the bar in it
    if holds and (bound is None or math.isnan(bound)):
        raise BadInput(f"where {text!r}: {wanted!r} is no number, and {sign} compares numbers: use = or !=")

    def failing(record: Mapping[str, Any]) -> str | None:
        cell = record.get(column)
        if is_missing(cell):
            return None if sign == "!=" else f"where {text}: {column} is empty"
        found = _as_number(cell)
        if holds and found is None:
            raise BadCell(f"{column} is {cell!r}: expected a number, for where {text}")
        if holds:
            kept = holds(found, bound)
        else:
            kept = any(_same(cell, found, value) for value in several) == (sign != "!=")
        return None if kept else f"where {text}: {column} is {cell}"

    return failing


def _same(cell: Any, found: float | None, wanted: str) -> bool:
    """As numbers where both are, else as words."""
    value = None if found is None else _as_number(wanted)
    return str(cell).strip() == wanted if value is None else found == value


def _as_number(cell: Any) -> float | None:
    try:
        return number(cell, "count")
    except BadCell:
        return None
