"""A table of runs in groups in; minima, allocations, surfaces, frontiers and savings over a reference out.

The fits keep their draws, for `answers` to ask and `summary` to write down. Groups are drawn jointly: a run of one
group and its partner in another, named by an equal `pair` label at an equal budget, are in or out of a bootstrap draw
together and share correlated noise, so that what they have in common cancels in the savings. Call it once for each
loss column (validation, one domain, bits per byte). It does not know whether groups were matched in anything.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, isoflop, laws, tables, traded
from smelt.fit.frontier import Frontier, fit_frontier, surface_frontier
from smelt.fit.result import Flag
from smelt.fit.surface import SurfaceFit, bootstrap, fit_surface
from smelt.fit.traded import RATIO, SHARE, TradedFrontier, estimates

FRONTIER_KINDS = ("pure", "saturating", "surface")
MAX_POINTS = 7  # of a compute range, where no budgets are named
# C = k N D with one k: attention and head make k fall with size; beyond this the optimum is that of a mean run.
MAX_UNIT_SPREAD = 1.1
MIN_RUNS_FOR_VERDICT = 10  # two for each of the five coefficients of a surface: chosen


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """All fits of a table, by group; `names` begins with the reference.

    rows           columns of the kept rows, their labels and bootstrap units
    surfaces       the law fitted to each group with joint draws, None where it could not be
    frontiers      by kind, those that could be had
    frontier_options   flops_per_unit and the law's fixed columns, as `surface_frontier` takes them
    compute_range_flops   of the rows; None where their compute is not known
    reasons        part -> why a group lacks it
    points_flops   budgets, or points of the compute range, at which optima and savings are given
    """

    names: tuple[str, ...]
    loss_column: str
    law: laws.Law
    objective: str
    delta: float | str
    rows: dict[str, dict]
    minima: dict[str, list[isoflop.Minimum]]
    surfaces: dict[str, SurfaceFit | None]
    frontiers: dict[str, dict[str, Frontier | TradedFrontier]]
    frontier_options: dict[str, dict[str, Any]]
    compute_range_flops: dict[str, tuple[float, float] | None]
    reasons: dict[str, dict[str, str]]
    points_flops: tuple[float, ...]
    rows_left_out: list[dict]
    warnings: tuple[Flag, ...]
    method: dict[str, Any]

    @property
    def reference(self) -> str:
        return self.names[0]


def fit_groups(
    table: Mapping[str, Sequence],
    reference: str | None = None,
    *,
    loss_column: str = "loss_nats",
    law: laws.Law | str = "flops_tokens",
    fixed: Mapping[str, float] | None = None,
    flops_per_unit: float | None = None,
    objective: str = "huber_log",
    delta: float | str = "auto",
    budgets_flops: Sequence[float] = (),
    draws: int = 1000,
    seed: int = 0,
    widen: bool = True,
) -> Groups:
    """Every fit of a grid of runs, or of anybody's table.

    `table` holds one list or array a column, one entry a run: `loss_column` and the law's columns; and where there are
    any group, budget_flops (nominal, a label), num_params, num_tokens, train_flops (as achieved; compute_flops is
    taken for it), train_secs, stored_bytes, pair (the label of the size that matched runs of several groups share),
    run_id, row (its place in a file) and unit. Training FLOPs per token are train_flops / num_tokens; a column
    flops_per_token that says otherwise is refused. Without a group all rows are one; without budgets there are no
    IsoFLOP minima.

    `law` is fitted to each group and its frontier taken under C = flops_per_token * num_tokens (`fixed` gives
    density for SMELT's law), or under C = flops_per_unit * num_params * num_tokens for a law in num_params (`traded`
    says what stands for num_params in a law of active parameters, of a density or of a loop): flops_per_unit is given
    for all groups, or is the geometric mean over a group's own rows. A law in compute_flops alone is its own frontier.
    `objective` and `delta` are those of `fit_surface`, `widen` that of `bootstrap`. `budgets_flops` adds budgets to
    those of the table at which savings are given.

    What is resampled as one: rows of an equal `unit`; else of an equal (budget, pair); else, without budgets, of an
    equal pair or run_id; else each row.

    A loss that is None is a run without a measurement: it is left out and listed. Raises BadInput for a missing
    column, an unknown reference, and NaN or non-positive numbers; what a table has too few runs for is None in the
    result, with the reason.
    """
    law = laws.law(law)
    for name, value in (fixed or {}).items():
        if name not in (*law.columns, SHARE, RATIO):
            raise BadInput(f"{name} is held at {value}, but {law.equation} has no such column; leave it out")
        tables.number(name, value, "a number above 0 that the frontier is taken at", low=0)
    rows, left_out, flags, unit_words = tables.rows_of_groups(table, loss_column, law, flops_per_unit)
    names = list(dict.fromkeys(rows["group"]))
    if reference is None and len(names) > 1:
        raise BadInput(f"there are {len(names)} groups and no reference; choose one of {', '.join(map(str, names))}")
    reference = names[0] if reference is None else str(reference)
    if reference not in names:
        raise BadInput(f"no run is of the group {reference!r}; choose one of {', '.join(map(str, names))}")
    names.sort(key=lambda name: name != reference)  # stable: the reference first, the others as they came
    by_group = {name: _selected(rows, np.flatnonzero(rows["group"] == name)) for name in names}
    if "pair" in table or "budget_flops" in rows:
        flags += _pairing_flags(by_group, reference)
    if is_frontier(law) and {"num_params", "num_tokens"} & rows.keys():
        message = f"{law.equation} is a frontier only where every row is the best of its compute; these have sizes too"
        flags.append(Flag(code="rows_taken_for_frontier", message=message))
    ranges = {name: _compute_range(group) for name, group in by_group.items()}
    points = _points(rows, list(ranges.values()), budgets_flops)

    reasons: dict[str, dict[str, str]] = {name: {} for name in names}
    shared: dict[str, str] = {}
    minima = attempt(shared, "minima", _minima, by_group, draws=draws, seed=seed)
    minima = minima or {name: [] for name in names}
    counts = intervals.joint_counts({name: by_group[name]["unit"] for name in names}, draws=draws, seed=seed)
    surfaces: dict[str, SurfaceFit | None] = {}
    frontiers: dict[str, dict[str, Frontier | TradedFrontier]] = {}
    options: dict[str, dict[str, Any]] = {}
    for name, group in by_group.items():
        why = reasons[name]
        why.update(shared)
        unit, unit_flags = _flops_per_unit(law, name, group, flops_per_unit)
        flags += unit_flags
        options[name] = {"flops_per_unit": unit, **(fixed or {})}
        surface = surfaces[name] = attempt(why, "surface", _surface, group, law, objective, delta, counts[name], widen)
        found = {}
        if surface is not None:
            found["surface"] = attempt(why, "frontier surface", _of_surface, surface, ranges[name], options[name])
        for kind, saturating in (("pure", False), ("saturating", True)):
            through = minima[name], None if {"budget_flops", "num_params"} <= rows.keys() else shared["minima"]
            found[kind] = attempt(why, f"frontier {kind}", _through_minima, *through, saturating=saturating, seed=seed)
        frontiers[name] = {kind: frontier for kind, frontier in found.items() if frontier is not None}
    return Groups(
        names=tuple(names),
        loss_column=loss_column,
        law=law,
        objective=objective,
        delta=delta,
        rows=by_group,
        minima=minima,
        surfaces=surfaces,
        frontiers=frontiers,
        frontier_options=options,
        compute_range_flops=ranges,
        reasons=reasons,
        points_flops=tuple(points),
        rows_left_out=left_out,
        warnings=tuple(flags),
        method={
            "law": {"name": law.name, "equation": law.equation},
            "surface": f"{_objective_in_words(objective, delta)}, summed; {unit_words} resampled jointly over groups",
            "minima": "parabola of the loss in ln size; noise pooled over budgets, correlated over matched runs",
            "minima_bias": isoflop.BIAS_NOTE,
            "confidence": 0.95,
            "num_draws": draws,
            "seed": seed,
        },
    )


def recommended(fits: Groups, name: str) -> str | None:
    """The kind of frontier that a saving of `name` over the reference is best read from; None where they share none.

    The surface is unbiased and covers in simulation; a pure law is biased wherever the loss saturates. A surface that
    `unproven` speaks against comes after the others.
    """
    both = fits.frontiers[name].keys() & fits.frontiers[fits.reference].keys()
    surfaces = [fits.surfaces[group] for group in (name, fits.reference)]
    doubts = [unproven(s.num_rows, {flag.code for flag in s.warnings}) for s in surfaces if s is not None]
    others = ("saturating", "pure")
    order = (*others, "surface") if any(doubts) else ("surface", *others)
    return next((kind for kind in order if kind in both), None)


def unproven(num_rows: int, codes: Collection[str]) -> str | None:
    """Why a surface fitted to so many runs, with warnings of these codes, carries no verdict where another frontier can
    be had: "few_runs", "not_certified", or None."""
    if num_rows < MIN_RUNS_FOR_VERDICT:
        return "few_runs"
    return "not_certified" if "not_certified" in codes else None


def why_no_frontier(fits: Groups, name: str, kind: str) -> str:
    why = fits.reasons[name]
    return f"{name}: {why.get(f'frontier {kind}') or why.get('surface') or 'no frontier'}"


def _compute_range(group: Mapping) -> tuple[float, float] | None:
    if "train_flops" not in group:
        return None
    return float(group["train_flops"].min()), float(group["train_flops"].max())


def _points(rows: Mapping, ranges: Sequence[tuple[float, float] | None], asked: Sequence[float]) -> list[float]:
    """The table's budgets and those asked for; without either, round points of the compute that all groups cover."""
    budgets = [*rows.get("budget_flops", ()), *tables.asked("budgets_flops", asked)]
    named = sorted(set(map(float, budgets)))
    known = [covered for covered in ranges if covered is not None]
    if named or not known:
        return named
    low, high = max(r[0] for r in known), min(r[1] for r in known)
    if low >= high:
        low, high = known[0]  # the reference's: the savings then say how far they extrapolate
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        points = [float(f"{step}e{decade}") for decade in decades for step in steps]
        inside = [point for point in points if low <= point <= high]
        if len(inside) <= MAX_POINTS:
            break
    return inside if len(inside) > 1 else [float(f"{point:.2e}") for point in np.geomspace(low, high, 3)]


