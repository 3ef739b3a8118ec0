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


HOFFMANN = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28}
UNEQUAL = {"E": 1.69, "A": 5000.0, "B": 40.0, "alpha": 0.465, "beta": 0.155}  # alpha / beta = 3


def optimal_size(compute, law=HOFFMANN):
    alpha, beta = law["alpha"], law["beta"]
    return (alpha * law["A"] * (compute / 6) ** beta / (beta * law["B"])) ** (1 / (alpha + beta))


def isoflops(law=HOFFMANN, *, times=4.0, num_sizes=15, off_centre=1.0, drift=1.0, noise=0.0, seed=0):
    """IsoFLOP grids of `times` either side of a surface's optimum, off it and drifting, at 1e17 to 1e21 FLOPs."""
    generator = np.random.default_rng(seed)
    columns: dict[str, list] = {"num_params": [], "loss_nats": [], "budget_flops": [], "num_tokens": []}
    for step, budget in enumerate((1e17, 1e18, 1e19, 1e20, 1e21)):
        centre = optimal_size(budget, law) * off_centre * drift ** (step / 4)
        for size in centre * np.geomspace(1 / times, times, num_sizes):
            tokens = budget / 6 / size
            loss = law["E"] + law["A"] * size ** -law["alpha"] + law["B"] * tokens ** -law["beta"]
            columns["num_params"].append(size)
            columns["loss_nats"].append(loss + noise * generator.normal())
            columns["budget_flops"].append(budget)
            columns["num_tokens"].append(tokens)
    return {name: np.array(values) for name, values in columns.items()}


def corrected(rows, *, draws=0, seed=0, nearest=None):
    surface = fit.fit_surface(rows, rows["loss_nats"], "chinchilla")
    if draws:
        surface = fit.bootstrap(surface, draws=draws, seed=seed)
    return fit.correct_minima(
        surface, rows, rows["loss_nats"], rows["budget_flops"], nearest=nearest, draws=draws or 10, seed=seed
    )


@pytest.mark.parametrize(
    ("times", "drift", "printed_percent"),
    [(2, 1, -0.33), (4, 1, -1.30), (8, 1, -2.90), (16, 1, -5.10), (8, 1 / 3, 6.94)],
)
def test_the_bias_on_noise_free_chinchilla_is_the_published_one_and_comes_off(times, drift, printed_percent):
    # Czech et al. (arXiv 2603.22339): D* at 1e24 from 1e17 to 1e21, 15 sizes, Hoffmann's surface.
    rows = isoflops(times=times, drift=drift)
    minima = fit.isoflop_minima(**rows, draws=10)
    true_tokens = 1e24 / 6 / optimal_size(1e24)
    raw = fit.allocation(minima, "num_tokens").at(1e24) / true_tokens - 1
    assert round(100 * float(raw), 2) == printed_percent
    corrections = corrected(rows)
    for before, after in zip(minima, corrections, strict=True):
        assert after.raw.num_params_opt == before.num_params_opt
        true_size = optimal_size(before.budget_flops)
        assert after.size_bias_percent.value == pytest.approx(100 * (before.num_params_opt / true_size - 1), abs=1e-4)
    law = fit.allocation([correction.minimum for correction in corrections], "num_tokens")
    assert float(law.at(1e24)) == pytest.approx(true_tokens, rel=1e-6)


@pytest.mark.parametrize("law", [HOFFMANN, UNEQUAL], ids=["hoffmann", "three to one"])
@pytest.mark.parametrize(
    ("times", "off_centre", "drift"), [(2, 1, 1), (16, 1, 1), (8, 2.5, 1), (8, 0.4, 1), (8, 1, 3), (8, 1.5, 1 / 3)]
)
def test_a_corrected_vertex_is_exact_on_a_noise_free_surface(law, times, off_centre, drift):
    rows = isoflops(law, times=times, off_centre=off_centre, drift=drift)
    for correction in corrected(rows):
        minimum = correction.minimum
        size = optimal_size(minimum.budget_flops, law)
        tokens = minimum.budget_flops / 6 / size
        loss = law["E"] + law["A"] * size ** -law["alpha"] + law["B"] * tokens ** -law["beta"]
        assert minimum.num_params_opt == pytest.approx(size, rel=1e-6)
        assert minimum.num_tokens_opt == pytest.approx(tokens, rel=1e-6)
        assert minimum.loss_min == pytest.approx(loss, rel=1e-6)
        assert float(minimum.loss_at(minimum.num_params_opt)) == pytest.approx(loss, rel=1e-6)
        assert correction.loss_bias_nats.value == pytest.approx(correction.raw.loss_min - loss, abs=1e-6)
        assert abs(correction.raw.num_params_opt / size - 1) > 1e-4


