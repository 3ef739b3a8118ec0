"""Laws as values: what they predict, their gradients, and adding one."""

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from smelt.fit import laws


@pytest.mark.parametrize("name", list(laws.NAMED))
def test_gradients_agree_with_finite_differences(name):
    law = laws.law(name)
    generator = np.random.default_rng(1)
    columns = {column: 10 ** generator.uniform(0, 2, 6) for column in law.columns}
    parameters = {parameter: float(generator.uniform(0.2, 1.5)) for parameter in law.parameters}
    gradient = laws.loss_gradient(law, parameters, columns)
    for parameter in law.parameters:
        step = 1e-6
        up, down = ({**parameters, parameter: parameters[parameter] + sign * step} for sign in (1, -1))
        difference = fit.predicted_loss(law, up, columns) - fit.predicted_loss(law, down, columns)
        np.testing.assert_allclose(gradient[parameter], difference / (2 * step), rtol=1e-6, atol=1e-9)


def test_a_law_of_three_terms_with_a_tied_exponent_is_one_value_and_recovers():
    law = fit.Law(
        name="tied",
        floor="E",
        terms=(
            fit.decay("A", num_params="alpha"),
            fit.decay("B", num_tokens="alpha"),
            fit.decay("G", num_experts="gamma"),
        ),
    )
    planted = {"E": 1.5, "A": 300.0, "B": 900.0, "G": 0.4, "alpha": 0.33, "gamma": 0.6}
    generator = np.random.default_rng(0)
    columns = {
        "num_params": 10 ** generator.uniform(6, 9, 60),
        "num_tokens": 10 ** generator.uniform(8, 11, 60),
        "num_experts": generator.choice([1.0, 4.0, 16.0, 64.0], 60),
    }
    found = fit.fit_surface(columns, fit.predicted_loss(law, planted, columns), law)
    for name, value in planted.items():
        assert found.parameters[name] == pytest.approx(value, rel=1e-6)
    assert law.equation == "loss = E + A num_params^-alpha + B num_tokens^-alpha + G num_experts^-gamma"


def test_an_unknown_law_and_a_missing_column_are_named():
    with pytest.raises(BadInput, match=r"'kaplan'.*chinchilla"):
        fit.fit_surface({"num_params": [1.0]}, [1.0], "kaplan")
    with pytest.raises(BadInput, match="'num_tokens'"):
        fit.predicted_loss(
            fit.CHINCHILLA, {"E": 1.0, "A": 1.0, "B": 1.0, "alpha": 1.0, "beta": 1.0}, {"num_params": 2.0}
        )


def test_a_law_with_two_parameters_of_one_name_is_refused():
    with pytest.raises(ValueError, match="distinct"):
        fit.Law(name="x", floor="A", terms=(fit.decay("A", num_params="alpha"),))
