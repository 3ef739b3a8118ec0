"""A law, its noise and a design in; the widths of 95 % intervals, the saving that can be seen and the price out.

Intervals reach t x spread standard errors (`precision`) either side: Student's t of the rows minus the parameters of
one group, and how far the percentiles of a bootstrap are moved out for few rows (`intervals`), as the intervals of the
fits to come are; measured, their widths come out within a tenth of it. Of what is known by a factor they are taken in
logarithms. The smallest saving that a two-sided 5 % test sees in 80 % of grids is 1 - exp(-(z.975 + z.80) s.e.), for
the standard error of ln C_ref - ln C; by the wider intervals it is 1 - exp(-(t x spread + z.80) s.e.). It knows neither
whether the law is true nor what a run costs in seconds; where first order is not to be believed `warnings` say so.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, laws
from smelt.fit.designs import Design, Ground, Points, design_points, ground
from smelt.fit.noise import TRUNK_CORRELATION, Noise
from smelt.fit.precision import Fitting, covariances, gain_error, influence, quantities
from smelt.fit.result import Flag, jsonable
from smelt.fit.surface import AUTO_DELTA, checked_objective

TWO_SIDED, POWERED = 1.959964, 0.841621  # standard normal quantiles .975 and .80
MAX_EXTRAPOLATION = 10.0
MAX_RELATIVE_ERROR = 0.3  # of an exponent: beyond it first order is no picture of the fit (chosen)
MAX_CONDITION = 1e7
MIN_TRUNKS = 10  # measured: intervals from draws of 7 trunks are a third wider than planned, of 11 as planned
MAX_HALF_WIDTH_LOG = 700.0  # the logarithm of the largest float
AUTO_SHARE = AUTO_DELTA / 1.4826  # of Gaussian noise's standard deviation: where the automatic delta settles
SMALLEST_SHARE = 1e-4  # of it: what absolute residuals are reckoned with, and no digit away from their limit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """One quantity and the 95 % interval to expect about its `value`.

    scale           "linear"; "log" of what is known by a factor (coefficients, sizes, tokens); "saving"
    standard_error  of the value; of its logarithm under "log"; of ln C_ref - ln C under "saving"
    width           high - low; relative to the value under "log"
    """

    value: float
    standard_error: float
    low: float
    high: float
    width: float
    scale: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a design can tell.

    widths             the law's parameters; allocation (size* ~ C^allocation), frontier_exponent; size, num_tokens and
                       loss of the optimum at `at_flops`; saving there and saving_at_largest (at the largest budget)
    smallest_saving    seen with 80 % power at `at_flops`; smallest_excess: the same where the target needs more compute
    smallest_saving_by_interval   of which the interval of the fits excludes 0 in 80 % of grids
    chance             of seeing the saving that was assumed, None where that is 0
    inflation          a parameter's standard error over that of least squares
    num_rows           of one group; num_runs and cost_flops are of all groups and seeds
    """

    equation: str
    design: Design | None
    groups: int
    num_rows: int
    num_runs: int
    cost_flops: float
    at_flops: float
    largest_budget_flops: float
    extrapolation: float
    degrees_of_freedom: int
    widths: dict[str, Width]
    smallest_saving: float | None
    smallest_saving_at_largest: float | None
    smallest_saving_by_interval: float | None
    smallest_excess: float | None
    chance: float | None
    inflation: float
    condition_number: float
    warnings: tuple[Flag, ...]

    def to_json(self) -> dict[str, Any]:
        return jsonable({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


def power(
    law: laws.Law | str,
    parameters: Mapping[str, float],
    noise: Noise,
    design: Design | Points,
    *,
    at_flops: float | None = None,
    flops_per_unit: float | None = None,
    saving: float = 0.0,
    groups: int = 2,
    objective: str = "huber_log",
    delta: float | str = "auto",
    fixed: Mapping[str, float] | None = None,
) -> Planned:
    """How wide every interval of a design will be, and the smallest saving that it can see.

    `design` in words, or the points of a grid that stands (`designs.standing_points`). `at_flops` is the compute of
    size, tokens, loss and saving: the largest budget where left out. `saving` is what is assumed to be true.
    `objective` and `delta` are those of the fits to come (`surface`). Raises BadInput for impossible numbers, no more
    rows than parameters, and points that cannot tell the parameters apart.

    >>> from smelt.fit.noise import given_noise
    >>> law = {"E": 1.82, "A": 482.0, "B": 2085.0, "alpha": 0.348, "beta": 0.366}
    >>> design = Design(kind="isoflop", budgets_flops=(1e18, 2e18, 4e18, 8e18), num_sizes=5, span=8.0)
    >>> found = power("chinchilla", law, given_noise(0.002, pair_correlation=0.5), design, flops_per_unit=6.0)
    >>> found.num_runs, f"{found.cost_flops:.2e}", f"{found.smallest_saving:.3f}"
    (40, '1.50e+20', '0.035')
    """
    base = ground(law, parameters, flops_per_unit, fixed)
    points = design_points(base, None, design) if isinstance(design, Design) else design
    if missing := [name for name in (base.size, "num_tokens") if name not in points.columns]:
        raise BadInput(f"the points have no column {missing[0]!r}; give it, have {', '.join(points.columns)}")
    seeds = design.seeds if isinstance(design, Design) else 1
    largest, least = float(points.budgets_flops.max()), float(points.budgets_flops.min())
    at = largest if at_flops is None else at_flops
    fitting = fitting_of(base, noise, at, saving, groups, objective, delta)
    num_rows, num_parameters = len(points.budgets_flops) * seeds, len(base.law.parameters)
    degrees = num_rows - num_parameters
    if degrees < 1:
        raise BadInput(f"{num_rows} rows leave nothing beside {num_parameters} parameters; add budgets, sizes or seeds")
    target = base.worth(saving)
    own, condition = influence(base, points.columns, fitting)
    others = own if saving == 0 else influence(target, points.columns, fitting)[0]
    found = covariances(own, others, points.trunks, fitting)(seeds)
    known, reach = quantities(base, at), interval_reach(points.trunks, num_rows, seeds, degrees)
    widths = {
        name: _width(known.values[name], float(error), reach, known.scales[name], name == base.law.floor)
        for name, error in known.errors(found["reference"]).items()
    }
    smallest = smallest_at_largest = by_interval = excess = chance = None
    if groups == 2:
        gain, gain_at_largest = (float(gain_error(base, target, c)(found)) for c in (at, largest))
        widths["saving"] = _width(saving, gain, reach, "saving")
        widths["saving_at_largest"] = _width(saving, gain_at_largest, reach, "saving")
        smallest, smallest_at_largest = smallest_visible(gain), smallest_visible(gain_at_largest)
        by_interval = -math.expm1(-(reach + POWERED) * gain)
        excess = math.expm1(min((TWO_SIDED + POWERED) * gain, MAX_HALF_WIDTH_LOG))
        chance = _chance(saving, gain) if saving else None
    flags = _warnings(base, points, noise, at, widths, float(condition), num_rows)
    return Planned(
        equation=base.law.equation,
        design=design if isinstance(design, Design) else None,
        groups=groups,
        num_rows=num_rows,
        num_runs=num_rows * groups,
        cost_flops=points.cost_flops * seeds * groups,
        at_flops=at,
        largest_budget_flops=largest,
        extrapolation=max(at / largest, least / at, 1.0),
        degrees_of_freedom=degrees,
        widths=widths,
        smallest_saving=None if smallest is None else float(smallest),
        smallest_saving_at_largest=None if smallest_at_largest is None else float(smallest_at_largest),
        smallest_saving_by_interval=by_interval,
        smallest_excess=excess,
        chance=chance,
        inflation=fitting.inflation,
        condition_number=float(condition),
        warnings=tuple(flags),
    )


def fitting_of(
    base: Ground, noise: Noise, at_flops: float, saving: float, groups: int, objective: str, delta: float | str
) -> Fitting:
    """The fits to come, every number of the question checked."""
    if not (math.isfinite(at_flops) and at_flops > 0):
        raise BadInput(f"at_flops is {at_flops}; give a compute in FLOPs above 0")
    if not (math.isfinite(saving) and saving < 1):
        raise BadInput(f"the saving is {saving}; give a share of compute below 1, such as 0.1 (below 0: a loss)")
    if groups not in (1, 2):
        raise BadInput(f"groups is {groups}; give 2 for a comparison, 1 for a law alone")
    threshold, raw = checked_objective(objective, delta)
    loss = base.floor + float(base.reducible(at_flops))
    sd = float(noise.log_sd(loss)) * (loss if raw else 1.0)
    if delta == "auto" and 0 < threshold < math.inf:
        threshold = AUTO_SHARE * sd
    return Fitting(
        noise=noise, raw=raw, delta=max(threshold, SMALLEST_SHARE * sd), threshold=max(threshold / sd, SMALLEST_SHARE)
    )


def interval_reach(trunks: np.ndarray | None, num_rows: int, seeds: int, degrees: int) -> float:
    """Half an interval in standard errors; the fits draw whole cells, or whole trunks, with all their seeds."""
    from scipy.special import stdtrit

    units = np.arange(num_rows // seeds) if trunks is None else trunks
    return float(stdtrit(degrees, 0.975)) * intervals.small_sample_spread(np.tile(units, seeds)[None], degrees)


def smallest_visible(gain: np.ndarray | float) -> np.ndarray:
    return -np.expm1(-(TWO_SIDED + POWERED) * gain)


def _chance(saving: float, gain: float) -> float:
    from scipy.special import ndtr

    z = abs(math.log1p(-saving)) / gain
    return float(ndtr(z - TWO_SIDED) + ndtr(-z - TWO_SIDED))


def _width(value: float, error: float, reach: float, scale: str, at_least_zero: bool = False) -> Width:
    half = min(reach * error, MAX_HALF_WIDTH_LOG) if scale != "linear" else reach * error
    if scale == "log":
        low, high, width = value * math.exp(-half), value * math.exp(half), 2 * math.sinh(half)
    else:
        if scale == "saving":
            low, high = 1 - (1 - value) * math.exp(half), 1 - (1 - value) * math.exp(-half)
        else:
            low, high = max(value - half, 0.0) if at_least_zero else value - half, value + half
        width = high - low
    return Width(value=value, standard_error=error, low=low, high=high, width=width, scale=scale)


def _warnings(
    base: Ground,
    points: Points,
    noise: Noise,
    at: float,
    widths: Mapping[str, Width],
    condition: float,
    num_rows: int,
) -> Iterator[Flag]:
    largest, smallest = float(points.budgets_flops.max()), float(points.budgets_flops.min())
    outside = max(at / largest, smallest / at)
    if outside > 1 + 1e-9:
        far = outside > MAX_EXTRAPOLATION
        decides = "the law's form decides there, not the runs" if far else "its widths take the law as true there"
        yield Flag(
            code="extrapolated_far" if far else "extrapolated",
            message=f"{at:.3g} FLOPs lie {outside:.3g} times outside the budgets: {decides}",
        )
    for name in base.law.exponents:
        share = widths[name].standard_error / base.parameters[name]
        if share > MAX_RELATIVE_ERROR:
            message = (
                f"{name} would be known to {share:.0%} (one standard error): all widths are guesses, add rows or span"
            )
            yield Flag(code="not_first_order", message=message)
    if base.floor and widths[str(base.law.floor)].standard_error > 0.5 * base.floor:
        yield Flag(
            code="floor_not_identified",
            message=f"{base.law.floor} {base.floor:.3g} would have a standard error of "
            f"{widths[str(base.law.floor)].standard_error:.3g}: many fits will end at 0, which no width here knows",
        )
    if condition > MAX_CONDITION:
        message = f"the condition number is {condition:.1e}: some parameters are hardly told apart"
        yield Flag(code="ill_conditioned", message=message)
    if num_rows < 2 * len(base.law.parameters):
        message = f"{num_rows} rows a group for {len(base.law.parameters)} parameters: widths are rough"
        yield Flag(code="few_rows", message=message)
    sizes = points.columns[base.size]
    for budget in np.unique(points.budgets_flops):
        here, best = sizes[points.budgets_flops == budget], float(np.exp(base.log_size(budget)))
        if len(here) > 1 and not here.min() < best < here.max():
            yield Flag(
                code="optimum_outside",
                message=f"the optimal size {best:.3g} at {budget:.3g} FLOPs lies outside {here.min():.3g} to "
                f"{here.max():.3g}; add {'smaller' if best <= here.min() else 'larger'} sizes",
            )
    num_trunks = MIN_TRUNKS if points.trunks is None else len(np.unique(points.trunks))
    if num_trunks < MIN_TRUNKS:
        message = f"{num_trunks} trunks are few to resample: intervals come out wider than planned, add sizes"
        yield Flag(code="few_trunks", message=message)
    if points.trunks is not None and noise.trunk_correlation is None:
        yield Flag(
            code="trunk_correlation_assumed",
            message=f"rows of one trunk are assumed to share {TRUNK_CORRELATION:g} of their variance: no pilot says",
        )
