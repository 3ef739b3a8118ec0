"""What is said of a saving: a direction where it is resolved, one signed number where not, none without an interval."""

import re

import pytest

from smelt import verdict

MINUS = "\N{MINUS SIGN}"


def estimate(value, low, high):
    return {"value": value, "low": low, "high": high}


def said(own, **others):
    saving = {"estimate": own, "budget_flops": 2.4e11}
    return verdict.sentence("looped", "baseline", saving, {"surface": own, **others})


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.1, 0.3, "less"),
        (-0.3, -0.1, "more"),
        (None, -0.1, "more"),
        (-0.1, 0.3, "unresolved"),
        (None, None, "unknown"),
    ],
)
def test_the_verdict_is_that_of_the_interval(low, high, word):
    assert verdict.word(estimate(0.1, low, high)) == word


def test_a_resolved_saving_is_said_by_its_direction():
    assert said(estimate(-0.479, -0.827, -0.233)) == (
        "looped needs 47.9 % [23.3, 82.7] more compute than baseline for the same loss at 2.4e11 FLOPs. "
        "Resolved: the 95 % interval excludes 0."
    )
    assert said(estimate(0.2, 0.1, 0.3)).startswith("looped needs 20.0 % [10.0, 30.0] less compute than baseline")


def test_a_saving_that_is_not_resolved_has_one_sign_and_no_direction():
    assert said(estimate(0.031, -0.815, 0.369)) == (
        f"Not resolved: looped saves 3.1 % [{MINUS}81.5, +36.9] of baseline's compute at 2.4e11 FLOPs "
        "(below 0 it needs more)."
    )
    assert f"saves {MINUS}5.2 % [unbounded, +6.9]" in said(estimate(-0.052, None, 0.069))


def test_kinds_of_frontier_that_differ_in_sign_are_said_in_the_second_sentence():
    other = estimate(-0.04, -0.2, 0.1)
    clause = f"the kinds of frontier disagree in sign (surface of all runs: +20.0 %, minima, no floor: {MINUS}4.0 %)."
    resolved = said(estimate(0.2, 0.1, 0.3), pure=other)
    assert resolved.endswith(f"FLOPs. Resolved: the 95 % interval excludes 0, but {clause}")
    open_sentence = said(estimate(0.2, -0.1, 0.3), pure=other)
    assert open_sentence.endswith(f"(below 0 it needs more). T{clause[1:]}")
    assert "disagree" not in said(estimate(0.2, 0.1, 0.3), pure=estimate(0.1, None, None))


def group(budgets, sizes, inside=True):
    rows = [(budget, size) for budget in budgets for size in sizes]
    minima = [{"budget_flops": budget, "inside": inside} for budget in budgets]
    return {
        "rows": {"budget_flops": [b for b, _ in rows], "num_params": [s for _, s in rows]},
        "minima": minima,
    }


@pytest.mark.parametrize(
    ("budgets", "sizes", "inside", "missing"),
    [
        (
            (1, 2),
            (1, 2, 3),
            True,
            "2 budgets x 3 sizes give no interval; add budgets (3 or more) and sizes",
        ),
        ((1,), (1, 2, 3, 4, 5), True, "1 budget x 5 sizes give no interval; add budgets (3 or more)"),
        ((1, 2, 3), (1, 2, 3, 4), True, "3 budgets x 4 sizes give no interval; add sizes (5 or more)"),
        ((1, 2, 3), (1, 2, 3, 4, 5), False, "looped has a minimum inside its sizes at 0 of 3 budgets; widen the sizes"),
        ((1, 2, 3), (1, 2, 3, 4, 5), True, "3 budgets x 5 sizes give no interval that holds: too many refits fail; "),
    ],
)
def test_what_is_missing_for_an_interval_is_named_without_a_saving(budgets, sizes, inside, missing):
    groups = {"looped": group(budgets, sizes, inside), "baseline": group(budgets, sizes)}
    lacking = verdict.lacking(groups, "looped", "baseline", None)
    assert lacking.startswith(missing)
    text = verdict.no_answer("looped", lacking, {})
    assert text.startswith("No answer yet on looped: ")
    assert not re.search(r"\d %", text)


def test_a_vertex_far_outside_the_sizes_is_worded_without_its_number():
    minimum = {"num_params_opt": 3.21e-26, "size_range": (1e4, 1e5)}
    message = "at 6e+10 FLOPs the minimum (3.21e-26) lies outside the sizes trained; add smaller ones"
    flag = {"code": "vertex_outside", "message": message}
    assert verdict.flagged(flag, minimum) == (
        "at 6e+10 FLOPs the minimum lies far below the smallest size; add smaller sizes"
    )
    near = verdict.flagged(flag | {"message": message.replace("smaller", "larger")}, minimum | {"num_params_opt": 2e5})
    assert near == "at 6e+10 FLOPs the minimum lies above the largest size (2e+05 parameters); add larger sizes"
