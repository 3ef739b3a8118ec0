"""Diagnostics: numbers against refits made by hand, flags against defects that were planted."""

import json

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from smelt.fit import laws, leave_out
from tests.fit import planted

NOISE = 0.003


def grid(num_budgets: int = 6, num_sizes: int = 7) -> tuple[dict, np.ndarray, np.ndarray]:
    """Columns, exact losses and budgets of the planted law."""
    table = planted.only(planted.grid(0, num_budgets=num_budgets, num_sizes=num_sizes), "base")
    columns = {name: table[name] for name in ("flops_per_token", "num_tokens")}
    return columns, fit.predicted_loss(fit.FLOPS_TOKENS, planted.LAW, columns), table["budget_flops"]


def noisy(exact: np.ndarray, seed: int = 0) -> np.ndarray:
    return exact * np.exp(NOISE * np.random.default_rng(seed).standard_normal(len(exact)))


def found(columns, losses, law="flops_tokens", *, objective="huber_log", delta="auto", weights=None, **options):
    threshold = delta if objective.startswith("huber") else 1e-3
    surface = fit.fit_surface(columns, losses, law, objective=objective, delta=threshold, weights=weights)
    return surface, fit.diagnose(surface, columns, losses, **options)


def codes(diagnostics) -> set[str]:
    return {flag.code for flag in diagnostics.flags}


def test_leverages_are_the_diagonal_of_the_hat_matrix_and_sum_to_the_parameters():
    columns, exact, _ = grid()
    surface, diagnostics = found(columns, noisy(exact), objective="squares_log")
    slopes = laws.loss_gradient(surface.law, surface.parameters, columns)
    jacobian = np.stack([slopes[name] for name in surface.law.parameters], axis=1) / surface.predict(columns)[:, None]
    basis, _ = np.linalg.qr(jacobian / np.linalg.norm(jacobian, axis=0))
    assert diagnostics.leverage == pytest.approx((basis**2).sum(axis=1), abs=1e-9)
    assert diagnostics.leverage.sum() == pytest.approx(5.0)


@pytest.mark.parametrize("objective", ["huber_log", "squares_log", "squares_raw"])
def test_influence_is_what_a_fit_without_the_row_says(objective):
    columns, exact, _ = grid(4, 5)
    losses = noisy(exact)
    surface, diagnostics = found(columns, losses, objective=objective, delta=1e-3)
    row = 3
    rest = {name: np.delete(values, row) for name, values in columns.items()}
    without = fit.fit_surface(rest, np.delete(losses, row), "flops_tokens", objective=objective, delta=1e-3)
    for name in ("a", "c", "E"):
        moved = diagnostics.influence[name][row] * diagnostics.standard_errors[name]
        assert moved == pytest.approx(surface.parameters[name] - without.parameters[name], abs=2e-6)


def test_standard_errors_of_the_minimum_agree_with_a_bootstrap():
    columns, losses = planted.chinchilla_twin()
    surface, diagnostics = found(columns, losses, "chinchilla", delta=1e-3)
    drawn = fit.bootstrap(surface, draws=400)
    for name in ("E", "alpha", "beta"):
        assert diagnostics.standard_errors[name] == pytest.approx(drawn.estimates[name].standard_error, rel=0.25)
    again = fit.diagnose(drawn, columns, losses)
    assert again.standard_errors["alpha"] == drawn.estimates["alpha"].standard_error


def test_a_good_grid_is_rarely_scolded():
    columns, exact, budgets = grid()
    flagged = [codes(found(columns, noisy(exact, seed), budgets=budgets)[1]) for seed in range(12)]
    assert sum(not flags for flags in flagged) >= 9, flagged


