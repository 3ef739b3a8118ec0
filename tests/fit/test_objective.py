"""The objective's derivatives are those of the objective, whatever is summed and whatever moves; what is held stays."""

import dataclasses

import numpy as np
import pytest

from smelt import fit
from smelt.fit import binding, laws, objective, solver
from tests.fit import planted

# Name -> (law, groups, shared): a plain law, a constant exponent, shapes in one and two terms, and groups.
HALF = fit.Law(name="half", floor="E", terms=(fit.decay("A", num_params=0.5), fit.decay("B", num_tokens="beta")))
CASES = {
    "chinchilla": (laws.CHINCHILLA, planted.CHINCHILLA, 1, ()),
    "a number for an exponent": (HALF, {"E": 1.7, "A": 9000.0, "B": 500.0, "beta": 0.3}, 1, ()),
    "gamma": (laws.GAMMA, planted.LAWS["gamma"], 1, ()),
    "routed": (laws.ROUTED, planted.LAWS["routed"], 1, ()),
    "two shapes": (laws.DATA_CONSTRAINED_PARAMS, planted.LAWS["data_constrained_params"], 1, ()),
    "shared exponents": (laws.CHINCHILLA, planted.CHINCHILLA, 2, ("alpha", "beta")),
    "a shared floor and shape": (laws.ISO_DEPTH, planted.LAWS["iso_depth"], 2, ("E", "phi")),
}


def bound_case(name: str, *, raw: bool, delta: float) -> tuple[binding.Bound, np.ndarray]:
    """The problem of noisy rows and centred points [3, P] near its minimum."""
    law, truth, num_groups, shared = CASES[name]
    generator = np.random.default_rng(2)
    columns = {group: planted.columns_of(law, group, 25) for group in range(num_groups)}
    log_loss = {
        group: np.log(fit.predicted_loss(law, truth, table)) + 0.02 * generator.standard_normal(25)
        for group, table in columns.items()
    }
    logs = {group: {k: np.log(v) for k, v in table.items()} for group, table in columns.items()}
    bound = binding.bound(law, logs, log_loss, delta=delta, raw=raw, shared=shared)
    weight_N = np.ones(25 * num_groups)
    solution = solver.polish(bound.problem, binding.starts(bound, weight_N)[:3], weight_N)
    near_RP = solver.centred(bound.problem, solution.parameters_RP)
    return bound, near_RP + 0.02 * generator.standard_normal(near_RP.shape)


def at(problem, points_RP, weight_RN):
    log_loss_RN = np.broadcast_to(problem.log_loss_N, weight_RN.shape)
    residual, share = objective.residuals(problem, points_RP, log_loss_RN)
    found = objective.derivatives(problem, points_RP, residual, share, weight_RN, log_loss_RN)
    return objective.summed(residual, weight_RN, problem.delta), found


@pytest.mark.parametrize("raw", [False, True], ids=["log", "raw"])
@pytest.mark.parametrize("delta", [0.013, np.inf], ids=["huber", "squares"])
@pytest.mark.parametrize("name", CASES)
def test_gradient_and_hessian_agree_with_differences(name, delta, raw):
    bound, points_RP = bound_case(name, raw=raw, delta=delta)
    problem = bound.problem
    weight_RN = np.random.default_rng(1).uniform(0.5, 2.0, (len(points_RP), len(problem.log_loss_N)))
    _, found = at(problem, points_RP, weight_RN)
    # Rows that cross delta between the two ends have no second derivative there: the step is small.
    step = 1e-6
    hessian = np.empty_like(found.hessian)
    for place in range(problem.num_parameters):
        move = step * (np.arange(problem.num_parameters) == place)
        (high, above), (low, below) = (at(problem, points_RP + sign * move, weight_RN) for sign in (1, -1))
        np.testing.assert_allclose(-found.down_RP[:, place], (high - low) / (2 * step), rtol=1e-5, atol=1e-6)
        hessian[:, place] = -(above.down_RP - below.down_RP) / (2 * step)
    # Coefficients move relatively, a (1 + z): their own second derivative loses the gradient that a logarithm adds.
    own = np.arange(problem.num_coefficients)
    hessian[:, own, own] += found.down_RP[:, own]
    scale = np.abs(hessian).max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(found.hessian / scale, hessian / scale, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_centring_is_undone(name):
    bound, points_RP = bound_case(name, raw=False, delta=np.inf)
    there = solver.uncentred(bound.problem, points_RP)
    np.testing.assert_allclose(solver.centred(bound.problem, there), points_RP, rtol=1e-12, atol=1e-10)
    law, _, num_groups, _ = CASES[name]
    for group in range(num_groups):
        columns = planted.columns_of(law, group, 25)
        parameters = {k: v[:, None] for k, v in binding.named(bound, group, there, 1e-30).items()}
        predicted = fit.predicted_loss(law, parameters, columns)
        log_RKN = objective.log_terms(bound.problem, points_RP)[:, :, 25 * group : 25 * (group + 1)]
        np.testing.assert_allclose(np.log(predicted), np.logaddexp.reduce(log_RKN, axis=1), rtol=1e-10)


def test_every_replicate_holds_what_it_is_told_to():
    bound, points_RP = bound_case("gamma", raw=False, delta=1e-3)
    held_RP = np.zeros(points_RP.shape, dtype=bool)
    held_RP[0, 2] = held_RP[1, 4] = True  # gamma in one, beta in another, nothing in the third
    solution = solver.polish(bound.problem, points_RP, np.ones(25), held=held_RP)
    moved_RP = solver.centred(bound.problem, solution.parameters_RP) != points_RP
    assert solution.converged_R.all()
    assert not moved_RP[held_RP].any()
    assert moved_RP[~held_RP].all()
    assert solution.objective_R[2] < solution.objective_R[:2].min()


def test_a_screen_finds_the_same_starts_whatever_the_order_of_rows():
    bound, _ = bound_case("chinchilla", raw=False, delta=1e-3)
    order = np.random.default_rng(0).permutation(25)
    law = laws.CHINCHILLA
    columns = {k: np.log(v) for k, v in planted.columns_of(law, 0, 25).items()}
    shuffled = binding.bound(
        law, {0: {k: v[order] for k, v in columns.items()}}, {0: bound.problem.log_loss_N[order]}, delta=1e-3
    )
    np.testing.assert_allclose(
        binding.starts(bound, np.ones(25)), binding.starts(shuffled, np.ones(25)), rtol=1e-8, atol=1e-10
    )


def test_absolute_residuals_are_the_limit_of_huber_s():
    bound, points_RP = bound_case("chinchilla", raw=False, delta=1e-3)
    limit = dataclasses.replace(bound.problem, delta=0.0)
    solution = solver.polish(limit, points_RP, np.ones(25))
    assert solution.converged_R.all()
    for delta in (1e-5, 1e-7):
        near = solver.polish(dataclasses.replace(bound.problem, delta=delta), points_RP, np.ones(25))
        np.testing.assert_allclose(near.objective_R / delta, solution.objective_R, atol=25 * delta)
