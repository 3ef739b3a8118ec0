"""Profiles: the t interval of least squares where a law is linear, coverage elsewhere, and sides that are open."""

import numpy as np
import pytest
from scipy import stats

from smelt import fit
from smelt.errors import BadInput
from smelt.fit import laws, profiles, refits, solver
from smelt.fit.objective import residuals
from tests.fit import planted
from tests.fit.test_diagnostics import grid, noisy


def pure(num_rows: int = 12, noise: float = 0.01, seed: int = 0) -> tuple[dict, np.ndarray]:
    compute = np.geomspace(1e15, 1e18, num_rows)
    error = noise * np.random.default_rng(seed).standard_normal(num_rows)
    return {"compute_flops": compute}, 3e4 * compute**-0.3 * np.exp(error)


def test_least_squares_of_a_linear_law_gives_the_textbook_interval():
    columns, losses = pure()
    found = fit.profile(fit.fit_surface(columns, losses, "pure", objective="squares_log"), "alpha")
    line = stats.linregress(np.log(columns["compute_flops"]), np.log(losses))
    half = stats.t.ppf(0.975, 10) * line.stderr
    assert [found.interval.low, found.interval.high] == pytest.approx(
        [-line.slope - half, -line.slope + half], rel=1e-6
    )
    t = (found.values + line.slope) / line.stderr
    assert found.ratio == pytest.approx(t**2, abs=1e-5)


@pytest.mark.parametrize("objective", ["huber_log", "squares_raw"])
def test_the_ends_of_an_interval_lie_on_the_line(objective):
    columns, exact, _ = grid(4, 5)
    surface = fit.fit_surface(columns, noisy(exact), "flops_tokens", objective=objective)
    found = fit.profile(surface, "a", points=11)
    ends = np.array([found.interval.low, found.interval.high])
    ratio, _, _ = profiles.ratio(surface, "a", ends)
    assert ratio == pytest.approx(found.level, rel=1e-3)
    assert found.level == pytest.approx(stats.f.ppf(0.95, 1, 15))
    assert found.values[0] < ends[0] < surface.parameters["a"] < ends[1] < found.values[-1]
    assert (np.diff(found.values) > 0).all()
    assert found.ratio.min() == pytest.approx(0.0, abs=1e-5)
    assert not found.flat
    assert found.warnings == ()
    assert set(found.others) == {"E", "A", "K", "c"}


def test_absolute_residuals_are_the_limit_of_hubers():
    columns, losses = pure(30)
    one, other = (
        fit.profile(fit.fit_surface(columns, losses, "pure", **options), "alpha", points=3).interval
        for options in ({"objective": "absolute_log"}, {"delta": 1e-6})
    )
    assert [one.low, one.value, one.high] == pytest.approx([other.low, other.value, other.high], rel=1e-3)


def test_intervals_agree_with_a_bootstrap_on_many_rows():
    columns, losses = planted.chinchilla_twin()
    surface = fit.fit_surface(columns, losses, "chinchilla")
    drawn = fit.bootstrap(surface, draws=400)
    for name in ("E", "beta"):
        interval, percentiles = fit.profile(surface, name, points=5).interval, drawn.estimates[name]
        width = percentiles.high - percentiles.low
        assert interval.low == pytest.approx(percentiles.low, abs=0.2 * width)
        assert interval.high == pytest.approx(percentiles.high, abs=0.2 * width)


@pytest.mark.parametrize("delta", [1e-3, np.inf])
def test_intervals_cover_in_simulation(delta):
    """Whether the truth is inside is whether T there is below the level: one batch of fits, and one with it held."""
    columns, exact, _ = grid()
    law, count, simulations = laws.FLOPS_TOKENS, len(exact), 200
    log_loss = np.log(exact) + 0.003 * np.random.default_rng(7).standard_normal((simulations, count))
    problem = solver.problem(law.design({n: np.log(v) for n, v in columns.items()}), np.log(exact), delta)
    truth = np.array([np.log(planted.LAW[n]) if n in law.coefficients else planted.LAW[n] for n in law.parameters])
    start = np.repeat(solver.centred(problem, truth[None]), simulations, axis=0)
    free = solver.polish(problem, start, np.ones(count), log_loss_RN=log_loss)
    left, _ = residuals(problem, solver.centred(problem, free.parameters_RP), log_loss)
    scale = np.array([refits.per_rise_of(r, np.ones(count), delta, 5) for r in left])
    for name in ("E", "a", "c"):
        held = np.array([other == name for other in law.parameters])
        tied = solver.polish(problem, start, np.ones(count), log_loss_RN=log_loss, held=held)
        covered = np.mean(scale * (tied.objective_R - free.objective_R) <= profiles.quantile(1, count - 5))
        assert 0.91 <= covered <= 0.99, name


def test_a_floor_that_rows_do_not_bound_has_no_lower_end():
    columns, _, _ = grid()
    reducible = fit.predicted_loss(fit.FLOPS_TOKENS, {**planted.LAW, "E": 0.0}, columns)
    found = fit.profile(fit.fit_surface(columns, noisy(reducible, 3), "flops_tokens"), "E", points=9)
    assert found.flat
    assert found.interval.low is None
    assert found.interval.high > 0
    assert found.interval.reason.startswith("not identified from below: a law without E fits as well")
    assert found.values[0] == 0.0


def test_a_shape_that_rows_do_not_show_is_open_above():
    """With hardly a token repeated, nothing says how many repeats would be worth anything."""
    sizes, tokens = (values.ravel() for values in np.meshgrid(np.geomspace(1e8, 1e10, 6), np.geomspace(1e9, 1e11, 6)))
    unique = tokens / np.tile([1.05, 1.1, 1.2, 1.3, 1.1, 1.2], 6)
    columns = {"num_params": sizes, "num_tokens": tokens, "num_unique_tokens": unique}
    losses = noisy(fit.predicted_loss(fit.CHINCHILLA, planted.CHINCHILLA, columns))
    surface = fit.fit_surface(columns, losses, "data_constrained", objective="squares_log")
    found = fit.profile(surface, "r_tokens", points=9)
    assert found.flat
    assert found.interval.high is None
    assert "not identified from above" in found.interval.reason


def test_the_unit_of_the_loss_scales_the_floor_and_a_common_weight_changes_nothing():
    columns, exact, _ = grid(4, 5)
    losses = noisy(exact)
    one = fit.profile(fit.fit_surface(columns, losses, "flops_tokens"), "E", points=5)
    bits = fit.fit_surface(columns, losses / np.log(2), "flops_tokens", weights=np.full(20, 3.0))
    other = fit.profile(bits, "E", points=5)
    assert other.interval.low * np.log(2) == pytest.approx(one.interval.low, rel=1e-5)
    assert other.interval.high * np.log(2) == pytest.approx(one.interval.high, rel=1e-5)


def test_only_what_stands_for_itself_has_a_profile():
    columns, exact, _ = grid(4, 5)
    surface = fit.fit_surface(columns, noisy(exact), "flops_tokens")
    with pytest.raises(BadInput, match="no parameter 'gamma'; choose one of a, c, E"):
        fit.profile(surface, "gamma")
    with pytest.raises(BadInput, match="'A' cannot be held"):
        fit.profile(surface, "A")
    with pytest.raises(BadInput, match="points is 2"):
        fit.profile(surface, "a", points=2)