def test_a_run_gone_wrong_is_named_and_the_law_without_it_is_shown():
    columns, exact, budgets = grid()
    losses = noisy(exact)
    losses[0] *= 1.2
    names = [f"run-{row:02d}" for row in range(len(losses))]
    surface, diagnostics = found(columns, losses, objective="squares_log", budgets=budgets, labels=names)
    flags = {flag.code: flag.message for flag in diagnostics.flags}
    assert {"outlier_rows", "influential_row", "outliers_decide"} <= flags.keys()
    assert all("run-00" in flags[code] for code in ("outlier_rows", "influential_row"))
    assert diagnostics.outliers[0] == 0
    assert diagnostics.without_worst[1].rows == ("run-00",)
    rest = {name: values[1:] for name, values in columns.items()}
    clean = fit.fit_surface(rest, losses[1:], "flops_tokens", objective="squares_log")
    for name, value in clean.parameters.items():
        assert diagnostics.without_worst[1].parameters[name] == pytest.approx(value, rel=1e-5)
    assert diagnostics.without_worst[0].parameters["a"] == surface.parameters["a"]
    share = surface.parameters["c"] / (surface.parameters["a"] + surface.parameters["c"])
    assert diagnostics.without_worst[0].parameters["allocation_exponent"] == pytest.approx(share)


def test_the_largest_budget_is_predicted_from_the_rest():
    columns, exact, budgets = grid()
    losses = noisy(exact)
    _, diagnostics = found(columns, losses, budgets=budgets, delta=1e-3)
    held = diagnostics.largest_out
    top = budgets == budgets.max()
    rest = fit.fit_surface({n: v[~top] for n, v in columns.items()}, losses[~top], "flops_tokens", delta=1e-3)
    assert held.row_indices == tuple(np.flatnonzero(top))
    assert held.predicted == pytest.approx(rest.predict({n: v[top] for n, v in columns.items()}), rel=1e-7)
    assert held.relative_error == pytest.approx(losses[top] / held.predicted - 1)
    assert held.hits >= 6
    assert "extrapolation_missed" not in codes(diagnostics)


def test_without_budgets_the_largest_fifth_of_compute_is_held_out():
    columns, exact, _ = grid(5, 4)
    _, diagnostics = found(columns, noisy(exact))
    compute = columns["flops_per_token"] * columns["num_tokens"]
    assert len(diagnostics.largest_out.rows) == 4
    assert set(compute[list(diagnostics.largest_out.row_indices)]) == set(np.sort(compute)[-4:])


def test_one_row_that_is_held_out_is_told_as_one():
    compute = np.geomspace(1e15, 1e18, 7)
    losses = (2 + 3e4 * compute**-0.3) * np.exp(0.002 * np.sin(np.arange(7.0) ** 2))
    _, diagnostics = found({"compute_flops": compute}, losses, "saturating")
    assert diagnostics.largest_out.what == "the row of largest compute"


def test_a_law_that_lacks_the_floor_is_caught_by_its_residuals():
    compute = np.geomspace(1e15, 1e19, 30)
    columns = {"compute_flops": compute}
    losses = noisy(2.0 + 3e4 * compute**-0.3)
    _, diagnostics = found(columns, losses, "pure")
    message = next(flag.message for flag in diagnostics.flags if flag.code == "residual_pattern")
    assert "above the law at both ends of compute_flops" in message
    assert diagnostics.largest_out.relative_error.min() > 0
    assert codes(found(columns, losses, "saturating")[1]) == {"high_leverage"}  # of the smallest run


def test_a_law_that_holds_below_and_not_above_does_not_carry_upwards():
    columns, exact, budgets = grid()
    losses = noisy(exact)
    losses[budgets == budgets.max()] *= 1.02
    _, diagnostics = found(columns, losses, budgets=budgets)
    message = next(flag.message for flag in diagnostics.flags if flag.code == "extrapolation_missed")
    assert "above it on average" in message
    assert diagnostics.largest_out.hits < 4


def test_an_error_that_budgets_share_is_seen_unless_whole_budgets_are_the_units():
    columns, exact, budgets = grid()
    _, place = np.unique(budgets, return_inverse=True)
    losses = noisy(exact) * np.exp(0.01 * np.array([1, -1, 1, -1, -1, 1]))[place]
    assert "budget_effect" in codes(found(columns, losses, budgets=budgets)[1])
    _, whole = found(columns, losses, budgets=budgets, units=list(budgets))
    assert "budget_effect" not in codes(whole)
    assert whole.budget_effect.p_value < 0.01


