"""Frontiers of laws of every form agree with closed forms and brute force, invert, and refuse what has no best size."""

import dataclasses
import json
import time

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from smelt.fit import answers, groups, laws, traded
from tests.fit.planted import LAWS, columns_of, grid

# law -> what its frontier needs, and FLOPs per token and columns of runs of a size, written down a second time.
CASES = {
    "gamma": ({"flops_per_unit": 6.0}, lambda n: (6 * n, {"num_params": n})),
    "kaplan": ({"flops_per_unit": 6.5}, lambda n: (6.5 * n, {"num_params": n})),
    "data_constrained": (
        {"flops_per_unit": 6.0, "num_unique_tokens": 2e9},
        lambda n: (6 * n, {"num_params": n, "num_unique_tokens": np.full_like(n, 2e9)}),
    ),
    "data_constrained_params": (
        {"flops_per_unit": 6.0, "num_unique_tokens": 2e9, "num_useful_params": 5e8},
        lambda n: (
            6 * n,
            {"num_params": n, "num_unique_tokens": np.full_like(n, 2e9), "num_useful_params": np.minimum(n, 5e8)},
        ),
    ),
    "iso_depth": (
        {"flops_per_unit": 6.0, "num_passes": 2.0, "recurrent_share": 0.4},
        lambda n: (
            6 * (0.6 * n + 2 * 0.4 * n),
            {"num_params_once": 0.6 * n, "num_params_recurrent": 0.4 * n, "num_passes": np.full_like(n, 2.0)},
        ),
    ),
    "moe_sparsity": (
        {"flops_per_unit": 6.0, "density": 0.1},
        lambda n: (6 * n, {"num_params": n / 0.1, "density": np.full_like(n, 0.1)}),
    ),
    "active_total": (
        {"flops_per_unit": 6.0, "total_per_active": 8.0},
        lambda n: (6 * n, {"num_params_active": n, "num_params": 8 * n}),
    ),
}
RANGE = (1e19, 1e22)


def surface(name: str, seed: int = 0) -> fit.SurfaceFit:
    columns = columns_of(laws.law(name), seed)
    return fit.fit_surface(columns, fit.predicted_loss(laws.law(name), LAWS[name], columns), name)


def numeric(found: fit.SurfaceFit, draws: dict | None = None, **options) -> traded.TradedFrontier:
    """The frontier of a law number by number, whether or not it has a closed form."""
    valley = traded.valley(found.law, options.pop("flops_per_unit", None), options, found.column_ranges)
    return traded.traded_frontier(
        found.law, found.parameters, draws, valley, compute_range_flops=RANGE, spread=1.0, method="given"
    )


def scattered(parameters: dict[str, float], num_draws: int = 1000) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: value * np.exp(0.01 * generator.standard_normal(num_draws)) for name, value in parameters.items()}


