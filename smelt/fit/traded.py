"""A law of any form and a compute in; the size, tokens and loss that are best there, and the compute of a loss, out.

At a compute C every column of a law follows one size s, whose FLOPs per token are u s:

    ln tokens = ln C - ln u - ln s,   ln column = offset + power ln s        (power 0: a column that is held)
    loss*(C)  = floor + exp(min over ln s of f(ln s, ln C)),   f the logarithm of all terms that move

The least f is looked for on a grid of sizes far beyond the rows and finished by Newton's steps inside the valley; its
derivatives are exact (`jets`). Along the frontier df*/d ln C is the partial derivative of f, which inverts it the same
way. Where f falls to an end of the grid there is nothing to trade, and no number.

What u s is: flops_per_token itself; flops_per_unit times num_params; times num_params_active where a law has them, or
where it has a density beside all parameters (num_params = active / density); times num_params_once + num_passes
num_params_recurrent of a looped model, whose size is num_params = once + recurrent. It does not know attention, whose
FLOPs per parameter differ between shapes of one size, nor whether a size that is best can be built.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.fit import jets, laws
from smelt.fit.result import Estimate, Flag, estimate, jsonable

SHARE, RATIO = "recurrent_share", "total_per_active"
REACH_LOG = 25.0  # sizes are looked for that many e-folds either side of the rows, more at other computes
GRID_POINTS = 51
COMPUTE_REACH_LOG = 120.0  # a loss is looked for that many e-folds of compute either side of the rows
MAX_STEPS = 60  # bisection alone, where no Newton step is taken, ends at a relative 1e-15 of the bracket
SETTLED = 1e-13
CROSSING_NODES = 41
FLAT = 1.01  # times the least compute: sizes that cost no more are as good
NO_OPTIMUM = "at a fixed compute the loss falls to one end of all sizes: there is nothing to trade"


def outside(value: float, covered: tuple[float, float]) -> float:
    """The factor by which `value` lies outside the range `covered`, 1 inside; infinite where it is too small to be
    a number."""
    return float(max(value / covered[1], covered[0] / value, 1.0)) if value > 0 else float("inf")


def estimates(
    values: Mapping[str, Any],
    draws: Mapping[str, np.ndarray] | None,
    *,
    names: Sequence[str],
    method: str,
    spread: float = 1.0,
    reason: str | None = None,
) -> dict[str, Estimate]:
    """A frontier's numbers with their intervals; no interval of a floor that ends at zero in next to every draw."""
    found = {
        name: estimate(
            float(values[name]), None if draws is None else draws[name], method=method, spread=spread, reason=reason
        )
        for name in names
    }
    floor = found.get("floor")
    if floor is not None and floor.low == floor.high == 0.0:
        why = "the floor is at its bound, zero, in next to every draw: how far above it could lie they do not tell"
        found["floor"] = dataclasses.replace(floor, standard_error=None, low=None, high=None, reason=why)
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """How a law's columns follow a size and a compute.

    size_column     what the size is called
    flops_per_size  u of C = u size tokens
    columns         column -> (offset, power) of ln column = offset + power ln size; all but the tokens
    """

    size_column: str
    flops_per_size: float
    columns: dict[str, tuple[float, float]]


