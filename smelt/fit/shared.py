"""Rows of several groups in, one fit out in which they share some parameters and keep the others apart.

    loss_g = E_g + A_g N^-alpha + B_g D^-beta,   alpha and beta the same in every group g

Sum of the groups' objectives, one minimum, one certificate. What is shared is a hypothesis: the objective rises over
the sum of separate fits by what it costs. Each group comes out as a `SurfaceFit`, with draws from one joint bootstrap,
so that frontiers and savings take them as they are. It does not test the hypothesis.
"""

import dataclasses
from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import binding, intervals, laws, solver, surface, tables
from smelt.fit.binding import DEAD_SHARE, Bound
from smelt.fit.checks import check_own, check_rows
from smelt.fit.result import Estimate, Flag, estimate, jsonable
from smelt.fit.surface import SurfaceFit

# Of a group alone, and no matter where its exponents come from the others.
ALONE = ("few_rows", "narrow_range")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedFit:
    """shared: names of the parameters that are one number; fits: by group, in the order given."""

    law: laws.Law
    shared: tuple[str, ...]
    fits: dict[Hashable, SurfaceFit]
    objective: str
    delta: float
    delta_rule: str
    certificate: solver.Certificate
    num_rows: int
    num_parameters: int
    warnings: tuple[Flag, ...]
    refit: "_Refit" = dataclasses.field(repr=False)

    def to_json(self) -> dict:
        value = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("law", "refit", "fits")
        }
        law = {"name": self.law.name, "equation": self.law.equation, "columns": self.law.columns}
        return jsonable({"law": law, **value, "fits": {group: fit.to_json() for group, fit in self.fits.items()}})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Refit:
    bound: Bound
    weights: np.ndarray
    parameters_P: np.ndarray
    places: dict[Hashable, np.ndarray]  # by group, of its rows in the order of their values


def shared_names(law: laws.Law, shared: Collection[str]) -> tuple[str, ...]:
    """Parameters that the words and names in `shared` stand for.

    "exponents" is every exponent and shape, "floor" the floor, "coefficients" those of all terms. Raises BadInput for
    a name that the law does not have, and for a coefficient without its term's exponents: it would have no unit.

    >>> shared_names(laws.CHINCHILLA, ["exponents", "floor"])
    ('E', 'alpha', 'beta')
    """
    bends = (*law.exponents, *(shape.name for shape in law.shapes))
    words = {
        "exponents": bends,
        "floor": () if law.floor is None else (law.floor,),
        "coefficients": tuple(term.coefficient for term in law.terms),
    }
    unknown = [name for name in shared if name not in law.parameters and not words.get(name)]
    if unknown:
        known = ", ".join([*(word for word, names in words.items() if names), *law.parameters])
        raise BadInput(f"{law.name} has no {unknown[0]!r} to share; choose of {known}")
    chosen = {parameter for name in shared for parameter in words.get(name, (name,))}
    made = {column.name: [shape.name for shape in column.shapes] for column in law.effective}
    for term in law.terms:
        needed = [name for p in term.powers for name in (p.exponent, *made.get(p.column, ())) if isinstance(name, str)]
        missing = [name for name in needed if name not in chosen]
        if term.coefficient in chosen and missing:
            raise BadInput(f"{term.coefficient} is shared and {missing[0]} is not; share that too, or neither")
    return tuple(name for name in law.parameters if name in chosen)


