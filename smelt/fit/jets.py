"""A formula written in numpy functions in, its value with exact first and second derivatives out.

    jets = variables([s, t]);   z = np.log1p(s * np.exp(t));   z.value, z.first[0], z.second[0, 1]

A jet is a number (or array) with its derivatives by a few variables. The ufuncs in `RULES`, and the operators, follow
the chain rule on it, so a formula that works on arrays works on jets as it stands. Derivatives that are zero are not
stored. Any other function raises TypeError: no derivative is ever made up. It knows nothing of laws or of fitting.
"""

from collections.abc import Sequence

import numpy as np


class Jet(np.lib.mixins.NDArrayOperatorsMixin):
    """`value`; `first[i]`, its derivative by variable i; `second[i, j]` with i <= j. All broadcast against `value`."""

    __slots__ = ("first", "second", "value")

    def __init__(self, value: np.ndarray, first: dict | None = None, second: dict | None = None) -> None:
        self.value = value
        self.first: dict[int, np.ndarray | float] = first or {}
        self.second: dict[tuple[int, int], np.ndarray | float] = second or {}

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        if method != "__call__" or options or ufunc not in RULES:
            return NotImplemented
        arguments = [item if isinstance(item, Jet) else Jet(item) for item in inputs]
        value, slopes, bends = RULES[ufunc](*(argument.value for argument in arguments))
        first: dict = {}
        second: dict = {}
        for argument, slope in zip(arguments, slopes, strict=True):
            for i, by_i in argument.first.items():
                first[i] = first.get(i, 0.0) + slope * by_i
            for key, by_ij in argument.second.items():
                second[key] = second.get(key, 0.0) + slope * by_ij
        for (one, other), bend in bends.items():
            for i, by_i in arguments[one].first.items():
                for j, by_j in arguments[other].first.items():
                    if one == other and j < i:
                        continue  # the Hessian of one argument is symmetric: its upper half is kept
                    twice = 2.0 if one != other and i == j else 1.0
                    key = (min(i, j), max(i, j))
                    second[key] = second.get(key, 0.0) + twice * bend * by_i * by_j
        return Jet(value, first, second)


def variables(values: Sequence[np.ndarray]) -> list[Jet]:
    """One jet a value, each the variable of its own place.

    >>> x, y = variables([2.0, 3.0])
    >>> z = x * np.exp(y) / y
    >>> bool(np.isclose(z.second[0, 1], np.exp(3.0) * 2 / 9))
    True
    """
    return [Jet(value, {place: 1.0}) for place, value in enumerate(values)]


def _divide(a, b):
    return a / b, (1 / b, -a / b**2), {(0, 1): -1 / b**2, (1, 1): 2 * a / b**3}


def _exp(a):
    value = np.exp(a)
    return value, (value,), {(0, 0): value}


def _power(a, b):
    value = np.power(a, b)
    with np.errstate(divide="ignore", invalid="ignore"):  # of a negative base, and unused where the power is a number
        log = np.log(a)
    slope = b * a ** (b - 1)
    bends = {(0, 0): slope * (b - 1) / a, (0, 1): a ** (b - 1) * (1 + b * log), (1, 1): value * log**2}
    return value, (slope, value * log), bends


def _logaddexp(a, b):
    value = np.logaddexp(a, b)
    share, rest = np.exp(a - value), np.exp(b - value)
    both = share * rest
    return value, (share, rest), {(0, 0): both, (0, 1): -both, (1, 1): both}


# ufunc -> function of the values: (value, slope by each argument, second derivatives by pairs of arguments)
RULES = {
    np.add: lambda a, b: (a + b, (1.0, 1.0), {}),
    np.subtract: lambda a, b: (a - b, (1.0, -1.0), {}),
    np.negative: lambda a: (-a, (-1.0,), {}),
    np.multiply: lambda a, b: (a * b, (b, a), {(0, 1): 1.0}),
    np.divide: _divide,
    np.power: _power,
    np.square: lambda a: (a**2, (2 * a,), {(0, 0): 2.0}),
    np.exp: _exp,
    np.expm1: lambda a: (np.expm1(a), (np.exp(a),), {(0, 0): np.exp(a)}),
    np.log: lambda a: (np.log(a), (1 / a,), {(0, 0): -1 / a**2}),
    np.log1p: lambda a: (np.log1p(a), (1 / (1 + a),), {(0, 0): -1 / (1 + a) ** 2}),
    np.logaddexp: _logaddexp,
    np.minimum: lambda a, b: (np.minimum(a, b), (1.0 * (a <= b), 1.0 * (a > b)), {}),
    np.maximum: lambda a, b: (np.maximum(a, b), (1.0 * (a >= b), 1.0 * (a < b)), {}),
}
