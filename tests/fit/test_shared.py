"""Groups in one problem: what is shared comes out once, costs what it should, and makes intervals narrower."""

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from smelt.fit import laws
from tests.fit import planted

GROUPS = {
    "dense": {"E": 1.8, "A": 400.0, "B": 2000.0, "alpha": 0.34, "beta": 0.36},
    "routed": {"E": 1.7, "A": 330.0, "B": 1500.0, "alpha": 0.34, "beta": 0.36},
    "looped": {"E": 1.9, "A": 500.0, "B": 2500.0, "alpha": 0.34, "beta": 0.36},
}


def grids(groups: dict, law: fit.Law = fit.CHINCHILLA, *, noise: float = 0.003, num_rows: int = 40) -> tuple:
    generator = np.random.default_rng(4)
    columns = {group: planted.columns_of(law, seed, num_rows) for seed, group in enumerate(groups)}
    losses = {
        group: fit.predicted_loss(law, groups[group], columns[group]) * np.exp(noise * generator.normal(size=num_rows))
        for group in groups
    }
    return columns, losses


@pytest.mark.parametrize(
    ("shared", "names"),
    [
        (("exponents",), ("alpha", "beta")),
        (("alpha",), ("alpha",)),
        ((), ()),
        (("exponents", "floor"), ("E", "alpha", "beta")),
        (("exponents", "floor", "coefficients"), ("E", "A", "B", "alpha", "beta")),
    ],
)
def test_noise_free_groups_come_back_whatever_is_shared(shared, names):
    truth = {group: {**law, **{name: GROUPS["dense"][name] for name in names}} for group, law in GROUPS.items()}
    columns, losses = grids(truth, noise=0.0)
    found = fit.fit_shared(columns, losses, "chinchilla", shared=shared)
    assert found.shared == names
    assert found.num_parameters == 15 - 2 * len(names)
    assert found.certificate.certified, found.certificate.why_not
    for group, law in truth.items():
        for name, value in law.items():
            assert found.fits[group].parameters[name] == pytest.approx(value, rel=1e-6), (group, name)


def test_sharing_costs_objective_and_sharing_nothing_costs_none():
    columns, losses = grids(GROUPS)
    alone = {group: fit.fit_surface(columns[group], losses[group], "chinchilla", delta=1e-3) for group in GROUPS}
    least = sum(one.certificate.objective for one in alone.values())
    objective = {
        shared: fit.fit_shared(columns, losses, "chinchilla", shared=shared, delta=1e-3).certificate.objective
        for shared in ((), ("exponents",), ("exponents", "floor"), ("exponents", "floor", "coefficients"))
    }
    assert objective[()] == pytest.approx(least, rel=1e-9)
    assert least < objective["exponents",] < 1.1 * least
    assert objective["exponents",] < objective["exponents", "floor"]
    assert objective["exponents", "floor"] < objective["exponents", "floor", "coefficients"]


def test_shared_exponents_have_narrower_intervals_that_hold_the_planted_ones():
    columns, losses = grids(GROUPS)
    alone = fit.bootstrap(fit.fit_surface(columns["dense"], losses["dense"], "chinchilla"), draws=300)
    joint = fit.bootstrap_shared(fit.fit_shared(columns, losses, "chinchilla"), draws=300)
    for name in ("alpha", "beta"):
        one, both = alone.estimates[name], joint.fits["dense"].estimates[name]
        assert both.high - both.low < 0.8 * (one.high - one.low)
        assert both.low < GROUPS["dense"][name] < both.high
        np.testing.assert_array_equal(joint.fits["dense"].draws[name], joint.fits["looped"].draws[name])
    for group, law in GROUPS.items():
        estimate = joint.fits[group].estimates["E"]
        assert estimate.low < law["E"] < estimate.high


def test_groups_of_a_shared_fit_have_frontiers_and_savings():
    columns, losses = grids({"base": GROUPS["dense"], "target": {**GROUPS["dense"], "A": 320.0, "B": 1600.0}})
    joint = fit.bootstrap_shared(
        fit.fit_shared(columns, losses, "chinchilla", shared=("exponents", "floor")), draws=200
    )
    base, target = (
        fit.surface_frontier(joint.fits[group], compute_range_flops=(1e18, 1e21), flops_per_unit=6.0)
        for group in ("base", "target")
    )
    saving = fit.savings(target, base, [1e20])[0].estimate
    # Both terms are 0.8 of the base's, so the loss above the floor is, at every compute.
    planted_saving = 1 - 0.8 ** (1 / (0.34 * 0.36 / (0.34 + 0.36)))
    assert saving.low < planted_saving < saving.high
    assert saving.high - saving.low < 0.1
    point = {"num_params": 1e9, "num_tokens": 2e10}
    assert fit.predict(joint.fits["base"], point).estimate.low is not None


def test_efficiencies_are_what_a_parameter_and_a_token_are_worth():
    worth = {"num_params": 1.5, "num_tokens": 0.8}
    law = GROUPS["dense"]
    target = {**law, "A": law["A"] * 1.5 ** -law["alpha"], "B": law["B"] * 0.8 ** -law["beta"]}
    columns, losses = grids({"base": law, "target": target}, num_rows=60)
    joint = fit.bootstrap_shared(
        fit.fit_shared(columns, losses, "chinchilla", shared=("exponents", "floor")), draws=200
    )
    found = fit.efficiencies(joint, "base")
    for column, value in worth.items():
        assert found["base"][column].value == 1.0
        assert found["target"][column].low < value < found["target"][column].high
    with pytest.raises(BadInput, match="no group is called 'other'"):
        fit.efficiencies(joint, "other")
    with pytest.raises(BadInput, match="efficiencies need exponents shared"):
        fit.efficiencies(fit.fit_shared(columns, losses, "chinchilla", shared=("alpha", "floor", "A")), "base")


