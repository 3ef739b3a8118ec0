"""Tables that no law was meant for: a certificate holds against many starts, and what cannot be had is no number."""

import json

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from smelt.fit import solver
from tests.fit import planted

GRID = tuple(grid.ravel() for grid in np.meshgrid(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6)))
COLUMNS = {"num_params": GRID[0], "num_tokens": GRID[1]}
LAW = {"E": 1.8, "A": 480.0, "B": 2000.0, "alpha": 0.35, "beta": 0.37}
EXACT = fit.predicted_loss(fit.CHINCHILLA, LAW, COLUMNS)


def nasty(kind: str, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows of a law with heavy tails, without one of its terms, of few rows, of noise alone, or that rise."""
    generator = np.random.default_rng([seed, len(kind)])
    count = int(generator.integers(6, 12) if kind == "few" else generator.integers(8, 40))
    size = np.exp(generator.uniform(np.log(1e7), np.log(1e10), count))
    columns = {"num_params": size, "num_tokens": size * np.exp(generator.uniform(0, np.log(300), count))}
    losses = fit.predicted_loss(fit.CHINCHILLA, LAW, columns)
    normal = 0.01 * generator.normal(size=count)
    return columns, {
        "tails": losses * np.exp(0.01 * generator.standard_t(1.2, count)),
        "no size": (1.8 + 2000 / columns["num_tokens"] ** 0.37) * np.exp(normal),
        "few": losses * np.exp(normal),
        "noise": 3 * np.exp(10 * normal),
        "rising": np.exp(normal) / losses,
    }[kind]


@pytest.mark.parametrize("kind", ["tails", "no size", "few", "noise", "rising"])
def test_no_start_of_many_ends_below_a_certified_minimum(kind):
    for seed in range(4):
        columns, losses = nasty(kind, seed)
        found = fit.fit_surface(columns, losses, "chinchilla")
        if not found.certificate.certified:
            assert "not_certified" in {flag.code for flag in found.warnings}
            continue
        generator, own = np.random.default_rng(seed), found.refit
        anywhere = generator.choice([-1, 1], (150, 2)) * np.exp(generator.uniform(np.log(0.003), np.log(6), (150, 2)))
        starts_SP, _ = solver.starts(own.problem, anywhere, own.weights)
        other = solver.polish(own.problem, starts_SP, own.weights).objective_R.min()
        assert other > found.certificate.objective * (1 - 1e-7), (kind, seed)


def test_a_delta_of_few_rows_is_a_fixed_point_above_what_a_law_can_meet():
    for seed in range(12):
        found = fit.fit_surface(*nasty("few", seed), "chinchilla")
        assert "settled" in found.delta_rule
        assert "not settled" not in found.delta_rule
        if 6 < found.num_rows <= 10:
            assert "all residuals but the 5 smallest" in found.delta_rule
            assert found.delta > 1e-5


@pytest.mark.parametrize("digits", [2, 4, 6])
def test_losses_that_were_rounded_are_no_reason_against_a_certificate(digits):
    found = fit.bootstrap(fit.fit_surface(COLUMNS, np.round(EXACT, digits), "chinchilla"), draws=40)
    assert found.certificate.certified
    assert "draws_not_converged" not in {flag.code for flag in found.warnings}


def test_losses_that_are_all_one_have_no_law():
    with pytest.raises(BadInput, match="loss is 3 in every row"):
        fit.fit_surface(COLUMNS, np.full(36, 3.0), "chinchilla")
    with pytest.raises(BadInput, match="loss is 3 at every compute"):
        fit.fit_frontier([1e18, 1e19, 1e20, 1e21], [3.0] * 4, True)


def test_a_noise_free_table_is_fitted_and_nothing_is_tested_on_its_rounding():
    exact = fit.fit_surface(COLUMNS, EXACT, "chinchilla")
    assert exact.certificate.certified
    for ask in (
        lambda: fit.profile(exact, "alpha"),
        lambda: fit.floor_test(exact),
        lambda: fit.diagnose(exact, COLUMNS, EXACT),
        lambda: fit.shared_test(
            {"one": COLUMNS, "other": COLUMNS}, {"one": EXACT, "other": 1.1 * EXACT}, "chinchilla", draws=40
        ),
    ):
        with pytest.raises(BadInput, match="meets the rows exactly"):
            ask()


def test_a_fall_that_is_none_or_too_steep_is_flagged_in_words_of_its_own():
    said = [
        " ".join(flag.message for flag in fit.fit_surface(COLUMNS, losses, "chinchilla").warnings)
        for losses in (1.8 + 2000 / GRID[1] ** 0.37, 1 / EXACT, 1.8 + (GRID[0] / 1e7) ** -5.0 + 2000 / GRID[1] ** 0.37)
    ]
    assert "no fall is seen with num_params" in said[0]
    assert "no fall is seen with num_tokens" in said[1]
    assert "a fall steeper than any that was seen with num_params" in said[2]


def test_a_term_that_died_in_one_group_has_no_worth_there():
    noisy = EXACT * np.exp(0.002 * np.random.default_rng(0).normal(size=36))
    losses = {"whole": noisy, "without": 1.8 + 2000 / GRID[1] ** 0.37}
    both = fit.fit_shared(dict.fromkeys(losses, COLUMNS), losses, "chinchilla", shared=("exponents", "floor"))
    assert "rows show nothing of num_params" in " ".join(flag.message for flag in both.fits["without"].warnings)
    worth = fit.efficiencies(both, "whole")
    assert worth["without"]["num_params"].value is None
    assert "the term of A ended at zero in without" in worth["without"]["num_params"].reason
    assert worth["without"]["num_tokens"].value == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("count", [5, 6])
def test_a_run_predicted_from_too_few_rows_has_the_reason_in_place_of_an_interval(count):
    rows = np.random.default_rng(1).permutation(36)[:count]
    few = fit.fit_surface({name: values[rows] for name, values in COLUMNS.items()}, EXACT[rows] * 1.001, "chinchilla")
    found = fit.predict(few, {"num_params": 1e8, "num_tokens": 1e10}).estimate
    assert found.value is not None
    assert (found.low, found.high) == (None, None)
    assert "add runs" in found.reason


@pytest.mark.parametrize("compute", [0.0, -1.0, float("nan"), "1e20", None])
def test_an_optimum_at_no_compute_is_refused(compute):
    surface = fit.fit_surface(COLUMNS, EXACT, "chinchilla")
    with pytest.raises(BadInput, match="give FLOPs above 0"):
        fit.surface_optimum(surface, compute, flops_per_unit=6.0)


@pytest.mark.parametrize(
    "at", [{"num_params": 1e300, "num_tokens": 1.0}, {"num_params": [1e8, 1e9], "num_tokens": 1e9}]
)
def test_a_run_that_is_none_is_refused_by_its_number(at):
    with pytest.raises(BadInput, match=r"num_params is .*; give one number above 0"):
        fit.predict(fit.fit_surface(COLUMNS, EXACT * 1.001, "chinchilla"), at, draws=40)


def test_nothing_of_a_degenerate_fit_is_nan_in_json():
    for kind in ("tails", "no size", "few", "noise", "rising"):
        fitted = fit.bootstrap(fit.fit_surface(*nasty(kind, 1), "chinchilla"), draws=60)
        json.dumps(fitted.to_json(), allow_nan=False)
        for name, found in fitted.estimates.items():
            held = found.low is not None and found.high is not None and found.low <= found.value <= found.high
            assert held or found.reason, (kind, name)


@pytest.mark.parametrize("confidence", [0, 1, 1.5, -1, "a", None])
def test_a_confidence_that_is_no_share_is_refused(confidence):
    surface = fit.fit_surface(*planted.chinchilla_twin(num_rows=20), "chinchilla")
    for ask in (
        lambda: fit.profile(surface, "alpha", confidence=confidence),
        lambda: fit.jackknife(surface, [row % 5 for row in range(20)], confidence=confidence),
    ):
        with pytest.raises(BadInput, match=r"confidence is .*; give a share between 0 and 1"):
            ask()