def fit_shared(
    columns: Mapping[Hashable, Mapping[str, Sequence | np.ndarray]],
    loss: Mapping[Hashable, Sequence | np.ndarray],
    law: laws.Law | str,
    *,
    shared: Collection[str] = ("exponents",),
    objective: str = "huber_log",
    delta: float | str = "auto",
    weights: Mapping[Hashable, Sequence | np.ndarray] | None = None,
) -> SharedFit:
    """Fit `law` to all groups at once; `columns`, `loss` and `weights` are those of `fit_surface`, by group.

    `shared` names parameters, or "exponents" (with the shapes), "floor", "coefficients". Volkova et al. 2026 (arXiv
    2602.07712) share everything but the coefficients, and read each architecture's efficiency from those: see
    `efficiencies`. Raises BadInput as `fit_surface` does, and for a group with fewer rows than parameters of its own.
    """
    law = laws.law(law)
    shared = (shared,) if isinstance(shared, str) else shared
    first_delta, raw = surface.checked_objective(objective, delta)
    names = shared_names(law, shared)
    if len(loss) < 2 or list(columns) != list(loss):
        raise BadInput(
            f"columns are of {list(columns)}, losses of {list(loss)}; give two groups or more, the same in both"
        )
    losses = {group: tables.positive(f"loss of {group}", values) for group, values in loss.items()}
    arrays = {group: tables.positive_columns(columns[group], law.columns, len(losses[group])) for group in losses}
    if weights is not None:
        _of_all("weights", weights, losses)
    own_weights = {
        g: np.ones(len(v)) if weights is None else tables.positive("weights", weights[g]) for g, v in losses.items()
    }
    for group, values in losses.items():
        if len(own_weights[group]) != len(values):
            raise BadInput(
                f"weights of {group} has {len(own_weights[group])} rows, its loss {len(values)}; give one a run"
            )
    weight_N = np.concatenate(list(own_weights.values()))
    num_rows = len(weight_N)
    num_own = len(law.parameters) - len(names)
    num_parameters = len(names) + num_own * len(losses)
    for group, values in losses.items():
        if len(values) < max(num_own, 1):
            raise BadInput(
                f"{group} has {len(values)} rows for {num_own} parameters of its own; add runs or share more"
            )
    pooled = {name: np.concatenate([arrays[group][name] for group in losses]) for name in law.columns}
    check_rows(law, pooled, np.concatenate(list(losses.values())), num_parameters=num_parameters)
    for group in losses:
        check_own(law, arrays[group], names, str(group))

    logs = {group: {name: np.log(values) for name, values in table.items()} for group, table in arrays.items()}
    log_loss = {group: np.log(values) for group, values in losses.items()}
    bound = binding.bound(law, logs, log_loss, delta=first_delta, raw=raw, shared=names)
    starts_SP = _starts(bound, logs, log_loss, weight_N)
    bound, solution, rule = surface.minimum(bound, starts_SP, weight_N, delta)
    best_P = solution.parameters_RP[int(np.argmin(solution.objective_R))]
    proof = solver.certificate(bound.problem, best_P, weight_N, solution.objective_R)
    fits, start = {}, 0
    for group, values in losses.items():
        rows = slice(start, start + len(values))
        start = rows.stop
        fit = surface.described(
            bound,
            group,
            arrays[group],
            values,
            weight_N[rows],
            best_P,
            num_fitted=num_own + len(names) * len(values) / num_rows,
            objective=objective,
            delta_rule=rule,
            proof=proof,
            refit=None,
        )
        fits[group] = dataclasses.replace(fit, warnings=tuple(f for f in fit.warnings if f.code not in ALONE))
    flags = []
    if not proof.certified:
        flags.append(
            Flag(code="not_certified", message=f"the joint minimum of {law.name} is not proven: {proof.why_not}")
        )
    if num_rows < 2 * num_parameters:
        flags.append(
            Flag(code="few_rows", message=f"{num_rows} rows for {num_parameters} parameters: intervals are rough")
        )
    return SharedFit(
        law=law,
        shared=names,
        fits=fits,
        objective=objective,
        delta=bound.problem.delta,
        delta_rule=rule,
        certificate=proof,
        num_rows=num_rows,
        num_parameters=num_parameters,
        warnings=tuple(flags),
        refit=_Refit(
            bound=bound,
            weights=weight_N,
            parameters_P=best_P,
            places={group: tables.places([*arrays[group].values(), losses[group]]) for group in losses},
        ),
    )


