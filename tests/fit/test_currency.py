"""Savings in seconds, bytes and served tokens: brute force finds the same, and no more is claimed than is known."""

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from tests.fit.planted import CHINCHILLA, LAW, grid, only

BETTER = {**CHINCHILLA, "A": 0.8 * CHINCHILLA["A"]}  # the size term is smaller by a fifth


def rows(law=CHINCHILLA, *, noise=0.0, seed=0):
    """A grid of sizes and tokens around the optimum of 1e18 to 1e22 FLOPs, losses, seconds and bytes."""
    generator = np.random.default_rng(seed)
    sizes = np.repeat(np.geomspace(1e8, 1e11, 10), 5)
    tokens = sizes * np.tile(np.geomspace(5, 500, 5), 10)
    columns = {"num_params": sizes, "num_tokens": tokens}
    columns["loss"] = fit.predicted_loss(fit.CHINCHILLA, law, columns) * np.exp(noise * generator.standard_normal(50))
    # Seconds grow less than FLOPs do: small models use the machine badly.
    columns["train_secs"] = 1e-12 * sizes**0.9 * tokens
    columns["stored_bytes"] = 4 * sizes
    return columns


def arm(law=CHINCHILLA, *, draws=0, **options) -> fit.Arm:
    columns = rows(law, **options)
    surface = fit.fit_surface(columns, columns["loss"], "chinchilla")
    if draws:
        surface = fit.bootstrap(surface, draws=draws)
    return fit.Arm(surface=surface, columns=columns, flops_per_unit=6.0)


def brute_optimum(law, cost, inference_tokens):
    """Size, tokens and loss of least loss among many token counts at one total cost of 6 N D + 2 N T."""
    tokens = np.geomspace(1.0, 1e18, 200_001)
    sizes = cost / (6 * tokens + 2 * inference_tokens)
    losses = law["E"] + law["A"] * sizes ** -law["alpha"] + law["B"] * tokens ** -law["beta"]
    best = losses.argmin()
    return sizes[best], tokens[best], losses[best]


@pytest.mark.parametrize("inference_tokens", [0.0, 1e10, 1e12, 1e15])
@pytest.mark.parametrize("law", [CHINCHILLA, {**CHINCHILLA, "alpha": 1.3, "A": 4e9}], ids=["chinchilla", "steep"])
def test_the_optimum_under_training_and_serving_is_what_brute_force_finds(law, inference_tokens):
    frontier = fit.serving_frontier(arm(law), inference_tokens)
    for cost in (1e19, 1e22):
        size, tokens, loss = brute_optimum(law, cost, inference_tokens)
        found = fit.serving_optimum(frontier, cost)
        assert found.loss.value == pytest.approx(loss, rel=1e-7)
        assert found.size.value == pytest.approx(size, rel=1e-3)
        assert found.num_tokens.value == pytest.approx(tokens, rel=2e-3)
        total = 6 * found.size.value * found.num_tokens.value + 2 * found.size.value * inference_tokens
        assert total == pytest.approx(cost, rel=1e-9)
        assert float(frontier.loss(cost)) == pytest.approx(found.loss.value, rel=1e-12)
        assert float(frontier.compute(frontier.loss(cost))) == pytest.approx(cost, rel=1e-9)


def test_with_nothing_to_serve_the_frontier_is_that_of_training():
    group = arm(draws=50, noise=0.003)
    serving = fit.serving_frontier(group, 0.0)
    training = fit.surface_frontier(group.surface, compute_range_flops=(1e18, 1e22), flops_per_unit=6.0)
    budgets = np.array([1e19, 1e21])
    np.testing.assert_allclose(serving.loss(budgets), training.loss(budgets), rtol=1e-12)
    np.testing.assert_allclose(serving.loss_draws(budgets), training.loss_draws(budgets), rtol=1e-10)
    losses = training.loss_draws([1e20])[:, 0]
    np.testing.assert_allclose(serving.compute_draws(losses), training.compute_draws(losses), rtol=1e-9)
    assert np.isinf(serving.compute(group.surface.parameters["E"]))


