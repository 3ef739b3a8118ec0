"""Residuals of a fit in, what they still know of columns, of budgets and of one another out, with p-values.

What residuals know of x is asked after everything that the parameters could absorb is taken from x: a score test, the
correlation of psi(r) with x less its projection on J, in Student's t with n - P - 1 degrees of freedom. A law bends in
many directions, and along them its residuals are flat whatever the truth: a plain correlation with x would see nothing.
psi clips at 1.345 standard deviations, whatever the objective: any psi will do once x is orthogonal to J.

Each family of tests flags at p < 0.01 after Bonferroni's correction, so that a good fit is rarely scolded. It does not
know what a pattern means: a law that is wrong, an untuned rate and a shared error look alike in one column.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from smelt.fit.refits import Rows
from smelt.fit.result import Flag

LEVEL = 0.01
MIN_ROWS = 10
MIN_NEIGHBOURS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What residuals know of ln `column`.

    shape         "slope" or "bend" (both partial correlations), or "spread": Spearman's correlation of |residual|
    p_adjusted    times the number of tests of its family (slopes and bends; spreads)
    """

    column: str
    shape: str
    correlation: float
    p_value: float
    p_adjusted: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BudgetEffect:
    """One-way analysis of variance of the residuals by budget, beyond what the parameters absorb."""

    f_statistic: float
    degrees: tuple[int, int]
    p_value: float


def patterns(rows: Rows, reasons: dict[str, str]) -> tuple[Pattern, ...]:
    """Slopes, bends and spreads along every axis of the rows."""
    count = len(rows.losses)
    degrees = count - rows.rank - 1
    if count < MIN_ROWS or degrees < 3:
        reasons["patterns"] = f"{count} rows for {rows.rank} parameters: too few to see a pattern in what is left"
        return ()
    left = rows.absorbed(rows.clipped())
    trends, spreads = [], []
    for name, values in rows.axes.items():
        unit = (values - values.mean()) / values.std()
        for shape, regressor in (("slope", unit), ("bend", unit**2)):
            weighted = np.sqrt(rows.weight) * regressor
            beyond = rows.absorbed(weighted)
            if np.linalg.norm(beyond) < 1e-6 * np.linalg.norm(weighted):
                continue  # the parameters absorb all of it
            correlation = float(beyond @ left / np.linalg.norm(beyond) / np.linalg.norm(left))
            trends.append((name, shape, correlation, _p_value(correlation, degrees)))
        sizes = np.abs(rows.residual) * np.sqrt(rows.weight / np.maximum(1 - rows.leverage, 1e-3))
        correlation = float(np.corrcoef(_ranks(sizes), _ranks(values))[0, 1])
        spreads.append((name, "spread", correlation, _p_value(correlation, count - 2)))
    return tuple(
        Pattern(
            column=name,
            shape=shape,
            correlation=correlation,
            p_value=p,
            p_adjusted=min(1.0, p * len(family)),
        )
        for family in (trends, spreads)
        for name, shape, correlation, p in family
    )


def _p_value(correlation: float, degrees: int) -> float:
    from scipy import special

    t = abs(correlation) * math.sqrt(degrees / max(1 - correlation**2, 1e-15))
    return float(2 * special.stdtr(degrees, -t))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, ties at their mean."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def pattern_flags(found: Sequence[Pattern]) -> list[Flag]:
    flags = []
    seen = sorted((p for p in found if p.p_adjusted < LEVEL), key=lambda p: p.p_value)
    trends = [p for p in seen if p.shape != "spread"]
    if trends:
        worst = trends[0]
        if worst.shape == "bend":
            ends, middle = ("above", "below") if worst.correlation > 0 else ("below", "above")
            how = f"losses lie {ends} the law at both ends of {worst.column} and {middle} it between"
        else:
            how = f"losses {'rise' if worst.correlation > 0 else 'fall'} against the law as {worst.column} grows"
        others = f", and {len(trends) - 1} more such" if len(trends) > 1 else ""
        message = (
            f"{how} (partial correlation {worst.correlation:+.2f}, p = {worst.p_adjusted:.1g}{others}): the law cannot "
            "bend that way; fit a narrower range, try a law with another term, or look for runs that were untuned there"
        )
        flags.append(Flag(code="residual_pattern", message=message))
    spreads = [p for p in seen if p.shape == "spread"]
    if spreads:
        worst = spreads[0]
        how = "more" if worst.correlation > 0 else "less"
        message = (
            f"residuals scatter {how} as {worst.column} grows (rank correlation {worst.correlation:+.2f}, p = "
            f"{worst.p_adjusted:.1g}): profiles and nested tests assume an even scatter; take bootstrap intervals, "
            "which do not, and weigh rows by 1 / variance where seeds tell it"
        )
        flags.append(Flag(code="uneven_scatter", message=message))
    return flags