def _of_all(name: str, by_group: Mapping, groups: Mapping) -> None:
    missing = [group for group in groups if group not in by_group]
    if missing:
        raise BadInput(f"{name} has nothing of {missing[0]!r}; give it for every group, {', '.join(map(str, groups))}")


def _starts(bound: Bound, logs: Mapping, log_loss: Mapping, weight_N: np.ndarray) -> np.ndarray:
    """Centred starts: a screen over the exponents and shapes, where all are shared; else what groups alone begin and
    end at, put together."""
    law, count = bound.law, bound.problem.num_coefficients
    bends = (*law.exponents, *(shape.name for shape in law.shapes))
    if bound.problem.num_parameters - count == len(bends):
        return binding.starts(bound, weight_N)
    guesses = []  # of each group: [starts and the minimum, exponents and shapes]
    start = 0
    for group, values in log_loss.items():
        weight_G = weight_N[start : start + len(values)]
        start += len(values)
        alone = binding.bound(
            law,
            {group: logs[group]},
            {group: values},
            delta=bound.problem.delta,
            raw=bound.problem.raw,
            means=bound.means,
        )
        starts_SP = binding.starts(alone, weight_G)
        solution = solver.polish(alone.problem, starts_SP, weight_G)
        ended_P = solution.parameters_RP[int(np.argmin(solution.objective_R))]
        guesses.append(np.concatenate([ended_P[None], starts_SP])[:, len(law.coefficients) :])
    num_guesses = min(len(guess) for guess in guesses)
    # Guess s of all groups together; what is shared is taken from one group after another.
    grid_GM = np.empty((num_guesses * len(guesses), bound.problem.num_parameters - count))
    for place, row in enumerate(grid_GM):
        s, lender = divmod(place, len(guesses))
        order = [*(g for g in range(len(guesses)) if g != lender), lender]
        for g in order:
            for m, name in enumerate(bends):
                row[list(bound.index.values())[g][name] - count] = guesses[g][s, m]
    return solver.starts(bound.problem, grid_GM, weight_N)[0]


def bootstrap_shared(
    fit: SharedFit,
    units: Mapping[Hashable, Sequence[Hashable]] | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
    counts: Mapping[Hashable, np.ndarray] | None = None,
    widen: bool = True,
) -> SharedFit:
    """`fit` with joint draws: whole units are resampled over all groups and the whole problem is fitted again.

    `units` labels the rows of each group; a label that two groups share (a matched pair) is in or out for both.
    `counts` {group: [draws, rows]} overrides them. See `surface.bootstrap`.
    """
    if counts is None:
        if units is None:
            labels = {g: [(str(g), place) for place in places.tolist()] for g, places in fit.refit.places.items()}
        else:
            _of_all("units", units, fit.fits)
            labels = {g: tables.labels(f"units of {g}", units[g], one.num_rows) for g, one in fit.fits.items()}
        counts = intervals.joint_counts(labels, draws=draws, seed=seed)
    _of_all("counts", counts, fit.fits)
    counts = {g: surface.checked_counts(f"counts of {g}", counts[g], one.num_rows) for g, one in fit.fits.items()}
    if len({len(array) for array in counts.values()}) > 1:
        raise BadInput(f"counts has {[len(array) for array in counts.values()]} draws; give every group as many")
    together_RN = np.concatenate(list(counts.values()), axis=1)
    bound = fit.refit.bound
    degrees = fit.num_rows - fit.num_parameters
    parameters_RP = surface.redrawn(bound.problem, fit.refit.parameters_P, fit.refit.weights * together_RN)
    spread = intervals.small_sample_spread(together_RN, degrees) if widen else 1.0
    smallest = float(np.exp(bound.problem.log_loss_N.min()))
    num_own = len(fit.law.parameters) - len(fit.shared)
    undecided_R = (together_RN > 0).sum(axis=1) < fit.num_parameters
    for group in fit.fits:
        undecided_R |= (counts[group] > 0).sum(axis=1) < num_own
    fits = {
        group: surface.with_draws(one, binding.named(bound, group, parameters_RP, smallest), undecided_R, spread)
        for group, one in fit.fits.items()
    }
    return dataclasses.replace(fit, fits=fits)