def test_checkpoints_of_one_run_are_no_independent_rows():
    sizes, tokens = (values.ravel() for values in np.meshgrid(np.geomspace(1e7, 1e9, 8), np.geomspace(1e9, 3e10, 6)))
    columns = {"num_params": sizes, "num_tokens": tokens}
    _, run = np.unique(sizes, return_inverse=True)
    generator = np.random.default_rng(1)
    error = 0.004 * generator.standard_normal(8)[run] + 0.001 * generator.standard_normal(48)
    losses = fit.predicted_loss(fit.CHINCHILLA, planted.CHINCHILLA, columns) * np.exp(error)
    _, diagnostics = found(columns, losses, "chinchilla")
    assert "rows_not_independent" in codes(diagnostics)
    assert diagnostics.neighbours.num_pairs == 40
    _, labelled = found(columns, losses, "chinchilla", units=list(run))
    assert "rows_not_independent" not in codes(labelled)
    assert labelled.neighbours is None
    assert "0 pairs" in labelled.reasons["neighbours"]


def test_scatter_that_shrinks_with_size_is_seen():
    columns, losses = planted.chinchilla_twin(noise=0.001)
    size = np.log(columns["num_params"])
    small = (size.max() - size) / np.ptp(size)
    losses = losses * np.exp(0.01 * small * np.random.default_rng(2).standard_normal(240))
    _, diagnostics = found(columns, losses, "chinchilla")
    message = next(flag.message for flag in diagnostics.flags if flag.code == "uneven_scatter")
    assert "less as num_params grows" in message


def test_best_sizes_outside_those_trained_are_seen_with_the_side_to_add():
    columns, exact, budgets = grid()
    losses = noisy(exact)
    _, inside = found(columns, losses, budgets=budgets)
    assert all(interior.inside for interior in inside.interiors)
    for interior in inside.interiors:
        best = fit.surface_optimum(found(columns, losses)[0], interior.budget).size.value
        assert interior.best_size == pytest.approx(best, rel=0.01)
    kept = np.zeros(len(losses), dtype=bool)
    for budget in np.unique(budgets):
        rows = np.flatnonzero(budgets == budget)
        kept[rows[np.argsort(columns["flops_per_token"][rows])[:3]]] = True
    small = {name: values[kept] for name, values in columns.items()}
    _, outside = found(small, losses[kept], budgets=budgets[kept])
    message = next(flag.message for flag in outside.flags if flag.code == "optimum_outside")
    assert "add larger sizes" in message


def test_one_ratio_of_tokens_to_size_is_called_narrow():
    generator = np.random.default_rng(0)
    sizes = np.geomspace(1e7, 1e9, 30)
    columns = {"num_params": sizes, "num_tokens": 20 * sizes * np.exp(generator.uniform(-0.4, 0.4, 30))}
    losses = noisy(fit.predicted_loss(fit.CHINCHILLA, planted.CHINCHILLA, columns))
    _, diagnostics = found(columns, losses, "chinchilla")
    assert "narrow_ratio" in codes(diagnostics)
    assert diagnostics.ranges["tokens per size"] < 4 < diagnostics.ranges["num_params"]


def test_an_exponent_that_noise_hides_is_called_unsure():
    columns, exact, _ = grid(4, 5)
    losses = exact * np.exp(0.04 * np.random.default_rng(0).standard_normal(20))
    assert "exponent_unsure" in codes(found(columns, losses)[1])


def test_a_floor_that_rows_do_not_show_is_called_unsure():
    columns, _, budgets = grid()
    reducible = fit.predicted_loss(fit.FLOPS_TOKENS, {**planted.LAW, "E": 0.0}, columns)
    _, diagnostics = found(columns, noisy(reducible, 3), budgets=budgets)
    assert "floor_unsure" in codes(diagnostics)
    assert diagnostics.identifiability.rise["E = 0"] < diagnostics.identifiability.level