def test_more_tokens_to_serve_mean_a_smaller_model_trained_longer():
    group = arm()
    optima = [fit.serving_optimum(fit.serving_frontier(group, tokens), 1e21) for tokens in (0.0, 1e10, 1e11, 1e12)]
    sizes = [optimum.size.value for optimum in optima]
    per_param = [optimum.tokens_per_param.value for optimum in optima]
    assert sizes == sorted(sizes, reverse=True)
    assert per_param == sorted(per_param)


def test_a_saving_of_total_cost_is_what_brute_force_finds():
    found = fit.currency_savings(arm(BETTER), arm(), [1e20, 1e21], inference_tokens=1e11)
    for saving in found:
        _, _, loss = brute_optimum(BETTER, saving.budget_flops, 1e11)
        low, high = saving.budget_flops, 100 * saving.budget_flops
        for _ in range(30):
            middle = np.sqrt(low * high)
            low, high = (middle, high) if brute_optimum(CHINCHILLA, middle, 1e11)[2] > loss else (low, middle)
        assert saving.reference_flops == pytest.approx(low, rel=1e-5)
        assert saving.estimate.value == pytest.approx(1 - saving.budget_flops / low, rel=1e-4)
        assert "1e+11 tokens of inference" in saving.estimate.method


def test_a_saving_in_a_measured_column_is_that_of_the_optima_of_one_loss():
    target, reference = arm(BETTER), arm()
    for name in ("train_secs", "stored_bytes"):
        for saving in fit.currency_savings(target, reference, [1e19, 1e21], column=name):
            ours, theirs = (
                fit.surface_optimum(group.surface, at, flops_per_unit=6.0)
                for group, at in ((target, saving.budget_flops), (reference, saving.reference_flops))
            )
            assert ours.loss.value == pytest.approx(theirs.loss.value, rel=1e-9)
            costs = [
                1e-12 * o.size.value**0.9 * o.num_tokens.value if name == "train_secs" else 4 * o.size.value
                for o in (ours, theirs)
            ]
            assert saving.estimate.value == pytest.approx(1 - costs[0] / costs[1], rel=1e-6)
            assert name in saving.estimate.method


def test_a_column_that_is_proportional_to_compute_saves_what_compute_does():
    groups = [arm(BETTER), arm()]
    for group in groups:
        group.columns["joules"] = 3.0 * group.columns["num_params"] * group.columns["num_tokens"]
    joules = fit.currency_savings(*groups, [1e20], column="joules")[0]
    frontiers = [fit.surface_frontier(g.surface, compute_range_flops=(1e18, 1e22), flops_per_unit=6.0) for g in groups]
    compute = fit.savings(*frontiers, [1e20])[0]
    assert joules.estimate.value == pytest.approx(compute.estimate.value, rel=1e-9)
    assert joules.reference_flops == pytest.approx(compute.reference_flops, rel=1e-9)


def test_intervals_of_savings_in_other_currencies_cover_in_most_of_thirty_grids():
    currencies = ({"column": "train_secs"}, {"inference_tokens": 1e8})
    inside: list[list[bool]] = [[], []]
    true = [planted_saving(currency) for currency in currencies]
    for seed in range(30):
        table = grid(seed, saving=0.1)
        generator = np.random.default_rng([seed, 7])
        columns, units = {}, {}
        for group in ("target", "base"):
            rows_of = columns[group] = only(table, group)
            size, tokens = rows_of["flops_per_token"], rows_of["num_tokens"]
            rows_of["train_secs"] = 1e-9 * size**0.8 * tokens * np.exp(0.03 * generator.standard_normal(len(size)))
            units[group] = [f"{b:g} {p}" for b, p in zip(rows_of["budget_flops"], rows_of["pair"], strict=True)]
        counts = fit.joint_counts(units, draws=200, seed=seed)
        arms = []
        for group, rows_of in columns.items():
            surface = fit.fit_surface(rows_of, rows_of["loss_nats"], "flops_tokens")
            arms.append(fit.Arm(surface=fit.bootstrap(surface, counts=counts[group]), columns=rows_of))
        for hits, value, currency in zip(inside, true, currencies, strict=True):
            saving = fit.currency_savings(*arms, [4e11], seed=seed, **currency)[0].estimate
            hits.append(saving.low <= value <= saving.high)
    assert all(np.mean(hits) >= 0.9 for hits in inside)


