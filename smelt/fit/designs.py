"""A law and a design in words (budgets, sizes, span, seeds) in; the design's points, its trunks and its price out.

Sizes stand on one ladder, a factor span^(1/(num_sizes-1)) apart, and a budget trains the `num_sizes` steps nearest the
size that the law calls optimal there: what `grid.isoflop` takes. Two kinds train the same points:

    isoflop     every point is a run of its own and costs its budget
    branches    one trunk a size at a constant rate, decayed at the horizon of each budget: with decay fraction f a
                trunk costs (1 - f) of its largest budget and each decay f of its own

so that a budget is size x tokens x FLOPs in both. It knows nothing of noise.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import laws, tables
from smelt.fit.frontier import surface_frontier, surface_optimum

KINDS = ("isoflop", "branches")
# Assumed; that a constant rate with a cooldown does as well as a cosine: Haegele et al. 2024, arXiv 2405.18392.
DECAY_FRAC = 0.1
SIZE_COLUMNS = ("flops_per_token", "num_params")


MOST_OF_A_KIND = 1000  # sizes of a budget, or seeds: no grid has more, and a matrix over the rows must fit in memory


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A grid in words, the same for every group.

    budgets_flops  training FLOPs, smallest first
    num_sizes      at each budget
    span           largest over smallest size of a budget
    seeds          of every run (of every trunk and its decays)
    centre         the middle of a budget's sizes over the size that the law calls optimal
    decay_frac     of a run of "branches"
    """

    kind: str
    budgets_flops: tuple[float, ...]
    num_sizes: int
    span: float
    seeds: int = 1
    centre: float = 1.0
    decay_frac: float = DECAY_FRAC

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"the kind of design is {self.kind!r}; choose one of {', '.join(KINDS)}")
        budgets = tables.positive("budgets_flops", self.budgets_flops)
        if len(budgets) < 2 or (np.diff(budgets) <= 0).any():
            raise BadInput(f"budgets_flops are {self.budgets_flops}; give two or more, smallest first")
        for name, least in (("num_sizes", 2), ("seeds", 1)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= MOST_OF_A_KIND:
                raise BadInput(f"{name} is {value}; give a whole number from {least} to {MOST_OF_A_KIND}")
        if not (math.isfinite(self.span) and self.span > 1):
            raise BadInput(f"span is {self.span}; give the largest over the smallest size, above 1, such as 8")
        if not (math.isfinite(self.centre) and self.centre > 0):
            raise BadInput(f"centre is {self.centre}; give a factor above 0, 1 for sizes about the optimum")
        if not 0 < self.decay_frac <= 1:
            raise BadInput(f"decay_frac is {self.decay_frac}; give a share of a run above 0 and at most 1")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Rows of one group and one seed, as a law sees them.

    columns        size and num_tokens, [num_rows] each
    budgets_flops  of each row
    ladder_index   which step of `ladder` (the sizes) each row has
    trunks         label of the trunk that a row was decayed from, or None: every row a run of its own
    cost_flops     of one group and one seed
    """

    columns: dict[str, np.ndarray]
    budgets_flops: np.ndarray
    ladder: np.ndarray
    ladder_index: np.ndarray
    trunks: np.ndarray | None
    cost_flops: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A law with its numbers, reduced to a size and a token column, and where its loss is least.

    ln size*(C) = log_size_at_one + allocation ln C,  loss*(C) = floor + exp(log_coefficient - exponent ln C)
    """

    law: laws.Law
    parameters: dict[str, float]
    size: str
    flops_per_unit: float
    log_size_at_one: float
    allocation: float
    floor: float
    log_coefficient: float
    exponent: float

    def log_size(self, compute_flops: np.ndarray | float) -> np.ndarray:
        """ln of the optimal size."""
        return self.log_size_at_one + self.allocation * np.log(compute_flops)

    def columns(self, log_size: np.ndarray, compute_flops: np.ndarray) -> dict[str, np.ndarray]:
        """Size and tokens of runs that spend `compute_flops`."""
        log_tokens = np.log(compute_flops / self.flops_per_unit) - log_size
        return {self.size: np.exp(log_size), "num_tokens": np.exp(log_tokens)}

    def reducible(self, compute_flops: np.ndarray | float) -> np.ndarray:
        """The frontier's loss above its floor."""
        return np.exp(self.log_coefficient - self.exponent * np.log(compute_flops))

    def worth(self, saving: float) -> "Ground":
        """The law of a group that saves `saving` of this one's compute at every loss.

        Its sizes and tokens count for (1 - saving)^-allocation and (1 - saving)^(allocation - 1) times as much, which
        leaves the floor, the exponents and the optimal sizes alone.
        """
        if saving == 0:
            return self
        log_worth = {self.size: -self.allocation * math.log1p(-saving)}
        log_worth["num_tokens"] = (self.allocation - 1) * math.log1p(-saving)
        parameters = dict(self.parameters)
        for term in self.law.terms:
            parameters[term.coefficient] *= math.exp(
                sum(p.value(self.parameters) * log_worth[p.column] for p in term.powers)
            )
        return ground(self.law, parameters, self.flops_per_unit)


@dataclasses.dataclass(frozen=True, slots=True)
class _Given:
    """What the frontier's formulas read of a fit that has no rows."""

    law: laws.Law
    parameters: Mapping[str, float]
    draws: None = None
    spread: float = 1.0


def ground(
    law: laws.Law | str,
    parameters: Mapping[str, float],
    flops_per_unit: float | None = None,
    fixed: Mapping[str, float] | None = None,
) -> Ground:
    """Check the numbers of a law and fold columns that a design holds `fixed` (density) into its coefficients.

    Raises BadInput for a missing, unknown or impossible parameter, and for a law without a size and a token term.
    """
    law = laws.law(law)
    if law.effective:
        raise BadInput(f"{law.equation} has no plain size to plan in; give a law of num_params or flops_per_token")
    if "num_tokens" not in law.columns or not set(SIZE_COLUMNS) & set(law.columns):
        raise BadInput(f"{law.equation} has no size term and token term to trade; give chinchilla or flops_tokens")
    for name in parameters:
        if name not in law.parameters:
            raise BadInput(f"{law.equation} has no parameter {name!r}; give {', '.join(law.parameters)}")
    for name in law.parameters:
        if name not in parameters:
            raise BadInput(f"the parameter {name} of {law.equation} is missing; give {name}=VALUE")
        value = parameters[name]
        low_is_open = name != law.floor
        if not math.isfinite(value) or value < 0 or (low_is_open and value == 0 and name in law.coefficients):
            raise BadInput(f"{name} is {value}; a law to plan with needs it {'above' if low_is_open else 'at least'} 0")
    law, values = _folded(law, {name: float(parameters[name]) for name in law.parameters}, fixed or {})
    given = _Given(law, values)
    frontier = surface_frontier(given, compute_range_flops=(1.0, 1.0), flops_per_unit=flops_per_unit)
    log_size = [math.log(surface_optimum(given, c, flops_per_unit=flops_per_unit).size.value) for c in (1.0, math.e)]
    size = next(name for name in SIZE_COLUMNS if name in law.columns)
    return Ground(
        law=law,
        parameters=values,
        size=size,
        flops_per_unit=1.0 if size == "flops_per_token" else float(flops_per_unit or 1.0),
        log_size_at_one=log_size[0],
        allocation=log_size[1] - log_size[0],
        floor=frontier.floor,
        log_coefficient=frontier.log_coefficient,
        exponent=frontier.exponent,
    )


def _folded(law: laws.Law, values: dict[str, float], fixed: Mapping[str, float]) -> tuple[laws.Law, dict[str, float]]:
    terms = []
    for term in law.terms:
        kept = []
        for power in term.powers:
            if power.column in (*SIZE_COLUMNS, "num_tokens"):
                kept.append(power)
            elif power.column not in fixed or not fixed[power.column] > 0:
                raise BadInput(f"the law depends on {power.column!r}; give the value it has, {power.column}=VALUE")
            else:
                values[term.coefficient] *= fixed[power.column] ** power.value(values)
        terms.append(laws.Term(coefficient=term.coefficient, powers=tuple(kept)))
    reduced = laws.Law(name=law.name, floor=law.floor, terms=tuple(terms))
    return reduced, {name: values[name] for name in reduced.parameters}


def layout(
    ground: Ground, budgets_flops: np.ndarray, num_sizes: int, span: float, centre: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ln size [..., rows], which budget [rows], which step of the ladder [rows]) of budgets [..., num_budgets].

    Leading axes are the same budgets times a factor: the steps nearest the optimum are then the same.
    """
    step = math.log(span) / (num_sizes - 1)
    wanted = ground.log_size(budgets_flops) + math.log(centre)
    anchor = wanted.mean(axis=-1, keepdims=True)
    first = (wanted - anchor).reshape(-1, wanted.shape[-1])[0] / step - (num_sizes - 1) / 2
    # Rounded half up with a grain of tolerance, so that rounding errors choose no step.
    start = np.floor(first + 0.5 + 1e-9).astype(int)
    ladder_index = (start[:, None] + np.arange(num_sizes)).ravel()
    return (
        anchor + step * ladder_index,
        np.repeat(np.arange(len(start)), num_sizes),
        ladder_index - ladder_index.min(),
    )


def price(
    kind: str, budgets_flops: np.ndarray, budget_index: np.ndarray, ladder_index: np.ndarray, decay_frac: float
) -> np.ndarray:
    """FLOPs of one group and seed, for budgets [..., num_budgets]."""
    of_rows = budgets_flops[..., budget_index]
    total = of_rows.sum(axis=-1)
    if kind == "isoflop":
        return total
    trunks = sum(of_rows[..., ladder_index == step].max(axis=-1) for step in range(ladder_index.max() + 1))
    return (1 - decay_frac) * trunks + decay_frac * total


def design_points(
    law: laws.Law | str | Ground,
    parameters: Mapping[str, float] | None,
    design: Design,
    *,
    flops_per_unit: float | None = None,
    fixed: Mapping[str, float] | None = None,
) -> Points:
    """The runs of a design under a law: one group, one seed.

    >>> law = {"E": 1.82, "A": 482.0, "B": 2085.0, "alpha": 0.348, "beta": 0.366}
    >>> design = Design(kind="branches", budgets_flops=(1e18, 2e18), num_sizes=3, span=4.0)
    >>> points = design_points("chinchilla", law, design, flops_per_unit=6.0)
    >>> len(points.ladder), f"{points.cost_flops:.2e}"
    (3, '6.30e+18')
    """
    base = law if isinstance(law, Ground) else ground(law, parameters or {}, flops_per_unit, fixed)
    budgets = np.array(design.budgets_flops, dtype=float)
    log_size, budget_index, ladder_index = layout(base, budgets, design.num_sizes, design.span, design.centre)
    of_rows = budgets[budget_index]
    ladder = np.array([math.exp(log_size[ladder_index == step][0]) for step in range(ladder_index.max() + 1)])
    return Points(
        columns=base.columns(log_size, of_rows),
        budgets_flops=of_rows,
        ladder=ladder,
        ladder_index=ladder_index,
        trunks=ladder_index if design.kind == "branches" else None,
        cost_flops=float(price(design.kind, budgets, budget_index, ladder_index, design.decay_frac)),
    )


def standing_points(
    columns: Mapping[str, Sequence | np.ndarray], budgets_flops: Sequence, *, trunks: Sequence | None = None
) -> Points:
    """The runs of one group of a grid that stands: its size and num_tokens columns and what each run cost."""
    names = [name for name in (*SIZE_COLUMNS, "num_tokens") if name in columns]
    arrays = tables.positive_columns(columns, names)
    budgets = tables.positive("budgets_flops", budgets_flops)
    ladder, ladder_index = np.unique(arrays[names[0]], return_inverse=True)
    return Points(
        columns=arrays,
        budgets_flops=budgets,
        ladder=ladder,
        ladder_index=ladder_index,
        trunks=None if trunks is None else np.unique([str(trunk) for trunk in trunks], return_inverse=True)[1],
        cost_flops=float(budgets.sum()),
    )
