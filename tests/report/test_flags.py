"""Warnings for readers: every code has its words, what is alike is said once, what touches the verdict stands first."""

import ast
import re
from pathlib import Path

import pytest

from smelt.fit import link
from smelt.report import flags

ROOT = Path(__file__).resolve().parents[2]


def codes_of(path: Path) -> set[str]:
    """Every code that a module gives a flag or a warning: `code=` of any call, and first words of `flag` and `warn`."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            found += [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            named = isinstance(node.func, ast.Name) and node.func.id in ("flag", "warn")
            found += node.args[:1] if named else []
    either = [(value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,) for value in found]
    return {str(value.value) for values in either for value in values if isinstance(value, ast.Constant)}


def emitted() -> set[str]:
    analysis = ROOT / "smelt" / "analysis.py"
    fitted = set().union(*(codes_of(path) for path in (ROOT / "smelt" / "fit").glob("*.py")), link.SIDES)
    return fitted | codes_of(analysis) | set(re.findall(r'"(mixed_\w+)"', analysis.read_text()))


def test_every_code_that_fits_and_analyses_emit_has_a_head_and_no_head_is_of_none():
    assert emitted() == set(flags.HEADS)
    assert set(flags.TOUCHES_VERDICT) | set(flags.COMMON) <= set(flags.HEADS)


def test_heads_are_a_few_plain_words():
    for head in flags.HEADS.values():
        assert head[0].isupper()
        assert not head.endswith(".")
        assert len(head.split()) <= 10
        assert "_" not in head
    assert len(set(flags.HEADS.values())) == len(flags.HEADS)


def flag(code: str, variant: str | None, message: str) -> dict:
    return {"code": code, "variant": variant, "message": message if variant is None else f"{variant}: {message}"}


def test_warnings_are_said_once_and_those_on_the_verdict_first():
    flat = "the curvature is {} standard errors: the minimum is not discernible"
    said = flags.warnings(
        [
            flag("flat_parabola", "a", f"at 6e+10 FLOPs {flat.format(1)}"),
            flag("flat_parabola", "a", f"at 1.2e+11 FLOPs {flat.format(2.1)}"),
            flag("few_budgets", "a", "2 budgets"),
            flag("few_budgets", "b", "2 budgets"),
            flag("not_certified", "b", "the minimum is not proven"),
        ],
        {},
    )
    assert [(entry["code"], entry["places"]) for entry in said] == [
        ("not_certified", "b"),
        ("flat_parabola", "a at 6e10, 1.2e11 FLOPs"),
        ("few_budgets", "a; b"),
    ]
    assert said[1]["text"] == flat.format("1 to 2.1")
    assert [entry["touches_verdict"] for entry in said] == [True, False, False]
    assert said[0]["head"] == "Not proven to be the best fit"


@pytest.mark.parametrize(
    ("code", "messages", "text"),
    [
        (
            "exponent_unsure",
            [f"{n} is 0.6 with a standard error of {e}: hardly resolved" for n, e in (("a", 0.31), ("c", 5.2))],
            "exponents have standard errors of 0.31 to 5.2, above a quarter of each: hardly resolved; runs over a "
            "wider range narrow them most",
        ),
        (
            "tied_parameters",
            [f"the estimates of a and c correlate by {r}: the rows" for r in ("-0.991", "+0.999")],
            "estimates of two parameters correlate by -0.991 to +0.999: the runs tell a combination of them and hardly "
            "each alone; widen the ranges, or quote predictions, not parameters",
        ),
        (
            "floor_not_identified",
            ["the frontier has next to no floor", "E is 0, next to nothing of the smallest loss 2.157"],
            "runs, or minima, do not show an irreducible loss: extrapolate with care",
        ),
        ("uneven_scatter", ["one", "two", "three"], "one (and 2 more of this kind)"),
    ],
)
def test_messages_that_differ_in_numbers_are_one_sentence(code, messages, text):
    said = flags.warnings([flag(code, "a", message) for message in messages], {})
    assert [entry["text"] for entry in said] == [text]


def test_what_touches_the_verdict_is_never_told_in_common():
    messages = [f"without {name} a goes from 1 to 2" for name in ("one", "two", "three", "four")]
    said = flags.warnings([flag("influential_row", "a", message) for message in messages], {})
    assert [entry["text"] for entry in said] == messages


def test_a_run_is_named_by_its_size_and_budget():
    said = flags.warnings(
        [flag("influential_row", "a", "without 0123456789ab a moves")], {"0123456789ab": "30k at 6e10"}
    )
    assert said[0]["text"] == "without 30k at 6e10 (0123456789ab) a moves"
