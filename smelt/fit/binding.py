"""A law and the rows of one or several groups in, the solver's problem and the way back to named parameters out.

    parameters of the problem: ln coefficients, exponents, shapes as `laws.natural_shapes` takes them

In one group every parameter is its own. In several, those in `shared` are one number for all groups and the others one
a group, so that separate fits, common exponents and a common floor are the same problem under another index. It knows
nothing of weights or draws.
"""

import dataclasses
import math
from collections.abc import Collection, Hashable, Mapping

import numpy as np

from smelt.fit import laws, solver
from smelt.fit.objective import Curve, Problem

# How far beyond the range of its starts a positive shape is followed, in logarithms: what moves nothing stops there.
SHAPE_REACH = 10.0
DEAD_SHARE = 1e-9  # of the loss: a term below it at every row changes no digit that was printed
LEAST_FALL, STEEPEST_FALL = 1e-6, 2.5  # exponents of a loss that falls: chosen, beyond any that was seen
NUM_STARTS = 8
NUM_STARTS_WIDE = 48  # where many minima lie as low as one another
NUM_STARTS_SCATTERED = 16  # where more than three exponents and shapes leave a screen coarse


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """index: group -> parameter of the law -> its place in the problem; means: of ln columns, over all rows."""

    law: laws.Law
    problem: Problem
    index: dict[Hashable, dict[str, int]]
    means: dict[str, float]


def bound(
    law: laws.Law,
    log_columns: Mapping[Hashable, Mapping[str, np.ndarray]],
    log_loss: Mapping[Hashable, np.ndarray],
    *,
    delta: float,
    raw: bool = False,
    shared: Collection[str] = (),
    means: Mapping[str, float] | None = None,
) -> Bound:
    """Rows stand in the problem as in `log_loss`, group after group; `means` stands in for those of the rows."""
    index: dict[Hashable, dict[str, int]] = {group: {} for group in log_loss}
    size = 0
    sizes = []
    for names in (law.coefficients, law.exponents, [shape.name for shape in law.shapes]):
        first = next(iter(index.values()))
        for places in index.values():
            for name in names:
                if name in shared and name in first:
                    places[name] = first[name]
                else:
                    places[name] = size
                    size += 1
        sizes.append(size)
    num_coefficients, num_exponents = sizes[0], sizes[1] - sizes[0]
    pooled = {name: np.concatenate([logs[name] for logs in log_columns.values()]) for name in law.columns}
    means = {name: float(values.mean()) for name, values in pooled.items()} if means is None else dict(means)

    num_rows = sum(len(values) for values in log_loss.values())
    num_terms = len(law.coefficients)
    design_KMN = np.zeros((num_terms, num_exponents, num_rows))
    offset_KN = np.zeros((num_terms, num_rows))
    owner_KN = np.zeros((num_terms, num_rows), dtype=int)
    curves = []
    start = 0
    for group, places in index.items():
        rows = slice(start, start + len(log_loss[group]))
        start = rows.stop
        own_KMN = law.design(log_columns[group])
        for m, name in enumerate(law.exponents):
            design_KMN[:, places[name] - num_coefficients, rows] = own_KMN[:, m]
        for k, name in enumerate(law.coefficients):
            owner_KN[k, rows] = places[name]
        _add_offsets(law, log_columns[group], offset_KN[:, rows])
        curves += _curves(law, log_columns[group], rows, places, means)
    return Bound(
        law=law,
        problem=solver.problem(
            design_KMN,
            np.concatenate(list(log_loss.values())),
            delta,
            raw=raw,
            offset_KN=offset_KN if offset_KN.any() else None,
            owner_KN=owner_KN,
            curves=curves,
            bounds_S=[_bounds(shape) for _, shape in _places(law, index)],
        ),
        index=index,
        means=means,
    )


def _places(law: laws.Law, index: Mapping) -> list[tuple[int, laws.Shape]]:
    """(place in the problem, shape), in the problem's order."""
    found = {places[shape.name]: shape for places in index.values() for shape in law.shapes}
    return sorted(found.items(), key=lambda item: item[0])


