"""IsoFLOP parabolas: exact where they are true, biased where they are known to be, and outspoken where they fail."""

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from tests.fit.planted import LAW, grid, only


def parabolas(curvature: float = 0.05, shift: float = 0.0, num_sizes: int = 5, noise: float = 0.0, seed: int = 0):
    """Exact parabolas with N* = 20 C^0.5 (times exp(shift)) and loss 9 C^-0.1, as columns."""
    generator = np.random.default_rng(seed)
    columns: dict[str, list] = {"num_params": [], "loss_nats": [], "budget_flops": [], "num_tokens": []}
    for budget in (1e14, 1e15, 1e16, 1e17):
        best = 20 * budget**0.5
        for size in best * np.exp(shift) * np.geomspace(0.3, 3.3, num_sizes):
            columns["num_params"].append(size)
            loss = 9 * budget**-0.1 + curvature * np.log(size / best) ** 2 + noise * generator.normal()
            columns["loss_nats"].append(loss)
            columns["budget_flops"].append(budget)
            columns["num_tokens"].append(budget / 6 / size)
    return columns


def test_exact_parabolas_give_their_vertices_allocation_and_frontier():
    minima = fit.isoflop_minima(**parabolas())
    for minimum in minima:
        assert minimum.num_params_opt == pytest.approx(20 * minimum.budget_flops**0.5, rel=1e-9)
        assert minimum.loss_min == pytest.approx(9 * minimum.budget_flops**-0.1, rel=1e-9)
        assert minimum.curvature == pytest.approx(0.05, rel=1e-9)
        assert minimum.num_tokens_opt == pytest.approx(minimum.budget_flops / 6 / minimum.num_params_opt, rel=1e-9)
        assert minimum.inside
        assert not minimum.warnings
        assert float(minimum.loss_at(minimum.num_params_opt)) == pytest.approx(minimum.loss_min, rel=1e-9)
    sizes, tokens = fit.allocation(minima), fit.allocation(minima, "num_tokens")
    assert sizes.exponent.value == pytest.approx(0.5, abs=1e-9)
    assert tokens.exponent.value == pytest.approx(0.5, abs=1e-9)
    assert float(sizes.at(1e20)) == pytest.approx(20 * 1e10, rel=1e-6)
    frontier = fit.fit_frontier([m.budget_flops for m in minima], [m.loss_min for m in minima], saturating=False)
    assert frontier.exponent == pytest.approx(0.1, rel=1e-9)
    assert np.exp(frontier.log_coefficient) == pytest.approx(9.0, rel=1e-6)


@pytest.mark.parametrize(("times", "printed_percent"), [(2, -0.33), (4, -1.30), (8, -2.90), (16, -5.10)])
def test_the_bias_on_noise_free_chinchilla_is_the_published_one(times, printed_percent):
    # Czech et al. (arXiv 2603.22339): D* at 1e24 from 1e17 to 1e21, 15 sizes, Hoffmann's surface.
    E, A, B, alpha, beta = 1.69, 406.4, 410.7, 0.34, 0.28

    def best(compute):
        return (alpha * A * (compute / 6) ** beta / (beta * B)) ** (1 / (alpha + beta))

    columns: dict[str, list] = {"num_params": [], "loss_nats": [], "budget_flops": [], "num_tokens": []}
    for budget in (1e17, 1e18, 1e19, 1e20, 1e21):
        for size in best(budget) * np.geomspace(1 / times, times, 15):
            tokens = budget / 6 / size
            columns["num_params"].append(size)
            columns["loss_nats"].append(E + A * size**-alpha + B * tokens**-beta)
            columns["budget_flops"].append(budget)
            columns["num_tokens"].append(tokens)
    law = fit.allocation(fit.isoflop_minima(**columns, draws=10), "num_tokens")
    true_tokens = 1e24 / 6 / best(1e24)
    assert round(100 * (float(law.at(1e24)) / true_tokens - 1), 2) == printed_percent


