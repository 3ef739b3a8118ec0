"""A scaling law as a value: column names and exponent names in, predicted losses and their gradients out.

    loss = E + sum_k  coefficient_k * prod_j  column_kj ^ (sign_kj * exponent_kj)

Every law of this module is such a sum: an optional floor E (the irreducible loss) and power-law terms in named
columns. Two terms that name one exponent are tied. Adding a law is one value, no class:

    kaplan = Law(name="no_floor", floor=None, terms=(decay("A", num_params="alpha"), decay("B", num_tokens="beta")))

In logarithms a term is linear in (ln coefficient, exponents): u_k = ln coefficient_k + sum_m Z_kmi exponent_m, and
ln loss = logsumexp_k u_k. The solver knows a law by Z alone. Which loss, which text and which count of parameters
or FLOPs the columns hold is the caller's business.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from smelt.errors import BadInput


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """One factor column ^ (sign * exponent); sign -1 is a loss that falls as the column grows."""

    column: str
    exponent: str
    sign: int = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """coefficient times the product of `powers`."""

    coefficient: str
    powers: tuple[Power, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A floor (None: the law falls to zero) and power-law terms; parameter names must be distinct."""

    name: str
    floor: str | None
    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        names = (*self.coefficients, *self.exponents)
        if len(set(names)) != len(names) or not self.terms:
            raise ValueError(f"a law needs terms with distinct parameter names, got {names}")

    @property
    def coefficients(self) -> tuple[str, ...]:
        """The positive parameters: the floor first where there is one, then one a term."""
        floor = () if self.floor is None else (self.floor,)
        return (*floor, *(term.coefficient for term in self.terms))

    @property
    def exponents(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(power.exponent for term in self.terms for power in term.powers))

    @property
    def parameters(self) -> tuple[str, ...]:
        return (*self.coefficients, *self.exponents)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(power.column for term in self.terms for power in term.powers))

    @property
    def equation(self) -> str:
        terms = [
            " ".join([term.coefficient] + [f"{p.column}^{'-' if p.sign < 0 else ''}{p.exponent}" for p in term.powers])
            for term in self.terms
        ]
        return "loss = " + " + ".join(terms if self.floor is None else [self.floor, *terms])

    def design(self, log_columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Z [num_coefficients, num_exponents, num_rows]: the derivative of each log term by each exponent."""
        num_rows = len(next(iter(log_columns.values())))
        design = np.zeros((len(self.coefficients), len(self.exponents), num_rows))
        offset = 0 if self.floor is None else 1
        for index, term in enumerate(self.terms):
            for power in term.powers:
                row = self.exponents.index(power.exponent)
                design[offset + index, row] += power.sign * log_columns[power.column]
        return design


def decay(coefficient: str, **exponents: str) -> Term:
    """coefficient * prod column^-exponent, with column=exponent name as keywords."""
    return Term(
        coefficient=coefficient,
        powers=tuple(Power(column=column, exponent=exponent) for column, exponent in exponents.items()),
    )


# loss = E + A N^-alpha + B D^-beta (Hoffmann et al. 2022, approach 3).
CHINCHILLA = Law(name="chinchilla", floor="E", terms=(decay("A", num_params="alpha"), decay("B", num_tokens="beta")))
# loss = E + A (1-S)^b F^-a + K D^-c (SMELT, arXiv 2609.01343): F training FLOPs per token, density = 1 - S.
SMELT = Law(
    name="smelt",
    floor="E",
    terms=(
        Term(
            coefficient="A",
            powers=(
                Power(column="flops_per_token", exponent="a"),
                Power(column="density", exponent="b", sign=1),
            ),
        ),
        decay("K", num_tokens="c"),
    ),
)
# The same at one sparsity, where the factor (1-S)^b is a constant inside A.
FLOPS_TOKENS = Law(name="flops_tokens", floor="E", terms=(decay("A", flops_per_token="a"), decay("K", num_tokens="c")))
# Frontiers: loss = A C^-alpha, and loss = E + A C^-alpha.
PURE = Law(name="pure", floor=None, terms=(decay("A", compute_flops="alpha"),))
SATURATING = Law(name="saturating", floor="E", terms=(decay("A", compute_flops="alpha"),))

NAMED = {law.name: law for law in (CHINCHILLA, SMELT, FLOPS_TOKENS, PURE, SATURATING)}


def law(law_or_name: Law | str) -> Law:
    """The law itself, or the one of that name in `NAMED`."""
    if isinstance(law_or_name, Law):
        return law_or_name
    if law_or_name not in NAMED:
        raise BadInput(f"no law is called {law_or_name!r}; choose one of {', '.join(NAMED)}")
    return NAMED[law_or_name]


def predicted_loss(
    law: Law, parameters: Mapping[str, np.ndarray | float], columns: Mapping[str, np.ndarray | float]
) -> np.ndarray:
    """The law's loss at `columns`, in the unit of its coefficients.

    Parameters and columns broadcast: draws of shape [num_draws, 1] against columns [num_rows] give a table.

    >>> round(float(predicted_loss(PURE, {"A": 3.0, "alpha": 0.5}, {"compute_flops": 4.0})), 9)
    1.5
    """
    missing = [column for column in law.columns if column not in columns]
    if missing:
        raise BadInput(f"the law {law.name} needs the column {missing[0]!r}; give it, have {', '.join(columns)}")
    total = 0.0 if law.floor is None else np.asarray(parameters[law.floor], dtype=float)
    for term in law.terms:
        log_factor = sum(
            power.sign * np.asarray(parameters[power.exponent]) * np.log(columns[power.column]) for power in term.powers
        )
        with np.errstate(divide="ignore"):
            # In logarithms: A alone can overflow in a draw whose product with the power does not.
            total = total + np.exp(np.log(parameters[term.coefficient]) + log_factor)
    return np.asarray(total)


def loss_gradient(
    law: Law, parameters: Mapping[str, float], columns: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """d loss / d parameter for every parameter, at every row of `columns`."""
    gradient = {name: np.zeros(np.shape(next(iter(columns.values())))) for name in law.parameters}
    if law.floor is not None:
        gradient[law.floor] += 1.0
    for term in law.terms:
        log_factor = sum(p.sign * parameters[p.exponent] * np.log(columns[p.column]) for p in term.powers)
        factor = np.exp(log_factor)
        gradient[term.coefficient] += factor
        for p in term.powers:
            gradient[p.exponent] += parameters[term.coefficient] * factor * p.sign * np.log(columns[p.column])
    return gradient
