"""An analysis, a plan and rows -> tables of text: what a figure cannot give to the digit; and a table -> CSV and LaTeX.

A Table is headings and cells, numbers already written; the page and the terminal draw it as they like. A cell that is
written from numbers keeps them, so that a CSV holds the numbers and not their words. A number that is not there is a
dash, and the reason stands in the last column or the note. Needs no matplotlib.
"""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.analysis import BITS, KINDS, LOSS, MATCH_ERRORS, compact, why_null
from smelt.files import write_text
from smelt.ledger import Row
from smelt.verdict import KIND_NAMES, flagged, is_bounded

NONE = "\u2013"
MINUS = "\u2212"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`numeric` says of each column whether it is set right; `note` is a sentence below."""

    headings: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def _table(headings: Mapping[str, bool], rows: Sequence[Sequence[str]], note: str = "") -> Table:
    return Table(
        headings=tuple(headings), numeric=tuple(headings.values()), rows=tuple(tuple(row) for row in rows), note=note
    )


class Cell(str):
    """The text of a cell with the numbers that it was written from: one, or value, low and high; None is no number.

    unit   what the numbers are of, where the text says so: "%"
    """

    __slots__ = ("numbers", "unit")

    def __new__(cls, text: str, *numbers: float | None, unit: str = "") -> "Cell":
        cell = super().__new__(cls, text)
        cell.numbers, cell.unit = numbers, unit
        return cell


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return NONE
    text = f"{round(value, digits) + 0.0:.{digits}f}".replace("-", MINUS)  # + 0.0: no minus before a nought
    return Cell(text, value)


def percent(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else Cell(f"{number(100 * value, digits)} %", 100 * value, unit="%")


def interval(estimate: Mapping[str, Any] | None, digits: int = 3, scale: float = 1.0, unit: str = "") -> str:
    """value [low, high]; an end without a bound is written so, an estimate without one says nothing in brackets."""
    return written(estimate, lambda value: number(value, digits), scale, unit)


def sized(estimate: Mapping[str, Any] | None) -> str:
    """An estimate of a count, with letters."""
    return written(estimate, si)


def significant(estimate: Mapping[str, Any] | None, digits: int = 4) -> str:
    """An estimate of whatever size, in significant digits."""
    return written(estimate, lambda value: short(value, digits))


def short(value: float, digits: int = 4) -> str:
    """
    >>> short(482.013), short(2085.43), short(2085430.0), short(0.34781), short(0.000034781)
    ('482', '2085', '2.085e6', '0.3478', '3.478e-5')
    """
    rounded = float(f"{value:.{digits}g}")
    text = f"{rounded:.6g}" if 1e-3 <= abs(rounded) < 1e5 or rounded == 0 else f"{value:.{digits - 1}e}"
    mantissa, _, exponent = text.partition("e")
    return Cell(mantissa.replace("-", MINUS) + (f"e{int(exponent)}" if exponent else ""), value)


def written(
    estimate: Mapping[str, Any] | None, write: Callable[[float], str], scale: float = 1.0, unit: str = ""
) -> str:
    if estimate is None or estimate["value"] is None:
        return NONE
    ends = [None if estimate[k] is None else scale * estimate[k] for k in ("value", "low", "high")]
    text = write(ends[0]) + unit
    if ends[1] is not None or ends[2] is not None:
        low, high = (NONE if end is None else write(end) for end in ends[1:])
        text += f" [{low}, {high}]"
    return Cell(text, *ends, unit=unit.strip())


def si(value: float) -> str:
    """A count with a letter: 65k, 1.2M, 3B."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return Cell(f"{value / size:.3g}{letter}", value)
    return Cell(f"{value:.3g}", value)


def flops(value: float) -> str:
    """A count of FLOPs in three figures: 1.5e20."""
    return Cell(compact(value), value)


def secs(value: float | None) -> str:
    if value is None:
        return NONE
    if value < 100:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 6000 else f"{value / 3600:.1f} h"


