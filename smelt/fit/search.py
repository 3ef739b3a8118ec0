"""A law, its noise, a budget and a wanted width in; designs ranked by cost out, the cheapest that reaches it first.

Every combination of kind, number and ratio of budgets, sizes, span and seeds is priced and its widths are planned
(`planning`), at one compute that the question is asked at. It knows no wall time, no memory, and no size that cannot be
built: a user drops what does not suit.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import laws
from smelt.fit.designs import DECAY_FRAC, KINDS, MOST_OF_A_KIND, Design, ground, layout, price
from smelt.fit.noise import Noise
from smelt.fit.planning import (
    MAX_EXTRAPOLATION,
    MAX_HALF_WIDTH_LOG,
    MAX_RELATIVE_ERROR,
    MIN_TRUNKS,
    fitting_of,
    interval_reach,
    smallest_visible,
)
from smelt.fit.precision import covariances, gain_error, influence, quantities

# What is tried where it is not told: ranges that one meets; 5 sizes or more, as parabolas need.
NUM_BUDGETS, BUDGET_RATIOS = (3, 4, 5, 6, 8, 12), (1.25, 1.5, 2.0, 3.0, 4.0)
NUM_SIZES, SPANS, SEEDS = (5, 7, 9, 13), (4.0, 8.0, 16.0), (1, 2, 3, 5)
SCALES_A_DECADE = 8
COMPARED = ("saving", "smallest_saving")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A design that `cheapest` tried, at the least compute that reaches what was wanted, or comes nearest to it.

    widths    of what was wanted; ratio: the largest of width over wanted width, reached up to 1
    trusted   no exponent's standard error above 30 %, rows for twice the parameters, and ten trunks or more of branches
    """

    design: Design
    num_runs: int
    cost_flops: float
    widths: dict[str, float]
    ratio: float
    smallest_saving: float | None
    trusted: bool

    @property
    def reaches(self) -> bool:
        return self.ratio <= 1


def cheapest(
    law: laws.Law | str,
    parameters: Mapping[str, float],
    noise: Noise,
    budget_flops: float,
    wanted: Mapping[str, float],
    *,
    at_flops: float,
    smallest_budget_flops: float,
    flops_per_unit: float | None = None,
    saving: float = 0.0,
    groups: int = 2,
    objective: str = "huber_log",
    delta: float | str = "auto",
    fixed: Mapping[str, float] | None = None,
    max_extrapolation: float = 1.0,
    kinds: Sequence[str] = KINDS,
    num_budgets: Sequence[int] = NUM_BUDGETS,
    budget_ratios: Sequence[float] = BUDGET_RATIOS,
    num_sizes: Sequence[int] = NUM_SIZES,
    spans: Sequence[float] = SPANS,
    seeds: Sequence[int] = SEEDS,
    decay_frac: float = DECAY_FRAC,
) -> list[Candidate]:
    """Designs that cost at most `budget_flops`, ranked: those that reach what is wanted, the cheapest first.

    `wanted`: name of a quantity (a parameter, or one of allocation, frontier_exponent, size, num_tokens, loss, saving)
    -> the width of its 95 % interval from end to end (relative for what is known by a factor); or smallest_saving ->
    the saving that must be seen with 80 % power. Quantities are those at `at_flops`, and the largest budget lies
    between at_flops / max_extrapolation and at_flops: a smaller grid is always cheaper, and answers another question.
    No budget lies below `smallest_budget_flops`, where the law would be a guess. After those that reach come those
    that do not, by how far they are off; in either part designs that are not to be trusted come last. Raises BadInput
    where none can be paid.
    """
    base = ground(law, parameters, flops_per_unit, fixed)
    fitting = fitting_of(base, noise, at_flops, saving, groups, objective, delta)
    known, size = quantities(base, at_flops), len(base.law.parameters)
    _check_search(known.values, wanted, groups, budget_flops, smallest_budget_flops, max_extrapolation)
    _check_tried(num_budgets=(num_budgets, 2), num_sizes=(num_sizes, 2), seeds=(seeds, 1))
    target = base.worth(saving)
    gain_of = gain_error(base, target, at_flops)
    tops = at_flops / np.geomspace(1.0, max_extrapolation, 1 + round(SCALES_A_DECADE * math.log10(max_extrapolation)))
    found, least = [], math.inf
    for count, ratio, sizes, span in itertools.product(num_budgets, budget_ratios, num_sizes, spans):
        budgets = tops[:, None] * float(ratio) ** np.arange(1.0 - count, 1.0)
        budgets = budgets[budgets[:, 0] >= smallest_budget_flops * (1 - 1e-9)]
        if not len(budgets):
            continue
        log_size, budget_index, ladder_index = layout(base, budgets, sizes, span)
        columns = base.columns(log_size, budgets[:, budget_index])
        own, _ = influence(base, columns, fitting)
        others = own if saving == 0 else influence(target, columns, fitting)[0]
        for kind in kinds:
            trunks = ladder_index if kind == "branches" else None
            with_seeds = covariances(own, others, trunks, fitting)
            cost_of_one = price(kind, budgets, budget_index, ladder_index, decay_frac) * groups
            for repeats in seeds:
                cost, num_rows = cost_of_one * repeats, len(ladder_index) * repeats
                least = min(least, float(cost.min()))
                paid = np.flatnonzero(cost <= budget_flops * (1 + 1e-9))
                if not paid.size or num_rows <= size:
                    continue
                covariance, reach = with_seeds(repeats), interval_reach(trunks, num_rows, repeats, num_rows - size)
                errors = known.errors(covariance["reference"])
                gain = gain_of(covariance) if groups == 2 else None
                widths = {name: _wanted_width(name, errors, gain, reach, known.scales, saving) for name in wanted}
                off = np.max([widths[name] / wanted[name] for name in wanted], axis=0)
                worst = np.max([errors[name] / base.parameters[name] for name in base.law.exponents], axis=0)
                enough = num_rows >= 2 * size and (trunks is None or trunks.max() + 1 >= MIN_TRUNKS)
                trusted = (worst <= MAX_RELATIVE_ERROR) & enough
                order = np.lexsort([off[paid], np.where(off <= 1, cost, np.inf)[paid], ~trusted[paid]])
                best = paid[order[0]]
                found.append(
                    Candidate(
                        design=Design(
                            kind=kind,
                            budgets_flops=tuple(float(b) for b in budgets[best]),
                            num_sizes=sizes,
                            span=float(span),
                            seeds=repeats,
                            decay_frac=decay_frac,
                        ),
                        num_runs=num_rows * groups,
                        cost_flops=float(cost[best]),
                        widths={name: float(width[best]) for name, width in widths.items()},
                        ratio=float(off[best]),
                        smallest_saving=None if gain is None else float(smallest_visible(gain[best])),
                        trusted=bool(trusted[best]),
                    )
                )
    if not found:
        raise BadInput(_unpaid(least, budget_flops, at_flops, smallest_budget_flops))
    # Equal costs: the fewer runs, then the narrower.
    return sorted(
        found,
        key=lambda c: (not c.reaches, not c.trusted, c.cost_flops if c.reaches else c.ratio, c.num_runs, c.ratio),
    )


