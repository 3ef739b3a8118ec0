"""Sizes, losses and budgets in, the compute-optimal size and loss of every budget out (Approach 2, IsoFLOP).

Per budget a parabola of the loss (not of its logarithm) in ln size:

    loss = loss_min + curvature * (ln size - ln size_opt)^2,    curvature > 0

Runs of one size and budget (seeds) enter as their mean. Noise is pooled over budgets; intervals come from draws of
the noise with Student's t tails (`intervals.noise_factors`), jointly over groups, so that what matched runs share
cancels in a comparison. It does not know the law behind the losses: where the two exponents differ, or the grid is
wide or off centre, the vertex is biased (`BIAS_NOTE`), which no interval shows. `correct_minima` takes the bias off
by means of a surface fitted to the same rows, and so trusts that surface's shape (`CORRECTION_NOTE`).
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, laws, tables
from smelt.fit.result import Estimate, Flag, estimate
from smelt.fit.surface import SurfaceFit

# From Czech et al. (arXiv 2603.22339): D* extrapolated three decades on noise-free Chinchilla data, 15 points a budget.
BIAS_NOTE = (
    "A parabola is not the true curve: on noise-free losses of Chinchilla's law (exponents 0.34 and 0.28) its optimal "
    "token count, extrapolated by three decades, is 0.3, 1.3, 2.9 and 5.1 % low for grids of 2, 4, 8 and 16 times "
    "either side of the optimum, and further off where the grid drifts off centre."
)
CORRECTION_NOTE = (
    "The bias is that of the same parabola through the noise-free losses of a surface fitted to the same rows, at the "
    "same sizes and tokens, against that surface's own optimum. It takes the shape of the surface on trust, and is "
    "right to first order in what the surface gets wrong."
)
NOISE_STREAM = 1  # apart from the stream that resamples units under the same seed
BISECTED = 1e-10  # of ln size: at the step of the slope rounding and curvature cost 1e-9
MAX_OUTSIDE = 4.0  # times beyond the sizes of a budget, where a surface's optimum can still tell their bias: chosen
MAX_SEED_SPREAD = 1.01  # in size, of rows that are averaged as seeds of one: counts with rounded shapes differ by less
WIDE_GRID = 16.0  # times in size from first to last: there the bias is 1.3 % already (same source)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """The vertex of one budget's parabola.

    num_params_opt, loss_min, num_tokens_opt   None where the parabola opens downward or has too few sizes
    curvature        d2 loss / d (ln size)2 / 2, in loss per squared e-fold; None below three sizes
    curvature_t      curvature over its standard error, None without residual degrees of freedom
    inside           the vertex lies between the smallest and the largest size
    draws            "ln_num_params_opt" and "loss_min" [num_draws], NaN where the draw opens downward
    """

    budget_flops: float
    num_params_opt: float | None
    loss_min: float | None
    num_tokens_opt: float | None
    curvature: float | None
    curvature_t: float | None
    inside: bool
    num_sizes: int
    size_range: tuple[float, float]
    coefficients: tuple[float, float, float] | None  # loss = c0 + c1 x + c2 x^2, x = ln size
    estimates: dict[str, Estimate]
    warnings: tuple[Flag, ...]
    draws: dict[str, np.ndarray] = dataclasses.field(repr=False)

    @property
    def usable(self) -> bool:
        """A frontier may use it: it opens upward and its vertex lies inside the data."""
        return self.inside and self.num_params_opt is not None

    def loss_at(self, num_params: np.ndarray | float) -> np.ndarray:
        """The parabola's loss at sizes."""
        if self.coefficients is None:
            raise BadInput(f"the budget {self.budget_flops:g} has no parabola: {self.num_sizes} sizes; give 3 or more")
        x = np.log(num_params)
        c0, c1, c2 = self.coefficients
        return c0 + c1 * x + c2 * x * x


@dataclasses.dataclass(slots=True, kw_only=True)
class _Parabola:
    """One (group, budget): cell means and the least-squares quadratic in centred ln size."""

    cells: list[Hashable]
    x: np.ndarray  # centred ln size
    centre: float
    y: np.ndarray
    tokens: np.ndarray | None
    solve: np.ndarray  # [3, num_sizes]: coefficients = solve @ y
    beta: np.ndarray
    residual: np.ndarray
    nearest_of: int | None  # sizes that the budget has, where only the nearest to the lowest are used
    corrected: bool = False  # a surface's bias is taken off
    shift_RP: np.ndarray | None = None  # what the surface's draws add to beta


