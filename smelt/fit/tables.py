"""A user's columns in, float64 arrays of one length out; what cannot be fitted is refused with the offending value.

Logarithms are taken of every column, so each must be finite and above zero. Integers are cast before any product:
6 N D of int64 columns overflows silently above 9.2e18. `rows_of_groups` knows the columns of a table of runs and labels
what is resampled as one.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.fit import traded
from smelt.fit.laws import Law
from smelt.fit.result import Flag

SIZES = ("budget_flops", "num_params", "num_tokens", "train_flops")
CURRENCIES = ("train_secs", "stored_bytes")  # what a run cost besides FLOPs
# Columns are multiplied with one another (6 N D): two numbers inside these ends have a product that is one.
SMALLEST, LARGEST = 1e-150, 1e150
ROUNDED_LOG = 1e-9  # budgets closer than that are one: rounding, and the twelve digits of a file, not a design
ONE_GROUP = "all"  # the name of the rows of a table without groups
# A budget's runs end on whole steps; further from the nominal budget than this, an IsoFLOP curve is not one.
MAX_BUDGET_MISS = 0.02


def positive(name: str, values: Sequence | np.ndarray) -> np.ndarray:
    """`values` as a float64 vector of finite positive numbers, or BadInput with the first that is not."""
    array = numbers(name, values)
    bad = np.flatnonzero(~((array >= SMALLEST) & (array <= LARGEST)))
    if bad.size:
        row = int(bad[0])
        if 0 < array[row] < math.inf:
            raise BadInput(
                f"{name} is {array[row]:g} in row {row}; give it in another unit, {SMALLEST:g} to {LARGEST:g}"
            )
        raise BadInput(f"{name} is {array[row]:g} in row {row}; a fit needs finite numbers above 0: leave the row out")
    return array


def numbers(name: str, values: Sequence | np.ndarray) -> np.ndarray:
    """`values` as a float64 vector, NaN and infinity included; BadInput for anything that is no number a row.

    Truth values, times and complex numbers are refused, which NumPy would turn into numbers, and masked entries, whose
    numbers it would show.
    """
    if not (hasattr(values, "__len__") and hasattr(values, "__getitem__")) or isinstance(values, Mapping):
        raise BadInput(f"{name} is of the type {type(values).__name__}; give a list or an array, one number a row")
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    if mask is not None and mask.any():
        raise BadInput(f"{name} is masked in row {int(np.flatnonzero(mask.ravel())[0])}: leave the row out")
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if kind in "bcmM" or (kind == "O" and any(isinstance(value, bool | np.bool_) for value in values)):
        what = {"c": "complex numbers", "m": "times", "M": "times"}.get(kind, "truth values")
        raise BadInput(f"{name} holds {what}; give one number a row")
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} holds something that is no number: {_first_non_number(values)}") from None
    if array.ndim != 1:
        raise BadInput(f"{name} has shape {array.shape}; give one number a row")
    return array


def number(name: str, value: Any, words: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number between `low` and `high`, both excluded; BadInput with `words` for what should be given."""
    try:
        found = math.nan if isinstance(value, bool | np.bool_ | str | bytes) or np.ndim(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not (math.isfinite(found) and low < found < high):
        raise BadInput(f"{name} is {value!r}; give {words}")
    return found


def asked(name: str, values: Sequence | np.ndarray | float) -> np.ndarray:
    """Points that are asked about, one or several, as a vector of finite numbers above 0."""
    several = [values] if np.ndim(values) == 0 and not isinstance(values, Iterable) else values
    array = numbers(name, several)
    bad = np.flatnonzero(~((array >= SMALLEST) & (array <= LARGEST)))
    if bad.size:
        raise BadInput(f"{name} is {array[bad[0]]:g}; give numbers above 0, {SMALLEST:g} to {LARGEST:g}")
    return array


def labels(name: str, values: Iterable[Hashable], num_rows: int | None = None) -> list:
    """One label a row; BadInput for another number of them, for a missing one (None, NaN), and for lists as labels."""
    found = list(values)
    if num_rows is not None and len(found) != num_rows:
        raise BadInput(f"{name} has {len(found)} labels for {num_rows} rows; give one a row")
    for row, label in enumerate(found):
        try:
            hash(label)
            missing = label is None or bool(label != label)  # NaN, and pandas' NA
        except TypeError:
            missing = type(label).__name__ in ("NAType", "NaTType")
            if not missing:
                raise BadInput(f"{name} is {label!r} in row {row}; a label is a word or a number") from None
        if missing:
            raise BadInput(f"{name} is {label} in row {row}; label every row, or leave it out")
    return found


def places(columns: Sequence[np.ndarray]) -> np.ndarray:
    """The place of each row in the order of its values, first column first; the order of a file does not move it."""
    order = np.lexsort(list(columns)[::-1])
    found = np.empty(len(order), dtype=int)
    found[order] = np.arange(len(order))
    return found


def one_number_a_budget(budgets: np.ndarray) -> np.ndarray:
    """Budgets that differ by rounding alone (6 N D of each row) as one number, the smallest of them.

    >>> float(np.ptp(one_number_a_budget(np.array([1e18, 1e18 * (1 + 1e-14)]))))
    0.0
    """
    order = np.argsort(budgets, kind="stable")
    rising = budgets[order]
    first = np.concatenate([[True], np.diff(np.log(rising)) > ROUNDED_LOG])
    found = np.empty_like(budgets)
    found[order] = rising[first][np.cumsum(first) - 1]
    return found


def _first_non_number(values: Sequence) -> str:
    for value in values:
        try:
            float(value)
        except (TypeError, ValueError, OverflowError):
            return repr(value) if len(repr(value)) < 60 else f"{repr(value)[:50]}..."
    return f"a {type(values).__name__}"


def positive_columns(
    columns: Mapping[str, Sequence | np.ndarray], names: Sequence[str], num_rows: int | None = None
) -> dict[str, np.ndarray]:
    """The named columns through `positive`, all of one length; BadInput names a column that is not there."""
    if isinstance(columns, np.ndarray) or not (hasattr(columns, "__contains__") and hasattr(columns, "keys")):
        raise BadInput(
            f"columns are of the type {type(columns).__name__}; give numbers by column name, a dict or a table"
        )
    checked: dict[str, np.ndarray] = {}
    for name in names:
        if name not in columns:
            raise BadInput(f"there is no column {name!r}; give it, have {', '.join(map(str, columns)) or 'none'}")
        checked[name] = positive(name, columns[name])
        expected = num_rows if num_rows is not None else len(next(iter(checked.values())))
        if len(checked[name]) != expected:
            raise BadInput(f"{name} has {len(checked[name])} rows, the other columns {expected}; give one a run")
    return checked


def duplicates(columns: Mapping[str, np.ndarray]) -> list[Flag]:
    """A flag where rows are equal in every column: they count twice and make intervals too narrow."""
    table = np.stack(list(columns.values()), axis=1)
    unique, counts = np.unique(table, axis=0, return_counts=True)
    if len(unique) == len(table):
        return []
    example = ", ".join(f"{name} {value:g}" for name, value in zip(columns, unique[counts.argmax()], strict=True))
    extra = len(table) - len(unique)
    return [
        Flag(
            code="duplicated_rows",
            message=f"{extra} rows repeat another in every column (such as {example}); each counts as a run of its own",
        )
    ]


def rows_of_groups(
    table: Mapping[str, Sequence], loss_column: str, law: Law, flops_per_unit: float | None
) -> tuple[dict, list[dict], list[Flag], str]:
    """Checked columns, what is left out, flags, and what the bootstrap resamples in words."""
    if flops_per_unit is not None:
        number("flops_per_unit", flops_per_unit, "k of C = k N D, 6 by Chinchilla's count", low=0)
    if "compute_flops" in table and "train_flops" not in table:
        table = {**table, "train_flops": table["compute_flops"]}
    optional = [name for name in (*SIZES, *CURRENCIES) if name in table]
    needed = list(dict.fromkeys([*optional, *_needed(law, table), loss_column]))
    for name in needed:
        if name not in table:
            raise BadInput(f"the table has no column {name!r}; give it, have {', '.join(map(str, table)) or 'none'}")
    table = {name: _listed(name, table[name]) for name in table}
    losses = table[loss_column]
    num_rows = len(losses)
    for name, values in table.items():
        if len(values) != num_rows:
            raise BadInput(f"{name} has {len(values)} rows, {loss_column} {num_rows}; give one a run")
    kept = [i for i, value in enumerate(losses) if value is not None]
    named = table.get("run_id", table.get("row", range(num_rows)))
    groups = [str(g) for g in labels("group", table["group"], num_rows)] if "group" in table else [ONE_GROUP] * num_rows
    left_out = [
        {"row": i, "run_id": named[i], "group": groups[i], "reason": f"{loss_column} is null"}
        for i in range(num_rows)
        if losses[i] is None
    ]
    if not kept:
        raise BadInput(f"no row of {num_rows} has a {loss_column}; there is nothing to fit")
    given = {name: [table[name][i] for i in kept] for name in needed}
    rows: dict[str, Any] = positive_columns(given, list(given))
    if "budget_flops" in rows:
        rows["budget_flops"] = one_number_a_budget(rows["budget_flops"])
    rows["loss_nats"] = rows.pop(loss_column)
    units = traded.units(law, rows)
    units = rows.get("num_params") if units is None else units
    if flops_per_unit is not None and "train_flops" not in rows and units is not None and "num_tokens" in rows:
        rows["train_flops"] = flops_per_unit * units * rows["num_tokens"]
    if {"train_flops", "num_tokens"} <= rows.keys():
        rows["flops_per_token"] = rows["train_flops"] / rows["num_tokens"]
    if "train_flops" in rows and "compute_flops" not in rows:
        rows["compute_flops"] = rows["train_flops"]
    flags = []
    if left_out:
        flags.append(Flag(code="rows_left_out", message=f"{len(left_out)} of {num_rows} rows have no {loss_column}"))
    if "flops_per_token" in table and "flops_per_token" in rows:
        stated = positive("flops_per_token", [table["flops_per_token"][i] for i in kept])
        ratio = rows["flops_per_token"] / stated
        worst = int(np.argmax(np.abs(np.log(ratio))))
        if abs(np.log(ratio[worst])) > 0.02:
            raise BadInput(
                f"flops_per_token is {stated[worst]:.6g} in row {kept[worst]}, where train_flops / num_tokens is "
                f"{rows['flops_per_token'][worst]:.6g}; give training FLOPs per token, forward and backward"
            )
    if {"train_flops", "budget_flops"} <= rows.keys():
        miss = np.abs(np.log(rows["train_flops"] / rows["budget_flops"]))
        if miss.max() > MAX_BUDGET_MISS:
            worst = int(np.argmax(miss))
            flags.append(
                Flag(
                    code="budget_missed",
                    message=f"row {kept[worst]} spent {rows['train_flops'][worst]:.4g} FLOPs of a budget of "
                    f"{rows['budget_flops'][worst]:.4g}; its IsoFLOP curve mixes budgets",
                )
            )
    rows["group"] = np.array([groups[i] for i in kept], dtype=object)
    rows["label"] = [named[i] for i in kept]
    unit_words = _label_units(law, table, rows, kept)
    known = ("budget_flops", "num_params", "num_tokens", "loss_nats", *law.columns)
    checked = {name: rows[name] for name in dict.fromkeys(known) if name in rows}
    checked["group"] = np.unique(rows["group"].astype(str), return_inverse=True)[1].astype(float)
    flags += duplicates(checked)
    return rows, left_out, flags, unit_words


def _needed(law: Law, table: Mapping) -> list[str]:
    """The columns that the law's own are made of."""
    made: list[str] = []
    for column in law.columns:
        if column == "flops_per_token":
            made += ["train_flops", "num_tokens"]
        else:
            made.append("train_flops" if column == "compute_flops" and column not in table else column)
    return made


def _listed(name: str, values: Sequence) -> list:
    """The entries of a column by their place, whatever index a table keeps beside them."""
    if isinstance(values, str | bytes | Mapping) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        raise BadInput(f"{name} is {values!r:.60}; give a list or an array, one entry a run")
    return list(values)


def _label_units(law: Law, table: Mapping[str, Sequence], rows: dict[str, Any], kept: Sequence[int]) -> str:
    """Adds `cell`, by which partners are known, and `unit`, what is resampled as one; returns the latter in words."""

    def named(column: str) -> list[str]:
        found = labels(column, table[column])
        return [str(found[i]) for i in kept]

    if "pair" in table:
        rows["cell"] = named("pair")
    elif "num_params" in rows:
        # Without labels nothing says which runs are partners: groups are then drawn apart.
        rows["cell"] = [f"{g}:{n:.12g}" for g, n in zip(rows["group"], rows["num_params"], strict=True)]
    if "unit" in table:
        rows["unit"] = named("unit")
        return "whole units"
    if "budget_flops" in rows and "cell" in rows:
        rows["unit"] = [f"{b:.12g}|{c}" for b, c in zip(rows["budget_flops"], rows["cell"], strict=True)]
        return "(budget, pair)"
    for column in ("pair", "run_id"):
        if column in table:
            rows["unit"] = named(column)
            return f"rows of one {column}"
    groups = np.unique(rows["group"].astype(str), return_inverse=True)[1]
    rows["unit"] = places([groups, *(rows[name] for name in law.columns), rows["loss_nats"]]).tolist()
    return "rows"
