"""Columns that were read -> warnings about what no single cell shows: repeats, mixed conventions, units, tokenizers.

Nothing here changes a row. Two ways of counting FLOPs in one table, a budget under another convention, tokens that go
with size, and losses per token of several tokenizers each move a fitted exponent without any residual showing it; the
worse runs of a sweep lift every loss.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.fit.result import Flag
from smelt.foreign.cells import BYTES, SCORES, SECS, TEXTS

# Attention and head move C/(6 N D) by up to 40 % inside one honest table (measured: three ladders of 0.1 to 9B
# parameters); half again is a second way of counting.
MAX_FLOPS_SPREAD = 1.5
CLUSTER_GAP = 1.2  # times between neighbours that makes two clusters
MIN_RATIO_SPAN = 4.0  # times in tokens per parameter: below it nothing tells the two terms of a surface apart
FLOPS_UNIT_BOUND = 20.0  # times off 6 N D: no architecture, but another unit


def duplicate_flags(repeats: Mapping[int, int]) -> list[Flag]:
    if not repeats:
        return []
    row, of = next(iter(repeats.items()))
    message = (
        f"{len(repeats)} rows repeat another in every named column (row {row} is row {of}); each counts as a run of "
        "its own, which makes intervals too narrow: drop duplicates (--drop-duplicates)"
    )
    return [Flag(code="duplicated_rows", message=message)]


def cell_flags(rows: Sequence[tuple[int, Mapping[str, Any]]], loss: str | None) -> list[Flag]:
    """A flag where runs agree in all that is named but the loss: a sweep, or seeds that nobody named."""
    names = [name for name in rows[0][1] if name not in (loss, *SCORES, *SECS, *BYTES)]
    numbers = [name for name in names if name not in TEXTS]
    if loss is None or not numbers or {"seed", "unit"} & set(names):
        return []
    design = [*numbers, *(name for name in ("group", "tokenizer") if name in names)]
    cells: dict[tuple, dict[float, int]] = {}
    for place, values in rows:
        cells.setdefault(tuple(values[name] for name in design), {}).setdefault(values[loss], place)
    repeated = [cell for cell in cells.values() if len(cell) > 1]
    if not repeated:
        return []
    (one, first), (other, second) = itertools.islice(repeated[0].items(), 2)
    message = (
        f"{sum(map(len, repeated))} rows agree with others in {', '.join(design)} and not in the loss (rows {first} "
        f"and {second}: {one:.5g} and {other:.5g}), and each counts as a run of its own: of a sweep keep the best "
        f"(--best-of {' '.join(numbers)}), of seeds name the column (seed=COLUMN)"
    )
    return [Flag(code="repeated_cells", message=message)]


def column_flags(numbers: Mapping[str, np.ndarray], given: Mapping[str, str]) -> list[Flag]:
    """Flags where FLOPs are counted in several ways or in another unit, and where sizes and tokens go together."""
    flags = []
    size = next((name for name in ("num_params_active", "num_params") if name in numbers), None)
    if size is not None and "num_tokens" in numbers:
        ratio = numbers["num_tokens"] / numbers[size]
        span = float(ratio.max() / ratio.min())
        if span < MIN_RATIO_SPAN:
            message = f"tokens per parameter span {span:.3g} times; what size and tokens each do needs 4 times or more"
            flags.append(Flag(code="narrow_ratio", message=message))
        if {"train_flops", "num_tokens"} <= set(given) and size in given:
            flops, sizes, tokens = (numbers[name] for name in ("train_flops", size, "num_tokens"))
            flags += _overflow_flags(flops, sizes, tokens, size) or _flops_flags(flops / (6 * sizes * tokens), size)
    if {"train_flops", "budget_flops"} <= set(given):
        found = clusters(numbers["train_flops"] / numbers["budget_flops"])
        if len(found) > 1:
            flags.append(
                Flag(
                    code="mixed_budgets",
                    message=f"train_flops / budget_flops clusters at {_clusters_in_words(found)}: budgets are counted "
                    "in several ways, their IsoFLOP curves mix",
                )
            )
    return flags


def _overflow_flags(flops: np.ndarray, sizes: np.ndarray, tokens: np.ndarray, size: str) -> list[Flag]:
    """Of 6 N D that somebody multiplied in 64-bit integers, which drop all above 2^64 without a word."""
    exact = [6 * int(n) * int(d) for n, d in zip(sizes, tokens, strict=True)]
    wrapped = [
        row
        for row, product in enumerate(exact)
        if product >= 2**64 and math.isclose(product % 2**64, flops[row], rel_tol=1e-12)
    ]
    if not wrapped:
        return []
    row = wrapped[0]
    message = (
        f"train_flops of {len(wrapped)} of {len(flops)} rows is 6 {size} num_tokens modulo 2^64 (such as "
        f"{flops[row]:.4g} for {float(exact[row]):.4g}): integers overflowed where it was counted, and where it came "
        "out below 0; leave train_flops out and count it again (--flops 6ND)"
    )
    return [Flag(code="mixed_flops", message=message)]


def _flops_flags(ratio: np.ndarray, size: str) -> list[Flag]:
    middle, span = float(np.median(ratio)), float(ratio.max() / ratio.min())
    if not 1 / FLOPS_UNIT_BOUND < middle < FLOPS_UNIT_BOUND:
        message = f"train_flops is {middle:.3g} times 6 {size} num_tokens: another unit? give train_flops=COLUMN*NUMBER"
        return [Flag(code="flops_unit", message=message)]
    found = clusters(ratio)
    if len(found) > 1:
        message = (
            f"train_flops / (6 {size} num_tokens) clusters at {_clusters_in_words(found)}: FLOPs are counted in "
            "several ways; keep one (where), or count them again"
        )
        return [Flag(code="mixed_flops", message=message)]
    if span > MAX_FLOPS_SPREAD:
        message = (
            f"train_flops / (6 {size} num_tokens) goes from {ratio.min():.3g} to {ratio.max():.3g}, a factor of "
            f"{span:.3g}: attention, head and embedding count much here, or FLOPs are counted in several ways"
        )
        return [Flag(code="mixed_flops", message=message)]
    return []


def clusters(ratio: np.ndarray) -> list[tuple[float, int]]:
    """(typical value, rows) of the clusters of a ratio that should be one number: groups that lie further apart than
    each is wide; one cluster where there is no such gap.

    >>> clusters(np.array([3.0, 1.0, 3.0, 1.01]))
    [(1.005, 2), (3.0, 2)]
    """
    logs = np.sort(np.log(ratio))
    parts = np.split(logs, np.flatnonzero(np.diff(logs) > math.log(CLUSTER_GAP)) + 1)
    gaps = [after[0] - before[-1] for before, after in itertools.pairwise(parts)]
    if gaps and max(float(np.ptp(part)) for part in parts) >= min(gaps):
        parts = [logs]
    return [(round(float(np.exp(part.mean())), 4), len(part)) for part in parts]


def _clusters_in_words(found: Sequence[tuple[float, int]]) -> str:
    words = [f"{value:.4g} ({number} rows)" for value, number in found]
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")


def tokenizer_flags(
    path: Path, columns: Mapping[str, str], texts: Mapping[str, Sequence[str]], loss: str | None
) -> list:
    names = list(dict.fromkeys(texts.get("tokenizer", ())))
    if len(names) < 2 or loss is None or loss in ("bits_per_byte", "error"):
        return []
    if loss == "loss_nats":
        raise BadInput(
            f"{path} mixes losses per token of {len(names)} tokenizers ({', '.join(names[:3])}): a token is not the "
            f"same text; give bits_per_byte, or keep one: where {columns['tokenizer']}={names[0]}"
        )
    message = f"rows come from {len(names)} tokenizers ({', '.join(names[:3])}): {loss} must not be per token"
    return [Flag(code="mixed_tokenizers", message=message)]