def isoflop_minima(
    num_params: Sequence | np.ndarray,
    loss_nats: Sequence | np.ndarray,
    budget_flops: Sequence | np.ndarray,
    num_tokens: Sequence | np.ndarray | None = None,
    *,
    cell: Sequence[Hashable] | None = None,
    nearest: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> list[Minimum]:
    """Minima of one group, one a distinct budget, in rising order of budget.

    `budget_flops` are labels: rows of one budget carry one number. `cell` labels the size of a row (default: the
    number itself), so that seeds of one size are averaged. `num_tokens` adds the optimal token count. `nearest`
    fits each parabola to that many sizes around the one of lowest loss, for grids too wide for one parabola. Raises
    BadInput where no budget has three sizes. Hoffmann et al. 2022, approach 2.
    """
    rows = {"num_params": num_params, "loss_nats": loss_nats, "budget_flops": budget_flops}
    if num_tokens is not None:
        rows["num_tokens"] = num_tokens
    table: dict = tables.positive_columns(rows, list(rows))
    table["budget_flops"] = tables.one_number_a_budget(table["budget_flops"])
    table["cell"] = _labelled(cell, table["num_params"])
    return minima_of_groups({"": table}, nearest=nearest, draws=draws, seed=seed)[""]


def minima_of_groups(
    groups: Mapping[str, Mapping], *, nearest: int | None = None, draws: int = 1000, seed: int = 0
) -> dict[str, list[Minimum]]:
    """`isoflop_minima` for several groups with joint draws: noise is correlated as the residuals of equal cells are.

    Each group is a table of columns num_params, loss_nats, budget_flops, cell and, if it has it, num_tokens.
    """
    return _minima(_parabolas_of_groups(groups, nearest), draws=draws, seed=seed)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """One budget's minimum with the parabola's bias and without it.

    raw                  what `isoflop_minima` gives
    minimum              corrected, for `allocation` and `fit_frontier`; the raw one where `reason` says why not
    size_bias_percent    how far a parabola's vertex lies above the optimum, in per cent of the size
    loss_bias_nats       the same of its least loss, in the unit of the losses
    """

    raw: Minimum
    minimum: Minimum
    size_bias_percent: Estimate | None
    loss_bias_nats: Estimate | None
    reason: str | None


def correct_minima(
    surface: SurfaceFit,
    columns: Mapping[str, Sequence | np.ndarray],
    loss_nats: Sequence | np.ndarray,
    budget_flops: Sequence | np.ndarray,
    *,
    cell: Sequence[Hashable] | None = None,
    nearest: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> list[Correction]:
    """The minima of one group without the parabola's bias, by `surface`, fitted to the same rows.

    `columns` holds num_params, the columns of the surface's law and, for tokens, num_tokens; the rest is as for
    `isoflop_minima`. Per budget the same parabola is laid through the surface's noise-free losses at the same sizes
    and tokens; how its vertex and minimum miss the surface's optimum along the budget's rows is the bias. What the
    surface departs from a parabola leaves the residuals too, so that a wide grid is not taken for a noisy one. Where
    the surface has draws, each draw of the noise is corrected by another of them, as if the two were independent.
    Tokens follow the corrected size.

    The bias is known from Czech et al. (arXiv 2603.22339); what taking it off assumes is `CORRECTION_NOTE`.
    """
    names = dict.fromkeys(("num_params", *surface.law.columns, *(("num_tokens",) if "num_tokens" in columns else ())))
    given = {**columns, "loss_nats": loss_nats, "budget_flops": budget_flops}
    table: dict = tables.positive_columns(given, [*names, "loss_nats", "budget_flops"])
    table["budget_flops"] = tables.one_number_a_budget(table["budget_flops"])
    table["cell"] = _labelled(cell, table["num_params"])
    return correct_minima_of_groups({"": table}, {"": surface}, nearest=nearest, draws=draws, seed=seed)[""]


def correct_minima_of_groups(
    groups: Mapping[str, Mapping],
    surfaces: Mapping[str, SurfaceFit | None],
    *,
    nearest: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, list[Correction]]:
    """`correct_minima` for several groups with joint draws, as `minima_of_groups` has; each by its own surface.

    Each group's table has the columns that `minima_of_groups` takes and those of its surface's law.
    """
    parabolas = _parabolas_of_groups(groups, nearest)
    raw = _minima(parabolas, draws=draws, seed=seed)
    corrected: dict[str, dict] = {name: {} for name in parabolas}
    biases: dict[str, list] = {name: [] for name in parabolas}
    for name, by_budget in parabolas.items():
        surface = surfaces.get(name)
        budgets = np.asarray(groups[name]["budget_flops"], dtype=float)
        for budget, (sizes, parabola) in by_budget.items():
            bias, reason = None, "the group has no surface" if surface is None else "the budget has no parabola"
            if surface is not None and parabola is not None:
                rows = _cells(groups[name], np.flatnonzero(budgets == budget))
                bias, reason = _bias(surface, groups[name], {label: rows[label] for label in parabola.cells})
                if reason is None:
                    parabola = _shifted(parabola, bias)
            corrected[name][budget] = (sizes, parabola)
            biases[name].append((bias, reason))
    minima = _minima(corrected, draws=draws, seed=seed)
    return {
        name: [
            _correction(before, after, bias, reason)
            for before, after, (bias, reason) in zip(raw[name], minima[name], biases[name], strict=True)
        ]
        for name in parabolas
    }


def _labelled(cell: Sequence[Hashable] | None, sizes: np.ndarray) -> list[Hashable]:
    return [float(f"{size:.12g}") for size in sizes] if cell is None else tables.labels("cell", cell, len(sizes))


def _parabolas_of_groups(groups: Mapping[str, Mapping], nearest: int | None) -> dict[str, dict]:
    if nearest is not None:
        intervals.whole("nearest", nearest, 3, "a parabola needs 3 sizes, an interval 5 or more: give nearest=5")
    # In order of name, so that the order of rows does not move the draws.
    parabolas = {name: _parabolas(groups[name], nearest) for name in sorted(groups)}
    if not any(p is not None for by_budget in parabolas.values() for _, p in by_budget.values()):
        shown = next(iter(groups.values()))["budget_flops"]
        raise BadInput(
            f"no budget has three different sizes ({len(np.unique(shown))} budgets in {len(shown)} rows); a parabola "
            "needs three, an interval five or more: rows of one curve carry one number as their budget"
        )
    return parabolas


def _minima(parabolas: Mapping[str, Mapping], *, draws: int, seed: int) -> dict[str, list[Minimum]]:
    draws = intervals.whole("draws", draws, 0, "give a whole number, 1000 for percentiles, or 0 for none")
    names = list(parabolas)
    covariance_GG, degrees = _noise(parabolas)
    generator = intervals.generator(seed, NOISE_STREAM)
    factors = intervals.noise_factors(covariance_GG, degrees, draws, generator) if degrees and draws else None
    budgets = sorted({budget for by_budget in parabolas.values() for budget in by_budget})
    found: dict[str, list[Minimum]] = {name: [] for name in names}
    for budget in budgets:
        here = {name: by_budget[budget] for name, by_budget in parabolas.items() if budget in by_budget}
        cells = sorted({c for _, p in here.values() if p is not None for c in p.cells}, key=str)
        # One standard normal a (draw, cell, group), drawn for cells that a group lacks too: runs stay paired.
        normal_RCG = generator.standard_normal((draws, len(cells), len(names))) if factors is not None else None
        for index, name in enumerate(names):
            if name not in here:
                continue
            sizes, parabola = here[name]
            beta_RP = None
            if parabola is not None and normal_RCG is not None:
                noise_RC = np.einsum("RCH,RH->RC", normal_RCG, factors[:, index])
                own = noise_RC[:, [cells.index(c) for c in parabola.cells]]
                beta_RP = parabola.beta + own @ parabola.solve.T
                if parabola.shift_RP is not None:
                    beta_RP = beta_RP + np.resize(parabola.shift_RP, beta_RP.shape)
            sigma = math.sqrt(covariance_GG[index, index]) if degrees else None
            found[name].append(_minimum(budget, sizes, parabola, beta_RP, sigma, degrees))
    return found


def _parabolas(table: Mapping, nearest: int | None) -> dict[float, tuple[np.ndarray, _Parabola | None]]:
    by_budget = {}
    budgets = np.asarray(table["budget_flops"], dtype=float)
    for budget in np.unique(budgets):
        cells = _cells(table, np.flatnonzero(budgets == budget))
        x = _cell_means(cells, np.log(table["num_params"]))
        y = _cell_means(cells, table["loss_nats"])
        of = None
        if nearest is not None and nearest < len(x):
            of = len(x)
            kept = np.sort(np.argsort(np.abs(x - x[np.argmin(y)]), kind="stable")[:nearest])
            cells, x, y = {list(cells)[i]: list(cells.values())[i] for i in kept}, x[kept], y[kept]
        if len(np.unique(np.round(x, 9))) < 3:
            by_budget[float(budget)] = (np.exp(x), None)
            continue
        tokens = None
        if table.get("num_tokens") is not None:
            tokens = _cell_means(cells, np.log(table["num_tokens"]))
        centre, powers, solve = _quadratic(x)
        beta = solve @ y
        by_budget[float(budget)] = (
            np.exp(x),
            _Parabola(
                cells=list(cells),
                x=x - centre,
                centre=centre,
                y=y,
                tokens=tokens,
                solve=solve,
                beta=beta,
                residual=y - powers @ beta,
                nearest_of=of,
            ),
        )
    return by_budget


def _cells(table: Mapping, rows: np.ndarray) -> dict[Hashable, list[int]]:
    """The rows of each size, in rising order of size."""
    labels, members = list(table["cell"]), {}
    for row in rows:
        members.setdefault(labels[row], []).append(int(row))
    for label, rows_of_label in members.items():
        sizes = table["num_params"][rows_of_label]
        if sizes.max() > MAX_SEED_SPREAD * sizes.min():
            raise BadInput(
                f"{label!r} stands for sizes {sizes.min():g} to {sizes.max():g} at one budget of one group; give each "
                "size a label (cell, or pair) of its own, seeds of one size the same"
            )
    order = sorted(members, key=lambda label: (float(np.mean(table["num_params"][members[label]])), str(label)))
    return {label: members[label] for label in order}


def _cell_means(cells: Mapping[Hashable, list[int]], values: np.ndarray) -> np.ndarray:
    """Means over the rows of each cell, of the last axis of `values`."""
    return np.stack([np.mean(values[..., rows], axis=-1) for rows in cells.values()], axis=-1)


def _quadratic(x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The centre of ln sizes, the powers of their distance to it, and what solves for a parabola's coefficients."""
    centre = float(x.mean())
    powers = np.stack([np.ones_like(x), x - centre, (x - centre) ** 2], axis=1)
    return centre, powers, np.linalg.pinv(powers)


def _vertices(centre: float, beta_RP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln size and loss at the vertices of parabolas, NaN where one opens downward."""
    b0, b1, b2 = beta_RP.T
    up = b2 > 0
    safe = np.where(up, b2, 1.0)
    return np.where(up, centre - b1 / (2 * safe), np.nan), np.where(up, b0 - b1 * b1 / (4 * safe), np.nan)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Bias:
    """What a parabola makes of a surface's losses in one budget: the surface as fitted first, then its draws.

    beta_SP    what it adds to the coefficients of a parabola with its vertex at the surface's optimum
    misfit     what it leaves of the surface's losses at the sizes
    """

    size_log_S: np.ndarray
    loss_S: np.ndarray
    beta_SP: np.ndarray
    misfit: np.ndarray


def _bias(surface: SurfaceFit, table: Mapping, cells: Mapping[Hashable, list[int]]) -> tuple[_Bias | None, str | None]:
    law = surface.law
    batch = {name: np.array([[value]]) for name, value in surface.parameters.items()}
    if surface.draws is not None:
        batch = {name: np.concatenate([batch[name], surface.draws[name][:, None]]) for name in batch}
    x = _cell_means(cells, np.log(table["num_params"]))
    centre, powers, solve = _quadratic(x)
    noise_free = laws.predicted_loss(law, batch, {name: table[name] for name in law.columns})
    losses_SC = _cell_means(cells, noise_free)
    with np.errstate(invalid="ignore"):  # a draw that did not converge is NaN, one next to a pole infinite
        beta_SP = losses_SC @ solve.T
    vertex, loss = _vertices(centre, beta_SP)
    # Inside a budget a column is near a power of the size; counts with attention bend it a little.
    degree = 2 if len(x) > 3 else 1
    path = {
        name: np.polynomial.Polynomial.fit(x, _cell_means(cells, np.log(table[name])), degree) for name in law.columns
    }

    def along(ln_size: np.ndarray) -> np.ndarray:
        """[S, ...] sizes, a surface each -> their losses."""
        columns = {name: np.exp(path[name](ln_size.reshape(len(ln_size), -1))) for name in law.columns}
        return laws.predicted_loss(law, batch, columns).reshape(ln_size.shape)

    best = _lowest(along, np.full_like(vertex, x.min()), np.full_like(vertex, x.max()))
    if np.isnan(best[0]):
        return None, f"the surface has no optimum within {MAX_OUTSIDE:g} times the sizes of this budget"
    if np.isnan(vertex[0]):
        return None, "the parabola through the surface's own losses opens downward"
    least, curvature = along(best), beta_SP[:, 2]
    at_optimum = np.stack([least + curvature * (best - centre) ** 2, -2 * curvature * (best - centre), curvature], 1)
    return (
        _Bias(
            size_log_S=vertex - best,
            loss_S=loss - least,
            beta_SP=beta_SP - at_optimum,
            misfit=losses_SC[0] - powers @ beta_SP[0],
        ),
        None,
    )


def _lowest(loss_at: Callable, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where convex losses are least, by bisection of their slope; NaN further than `MAX_OUTSIDE` times off the ends."""
    low, high = low - math.log(MAX_OUTSIDE), high + math.log(MAX_OUTSIDE)

    def rising(x: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # of a draw whose losses are infinite
            below, above = loss_at(np.stack([x - 1e-4, x + 1e-4], axis=1)).T
            return above - below

    bracketed = (rising(low) < 0) & (rising(high) > 0)
    while (high - low).max() > BISECTED:
        middle = (low + high) / 2
        up = rising(middle) > 0
        low, high = np.where(up, low, middle), np.where(up, middle, high)
    return np.where(bracketed, (low + high) / 2, np.nan)


def _shifted(parabola: _Parabola, bias: _Bias) -> _Parabola:
    """The parabola of the losses less what a surface departs from a parabola with its vertex at the optimum."""
    return dataclasses.replace(
        parabola,
        beta=parabola.beta - bias.beta_SP[0],
        residual=parabola.residual - bias.misfit,
        shift_RP=bias.beta_SP[0] - bias.beta_SP[1:] if len(bias.beta_SP) > 1 else None,
        corrected=True,
    )


def _correction(raw: Minimum, corrected: Minimum, bias: _Bias | None, reason: str | None) -> Correction:
    if bias is None:
        return Correction(raw=raw, minimum=raw, size_bias_percent=None, loss_bias_nats=None, reason=reason)
    interval = raw.estimates.get("num_params_opt")
    if (
        interval is not None
        and interval.low is not None
        and interval.high is not None
        and corrected.num_params_opt is not None
        and not interval.low <= corrected.num_params_opt <= interval.high
    ):
        message = f"at {raw.budget_flops:.3g} FLOPs the parabola's bias takes the optimal size out of its own interval"
        flag = Flag(code="bias_beyond_interval", message=message)
        corrected = dataclasses.replace(corrected, warnings=(*corrected.warnings, flag))
    drawn = len(bias.size_log_S) > 1
    options = {
        "method": "the same parabola on the noise-free losses of the surface" + (" and its draws" if drawn else ""),
        "reason": None if drawn else "the surface has no draws",
    }
    percent_S = 100 * np.expm1(bias.size_log_S)
    return Correction(
        raw=raw,
        minimum=corrected,
        size_bias_percent=estimate(float(percent_S[0]), percent_S[1:], **options),
        loss_bias_nats=estimate(float(bias.loss_S[0]), bias.loss_S[1:], **options),
        reason=None,
    )


def _noise(parabolas: Mapping[str, Mapping]) -> tuple[np.ndarray, int]:
    """Pooled residual covariance between groups, and its degrees of freedom (the fewest of any group)."""
    names = list(parabolas)
    squares, degrees = np.zeros(len(names)), np.zeros(len(names), dtype=int)
    residuals: list[dict] = [{} for _ in names]
    for index, name in enumerate(names):
        for budget, (_, parabola) in parabolas[name].items():
            if parabola is None or len(parabola.y) < 4:
                continue
            squares[index] += float(parabola.residual @ parabola.residual)
            degrees[index] += len(parabola.y) - 3
            for label, value in zip(parabola.cells, parabola.residual, strict=True):
                residuals[index][(budget, label)] = value
    if degrees.min() == 0:
        return np.zeros((len(names), len(names))), 0
    scale = np.sqrt(squares / degrees)
    correlation = np.eye(len(names))
    shared = set.intersection(*(set(r) for r in residuals))
    if len(shared) >= 4:
        order = sorted(shared, key=str)
        table = np.array([[r[key] for key in order] for r in residuals])
        norms = np.sqrt((table**2).sum(axis=1))
        if norms.min() > 0:
            correlation = table @ table.T / np.outer(norms, norms)
    return correlation * np.outer(scale, scale), int(degrees.min())


def _minimum(
    budget: float,
    sizes: np.ndarray,
    parabola: _Parabola | None,
    beta_RP: np.ndarray | None,
    sigma: float | None,
    degrees: int,
) -> Minimum:
    flags: list[Flag] = []

    def flag(code: str, message: str) -> None:
        flags.append(Flag(code=code, message=f"at {budget:.3g} FLOPs {message}"))

    base = {
        "budget_flops": budget,
        "num_sizes": len(sizes),
        "size_range": (float(sizes.min()), float(sizes.max())),
    }
    if parabola is None:
        flag("too_few_sizes", f"there are {len(sizes)} sizes; a parabola needs 3, better 5")
        return Minimum(
            **base,
            num_params_opt=None,
            loss_min=None,
            num_tokens_opt=None,
            curvature=None,
            curvature_t=None,
            inside=False,
            coefficients=None,
            estimates={},
            warnings=tuple(flags),
            draws={},
        )
    if len(sizes) < 5:
        flag("too_few_sizes", f"there are {len(sizes)} sizes; fewer than 5 leave the parabola unchecked")
    if sizes.max() / sizes.min() > WIDE_GRID and not parabola.corrected:
        flag(
            "wide_grid",
            f"sizes span a factor of {sizes.max() / sizes.min():.3g}; a parabola is biased beyond {WIDE_GRID:g}",
        )
    b0, b1, b2 = (float(b) for b in parabola.beta)
    curvature_t = None
    if sigma:
        curvature_t = b2 / (sigma * float(np.linalg.norm(parabola.solve[2])))
        from scipy.special import stdtrit

        if b2 > 0 and curvature_t < stdtrit(degrees, 0.975):
            flag("flat_parabola", f"the curvature is {curvature_t:.2g} standard errors: the minimum is not discernible")
    vertex = loss = tokens = None
    inside = False
    if b2 <= 0:
        flag("opens_downward", f"the parabola has no minimum (curvature {b2:.3g}); widen the sizes")
    else:
        x = -b1 / (2 * b2)
        with np.errstate(over="ignore"):
            vertex, loss = float(np.exp(parabola.centre + x)), b0 - b1 * b1 / (4 * b2)
        inside = bool(parabola.x.min() < x < parabola.x.max())
        if not inside:
            side = "smaller" if x <= parabola.x.min() else "larger"
            mend = f"add {side} ones" if parabola.nearest_of is None else "raise nearest"
            sizes_are = "trained" if parabola.nearest_of is None else "used"
            flag("vertex_outside", f"the minimum ({vertex:.3g}) lies outside the sizes {sizes_are}; {mend}")
        if parabola.tokens is not None and inside:
            # ln tokens against ln size is near a line inside a budget: interpolate, never extrapolate.
            tokens = float(np.exp(np.interp(x, parabola.x, parabola.tokens)))
    draws, estimates = {}, {}
    if vertex is not None:
        reason = None
        if beta_RP is not None:
            draws["ln_num_params_opt"], draws["loss_min"] = _vertices(parabola.centre, beta_RP)
        else:
            reason = "three sizes leave no residual to know the noise from"
        method = f"noise pooled over budgets, Student t with {degrees} degrees of freedom"
        if parabola.nearest_of is not None:
            method = f"the {len(parabola.x)} sizes nearest the lowest of {parabola.nearest_of}; {method}"
        if parabola.corrected:
            method += f"; less the bias by a surface{' and its draws' if parabola.shift_RP is not None else ''}"
        with np.errstate(over="ignore"):
            sizes_R = np.exp(draws["ln_num_params_opt"]) if draws else None
        estimates["num_params_opt"] = estimate(vertex, sizes_R, method=method, reason=reason)
        estimates["loss_min"] = estimate(loss, draws.get("loss_min"), method=method, reason=reason)
        if tokens is not None:
            tokens_R = None
            if draws:
                within = np.clip(draws["ln_num_params_opt"] - parabola.centre, parabola.x.min(), parabola.x.max())
                tokens_R = np.exp(np.interp(within, parabola.x, parabola.tokens))
                tokens_R[np.isnan(draws["ln_num_params_opt"])] = np.nan
                draws["ln_num_tokens_opt"] = np.log(tokens_R)
            estimates["num_tokens_opt"] = estimate(tokens, tokens_R, method=method, reason=reason)
    c = parabola.centre
    return Minimum(
        **base,
        num_params_opt=vertex,
        loss_min=loss,
        num_tokens_opt=tokens,
        curvature=b2,
        curvature_t=curvature_t,
        inside=inside,
        coefficients=(b0 - b1 * c + b2 * c * c, b1 - 2 * b2 * c, b2),
        estimates=estimates,
        warnings=tuple(flags),
        draws=draws,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """quantity* = coefficient * C^exponent through the minima of `budgets_flops`."""

    quantity: str
    exponent: Estimate
    log_coefficient: float
    budgets_flops: tuple[float, ...]
    warnings: tuple[Flag, ...]

    def at(self, compute_flops: np.ndarray | float) -> np.ndarray:
        return np.exp(self.log_coefficient + self.exponent.value * np.log(compute_flops))


def allocation(minima: Sequence[Minimum], quantity: str = "num_params") -> Allocation:
    """The power law of the optimal size (or `quantity` "num_tokens") in compute, by least squares in logarithms.

    Minima that open downward or lie outside their sizes are left out and named. Raises BadInput where fewer than
    two remain.
    """
    if quantity not in ("num_params", "num_tokens"):
        raise BadInput(f"quantity is {quantity!r}; choose num_params or num_tokens")
    used = [m for m in minima if m.usable and getattr(m, f"{quantity}_opt") is not None]
    if quantity == "num_tokens" and not used and any(m.usable for m in minima):
        raise BadInput("no minimum has tokens; give num_tokens to isoflop_minima")
    left_out = [m for m in minima if m not in used]
    if len(used) < 2:
        raise BadInput(
            f"{len(used)} of {len(minima)} budgets have a minimum inside their sizes; a law in compute needs 2 or more"
        )
    log_compute = np.log([m.budget_flops for m in used])
    line = np.linalg.pinv(np.stack([np.ones_like(log_compute), log_compute], axis=1))
    intercept, slope = line @ np.log([getattr(m, f"{quantity}_opt") for m in used])
    draws = None
    if all(f"ln_{quantity}_opt" in m.draws for m in used):
        draws = line[1] @ np.stack([m.draws[f"ln_{quantity}_opt"] for m in used])
    flags = [
        Flag(
            code="minimum_left_out",
            message=f"the minimum at {m.budget_flops:.3g} FLOPs is not used: not inside its sizes",
        )
        for m in left_out
    ]
    return Allocation(
        quantity=quantity,
        exponent=estimate(float(slope), draws, method="line through the minima, draws of their noise"),
        log_coefficient=float(intercept),
        budgets_flops=tuple(m.budget_flops for m in used),
        warnings=tuple(flags),
    )
