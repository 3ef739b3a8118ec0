"""A law and its rows in, BadInput for what cannot be fitted out; the fit as well, and flags for what it cannot carry.

Refused are rows from which some parameter cannot be had at all. Flagged is a fit whose numbers need a reservation. It
knows nothing of intervals.
"""

import math
from collections.abc import Collection, Mapping

import numpy as np

from smelt.errors import BadInput
from smelt.fit import laws, solver
from smelt.fit.binding import DEAD_SHARE, LEAST_FALL, STEEPEST_FALL
from smelt.fit.jets import RULES, Jet, variables
from smelt.fit.result import Flag

SAME_LOG = 1e-9  # what differs by less, in logarithms, is one number


def check_rows(law: laws.Law, arrays: Mapping[str, np.ndarray], losses: np.ndarray, num_parameters: int) -> None:
    """BadInput for fewer rows than parameters, losses that are all one, a column or shape that changes nothing, columns
    that follow another."""
    num_rows = len(next(iter(arrays.values())))
    if num_rows < num_parameters:
        raise BadInput(
            f"{num_rows} rows cannot fix the {num_parameters} parameters of {law.equation}; add runs or fit a law "
            "with fewer"
        )
    if np.ptp(np.log(losses)) < SAME_LOG:
        raise BadInput(f"the loss is {losses[0]:g} in every row; a law needs runs that differ in it")
    plain = {power.column for term in law.terms for power in term.powers if power.column in arrays}
    for name in law.columns:
        if name in plain and np.ptp(np.log(arrays[name])) < SAME_LOG:
            raise BadInput(f"{name} is {arrays[name][0]:g} in every row; a law in {name} needs runs that differ in it")
    logs = {name: np.log(arrays[name]) for name in law.columns}
    apart = {name: logs[name] for name in law.columns if name in plain}
    for column in law.effective:
        log_value = _checked(column, logs)
        if not set(column.of) & plain:
            apart[column.name] = log_value
    if len(apart) > 1:
        _refuse_one_line(apart)


