"""A user's columns in, float64 arrays of one length out; what cannot be fitted is refused with the offending value.

Logarithms are taken of every column, so each must be finite and above zero. Integers are cast before any product:
6 N D of int64 columns overflows silently above 9.2e18. `rows_of_groups` knows the columns of a table of runs and labels
what is resampled as one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.fit.laws import Law
from smelt.fit.result import Flag

SIZES = ("budget_flops", "num_params", "num_tokens", "train_flops")
CURRENCIES = ("train_secs", "stored_bytes")  # what a run cost besides FLOPs
ONE_GROUP = "all"  # the name of the rows of a table without groups
# A budget's runs end on whole steps; further from the nominal budget than this, an IsoFLOP curve is not one.
MAX_BUDGET_MISS = 0.02


def positive(name: str, values: Sequence | np.ndarray) -> np.ndarray:
    """`values` as a float64 vector of finite positive numbers, or BadInput with the first that is not."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadInput(f"{name} holds something that is no number: {_first_non_number(values)!r}") from None
    if array.ndim != 1:
        raise BadInput(f"{name} has shape {array.shape}; give one number a row")
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if bad.size:
        row = int(bad[0])
        raise BadInput(f"{name} is {array[row]:g} in row {row}; a fit needs finite numbers above 0: leave the row out")
    return array


def _first_non_number(values: Sequence) -> object:
    for value in values:
        try:
            float(value)
        except (TypeError, ValueError):
            return value
    return values


def positive_columns(
    columns: Mapping[str, Sequence | np.ndarray], names: Sequence[str], num_rows: int | None = None
) -> dict[str, np.ndarray]:
    """The named columns through `positive`, all of one length; BadInput names a column that is not there."""
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
    optional = [name for name in (*SIZES, *CURRENCIES) if name in table]
    needed = list(dict.fromkeys([*optional, *_needed(law, table), loss_column]))
    for name in needed:
        if name not in table:
            raise BadInput(f"the table has no column {name!r}; give it, have {', '.join(table) or 'none'}")
    num_rows = len(table[loss_column])
    for name in table:
        if len(table[name]) != num_rows:
            raise BadInput(f"{name} has {len(table[name])} rows, {loss_column} {num_rows}; give one a run")
    losses = list(table[loss_column])
    kept = [i for i, value in enumerate(losses) if value is not None]
    labels = list(table.get("run_id", table.get("row", range(num_rows))))
    groups = [str(group) for group in table["group"]] if "group" in table else [ONE_GROUP] * num_rows
    left_out = [
        {"row": i, "run_id": labels[i], "group": groups[i], "reason": f"{loss_column} is null"}
        for i in range(num_rows)
        if losses[i] is None
    ]
    if not kept:
        raise BadInput(f"no row of {num_rows} has a {loss_column}; there is nothing to fit")
    numbers = {name: [table[name][i] for i in kept] for name in needed}
    rows: dict[str, Any] = positive_columns(numbers, list(numbers))
    rows["loss_nats"] = rows.pop(loss_column)
    if flops_per_unit is not None and "train_flops" not in rows and {"num_params", "num_tokens"} <= rows.keys():
        rows["train_flops"] = flops_per_unit * rows["num_params"] * rows["num_tokens"]
    if {"train_flops", "num_tokens"} <= rows.keys():
        rows["flops_per_token"] = rows["train_flops"] / rows["num_tokens"]
    if "train_flops" in rows and "compute_flops" not in rows:
        rows["compute_flops"] = rows["train_flops"]
    flags = []
    if left_out:
        flags.append(Flag(code="rows_left_out", message=f"{len(left_out)} of {num_rows} rows have no {loss_column}"))
    if "flops_per_token" in table and "flops_per_token" in rows:
        given = positive("flops_per_token", [table["flops_per_token"][i] for i in kept])
        ratio = rows["flops_per_token"] / given
        worst = int(np.argmax(np.abs(np.log(ratio))))
        if abs(np.log(ratio[worst])) > 0.02:
            raise BadInput(
                f"flops_per_token is {given[worst]:.6g} in row {kept[worst]}, where train_flops / num_tokens is "
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
    rows["label"] = [labels[i] for i in kept]
    unit_words = _label_units(table, rows, kept)
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


def _label_units(table: Mapping[str, Sequence], rows: dict[str, Any], kept: Sequence[int]) -> str:
    """Adds `cell`, by which partners are known, and `unit`, what is resampled as one; returns the latter in words."""

    def named(column: str) -> list[str]:
        return [str(table[column][i]) for i in kept]

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
    rows["unit"] = list(range(len(kept)))
    return "rows"
