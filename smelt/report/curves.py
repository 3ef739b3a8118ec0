"""An envelope of training curves, or a link of scores to losses, as plain JSON -> tables of text.

    exponents, handovers     of an envelope (Approach 1)
    link, predicted          of a link: its parameters, and the score at losses that were asked

It needs no matplotlib and computes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from smelt.report import tables
from smelt.report.tables import NONE, Table, flops, short, si, significant

LAWS = {"num_params": "optimal parameters ~ C^x", "num_tokens": "optimal tokens ~ C^x", "loss": "lowest loss ~ C^-x"}
THROUGH = {"num_params": "hand-overs", "num_tokens": "hand-overs", "loss": "middles of whole steps"}
LINK = {
    "b": "b, score of a high loss",
    "a": "a, from there to the score of a low loss",
    "k": "k",
    "midpoint": "midpoint",
}


def falling(estimate: Mapping[str, Any]) -> dict[str, Any]:
    """The estimate of -x, of that of x."""
    turned = {key: None if estimate[key] is None else -estimate[key] for key in ("value", "low", "high")}
    return {**estimate, "value": turned["value"], "low": turned["high"], "high": turned["low"]}


def exponents(found: Mapping[str, Any]) -> Table:
    """The laws of size, tokens and loss through hand-overs; below them those through every point, which are biased."""
    rows = []
    for name, what in LAWS.items():
        law = found["frontier"] if name == "loss" else found["allocation"][name]
        if law is None:
            reason = found["reasons"]["frontier" if name == "loss" else name]
            rows.append([what, THROUGH[name], NONE, NONE, reason])
            continue
        exponent = law["estimates"]["exponent"] if name == "loss" else law["exponent"]
        rows.append(_row(what, THROUGH[name], exponent, ""))
    for name, what in LAWS.items():
        exponent = found["exponents_of_all_points"][name]
        rows.append(_row(what, "every point", falling(exponent) if name == "loss" else exponent, "biased"))
    return Table(
        headings=("quantity", "through", "exponent", "s.e.", ""),
        numeric=(False, False, True, True, False),
        rows=tuple(tuple(row) for row in rows),
        note="Intervals are 95 %, whole runs resampled. Laws through every point take the steps of the smallest and "
        "the largest size for optima: do not quote them.",
    )


def _row(what: str, through: str, estimate: Mapping[str, Any], remark: str) -> list[str]:
    error = estimate["standard_error"]
    words = "; ".join(filter(None, (remark, estimate["reason"])))
    return [what, through, significant(estimate, 4), NONE if error is None else short(error, 3), words]


def handovers(found: Mapping[str, Any]) -> Table:
    """Where two sizes have one loss, in rising compute."""
    columns = [found["handovers"][name] for name in ("compute_flops", "num_params", "num_tokens")]
    return Table(
        headings=("FLOPs", "parameters", "tokens", "tokens per parameter"),
        numeric=(True, True, True, True),
        rows=tuple((flops(c), si(n), si(d), short(d / n, 3)) for c, n, d in zip(*columns, strict=True)),
        note="Where two sizes have one loss, at the geometric mean of the two." if columns[0] else "",
    )


def link(found: Mapping[str, Any], score: str, loss_unit: str, explained_frac: float) -> Table:
    """The parameters of a link, and how far runs scatter about it."""
    rows = []
    for name, what in LINK.items():
        estimate = found["estimates"][name]
        error = estimate["standard_error"]
        rows.append(
            (what, significant(estimate, 4), NONE if error is None else short(error, 3), estimate["reason"] or "")
        )
    scatter = "not known" if found["noise"] is None else f"{short(found['noise'], 3)}"
    return Table(
        headings=("quantity", "estimate", "s.e.", ""),
        numeric=(False, True, True, False),
        rows=tuple(rows),
        note=f"{score} = b + a / (1 + exp(k (loss {tables.MINUS} midpoint))), loss in {loss_unit}; intervals are 95 %. "
        f"The link explains {tables.percent(explained_frac)} of the variance of {found['num_rows']} scores; a run "
        f"scatters about it by {scatter} (standard deviation).",
    )


def predicted(answers: Sequence[Mapping[str, Any]], score: str) -> Table:
    """The score at losses: of the mean over runs, and of one new run."""
    rows = []
    for answer in answers:
        outside = answer["loss_outside"]
        remark = f"{short(outside, 3)} outside the losses seen" if outside else "inside"
        reason = answer["estimate"]["reason"] or answer["expected"]["reason"]
        rows.append(
            (
                short(answer["loss"], 5),
                significant(answer["expected"], 4),
                significant(answer["estimate"], 4),
                "; ".join(filter(None, (remark, reason))),
            )
        )
    return Table(
        headings=("loss", f"expected {score}", f"{score} of a new run", ""),
        numeric=(True, True, True, False),
        rows=tuple(rows),
        note="95 % intervals: of the mean over runs, and of one run with its scatter.",
    )