def write(found: Mapping[str, Table], folder: Path) -> list[Path]:
    """Every table that has rows as NAME.csv and NAME.tex in the folder; returns the files."""
    files = []
    for name, table in found.items():
        if table.rows:
            for suffix, text in ((".csv", to_csv(table)), (".tex", to_latex(table))):
                files.append(folder / f"{name}{suffix}")
                write_text(files[-1], text)
    return files


def to_csv(table: Table) -> str:
    """Numbers where cells have them, to ten digits, an interval in three columns; words as they are, a dash empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = list(zip(*table.rows, strict=True)) if table.rows else [()] * len(table.headings)
    widths = [max((len(getattr(cell, "numbers", ())) for cell in column), default=0) for column in columns]
    header: list[str] = []
    for heading, column, width in zip(table.headings, columns, widths, strict=True):
        unit = next((cell.unit for cell in column if getattr(cell, "unit", "")), "")
        name = f"{heading} ({unit})" if unit else heading
        header += [name, f"{name} low", f"{name} high"] if width == 3 else [name]
    writer.writerow(header)
    for row in table.rows:
        cells: list[str] = []
        for cell, width in zip(row, widths, strict=True):
            numbers = getattr(cell, "numbers", ())
            plain = ["" if value is None else f"{value:.10g}" for value in numbers] or [_plain(cell)]
            cells += plain + [""] * (max(width, 1) - len(plain))
        writer.writerow(cells)
    return text.getvalue()


def _plain(cell: str) -> str:
    return "" if cell == NONE else cell.replace(MINUS, "-")


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    NONE: "--",
    MINUS: "$-$",
    "<": "$<$",
    ">": "$>$",
}
POWER_OF_TEN = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e(-?\d+)\b")


def to_latex(table: Table) -> str:
    """A tabular of booktabs, to be read in with \\input; the note is a comment above it."""
    sides = "".join("r" if numeric else "l" for numeric in table.numeric)
    lines = [f"% {line}" for line in table.note.splitlines()]
    lines += [f"\\begin{{tabular}}{{{sides}}}", r"\toprule", _latex_row(table.headings), r"\midrule"]
    lines += [_latex_row(row) for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(cell: str) -> str:
    """Escaped; an interval small and with thin spaces, powers of ten as such."""
    value, bracket, ends = cell.partition(" [")
    if bracket and len(getattr(cell, "numbers", ())) == 3:
        low, _, high = ends.removesuffix("]").partition(", ")
        return f"{_latex(value)} {{\\small [{_latex(low)},\\,{_latex(high)}]}}"
    escaped = "".join(LATEX.get(letter, letter) for letter in cell)
    return POWER_OF_TEN.sub(lambda found: f"${found[1]}\\times10^{{{int(found[2])}}}$", escaped)


def of_analysis(analysis: Mapping[str, Any], num_failed: int | None = None) -> dict[str, Table]:
    """All tables of an analysis, by name; `num_failed` runs left no row, None where that is not known."""
    return {
        "savings": savings(analysis),
        "exponents": exponents(analysis),
        "minima": minima(analysis),
        "minima_corrected": minima_corrected(analysis),
        "tests": tests(analysis),
        "refits": refits(analysis),
        "match": match(analysis),
        "seed_spread": seed_spread(analysis),
        "device_time": device_time(analysis, num_failed),
        "provenance": provenance(analysis),
    }


def savings(analysis: Mapping[str, Any]) -> Table:
    """Per variant and budget the saving under each law, and how sure its sign is."""
    losses = analysis["losses"][LOSS]
    rows = []
    for name, by_law in (losses or {"savings": {}})["savings"].items():
        head = analysis["headline"][name]
        for index, budget in enumerate(losses["budgets_flops"]):
            found = {kind: by_law[kind]["at_budgets"] for kind in KINDS}
            at = {kind: None if savings is None else savings[index] for kind, savings in found.items()}
            main = at.get(head["kind"])
            rows.append(
                [
                    name,
                    flops(budget),
                    *(interval(at[kind] and at[kind]["estimate"], 1, 100.0, " %") for kind in KINDS),
                    NONE if main is None or main["share_positive"] is None else percent(main["share_positive"], 0),
                    "beyond the data" if main and main["warnings"] else "",
                ]
            )
    headings = {
        "variant": False,
        "FLOPs": True,
        **dict.fromkeys(KIND_NAMES.values(), True),
        "draws that save": True,
        "": False,
    }
    unmatched = [f"{name}: {match['note']}" for name, match in analysis["match"].items() if not match["is_matched"]]
    note = f"Compute saved over {analysis['reference']} at equal loss; below 0 it needs more."
    if len(analysis["variants"]) < 2:
        note = "One group only: nothing to compare."
    if unmatched:
        note += f" Pairs that are not matched: {'; '.join(unmatched)}."
    return _table(headings, rows, note)


def exponents(analysis: Mapping[str, Any]) -> Table:
    """Exponents and floors of every variant with 95 % intervals, a row a quantity."""
    losses = analysis["losses"][LOSS]
    groups = (losses or {"groups": {}})["groups"]

    def surface(name: str) -> Any:
        return lambda group: group["surface"] and group["surface"]["estimates"].get(name)

    def frontier(kind: str, name: str) -> Any:
        return lambda group: group["frontiers"][kind] and group["frontiers"][kind]["estimates"].get(name)

    def allocation(part: str, name: str) -> Any:
        return lambda group: group[part][name] and group[part][name]["exponent"]

    def of_surface(name: str) -> Any:
        return lambda group: group["allocation_surface"][name]

    quantities = (
        ("optimal parameters ~ C^x, minima", allocation("allocation", "num_params"), 3),
        ("optimal parameters ~ C^x, minima without bias", allocation("allocation_corrected", "num_params"), 3),
        ("optimal FLOPs per token ~ C^x, surface", of_surface("size"), 3),
        ("optimal tokens ~ C^x, minima", allocation("allocation", "num_tokens"), 3),
        ("optimal tokens ~ C^x, minima without bias", allocation("allocation_corrected", "num_tokens"), 3),
        ("optimal tokens ~ C^x, surface", of_surface("num_tokens"), 3),
        ("surface: exponent a of FLOPs per token", surface("a"), 3),
        ("surface: exponent c of tokens", surface("c"), 3),
        ("surface: floor E (nats)", surface("E"), 3),
        ("frontier exponent, surface", frontier("surface", "exponent"), 3),
        ("frontier exponent, minima with a floor", frontier("saturating", "exponent"), 3),
        ("frontier floor, minima (nats)", frontier("saturating", "floor"), 3),
        ("frontier exponent, minima without a floor", frontier("pure", "exponent"), 3),
    )
    rows = [
        [title, *(interval(value(group), digits) for group in groups.values())] for title, value, digits in quantities
    ]
    rows = [row for row in rows if any(cell != NONE for cell in row[1:])]
    lacking: dict[str, list[str]] = {}
    for name, group in groups.items():
        for reason in dict.fromkeys(group["reasons"].values()):
            lacking.setdefault(reason, []).append(name)
    missing = [f"{reason} ({', '.join(names)})" for reason, names in lacking.items()]
    open_ended: dict[str, list[str]] = {}
    for name, group in groups.items():
        found = [estimate for _, value, _ in quantities if (estimate := value(group)) and estimate["value"] is not None]
        for reason in dict.fromkeys(e["reason"] for e in found if e["low"] is None or e["high"] is None):
            open_ended.setdefault(reason, []).append(name)
    without = [f"{reason} ({', '.join(names)})" for reason, names in open_ended.items()]
    law = losses["method"]["law"]["equation"] if losses else ""
    note = f"Surface: {law}. Intervals are 95 %." + (f" Missing: {'; '.join(missing)}." if missing else "")
    note += f" Without an interval: {'; '.join(without)}." if without else ""
    return _table({"quantity": False, **dict.fromkeys(groups, True)}, rows, note)


LABELS = {"loss": "validation loss (nats per token)", "size": "non-embedding parameters"}


def label_of(analysis: Mapping[str, Any], part: str) -> str:
    """What a table or an axis calls the loss or the size: an experiment's words, or a fit's own."""
    return analysis.get("labels", LABELS)[part]


def minima(analysis: Mapping[str, Any]) -> Table:
    """The minimum of every IsoFLOP curve, and in words where it has none inside its sizes."""
    rows = []
    for name, group in (analysis["losses"][LOSS] or {"groups": {}})["groups"].items():
        for found in group["minima"]:
            estimates = found["estimates"] if found["inside"] else {}
            rows.append(
                [
                    name,
                    flops(found["budget_flops"]),
                    str(found["num_sizes"]),
                    sized(estimates.get("num_params_opt")),
                    sized(estimates.get("num_tokens_opt")),
                    interval(estimates.get("loss_min"), 4),
                    "; ".join(flagged(flag, found).partition("FLOPs ")[2] for flag in found["warnings"]),
                ]
            )
    headings = {
        "variant": False,
        "FLOPs": True,
        "sizes": True,
        "optimal parameters": True,
        "optimal tokens": True,
        label_of(analysis, "loss") if "labels" in analysis else "loss (nats)": True,
        "remarks": False,
    }
    return _table(headings, rows)


def minima_corrected(analysis: Mapping[str, Any]) -> Table:
    """The bias of every budget's parabola by the surface, and the minimum without it; or why it is not known."""
    rows = []
    for name, group in (analysis["losses"][LOSS] or {"groups": {}})["groups"].items():
        for found in group["minima_corrected"]:
            estimates = found["estimates"] if found["inside"] else {}
            outside = "the minimum is not inside the sizes" if found["reason"] is None and not found["inside"] else ""
            rows.append(
                [
                    name,
                    flops(found["budget_flops"]),
                    interval(found["size_bias_percent"], 1, 1.0, " %"),
                    interval(found["loss_bias_nats"], 4),
                    sized(estimates.get("num_params_opt")),
                    sized(estimates.get("num_tokens_opt")),
                    interval(estimates.get("loss_min"), 4),
                    found["reason"] or outside,
                ]
            )
    headings = {
        "variant": False,
        "FLOPs": True,
        "bias of the size": True,
        "bias of the loss": True,
        "optimal parameters": True,
        "optimal tokens": True,
        label_of(analysis, "loss") if "labels" in analysis else "loss (nats)": True,
        "": False,
    }
    if not any(row[-1] for row in rows):
        headings, rows = {name: numeric for name, numeric in headings.items() if name}, [row[:-1] for row in rows]
    note = "Bias: of a parabola through the surface's own losses at the sizes trained, against the surface's optimum."
    return _table(headings, rows, note if rows else "")