@pytest.mark.parametrize(("name", "options"), [("chinchilla", {"flops_per_unit": 6.0}), ("smelt", {"density": 0.05})])
def test_found_number_by_number_a_closed_frontier_is_the_closed_one(name, options):
    found = surface(name)
    found = dataclasses.replace(found, draws=scattered(found.parameters))
    ours = numeric(found, found.draws, **options)
    closed = fit.surface_frontier(found, compute_range_flops=RANGE, **options)
    compute = np.geomspace(1e16, 1e25, 10)
    np.testing.assert_allclose(ours.loss(compute), closed.loss(compute), rtol=1e-12)
    np.testing.assert_allclose(ours.loss_draws(compute), closed.loss_draws(compute), rtol=1e-12)
    np.testing.assert_allclose(ours.compute(closed.loss(compute)), compute, rtol=1e-9)
    sizes = np.exp(ours.valley.log_best(found.parameters, np.log(compute)))
    expected = [fit.surface_optimum(found, c, **options).size.value for c in compute]
    np.testing.assert_allclose(sizes, expected, rtol=1e-9)
    assert ours.floor == pytest.approx(closed.floor, rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_optimum_of_a_law_is_the_least_of_its_losses_at_that_compute(name):
    options, runs = CASES[name]
    found = surface(name)
    for compute in (1e19, 1e21):
        optimum = fit.surface_optimum(found, compute, **options)
        sizes = optimum.size.value * np.exp(np.linspace(-6, 6, 120_001))
        per_token, columns = runs(sizes)
        losses = found.predict({**columns, "num_tokens": compute / per_token})
        assert optimum.loss.value == pytest.approx(losses.min(), rel=1e-12)
        assert optimum.size.value == pytest.approx(sizes[losses.argmin()], rel=2e-4)
        assert optimum.num_tokens.value * runs(np.array([optimum.size.value]))[0][0] == pytest.approx(compute, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_inverting_undoes_the_frontier_of_a_law_in_every_draw(name):
    options, _ = CASES[name]
    found = surface(name)
    frontier = numeric(found, scattered(found.parameters, 50), **options)
    budgets = np.geomspace(1e18, 1e22, 5)
    np.testing.assert_allclose(frontier.compute(frontier.loss(budgets)), budgets, rtol=1e-8)
    for budget, losses in zip(budgets, frontier.loss_draws(budgets).T, strict=True):
        np.testing.assert_allclose(frontier.compute_draws(losses), budget, rtol=1e-8)
    assert np.isinf(frontier.compute(0.999 * frontier.floor))


def test_a_thousand_draws_at_ten_budgets_take_under_a_second():
    for name, (options, _) in CASES.items():
        found = surface(name)
        frontier = numeric(found, scattered(found.parameters), **options)
        start = time.process_time()
        losses = frontier.loss_draws(np.geomspace(1e19, 1e22, 10))
        assert time.process_time() - start < 1, name
        assert np.isfinite(losses).all(), name


def test_where_tokens_repeat_the_loss_falls_to_what_the_unique_ones_leave():
    found = surface("data_constrained")
    p, unique = found.parameters, 2e9
    frontier = numeric(found, flops_per_unit=6.0, num_unique_tokens=unique)
    assert frontier.floor == pytest.approx(p["E"] + p["B"] * (unique * (1 + p["r_tokens"])) ** -p["beta"], rel=1e-6)
    assert np.isinf(frontier.compute(p["E"] + 1e-3))
    assert numeric(surface("kaplan"), flops_per_unit=6.0).floor == 0.0


def test_savings_gains_and_crossings_of_a_law_are_those_of_its_closed_form():
    one = surface("chinchilla")
    other = {**one.parameters, "A": 400.0, "alpha": one.parameters["alpha"] - 0.01}
    pairs = [], []
    for parameters in (other, one.parameters):
        found = dataclasses.replace(one, parameters=parameters, draws=scattered(parameters))
        pairs[0].append(numeric(found, found.draws, flops_per_unit=6.0))
        pairs[1].append(fit.surface_frontier(found, compute_range_flops=RANGE, flops_per_unit=6.0))
    budgets = [1e19, 1e20, 1e22]
    for ours, closed in zip(*(fit.savings(*pair, budgets) for pair in pairs), strict=True):
        assert ours.estimate.value == pytest.approx(closed.estimate.value, rel=1e-8, abs=1e-10)
        assert ours.estimate.low == pytest.approx(closed.estimate.low, rel=1e-8)
        assert ours.share_positive == closed.share_positive
    ours, closed = (fit.gain_at_loss(*pair, [2.3])[0] for pair in pairs)
    assert ours.gain.value == pytest.approx(closed.gain.value, rel=1e-8)
    ours, closed = (fit.crossing(*pair) for pair in pairs)
    assert ours.compute.value == pytest.approx(closed.compute.value, rel=1e-4)
    assert ours.better_above == closed.better_above
    assert [flag.code for flag in ours.warnings] == [flag.code for flag in closed.warnings]
    same = fit.crossing(pairs[0][0], pairs[0][0])
    assert "as far as ten times outside" in same.compute.reason


def test_a_loss_that_falls_to_one_end_of_all_sizes_has_a_reason_and_no_optimum():
    found = surface("gamma")
    found.parameters["alpha"] = -0.1
    optimum = fit.surface_optimum(found, 1e20, flops_per_unit=6.0)
    assert optimum.size.value is None
    assert optimum.loss.value is None
    assert "one end of all sizes" in optimum.size.reason
    assert optimum.size_within_1_percent is None
    with pytest.raises(BadInput, match="one end of all sizes"):
        fit.surface_frontier(found, compute_range_flops=RANGE, flops_per_unit=6.0)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("active_total", {"num_params_active": 1e9}, "goes with the size .* total_per_active"),
        ("active_total", {"num_params": 1e9}, "goes with the size .* total_per_active"),
        ("active_total", {}, "give its value as total_per_active"),
        ("iso_depth", {"num_passes": 2.0}, "give its value as recurrent_share"),
        ("iso_depth", {"num_passes": 2.0, "recurrent_share": 1.5}, "recurrent_share is 1.5"),
        ("iso_depth", {"num_passes": 2.0, "num_params_once": 1e9}, "give recurrent_share"),
        ("moe_sparsity", {}, "'density'"),
        ("moe_sparsity", {"density": 0.0}, "density is held at 0"),
        ("data_constrained", {"num_unique_tokens": 1e9, "density": 0.1}, "density=0.1 is no column"),
        ("data_constrained", {"num_unique_tokens": 1e9, "num_tokens": 1e9}, "num_tokens is held"),
        ("gamma", {"flops_per_unit": None}, "needs flops_per_unit"),
        ("routed", {"num_experts": 8.0}, "no size and tokens to trade"),
    ],
)
def test_what_a_frontier_lacks_or_cannot_hold_is_named(name, options, words):
    fixed = {"flops_per_unit": 6.0, **options}
    per_unit = fixed.pop("flops_per_unit")
    with pytest.raises(BadInput, match=words):
        traded.trade(laws.law(name), per_unit, fixed)


