"""A law, its noise and the points of a grid in; the covariance of the fits to come, and what follows from them, out.

To first order a fit of log losses moves by W psi, W = (J' P J)^-1 J', with J = d ln loss / d parameter at the points,
psi the errors clipped at the Huber threshold and P the share of them inside it (`noise`). Two groups, a reference and
a target matched in pairs, are stacked:

    cov(group a, group b) = W_a M_ab W_b',   M_ab,ij = cov(psi_ai, psi_bj)

so that what a pair shares cancels in the saving. In logarithms that is d = ln C_ref - ln C, the reference having at
C_ref the loss that the target has at C. By the envelope theorem, with v the gradients of the loss at the two optima
and slope = -d loss / d ln C of the reference at C_ref,

    delta d = (v_ref' delta theta_ref - v_target' delta theta_target) / slope,   saving = 1 - exp(-d)

Leading axes [...] are grids that differ by a factor in compute alone. Parameters are the floor, ln coefficients and
exponents. It knows no prices.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from smelt.errors import BadInput
from smelt.fit import laws
from smelt.fit.designs import Ground
from smelt.fit.noise import TRUNK_CORRELATION, Noise, score_correlation, score_slope, score_variance

SINGULAR = 1e13  # a condition number that leaves no digit of the parameters


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """How the fits to come are made: their noise, the Huber threshold of their residuals (infinite: least squares),
    whether those are of the loss (`raw`) or of its logarithm, and `threshold`, delta over the noise where the savings
    are asked, at which correlations are clipped."""

    noise: Noise
    raw: bool
    delta: float
    threshold: float

    def pairing(self, correlation: float, seeds: int) -> float:
        """Correlation of two rows' errors -> of their scores, averaged over the pairs of seeds of the two rows."""
        again = correlation * (1 - self.noise.seed_frac)
        return (_correlation(correlation, self.threshold) + (seeds - 1) * _correlation(again, self.threshold)) / seeds

    @property
    def inflation(self) -> float:
        """The standard error of a parameter over that of least squares."""
        return float(np.sqrt(score_variance(self.threshold)) / score_slope(self.threshold))


_correlation = lru_cache(maxsize=4096)(score_correlation)


def influence(base: Ground, columns: Mapping[str, np.ndarray], fitting: Fitting) -> tuple[np.ndarray, np.ndarray]:
    """W times the standard deviation of each score [..., P, rows], and the condition number [...] of J' P J in centred
    logarithms with unit diagonal, as the certificate of a fit has it. J is of raw losses where the residuals are.

    Raises BadInput where the points cannot tell the parameters apart.
    """
    law = base.law
    loss = laws.predicted_loss(law, base.parameters, columns)
    gradient = laws.loss_gradient(law, base.parameters, columns)
    per_residual = np.ones_like(loss) if fitting.raw else loss
    jacobian = np.stack([gradient[name] * _unit(base, name) / per_residual for name in law.parameters], axis=-1)
    # Exponents about the mean of their columns, where the coefficients do not stand in for them.
    centre = np.zeros((*loss.shape[:-1], len(law.parameters), len(law.parameters))) + np.eye(len(law.parameters))
    for term in law.terms:
        for p in term.powers:
            if isinstance(p.exponent, str):  # a number is not fitted
                place = law.parameters.index(term.coefficient), law.parameters.index(p.exponent)
                centre[..., *place] -= p.sign * np.log(columns[p.column]).mean(axis=-1)
    jacobian = jacobian @ centre
    sd = fitting.noise.log_sd(loss) * loss / per_residual
    clipped = fitting.delta / sd
    transposed = np.swapaxes(jacobian, -1, -2)
    gram = transposed @ (score_slope(clipped)[..., None] * jacobian)
    unit = 1 / np.sqrt(np.einsum("...pp->...p", gram))
    scaled = gram * unit[..., :, None] * unit[..., None, :]
    condition = np.linalg.cond(scaled)
    if not (condition < SINGULAR).all():
        raise BadInput(
            f"these points cannot tell {', '.join(law.parameters)} apart (condition number {condition.max():.0e}); "
            "give budgets and sizes that span more"
        )
    solved = np.linalg.solve(scaled, transposed * unit[..., :, None]) * unit[..., :, None]
    return centre @ solved * (sd * np.sqrt(score_variance(clipped)))[..., None, :], condition


def _unit(base: Ground, name: str) -> float:
    """d parameter / d what is estimated: coefficients go by their logarithm."""
    return base.parameters[name] if name in base.law.coefficients and name != base.law.floor else 1.0