def refits(analysis: Mapping[str, Any]) -> Table:
    """Floor and exponents by all runs, without those of largest residuals, and without the largest budget."""
    examined = analysis["examined"] or {"diagnostics": {}}
    diagnosed = {name: found for name, found in examined["diagnostics"].items() if found is not None}
    # A parameter that one variant's runs do not show has no error there.
    parts = list(dict.fromkeys(key for found in diagnosed.values() for key in found["standard_errors"]))
    rows = []
    for name, found in diagnosed.items():
        fits = [(_without(refit["num_left_out"]), refit["parameters"]) for refit in found["without_worst"]]
        if found["largest_out"]:
            fits.append((f"without {found['largest_out']['what']}", found["largest_out"]["parameters"]))
        for which, parameters in fits:
            values = [parameters.get(key) for key in parts]
            rows.append([name, which, *(NONE if value is None else short(value) for value in values)])
    note = "What moves with a few runs hangs on them. Allocation exponent: of the optimal size in compute."
    headings = {"variant": False, "fitted to": False, **{key.replace("_", " "): True for key in parts}}
    return _table(headings, rows, note if rows else "")


TEST_LEVEL = 0.05  # of the tests of a floor and of shared exponents, as `fit.nested` has it


def tests(analysis: Mapping[str, Any]) -> Table:
    """A row a variant: is its largest budget predicted, is there a floor, does it share the reference's exponents, and
    do their frontiers cross?"""
    examined, reference = analysis["examined"], analysis["reference"]
    rows = []
    for name in analysis["losses"][LOSS]["groups"] if examined else []:
        diagnosed, floor, shared = (examined[part].get(name) for part in ("diagnostics", "floors", "shared"))
        if diagnosed is None:
            continue
        crossing = analysis["losses"][LOSS]["savings"].get(name, {}).get("crossing")
        paired = name in analysis["pairs"] and analysis["pairs"][name]["num_pairs"] > 0
        rows.append([name, _predicted(diagnosed), _floor(floor), _shared(shared, paired), _crossing(crossing)])
    headings = ("largest budget, from the rest", "irreducible loss", "exponents", "frontiers")
    against = {f"{heading}, against {reference}": False for heading in headings[2:]}
    note = (
        "Inside: measured losses in 95 % intervals of a fit without that budget, and how far they lie off it. p below"
    )
    note += f" {TEST_LEVEL:g}: a floor is shown, exponents differ."
    return _table({"variant": False, **dict.fromkeys(headings[:2], False), **against}, rows, note if rows else "")


