"""Jets: exact derivatives of formulas written in numpy, and no derivative that is made up."""

import numpy as np
import pytest

from smelt.fit import jets

FORMULAS = {
    "arithmetic": lambda x, y: (2.0 - x) * y / (x + y**2) - 1 / x,
    "powers": lambda x, y: x**y + np.square(y) ** 1.5 + 2.0**x,
    "logarithms": lambda x, y: np.log(x * y) + np.log1p(x / y) - np.logaddexp(x * 3, -y),
    "exponentials": lambda x, y: np.exp(x - y) * np.expm1(-x * y),
    "the smaller": lambda x, y: np.minimum(x * y, 100.0) + np.maximum(np.log(x), y),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_derivatives_agree_with_differences(name):
    formula = FORMULAS[name]
    x, y, step = np.array([0.3, 0.9, 1.7]), np.array([[1.9], [2.4]]), 1e-4
    jet = formula(*jets.variables([x, y]))
    np.testing.assert_allclose(jet.value, formula(x, y), rtol=1e-14)
    moves = {0: (step, 0.0), 1: (0.0, step)}
    for i, (dx, dy) in moves.items():
        difference = (formula(x + dx, y + dy) - formula(x - dx, y - dy)) / (2 * step)
        np.testing.assert_allclose(jet.first.get(i, 0.0) + 0 * jet.value, difference, rtol=1e-6, atol=1e-8)
    for i, j in ((0, 0), (0, 1), (1, 1)):
        (ax, ay), (bx, by) = moves[i], moves[j]
        difference = (
            formula(x + ax + bx, y + ay + by)
            - formula(x + ax - bx, y + ay - by)
            - formula(x - ax + bx, y - ay + by)
            + formula(x - ax - bx, y - ay - by)
        ) / (4 * step**2)
        np.testing.assert_allclose(jet.second.get((i, j), 0.0) + 0 * jet.value, difference, rtol=1e-5, atol=1e-5)


def test_a_function_without_a_rule_is_refused():
    with pytest.raises(TypeError):
        np.sin(jets.variables([1.0])[0])
