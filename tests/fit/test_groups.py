"""The whole analysis of a grid: planted savings are covered, an A/A comparison claims none, and it is plain JSON."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from tests.fit.planted import CHINCHILLA, frontier_loss, grid


def intervals(analysis: dict, kind: str = "surface") -> list[tuple[float, float]]:
    at_budgets = analysis["savings"]["target"][kind]["at_budgets"]
    return [(s["estimate"]["low"], s["estimate"]["high"]) for s in at_budgets]


def test_one_call_gives_all_that_a_report_shows_as_strict_json():
    analysis = fit.group_analysis(grid(0, saving=0.15), "base", draws=300)
    assert json.loads(json.dumps(analysis, allow_nan=False)) == analysis
    assert analysis["group_names"] == ["base", "target"]
    for group in analysis["groups"].values():
        assert len(group["minima"]) == 4
        assert group["surface"]["certificate"]["certified"]
        assert group["surface"]["estimates"]["E"]["low"] is not None
        assert all(group["frontiers"][kind] is not None for kind in ("pure", "saturating", "surface"))
        assert group["allocation"]["num_params"]["exponent"]["low"] is not None
        assert not group["reasons"]
    recommended = analysis["savings"]["target"]["recommended"]
    assert recommended == "surface"
    for saving in analysis["savings"]["target"][recommended]["at_budgets"]:
        assert saving["estimate"]["low"] <= 0.15 <= saving["estimate"]["high"]


def test_savings_of_sixty_planted_grids_are_covered():
    inside = [
        low <= 0.12 <= high
        for seed in range(60)
        for low, high in intervals(fit.group_analysis(grid(seed, saving=0.12), "base", draws=200, seed=seed))
    ]
    assert 0.9 <= np.mean(inside) <= 1.0


def test_two_groups_of_one_law_claim_no_saving():
    claims = {"surface": 0, "saturating": 0}
    for seed in range(40):
        analysis = fit.group_analysis(grid(1000 + seed), "base", draws=200, seed=seed)
        for kind in claims:
            low, high = intervals(analysis, kind)[1]
            claims[kind] += not low <= 0 <= high
    # 5 % of 40 are 2; more than 5 happen once in two hundred times.
    assert max(claims.values()) <= 5


def test_what_a_pair_shares_cancels_in_the_saving():
    shared = fit.group_analysis(grid(3, pair_noise=0.01, own_noise=0.001), "base", draws=400)
    widths = {}
    for kind in ("surface", "saturating", "pure"):
        widths[kind] = np.mean([high - low for low, high in intervals(shared, kind)])
    apart = {name: values for name, values in grid(3, pair_noise=0.01, own_noise=0.001).items() if name != "pair"}
    drawn_apart = fit.group_analysis(apart, "base", draws=400)
    for kind, width in widths.items():
        assert width < 0.5 * np.mean([high - low for low, high in intervals(drawn_apart, kind)]), kind


def test_the_order_of_rows_moves_nothing():
    table = grid(4, saving=0.1)
    order = np.random.default_rng(0).permutation(len(table["group"]))
    shuffled = {name: [values[i] for i in order] for name, values in table.items()}
    one, two = (fit.group_analysis(t, "base", draws=100) for t in (table, shuffled))
    for kind in ("surface", "pure"):
        np.testing.assert_allclose(intervals(one, kind), intervals(two, kind), rtol=1e-4, atol=1e-6)


def test_a_held_out_run_is_predicted_and_marked_hit_or_miss():
    flops, tokens = 1.6e12, 1.6e12 / 1.2e5
    law = fit.predicted_loss(fit.FLOPS_TOKENS, {"E": 1.0, "A": 60.0, "K": 900.0, "a": 0.35, "c": 0.45}, {
        "flops_per_token": 1.2e5, "num_tokens": tokens,
    })  # fmt: skip
    held_out = {
        "group": ["base", "base", "base"],
        "num_params": [1.7e4] * 3,
        "num_tokens": [tokens] * 3,
        "train_flops": [flops] * 3,
        "loss_nats": [float(law), float(law) + 0.5, None],
    }
    analysis = fit.group_analysis(grid(5), "base", draws=300, predict_rows=held_out)
    assert [p["hit"] for p in analysis["predictions"]] == [True, False, None]
    assert analysis["predictions"][0]["prediction"]["warnings"][0]["code"] == "extrapolated"


def test_compute_under_the_name_of_the_law_in_it_is_the_compute_of_the_rows():
    compute = np.geomspace(1e18, 1e21, 12)
    loss = (2 + 3e3 * compute**-0.2) * np.exp(0.002 * np.sin(np.arange(12.0) ** 2))
    fits = fit.fit_groups({"compute_flops": compute, "loss_nats": loss}, law="saturating", draws=20)
    assert fits.compute_range_flops["all"] == pytest.approx((1e18, 1e21))
    assert "surface" in fits.frontiers["all"]


def test_what_a_fit_prints_of_itself_leaves_its_draws_out():
    fits = fit.fit_groups(grid(0), "base", draws=300)
    shown = [fits.surfaces["base"], fits.frontiers["base"]["surface"], fits.minima["base"][0]]
    assert [len(repr(one)) < 12_000 for one in shown] == [True] * 3
    assert not any("draws={" in repr(one) for one in shown)


def test_a_run_without_a_loss_is_listed_and_a_grid_half_run_still_has_a_result():
    table = grid(6)
    table["loss_nats"][0] = None
    analysis = fit.group_analysis(table, "base", draws=100)
    assert analysis["rows_left_out"] == [{"row": 0, "run_id": 0, "group": "base", "reason": "loss_nats is null"}]
    said = {flag["code"]: flag["message"] for flag in analysis["warnings"]}
    assert {"rows_left_out", "unpaired_runs"} <= said.keys()
    assert "pair=" in said["unpaired_runs"]
    first = {name: values[:10] for name, values in grid(6).items()}  # one budget
    half = fit.group_analysis(first, "base", draws=100)
    assert half["groups"]["base"]["surface"] is None
    assert "one budget" in half["groups"]["base"]["reasons"]["surface"]
    assert half["groups"]["base"]["minima"][0]["num_params_opt"] is not None
    assert half["savings"]["target"]["recommended"] is None
    assert "1 budgets" in half["savings"]["target"]["pure"]["reason"]


def test_a_grid_that_is_all_noise_has_flags_and_reasons_and_no_narrow_interval():
    analysis = fit.group_analysis(grid(3, own_noise=0.1, pair_noise=0.1), "base", draws=200)
    codes = {flag["code"] for minimum in analysis["groups"]["base"]["minima"] for flag in minimum["warnings"]}
    assert codes & {"flat_parabola", "opens_downward", "vertex_outside"}
    for kind in ("pure", "surface"):
        for saving in analysis["savings"]["target"][kind]["at_budgets"] or []:
            estimate = saving["estimate"]
            assert estimate["reason"] is not None or estimate["high"] - estimate["low"] > 0.3
    json.dumps(analysis, allow_nan=False)


def test_a_third_group_and_extra_seeds_leave_each_comparison_its_own():
    table, other = grid(1), grid(2, saving=0.1)
    for row, group in enumerate(other["group"]):
        if group == "target":
            for name, values in table.items():
                values.append("third" if name == "group" else other[name][row])
    for row, (group, pair) in enumerate(zip(list(table["group"]), list(table["pair"]), strict=True)):
        if (group, pair) == ("base", "size 2"):
            for values in table.values():
                values.append(values[row])
            table["seed"][-1] += 1
            table["loss_nats"][-1] += 0.001
    analysis = fit.group_analysis(table, "base", draws=200)
    assert list(analysis["savings"]) == ["target", "third"]
    assert not analysis["warnings"]
    for low, high in intervals(analysis):
        assert low <= 0 <= high
    for saving in analysis["savings"]["third"]["surface"]["at_budgets"]:
        assert saving["estimate"]["low"] > 0


def test_another_loss_column_is_analysed_by_name():
    table = grid(7)
    table["loss_prose_nats"] = [loss * 1.1 for loss in table.pop("loss_nats")]
    analysis = fit.group_analysis(table, "base", loss_column="loss_prose_nats", draws=50)
    assert analysis["loss_column"] == "loss_prose_nats"
    assert analysis["groups"]["base"]["surface"]["parameters"]["E"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_nats": float("nan")}, "loss_nats is nan in row 3"),
        ({"num_params": -5.0}, "num_params is -5 in row 3"),
        ({"flops_per_token": 1.0}, "flops_per_token is 1 in row 3"),
    ],
)
def test_a_bad_cell_is_refused_with_its_value(change, message):
    table = grid(8)
    for name, value in change.items():
        table[name][3] = value
    with pytest.raises(BadInput, match=message):
        fit.group_analysis(table, "base", draws=50)


def test_an_unknown_group_and_a_missing_column_are_named():
    with pytest.raises(BadInput, match=r"'smelt'.*base, target"):
        fit.group_analysis(grid(9), "smelt")
    table = grid(9)
    del table["train_flops"]
    with pytest.raises(BadInput, match="'train_flops'"):
        fit.group_analysis(table, "base")


def test_duplicated_rows_are_flagged():
    table = {name: values + values[:1] for name, values in grid(10).items()}
    codes = {flag["code"] for flag in fit.group_analysis(table, "base", draws=50)["warnings"]}
    assert "duplicated_rows" in codes


def test_the_planted_frontier_is_inside_the_band_that_is_drawn():
    analysis = fit.group_analysis(grid(11), "base", draws=300)
    curve = analysis["groups"]["base"]["frontier_curves"]["surface"]
    truth = np.array([frontier_loss(c) for c in curve["compute_flops"]])
    assert np.all((np.array(curve["low"]) < truth) & (truth < np.array(curve["high"])))


def test_forty_rows_and_a_thousand_draws_take_under_five_seconds():
    table = grid(12)
    started = time.process_time()
    fit.group_analysis(table, "base", draws=1000)
    assert time.process_time() - started < 5.0  # measured 0.2 s


def test_importing_fit_needs_neither_jax_nor_scipy_nor_pandas():
    code = (
        "import sys, time; t = time.process_time(); from smelt import fit; t = time.process_time() - t;"
        "assert t < 1.0, t; assert not {'jax', 'scipy', 'pandas', 'flax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def table_of(seed: int = 0, groups: dict[str, float] | None = None, num_rows: int = 40) -> dict[str, list]:
    """Anybody's rows: sizes and tokens anywhere, no budgets; each group is worth its factor of compute."""
    generator = np.random.default_rng(seed)
    table: dict[str, list] = {name: [] for name in ("group", "num_params", "num_tokens", "train_flops", "loss_nats")}
    for group, factor in (groups or {"all": 1.0}).items():
        num_params = np.exp(generator.uniform(np.log(1e7), np.log(1e9), num_rows))
        num_tokens = num_params * np.exp(generator.uniform(np.log(2), np.log(200), num_rows))
        at = {"num_params": num_params * factor**0.5, "num_tokens": num_tokens * factor**0.5}
        loss = fit.predicted_loss(fit.CHINCHILLA, CHINCHILLA, at) * np.exp(0.002 * generator.standard_normal(num_rows))
        table["group"] += [group] * num_rows
        table["num_params"] += num_params.tolist()
        table["num_tokens"] += num_tokens.tolist()
        table["train_flops"] += (6 * num_params * num_tokens).tolist()
        table["loss_nats"] += loss.tolist()
    return table


