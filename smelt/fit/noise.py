"""Rows of a pilot, or given numbers, in; how much a run's loss scatters, alone and with its partner, out.

    ln loss = ln law + shared + own        (or the same in nats: the unit is part of a Noise)

`shared` is what the two runs of a matched pair have in common (data order, seed, a budget that missed) and `own` what
a run has alone; var = own^2 + shared^2. Another seed draws `seed_frac` of that variance anew: what the law misses, or
a rate that suits one size less, comes again with every seed. Rows that were decayed from one trunk correlate.

It also knows what a Huber objective makes of such noise, in closed form for Gaussian noise of standard deviation s and
the threshold k = delta / s (Huber 1964): the variance of an estimate is `score_variance` / `score_slope`^2 times that
of least squares (pi/2 as k falls to 0, 1 as it rises), and two errors that correlate by r enter as if they did by
`score_correlation`, which is below r: least absolute deviations turn 0.9 into 0.71. It does not know any design.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import laws, tables
from smelt.fit.result import Estimate, Flag
from smelt.fit.surface import fit_surface

UNITS = ("log", "nats")
TRUNK_CORRELATION = 0.5  # assumed where no pilot tells: half of a row's variance is its trunk's
FEW_DEGREES = 10  # below it a standard deviation is known to a factor of 1.4 up, 0.7 down or worse: chosen


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The scatter of one run's loss about the law.

    own, shared        standard deviations: of a run alone, and of what a matched pair shares
    unit               "log": of ln loss (0.004 is 0.4 % of the loss); "nats": of the loss itself
    seed_frac          the share of the variance that another seed draws anew, 0 to 1
    trunk_correlation  between rows decayed from one trunk; None: `TRUNK_CORRELATION`, and a plan says it was assumed
    """

    own: float
    shared: float
    unit: str
    seed_frac: float = 1.0
    trunk_correlation: float | None = None

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise BadInput(f"the unit of the noise is {self.unit!r}; choose one of {', '.join(UNITS)}")
        for name in ("own", "shared"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise BadInput(f"{name} noise is {value}; give a standard deviation of at least 0, such as 0.004")
        if not self.own + self.shared > 0:
            raise BadInput("the noise is 0; a plan needs some, such as 0.004 of the loss")
        if not 0 <= self.seed_frac <= 1:
            raise BadInput(f"seed_frac is {self.seed_frac}; give a share of the variance between 0 and 1")
        if self.trunk_correlation is not None and not 0 <= self.trunk_correlation < 1:
            raise BadInput(f"trunk_correlation is {self.trunk_correlation}; give 0 or more and below 1")

    @property
    def total(self) -> float:
        """The standard deviation of one run."""
        return math.hypot(self.own, self.shared)

    @property
    def pair_correlation(self) -> float:
        return self.shared**2 / self.total**2

    def log_sd(self, loss: np.ndarray) -> np.ndarray:
        """The standard deviation of ln loss at predicted losses."""
        return np.full(np.shape(loss), self.total) if self.unit == "log" else self.total / np.asarray(loss)

    def times(self, factor: float) -> "Noise":
        """`factor` times as much of both parts."""
        return dataclasses.replace(self, own=factor * self.own, shared=factor * self.shared)


def given_noise(total: float, *, unit: str = "log", pair_correlation: float = 0.0, **others: float | None) -> Noise:
    """A Noise from one run's standard deviation and the share of its variance that a pair has in common.

    >>> round(given_noise(0.005, pair_correlation=0.36).shared, 12)
    0.003
    """
    if not 0 <= pair_correlation <= 1:
        raise BadInput(f"pair_correlation is {pair_correlation}; give a share of the variance between 0 and 1")
    if not (math.isfinite(total) and total > 0):
        raise BadInput(f"the noise is {total}; give a standard deviation above 0, such as 0.004")
    own, shared = total * math.sqrt(1 - pair_correlation), total * math.sqrt(pair_correlation)
    return Noise(own=own, shared=shared, unit=unit, **others)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A standard deviation with its chi-square 95 % interval; None with the reason where it cannot be had."""

    sd: float | None
    low: float | None
    high: float | None
    degrees_of_freedom: int
    reason: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PilotNoise:
    """What a pilot says of its noise; `noise` is what a plan takes.

    seeds             spread over seeds of one cell (group, budget, size), pooled
    residuals         spread about the law fitted to each group, pooled; holds what the law misses as well
    pair_correlation  of the residuals of matched runs
    trunk_correlation of the residuals of one trunk, None without a column `trunk`
    factor_low, _high the interval of the spread taken, relative to it: every width of a plan scales so
    source            "residuals" or "seeds": whose spread `noise` is
    """

    noise: Noise
    seeds: Spread
    residuals: Spread
    pair_correlation: Estimate
    trunk_correlation: Estimate | None
    source: str
    factor_low: float | None
    factor_high: float | None
    warnings: tuple[Flag, ...]


def noise_from_rows(
    table: Mapping[str, Sequence], law: laws.Law | str, *, loss_column: str = "loss_nats", unit: str = "log"
) -> PilotNoise:
    """The noise of a pilot's runs, from their seeds and from the residuals of the law fitted to each group.

    `table` holds one list a column: `loss_column`, the law's columns (flops_per_token may come as train_flops over
    num_tokens); group, budget_flops, pair (label of the size that matched runs share), seed and trunk where there are
    any. Runs are of one cell where budget and pair agree, without either where the law's columns do. Rows without a
    loss are left out and flagged. Residuals are of least squares, whose degrees of freedom are exact to first order.
    Taken are the residuals where any are to spare, else the seeds; where both are there their ratio gives `seed_frac`.
    Raises BadInput where neither can be had.
    """
    law = laws.law(law)
    rows, flags = _rows(table, law, loss_column)
    loss = rows["loss"]
    scale = np.log(loss) if unit == "log" else loss
    cells: dict[tuple, list[float]] = {}
    for index, value in enumerate(scale):
        cells.setdefault((rows["group"][index], rows["cell"][index]), []).append(value)
    repeated = [np.array(values) for values in cells.values() if len(values) > 1]
    seeds = _spread(
        sum(float(((v - v.mean()) ** 2).sum()) for v in repeated),
        sum(len(v) - 1 for v in repeated),
        "no cell (budget, size) of a group has two seeds",
    )
    residual, squares, degrees, trunk_sums, reason = np.full(len(loss), np.nan), 0.0, 0, np.zeros((2, 3)), None
    for group in dict.fromkeys(rows["group"]):
        where = np.flatnonzero(rows["group"] == group)
        columns = {name: rows[name][where] for name in law.columns}
        try:
            fit = fit_surface(columns, loss[where], law, objective="squares_log")
        except BadInput as error:
            reason = f"{group}: {error}"
            continue
        own = fit.residuals_log if unit == "log" else loss[where] - fit.predict(columns)
        if not np.isfinite(own).all():
            reason = f"{group}: the fitted law predicts no loss for {int((~np.isfinite(own)).sum())} rows"
            continue
        residual[where] = own
        squares, degrees = squares + float(own @ own), degrees + len(where) - len(law.parameters)
        if rows["trunk"] is not None:
            trunk_sums += _trunk_equations(law, fit.parameters, columns, own, rows["trunk"][where])
    residuals = _spread(squares, degrees, reason or "every group has as many parameters as rows")
    if residuals.sd is None and seeds.sd is None:
        raise BadInput(f"the pilot shows no noise: {residuals.reason}; and {seeds.reason}; give a noise level")
    source, taken = ("residuals", residuals) if residuals.sd is not None else ("seeds", seeds)
    pairing = _pair_correlation(rows, residual, len(law.parameters))
    trunks = None if rows["trunk"] is None else _trunk_correlation(trunk_sums)
    seed_frac = 1.0
    if residuals.sd and seeds.sd is not None:
        seed_frac = min(1.0, (seeds.sd / residuals.sd) ** 2)
        flags += _misfit(seeds, residuals)
    assert taken.sd is not None
    if taken.degrees_of_freedom < FEW_DEGREES:
        message = f"the noise rests on {taken.degrees_of_freedom} degrees of freedom: {taken.low:.2g} to "
        flags.append(Flag(code="noise_uncertain", message=f"{message}{taken.high:.2g} around {taken.sd:.2g}"))
    if pairing.value is None:
        flags.append(Flag(code="pairing_unknown", message=f"pairs are taken to share no noise: {pairing.reason}"))
    return PilotNoise(
        noise=given_noise(
            taken.sd,
            unit=unit,
            pair_correlation=min(max(pairing.value or 0.0, 0.0), 1.0),
            seed_frac=seed_frac,
            trunk_correlation=None if trunks is None or trunks.value is None else min(max(trunks.value, 0.0), 0.99),
        ),
        seeds=seeds,
        residuals=residuals,
        pair_correlation=pairing,
        trunk_correlation=trunks,
        source=source,
        factor_low=None if taken.low is None else taken.low / taken.sd,
        factor_high=None if taken.high is None else taken.high / taken.sd,
        warnings=tuple(flags),
    )


def _rows(table: Mapping[str, Sequence], law: laws.Law, loss_column: str) -> tuple[dict, list[Flag]]:
    if loss_column not in table:
        raise BadInput(f"the table has no column {loss_column!r}; give it, have {', '.join(table) or 'none'}")
    kept = [index for index, value in enumerate(table[loss_column]) if value is not None]
    flags = []
    if left_out := len(table[loss_column]) - len(kept):
        flags.append(Flag(code="rows_left_out", message=f"{left_out} rows have no {loss_column}"))
    if not kept:
        raise BadInput(f"no row of {len(table[loss_column])} has a {loss_column}; there is no noise to see")
    chosen = {name: [values[index] for index in kept] for name, values in table.items()}
    if "flops_per_token" in law.columns and "train_flops" in chosen:
        given = tables.positive_columns(chosen, ("train_flops", "num_tokens"), len(kept))
        chosen["flops_per_token"] = given["train_flops"] / given["num_tokens"]
    rows: dict = tables.positive_columns(chosen, law.columns, len(kept))
    rows["loss"] = tables.positive(loss_column, chosen[loss_column])
    rows["group"] = np.array([str(name) for name in chosen.get("group", ["all"] * len(kept))], dtype=object)
    labels = [name for name in ("budget_flops", "pair") if name in chosen]
    if "pair" not in chosen:
        labels += law.columns
        chosen |= {name: rows[name] for name in law.columns}
    rows["cell"] = list(zip(*([str(value) for value in chosen[name]] for name in labels), strict=True))
    rows["seed"] = [str(label) for label in chosen.get("seed", [0] * len(kept))]
    rows["trunk"] = np.array([str(t) for t in chosen["trunk"]], dtype=object) if "trunk" in chosen else None
    return rows, flags


def _spread(squares: float, degrees: int, reason: str) -> Spread:
    if degrees < 1:
        return Spread(sd=None, low=None, high=None, degrees_of_freedom=0, reason=reason)
    from scipy.special import chdtri

    low, high = (math.sqrt(squares / float(chdtri(degrees, tail))) for tail in (0.025, 0.975))
    return Spread(sd=math.sqrt(squares / degrees), low=low, high=high, degrees_of_freedom=degrees)


def _pair_correlation(rows: Mapping, residual: np.ndarray, num_parameters: int) -> Estimate:
    """Of the residuals of the first group and each other; Fisher's interval. Both groups lose the same directions to
    their fits where their designs are alike, so the ratio of sums is not biased by that."""
    method = "correlation of the residuals of matched runs; Fisher's z for its interval"
    groups = list(dict.fromkeys(rows["group"]))
    place = {
        key: index
        for index, key in enumerate(zip(rows["group"], rows["cell"], rows["seed"], strict=True))
        if not np.isnan(residual[index])
    }
    matched = [
        (index, place[(groups[0], *key[1:])])
        for key, index in place.items()
        if key[0] != groups[0] and (groups[0], *key[1:]) in place
    ]
    spare = len(matched) - num_parameters * max(len(groups) - 1, 1)
    if spare < 4:
        reason = f"{len(matched)} matched pairs of fitted runs leave {max(spare, 0)} degrees of freedom, 4 are needed"
        return Estimate(value=None, method=method, reason=reason)
    one, other = residual[np.array(matched).T]
    value = float(one @ other / math.sqrt(float((one @ one) * (other @ other))))
    half = 1.96 / math.sqrt(spare - 2)
    z = math.atanh(min(max(value, -0.999999), 0.999999))
    return Estimate(value=value, low=math.tanh(z - half), high=math.tanh(z + half), method=method)


def _trunk_equations(law, parameters, columns, residual: np.ndarray, trunks: np.ndarray) -> np.ndarray:
    """Expected against seen sums of squares, in all and within trunks: two equations in the two variances.

    The fit takes out P directions (M projects onto the rest), which makes residuals of one trunk look less alike than
    the errors were: E[e'e] = a tr M + b tr MT and E[e'Te] = a tr MT + b tr MTMT for the covariance a I + b T.
    """
    loss = laws.predicted_loss(law, parameters, columns)
    gradient = laws.loss_gradient(law, parameters, columns)
    jacobian = np.stack([gradient[name] / loss for name in law.parameters], axis=1)
    basis, _ = np.linalg.qr(jacobian / np.linalg.norm(jacobian, axis=0))
    left = np.eye(len(residual)) - basis @ basis.T
    same = (trunks[:, None] == trunks).astype(float)
    within = left @ same
    return np.array(
        [
            [np.trace(left), np.trace(within), residual @ residual],
            [np.trace(within), np.sum(within * within.T), residual @ same @ residual],
        ]
    )


def _trunk_correlation(sums: np.ndarray) -> Estimate:
    method = "variances of rows and trunks from residuals, corrected for the fitted parameters"
    determinant = sums[0, 0] * sums[1, 1] - sums[0, 1] * sums[1, 0]
    if determinant < 1e-6 * sums[0, 0] ** 2:
        return Estimate(value=None, method=method, reason="no trunk has two rows to spare")
    alone, trunk = np.linalg.solve(sums[:, :2], sums[:, 2])
    value = float(max(trunk, 0.0) / (max(trunk, 0.0) + max(alone, 0.0)))
    return Estimate(value=value, method=method, reason="a pilot of few trunks tells no interval")


def _misfit(seeds: Spread, residuals: Spread) -> list[Flag]:
    from scipy.special import fdtrc

    assert seeds.sd is not None
    assert residuals.sd is not None
    ratio = (residuals.sd / seeds.sd) ** 2 if seeds.sd else math.inf
    if fdtrc(residuals.degrees_of_freedom, seeds.degrees_of_freedom, ratio) >= 0.05:
        return []
    message = (
        f"runs scatter {residuals.sd:.2g} about the law and {seeds.sd:.2g} over seeds: more seeds do not mend what "
        "every seed repeats (the form of the law, the tuning of single sizes)"
    )
    return [Flag(code="law_misses", message=message)]


def _standard_normal(x: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Density and distribution function."""
    from scipy.special import ndtr

    return np.exp(-0.5 * np.square(x)) / math.sqrt(2 * math.pi), ndtr(x)


