"""What `smelt power` says of a grid before it is paid for: from an experiment, a fit and numbers."""

import ast
import csv
import json
import math
import re

import pytest

from smelt.cli import main
from smelt.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from smelt.experiment import ROOT
from smelt.files import read_json
from tests.fit import planted

LAW = ["--law", "chinchilla", "--parameters", "E=1.82", "A=482", "B=2085", "alpha=0.348", "beta=0.366"]
GIVEN = [*LAW, "--flops-per-unit", 6, "--noise", 0.004]
SEARCH = ["--budget-flops", 1e22, "--want", "saving=0.3", "--at", 1e20]
GRID = ["--budgets", 1e18, 2e18, 4e18, 8e18, "--sizes", 5, "--span", 8, "--seeds", 1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder without runs: experiments are read from their committed rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMELT_RUNS", str(tmp_path / "runs"))


def smelt(capsys, *words) -> tuple[int, str, str]:
    code = main(["power", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def told(capsys, *words) -> dict:
    code, out, err = smelt(capsys, *words, "--json")
    assert code in (EXIT_DONE, EXIT_FAILED), err
    return json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} in JSON"))


def test_the_grid_of_an_experiment_is_judged_by_its_own_rows(capsys):
    result = told(capsys, "quickstart")
    assert result["planned"] == result["standing"]
    assert result["planned"]["num_runs"] == 40
    assert [row["budget_flops"] for row in result["grid"]["sizes"]] == [6e10, 1.2e11, 2.4e11, 4.8e11]
    assert result["noise"]["source"] == "residuals of quickstart"
    assert 0.3 < result["noise"]["pair_correlation"] < 0.6
    low, high = result["what_if"]["noise_low_high"]
    assert low < result["planned"]["smallest_saving"] < high


def test_what_is_planned_for_the_quickstart_is_what_its_bootstrap_found(capsys):
    found = read_json(ROOT / "fits" / "quickstart.json")["losses"]["val_loss_nats"]
    saving = found["savings"]["loop_middle"]["surface"]["at_budgets"][-1]["estimate"]
    planned = told(capsys, "quickstart", "--saving", f"{saving['value']:.3f}")["planned"]["widths"]
    # In logarithms, of one grid of 40 runs: the noise alone is known to a factor of .8 to 1.3.
    drawn = saving["standard_error"] / (1 - saving["value"])
    assert 0.6 < planned["saving"]["standard_error"] / drawn < 1.6
    loss = found["groups"]["baseline"]["optima"][-1]["loss"]
    assert 0.6 < planned["loss"]["width"] / (loss["high"] - loss["low"]) < 1.6


def test_a_search_recommends_a_grid_in_the_words_of_isoflop(capsys):
    code, out, _ = smelt(capsys, *GIVEN, *SEARCH, "--kinds", "isoflop")
    assert code == EXIT_DONE
    sizes = ast.literal_eval(re.search(r"sizes=(\{.*\})", out).group(1))
    result = told(capsys, *GIVEN, *SEARCH, "--kinds", "isoflop")
    ladder, design = result["grid"]["ladder"], result["planned"]["design"]
    assert list(sizes) == pytest.approx(design["budgets_flops"], rel=1e-3)
    assert {index for indices in sizes.values() for index in indices} == set(range(len(ladder)))
    assert {len(indices) for indices in sizes.values()} == {design["num_sizes"]}
    assert result["planned"]["widths"]["saving"]["width"] <= 0.3
    assert result["planned"]["cost_flops"] == pytest.approx(result["candidates"][0]["cost_flops"])
    assert result["candidates"][0]["cost_flops"] == min(c["cost_flops"] for c in result["candidates"] if c["reaches"])
    assert f"{100 * result['planned']['smallest_saving']:.1f} %, or" in out
    assert "no run below a hundredth of that, 1e18 FLOPs (--smallest-budget)" in out


def test_what_the_budget_cannot_reach_is_said_and_exits_one(capsys):
    words = [*GIVEN, "--budget-flops", 2e21, "--want", "smallest_saving=0.02", "--at", 1e20]
    code, out, _ = smelt(capsys, *words)
    assert code == EXIT_FAILED
    assert "No grid within the budget reaches it. Nearest, at " in out
    assert "by more seeds it would take about " in out
    result = told(capsys, *words)
    assert result["reaches"] is False
    assert result["candidates"][0]["ratio"] == pytest.approx(result["planned"]["smallest_saving"] / 0.02)
    needed = float(re.search(r"it would take about (\S+) FLOPs", out).group(1))
    assert told(capsys, *words[:-6], "--budget-flops", 1.4 * needed, *words[-4:], "--seeds", 40, 80, 160)["reaches"]


def test_trunks_rest_on_a_correlation_that_is_said(capsys):
    _, out, _ = smelt(capsys, *GIVEN, *SEARCH)
    assert "Recommended is branches" in out
    assert "warning (trunk_correlation_assumed): rows of one trunk are assumed to share 0.5" in out
    assert "Were rows of a trunk to share 0.9 of their variance, it would see " in out
    assert re.search(r"The cheapest grid of isoflop that reaches it costs \S+ FLOPs \(1\.\d\d times as much\)", out)
    _, out, _ = smelt(capsys, *GIVEN, *SEARCH, "--trunk-correlation", 0.2)
    assert "assumed to share" not in out


def test_a_named_grid_is_judged_without_a_search(capsys):
    result = told(capsys, *GIVEN, *GRID, "--saving", 0.12, "--pair-correlation", 0.5)
    planned = result["planned"]
    assert (planned["num_runs"], planned["cost_flops"]) == (40, pytest.approx(1.5e20))
    assert result["candidates"] == []
    assert planned["at_flops"] == 8e18
    assert 0.5 < planned["chance"] < 1
    assert any("would be seen with a chance of" in sentence for sentence in result["sentences"])


def test_clipped_residuals_are_priced_where_they_cost(capsys):
    shared = [*GIVEN, *GRID, "--pair-correlation", 0.9]
    _, out, _ = smelt(capsys, *shared, "--delta", 1e-3)
    assert "Fitted by least squares it would see" in out
    for cheap in ([], ["--objective", "squares_log"], ["--delta", 0.02]):
        _, out, _ = smelt(capsys, *shared, *cheap)
        assert "Fitted by least squares" not in out


@pytest.fixture
def fitted(tmp_path, capsys):
    """The fit of a table that names groups, budgets and pairs."""
    table = planted.grid(0)
    names = ("group", "budget_flops", "pair", "num_params", "num_tokens", "train_flops", "loss_nats")
    lines = [",".join(str(table[name][row]) for name in names) for row in range(len(table["group"]))]
    (tmp_path / "runs.csv").write_text("\n".join([",".join(names), *lines]))
    words = ["--csv", "runs.csv", "--law", "flops_tokens", "--reference", "base", "--draws", "20", "--out", "fit.json"]
    assert main(["fit", *words]) == EXIT_DONE
    capsys.readouterr()
    return tmp_path / "fit.json"


def test_a_fit_of_a_table_is_a_pilot_with_its_pairs(capsys, fitted):
    result = told(capsys, fitted)
    assert result["law"]["name"] == "flops_tokens"
    assert result["noise"]["source"] == f"residuals of {fitted}"
    # Planted: .003 nats shared, .003 own, of losses near 3.2.
    assert result["noise"]["total"] == pytest.approx(0.003 * math.sqrt(2) / 3.2, rel=0.4)
    assert result["noise"]["pair_correlation"] > 0.1
    assert result["planned"]["num_runs"] == 40


def test_a_grid_is_told_in_the_column_of_its_law(capsys, fitted):
    words = ["--csv", "runs.csv", "--law", "chinchilla", "--reference", "base", "--draws", "20", "--out", "other.json"]
    assert main(["fit", *words]) == EXIT_DONE
    capsys.readouterr()
    told_in = told(capsys, "other.json")["grid"]
    table = planted.grid(0)
    assert told_in["ladder_column"] == "num_params"
    assert set(told_in["ladder"]) == {
        n for n, who in zip(table["num_params"], table["group"], strict=True) if who == "base"
    }


def test_an_analysis_is_a_pilot_whose_pairs_share_what_is_said(capsys):
    words = [ROOT / "fits" / "quickstart.json", "--budget-flops", 1e13, "--want", "allocation=0.3"]
    apart, paired = (told(capsys, *words, "--pair-correlation", shared) for shared in (0, 0.6))
    assert apart["standing"] is None
    assert apart["noise"]["total"] == paired["noise"]["total"]
    assert paired["planned"]["smallest_saving"] < apart["planned"]["smallest_saving"]
    assert paired["noise"]["source"].endswith("pair_correlation given")


def test_the_figure_is_the_same_for_the_same_question(capsys, tmp_path):
    files = [tmp_path / name for name in ("one.svg", "other.svg", "one.pdf")]
    for file in files:
        assert smelt(capsys, *GIVEN, *SEARCH, "--seeds", 1, "--figure", file)[0] == EXIT_DONE
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[2].read_bytes().startswith(b"%PDF")


def test_tables_hold_every_run_and_width_of_the_chosen_grid(capsys, tmp_path):
    found = told(capsys, *GIVEN, *SEARCH, "--seeds", 1, "--tables", tmp_path / "t")
    written = {}
    for name in ("candidates", "runs", "widths"):
        with open(tmp_path / "t" / f"{name}.csv", newline="") as file:
            written[name] = list(csv.DictReader(file))
    assert len(written["candidates"]) == len(found["candidates"])
    assert len(written["runs"]) == sum(len(row["indices"]) for row in found["grid"]["sizes"])
    saving = next(row for row in written["widths"] if row["quantity"] == "saving")
    assert float(saving["high"]) == pytest.approx(found["planned"]["widths"]["saving"]["high"], rel=1e-6)
    smelt(capsys, *GIVEN, *GRID, "--tables", tmp_path / "one")
    assert {path.stem for path in (tmp_path / "one").iterdir()} == {"runs", "widths"}


def test_figures_are_drawn_of_one_grid_and_of_one_group(capsys, tmp_path):
    for name, words in {"grid": GRID, "group": [*GRID, "--groups", 1]}.items():
        file = tmp_path / f"{name}.svg"
        assert smelt(capsys, *GIVEN, *words, "--figure", file)[0] == EXIT_DONE
        assert file.read_text().startswith("<?xml")
    assert smelt(capsys, "quickstart", "--figure", tmp_path / "standing.svg")[0] == EXIT_DONE


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give an experiment's NAME, a FIT.json, or --law with --parameters"),
        (["quickstart", *LAW], "give an experiment's NAME, a FIT.json, or --law with --parameters"),
        (LAW[:2], "give an experiment's NAME, a FIT.json, or --law with --parameters"),
        (["quickstart", "--budget-flops", 1e13], "a search needs both --budget-flops and --want"),
        (["quickstart", "--want", "saving=0.1"], "a search needs both --budget-flops and --want"),
        (["quickstart", *GRID, *SEARCH], "--budgets names one grid to judge"),
        (["quickstart", "--budget-flops", 1e13, "--want", "saving"], "'saving' is no assignment"),
        (["quickstart", "--budget-flops", 1e13, "--want", "gamma=1"], "no quantity is called 'gamma'"),
        (["quickstart", "--budget-flops", 0, "--want", "saving=1"], "--budget-flops is 0.0"),
        (["quickstart", "--budget-flops", 1e10, "--want", "saving=1"], "the cheapest design costs"),
        (["quickstart", "--figure", "a.jpg"], "cannot draw to 'a.jpg'"),
        (["quickstart_batch"], "2 rows cannot fix the 5 parameters"),
        (["quickstart", "--law", "kaplan"], "has no plain size to plan in"),
        (["quickstart", "--law", "chinchilla"], "needs flops_per_unit"),
        (GIVEN, "there is no grid to judge"),
        ([*LAW, "--noise", 0.004, *GRID], "flops_per_unit"),
        ([*LAW, "--flops-per-unit", 6, *GRID], "nothing tells the noise of a run: give --noise"),
        ([*GIVEN, *GRID, "--noise-unit", "nats", "--pair-correlation", 2], "pair_correlation is 2.0"),
        ([*GIVEN, *GRID, "--delta", "narrow"], "--delta is 'narrow'"),
        (["runs.csv"], "runs.csv is a table: fit it first (smelt fit --csv runs.csv"),
        (["absent.json", *SEARCH], "absent.json does not exist"),
        ([ROOT / "fits" / "quickstart.prediction.json", *SEARCH], "holds no fitted surface"),
        ([ROOT / "fits" / "quickstart.json"], "there is no grid to judge"),
        ([ROOT / "fits" / "quickstart.json", "--law", "smelt", *GRID], "names its own law"),
    ],
)
def test_a_question_that_cannot_be_meant_is_refused_in_one_line(capsys, words, message):
    code, out, err = smelt(capsys, *words)
    assert (code, out) == (EXIT_BAD_INPUT, ""), err
    assert message in err.splitlines()[-1]


def test_the_help_shows_examples_that_run(capsys):
    with pytest.raises(SystemExit):
        main(["power", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    examples = text[text.index("e.g. ") + 5 : text.index("positional arguments")].split(";")
    assert len(examples) == 5
    for example in examples[:2]:
        command = example.partition("(")[0].split()
        assert command[0] == "smelt"
        assert main(command[1:]) in (EXIT_DONE, EXIT_FAILED)
