"""Nested tests: the textbook's F where laws are linear, size and power in small, and what partners share."""

import numpy as np
import pytest
from scipy import stats

from smelt import fit
from smelt.errors import BadInput
from tests.fit import planted
from tests.fit.test_diagnostics import grid, noisy
from tests.fit.test_profile import pure


def two_groups(seed: int, apart: float = 0.0, common: float = 0.0, own: float = 0.003) -> tuple[dict, dict]:
    """Two groups on one grid, the target's exponent `apart` from the base's, noise `common` to partners and `own`."""
    columns, _, _ = grid(5, 5)
    size, tokens = columns["flops_per_token"], columns["num_tokens"]
    generator = np.random.default_rng(seed)
    shared = common * generator.standard_normal(25)
    middle, losses = np.exp(np.log(size).mean()), {}
    for name, more in (("base", 0.0), ("target", apart)):
        law = planted.LAW
        term = law["A"] * middle ** -law["a"] * (size / middle) ** -(law["a"] + more)
        losses[name] = law["E"] + term + law["K"] * tokens ** -law["c"]
        losses[name] = losses[name] * np.exp(shared + own * generator.standard_normal(25))
    return dict.fromkeys(losses, columns), losses


def test_one_slope_for_two_lines_is_the_f_test_of_the_textbook():
    tables, losses = {}, {}
    for seed, name in enumerate(("base", "target")):
        tables[name], losses[name] = pure(seed=seed)
    losses["target"] = losses["target"] * (tables["target"]["compute_flops"] / 1e16) ** -0.01
    found = fit.shared_test(tables, losses, "pure", objective="squares_log", draws=50)
    x = [np.log(tables[name]["compute_flops"]) for name in losses]
    y = np.concatenate([np.log(values) for values in losses.values()])
    group = np.repeat([0.0, 1.0], 12)
    apart = np.stack([1 - group, group, (1 - group) * np.concatenate(x), group * np.concatenate(x)], axis=1)
    together = np.stack([1 - group, group, np.concatenate(x)], axis=1)
    left = [float(np.sum((y - m @ np.linalg.lstsq(m, y, rcond=None)[0]) ** 2)) for m in (apart, together)]
    f = (left[1] - left[0]) / (left[0] / 20)
    assert found.degrees == (1, 20)
    assert found.statistic == pytest.approx(f, rel=1e-6)
    assert found.p_value == pytest.approx(stats.f.sf(f, 1, 20), rel=1e-5)
    assert "tell them apart" in found.sentence


def test_equal_exponents_are_rarely_called_apart_and_unequal_ones_are():
    tables, losses = two_groups(0, apart=0.08)
    found = fit.shared_test(tables, losses, "flops_tokens", draws=200)
    assert found.p_value < 0.01
    assert "the rows tell them apart" in found.sentence
    difference = found.differences["target"]["a"]
    assert 0 < difference.low < 0.08 < difference.high
    called = 0
    for seed in range(12):
        tables, losses = two_groups(seed)
        called += fit.shared_test(tables, losses, "flops_tokens", objective="squares_log", draws=2).p_value < 0.05
    assert called <= 2


def test_partners_that_share_their_error_are_told_apart_by_joint_draws():
    tables, losses = two_groups(1, apart=0.02, common=0.006, own=0.0004)
    partners = {name: list(range(25)) for name in losses}
    paired = fit.shared_test(tables, losses, "flops_tokens", units=partners, draws=200)
    assert paired.p_value > 0.05 > paired.joint_p_value
    assert "the rows tell them apart (joint draws of partners" in paired.sentence
    alone = fit.shared_test(tables, losses, "flops_tokens", draws=200)
    assert alone.joint_p_value > 0.05
    assert (paired.decisive, alone.decisive) == ("joint_p_value", "p_value")
    assert paired.differences["target"]["a"].low > 0


def test_a_shared_floor_costs_one_degree_a_group():
    tables, losses = two_groups(2)
    found = fit.shared_test(tables, losses, "flops_tokens", share=["floor"], delta="auto", draws=2)
    assert found.degrees == (1, 40)
    assert found.question == "are E the same in base, target?"
    assert list(found.differences["target"]) == ["E"]


def test_a_floor_is_seen_where_it_is_and_not_where_it_is_not():
    columns, exact, _ = grid()
    shown = fit.floor_test(fit.fit_surface(columns, noisy(exact), "flops_tokens"))
    assert shown.p_value < 1e-6
    assert shown.sentence.startswith("the rows show a floor")
    reducible = fit.predicted_loss(fit.FLOPS_TOKENS, {**planted.LAW, "E": 0.0}, columns)
    claimed = []
    for seed in range(20):
        surface = fit.fit_surface(columns, noisy(reducible, seed), "flops_tokens", objective="squares_log")
        found = fit.floor_test(surface)
        claimed.append(found.p_value < 0.05)
        if surface.parameters["E"] == 0:
            assert found.p_value == 1.0
        else:
            assert found.p_value == pytest.approx(0.5 * stats.f.sf(found.statistic, 1, 37))
    assert sum(claimed) <= 3


def test_the_floor_test_of_least_squares_is_that_of_two_fits():
    columns, exact, _ = grid()
    losses = noisy(exact, 4)
    with_floor = fit.fit_surface(columns, losses, "flops_tokens", objective="squares_log")
    terms = fit.FLOPS_TOKENS.terms
    without = fit.fit_surface(columns, losses, fit.Law(name="bare", floor=None, terms=terms), objective="squares_log")
    ratio = (without.certificate.objective / with_floor.certificate.objective - 1) * 37
    assert fit.floor_test(with_floor).statistic == pytest.approx(ratio, rel=1e-6)


def test_what_cannot_be_tested_is_refused():
    columns, losses = pure()
    with pytest.raises(BadInput, match="pure has no floor to test"):
        fit.floor_test(fit.fit_surface(columns, losses, "pure"))
    tables, losses = two_groups(0)
    rows = [0, 4, 12, 20, 24]
    few = {name: {column: values[rows] for column, values in table.items()} for name, table in tables.items()}
    with pytest.raises(BadInput, match="leave none to tell the scatter by"):
        fit.shared_test(few, {name: values[rows] for name, values in losses.items()}, "flops_tokens")
