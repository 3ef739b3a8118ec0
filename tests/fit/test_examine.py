"""What fits of groups hang on: an odd run is named by its row, one law is not told from itself."""

import numpy as np
import pytest

from smelt import fit
from smelt.fit import examine
from tests.fit import planted
from tests.fit.test_groups import table_of


@pytest.fixture(scope="module")
def table():
    made = table_of(groups={"dense": 1.0, "sparse": 1.25})
    made["loss_nats"][7] *= 1.1
    return {**made, "row": list(range(2, 82))}


def test_an_odd_run_is_named_by_its_row_in_its_own_group(table):
    examined = examine.examine(fit.fit_groups(table, "dense", law="chinchilla", draws=100))
    odd = [flag for flag in examined.diagnostics["dense"].flags if flag.code == "outlier_rows"]
    assert [flag.message.split(" lies ")[0] for flag in odd] == ["row 9"]
    assert "outlier_rows" not in [flag.code for flag in examined.diagnostics["sparse"].flags]


def test_groups_of_one_law_share_their_exponents_and_show_a_floor(table):
    examined = examine.examine(fit.fit_groups(table, "dense", law="chinchilla", draws=100))
    assert examined.shared["sparse"].p_value > 0.01
    assert all(test.p_value < 1e-6 for test in examined.floors.values())
    assert set(examined.shared) == {"sparse"}


def test_a_law_in_compute_alone_is_not_asked_whether_exponents_are_shared():
    compute = np.geomspace(1e18, 1e21, 12)
    losses = {"a": 3e3 * compute**-0.15, "b": 3e3 * compute**-0.2}
    table = {name: [*compute, *compute] for name in ("compute_flops", "train_flops")}
    table |= {"group": ["a"] * 12 + ["b"] * 12, "loss_nats": [*losses["a"], *losses["b"]]}
    examined = examine.examine(fit.fit_groups(table, "a", law="pure", draws=50))
    assert examined.shared["b"] is None
    assert "compare the savings" in examined.reasons["b"]["shared"]


def test_what_cannot_be_asked_has_its_reason(table):
    few = {name: values[:5] for name, values in table.items()}
    examined = examine.examine(fit.fit_groups(few, law="chinchilla", draws=20))
    assert examined.diagnostics["dense"] is None
    assert examined.reasons["dense"]["diagnostics"]


def test_budgets_are_left_out_in_turn_where_there_are_budgets(table):
    examined = examine.examine(fit.fit_groups(planted.grid(0), "base", draws=20))
    found = examined.jackknives["target"]
    assert [float(name) for name in found.group_names] == pytest.approx([1e11, 2e11, 4e11, 8e11])
    for name in ("E", "a", "c"):
        assert found.estimates[name].low < planted.LAW[name] < found.estimates[name].high, name
    examined = examine.examine(fit.fit_groups(table, "dense", law="chinchilla", draws=20))
    assert examined.jackknives["dense"] is None
    assert "without it no budget can be left out" in examined.reasons["dense"]["jackknife"]


def test_profiles_are_had_of_every_exponent_and_of_the_floor(table):
    fits = fit.fit_groups(table, "dense", law="chinchilla", draws=20)
    found = examine.profiles(fits, "dense")
    assert set(found) == {"dense"}
    assert set(found["dense"]) == {"E", "alpha", "beta"}
    estimate = found["dense"]["alpha"].interval
    assert estimate.low < fits.surfaces["dense"].parameters["alpha"] < estimate.high
