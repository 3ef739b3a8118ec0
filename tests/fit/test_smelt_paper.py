"""SMELT's printed coefficients (arXiv 2609.01343) reproduce its printed savings, tokens per parameter and exponents."""

import numpy as np
import pytest

from smelt import fit

# Table of the paper: E, A, K, a, b, c.
PRINTED = {
    "baseline": {"E": 1.4439, "A": 1.366e3, "K": 1.975e6, "a": 0.3703, "b": 0.1530, "c": 0.6594},
    "smelt": {"E": 1.4493, "A": 1.963e3, "K": 5.264e6, "a": 0.3892, "b": 0.1460, "c": 0.7011},
}
WINDOW_FLOPS = (1.3e19, 2.2e21)


def surface(name: str) -> fit.SurfaceFit:
    """A fit of noise-free rows of the printed law; so the solver is part of what is tested."""
    generator = np.random.default_rng(0)
    columns = {
        "flops_per_token": 10 ** generator.uniform(8.5, 10.5, 72),
        "density": generator.choice([0.15, 0.05, 0.03], 72),
        "num_tokens": 10 ** generator.uniform(10.3, 11.3, 72),
    }
    return fit.fit_surface(columns, fit.predicted_loss(fit.SMELT, PRINTED[name], columns), "smelt")


def frontier(name: str) -> fit.Frontier:
    return fit.surface_frontier(surface(name), compute_range_flops=WINDOW_FLOPS, density=0.05)


def test_savings_at_95_percent_sparsity_are_those_of_the_rounded_coefficients():
    found = fit.savings(frontier("smelt"), frontier("baseline"), [1e20, 1e21, 1e22])
    # The paper prints 7.8, 15.8 and 20.9 from unrounded coefficients.
    assert [round(100 * s.estimate.value, 1) for s in found] == [7.7, 15.7, 20.8]
    assert "extrapolated" in {flag.code for flag in found[2].warnings}


@pytest.mark.parametrize(("name", "tokens_per_param", "exponent"), [("baseline", 78, 0.237), ("smelt", 75, 0.250)])
def test_tokens_per_parameter_and_frontier_exponents_are_as_printed(name, tokens_per_param, exponent):
    optimum = fit.surface_optimum(surface(name), 1e21, density=0.05)
    assert round(optimum.tokens_per_param.value) == tokens_per_param
    assert round(frontier(name).exponent, 3) == exponent


def test_the_analytic_optimum_is_the_smallest_loss_on_the_budget():
    fitted, compute = surface("smelt"), 3e20
    optimum = fit.surface_optimum(fitted, compute, density=0.05)
    sizes = optimum.size.value * np.geomspace(0.5, 2, 2001)
    losses = fitted.predict({"flops_per_token": sizes, "num_tokens": compute / sizes, "density": np.full(2001, 0.05)})
    assert abs(np.log(sizes[losses.argmin()] / optimum.size.value)) < 1e-3
    assert optimum.loss.value == pytest.approx(losses.min(), rel=1e-8)
    assert optimum.loss.value == pytest.approx(float(frontier("smelt").loss(compute)), rel=1e-12)
