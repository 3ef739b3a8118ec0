"""A user's columns in, float64 arrays of one length out; what cannot be fitted is refused with the offending value.

Logarithms are taken of every column, so each must be finite and above zero. Integers are cast before any product:
6 N D of int64 columns overflows silently above 9.2e18.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit.result import Flag


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