def trade(law: laws.Law, flops_per_unit: float | None, fixed: Mapping[str, float]) -> Trade:
    """What a law trades at a fixed compute, with its other columns held at `fixed`.

    Beside columns `fixed` has recurrent_share, the share of a looped model's parameters that every pass uses, and
    total_per_active, stored over active parameters. Raises BadInput for what lacks, and for a law without tokens or
    without a size.

    >>> found = trade(laws.ISO_DEPTH, 6.0, {"num_passes": 2.0, "recurrent_share": 0.5})
    >>> found.size_column, found.flops_per_size
    ('num_params', 9.0)
    """
    size, given = size_column(law), dict(fixed)
    if size is None:
        raise BadInput(f"{law.equation} has no size and tokens to trade; fit a law in both")
    for name, value in given.items():
        if not (np.isfinite(value) and value > 0):
            raise BadInput(f"{name} is held at {value}; give a number above 0")
    if size == "flops_per_token" and flops_per_unit not in (None, 1.0):
        raise BadInput(f"flops_per_unit is {flops_per_unit}, but C = flops_per_token x num_tokens; leave it out")
    if size != "flops_per_token" and not (flops_per_unit is not None and 0 < flops_per_unit < float("inf")):
        raise BadInput(
            f"a law in num_params needs flops_per_unit, k of C = k N D (6 by Chinchilla's count); got {flops_per_unit}"
        )
    per_size = 1.0 if size == "flops_per_token" else float(flops_per_unit or 0.0)

    def held(name: str, what: str) -> float:
        if name not in given:
            raise BadInput(f"the frontier depends on {what}; give its value as {name}=...")
        return float(given.pop(name))

    def traded(*names: str, instead: str = "leave it out") -> None:
        for name in (*names, "num_tokens"):
            if name in given:
                raise BadInput(
                    f"{name} is held at {given[name]:g}, but it goes with the size that is traded; {instead}"
                )

    bound: dict[str, tuple[float, float]] = {}
    if _is_looped(law):
        traded("num_params_once", "num_params_recurrent", instead=f"give {SHARE}, the loop's share of all parameters")
        passes, share = held("num_passes", "'num_passes'"), held(SHARE, "the loop's share of all parameters")
        if share >= 1:
            raise BadInput(f"{SHARE} is {share:g}; give the loop's share of all parameters, below 1")
        per_size *= 1 - share + passes * share
        bound = {
            "num_passes": (float(np.log(passes)), 0.0),
            "num_params_once": (float(np.log1p(-share)), 1.0),
            "num_params_recurrent": (float(np.log(share)), 1.0),
        }
    elif "num_params_active" in law.columns:
        # FLOPs go with active parameters: stored ones alone would be free, and the best number of them infinite.
        instead = f"give {RATIO}, how many are stored for each that is active"
        traded("num_params_active", "num_params", instead=instead)
        bound["num_params_active"] = (0.0, 1.0)
        if "num_params" in law.columns:
            ratio = held(RATIO, "how many parameters are stored for each that is active")
            bound["num_params"] = (float(np.log(ratio)), 1.0)
    elif size == "num_params_active":
        traded("num_params")
        density = float(np.log(held("density", "'density'")))
        bound = {"density": (density, 0.0), "num_params": (-density, 1.0)}
    else:
        traded(size)
        bound[size] = (0.0, 1.0)
    for name in law.columns:
        if name not in bound and name != "num_tokens":
            bound[name] = (float(np.log(held(name, repr(name)))), 0.0)
    if given:
        name, value = next(iter(given.items()))
        raise BadInput(f"{name}={value:g} is no column that {law.equation} leaves open; leave it out")
    return Trade(size_column=size, flops_per_size=per_size, columns=bound)


def size_column(law: laws.Law) -> str | None:
    """What a law's size is called; None for a law without a size or without tokens."""
    columns = set(law.columns)
    if "num_tokens" not in columns:
        return None
    if "flops_per_token" in columns:
        return "flops_per_token"
    if "num_params_active" in columns or (_is_sparse(law) and not is_closed(law)):
        return "num_params_active"
    return "num_params" if "num_params" in columns or _is_looped(law) else None


def _is_looped(law: laws.Law) -> bool:
    return {"num_params_once", "num_params_recurrent", "num_passes"} <= set(law.columns)


def _is_sparse(law: laws.Law) -> bool:
    return {"num_params", "density"} <= set(law.columns)


