"""What is written of the fits of a table: three allocations side by side, crossings, warnings said once."""

import json

import numpy as np
import pytest

from smelt import fit
from smelt.fit import examine, summary
from tests.fit.planted import LAW, grid


@pytest.fixture(scope="module")
def written():
    return fit.group_analysis(grid(0, saving=0.15), "base", draws=200)


def test_corrected_minima_stand_beside_the_raw_ones_with_the_bias_that_was_taken_off(written):
    for group in written["groups"].values():
        assert [m["budget_flops"] for m in group["minima_corrected"]] == [m["budget_flops"] for m in group["minima"]]
        for raw, corrected in zip(group["minima"], group["minima_corrected"], strict=True):
            sizes = [found["estimates"]["num_params_opt"]["value"] for found in (raw, corrected)]
            # To first order: the bias is that of a parabola through the surface's losses, not through these.
            assert np.log(sizes[0] / sizes[1]) == pytest.approx(
                np.log1p(corrected["size_bias_percent"]["value"] / 100), abs=0.02
            )
            assert corrected["size_bias_percent"]["low"] < corrected["size_bias_percent"]["high"]


def test_the_three_allocations_estimate_one_exponent(written):
    expected = LAW["c"] / (LAW["a"] + LAW["c"])
    for group in written["groups"].values():
        corrected = group["allocation_corrected"]["num_params"]["exponent"]
        assert corrected["low"] < expected < corrected["high"]
        assert group["allocation_surface"]["size"]["low"] < expected < group["allocation_surface"]["size"]["high"]
        shares = [group["allocation_surface"][part]["value"] for part in ("size", "num_tokens")]
        assert sum(shares) == pytest.approx(1.0)


def test_without_a_surface_nothing_is_corrected_and_the_reason_is_given():
    first = {name: values[:10] for name, values in grid(6).items()}  # one budget
    group = fit.group_analysis(first, "base", draws=50)["groups"]["base"]
    assert group["minima_corrected"][0]["reason"] == "the group has no surface"
    assert group["minima_corrected"][0]["estimates"] == {}
    assert group["allocation_corrected"] == {"num_params": None, "num_tokens": None}
    assert group["reasons"]["allocation corrected num_params"] == "no minimum is corrected: the group has no surface"


def crossing_at(log_compute: float) -> dict:
    """Two groups whose frontiers cross there, in rows from 1e18 to 1e21 FLOPs."""
    compute = np.geomspace(1e18, 1e21, 12)
    table = {name: [*compute, *compute] for name in ("compute_flops", "train_flops")}
    losses = 3e3 * compute**-0.15, 3e3 * 10 ** (log_compute * 0.05) * compute**-0.2
    table |= {"group": ["a"] * 12 + ["b"] * 12, "loss_nats": [*losses[0], *losses[1]]}
    return fit.group_analysis(table, "a", law="pure", draws=50)["savings"]["b"]


@pytest.mark.parametrize(("log_compute", "codes"), [(19.5, ["frontiers_cross"]), (21.5, [])])
def test_frontiers_that_cross_are_a_warning_inside_the_rows_only(log_compute, codes):
    compared = crossing_at(log_compute)
    assert compared["crossing"]["compute"]["value"] == pytest.approx(10**log_compute, rel=1e-3)
    assert [flag["code"] for flag in summary.flags_of_crossing(compared)] == codes


def test_what_surface_and_diagnostics_both_say_is_said_once_with_the_mend():
    table = grid(1)
    fits = fit.fit_groups(table, "base", draws=50)
    diagnosed = fit.jsonable(examine.examine(fits))["diagnostics"]["base"]
    group = summary.written(fits)["groups"]["base"]
    group["surface"]["warnings"] = [
        {"code": code, "message": "surface"} for code in ("ill_conditioned", "narrow_range")
    ]
    diagnosed["flags"] = [{"code": "narrow_range", "message": "diagnostics, with the mend"}]
    said = [(flag["code"], flag["message"]) for flag in summary.flags_of_group(group, diagnosed)]
    assert said[:2] == [("ill_conditioned", "surface"), ("narrow_range", "diagnostics, with the mend")]
    assert ("narrow_range", "surface") not in said
    json.dumps(group, allow_nan=False)