def test_a_table_without_budgets_gives_savings_at_round_computes_that_both_groups_cover():
    table = table_of(groups={"dense": 1.0, "sparse": 1.25})
    analysis = fit.group_analysis(table, "dense", law="chinchilla", draws=200)
    assert all(float(f"{point:.0e}") == point for point in analysis["budgets_flops"])
    for group in analysis["groups"].values():
        assert group["minima"] == []
        assert group["reasons"]["minima"] == "there is no column budget_flops: without it no IsoFLOP curves"
        assert group["compute_range_flops"][0] <= analysis["budgets_flops"][0]
        assert analysis["budgets_flops"][-1] <= group["compute_range_flops"][1]
    assert analysis["savings"]["sparse"]["recommended"] == "surface"
    assert "minima" not in analysis["savings"]["sparse"]
    middle = analysis["savings"]["sparse"]["surface"]["at_budgets"][1]["estimate"]
    assert middle["low"] <= 0.2 <= middle["high"]
    asked = fit.group_analysis(table, "dense", law="chinchilla", draws=50, budgets_flops=[1e18])
    assert asked["budgets_flops"] == [1e18]


def test_a_table_without_groups_is_one_group_with_the_fit_of_its_surface():
    table = table_of()
    del table["group"]
    analysis = fit.group_analysis(table, law="chinchilla", draws=100)
    assert (analysis["group_names"], analysis["savings"]) == (["all"], {})
    columns = {name: table[name] for name in ("num_params", "num_tokens")}
    alone = fit.bootstrap(fit.fit_surface(columns, table["loss_nats"], "chinchilla"), draws=100)
    found = analysis["groups"]["all"]["surface"]["estimates"]["alpha"]
    assert (found["low"], found["high"]) == (alone.estimates["alpha"].low, alone.estimates["alpha"].high)