def test_a_floor_is_unsure_exactly_where_its_test_does_not_show_it():
    columns, _, budgets = grid()
    said = []
    small = fit.predicted_loss(fit.FLOPS_TOKENS, {**planted.LAW, "E": 0.04}, columns)
    for seed in range(8):
        surface, diagnostics = found(columns, noisy(small, seed), budgets=budgets)
        tested = fit.floor_test(surface)
        unsure = "floor_unsure" in codes(diagnostics)
        assert unsure == (surface.parameters["E"] > 0 and tested.p_value >= 0.05), seed
        said.append((unsure, 0.025 < tested.p_value < 0.05))
    assert {unsure for unsure, _ in said} == {True, False}
    assert any(one_sided for _, one_sided in said)  # where a test with two sides says the other thing


@pytest.mark.parametrize("objective", ["absolute_log", "huber_raw", "squares_raw"])
def test_every_objective_and_weights_are_diagnosed_in_plain_json(objective):
    columns, exact, budgets = grid(4, 5)
    weights = np.linspace(1, 3, 20)
    _, diagnostics = found(columns, noisy(exact), objective=objective, budgets=budgets, weights=weights)
    text = json.dumps(fit.jsonable(diagnostics), allow_nan=False)
    assert "largest_out" in text
    assert diagnostics.largest_out.hits >= 3
    assert diagnostics.leverage.sum() == pytest.approx(5.0)


def test_a_law_with_an_effective_column_is_diagnosed():
    columns, exact, _ = grid()
    sizes = columns["flops_per_token"]
    shaped = {"num_params": sizes, "num_tokens": columns["num_tokens"]}
    _, diagnostics = found(shaped, noisy(exact), "kaplan")
    assert {"alpha_D", "ratio", "balance"} <= diagnostics.influence.keys()
    assert "allocation_exponent" not in diagnostics.influence
    assert "residual_pattern" in codes(diagnostics)


def test_a_common_weight_and_the_order_of_rows_change_nothing():
    columns, exact, budgets = grid(4, 5)
    losses = noisy(exact)
    _, one = found(columns, losses, budgets=budgets)
    order = np.random.default_rng(5).permutation(20)
    turned = {name: values[order] for name, values in columns.items()}
    _, other = found(turned, losses[order], budgets=budgets[order], weights=np.full(20, 7.0))
    assert other.leverage == pytest.approx(one.leverage[order])
    assert other.influence["a"] == pytest.approx(one.influence["a"][order], abs=1e-4)
    assert other.largest_out.p_value == pytest.approx(one.largest_out.p_value, rel=1e-4)
    for name, rise in one.identifiability.rise.items():
        assert other.identifiability.rise[name] == pytest.approx(rise, rel=1e-3)


def test_long_tables_refit_the_rows_that_move_most(monkeypatch):
    columns, losses = planted.chinchilla_twin()
    _, all_refitted = found(columns, losses, "chinchilla")
    monkeypatch.setattr(leave_out, "MAX_REFITS", 100)
    _, some = found(columns, losses, "chinchilla")
    full, mixed = all_refitted.influence["alpha"], some.influence["alpha"]
    assert np.sum(full == mixed) >= 100
    assert mixed == pytest.approx(full, abs=0.05)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c, loss: (c, loss[::-1]), "not the rows of the fit"),
        (lambda c, loss: (c, loss[:-1]), "has 20 rows"),
        (lambda c, loss: ({"num_tokens": c["num_tokens"]}, loss), "no column 'flops_per_token'"),
    ],
)
def test_rows_that_are_not_those_of_the_fit_are_refused(change, words):
    columns, exact, _ = grid(4, 5)
    losses = noisy(exact)
    surface = fit.fit_surface(columns, losses, "flops_tokens")
    with pytest.raises(BadInput, match=words):
        fit.diagnose(surface, *change(columns, losses))


def test_as_many_parameters_as_rows_leave_nothing_to_diagnose():
    columns, exact, _ = grid()
    few = [0, 6, 20, 35, 41]
    some = {name: values[few] for name, values in columns.items()}
    surface = fit.fit_surface(some, exact[few], "flops_tokens")
    with pytest.raises(BadInput, match="leave none"):
        fit.diagnose(surface, some, exact[few])