def _predicted(diagnosed: Mapping[str, Any]) -> str:
    held = diagnosed["largest_out"]
    if held is None:
        return diagnosed["reasons"]["largest_out"]
    mean = sum(held["relative_error"]) / len(held["rows"])
    sign = "+" if mean > 0 else ""
    return f"{held['hits']} of {len(held['rows'])} inside, {sign}{percent(mean, 1)} (p = {short(held['p_value'], 2)})"


def _floor(test: Mapping[str, Any] | None) -> str:
    if test is None:
        return NONE
    return f"{'shown' if test['p_value'] < TEST_LEVEL else 'not shown'} (p = {short(test['p_value'], 2)})"


def _shared(test: Mapping[str, Any] | None, paired: bool) -> str:
    """By the joint draws where runs have partners, whose shared error the other test does not know."""
    if test is None:
        return NONE
    by_draws = paired and test["joint_p_value"] is not None
    p = test["joint_p_value"] if by_draws else test["p_value"]
    return f"{'differ' if p < TEST_LEVEL else 'not told apart'} (p = {short(p, 2)})"


def _crossing(crossing: Mapping[str, Any] | None) -> str:
    if crossing is None:
        return NONE
    compute, times = crossing["compute"], crossing["extrapolation"]
    if compute["value"] is None:
        return "do not cross" if times is None else f"cross {times:.3g} times outside"
    where = f"cross at {compact(compute['value'])}"
    if times > 1 + 1e-6:
        return f"{where}, {times:.3g} times outside"
    return (
        f"{where} [{compact(compute['low'])}, {compact(compute['high'])}]"
        if is_bounded(compute)
        else (f"{where}, not resolved")
    )