def test_a_vertex_outside_the_sizes_is_flagged_and_not_used():
    minima = fit.isoflop_minima(**parabolas(shift=2.0))
    assert not any(m.inside for m in minima)
    assert all("vertex_outside" in {flag.code for flag in m.warnings} for m in minima)
    assert "smaller" in minima[0].warnings[-1].message
    with pytest.raises(BadInput, match="0 of 4 budgets"):
        fit.allocation(minima)


def test_a_parabola_that_opens_downward_has_no_minimum():
    minima = fit.isoflop_minima(**parabolas(curvature=-0.05))
    assert all(m.num_params_opt is None and m.loss_min is None for m in minima)
    assert all("opens_downward" in {flag.code for flag in m.warnings} for m in minima)


def test_too_few_sizes_are_flagged_and_too_few_for_a_parabola_have_no_minimum():
    flags = {flag.code for m in fit.isoflop_minima(**parabolas(num_sizes=4)) for flag in m.warnings}
    assert "too_few_sizes" in flags
    three = fit.isoflop_minima(**parabolas(num_sizes=3))
    assert three[0].num_params_opt is not None
    assert three[0].estimates["num_params_opt"].low is None
    assert "no residual" in three[0].estimates["num_params_opt"].reason
    with pytest.raises(BadInput, match="no budget has three different sizes"):
        fit.isoflop_minima(**parabolas(num_sizes=2))


def test_a_curvature_that_noise_explains_is_flagged():
    noisy = fit.isoflop_minima(**parabolas(curvature=0.002, noise=0.02, seed=3))
    assert any("flat_parabola" in {flag.code for flag in m.warnings} for m in noisy)
    clear = fit.isoflop_minima(**parabolas(curvature=0.05, noise=0.002, seed=3))
    assert not any("flat_parabola" in {flag.code for flag in m.warnings} for m in clear)


def test_intervals_of_the_optimal_size_cover_the_truth():
    inside = []
    for seed in range(60):
        for minimum in fit.isoflop_minima(**parabolas(noise=0.004, seed=seed), draws=300, seed=seed):
            interval = minimum.estimates["num_params_opt"]
            inside.append(interval.low <= 20 * minimum.budget_flops**0.5 <= interval.high)
    assert 0.91 <= np.mean(inside) <= 0.99


def test_seeds_of_one_size_enter_as_their_mean():
    columns = parabolas(noise=0.003)
    seeds = {name: values * 2 for name, values in columns.items()}
    half = len(columns["loss_nats"])
    seeds["loss_nats"] = [loss + (0.01 if i < half else -0.01) for i, loss in enumerate(seeds["loss_nats"])]
    for one, two in zip(fit.isoflop_minima(**columns), fit.isoflop_minima(**seeds), strict=True):
        assert two.num_sizes == one.num_sizes
        assert two.num_params_opt == pytest.approx(one.num_params_opt, rel=1e-9)


def test_the_order_of_rows_does_not_move_a_minimum_or_its_interval():
    columns = parabolas(noise=0.004)
    order = np.random.default_rng(0).permutation(len(columns["loss_nats"]))
    shuffled = {name: np.array(values)[order] for name, values in columns.items()}
    for one, two in zip(fit.isoflop_minima(**columns), fit.isoflop_minima(**shuffled), strict=True):
        assert two.num_params_opt == pytest.approx(one.num_params_opt, rel=1e-9)
        assert two.estimates["num_params_opt"].low == pytest.approx(one.estimates["num_params_opt"].low, rel=1e-9)


def test_the_allocation_of_a_planted_law_is_inside_its_interval_in_most_of_sixty_grids():
    true = LAW["c"] / (LAW["a"] + LAW["c"])
    inside = []
    for seed in range(60):
        rows = only(grid(seed), "base")
        minima = fit.isoflop_minima(rows["num_params"], rows["loss_nats"], rows["budget_flops"], draws=300, seed=seed)
        exponent = fit.allocation(minima).exponent
        inside.append(exponent.low <= true <= exponent.high)
    assert np.mean(inside) >= 0.9