def test_the_flops_of_a_parameter_are_the_rows_own_or_as_given_and_a_wide_spread_is_flagged():
    table = table_of()
    table["train_flops"] = [7.5 * n * d for n, d in zip(table["num_params"], table["num_tokens"], strict=True)]
    own = fit.fit_groups(table, law="chinchilla", draws=50)
    assert own.frontier_options["all"]["flops_per_unit"] == pytest.approx(7.5)
    assert not own.warnings
    given = fit.fit_groups(table, law="chinchilla", draws=50, flops_per_unit=6.0)
    assert given.frontier_options["all"]["flops_per_unit"] == 6.0
    table["train_flops"][0] *= 1.2
    assert [flag.code for flag in fit.fit_groups(table, law="chinchilla", draws=50).warnings] == [
        "flops_per_unit_varies"
    ]
    del table["train_flops"]
    without = fit.group_analysis(table, law="chinchilla", draws=50)
    assert "give train_flops" in without["groups"]["all"]["reasons"]["frontier surface"]
    derived = fit.group_analysis(table, law="chinchilla", draws=50, flops_per_unit=6.0)
    assert derived["groups"]["all"]["frontiers"]["surface"] is not None


def test_rows_of_one_unit_are_drawn_together_and_widen_the_interval():
    table = table_of(num_rows=20)
    twice = {name: values * 4 for name, values in table.items()}
    twice["unit"] = [str(row) for row in range(20)] * 4
    width = {}
    for name, rows in {"rows": {k: v for k, v in twice.items() if k != "unit"}, "units": twice}.items():
        estimate = fit.fit_groups(rows, law="chinchilla", draws=300).surfaces["all"].estimates["alpha"]
        width[name] = estimate.high - estimate.low
    assert width["units"] > 1.5 * width["rows"]
    runs = {**{k: v for k, v in twice.items() if k != "unit"}, "run_id": twice["unit"]}
    assert (
        fit.fit_groups(runs, law="chinchilla", draws=50)
        .method["surface"]
        .endswith("rows of one run_id resampled jointly over groups")
    )


