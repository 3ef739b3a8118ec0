"""What users hand in as columns, labels, seeds and draws: read by its place and its value, or refused by its name."""

import numpy as np
import pandas
import pytest

from smelt import fit
from smelt.errors import BadInput
from smelt.fit import tables
from tests.fit import planted

NUM_ROWS = 24
COLUMNS, LOSSES = planted.chinchilla_twin(num_rows=NUM_ROWS)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, "abc", 2.0], "no number: 'abc'"),
        ([1.0, None, 2.0], "nan in row 1"),
        ([1.0, True, 2.0], "truth values"),
        (np.array([True, False]), "truth values"),
        (np.array([1.0, 2.0], dtype=complex), "complex numbers"),
        (np.arange(1, 3).astype("timedelta64[s]"), "times"),
        (np.arange(1, 3).astype("datetime64[D]"), "times"),
        (np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False]), "masked in row 1"),
        ([10**400, 1], "no number"),
        ([1e300, 1.0], "1e\\+300 in row 0; give it in another unit"),
        ((value for value in [1.0, 2.0]), "type generator; give a list"),
        ({1.0, 2.0}, "type set; give a list"),
        ([[1.0], [2.0]], "shape"),
        (3.0, "type float; give a list"),
    ],
)
def test_a_column_that_holds_no_number_a_row_is_refused_with_what_it_holds(values, words):
    with pytest.raises(BadInput, match=words) as refused:
        tables.positive("loss", values)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("columns", [None, [1.0, 2.0], np.ones((2, 2))])
def test_columns_without_names_are_refused(columns):
    with pytest.raises(BadInput, match="by column name"):
        fit.fit_surface(columns, [1.0, 2.0], "chinchilla")


def test_numbers_of_every_kind_give_the_same_fit():
    plain = fit.fit_surface(COLUMNS, LOSSES, "chinchilla").parameters
    frozen = {name: values.copy() for name, values in COLUMNS.items()}
    for values in frozen.values():
        values.flags.writeable = False
    kinds = {
        "objects": {name: values.astype(object) for name, values in COLUMNS.items()},
        "scalars": {name: list(values) for name, values in COLUMNS.items()},
        "read-only": frozen,
        "series": {name: pandas.Series(v, index=range(100, 100 + NUM_ROWS)) for name, v in COLUMNS.items()},
    }
    for kind, columns in kinds.items():
        assert fit.fit_surface(columns, LOSSES, "chinchilla").parameters == plain, kind


@pytest.mark.parametrize("index", [range(39, -1, -1), range(100, 140), [0] * 40])
def test_a_table_with_an_index_of_its_own_is_read_by_place(index):
    table = planted.grid(3)
    plain = fit.fit_groups(table, "base", draws=40)
    framed = fit.fit_groups(pandas.DataFrame(table, index=index), "base", draws=40)
    for name in plain.names:
        assert framed.surfaces[name].estimates == plain.surfaces[name].estimates


@pytest.mark.parametrize("column", ["group", "pair", "unit"])
@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA])
def test_a_missing_label_is_no_label_of_its_own(column, missing):
    table = planted.grid(3)
    table[column] = ["base", *table["group"][1:]] if column == "group" else [str(i) for i in range(40)]
    table[column][7] = missing
    with pytest.raises(BadInput, match=f"{column} is .* in row 7; label every row"):
        fit.fit_groups(table, "base", draws=40)


def test_a_group_that_is_a_number_is_named_by_it():
    table = planted.grid(3)
    table["group"] = [1 if name == "base" else 2 for name in table["group"]]
    assert fit.fit_groups(table, 1, draws=40).names == ("1", "2")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"seed": None}, "seed is None"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"draws": 1}, "draws is 1"),
        ({"draws": 2.5}, "draws is 2.5"),
        ({"draws": "7"}, "draws is '7'"),
        ({"units": [[1]] * NUM_ROWS}, "units is \\[1\\] in row 0"),
        ({"units": [1, 2]}, "2 labels for 24 rows"),
        ({"counts": np.ones((5, 3))}, "counts has shape \\(5, 3\\)"),
        ({"counts": np.full((5, NUM_ROWS), np.nan)}, "counts holds"),
        ({"counts": np.zeros((5, NUM_ROWS))}, "counts holds"),
    ],
)
def test_draws_that_cannot_be_made_are_refused(options, words):
    surface = fit.fit_surface(COLUMNS, LOSSES, "chinchilla")
    with pytest.raises(BadInput, match=words):
        fit.bootstrap(surface, **options)