def _without(number: int) -> str:
    if number < 2:
        return "without the run of largest residual" if number else "all runs"
    return f"without the {number} runs of largest residuals"


def match(analysis: Mapping[str, Any]) -> Table:
    """The largest error of each budget over the pairs of a variant."""
    rows = [
        [name, found["held_equal"], *(percent(found["largest"][column], 2) for column in MATCH_ERRORS)]
        for name, found in analysis["match"].items()
    ]
    note = "Largest difference to the paired baseline over all sizes, signed."
    return _table({"variant": False, "held equal": False, **dict.fromkeys(MATCH_ERRORS.values(), True)}, rows, note)


def seed_spread(analysis: Mapping[str, Any]) -> Table:
    """The pooled standard deviation over seeds of every loss column."""
    rows = []
    for column, found in analysis["seed_spread"].items():
        unit = "bits per byte" if column == BITS else "nats"
        name = "validation loss" if column == LOSS else column.removeprefix(f"{LOSS}.").replace("_", " ")
        spread = found["reason"] if found["sd"] is None else f"{found['sd']:.4f} {unit}"
        rows.append([name, spread, str(found["degrees_of_freedom"])])
    return _table({"column": False, "standard deviation over seeds": True, "degrees of freedom": True}, rows)


def device_time(analysis: Mapping[str, Any], num_failed: int | None) -> Table:
    """Device time by what runs were for; failed runs leave no row, so only their number is known."""
    titles = {
        "grid": "grid",
        "seed": "further seeds",
        "control": "controls",
        "prediction": "predicted runs",
        "diverged": "of these diverged",
    }
    device = analysis["device"]
    rows = [
        [titles[role], *_costs(device["by_role"][role])]
        if role in device["by_role"]
        else [titles[role], "0", NONE, NONE]
        for role in titles
    ]
    failed = NONE if num_failed is None else str(num_failed)
    rows.append(["failed, without a row", failed, "0.0 s" if num_failed == 0 else "not recorded", NONE])
    rows.append(["all runs with a row", *_costs(device["total"])])
    note = "Wall seconds of a run, compiling and validation included, times its devices."
    return _table({"runs": False, "number": True, "device time": True, "training FLOPs": True}, rows, note)