def _bounds(shape: laws.Shape) -> tuple[float, float]:
    if not shape.positive:
        return (-math.inf, math.inf)
    return (math.log(shape.low) - SHAPE_REACH, math.log(shape.high) + SHAPE_REACH)


def _terms(law: laws.Law) -> list[tuple[int, laws.Term]]:
    return list(enumerate(law.terms, start=0 if law.floor is None else 1))


def _add_offsets(law: laws.Law, logs: Mapping[str, np.ndarray], offset_KN: np.ndarray) -> None:
    logs = {**logs, **{c.name: c.log_value(logs, {}) for c in law.effective if not c.shapes}}
    for k, term in _terms(law):
        for power in term.powers:
            if power.column in logs and not isinstance(power.exponent, str):
                offset_KN[k] += power.value({}) * logs[power.column]


def _curves(law, logs, rows, places, means) -> list[Curve]:
    made = {column.name: column for column in law.effective if column.shapes}
    found = []
    for k, term in _terms(law):
        for power in term.powers:
            if power.column not in made:
                continue
            named = isinstance(power.exponent, str)
            column = made[power.column]

            def log_column(free, column=column):
                return column.log_value(logs, laws.natural_shapes(column.shapes, free, means))

            found.append(
                Curve(
                    term=k,
                    rows=rows,
                    power=float(power.sign) if named else float(power.value({})),
                    exponent=places[power.exponent] if named else None,
                    shapes=tuple(places[shape.name] for shape in column.shapes),
                    log_column=log_column,
                )
            )
    return found


def starts(bound: Bound, weight_N: np.ndarray, *, wide: bool = False) -> np.ndarray:
    """Centred starts [starts, P] from a screen over all exponents and shapes; `wide`, over exponents of no law too."""
    signs, ranges = axes(bound)
    grid_GM = solver.exponent_grid(list(signs.values()), list(ranges.values()), wide=wide)
    num_starts = NUM_STARTS_WIDE if wide else NUM_STARTS if grid_GM.shape[1] <= 3 else NUM_STARTS_SCATTERED
    return solver.screen(bound.problem, grid_GM, weight_N, num_starts)


def degenerate(bound: Bound, parameters_P: np.ndarray) -> bool:
    """Whether a term or the floor has died, or a falling power rises or falls as none does: a minimum among many."""
    problem = bound.problem
    coefficients_Q = solver.centred(problem, parameters_P[None])[0, : problem.num_coefficients]
    falling = [place for place, sign in axes(bound)[0].items() if sign < 0]
    return bool(
        (coefficients_Q < math.log(DEAD_SHARE) + problem.log_loss_N.min()).any()
        or any(not LEAST_FALL < parameters_P[place] < STEEPEST_FALL for place in falling)
    )


def axes(bound: Bound) -> tuple[dict[int, int], dict[int, tuple[float, float]]]:
    """Place in the problem -> sign of an exponent, and -> range of a shape's starts."""
    sign = {p.exponent: p.sign for term in reversed(bound.law.terms) for p in reversed(term.powers)}
    signs = {places[name]: sign[name] for places in bound.index.values() for name in bound.law.exponents}
    ranges = {
        place: (math.log(shape.low), math.log(shape.high)) if shape.positive else (shape.low, shape.high)
        for place, shape in _places(bound.law, bound.index)
    }
    return dict(sorted(signs.items())), ranges


def named(bound: Bound, group: Hashable, parameters_RP: np.ndarray, smallest_loss: float) -> dict[str, np.ndarray]:
    """A group's parameters by name [R], coefficients out of their logarithms; a floor at the solver's bound is the
    zero that it stands for."""
    law, places = bound.law, bound.index[group]
    with np.errstate(over="ignore"):
        found = {name: np.exp(parameters_RP[:, places[name]]) for name in law.coefficients}
    if law.floor is not None:
        found[law.floor] = np.where(found[law.floor] < 1e-9 * smallest_loss, 0.0, found[law.floor])
    found |= {name: parameters_RP[:, places[name]] for name in law.exponents}
    for column in law.effective:
        free = [parameters_RP[:, places[shape.name]] for shape in column.shapes]
        found |= laws.natural_shapes(column.shapes, free, bound.means)
    return {name: found[name] for name in law.parameters}