@pytest.mark.parametrize("shared", [("exponents",), ("alpha", "beta")], ids=["one shape", "a shape each"])
def test_shapes_are_shared_or_apart(shared):
    base = planted.LAWS["iso_depth"]
    own = {} if shared == ("exponents",) else {"phi": 0.8}
    truth = {"base": base, "target": {**base, "A": 40.0, **own}}
    columns, losses = grids(truth, laws.ISO_DEPTH, noise=0.0, num_rows=60)
    found = fit.fit_shared(columns, losses, "iso_depth", shared=shared)
    assert found.certificate.certified, found.certificate.why_not
    for group in truth:
        for name, value in truth[group].items():
            assert found.fits[group].parameters[name] == pytest.approx(value, rel=1e-6), (group, name)


def test_pairs_that_two_groups_share_are_drawn_together():
    columns, losses = grids({"base": GROUPS["dense"], "target": GROUPS["routed"]}, num_rows=20)
    joint = fit.fit_shared(columns, losses, "chinchilla")
    units = {group: list(range(20)) for group in columns}
    counts = fit.joint_counts(units, draws=50, seed=3)
    by_units = fit.bootstrap_shared(joint, units, draws=50, seed=3)
    by_counts = fit.bootstrap_shared(joint, counts=counts)
    for group in columns:
        np.testing.assert_array_equal(by_units.fits[group].draws["A"], by_counts.fits[group].draws["A"])


def test_a_member_of_a_shared_fit_is_not_drawn_alone():
    columns, losses = grids(GROUPS)
    joint = fit.fit_shared(columns, losses, "chinchilla")
    with pytest.raises(BadInput, match="bootstrap_shared"):
        fit.bootstrap(joint.fits["dense"], draws=10)
    assert set(joint.to_json()["fits"]) == set(GROUPS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared": ("gamma",)}, "has no 'gamma' to share"),
        ({"shared": ("A",)}, "A is shared and alpha is not"),
        ({"shared": ("coefficients", "alpha")}, "B is shared and beta is not"),
    ],
)
def test_what_cannot_be_shared_is_refused(options, message):
    columns, losses = grids(GROUPS)
    with pytest.raises(BadInput, match=message):
        fit.fit_shared(columns, losses, "chinchilla", **options)


def test_a_group_too_small_for_its_own_parameters_is_refused_by_name():
    columns, losses = grids(GROUPS)
    columns["looped"] = {name: values[:2] for name, values in columns["looped"].items()}
    losses["looped"] = losses["looped"][:2]
    with pytest.raises(BadInput, match="looped has 2 rows for 3 parameters of its own"):
        fit.fit_shared(columns, losses, "chinchilla")
    with pytest.raises(BadInput, match="two groups or more"):
        fit.fit_shared({"dense": columns["dense"]}, {"dense": losses["dense"]}, "chinchilla")


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        (("floor",), "cannot show alpha"),
        (("exponents",), "cannot show its E apart from its A"),
        ((), "cannot show alpha"),
    ],
)
def test_what_a_group_s_own_rows_cannot_show_is_refused_by_its_name(shared, message):
    columns, losses = grids(GROUPS)
    columns["looped"] = {**columns["looped"], "num_params": np.full(40, 1e8)}
    with pytest.raises(BadInput, match=f"looped has one num_params in all rows, which {message}"):
        fit.fit_shared(columns, losses, "chinchilla", shared=shared)
    fit.fit_shared(columns, losses, "chinchilla", shared=("exponents", "floor"))


def test_one_budget_in_a_group_needs_exponents_of_the_others():
    columns, losses = grids(GROUPS)
    columns["looped"] = {**columns["looped"], "num_tokens": 1e19 / columns["looped"]["num_params"]}
    with pytest.raises(BadInput, match="num_params of looped and num_tokens of looped follow one another"):
        fit.fit_shared(columns, losses, "chinchilla", shared=("floor",))
    fit.fit_shared(columns, losses, "chinchilla", shared=("exponents",))


def test_a_group_that_is_left_out_of_an_option_is_named():
    columns, losses = grids(GROUPS)
    one = {"dense": np.ones(40)}
    with pytest.raises(BadInput, match="weights has nothing of 'routed'"):
        fit.fit_shared(columns, losses, "chinchilla", weights=one)
    joint = fit.fit_shared(columns, losses, "chinchilla")
    with pytest.raises(BadInput, match="units has nothing of 'routed'"):
        fit.bootstrap_shared(joint, one)
    with pytest.raises(BadInput, match="counts has nothing of 'routed'"):
        fit.bootstrap_shared(joint, counts={"dense": np.ones((5, 40))})
    uneven = {group: np.ones((5 if group == "dense" else 4, 40)) for group in GROUPS}
    with pytest.raises(BadInput, match="give every group as many"):
        fit.bootstrap_shared(joint, counts=uneven)
    with pytest.raises(BadInput, match="nothing is shared"):
        fit.shared_test(columns, losses, "chinchilla", share=(), draws=40)