def test_corrected_intervals_cover_and_err_less_where_raw_ones_are_off():
    inside, off = {"raw": [], "minimum": []}, {"raw": [], "minimum": []}
    losses_inside = []
    for seed in range(25):
        rows = isoflops(UNEQUAL, times=8, num_sizes=7, noise=0.003, seed=seed)
        for correction in corrected(rows, draws=200, seed=seed):
            size = optimal_size(correction.raw.budget_flops, UNEQUAL)
            for kind in inside:
                interval = getattr(correction, kind).estimates["num_params_opt"]
                inside[kind].append(interval.low <= size <= interval.high)
                off[kind].append(np.log(interval.value / size))
            tokens = correction.raw.budget_flops / 6 / size
            loss = 1.69 + 5000 * size**-0.465 + 40 * tokens**-0.155
            interval = correction.minimum.estimates["loss_min"]
            losses_inside.append(interval.low <= loss <= interval.high)
    assert 0.91 <= np.mean(inside["minimum"]) <= 0.99
    assert 0.91 <= np.mean(losses_inside) <= 0.99
    assert np.mean(inside["raw"]) < 0.5
    assert abs(np.mean(off["minimum"])) < 0.05 * abs(np.mean(off["raw"]))


def test_a_bias_that_leaves_the_raw_interval_is_flagged_with_its_own_interval():
    correction = corrected(isoflops(UNEQUAL, times=8, num_sizes=7, noise=0.001, seed=1), draws=200)[0]
    assert "bias_beyond_interval" in {flag.code for flag in correction.minimum.warnings}
    bias = correction.size_bias_percent
    assert bias.low < bias.value < bias.high
    assert bias.value == pytest.approx(18.6, abs=0.3)  # of the planted surface without noise


def test_a_correction_without_a_surface_keeps_the_raw_minimum_and_says_why():
    rows = isoflops(noise=0.003, num_sizes=5)
    table = {**rows, "cell": list(rows["num_params"])}
    alone = fit.correct_minima_of_groups({"base": table}, {"base": None}, draws=50)["base"]
    assert all(c.minimum is c.raw and c.size_bias_percent is None and "no surface" in c.reason for c in alone)


def test_groups_are_corrected_each_by_its_own_surface_and_drawn_jointly():
    # Partners that share all their noise: their corrected minima differ by what the laws do, in every draw.
    worse = {**HOFFMANN, "E": 1.79}
    tables = {}
    for name, law in (("base", HOFFMANN), ("target", worse)):
        rows = isoflops(law, times=8, num_sizes=7, noise=0.003, seed=5)
        tables[name] = {**rows, "cell": [f"size {i % 7}" for i in range(len(rows["loss_nats"]))]}
    surfaces = {n: fit.fit_surface(t, t["loss_nats"], "chinchilla") for n, t in tables.items()}
    both = fit.correct_minima_of_groups(tables, surfaces, draws=200)
    gap = both["target"][0].minimum.draws["loss_min"] - both["base"][0].minimum.draws["loss_min"]
    assert gap == pytest.approx(0.1, abs=2e-4)


def test_the_sizes_nearest_the_lowest_are_less_biased_and_are_named():
    rows = isoflops(UNEQUAL, times=16, num_sizes=11)
    wide = fit.isoflop_minima(**rows, draws=10)
    local = fit.isoflop_minima(**rows, nearest=5, draws=10)
    for one, other in zip(wide, local, strict=True):
        size = optimal_size(one.budget_flops, UNEQUAL)
        assert abs(np.log(other.num_params_opt / size)) < 0.2 * abs(np.log(one.num_params_opt / size))
        assert other.num_sizes == 5
        assert "the 5 sizes nearest the lowest of 11" in other.estimates["num_params_opt"].method
        assert "wide_grid" in {flag.code for flag in one.warnings}
        assert "wide_grid" not in {flag.code for flag in other.warnings}
    for correction in corrected(rows, nearest=5):
        size = optimal_size(correction.raw.budget_flops, UNEQUAL)
        assert correction.minimum.num_sizes == 5
        assert correction.minimum.num_params_opt == pytest.approx(size, rel=1e-6)
    with pytest.raises(BadInput, match="nearest is 2"):
        fit.isoflop_minima(**rows, nearest=2)


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