def units(law: laws.Law, columns: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """What flops_per_unit multiplies, row by row; None where the rows have no such column, or it is 1 by definition."""
    size = size_column(law)
    if size is None or size == "flops_per_token":
        return None
    if _is_looped(law):
        return columns["num_params_once"] + columns["num_passes"] * columns["num_params_recurrent"]
    if size not in law.columns:
        return columns["num_params"] * columns["density"]
    return columns[size]


def is_closed(law: laws.Law) -> bool:
    """Is its frontier E + A C^-alpha, in closed form? Where it has one term of size and one of tokens, and no more."""
    size = next((name for name in ("flops_per_token", "num_params") if name in law.columns), None)
    if size is None or "num_params_active" in law.columns or len(law.terms) != 2:
        return False
    both = [[term for term in law.terms if name in {p.column for p in term.powers}] for name in (size, "num_tokens")]
    return all(len(terms) == 1 for terms in both) and both[0][0] is not both[1][0] and not law.effective


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Valley:
    """f of one law under a trade. middle: ln size and ln compute that grids are laid around.

    Its functions take parameters by name, numbers or arrays [num_draws, 1], and ln compute that broadcasts with them.
    """

    law: laws.Law
    trade: Trade
    middle: tuple[float, float]

    def floor(self, parameters: Mapping[str, Any]) -> np.ndarray:
        """What no size and no tokens take off: E and terms of held columns alone."""
        floor = np.asarray(0.0 if self.law.floor is None else parameters[self.law.floor], dtype=float)
        logs = self._logs(parameters, 0.0, 0.0)
        for term in self.law.terms:
            if not self._moves(term):
                with np.errstate(over="ignore"):
                    floor = floor + np.exp(_log_term(term, parameters, logs))
        return floor

    def log_excess(self, parameters: Mapping[str, Any], log_size: Any, log_compute: Any) -> Any:
        """f: ln (loss - floor)."""
        logs = self._logs(parameters, log_size, log_compute)
        total: Any = None
        for term in self.law.terms:
            if self._moves(term):
                value = _log_term(term, parameters, logs)
                total = value if total is None else np.logaddexp(total, value)
        return total

    def log_best(self, parameters: Mapping[str, Any], log_compute: Any) -> np.ndarray:
        """ln size of least loss; NaN where f falls to an end of the grid."""
        centre = self.middle[0] + 0.5 * (log_compute - self.middle[1])
        reach = REACH_LOG + 0.5 * np.abs(log_compute - self.middle[1])
        step = 2 * reach / (GRID_POINTS - 1)
        shape = np.broadcast_shapes(*(np.shape(value) for value in parameters.values()), np.shape(log_compute))
        least, place = np.full(shape, np.inf), np.zeros(shape)
        with np.errstate(all="ignore"):  # of a draw whose parameters leave the formula's domain: it comes out as NaN
            for index in range(GRID_POINTS):
                here = self.log_excess(parameters, centre - reach + index * step, log_compute)
                lower = here < least
                least, place = np.where(lower, here, least), np.where(lower, index, place)
            start = centre - reach + place * step
            inside = (place > 0) & (place < GRID_POINTS - 1) & np.isfinite(least)
            found = self._descended(parameters, log_compute, start, start - step, start + step)
        return np.where(inside, found, np.nan)

    def _descended(
        self, parameters: Mapping[str, Any], log_compute: Any, start: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> np.ndarray:
        """Where f's slope is zero between low and high: Newton's steps, or half the bracket where they leave it."""
        x = start
        for _ in range(MAX_STEPS):
            f = self.log_excess(parameters, jets.variables([x])[0], log_compute)
            slope, bend = f.first[0], f.second.get((0, 0), 0.0)
            low, high = np.where(slope < 0, x, low), np.where(slope < 0, high, x)
            there = x - slope / bend
            there = np.where((there >= low) & (there <= high) & (bend > 0), there, 0.5 * (low + high))
            moved = np.abs(there - x) > SETTLED * (1 + np.abs(x))
            x = there
            if not np.any(moved):
                break
        return x

    def log_compute(self, parameters: Mapping[str, Any], loss: Any) -> np.ndarray:
        """ln compute at which the frontier has a loss: infinite where it never has, NaN without an optimum."""
        with np.errstate(all="ignore"):
            above = np.asarray(loss - self.floor(parameters))
            wanted = np.where(above > 0, np.log(above), np.nan)
            low = np.full(wanted.shape, self.middle[1] - COMPUTE_REACH_LOG)
            high = low + 2 * COMPUTE_REACH_LOG
            end = self.log_excess(parameters, self.log_best(parameters, high), high)
            never = (above <= 0) | (end >= wanted)
            u = np.full(wanted.shape, self.middle[1])
            x = self.log_best(parameters, u)
            for _ in range(MAX_STEPS):
                size, compute = jets.variables([x, u])
                f = self.log_excess(parameters, size, compute)
                gap = f.value - wanted
                low, high = np.where(gap > 0, u, low), np.where(gap > 0, high, u)
                there = u - gap / f.first[1]
                there = np.where((there >= low) & (there <= high), there, 0.5 * (low + high))
                moved = ~never & np.isfinite(gap) & (np.abs(there - u) > SETTLED * (1 + np.abs(u)))
                u = there
                if not np.any(moved):
                    break
                x = self._descended(parameters, u, x, x - 2 * REACH_LOG, x + 2 * REACH_LOG)
            # A valley that was followed from elsewhere may not be the lowest here.
            lowest = self.log_excess(parameters, self.log_best(parameters, u), u)
            u = np.where(np.abs(lowest - wanted) < 1e-9 * (1 + np.abs(wanted)), u, np.nan)
            return np.where(never, np.where(np.isnan(end), np.nan, np.inf), u)

    def flat(self, parameters: Mapping[str, float], log_compute: float, log_best: float) -> tuple[float, float] | None:
        """ln of the smallest and the largest size that reach the least loss with `FLAT` times its compute."""
        level = self.log_excess(parameters, log_best, log_compute)
        more = log_compute + np.log(FLAT)
        inner = float(self.log_best(parameters, more))
        if not np.isfinite(inner):
            return None
        ways = np.array([-1.0, 1.0])
        low, high = np.zeros(2), np.full(2, 2 * REACH_LOG)
        for _ in range(MAX_STEPS):
            half = 0.5 * (low + high)
            below = self.log_excess(parameters, inner + ways * half, more) < level
            low, high = np.where(below, half, low), np.where(below, high, half)
        found = inner + ways * low
        return float(found[0]), float(found[1])

    def column_values(self, size: float, num_tokens: float) -> dict[str, float]:
        """Every column of the law at a size and tokens."""
        columns = self.trade.columns.items()
        found = {name: float(np.exp(offset) * size**power) for name, (offset, power) in columns}
        return {**found, "num_tokens": num_tokens}

    def _logs(self, parameters: Mapping[str, Any], log_size: Any, log_compute: Any) -> dict[str, Any]:
        logs: dict[str, Any] = {
            name: offset + power * log_size if power else np.asarray(offset)
            for name, (offset, power) in self.trade.columns.items()
        }
        logs["num_tokens"] = log_compute - np.log(self.trade.flops_per_size) - log_size
        for column in self.law.effective:
            logs[column.name] = column.log_value(logs, parameters)
        return logs

    def _moves(self, term: laws.Term) -> bool:
        of = {column.name: column.of for column in self.law.effective}
        bases = {base for power in term.powers for base in of.get(power.column, (power.column,))}
        return any(base == "num_tokens" or self.trade.columns[base][1] for base in bases)


def _log_term(term: laws.Term, parameters: Mapping[str, Any], logs: Mapping[str, Any]) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        value: Any = np.log(parameters[term.coefficient])
    for power in term.powers:
        value = value + power.value(parameters) * logs[power.column]
    return value


def valley(
    law: laws.Law, flops_per_unit: float | None, fixed: Mapping[str, float], covered: Mapping[str, tuple[float, float]]
) -> Valley:
    """`covered` are the columns' ranges in the rows, which grids are laid around; a law that was given has none."""
    found = trade(law, flops_per_unit, fixed)
    log_u = float(np.log(found.flops_per_size))
    middles = {name: 0.5 * float(np.log(ends[0]) + np.log(ends[1])) for name, ends in covered.items()}
    sizes = [(middles[n] - offset) / power for n, (offset, power) in found.columns.items() if power and n in middles]
    if not sizes or "num_tokens" not in middles:
        return Valley(law=law, trade=found, middle=(-0.5 * log_u, 0.0))
    size = float(np.mean(sizes))
    return Valley(law=law, trade=found, middle=(size, log_u + size + middles["num_tokens"]))


def columns_of_draws(draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draws [num_draws] as columns [num_draws, 1], which broadcast against computes."""
    return {name: np.asarray(values, dtype=float)[:, None] for name, values in draws.items()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TradedFrontier:
    """The least loss of a law against compute, found number by number; it answers what a `Frontier` answers.

    point, draws    the law's parameters by name; draws [num_draws], or None
    floor           what the loss falls to with compute without end
    """

    kind: str
    valley: Valley
    point: dict[str, float]
    floor: float
    compute_range_flops: tuple[float, float]
    estimates: dict[str, Estimate]
    warnings: tuple[Flag, ...] = ()
    spread: float = 1.0
    draws: dict[str, np.ndarray] | None = dataclasses.field(default=None, repr=False)

    def loss(self, compute_flops: np.ndarray | float) -> np.ndarray:
        """Frontier loss at compute, in the unit of the fitted losses; NaN where it has no optimum."""
        return least(self.valley, self.point, np.log(compute_flops))

    def loss_draws(self, compute_flops: Sequence | np.ndarray) -> np.ndarray | None:
        """The same for every draw: [num_draws, num_compute]."""
        if self.draws is None:
            return None
        return least(self.valley, columns_of_draws(self.draws), np.log(np.asarray(compute_flops, dtype=float)))

    def compute(self, loss: np.ndarray | float) -> np.ndarray:
        """The compute at which the frontier has this loss; infinite at or below its floor."""
        return _exp(self.valley.log_compute(self.point, np.asarray(loss, dtype=float)))

    def compute_draws(self, loss_R: np.ndarray) -> np.ndarray | None:
        """The same for every draw, each at a loss of its own, [num_losses] of no more losses than draws."""
        if self.draws is None:
            return None
        own = {name: values[: len(loss_R)] for name, values in self.draws.items()}
        return _exp(self.valley.log_compute(own, loss_R))

    def outside(self, compute_flops: float) -> float:
        """The factor by which a compute lies outside the data, 1 inside."""
        return outside(compute_flops, self.compute_range_flops)

    def to_json(self) -> dict:
        """What is written of it: no law, parameters or draws, which stand with the surface."""
        names = ("kind", "floor", "compute_range_flops", "estimates", "warnings", "spread")
        return jsonable({name: getattr(self, name) for name in names})


def _exp(log_compute: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.exp(log_compute)


def least(valley: Valley, parameters: Mapping[str, Any], log_compute: Any) -> np.ndarray:
    """The least loss at ln compute."""
    best = valley.log_best(parameters, log_compute)
    with np.errstate(all="ignore"):
        return valley.floor(parameters) + np.exp(valley.log_excess(parameters, best, log_compute))


def traded_frontier(
    law: laws.Law,
    parameters: Mapping[str, float],
    draws: Mapping[str, np.ndarray] | None,
    found: Valley,
    *,
    compute_range_flops: tuple[float, float],
    spread: float,
    method: str,
) -> TradedFrontier:
    """The frontier of a law of any form. Raises BadInput where at the ends of the compute range it has no optimum."""
    ends = np.log(np.asarray(compute_range_flops, dtype=float))
    if np.isnan(found.log_best(parameters, ends)).any():
        raise BadInput(f"{law.equation} has no frontier: {NO_OPTIMUM} ({dict(parameters)}); add runs")
    floor = float(_falls_to(found, parameters))
    floors = None if draws is None else {"floor": _falls_to(found, draws)}
    names = ("floor",) if law.floor or floor > 0 else ()  # a law without one falls to zero, which is no estimate
    return TradedFrontier(
        kind="surface",
        floor=floor,
        compute_range_flops=compute_range_flops,
        estimates=estimates({"floor": floor}, floors, names=names, method=method, spread=spread),
        spread=spread,
        valley=found,
        point=dict(parameters),
        draws=None if draws is None else dict(draws),
    )


def _falls_to(valley: Valley, parameters: Mapping[str, Any]) -> np.ndarray:
    """The loss with compute without end: the floor, and what held columns keep from falling (tokens that repeat)."""
    near, far = (np.array(valley.middle[1] + share * COMPUTE_REACH_LOG) for share in (0.5, 1.0))
    with np.errstate(all="ignore"):
        excess_near, excess_far = (
            valley.log_excess(parameters, valley.log_best(parameters, u), u) for u in (near, far)
        )
        stays = excess_near - excess_far < 0.1  # an exponent of 1/600: nothing that falls falls so slowly
        return valley.floor(parameters) + np.where(stays, np.exp(excess_far), 0.0)


def crossings(
    target: Any, reference: Any, window: tuple[float, float], num_draws: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ln C where target minus reference falls through zero and where it rises through zero, each nearest the middle
    of the window, and its sign in the middle; NaN where there is no such crossing. [num_draws], or [1] of the point.

    The gap is taken at `CROSSING_NODES` computes and is the cubic through four of them in between.
    """
    nodes = np.linspace(*window, CROSSING_NODES)
    if num_draws is None:
        gap_RU = (target.loss(np.exp(nodes)) - reference.loss(np.exp(nodes)))[None]
    else:
        gap_RU = target.loss_draws(np.exp(nodes))[:num_draws] - reference.loss_draws(np.exp(nodes))[:num_draws]
    middle = CROSSING_NODES // 2
    distance = np.abs(np.arange(CROSSING_NODES - 1) + 0.5 - middle)
    found = []
    for sign in (1.0, -1.0):
        crosses_RU = (sign * gap_RU[:, :-1] > 0) & (sign * gap_RU[:, 1:] <= 0)
        place_R = np.argmin(np.where(crosses_RU, distance, np.inf), axis=1)
        found.append(np.where(crosses_RU.any(axis=1), _root(nodes, sign * gap_RU, place_R), np.nan))
    return found[0], found[1], np.sign(gap_RU[:, middle])


def _root(nodes: np.ndarray, gap_RU: np.ndarray, place_R: np.ndarray) -> np.ndarray:
    """Where the cubic through four nodes falls through zero between two of them."""
    first_R = np.clip(place_R - 1, 0, CROSSING_NODES - 4)
    values_RI = np.take_along_axis(gap_RU, first_R[:, None] + np.arange(4), axis=1)
    low, high = (place_R - first_R).astype(float), (place_R - first_R + 1).astype(float)
    for _ in range(MAX_STEPS):
        half = 0.5 * (low + high)
        parts = [
            np.prod([(half - j) / (i - j) for j in range(4) if j != i], axis=0) * values_RI[:, i] for i in range(4)
        ]
        above = sum(parts) > 0
        low, high = np.where(above, half, low), np.where(above, high, half)
    return nodes[0] + (first_R + low) * (nodes[1] - nodes[0])