def _check_search(
    values: Mapping[str, float],
    wanted: Mapping[str, float],
    groups: int,
    budget_flops: float,
    smallest_budget_flops: float,
    max_extrapolation: float,
) -> None:
    for name, value in {"budget_flops": budget_flops, "smallest_budget_flops": smallest_budget_flops}.items():
        if not (math.isfinite(value) and value > 0):
            raise BadInput(f"{name} is {value}; give FLOPs above 0")
    if not 1 <= max_extrapolation <= MAX_EXTRAPOLATION:
        raise BadInput(f"max_extrapolation is {max_extrapolation}; give 1 (none) to {MAX_EXTRAPOLATION:g}")
    known = (*values, *COMPARED)
    if not wanted:
        raise BadInput(f"nothing is wanted; give the width of one or more of {', '.join(known)}")
    for name, width in wanted.items():
        if name not in known:
            raise BadInput(f"no quantity is called {name!r}; choose one of {', '.join(known)}")
        if not (math.isfinite(width) and width > 0):
            raise BadInput(f"the wanted width of {name} is {width}; give a number above 0")
        if groups == 1 and name in COMPARED:
            raise BadInput(f"{name} compares two groups; give groups 2")


def _check_tried(**tried: tuple[Sequence[int], int]) -> None:
    for name, (values, least) in tried.items():
        if not values or any(type(value) is not int or not least <= value <= MOST_OF_A_KIND for value in values):
            raise BadInput(f"{name} is {tuple(values)}; give whole numbers from {least} to {MOST_OF_A_KIND}")


def _unpaid(least: float, budget_flops: float, at_flops: float, smallest_budget_flops: float) -> str:
    if math.isinf(least):
        return (
            f"no grid of budgets fits between {smallest_budget_flops:.3g} and {at_flops:.3g} FLOPs; give a smaller "
            "smallest budget or a larger compute to ask at"
        )
    return (
        f"the cheapest design costs {least:.3g} FLOPs, the budget is {budget_flops:.3g}; give a larger budget, a "
        "smaller compute to ask at, or more extrapolation"
    )


def _wanted_width(
    name: str, errors: Mapping[str, np.ndarray], gain: np.ndarray | None, reach: float, scales: Mapping, saving: float
) -> np.ndarray:
    """What `_width` says of one design, for arrays of them (a floor's interval is not cut at zero)."""
    if name == "smallest_saving":
        assert gain is not None
        return smallest_visible(gain)
    if name == "saving":
        assert gain is not None
        return 2 * (1 - saving) * np.sinh(np.minimum(reach * gain, MAX_HALF_WIDTH_LOG))
    if scales[name] == "log":
        return 2 * np.sinh(np.minimum(reach * errors[name], MAX_HALF_WIDTH_LOG))
    return 2 * reach * errors[name]