def _costs(part: Mapping[str, Any]) -> list[str]:
    time = secs(part["device_secs"])
    if part["num_unknown"]:
        time += f" and {part['num_unknown']} not recorded"
    return [str(part["num_runs"]), time, flops(part["train_flops"])]


def provenance(analysis: Mapping[str, Any]) -> Table:
    """Versions, hardware and fingerprints; several values in one row are several sources."""
    titles = {
        "corpus_fingerprint": "corpus fingerprint",
        "code_fingerprint": "code fingerprint",
        "flops_convention": "FLOP convention",
        "held_equal": "held equal in pairs",
        "device": "devices of a run",
        "threads": "threads of a process",
    }
    rows = [
        [titles.get(name, name), ", ".join(map(str, values)) or NONE] for name, values in analysis["provenance"].items()
    ]
    return _table({"what": False, "value": False}, rows)


Column = tuple[str, bool, Callable[[Any], str]]
# What a cell is, before its state; and how it is built and trained, after.
CELL_COLUMNS: dict[str, Column] = {
    "variant": ("variant", False, str),
    "role": ("role", False, str),
    "budget_flops": ("budget", True, flops),
    "size": ("size", True, str),
    "seed": ("seed", True, str),
}
BUILD_COLUMNS: dict[str, Column] = {
    "num_params": ("parameters", True, si),
    "num_tokens": ("tokens", True, si),
    "num_steps": ("steps", True, str),
    "budget_error": ("off budget", True, lambda value: percent(value, 2)),
    "epochs": ("epochs", True, lambda value: f"{value:.2f}"),
    "peak_lr": ("rate", True, lambda value: f"{value:.2g}"),
    "d_model": ("width", True, str),
    "layers": ("layers", False, str),
    "experts": ("experts", False, str),
}