def _checked(column: laws.Effective, logs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The effective column's logarithm in the middle of its shapes' ranges, or at an end where that has none."""
    means = {name: float(values.mean()) for name, values in logs.items()}
    num_rows = len(next(iter(logs.values())))
    for share in (0.5, 0.0, 1.0):
        ends = [
            np.log([shape.low, shape.high]) if shape.positive else (shape.low, shape.high) for shape in column.shapes
        ]
        free = variables([low + share * (high - low) for low, high in ends])
        jet = _computed(column, logs, laws.natural_shapes(column.shapes, free, means))
        log_value = np.broadcast_to(jet.value, num_rows)
        if np.isfinite(log_value).all():
            break
    else:
        row = int(np.flatnonzero(~np.isfinite(log_value))[0])
        at = ", ".join(f"{name} {np.exp(logs[name][row]):g}" for name in column.of)
        raise BadInput(f"{column.name} has no value in row {row} ({at}); it is {column.equation}: leave the row out")
    if np.ptp(log_value) < SAME_LOG:
        raise BadInput(f"{column.name} is the same in every row; give runs that differ in {' or '.join(column.of)}")
    for place, shape in enumerate(column.shapes):
        slope = np.broadcast_to(jet.first.get(place, 0.0), log_value.shape)
        if np.ptp(slope) < SAME_LOG:
            raise BadInput(
                f"{shape.name} changes nothing that these rows show: {column.name} is {column.equation}; give runs "
                f"that differ in {' and '.join(column.of)}, or fit a law without it"
            )
    return log_value


def _computed(column: laws.Effective, logs: Mapping[str, np.ndarray], shapes: Mapping[str, Jet]) -> Jet:
    """The formula's value with derivatives; BadInput where it raises, or gives anything but one number a row."""
    num_rows = len(next(iter(logs.values())))
    own = {name: logs[name] for name in column.of}
    try:
        with np.errstate(all="ignore"):
            found = column.log_value(own, shapes)
            if found is None:
                raise TypeError("it returns None")
            jet = found if isinstance(found, Jet) else Jet(np.asarray(found, dtype=float))
            np.broadcast_to(jet.value, num_rows)
    except Exception as error:  # a user's own code: whatever it raises is about the formula
        raise BadInput(
            f"the formula of {column.name} fails ({type(error).__name__}: {error}): write it in operators and "
            f"{', '.join(sorted(f'np.{ufunc.__name__}' for ufunc in RULES))} of {', '.join(own)} and of "
            f"{', '.join(shapes) or 'no shapes'}"
        ) from error
    return jet


def check_own(law: laws.Law, arrays: Mapping[str, np.ndarray], shared: Collection[str], group: str) -> None:
    """BadInput for rows of a group from which a parameter of its own cannot be had, whatever the other groups show."""
    made = {column.name: column.of for column in law.effective}
    logs = {name: np.log(values) for name, values in arrays.items()}
    floor_is_own = law.floor is not None and law.floor not in shared
    own: dict[str, np.ndarray] = {}
    for term in law.terms:
        bases = [name for power in term.powers for name in made.get(power.column, (power.column,))]
        varies = any(np.ptp(logs[name]) >= SAME_LOG for name in bases)
        bends = [power.exponent for power in term.powers if isinstance(power.exponent, str)]
        free = [name for name in bends if name not in shared]
        if not varies and (free or (floor_is_own and term.coefficient not in shared)):
            what = free[0] if free else f"its {law.floor} apart from its {term.coefficient}"
            raise BadInput(
                f"{group} has one {' and '.join(bases)} in all rows, which cannot show {what}; share it, or give runs "
                "that differ in it"
            )
        own |= {p.column: logs[p.column] for p in term.powers if p.exponent in free and p.column in logs}
    if len(own) > 1:
        _refuse_one_line({f"{name} of {group}": values for name, values in own.items()})


def _refuse_one_line(logs: Mapping[str, np.ndarray]) -> None:
    """BadInput where the columns follow one another: one budget, or one ratio of tokens to size."""
    table = np.stack(list(logs.values()), axis=1)
    unit = (table - table.mean(axis=0)) / table.std(axis=0)
    # A hundredth: whole steps and rounded sizes scatter a single budget by less, two budgets a factor 2 apart by more.
    if np.linalg.svd(unit, compute_uv=False)[-1] / math.sqrt(len(unit)) < 0.01:
        raise BadInput(
            f"{' and '.join(logs)} follow one another in all {len(unit)} rows (one budget, or one ratio); a law that "
            "tells them apart needs runs off that line"
        )


def diagnosed(
    law: laws.Law,
    parameters: Mapping[str, float],
    losses: np.ndarray,
    arrays: Mapping[str, np.ndarray],
    proof: solver.Certificate,
) -> list[Flag]:
    """What a fit cannot carry."""
    flags = []
    predicted = laws.predicted_loss(law, parameters, arrays)
    logs = laws.log_columns(law, parameters, arrays)
    if not proof.certified:
        flags.append(Flag(code="not_certified", message=f"the minimum of {law.name} is not proven: {proof.why_not}"))
    if len(losses) < 2 * len(law.parameters):
        flags.append(
            Flag(
                code="few_rows", message=f"{len(losses)} rows for {len(law.parameters)} parameters: intervals are rough"
            )
        )
    if law.floor is not None and parameters[law.floor] < 0.02 * losses.min():
        flags.append(
            Flag(
                code="floor_not_identified",
                message=f"{law.floor} is {parameters[law.floor]:.3g}, next to nothing of the smallest loss "
                f"{losses.min():.4g}: the rows do not show an irreducible loss, extrapolate with care",
            )
        )
    for term in law.terms:
        columns = " and ".join(power.column for power in term.powers)
        if float(np.max(laws.term_loss(term, parameters, logs) / predicted)) < DEAD_SHARE:
            message = f"the term of {term.coefficient} ended at zero: the rows show nothing of {columns} in it"
            flags.append(Flag(code="exponent_implausible", message=message))
            continue
        for power in term.powers:
            if power.sign > 0 or not isinstance(power.exponent, str):
                continue
            value = parameters[power.exponent]
            if not LEAST_FALL < value < STEEPEST_FALL:
                seen = "a fall steeper than any that was seen" if value > LEAST_FALL else "no fall is seen"
                message = f"{power.exponent} is {value:.3g}: {seen} with {power.column}"
                flags.append(Flag(code="exponent_implausible", message=message))
    for shape in law.shapes:
        value = parameters[shape.name]
        if shape.positive and not shape.low / 100 < value < 100 * shape.high:
            flags.append(
                Flag(
                    code="shape_not_identified",
                    message=f"{shape.name} is {value:.3g}, far outside {shape.low:g} to {shape.high:g}: the rows do "
                    "not show the curve that it describes",
                )
            )
    if proof.condition_number > 1e7:
        flags.append(
            Flag(
                code="ill_conditioned",
                message=f"the condition number is {proof.condition_number:.1e}: some parameters are not told apart by "
                "these rows, only their combination",
            )
        )
    for name, values in arrays.items():
        if 1 < values.max() / values.min() < 4:
            flags.append(
                Flag(
                    code="narrow_range",
                    message=f"{name} spans {values.max() / values.min():.2g} times; its exponent needs 4 or more",
                )
            )
    return flags