def _objective_in_words(objective: str, delta: float | str) -> str:
    shape, _, of = objective.partition("_")
    shapes = {"huber": f"Huber (delta {'1e-3' if delta == 1e-3 else delta})", "absolute": "Absolute values"}
    return f"{shapes.get(shape, shape.capitalize())} of {'log ' if of == 'log' else ''}residuals"


def _flops_per_unit(law: laws.Law, name: str, group: Mapping, given: float | None) -> tuple[float | None, list[Flag]]:
    """k of C = k num_params num_tokens: as given, else the geometric mean over the group's rows."""
    units = traded.units(law, group)
    if given is not None or units is None or not {"train_flops", "num_tokens"} <= group.keys():
        return given, []
    each = group["train_flops"] / (units * group["num_tokens"])
    mean, spread = float(np.exp(np.log(each).mean())), float(each.max() / each.min())
    if spread <= MAX_UNIT_SPREAD:
        return mean, []
    message = (
        f"{name}: train_flops / ({traded.size_column(law)} num_tokens) goes from {each.min():.4g} to {each.max():.4g}; "
        f"frontiers and optima take its mean {mean:.4g}, a law in flops_per_token takes each row's own"
    )
    return mean, [Flag(code="flops_per_unit_varies", message=message)]


def is_frontier(law: laws.Law) -> bool:
    return law.columns == ("compute_flops",) and len(law.terms) == 1