def score_slope(threshold: np.ndarray | float) -> np.ndarray:
    """E psi' of psi(z) = clip(z, -k, k), z standard normal: the share of rows inside the threshold."""
    return 2 * _standard_normal(threshold)[1] - 1


def score_variance(threshold: np.ndarray | float) -> np.ndarray:
    """E psi^2; over `score_slope`^2 it is the variance of a Huber estimate relative to least squares.

    >>> [round(float(score_variance(k) / score_slope(k) ** 2), 3) for k in (0.01, 0.5, 1.345, 9.0)]
    [1.562, 1.263, 1.053, 1.0]
    """
    k = np.minimum(threshold, 1e3)  # infinite for least squares
    density, below = _standard_normal(k)
    return 2 * below - 1 - 2 * k * density + 2 * k * k * (1 - below)


def score_correlation(correlation: float, threshold: float) -> float:
    """corr(psi(x), psi(y)) of standard normals x, y that correlate by `correlation`.

    As the threshold falls to 0 it is (2/pi) arcsin r. Through the closed conditional mean of psi(y) at x, summed over
    x by the trapezoid rule.

    >>> round(score_correlation(0.9, 1e-3), 3), round(score_correlation(0.9, 99.0), 3)
    (0.713, 0.9)
    """
    if correlation in (0.0, 1.0):
        return correlation
    k = min(threshold, 1e3)
    x = np.linspace(-9.0, 9.0, 4001)
    weight = _standard_normal(x)[0]
    mean, sd = correlation * x, math.sqrt(1 - correlation**2)
    (high_density, below_high), (low_density, below_low) = (_standard_normal((end - mean) / sd) for end in (k, -k))
    inside = mean * (below_high - below_low) + sd * (low_density - high_density)
    conditional = k * (1 - below_high) - k * below_low + inside
    product = float((weight * np.clip(x, -k, k) * conditional).sum() / weight.sum())
    return product / float(score_variance(k))
