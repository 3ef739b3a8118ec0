"""`smelt match`: an experiment's own pairs, a search for others, and mends that can be typed as they are told."""

import json
import re

import pytest

from smelt import experiment
from smelt.cli import main
from smelt.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from smelt.match import HELD
from smelt.spec import to_dict
from tests.conftest import PULSE


def match(capsys, *words) -> tuple[int, str, str]:
    code = main(["match", *(str(word) for word in words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_match_shows_the_errors_and_the_next_best(workplace, capsys):
    path = workplace(PULSE)
    code, out, _ = match(capsys, path, "--multiple", "d_model=1", "width=1", "--json")
    assert code == EXIT_DONE
    found = json.loads(out)
    assert [item["rank"] for item in found] == [0, 1, 2, 3]
    assert found[0]["worst"] <= 0.04
    code, out, err = match(capsys, path, "--variant", "dense")
    assert code == EXIT_FAILED
    assert "cannot be met" in err
    assert "no dimension mends it: try --co-design or --held flops_and_kv" in err
    assert match(capsys, path, "--variant", "nonsense")[0] == EXIT_BAD_INPUT


def test_without_an_option_the_experiments_own_pairs_are_shown(capsys):
    grid = experiment.load("quickstart").grid
    code, out, _ = match(capsys, "quickstart", "--json")
    assert code == EXIT_DONE
    shown = {(item["size"], item["variant"]): item for item in json.loads(out)}
    assert shown.keys() == {(cell.size, cell.variant) for cell in grid.cells}
    for cell in grid.cells:
        item = shown[cell.size, cell.variant]
        assert item["arch"] == to_dict(cell.run.arch)
        assert item["errors"] == grid.match_errors(cell)
        assert (item["fits"], item["reason"]) == (True, None)
    code, out, err = match(capsys, "quickstart", "--size", 3)
    assert code == EXIT_DONE
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [["3", "baseline"], ["3", "loop_middle"]]
    assert "three_budgets held within 1.0%" in err


MISFITS = [
    ("--size", 1, "--only-free", "width", "--multiple", "d_model=4"),
    ("--size", 1, "--only-free", "width", "--free", "num_experts"),
    ("--size", 1, "--multiple", "head_dim=4"),
    ("--size", 1, "--variant", "dense"),
    ("--size", 3, "--held", "active_params"),
    ("--size", 3, "--held", "expert_budget", "--variant", "loop_all"),
    ("--size", 3, "--held", "expert_budget", "--variant", "dense"),
]


@pytest.mark.parametrize("words", MISFITS, ids=lambda words: " ".join(map(str, words)))
def test_every_mend_fits_when_it_is_typed_after_the_command(words, capsys):
    code, _, err = match(capsys, "quickstart", *words)
    assert code == EXIT_FAILED
    mends = re.search(r"; (?:add|no dimension mends it: try) (.*)$", err.strip()).group(1).split(" or ")
    for mend in mends:
        if mend != "--co-design":  # is told as something to try
            assert match(capsys, "quickstart", *words, *mend.split())[0] == EXIT_DONE, mend


def test_co_design_is_not_told_to_who_asked_for_it(capsys):
    words = ("quickstart", "--size", 3, "--held", "expert_budget", "--variant", "dense", "--co-design")
    code, _, err = match(capsys, *words)
    assert code == EXIT_FAILED
    assert err.endswith("no dimension mends it: try --held none\n")


def _moved(found: list) -> set[str]:
    arch, baseline = found[0]["arch"], found[0]["baseline"]
    sizes = {"d_model": ("d_model",), "head_dim": ("attention", "head_dim"), "width": ("ffn", "width")}
    moved = set()
    for name, keys in sizes.items():
        ours, theirs = arch, baseline
        for key in keys:
            ours, theirs = ours[key], theirs[key]
        if ours != theirs:
            moved.add(name)
    return moved


def test_free_adds_to_what_the_mode_frees_and_only_free_replaces_it(capsys):
    held = ("quickstart", "--size", 4, "--held", "flops_and_kv", "--json")
    assert _moved(json.loads(match(capsys, *held, "--free", "num_layers")[1])) >= {"head_dim"}
    assert _moved(json.loads(match(capsys, *held, "--only-free", "width")[1])) <= {"width"}
    assert _moved(json.loads(match(capsys, *held, "--only-free", "width", "--free", "head_dim")[1])) <= {
        "width",
        "head_dim",
    }


@pytest.mark.parametrize("held", HELD)
def test_the_table_has_every_held_error(held, capsys):
    header = match(capsys, "quickstart", "--size", 1, "--held", held)[1].splitlines()[0].split()
    assert {*HELD["three_budgets"], *HELD[held]} <= set(header)


def test_the_baseline_as_a_variant_is_the_baseline_itself(capsys):
    code, out, _ = match(capsys, "quickstart", "--variant", "baseline", "--json")
    assert code == EXIT_DONE
    for item in json.loads(out):
        assert item["arch"] == item["baseline"]
        assert set(item["errors"].values()) == {0.0}


def test_looped_siblings_of_the_quickstart_fit_on_every_size(capsys):
    words = ("--variant", "loop_all", "--held", "active_params", "--multiple", "width=1")
    assert match(capsys, "quickstart", *words)[0] == EXIT_DONE
    assert match(capsys, "quickstart", "--variant", "loop_all", "--multiple", "d_model=1", "width=1")[0] == EXIT_DONE


REFUSED = [
    (("--variant",), "--variant names no function"),
    (("--free",), "--free names no dimension"),
    (("--only-free",), "--only-free names no dimension"),
    (("--multiple",), "--multiple names no dimension"),
    (("--variant", "loop_span"), "variant 'loop_span' wants num_layers, num_passes, residual_scale as well"),
    (("--variant", "nonsense"), "unknown variant 'nonsense': known are baseline, loop_middle, loop_all, dense"),
    (("--held", "all"), "unknown held 'all'"),
    (("--held", ""), "unknown held ''"),
    (("--free", "depth"), "unknown dimension 'depth' in free"),
    (("--multiple", "width=0"), "multiple of width is 0"),
    (("--convention", "theirs"), "unknown FLOP convention 'theirs'"),
    (("--size", "7"), "size 7 is not in the ladder of quickstart: it has 0, 1"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_match_refuses_in_one_line(words, message, capsys):
    code, out, err = match(capsys, "quickstart", *words)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_a_function_that_wants_more_than_an_architecture_is_not_offered(capsys):
    for word in ("nonsense", "loop_span"):
        _, _, offered = match(capsys, "quickstart", "--variant", word)[2].rpartition(": ")
        assert "untie_attention" in offered
        assert "loop_span" not in offered