def test_the_objective_is_the_one_that_was_asked_for_and_is_named():
    table = table_of()
    for objective, words in (("squares_log", "Squares of log residuals"), ("huber_log", "Huber (delta 0.01) of log")):
        fits = fit.fit_groups(table, law="chinchilla", objective=objective, delta=0.01, draws=20)
        assert fits.surfaces["all"].objective == objective
        assert fits.method["surface"].startswith(words)


def test_a_law_in_compute_alone_is_its_own_frontier_and_says_what_that_takes():
    compute = np.geomspace(1e18, 1e21, 12)
    table = {
        "group": ["a"] * 12 + ["b"] * 12,
        "compute_flops": [*compute, *compute],
        "train_flops": [*compute, *compute],
        "loss_nats": [*(1.7 + 900 * compute**-0.15), *(1.7 + 900 * (1.25 * compute) ** -0.15)],
    }
    analysis = fit.group_analysis(table, "a", law="saturating", draws=50)
    for saving in analysis["savings"]["b"]["surface"]["at_budgets"][:-1]:
        assert saving["estimate"]["value"] == pytest.approx(0.2, abs=1e-6)
    assert not analysis["warnings"]
    sized = {**table, "num_params": [1e8] * 24}
    codes = [flag["code"] for flag in fit.group_analysis(sized, "a", law="saturating", draws=50)["warnings"]]
    assert codes == ["rows_taken_for_frontier"]


def test_several_groups_want_a_reference():
    with pytest.raises(BadInput, match="there are 2 groups and no reference; choose one of base, target"):
        fit.fit_groups(grid(0))
