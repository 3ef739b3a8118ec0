"""What a fit says: named numbers with intervals, and warnings as data, all of which turn into plain JSON.

An `Estimate` without an interval carries the reason; a `Flag` is a warning with a code that programs test and a
message that people read. Nothing here knows what was fitted.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

# Above this share of draws without a usable value an interval would describe the lucky draws only.
MAX_UNUSABLE_FRAC = 0.05
ROUNDING = 1e-9  # relative: an interval that misses its value by less is that of a value without scatter


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A warning: `code` is stable, `message` is one sentence with the offending value."""

    code: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and how sure it is.

    `low` and `high` bound the central `confidence` share of the draws (percentiles); they and `standard_error`
    are None where they could not be had, and `value` is None where there is none to give; `reason` says why.
    """

    value: float | None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    method: str = ""
    reason: str | None = None


def tail_share(confidence: float = 0.95, spread: float = 1.0) -> float:
    """The share of draws beyond either end of an interval.

    >>> round(tail_share(), 4), round(tail_share(spread=1.1547), 4)
    (0.025, 0.0118)
    """
    normal = statistics.NormalDist()
    return normal.cdf(spread * normal.inv_cdf((1 - confidence) / 2))


def estimate(
    value: float | None,
    draws: np.ndarray | None = None,
    *,
    method: str,
    confidence: float = 0.95,
    spread: float = 1.0,
    reason: str | None = None,
) -> Estimate:
    """`value` with the percentile interval of `draws` [num_draws]; draws that are NaN had no usable value.

    `spread` moves the percentiles out to those of a normal distribution that many times as wide, for draws that are
    known to scatter too little (`intervals.small_sample_spread`); the draws themselves stay as they are.

    Infinite draws are values (a reference that never reaches a loss needs infinite compute) and move the
    percentiles; the standard error is the standard deviation of the finite draws. Fewer draws than have one beyond
    either end (40 for 95 %) give no interval, and an interval that does not hold its value says why in `reason`.
    """
    if value is None or not math.isfinite(value):
        return Estimate(value=None, confidence=confidence, method=method, reason=reason or "not a finite number")
    if draws is None or draws.size == 0:
        return Estimate(value=float(value), confidence=confidence, method=method, reason=reason or "no draws were made")
    unusable_frac = float(np.mean(np.isnan(draws)))
    if unusable_frac > MAX_UNUSABLE_FRAC:
        why = f"{unusable_frac:.0%} of the draws have no usable value, so the interval is unbounded"
        return Estimate(value=float(value), confidence=confidence, method=method, reason=reason or why)
    usable = draws[~np.isnan(draws)]
    finite = usable[np.isfinite(usable)]
    with np.errstate(over="ignore"):  # a few draws may be finite and beyond squaring: the deviation is then infinite
        deviation = float(np.std(finite, ddof=1)) if finite.size > 1 else math.inf
    error = deviation if math.isfinite(deviation) else None
    needed = round(2 / (1 - confidence))  # so that a draw lies beyond either end
    if draws.size < needed:
        why = f"{draws.size} draws do not tell where their outer {1 - confidence:.2g} begins: make {needed} or more"
        return Estimate(
            value=float(value), standard_error=error, confidence=confidence, method=method, reason=reason or why
        )
    # Nearest-rank percentiles: interpolating between a finite and an infinite draw would give NaN.
    tail = tail_share(confidence, spread)
    ends = np.quantile(usable, [tail, 1 - tail], method="nearest").tolist()
    low, high = (float(value) if abs(end - value) <= ROUNDING * abs(value) else end for end in ends)
    if not (math.isfinite(low) and math.isfinite(high)):
        reason = reason or "an end of the interval is infinite"
    elif not low <= value <= high:
        reason = reason or "the value lies outside the percentiles of its draws, which are shifted from it"
    return Estimate(
        value=float(value),
        standard_error=error,
        low=low if math.isfinite(low) else None,
        high=high if math.isfinite(high) else None,
        confidence=confidence,
        method=method,
        reason=reason,
    )


def jsonable(value: Any) -> Any:
    """`value` as plain JSON types: dataclasses and mappings to dicts, arrays to lists, non-finite floats to None.

    Fields of dataclasses named `draws` (arrays of one number a bootstrap draw) are left out: they are as large as the
    fit is small, and are made again from the rows and the seed.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if hasattr(value, "to_json"):  # what holds a law, whose formulas are no JSON, says what to write of it
            return value.to_json()
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "draws"}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