def budget_effect(rows: Rows, reasons: dict[str, str]) -> BudgetEffect | None:
    """Do runs of one budget miss the law together?"""
    from scipy import special

    if rows.budgets is None:
        reasons["budget_effect"] = "no budgets were given"
        return None
    levels, place = np.unique(rows.budgets, return_inverse=True)
    dummies = np.sqrt(rows.weight)[:, None] * (place[:, None] == np.arange(len(levels)))
    directions, singular, _ = np.linalg.svd(rows.absorbed(dummies), full_matrices=False)
    between = directions[:, singular > 1e-6]
    degrees = between.shape[1], len(rows.losses) - rows.rank - between.shape[1]
    if degrees[0] < 1 or degrees[1] < 2:
        reasons["budget_effect"] = f"{len(levels)} budgets in {len(rows.losses)} rows leave none to tell them apart by"
        return None
    left = rows.absorbed(rows.clipped())
    explained = float(np.sum((between.T @ left) ** 2))
    f = explained / degrees[0] / max((float(left @ left) - explained) / degrees[1], 1e-300)
    return BudgetEffect(f_statistic=f, degrees=degrees, p_value=float(special.fdtrc(*degrees, f)))


def budget_flags(rows: Rows, effect: BudgetEffect | None) -> list[Flag]:
    if effect is None or effect.p_value >= LEVEL:
        return []
    assert rows.budgets is not None
    of_budget: dict = {}
    for budget, unit in zip(rows.budgets.tolist(), rows.units or range(len(rows.losses)), strict=True):
        of_budget.setdefault(budget, set()).add(unit)
    if all(len(units) == 1 for units in of_budget.values()):
        return []  # budgets are resampled whole already
    message = (
        f"runs of one budget miss the law together (F = {effect.f_statistic:.1f} on {effect.degrees[0]} and "
        f"{effect.degrees[1]}, p = {effect.p_value:.1g}): they share an error, so intervals that resample runs are too "
        "narrow; resample whole budgets (units = budgets) or leave them out in turn (jackknife)"
    )
    return [Flag(code="budget_effect", message=message)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Correlation of residuals of rows that differ in tokens only, each with the next; not within one unit."""

    correlation: float
    num_pairs: int
    p_value: float


def neighbours(rows: Rows, reasons: dict[str, str]) -> Neighbours | None:
    """Do rows of one size that follow one another in tokens miss the law alike, as checkpoints of one run do?"""
    from scipy import special

    if "num_tokens" not in rows.columns or len(rows.columns) < 2:
        reasons["neighbours"] = "rows have no tokens to be ordered by"
        return None
    others = [values for name, values in rows.columns.items() if name != "num_tokens"]
    keys = [tuple(f"{values[i]:.9g}" for values in others) for i in range(len(rows.losses))]
    order = sorted(range(len(keys)), key=lambda i: (keys[i], rows.columns["num_tokens"][i]))
    units = rows.units or range(len(keys))
    pairs = [(i, j) for i, j in itertools.pairwise(order) if keys[i] == keys[j] and units[i] != units[j]]
    if len(pairs) < MIN_NEIGHBOURS:
        reasons["neighbours"] = f"{len(pairs)} pairs of rows differ in tokens only; {MIN_NEIGHBOURS} are needed"
        return None
    one, other = rows.clipped()[np.array(pairs).T]
    correlation = float(one @ other / math.sqrt((one @ one) * (other @ other) + 1e-300))
    p = float(special.ndtr(-correlation * math.sqrt(len(pairs))))
    return Neighbours(correlation=correlation, num_pairs=len(pairs), p_value=p)


def neighbour_flags(found: Neighbours | None) -> list[Flag]:
    if found is None or found.p_value >= LEVEL:
        return []
    message = (
        f"rows of one size that follow one another in tokens miss the law alike (correlation {found.correlation:.2f} "
        f"over {found.num_pairs} pairs, p = {found.p_value:.1g}), so intervals that take each row as a run are too "
        "narrow: label checkpoints of one run as one unit; if each row is a run of its own, the law misses these sizes"
    )
    return [Flag(code="rows_not_independent", message=message)]