@pytest.mark.parametrize("name", ["chinchilla", "kaplan", "iso_depth"])
def test_the_sizes_at_either_end_of_a_flat_optimum_need_one_per_cent_more_compute(name):
    options, runs = CASES.get(name, ({"flops_per_unit": 6.0}, lambda n: (6 * n, {"num_params": n})))
    found = surface(name)
    optimum = fit.surface_optimum(found, 1e20, **options)
    ends = np.array(optimum.size_within_1_percent)
    assert ends[0] < optimum.size.value < ends[1]
    per_token, columns = runs(ends)
    losses = found.predict({**columns, "num_tokens": 1.01 * 1e20 / per_token})
    np.testing.assert_allclose(losses, optimum.loss.value, rtol=1e-10)


def table(law: str, num_rows: int, noise: float = 0.002) -> dict[str, list]:
    """Runs of two groups, the second of which gets 4/3 as much of every size and token."""
    found: dict[str, list] = {}
    generator = np.random.default_rng(1)
    for group, worth in (("base", 1.0), ("target", (4 / 3) ** 0.5)):
        columns = columns_of(laws.law(law), 2, num_rows)
        effective = {k: v * (worth if k in ("num_params", "num_tokens") else 1) for k, v in columns.items()}
        loss = fit.predicted_loss(laws.law(law), LAWS[law], effective)
        rows = {**columns, "loss_nats": loss * np.exp(noise * generator.standard_normal(num_rows))}
        rows |= {"train_flops": 6 * columns["num_params"] * columns["num_tokens"], "group": [group] * num_rows}
        for name, values in rows.items():
            found.setdefault(name, []).extend(values)
    return found


