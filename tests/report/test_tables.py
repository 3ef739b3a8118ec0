"""Tables leave as CSV and LaTeX: numbers to the digit, words escaped, intervals typeset."""

import csv
import io

import pytest

from smelt.report import tables
from smelt.report.tables import MINUS, NONE, Table, interval, number, percent, si

ESTIMATE = {"value": 0.1234567, "low": -0.0123456, "high": 0.2345678}


def table(*cells: str, note: str = "") -> Table:
    headings = tuple(f"column {index}" for index in range(len(cells)))
    return Table(headings=headings, numeric=(True,) * len(cells), rows=(cells,), note=note)


def as_csv(made: Table) -> list[list[str]]:
    return list(csv.reader(io.StringIO(tables.to_csv(made))))


def test_a_csv_holds_the_numbers_and_not_their_words():
    made = table("a, b", interval(ESTIMATE, 1, 100.0, " %"), si(1234567.0), percent(0.5), NONE)
    assert as_csv(made) == [
        ["column 0", "column 1 (%)", "column 1 (%) low", "column 1 (%) high", "column 2", "column 3 (%)", "column 4"],
        ["a, b", "12.34567", "-1.23456", "23.45678", "1234567", "50", ""],
    ]


def test_a_missing_interval_leaves_its_columns_empty():
    open_ended = {"value": 1.5, "low": 1.0, "high": None}
    made = Table(
        headings=("x",),
        numeric=(True,),
        rows=((interval(open_ended),), (NONE,), (interval({**open_ended, "low": None}),)),
    )
    assert as_csv(made)[1:] == [["1.5", "1", ""], ["", "", ""], ["1.5", "", ""]]


@pytest.mark.parametrize(
    ("cell", "latex"),
    [
        ("a_b & 5 % of $x^2$", r"a\_b \& 5 \% of \$x\textasciicircum{}2\$"),
        ("{~\\}", r"\{\textasciitilde{}\textbackslash{}\}"),
        (f"{MINUS}3", "$-$3"),
        (NONE, "--"),
        ("N < 3", "N $<$ 3"),
        ("1.5e20", r"$1.5\times10^{20}$"),
        ("3e-4 FLOPs", r"$3\times10^{-4}$ FLOPs"),
        ("loop_2e3x", r"loop\_2e3x"),
        (interval(ESTIMATE, 1, 100.0, " %"), r"12.3 \% {\small [$-$1.2,\,23.5]}"),
        ("words [in, brackets]", "words [in, brackets]"),
    ],
)
def test_latex_is_escaped_and_intervals_are_typeset(cell, latex):
    lines = tables.to_latex(table(cell, note="A 5 % note.")).splitlines()
    assert lines[:4] == ["% A 5 % note.", r"\begin{tabular}{r}", r"\toprule", r"column 0 \\"]
    assert lines[4:] == [r"\midrule", latex + r" \\", r"\bottomrule", r"\end{tabular}"]


def test_tables_without_rows_leave_no_file(tmp_path):
    found = {"full": table(number(1.0)), "empty": Table(headings=("x",), numeric=(True,), rows=())}
    files = tables.write(found, tmp_path / "out")
    assert [file.name for file in files] == ["full.csv", "full.tex"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["full.csv", "full.tex"]
