"""Sizes, losses and budgets in, the compute-optimal size and loss of every budget out (Approach 2, IsoFLOP).

Per budget a parabola of the loss (not of its logarithm) in ln size:

    loss = loss_min + curvature * (ln size - ln size_opt)^2,    curvature > 0

Runs of one size and budget (seeds) enter as their mean. Noise is pooled over budgets; intervals come from draws of
the noise with Student's t tails (`intervals.noise_factors`), jointly over groups, so that what matched runs share
cancels in a comparison. It does not know the law behind the losses: where the two exponents differ, or the grid is
wide or off centre, the vertex is biased (`BIAS_NOTE`), which no interval shows.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, tables
from smelt.fit.result import Estimate, Flag, estimate

# From Czech et al. (arXiv 2603.22339): D* extrapolated three decades on noise-free Chinchilla data, 15 points a budget.
BIAS_NOTE = (
    "A parabola is not the true curve: on noise-free losses of Chinchilla's law (exponents 0.34 and 0.28) its optimal "
    "token count, extrapolated by three decades, is 0.3, 1.3, 2.9 and 5.1 % low for grids of 2, 4, 8 and 16 times "
    "either side of the optimum, and further off where the grid drifts off centre."
)
NOISE_STREAM = 1  # apart from the stream that resamples units under the same seed
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
    draws: dict[str, np.ndarray]

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


def isoflop_minima(
    num_params: Sequence | np.ndarray,
    loss_nats: Sequence | np.ndarray,
    budget_flops: Sequence | np.ndarray,
    num_tokens: Sequence | np.ndarray | None = None,
    *,
    cell: Sequence[Hashable] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> list[Minimum]:
    """Minima of one group, one a distinct budget, in rising order of budget.

    `budget_flops` are labels: rows of one budget carry one number. `cell` labels the size of a row (default: the
    number itself), so that seeds of one size are averaged. `num_tokens` adds the optimal token count. Raises
    BadInput where no budget has three sizes. Hoffmann et al. 2022, approach 2.
    """
    rows = {"num_params": num_params, "loss_nats": loss_nats, "budget_flops": budget_flops}
    if num_tokens is not None:
        rows["num_tokens"] = num_tokens
    table: dict = tables.positive_columns(rows, list(rows))
    table["cell"] = list(table["num_params"]) if cell is None else list(cell)
    return minima_of_groups({"": table}, draws=draws, seed=seed)[""]


def minima_of_groups(groups: Mapping[str, Mapping], *, draws: int = 1000, seed: int = 0) -> dict[str, list[Minimum]]:
    """`isoflop_minima` for several groups with joint draws: noise is correlated as the residuals of equal cells are.

    Each group is a table of columns num_params, loss_nats, budget_flops, cell and, if it has it, num_tokens.
    """
    names = sorted(groups)  # so that the order of rows does not move the draws
    parabolas = {name: _parabolas(groups[name]) for name in names}
    if not any(p is not None for by_budget in parabolas.values() for _, p in by_budget.values()):
        raise BadInput("no budget has three different sizes; a parabola needs three, an interval five or more")
    covariance_GG, degrees = _noise(parabolas)
    generator = np.random.default_rng([seed, NOISE_STREAM])
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
            sigma = math.sqrt(covariance_GG[index, index]) if degrees else None
            found[name].append(_minimum(budget, sizes, parabola, beta_RP, sigma, degrees))
    return found


def _parabolas(table: Mapping) -> dict[float, tuple[np.ndarray, _Parabola | None]]:
    by_budget = {}
    budgets = np.asarray(table["budget_flops"], dtype=float)
    labels = list(table["cell"])
    for budget in np.unique(budgets):
        members: dict[Hashable, list[int]] = {}
        for row in np.flatnonzero(budgets == budget):
            members.setdefault(labels[row], []).append(int(row))
        cells = sorted(members, key=lambda label: (float(np.mean(table["num_params"][members[label]])), str(label)))
        x = np.array([np.mean(np.log(table["num_params"][members[c]])) for c in cells])
        y = np.array([np.mean(table["loss_nats"][members[c]]) for c in cells])
        tokens = None
        if table.get("num_tokens") is not None:
            tokens = np.array([np.mean(np.log(table["num_tokens"][members[c]])) for c in cells])
        if len(np.unique(np.round(x, 9))) < 3:
            by_budget[float(budget)] = (np.exp(x), None)
            continue
        centre = float(x.mean())
        powers = np.stack([np.ones_like(x), x - centre, (x - centre) ** 2], axis=1)
        solve = np.linalg.pinv(powers)
        beta = solve @ y
        by_budget[float(budget)] = (
            np.exp(x),
            _Parabola(
                cells=cells,
                x=x - centre,
                centre=centre,
                y=y,
                tokens=tokens,
                solve=solve,
                beta=beta,
                residual=y - powers @ beta,
            ),
        )
    return by_budget


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
    if sizes.max() / sizes.min() > WIDE_GRID:
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
            flag("vertex_outside", f"the minimum ({vertex:.3g}) lies outside the sizes trained; add {side} ones")
        if parabola.tokens is not None and inside:
            # ln tokens against ln size is near a line inside a budget: interpolate, never extrapolate.
            tokens = float(np.exp(np.interp(x, parabola.x, parabola.tokens)))
    draws, estimates = {}, {}
    if vertex is not None:
        reason = None
        if beta_RP is not None:
            d0, d1, d2 = beta_RP.T
            up = d2 > 0
            safe = np.where(up, d2, 1.0)
            draws["ln_num_params_opt"] = np.where(up, parabola.centre - d1 / (2 * safe), np.nan)
            draws["loss_min"] = np.where(up, d0 - d1 * d1 / (4 * safe), np.nan)
        else:
            reason = "three sizes leave no residual to know the noise from"
        method = f"noise pooled over budgets, Student t with {degrees} degrees of freedom"
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