def dead_terms(fit: SurfaceFit) -> set[str]:
    """Coefficients of falling terms that add nothing where they add most, at the smallest columns of the rows."""
    corner = {name: np.array([fit.column_ranges[name][0]]) for name in fit.law.columns}
    logs, loss = laws.log_columns(fit.law, fit.parameters, corner), fit.predict(corner)[0]
    falling = [term for term in fit.law.terms if all(power.sign < 0 for power in term.powers)]
    return {t.coefficient for t in falling if laws.term_loss(t, fit.parameters, logs)[0] < DEAD_SHARE * loss}


def efficiencies(fit: SharedFit, reference: Hashable) -> dict[Hashable, dict[str, Estimate]]:
    """What a unit of each column is worth in each group, in units of the reference's: rho in A_ref (rho N)^-alpha.

    Group -> column -> estimate, for terms whose exponents are shared and whose first factor falls with its column:
    rho = (A_ref / A)^(1 / alpha). 1.2 of num_params: the group's parameters do the work of 1.2 times as many of the
    reference's. The floor is no efficiency: share it, or read this as of the reducible loss alone. Volkova et al. 2026,
    arXiv 2602.07712. Raises BadInput for an unknown reference and where no term is of that kind. A term that ended at
    zero has no worth, but the reason.

    >>> sizes, tokens = [1e7, 1e8, 1e9] * 3, [1e9] * 3 + [1e10] * 3 + [1e11] * 3
    >>> columns = {"num_params": sizes, "num_tokens": tokens}
    >>> law = {"E": 1.7, "A": 400.0, "B": 900.0, "alpha": 0.34, "beta": 0.3}
    >>> losses = {
    ...     group: laws.predicted_loss(laws.CHINCHILLA, law, {**columns, "num_params": np.multiply(worth, sizes)})
    ...     for group, worth in (("dense", 1.0), ("ours", 1.5))
    ... }
    >>> found = fit_shared(dict.fromkeys(losses, columns), losses, "chinchilla", shared=("exponents", "floor"))
    >>> round(efficiencies(found, "dense")["ours"]["num_params"].value, 6)
    1.5
    """
    if reference not in fit.fits:
        raise BadInput(f"no group is called {reference!r}; choose one of {', '.join(map(str, fit.fits))}")
    terms = {}
    for term in fit.law.terms:
        power = term.powers[0]
        named = [p.exponent for p in term.powers if isinstance(p.exponent, str)]
        if power.sign < 0 and term.coefficient not in fit.shared and set(named) <= set(fit.shared):
            terms[power.column] = (term.coefficient, power)
    if not terms:
        raise BadInput(
            f"{fit.law.equation} shares {', '.join(fit.shared) or 'nothing'}; efficiencies need exponents shared "
            "and coefficients apart"
        )
    method = "ratio of coefficients to the shared exponent; all groups drawn jointly"
    base = fit.fits[reference]

    def worth(values: Mapping, base_values: Mapping, coefficient: str, power: laws.Power) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            log_ratio = np.log(base_values[coefficient]) - np.log(values[coefficient])
            return np.exp(log_ratio / -np.asarray(power.value(values)))

    def estimated(group: Hashable, coefficient: str, power: laws.Power) -> Estimate:
        one = fit.fits[group]
        died = next((name for name in (group, reference) if coefficient in dead_terms(fit.fits[name])), None)
        if died is not None:
            return estimate(None, method=method, reason=f"the term of {coefficient} ended at zero in {died}")
        return estimate(
            float(worth(one.parameters, base.parameters, coefficient, power)),
            None if one.draws is None or base.draws is None else worth(one.draws, base.draws, coefficient, power),
            method=method,
            spread=max(one.spread, base.spread),
        )

    return {group: {column: estimated(group, *term) for column, term in terms.items()} for group in fit.fits}