@pytest.mark.parametrize(
    "ask",
    [
        lambda seed: fit.isoflop_minima(*isoflop(), draws=40, seed=seed),
        lambda seed: fit.fit_frontier([1e18, 1e19, 1e20, 1e21], [3.0, 2.7, 2.5, 2.35], True, draws=40, seed=seed),
        lambda seed: fit.fit_link(np.linspace(2, 4, 9), np.linspace(0.9, 0.3, 9) ** 2, draws=40, seed=seed),
        lambda seed: fit.fit_groups(planted.grid(3), "base", draws=40, seed=seed),
        lambda seed: fit.predict(
            fit.fit_surface(COLUMNS, LOSSES, "chinchilla"), {"num_params": 1e8, "num_tokens": 1e10}, seed=seed
        ),
    ],
)
def test_a_seed_below_zero_is_refused_wherever_draws_are_made(ask):
    with pytest.raises(BadInput, match="seed is -1; give a whole number"):
        ask(-1)


def isoflop() -> tuple[list, list, list]:
    table = planted.only(planted.grid(1), "base")
    return table["num_params"], table["loss_nats"], table["budget_flops"]


def test_budgets_that_differ_by_rounding_are_one():
    sizes, losses, budgets = isoflop()
    noisy = budgets * (1 + 1e-13 * (np.arange(len(budgets)) % 3))
    one, other = (fit.isoflop_minima(sizes, losses, values, draws=40) for values in (budgets, noisy))
    assert [m.loss_min for m in other] == pytest.approx([m.loss_min for m in one], rel=1e-12)
    apart = budgets * (1 + 1e-3 * np.arange(len(budgets)))
    with pytest.raises(BadInput, match="20 budgets in 20 rows"):
        fit.isoflop_minima(sizes, losses, apart)


def test_sizes_under_one_label_are_not_averaged():
    sizes, losses, budgets = isoflop()
    with pytest.raises(BadInput, match="'a' stands for sizes"):
        fit.isoflop_minima(sizes, losses, budgets, cell=["a", "a", "b", "c", "d"] * 4)


def test_the_order_of_a_file_moves_no_interval_of_rows_without_labels():
    order = np.random.default_rng(0).permutation(NUM_ROWS)
    one = fit.bootstrap(fit.fit_surface(COLUMNS, LOSSES, "chinchilla"), draws=60)
    turned = {name: values[order] for name, values in COLUMNS.items()}
    other = fit.bootstrap(fit.fit_surface(turned, LOSSES[order], "chinchilla"), draws=60)
    for name, found in one.estimates.items():
        for end in ("low", "high", "standard_error"):
            assert getattr(other.estimates[name], end) == pytest.approx(getattr(found, end), rel=1e-6), (name, end)
    unlabelled = {name: v for name, v in planted.grid(3).items() if name not in ("pair", "budget_flops")}
    order = np.random.default_rng(1).permutation(40)
    shuffled = {name: [values[i] for i in order] for name, values in unlabelled.items()}
    first, second = (fit.fit_groups(table, "base", draws=60).frontiers for table in (unlabelled, shuffled))
    saved, again = (
        fit.savings(f["target"]["surface"], f["base"]["surface"], [3e11])[0].estimate for f in (first, second)
    )
    assert (again.low, again.high) == pytest.approx((saved.low, saved.high), rel=1e-5)


def test_a_held_column_that_the_law_has_not_is_refused():
    for name in ("density", "compute_range_flops", "flops_per_unit"):
        with pytest.raises(BadInput, match=f"{name} is held at 0.5, but .* has no such column"):
            fit.fit_groups(planted.grid(3), "base", fixed={name: 0.5}, draws=40)
