"""Tables of others come out as their authors printed them, and the twin of Chinchilla's as it was made."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import tables, twin
from benchmarks.fit import largest_changes, ours
from smelt import fit
from smelt.fit import laws

FOLDER = Path(__file__).resolve().parents[2] / "fits" / "tables"


@pytest.fixture(scope="module")
def columns():
    return twin.read()


@pytest.fixture(scope="module")
def gadre_rows():
    return tables.read(FOLDER / "gadre.csv")


@pytest.fixture(scope="module")
def clark_rows():
    return tables.read(FOLDER / "clark.csv")


def of(rows, train_data):
    return tables.where(rows, rows["train_data"] == train_data)


def test_the_twin_is_what_its_command_writes(columns):
    made = twin.rows()
    for name in ("num_params", "num_tokens"):
        np.testing.assert_array_equal(columns[name], made[name])
    np.testing.assert_allclose(columns["loss_nats"], made["loss_nats"], rtol=1e-13)


def test_the_twin_is_fitted_to_the_optimum_that_it_was_built_around(columns):
    found = fit.fit_surface(columns, columns["loss_nats"], "chinchilla", delta=twin.DELTA)
    assert found.certificate.objective == pytest.approx(twin.objective(columns), rel=1e-9)
    assert found.certificate.objective == pytest.approx(0.001014518341934715, rel=1e-9)
    for name, value in twin.LAW.items():
        assert found.parameters[name] == pytest.approx(value, rel=1e-6), name


def test_the_optimum_of_the_twin_is_certified_by_eight_starts(columns):
    proof = fit.fit_surface(columns, columns["loss_nats"], "chinchilla", delta=twin.DELTA).certificate
    assert proof.certified
    assert proof.num_starts == proof.num_starts_agreeing == 8
    assert proof.min_eigenvalue > 0
    assert proof.scaled_gradient < 1e-8
    assert proof.newton_decrement < 1e-14


def test_no_step_away_from_the_law_that_was_planted_lowers_the_objective_of_the_twin(columns):
    least = twin.objective(columns)
    generator = np.random.default_rng(0)
    for size in (1e-2, 1e-3, 1e-4):
        for _ in range(200):
            step = np.exp(size * generator.standard_normal(5))
            moved = {name: value * factor for (name, value), factor in zip(twin.LAW.items(), step, strict=True)}
            assert twin.objective(columns, moved) > least


def test_row_order_units_base_of_the_loss_and_rounding_do_not_move_the_fit_of_the_twin(columns):
    for change, moved in largest_changes(ours, columns).items():
        assert moved is not None, change
        assert moved < 1e-6, change


@pytest.mark.parametrize("train_data", tables.GADRE)
def test_the_five_run_fits_of_gadre_come_out_to_every_printed_digit(gadre_rows, train_data):
    _, parameters = tables.gadre_fit(tables.gadre_five(of(gadre_rows, train_data), train_data))
    printed = tables.GADRE[train_data]
    for name, digits in (("alpha'", 2), ("beta'", 2), ("b", 5), ("E", 5)):
        assert round(parameters[name], digits) == pytest.approx(printed[name]), name


def test_the_held_out_errors_that_gadre_s_notebook_prints_come_out_as_printed(gadre_rows):
    rows = of(gadre_rows, "rpj")
    found, _ = tables.gadre_fit(tables.gadre_five(rows, "rpj"))
    for name, printed in (("rpj-open_lm_1b-32.0", "0.7103"), ("rpj-open_lm_7b-1.0", "0.7320")):
        run = tables.where(rows, rows["name"] == name)
        error = abs(tables.predicted(run, found)[0] / run["loss_c4_val"][0] - 1)
        assert f"{100 * error:.4f}" == printed, name


@pytest.mark.parametrize("router", tables.CLARK_REFIT)
def test_the_bilinear_laws_of_clark_s_released_rows_come_out_certified(clark_rows, router):
    rows = tables.clark_rows(clark_rows, router)
    found = tables.clark_fit(rows, objective="squares_log")
    assert found.certificate.certified
    a, b, c, d, start, most = tables.CLARK_REFIT[router]
    # Half of the last digit of the refit with 500 random starts that is compared.
    for name, value in (("a", a), ("b", b), ("c", c)):
        assert found.parameters[name] == pytest.approx(value, abs=1e-4), name
    assert np.log10(found.parameters["K"]) == pytest.approx(d, abs=1e-4)
    assert found.parameters["experts_start"] == pytest.approx(start, rel=0.01)
    assert found.parameters["experts_max"] == pytest.approx(most, rel=0.01)
    assert np.sqrt(np.mean(found.residuals_log**2)) == pytest.approx(tables.CLARK_RMS[router], abs=1e-5)


def test_a_routed_model_is_worth_the_dense_one_with_its_loss(clark_rows):
    rows = tables.clark_rows(clark_rows, "S-Base")
    parameters = tables.clark_fit(rows, objective="squares_log").parameters
    size = rows["dense_parameter_count"][rows["model_size_label"] == "25M"][0]
    worth = tables.clark_effective(parameters, size, 64.0)
    dense, routed = (
        fit.predicted_loss(laws.ROUTED, parameters, {"num_params": n, "num_experts": e})
        for n, e in ((worth, 1.0), (size, 64.0))
    )
    assert dense == pytest.approx(float(routed), rel=1e-9)
    assert worth / 1e6 == pytest.approx(161, abs=1)


def test_tables_of_others_stand_beside_their_licences():
    assert "Copyright (c) 2024 mlfoundations" in (FOLDER / "gadre.LICENSE.txt").read_text()
    notice = (FOLDER / "README.md").read_text()
    assert "CC BY 4.0, Copyright 2022 DeepMind Technologies Limited" in notice
    assert "creativecommons.org/licenses/by/4.0" in notice