def _of_surface(
    surface: SurfaceFit, covered: tuple[float, float] | None, options: Mapping[str, Any]
) -> Frontier | TradedFrontier:
    if covered is None:
        raise BadInput("the compute of the rows is not known; give train_flops (or 6ND where that is meant)")
    if not is_frontier(surface.law):
        return surface_frontier(surface, compute_range_flops=covered, **options)
    (term,) = surface.law.terms

    def read(values: Mapping) -> dict[str, Any]:
        exponent = -sum(np.asarray(power.value(values)) for power in term.powers)
        floor = values[surface.law.floor] if surface.law.floor else np.where(np.isnan(exponent), np.nan, 0.0)
        return {"floor": floor, "log_coefficient": np.log(values[term.coefficient]), "exponent": exponent}

    point, draws = read(surface.parameters), None if surface.draws is None else read(surface.draws)
    return Frontier(
        kind=surface.law.name,
        **{key: float(value) for key, value in point.items()},
        compute_range_flops=covered,
        estimates=estimates(
            point,
            draws,
            names=("floor", "exponent") if surface.law.floor else ("exponent",),
            method="law fitted again to bootstrap draws by unit",
            spread=surface.spread,
        ),
        draws=draws,
        spread=surface.spread,
    )


def _minima(by_group: Mapping[str, Mapping], *, draws: int, seed: int) -> dict[str, list[isoflop.Minimum]]:
    some = next(iter(by_group.values()))
    for name in ("budget_flops", "num_params"):
        if name not in some:
            raise BadInput(f"there is no column {name}: without it no IsoFLOP curves")
    return isoflop.minima_of_groups(by_group, draws=draws, seed=seed)