def plan(plan_rows: Sequence[Mapping[str, Any]], statuses: Mapping[str, Any], rows: Sequence[Row]) -> Table:
    """The plan as run: every cell with its state, its loss and its seconds. Without a plan the rows stand for it."""
    by_id = {row["run_id"]: row for row in rows}
    body = []
    for cell in plan_rows or [_as_plan(row) for row in rows]:
        row = by_id.get(cell["run_id"])
        outcome = [state(cell, statuses, row), number(row and row[LOSS], 4), secs(row and row["total_secs"])]
        body.append([*_written(cell, CELL_COLUMNS), *outcome, *_written(cell, BUILD_COLUMNS), cell["run_id"]])
    headings = {title: numeric for title, numeric, _ in CELL_COLUMNS.values()}
    headings |= {"state": False, "loss (nats)": True, "time": True}
    headings |= {title: numeric for title, numeric, _ in BUILD_COLUMNS.values()}
    return _table({**headings, "run": False}, body)


def _written(cell: Mapping[str, Any], columns: Mapping[str, Column]) -> list[str]:
    return [NONE if cell.get(name) is None else write(cell[name]) for name, (_, _, write) in columns.items()]


def state(cell: Mapping[str, Any], statuses: Mapping[str, Any], row: Row | None) -> str:
    """What a cell is known to be: its folder's state, else its row's outcome (rows travel without folders), else what
    the plan said."""
    status = statuses.get(cell["run_id"])
    if status is not None and (status.state != "planned" or row is None):
        return status.state
    return row["outcome"] if row is not None else cell.get("state", "planned")


def _as_plan(row: Row) -> dict[str, Any]:
    prelude, coda = row["arch.num_prelude"], row["arch.num_coda"]
    return {
        **{name: row[name] for name in (*CELL_COLUMNS, *BUILD_COLUMNS) if name in row},
        "run_id": row["run_id"],
        "d_model": row["arch.d_model"],
        "layers": f"{prelude}+{row['arch.loop.num_layers']}x{row['arch.loop.num_passes']}+{coda}",
        "experts": f"{row['arch.ffn.num_experts']} top-{row['arch.ffn.top_k']} x {row['arch.ffn.width']}",
        "peak_lr": row["optim.peak_lr"],
        "budget_error": row["train_flops"] / row["budget_flops"] - 1,
        "state": row["outcome"],
    }


def troubles(plan_rows: Sequence[Mapping[str, Any]], statuses: Mapping[str, Any], rows: Sequence[Row]) -> Table:
    """Cells that failed, diverged, stopped or are stale, each with the reason."""
    by_id = {row["run_id"]: row for row in rows}
    body = []
    for cell in plan_rows or [_as_plan(row) for row in rows]:
        row, status = by_id.get(cell["run_id"]), statuses.get(cell["run_id"])
        found = state(cell, statuses, row)
        if found not in ("failed", "diverged", "stopped", "stale"):
            continue
        reason = getattr(status, "reason", "") or (why_null(row, LOSS) if row and row[LOSS] is None else "")
        body.append(
            [
                cell["variant"],
                cell["role"],
                flops(cell["budget_flops"]),
                str(cell["size"]),
                found,
                reason or "no reason is recorded",
                cell["run_id"],
            ]
        )
    headings = {
        "variant": False,
        "role": False,
        "budget": True,
        "size": True,
        "state": False,
        "reason": False,
        "run": False,
    }
    return _table(headings, body)


def prediction(scored: Mapping[str, Any]) -> Table:
    """Predicted and measured, hit or miss, the reason where neither."""
    body = []
    for item in (*scored["cells"], *scored["differences"]):
        pair = "run_id" not in item
        predicted = {"value": item["predicted"], "low": item["low"], "high": item["high"]}
        word = {True: "hit", False: "miss", None: f"not scored: {item['reason']}"}[item["hit"]]
        body.append(
            [
                f"{item['variant']} \u2212 partner" if pair else item["variant"],
                flops(item["budget_flops"]),
                interval(predicted, 4),
                number(item["measured"], 4),
                word,
            ]
        )
    headings = {"loss of": False, "FLOPs": True, "predicted (nats)": True, "measured (nats)": True, "": False}
    return _table(headings, body)
