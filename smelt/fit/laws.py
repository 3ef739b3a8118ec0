"""A scaling law as a value: column names and parameter names in, predicted losses and their gradients out.

    loss = E + sum_k  coefficient_k * prod_j  column_kj ^ (sign_kj * exponent_kj)

Every law of this module is such a sum: an optional floor E (the irreducible loss) and power-law terms in named
columns. Two terms that name one exponent are tied; an exponent that is a number is not fitted. Adding a law is one
value, no class:

    no_floor = Law(name="no_floor", floor=None, terms=(decay("A", num_params="alpha"), decay("B", num_tokens="beta")))

A column may be *effective*: a formula of others with shape parameters, written once, in numpy functions of logarithms.
Its derivatives are made from it (`jets`), so that the formula is all there is to write:

    looped = Effective(
        name="num_params_effective",
        of=("num_params_once", "num_passes", "num_params_recurrent"),
        shapes=(Shape(name="phi", low=-0.5, high=1.5),),
        log_value=lambda ln, shape: np.logaddexp(
            ln["num_params_once"], shape["phi"] * ln["num_passes"] + ln["num_params_recurrent"]
        ),
        equation="num_params_once + num_passes^phi num_params_recurrent",
    )
    law = Law(name="mine", floor="E", effective=(looped,), terms=(decay("A", num_params_effective="alpha"),))

In logarithms a term is linear in (ln coefficient, exponents) at given shapes: u_k = ln coefficient_k + sum_m Z_kmi
exponent_m, and ln loss = logsumexp_k u_k. A column times a constant changes coefficients and no prediction; of columns
inside one formula, see its comment. Which loss, which text and which count of parameters or FLOPs the columns hold is
the caller's business.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.fit import jets


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """One factor column ^ (sign * exponent); sign -1 is a loss that falls as the column grows.

    `exponent` names a parameter, or is a number that is not fitted. A parameter of sign 1 may come out negative.
    """

    column: str
    exponent: str | float
    sign: int = -1

    def __post_init__(self) -> None:
        number = not isinstance(self.exponent, str)
        if self.sign not in (-1, 1) or (number and not (math.isfinite(self.exponent) and self.exponent != 0)):
            raise ValueError(
                f"{self.column} has the exponent {self.exponent!r} and sign {self.sign!r}; give a name or a number "
                "other than 0, and -1 or 1"
            )

    def value(self, parameters: Mapping[str, Any]) -> Any:
        """What the column's logarithm is multiplied by."""
        return self.sign * (parameters[self.exponent] if isinstance(self.exponent, str) else self.exponent)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """coefficient times the product of `powers`."""

    coefficient: str
    powers: tuple[Power, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A parameter inside an effective column, and where a fit begins to look for it.

    low, high   the range of starts; the answer may lie outside
    positive    fitted in logarithms, its starts evenly spaced in them
    centre      (other shapes by name, mean ln columns by name) -> what is added to low and high: the start of a
                shape that depends on the units of the columns
    """

    name: str
    low: float
    high: float
    positive: bool = False
    centre: Callable[[Mapping[str, Any], Mapping[str, float]], Any] | None = None

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.positive and (self.low <= 0 or self.centre is not None)):
            raise ValueError(
                f"the shape {self.name} spans {self.low} to {self.high}; give low < high, above 0 if positive"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """A column made of the columns `of`: log_value(ln columns by name, shapes by name) -> its logarithm.

    `log_value` is written in operators and in the numpy functions that `jets.RULES` names.
    """

    name: str
    of: tuple[str, ...]
    shapes: tuple[Shape, ...]
    log_value: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
    equation: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A floor (None: the law falls to zero), power-law terms and effective columns; names must be distinct."""

    name: str
    floor: str | None
    terms: tuple[Term, ...]
    effective: tuple[Effective, ...] = ()

    def __post_init__(self) -> None:
        names = self.parameters
        if len(set(names)) != len(names) or not self.terms or "" in names:
            raise ValueError(f"a law needs terms with distinct parameter names, got {names}")
        for term in self.terms:
            columns = [power.column for power in term.powers]
            if not columns or len(set(columns)) != len(columns):
                raise ValueError(f"the term of {term.coefficient} needs columns, each of them once, got {columns}")
        if len({frozenset(term.powers) for term in self.terms}) != len(self.terms):
            raise ValueError(f"two terms of {self.name} are the same function of their columns; leave one out")
        made = [column.name for column in self.effective]
        if len(set(made)) != len(made) or set(made) & {base for column in self.effective for base in column.of}:
            raise ValueError(f"effective columns are made of plain ones and have names of their own, got {made}")
        unused = set(made) - {power.column for term in self.terms for power in term.powers}
        if unused:
            raise ValueError(f"no term of {self.name} uses the effective column {sorted(unused)[0]!r}")

    @property
    def coefficients(self) -> tuple[str, ...]:
        """The positive parameters: the floor first where there is one, then one a term."""
        floor = () if self.floor is None else (self.floor,)
        return (*floor, *(term.coefficient for term in self.terms))

    @property
    def exponents(self) -> tuple[str, ...]:
        """The fitted ones."""
        names = (power.exponent for term in self.terms for power in term.powers)
        return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of all effective columns; two columns may share one."""
        return tuple(dict.fromkeys(shape for column in self.effective for shape in column.shapes))

    @property
    def parameters(self) -> tuple[str, ...]:
        return (*self.coefficients, *self.exponents, *(shape.name for shape in self.shapes))

    @property
    def columns(self) -> tuple[str, ...]:
        """What a table must have: plain columns, and those that effective ones are made of."""
        of = {column.name: column.of for column in self.effective}
        used = (power.column for term in self.terms for power in term.powers)
        return tuple(dict.fromkeys(base for name in used for base in of.get(name, (name,))))

    @property
    def equation(self) -> str:
        terms = [
            " ".join([term.coefficient] + [f"{p.column}^{'-' if p.sign < 0 else ''}{p.exponent}" for p in term.powers])
            for term in self.terms
        ]
        made = [f"{column.name} = {column.equation}" for column in self.effective]
        return "; ".join(["loss = " + " + ".join(terms if self.floor is None else [self.floor, *terms]), *made])

    def design(self, log_columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Z [num_coefficients, num_exponents, num_rows]: the derivative of each log term by each exponent.

        Of plain columns, and of effective ones without shapes; those that move with shapes are not in it.
        """
        num_rows = len(next(iter(log_columns.values())))
        design = np.zeros((len(self.coefficients), len(self.exponents), num_rows))
        offset = 0 if self.floor is None else 1
        log_columns = {**log_columns, **{c.name: c.log_value(log_columns, {}) for c in self.effective if not c.shapes}}
        moving = {column.name for column in self.effective if column.shapes}
        for index, term in enumerate(self.terms):
            for power in term.powers:
                if power.column not in moving and isinstance(power.exponent, str):
                    row = self.exponents.index(power.exponent)
                    design[offset + index, row] += power.sign * log_columns[power.column]
        return design


def decay(coefficient: str, **exponents: str | float) -> Term:
    """coefficient * prod column^-exponent, with column=exponent name (or number) as keywords."""
    return Term(
        coefficient=coefficient,
        powers=tuple(Power(column=column, exponent=exponent) for column, exponent in exponents.items()),
    )


# loss = E + A N^-alpha + B D^-beta (Hoffmann et al. 2022, approach 3).
CHINCHILLA = Law(name="chinchilla", floor="E", terms=(decay("A", num_params="alpha"), decay("B", num_tokens="beta")))
# The same with one exponent. Gadre et al. 2024 (arXiv 2403.08540), loss = E + (a + b 6^(x/2) M^x) N^x with tokens per
# parameter M, is this law: alpha = -x, A = a, B = b 6^(x/2).
TIED = Law(name="tied", floor="E", terms=(decay("A", num_params="alpha"), decay("B", num_tokens="alpha")))
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


def _looped_log_params(ln: Mapping, shape: Mapping) -> Any:
    return np.logaddexp(ln["num_params_once"], shape["phi"] * ln["num_passes"] + ln["num_params_recurrent"])


# loss = E + A (N_once + r^phi N_rec)^-alpha + B D^-beta, r passes over the recurrent parameters (Schwethelm et al.,
# arXiv 2604.21106: phi .46, alpha .199, beta .369, E 1.57). phi 0: passes buy nothing; 1: a pass is worth its unshared
# copy. The two counts of parameters in one unit.
ISO_DEPTH = Law(
    name="iso_depth",
    floor="E",
    effective=(
        Effective(
            name="num_params_effective",
            of=("num_params_once", "num_passes", "num_params_recurrent"),
            shapes=(Shape(name="phi", low=-0.5, high=1.5),),
            log_value=_looped_log_params,
            equation="num_params_once + num_passes^phi num_params_recurrent",
        ),
    ),
    terms=(decay("A", num_params_effective="alpha"), decay("B", num_tokens="beta")),
)


def _repeated(ln_all: Any, ln_unique: Any, worth: Any) -> Any:
    """ln (U + U worth (1 - e^(-R / worth))), R = all / U - 1: what is repeated counts less and less."""
    ln_unique = np.minimum(ln_unique, ln_all)
    return ln_unique + np.log1p(-worth * np.expm1(-np.expm1(ln_all - ln_unique) / worth))


def _repeated_log_tokens(ln: Mapping, shape: Mapping) -> Any:
    return _repeated(ln["num_tokens"], ln["num_unique_tokens"], shape["r_tokens"])


def _excess_log_params(ln: Mapping, shape: Mapping) -> Any:
    return _repeated(ln["num_params"], ln["num_useful_params"], shape["r_params"])


# Starts of the two: up to 300 epochs, as far as anyone has looked. Muennighoff et al. found 15.4 and 5.3.
_TOKENS_EFFECTIVE = Effective(
    name="num_tokens_effective",
    of=("num_tokens", "num_unique_tokens"),
    shapes=(Shape(name="r_tokens", low=0.3, high=300.0, positive=True),),
    log_value=_repeated_log_tokens,
    equation="U + U r_tokens (1 - exp(-(num_tokens/U - 1)/r_tokens)), U = num_unique_tokens",
)
# loss = E + A N^-alpha + B D'^-beta, D' = U + U R*(1 - e^(-R/R*)), R = D/U - 1 repeats of U unique tokens (Muennighoff
# et al. 2023, arXiv 2305.16264, R* = r_tokens). Tokens in one unit.
DATA_CONSTRAINED = Law(
    name="data_constrained",
    floor="E",
    effective=(_TOKENS_EFFECTIVE,),
    terms=(decay("A", num_params="alpha"), decay("B", num_tokens_effective="beta")),
)
# The whole law of that paper, in which parameters beyond those that U unique tokens can use count less in the same way.
# num_useful_params = min(N, what is compute-optimal for U tokens under the law of unrepeated data) is the caller's
# column: it needs that law's A, B, alpha and beta, which a fit of this one does not know before it ends.
DATA_CONSTRAINED_PARAMS = Law(
    name="data_constrained_params",
    floor="E",
    effective=(
        Effective(
            name="num_params_effective",
            of=("num_params", "num_useful_params"),
            shapes=(Shape(name="r_params", low=0.3, high=300.0, positive=True),),
            log_value=_excess_log_params,
            equation="V + V r_params (1 - exp(-(num_params/V - 1)/r_params)), V = num_useful_params",
        ),
        _TOKENS_EFFECTIVE,
    ),
    terms=(decay("A", num_params_effective="alpha"), decay("B", num_tokens_effective="beta")),
)


def _kaplan_log_tokens(ln: Mapping, shape: Mapping) -> Any:
    return -np.logaddexp(shape["balance"] - shape["ratio"] * ln["num_params"], -ln["num_tokens"])


# loss = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D (Kaplan et al. 2020, arXiv 2001.08361, equation 1.5), written as
# K X^-alpha_D with 1/X = e^balance N^-ratio + 1/D. `kaplan_constants` gives N_c, D_c and alpha_N.
KAPLAN = Law(
    name="kaplan",
    floor=None,
    effective=(
        Effective(
            name="num_tokens_effective",
            of=("num_params", "num_tokens"),
            shapes=(
                Shape(name="ratio", low=0.2, high=5.0, positive=True),
                Shape(
                    name="balance",
                    low=-5.0,
                    high=5.0,
                    centre=lambda shape, mean: shape["ratio"] * mean["num_params"] - mean["num_tokens"],
                ),
            ),
            log_value=_kaplan_log_tokens,
            equation="1 / (exp(balance) num_params^-ratio + 1/num_tokens)",
        ),
    ),
    terms=(decay("K", num_tokens_effective="alpha_D"),),
)


def kaplan_constants(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """N_c, D_c (in the units of the columns), alpha_N and alpha_D of Kaplan et al.'s form; of draws too.

    With K = D_c^alpha_D, ratio = alpha_N / alpha_D and balance = ratio ln N_c - ln D_c.

    >>> found = kaplan_constants({"K": 16.0, "alpha_D": 0.5, "ratio": 2.0, "balance": 0.0})
    >>> [round(float(value), 6) for value in found.values()]
    [16.0, 256.0, 1.0, 0.5]
    """
    log_D_c = np.log(parameters["K"]) / parameters["alpha_D"]
    log_N_c = (parameters["balance"] + log_D_c) / parameters["ratio"]
    with np.errstate(over="ignore"):
        return {
            "N_c": np.exp(log_N_c),
            "D_c": np.exp(log_D_c),
            "alpha_N": parameters["ratio"] * parameters["alpha_D"],
            "alpha_D": parameters["alpha_D"],
        }


def _gamma_log_scale(ln: Mapping, shape: Mapping) -> Any:
    size, tokens = shape["alpha"] * ln["num_params"], shape["beta"] * ln["num_tokens"]
    return -np.logaddexp(shape["balance"] - size, -shape["balance"] - tokens)


# loss = E + (A N^-alpha + B D^-beta)^gamma (xLSTM scaling laws, arXiv 2510.02228), written as E + K Y^-gamma with
# 1/Y = e^balance N^-alpha + e^-balance D^-beta. `gamma_constants` gives A and B.
GAMMA = Law(
    name="gamma",
    floor="E",
    effective=(
        Effective(
            name="scale",
            of=("num_params", "num_tokens"),
            shapes=(
                Shape(name="alpha", low=0.1, high=2.0, positive=True),
                Shape(name="beta", low=0.1, high=2.0, positive=True),
                Shape(
                    name="balance",
                    low=-2.5,
                    high=2.5,
                    centre=lambda shape, mean: (
                        0.5 * (shape["alpha"] * mean["num_params"] - shape["beta"] * mean["num_tokens"])
                    ),
                ),
            ),
            log_value=_gamma_log_scale,
            equation="1 / (exp(balance) num_params^-alpha + exp(-balance) num_tokens^-beta)",
        ),
    ),
    terms=(decay("K", scale="gamma"),),
)


def gamma_constants(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A and B inside the bracket of the gamma form, with its exponents; of draws too.

    >>> found = gamma_constants({"K": 16.0, "gamma": 0.5, "balance": 0.0, "alpha": 0.6, "beta": 0.7})
    >>> round(float(found["A"]), 6), round(float(found["B"]), 6)
    (256.0, 256.0)
    """
    log_K = np.log(parameters["K"]) / parameters["gamma"]
    with np.errstate(over="ignore"):
        return {
            "A": np.exp(log_K + parameters["balance"]),
            "B": np.exp(log_K - parameters["balance"]),
            **{name: parameters[name] for name in ("alpha", "beta", "gamma")},
        }


# loss = E + A N^-alpha + B D^-beta + C (1-S)^lambda + G (1-S)^delta N^-gamma, N all parameters, density = 1 - S the
# share of experts at work (Abnar et al. 2025, arXiv 2501.12370, equation 6, whose lambda and delta have the other
# sign; read in others' notes of that paper, not in the paper). lambda and delta may be negative.
MOE_SPARSITY = Law(
    name="moe_sparsity",
    floor="E",
    terms=(
        decay("A", num_params="alpha"),
        decay("B", num_tokens="beta"),
        Term(coefficient="C", powers=(Power(column="density", exponent="lambda", sign=1),)),
        Term(
            coefficient="G",
            powers=(
                Power(column="density", exponent="delta", sign=1),
                Power(column="num_params", exponent="gamma"),
            ),
        ),
    ),
)
# loss = E + A N_active^-alpha N^-gamma + B D^-beta: smelt's own, the simplest law in which stored and active parameters
# both count.
ACTIVE_TOTAL = Law(
    name="active_total",
    floor="E",
    terms=(decay("A", num_params_active="alpha", num_params="gamma"), decay("B", num_tokens="beta")),
)


def _saturated_log_experts(ln: Mapping, shape: Mapping) -> Any:
    most = 1 / shape["experts_max"]
    return -np.log(1 / (np.expm1(ln["num_experts"]) + 1 / (1 / shape["experts_start"] - most)) + most)


def _size_times_experts(ln: Mapping, shape: Mapping) -> Any:
    return ln["num_params"] * _saturated_log_experts(ln, shape) / np.log(10.0)


_EXPERT_SHAPES = (
    Shape(name="experts_start", low=1.02, high=20.0, positive=True),
    Shape(name="experts_max", low=40.0, high=4000.0, positive=True),
)
# log10 loss = a log10 N + b log10 X + c log10 N log10 X + d, X = experts that count: 1/X = 1/(experts - 1 +
# 1/(1/start - 1/max)) + 1/max (Clark et al. 2022, arXiv 2202.01169). N: what one token sees; a dense model has one
# expert; d = log10 K. b depends on the unit of N. One number of tokens for all rows.
ROUTED = Law(
    name="routed",
    floor=None,
    effective=(
        Effective(
            name="num_experts_saturated",
            of=("num_experts",),
            shapes=_EXPERT_SHAPES,
            log_value=_saturated_log_experts,
            equation="1 / (1/(num_experts - 1 + 1/(1/experts_start - 1/experts_max)) + 1/experts_max)",
        ),
        Effective(
            name="size_times_experts",
            of=("num_params", "num_experts"),
            shapes=_EXPERT_SHAPES,
            log_value=_size_times_experts,
            equation="exp(ln num_params ln num_experts_saturated / ln 10)",
        ),
    ),
    terms=(
        Term(
            coefficient="K",
            powers=(
                Power(column="num_params", exponent="a", sign=1),
                Power(column="num_experts_saturated", exponent="b", sign=1),
                Power(column="size_times_experts", exponent="c", sign=1),
            ),
        ),
    ),
)

NAMED = {
    law.name: law
    for law in (
        CHINCHILLA,
        SMELT,
        FLOPS_TOKENS,
        PURE,
        SATURATING,
        TIED,
        ISO_DEPTH,
        DATA_CONSTRAINED,
        DATA_CONSTRAINED_PARAMS,
        KAPLAN,
        GAMMA,
        MOE_SPARSITY,
        ACTIVE_TOTAL,
        ROUTED,
    )
}

# What the papers print in place of the parameters that are fitted.
CONSTANTS = {KAPLAN.name: kaplan_constants, GAMMA.name: gamma_constants}


def law(law_or_name: Law | str) -> Law:
    """The law itself, or the one of that name in `NAMED`."""
    if isinstance(law_or_name, Law):
        return law_or_name
    if not isinstance(law_or_name, str) or law_or_name not in NAMED:
        raise BadInput(f"no law is called {law_or_name!r}; choose one of {', '.join(NAMED)}")
    return NAMED[law_or_name]


def natural_shapes(shapes: Sequence[Shape], free: Sequence[Any], means: Mapping[str, float]) -> dict[str, Any]:
    """Shapes by name from the numbers that a solver moves: logarithms of positive ones, the rest off their centre."""
    value = {shape.name: np.exp(x) if shape.positive else x for shape, x in zip(shapes, free, strict=True)}
    for shape in shapes:
        if shape.centre is not None:
            value[shape.name] = value[shape.name] + shape.centre(value, means)
    return value


def log_columns(law: Law, parameters: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Logarithms of all columns of the law's terms; BadInput names one that is not there, or is not above 0."""
    missing = [column for column in law.columns if column not in columns]
    if missing:
        raise BadInput(f"the law {law.name} needs the column {missing[0]!r}; give it, have {', '.join(columns)}")
    for name in law.columns:
        if np.any(np.less_equal(columns[name], 0)):
            raise BadInput(f"{name} is {np.min(columns[name]):g}; a law in it needs numbers above 0")
    logs: dict[str, Any] = {name: np.log(columns[name]) for name in law.columns}
    for column in law.effective:
        with np.errstate(all="ignore"):  # NaN where a draw's shapes leave the formula's domain
            logs[column.name] = column.log_value(logs, parameters)
    return logs


def predicted_loss(
    law: Law, parameters: Mapping[str, np.ndarray | float], columns: Mapping[str, np.ndarray | float]
) -> np.ndarray:
    """The law's loss at `columns`, in the unit of its coefficients.

    Parameters and columns broadcast: draws of shape [num_draws, 1] against columns [num_rows] give a table. Raises
    BadInput for a parameter or a column that lacks, and for columns that are not above 0.

    >>> round(float(predicted_loss(PURE, {"A": 3.0, "alpha": 0.5}, {"compute_flops": 4.0})), 9)
    1.5
    """
    lacking = [name for name in law.parameters if name not in parameters]
    if lacking:
        raise BadInput(
            f"the parameter {lacking[0]} of {law.equation} is missing; give it, have {', '.join(parameters)}"
        )
    logs = log_columns(law, {name: np.asarray(value) for name, value in parameters.items()}, columns)
    total = 0.0 if law.floor is None else np.asarray(parameters[law.floor], dtype=float)
    for term in law.terms:
        total = total + term_loss(term, parameters, logs)
    return np.asarray(total)


def term_loss(term: Term, parameters: Mapping[str, Any], logs: Mapping[str, Any]) -> np.ndarray:
    """What one term adds to the loss, from `log_columns`."""
    log_factor = sum(power.value(parameters) * logs[power.column] for power in term.powers)
    with np.errstate(divide="ignore"):
        # In logarithms: A alone can overflow in a draw whose product with the power does not.
        return np.exp(np.log(parameters[term.coefficient]) + log_factor)


def loss_gradient(
    law: Law, parameters: Mapping[str, float], columns: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """d loss / d parameter for every parameter, at every row of `columns`."""
    gradient = {name: np.zeros(np.shape(next(iter(columns.values())))) for name in law.parameters}
    shapes = [shape.name for shape in law.shapes]
    seen = dict(zip(shapes, jets.variables([parameters[name] for name in shapes]), strict=True))
    logs = log_columns(law, seen, columns)
    slopes = {name: log.first for name, log in logs.items() if isinstance(log, jets.Jet)}
    logs = {name: log.value if isinstance(log, jets.Jet) else log for name, log in logs.items()}
    if law.floor is not None:
        gradient[law.floor] += 1.0
    for term in law.terms:
        factor = np.exp(sum(power.value(parameters) * logs[power.column] for power in term.powers))
        gradient[term.coefficient] += factor
        part = parameters[term.coefficient] * factor
        for power in term.powers:
            if isinstance(power.exponent, str):
                gradient[power.exponent] += part * power.sign * logs[power.column]
            for place, slope in slopes.get(power.column, {}).items():
                gradient[shapes[place]] += part * power.value(parameters) * slope
    return gradient