def test_a_law_without_a_closed_form_answers_every_question_of_its_groups():
    fits = fit.fit_groups(table("gamma", 60), "base", law="gamma", draws=100, budgets_flops=[1e19, 1e21])
    assert groups.recommended(fits, "target") == "surface"
    for saving in answers.saved(fits, "target", [1e20])["surface"]["at_budgets"]:
        assert saving.estimate.low < 0.25 < saving.estimate.high
    for answer in answers.optima(fits, [1e20]):
        assert answer.size.low < answer.size.value < answer.size.high
        assert answer.size_within_1_percent[0] < answer.size.value < answer.size_within_1_percent[1]
    assert "size_exponent" not in answers.exponents(fits, "base")
    with pytest.raises(BadInput, match="training FLOPs alone"):
        answers.optima(fits, [1e20], inference_tokens=1e12)
    written = fit.group_analysis(table("gamma", 60), "base", law="gamma", draws=50, budgets_flops=[1e19, 1e21])
    json.dumps(written, allow_nan=False)
    assert written["groups"]["base"]["frontiers"]["surface"]["kind"] == "surface"
    assert written["groups"]["base"]["optima"][0]["size"]["value"] > 0


def test_the_flops_of_a_sparse_law_are_those_of_its_active_parameters():
    columns = columns_of(laws.MOE_SPARSITY, 0, 80)
    active = columns["num_params"] * columns["density"]
    rows = {
        **{name: list(values) for name, values in columns.items()},
        "train_flops": list(6.3 * active * columns["num_tokens"]),
        "loss_nats": list(fit.predicted_loss(laws.MOE_SPARSITY, LAWS["moe_sparsity"], columns)),
    }
    fits = fit.fit_groups(rows, law="moe_sparsity", fixed={"density": 0.1}, draws=50)
    assert fits.frontier_options[fits.reference]["flops_per_unit"] == pytest.approx(6.3, rel=1e-9)
    assert not [flag for flag in fits.warnings if flag.code == "flops_per_unit_varies"]
    (answer,) = answers.optima(fits, [1e20])
    assert answer.size_column == "num_params_active"
    rows.pop("train_flops")
    counted = fit.fit_groups(rows, law="moe_sparsity", fixed={"density": 0.1}, flops_per_unit=6.3, draws=50)
    assert counted.compute_range_flops[counted.reference] == pytest.approx(fits.compute_range_flops[fits.reference])


def test_a_surface_of_few_runs_or_without_a_certificate_comes_after_other_frontiers():
    assert groups.unproven(groups.MIN_RUNS_FOR_VERDICT - 1, set()) == "few_runs"
    assert groups.unproven(groups.MIN_RUNS_FOR_VERDICT, {"not_certified"}) == "not_certified"
    assert groups.unproven(groups.MIN_RUNS_FOR_VERDICT, {"few_rows"}) is None
    few = fit.fit_groups(grid(0, num_budgets=3, num_sizes=3), "base", draws=50)
    assert {"surface", "pure"} <= few.frontiers["target"].keys()
    assert groups.recommended(few, "target") in ("saturating", "pure")
    enough = fit.fit_groups(grid(0, num_budgets=3, num_sizes=4), "base", draws=50)
    assert groups.recommended(enough, "target") == "surface"


def test_a_floor_at_its_bound_is_zero_and_has_no_interval():
    budgets = np.geomspace(1e18, 1e21, 6)
    losses = 40 * budgets**-0.08
    # Bent the other way: next to every draw has its best floor below zero.
    bent = losses * np.exp(-0.01 * np.linspace(-1, 1, 6) ** 2)
    draws = bent * np.exp(1e-4 * np.random.default_rng(0).standard_normal((200, 6)))
    frontier = fit.fit_frontier(budgets, bent, saturating=True, loss_draws=draws)
    assert frontier.floor == 0.0
    floor = frontier.estimates["floor"]
    assert (floor.value, floor.low, floor.high, floor.standard_error) == (0.0, None, None, None)
    assert "bound" in floor.reason
    assert frontier.estimates["exponent"].low is not None