def planted_saving(options) -> float:
    """Of the planted pair at 4e11, by brute force: the target is worth base with sizes and tokens times (0.9)^-0.5."""
    worth = 0.9**-0.5
    E, A, K, a, c = (LAW[name] for name in ("E", "A", "K", "a", "c"))
    sizes = np.geomspace(1e3, 1e8, 100_001)

    def best(cost, factor, served):
        tokens = cost / sizes - served / 3
        possible = np.where(tokens > 0, tokens, np.nan)
        losses = E + A * (sizes * factor) ** -a + K * (possible * factor) ** -c
        index = int(np.nanargmin(losses))
        return sizes[index], tokens[index], losses[index]

    served = options.get("inference_tokens", 0.0)
    size, tokens, loss = best(4e11, worth, served)
    low, high = 4e11, 4e12
    for _ in range(30):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if best(middle, 1.0, served)[2] > loss else (low, middle)
    if served:
        return 1 - 4e11 / low
    other_size, other_tokens, _ = best(low, 1.0, 0.0)
    return 1 - (size**0.8 * tokens) / (other_size**0.8 * other_tokens)


def test_a_cost_law_leaves_out_what_its_rows_do_not_show():
    one_budget = {"num_params": [1e8, 2e8, 4e8, 8e8], "num_tokens": [8e9, 4e9, 2e9, 1e9]}
    line = fit.fit_cost({**one_budget, "train_secs": [10.0, 9.0, 8.0, 8.0]}, "train_secs")
    assert line.terms == ("size",)
    assert "size alone" in line.warnings[0].message
    same_size = {"num_params": [1e8] * 3, "num_tokens": [1e9, 2e9, 4e9], "train_secs": [1.0, 2.0, 4.0]}
    tokens = fit.fit_cost(same_size, "train_secs")
    assert tokens.terms == ("tokens",)
    assert tokens.coefficients[2] == pytest.approx(1.0)
    assert fit.fit_cost({n: v[:1] for n, v in same_size.items()}, "train_secs").terms == ()
    assert not fit.fit_cost(rows(), "train_secs").warnings


def test_a_cost_law_has_the_uncertainty_of_its_scatter():
    columns = rows()
    noise = 0.2 * np.random.default_rng(0).standard_normal(50)
    cost = fit.fit_cost({**columns, "train_secs": columns["train_secs"] * np.exp(noise)}, "train_secs")
    assert cost.scatter_log == pytest.approx(0.2, rel=0.3)
    assert [flag.code for flag in cost.warnings] == ["cost_scatters"]
    x = np.stack([np.ones(50), np.log(columns["num_params"]), np.log(columns["num_tokens"])], axis=1)
    expected = cost.scatter_log * np.sqrt(np.diag(np.linalg.inv(x.T @ x)))
    draws = cost.coefficient_draws(20_000, [0])
    np.testing.assert_allclose(draws.std(axis=0), expected * np.sqrt(47 / 45), rtol=0.05)


def test_a_saving_out_of_reach_gives_its_reason_and_no_number():
    far = fit.currency_savings(arm(BETTER), arm(), [1e27], column="train_secs")[0]
    assert far.estimate.value is None
    assert "beyond the data" in far.estimate.reason
    low_floor = {**CHINCHILLA, "E": 0.5}
    below = fit.currency_savings(arm(low_floor), arm(), [1e21], column="train_secs")[0]
    assert "reference's floor" in below.estimate.reason
    served = fit.currency_savings(arm(low_floor), arm(), [1e21], inference_tokens=1e10)[0]
    assert "reference's floor" in served.estimate.reason
    ratio = fit.serving_frontier(arm(), 1e14)
    assert ratio.outside(1e21) > 10


def test_currencies_that_cannot_be_had_are_refused():
    group = arm()
    for options in ({}, {"column": "train_secs", "inference_tokens": 1e9}):
        with pytest.raises(BadInput, match="give one currency"):
            fit.currency_savings(group, group, [1e20], **options)
    with pytest.raises(BadInput, match="no column 'watts'"):
        fit.currency_savings(group, group, [1e20], column="watts")
    with pytest.raises(BadInput, match="inference_tokens is -1"):
        fit.serving_frontier(group, -1)