def covariances(
    reference: np.ndarray, target: np.ndarray, trunks: np.ndarray | None, fitting: Fitting
) -> Callable[[int], dict[str, np.ndarray]]:
    """From the influences of two groups: number of seeds -> the covariances [..., P, P] of "reference", "target" and
    "cross" (reference with target)."""
    noise = fitting.noise
    parts = {
        "reference": (reference, reference, 1.0),
        "target": (target, target, 1.0),
        "cross": (reference, target, noise.pair_correlation),
    }
    alone = {name: one @ np.swapaxes(two, -1, -2) for name, (one, two, _) in parts.items()}
    within: dict[str, np.ndarray] = {}
    trunk_correlation = TRUNK_CORRELATION if noise.trunk_correlation is None else noise.trunk_correlation
    if trunks is not None:
        same = (trunks[:, None] == trunks) & ~np.eye(len(trunks), dtype=bool)
        within = {name: one @ same @ np.swapaxes(two, -1, -2) for name, (one, two, _) in parts.items()}

    def with_seeds(seeds: int) -> dict[str, np.ndarray]:
        found = {}
        for name, (_, _, shared) in parts.items():
            found[name] = fitting.pairing(shared, seeds) * alone[name]
            if within:
                found[name] = found[name] + fitting.pairing(shared * trunk_correlation, seeds) * within[name]
        return found

    return with_seeds


def _loss_direction(base: Ground, compute: np.ndarray) -> np.ndarray:
    """d frontier loss / d parameters [..., P] at compute [...]: the law's own gradient at the optimum."""
    gradient = laws.loss_gradient(base.law, base.parameters, base.columns(base.log_size(compute), compute))
    return np.stack([gradient[name] * _unit(base, name) for name in base.law.parameters], axis=-1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """What one group's fit gives at a compute: values, how each is told (linear, or log where it is known by a
    factor), and the gradients [Q, P] of the values or of their logarithms."""

    values: dict[str, float]
    scales: dict[str, str]
    directions: np.ndarray

    def errors(self, covariance: np.ndarray) -> dict[str, np.ndarray]:
        """Standard errors [...] for covariances [..., P, P]."""
        variance = ((self.directions @ covariance) * self.directions).sum(axis=-1)
        return dict(zip(self.values, np.moveaxis(np.sqrt(np.maximum(variance, 0.0)), -1, 0), strict=True))


def quantities(base: Ground, at_flops: float) -> Quantities:
    """Parameters, allocation (size* ~ C^allocation), frontier_exponent, and the optimum's size, num_tokens and loss."""
    law, names = base.law, base.law.parameters
    direction = {name: np.eye(len(names))[index] for index, name in enumerate(names)}
    terms = {p.column: (term.coefficient, p) for term in law.terms for p in term.powers}
    (size_coefficient, size_power), (token_coefficient, token_power) = terms[base.size], terms["num_tokens"]
    a, c = (-power.value(base.parameters) for power in (size_power, token_power))
    # An exponent that is a number is not fitted and has no direction.
    da, dc = (direction.get(str(power.exponent), np.zeros(len(names))) for power in (size_power, token_power))
    log_size = float(base.log_size(at_flops))
    direction["allocation"] = (a * dc - c * da) / (a + c) ** 2
    direction["frontier_exponent"] = (c * c * da + a * a * dc) / (a + c) ** 2
    # (a + c) ln size* = ln a - ln c + ln A - ln K + c ln(C / k)
    direction["size"] = (
        direction[size_coefficient]
        - direction[token_coefficient]
        + (1 / a - log_size) * da
        + (math.log(at_flops / base.flops_per_unit) - 1 / c - log_size) * dc
    ) / (a + c)
    direction["num_tokens"] = -direction["size"]
    direction["loss"] = _loss_direction(base, np.array(at_flops))
    optimum = base.columns(np.array(log_size), np.array(at_flops))
    values = {
        **base.parameters,
        "allocation": base.allocation,
        "frontier_exponent": base.exponent,
        "size": float(optimum[base.size]),
        "num_tokens": float(optimum["num_tokens"]),
        "loss": float(base.floor + base.reducible(at_flops)),
    }
    by_factor = {*law.coefficients, "size", "num_tokens"} - {law.floor}
    return Quantities(
        values=values,
        scales={name: "log" if name in by_factor else "linear" for name in values},
        directions=np.stack([direction[name] for name in values]),
    )


def gain_error(base: Ground, target: Ground, compute_flops: float) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Covariances -> the standard error [...] of ln C_ref - ln C at the target's compute."""
    loss = target.floor + target.reducible(compute_flops)
    needed = np.exp((base.log_coefficient - np.log(loss - base.floor)) / base.exponent)
    slope = base.exponent * base.reducible(needed)
    one = _loss_direction(base, np.array(needed)) / slope
    other = _loss_direction(target, np.array(compute_flops)) / slope

    def error(covariances: Mapping[str, np.ndarray]) -> np.ndarray:
        own = (covariances["reference"] @ one) @ one + (covariances["target"] @ other) @ other
        # [..., P, Q] @ [Q] @ [P]: the cross covariance is of reference with target.
        shared = (covariances["cross"] @ other) @ one
        return np.sqrt(np.maximum(own - 2 * shared, 0.0))

    return error