def _selected(rows: Mapping, where: np.ndarray) -> dict:
    return {k: v[where] if isinstance(v, np.ndarray) else [v[i] for i in where] for k, v in rows.items()}


def _pairing_flags(by_group: Mapping[str, Mapping], reference: str) -> list[Flag]:
    own = set(by_group[reference]["unit"])
    flags = []
    for name, group in by_group.items():
        alone = len(set(group["unit"]) ^ own)
        if name != reference and alone:
            flags.append(
                Flag(
                    code="unpaired_runs",
                    message=f"{alone} cells (budget, pair) of {name} and {reference} have no partner: drawn alone; "
                    "where they have one, give both the same label in a column pair (pair=COLUMN)",
                )
            )
    return flags


def attempt(reasons: dict[str, str], part: str, make: Callable, *args: Any, **options: Any) -> Any:
    """What `make` returns, or None and its refusal under reasons[part]: a grid that is half run has a report too."""
    try:
        return make(*args, **options)
    except BadInput as error:
        reasons[part] = str(error)
        return None


def _surface(
    group: Mapping, law: laws.Law, objective: str, delta: float | str, counts: np.ndarray, widen: bool
) -> SurfaceFit:
    fitted = fit_surface(group, group["loss_nats"], law, objective=objective, delta=delta)
    return bootstrap(fitted, counts=counts, widen=widen)


def _through_minima(
    minima: Sequence[isoflop.Minimum], why_none: str | None, *, saturating: bool, seed: int
) -> Frontier:
    if why_none is not None:
        raise BadInput(why_none)
    used = [m for m in minima if m.usable]
    if not used:
        raise BadInput("no budget has a minimum inside its sizes; a frontier needs 2 or more")
    draws = None
    if all(m.draws for m in used):
        draws = np.stack([m.draws["loss_min"] for m in used], axis=1)
    return fit_frontier(
        [m.budget_flops for m in used], [m.loss_min for m in used], saturating, loss_draws=draws, seed=seed
    )
