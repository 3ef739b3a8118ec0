"""Rows of an experiment -> one dict that `smelt fit`, the report and the notebook show: laws, savings, spread, costs.

    losses        the fits of each loss column (`fit.summary`): validation, each of its domains, bits per byte
    examined      what the validation loss's fits hang on, and whether they show a floor and shared exponents
    headline      a variant's saving at the largest budget shared with the reference, and its verdict in a sentence
    pairs         loss differences of matched pairs, which need no law
    seed_spread, match, device, provenance, left_out, warnings

Only rows of role "grid" that finished enter the fits; seeds give the spread, controls and predictions are counted for
their cost alone. Every loss column is fitted apart, with its own floor, coefficients and exponents: a domain borrows
nothing from the others. The dict is plain JSON and the same for the same rows.

The headline is the saving of the fitted surfaces, or, where one cannot be had or is not certified, that of the
saturating and then of the pure law through the parabolas' minima (`KINDS`): the order stands here so that nobody
chooses it after seeing them.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from smelt import cores, fit, spec, trunk, verdict
from smelt.errors import BadInput
from smelt.fit import examine, summary
from smelt.fit.planning import MIN_TRUNKS
from smelt.ledger import Row
from smelt.verdict import compact

LOSS = "val_loss_nats"
BITS = "bits_per_byte"
MIN_RUNS_FOR_VERDICT = 10  # two for each of the surface's five coefficients: chosen
DOMAIN_METHOD = "each domain is fitted apart: its own floor, coefficients and exponents (SMELT shares the exponents)"
KINDS = ("surface", "saturating", "pure")
MATCH_ERRORS = {
    "match_error_flops": "FLOPs per token",
    "match_error_params": "parameters",
    "match_error_kv": "KV cache",
}
MATCH_BOUND = 0.04  # beyond it a pair is called unmatched: the users' bound on each of the three budgets


def loss_columns(rows: Sequence[Row]) -> list[str]:
    """The loss columns that these rows have: validation first, its domains in order of name, bits per byte."""
    domains = sorted({name for row in rows for name in row if name.startswith(f"{LOSS}.")})
    return [LOSS, *domains, BITS]


def table(rows: Sequence[Row], loss_column: str = LOSS) -> dict[str, list]:
    """Columns for `fit.fit_groups`: finished rows of the grid; the group is the variant, the pair label the size.

    Raises BadInput where there is no such row.
    """
    kept = [row for row in rows if row["role"] == "grid" and row["outcome"] == "finished"]
    if not kept:
        diverged = sum(row["outcome"] != "finished" for row in rows)
        raise BadInput(
            f"none of {len(rows)} rows is a finished run of the grid ({diverged} diverged): "
            "train some first (smelt run), or see why in smelt status"
        )
    columns = {"group": "variant", "pair": "size", "seed": "seed", "run_id": "run_id", loss_column: loss_column}
    columns |= {name: name for name in ("budget_flops", "num_params", "num_tokens", "train_flops", "flops_per_token")}
    found = {name: [row.get(source) for row in kept] for name, source in columns.items()}
    return found | ({"unit": units(kept)} if share_trunks(kept) else {})


def units(rows: Sequence[Row]) -> list[str]:
    """What a bootstrap draws as one, a label a row: the runs of a budget and a size with all their seeds, and with them
    all that were decayed from a trunk of theirs (`smelt.trunk`), for these share its luck."""
    joined: dict[str, str] = {}  # a cell -> another of its unit, the least in the end

    def unit(cell: str) -> str:
        while (other := joined.setdefault(cell, cell)) != cell:
            joined[cell] = joined.setdefault(other, other)
            cell = other
        return cell

    cells, of_trunk = [_cell(row) for row in rows], {}
    for cell, trunk_id in zip(cells, trunks(rows), strict=True):
        least, most = sorted((unit(cell), unit(of_trunk.setdefault(trunk_id, cell))))
        joined[most] = least
    return [unit(cell) for cell in cells]


def trunks(rows: Sequence[Row]) -> list[str]:
    """The trunk_id of each row."""
    return [trunk.trunk_of(run_of(row)).trunk_id for row in rows]


def share_trunks(rows: Sequence[Row]) -> bool:
    """Whether some runs of different budgets or sizes were decayed from one trunk."""
    return len(set(units(rows))) < len(set(map(_cell, rows)))


def few_trunks(rows: Sequence[Row]) -> str | None:
    """What to say where the fits draw fewer trunks than an interval wants."""
    kept = [row for row in rows if row["role"] == "grid" and row["outcome"] == "finished"]
    if not kept or not share_trunks(kept) or (num_units := len(set(units(kept)))) >= MIN_TRUNKS:
        return None
    return (
        f"the runs were decayed from the trunks of {num_units} sizes, each drawn as one: intervals of fewer than "
        f"{MIN_TRUNKS} come out wider than the runs would allow (a third, of 7); add sizes"
    )


def run_of(row: Row) -> spec.RunSpec:
    """The run that a row is of, from its flat columns."""
    tree: dict[str, Any] = {}
    for name, value in row.items():
        *path, leaf = name.split(".")
        if value is not None and (path or [leaf])[0] in ("arch", "optim", "data", "num_steps", "seed"):
            inner = tree
            for part in path:
                inner = inner.setdefault(part, {})
            inner[leaf] = json.loads(value) if name == "arch.own" else value
    tree["arch"].setdefault("outer_ffn", None)
    return spec.run_from_dict(tree)


def _cell(row: Row) -> str:
    return f"{row['budget_flops']:.12g}|{row['size']}"


def left_out(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows of the grid that enter no fit, each with its reason."""
    return [
        {**_labels(row), "reason": f"{row['outcome']}: {why_null(row, LOSS)}"}
        for row in rows
        if row["role"] == "grid" and row["outcome"] != "finished"
    ]


def why_null(row: Row, column: str) -> str:
    """The reason that a row gives for a missing measurement."""
    return json.loads(row["null_reasons"]).get(column, "no reason is given")


def _labels(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("run_id", "variant", "role", "budget_flops", "size", "seed", "num_params")}


def analyse(
    rows: Sequence[Row], reference: str, *, draws: int = 1000, seed: int = 0, delta: float | str = "auto"
) -> dict[str, Any]:
    """The analysis of an experiment's rows; see the module. `reference` is the variant that savings are taken over;
    `delta` is that of `fit.fit_surface`.

    Raises BadInput without a single finished run of the grid. A column that cannot be fitted is None under "losses",
    its reason under "reasons".
    """
    variants = [reference, *dict.fromkeys(row["variant"] for row in rows if row["variant"] != reference)]
    in_grid = [name for name in variants if any(row["variant"] == name and row["role"] == "grid" for row in rows)]
    matched = {name: match_errors(rows, name) for name in in_grid if name != reference}
    # Before the fits: it imports what they want too, which their processes then have.
    pairs = {name: pair_differences(rows, name, reference) for name in matched}
    columns = loss_columns(rows)
    tables = {column: table(rows, column) for column in columns}
    options = {"reference": reference, "draws": draws, "seed": seed, "delta": delta}
    fitted = dict(zip(columns, cores.results([partial(_fitted, tables[c], c, options) for c in columns]), strict=True))
    losses = {column: written for column, (written, _, _) in fitted.items()}
    reasons = {column: reason for column, (_, reason, _) in fitted.items() if reason is not None}
    examined = fitted[LOSS][2]
    if not any(_in_grid(row, reference) for row in rows):
        reasons[LOSS] = f"{reference} has no finished run of the grid"
    analysis = {
        "reference": reference,
        "variants": in_grid,
        "losses": losses,
        "reasons": reasons,
        "examined": examined,
        "headline": {
            name: headline(losses[LOSS], reasons.get(LOSS), name, reference, matched[name]) for name in matched
        },
        "domains": _domains(losses, reasons, reference, list(matched)),
        "domain_method": DOMAIN_METHOD,
        "pairs": pairs,
        "match": matched,
        "seed_spread": {column: seed_spread(rows, column) for column in loss_columns(rows)},
        "device": device_time(rows),
        "provenance": provenance(rows),
        "left_out": left_out(rows),
        "settings": {"draws": draws, "seed": seed, "delta": delta},
    }
    analysis["warnings"] = _warnings(rows, analysis)
    return fit.jsonable(analysis)


def _fitted(
    columns: Mapping[str, list], loss_column: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, str | None, dict[str, Any] | None]:
    """The fits of one loss column, why there are none, and what those of the validation loss hang on."""
    try:
        fits = fit.fit_groups(columns, loss_column=loss_column, **options)
    except BadInput as error:
        return None, str(error), None
    return summary.written(fits), None, _examined(fits) if loss_column == LOSS else None


def _examined(fits: fit.Groups) -> dict[str, Any]:
    """`fit.examine` as plain JSON; of a jackknife the intervals alone."""
    found = fit.jsonable(examine.examine(fits))
    for jackknife in found["jackknives"].values():
        if jackknife is not None:
            del jackknife["influence"]
    return found


def profiles(rows: Sequence[Row], reference: str, *, delta: float | str = "auto") -> dict[str, dict[str, Any]]:
    """By variant and parameter of the validation loss's surface, how its objective rises as the parameter is held
    elsewhere: `fit.Profile` as plain JSON, for figures. Empty where nothing is fitted."""
    try:
        # A profile asks for no draws; two are the fewest that are made.
        fits = fit.fit_groups(table(rows), reference, loss_column=LOSS, draws=2, delta=delta)
    except BadInput:
        return {}
    of_groups = cores.results([lambda name=name: fit.jsonable(examine.profiles(fits, name)) for name in fits.names])
    return {name: of_group for found in of_groups for name, of_group in found.items()}


def _at_largest(
    losses: Mapping[str, Any] | None, variant: str, reference: str
) -> tuple[str | None, Mapping | None, dict[str, str]]:
    """(kind, saving at the largest budget that both have runs at, reasons of the kinds before it)."""
    why: dict[str, str] = {}
    if losses is None or variant not in losses["savings"]:
        return None, None, why
    budgets = [set(losses["groups"][name]["rows"]["budget_flops"]) for name in (variant, reference)]
    shared = budgets[0] & budgets[1]
    if not shared:
        return None, None, {"budgets": f"{variant} and {reference} have no budget in common yet"}
    largest = losses["budgets_flops"].index(max(shared))
    for kind in KINDS:
        compared = losses["savings"][variant][kind]
        if compared["at_budgets"] is None:
            why[kind] = compared["reason"]
            continue
        if kind == "surface" and (unproven := _unproven(losses, (variant, reference))):
            why[kind] = unproven[0]
            continue
        saving = compared["at_budgets"][largest]
        if saving["estimate"]["value"] is not None:
            return kind, saving, why
        why[kind] = saving["estimate"]["reason"]
    return None, None, why


def _unproven(losses: Mapping[str, Any], names: Iterable[str]) -> tuple[str, str] | None:
    """Why a surface may not carry the verdict, with the numbers and in plain words: too few runs for its coefficients,
    or a minimum that is not certified."""
    for name in names:
        num_rows = losses["groups"][name]["num_rows"]
        if num_rows < MIN_RUNS_FOR_VERDICT:
            why = f"{num_rows} runs are too few for a surface's verdict, which wants {MIN_RUNS_FOR_VERDICT}"
            return f"{name}: {why}", f"{name} has {num_rows} runs, and it wants {MIN_RUNS_FOR_VERDICT}"
        for flag in losses["groups"][name]["surface"]["warnings"]:
            if flag["code"] == "not_certified":
                plain = f"its fit to {name}'s runs could not be proven to be the best one"
                return f"{name}: {flag['message']}", plain
    return None


def _why_no_surface(losses: Mapping[str, Any], variant: str, reference: str) -> str:
    """The same in plain words, whatever the cause."""
    if losses["savings"][variant]["surface"]["at_budgets"] is None:
        return f"{variant} and {reference} do not both have one"
    unproven = _unproven(losses, (variant, reference))
    return unproven[1] if unproven else "it gives no saving at this budget"


def headline(
    losses: Mapping[str, Any] | None, reason: str | None, variant: str, reference: str, matched: Mapping[str, Any]
) -> dict[str, Any]:
    """The saving of `variant` at the largest budget that it shares with the reference, by the first of `KINDS` that has
    one, and its verdict.

    verdict: one of `smelt.verdict`, "unknown" where there is no saving or no interval of it. sentence: the verdict in
    words. note: which frontier carries it where that is not the surface, in plain words. reason: why the kinds before
    it do not, with the numbers.
    """
    kind, saving, why = _at_largest(losses, variant, reference)
    reasons = {name: text for name, text in why.items() if text}
    found: dict[str, Any] = {
        "kind": kind,
        "budget_flops": saving and saving["budget_flops"],
        "saving": saving,
        "verdict": verdict.word(saving["estimate"]) if saving else "unknown",
        "is_matched": matched["is_matched"],
        "others": {},
        "reason": "; ".join(f"{name}: {text}" for name, text in reasons.items()) or None,
        "note": None,
    }
    if losses is None or saving is None:
        found["reason"] = (
            reason or "; ".join(dict.fromkeys(reasons.values())) or f"{variant} has no finished run of the grid"
        )
    else:
        at = losses["budgets_flops"].index(saving["budget_flops"])
        for other in KINDS:
            compared = losses["savings"][variant][other]["at_budgets"]
            if other != kind and compared is not None:
                found["others"][other] = compared[at]["estimate"]
    estimates = _by_kind(found)
    if found["verdict"] == "unknown":
        lacking = reason or "nothing is fitted"
        if losses is not None:
            lacking = verdict.lacking(losses["groups"], variant, reference, saving or _last_tried(losses, variant))
        found["sentence"] = verdict.no_answer(variant, lacking, estimates)
    else:
        found["sentence"] = verdict.sentence(variant, reference, saving, estimates)
        if kind != "surface":
            found["note"] = verdict.note(kind, _why_no_surface(losses, variant, reference))
    if not matched["is_matched"] and found["verdict"] != "unknown":
        found["sentence"] += f" The pairs are not matched: {matched['note']}."
    return found


def _by_kind(head: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """kind of frontier -> the saving that it gives at the headline's budget."""
    own = {} if head["saving"] is None else {head["kind"]: head["saving"]["estimate"]}
    return {**own, **head["others"]}


def _last_tried(losses: Mapping[str, Any], variant: str) -> Mapping[str, Any] | None:
    """The saving without a value of the first kind that got as far as one."""
    by_kind = losses["savings"].get(variant, {})
    tried = [by_kind[kind]["at_budgets"] for kind in KINDS if by_kind and by_kind[kind]["at_budgets"]]
    return tried[0][-1] if tried else None


def _domains(
    losses: Mapping[str, Any], reasons: Mapping[str, str], reference: str, variants: Iterable[str]
) -> dict[str, Any]:
    """Per variant and further loss column: kind and saving at the largest budget, or None with the reason."""
    found: dict[str, Any] = {}
    for variant in variants:
        found[variant] = {}
        for column in losses:
            kind, saving, why = _at_largest(losses[column], variant, reference)
            reason = None if saving else reasons.get(column) or "; ".join(dict.fromkeys(why.values()))
            found_verdict = verdict.word(saving["estimate"]) if saving else "unknown"
            found[variant][column] = {"kind": kind, "saving": saving, "verdict": found_verdict, "reason": reason}
    return found


def pair_differences(rows: Sequence[Row], variant: str, reference: str) -> dict[str, Any]:
    """Loss of `variant` minus loss of its partner (equal budget, size and seed), pair by pair and on average.

    The interval of the mean is Student's t over pairs, taken as independent, or where pairs share trunks over the means
    of those that do; below two of them it is None.
    """
    partners = {_pair(row): row for row in rows if _in_grid(row, reference)}
    own = [row for row in rows if _in_grid(row, variant) and _pair(row) in partners]
    pairs = []
    for row in own:
        partner = partners[_pair(row)]
        columns = [name for name in loss_columns(rows) if row.get(name) is not None and partner.get(name) is not None]
        pairs.append(
            {
                **_labels(row),
                "reference_run_id": partner["run_id"],
                "reference_num_params": partner["num_params"],
                "reference_loss_nats": partner[LOSS],
                "difference": {name: row[name] - partner[name] for name in columns},
            }
        )
    differences = np.array([pair["difference"][LOSS] for pair in pairs])
    summary: dict[str, Any] = {"num_pairs": len(pairs), "num_lower": int((differences < 0).sum())}
    if len(pairs) < 2:
        why = f"{'one pair is' if pairs else 'no pair is'} finished, a mean needs two"
        return {"pairs": pairs, **summary, "mean_nats": None, "sd_nats": None, "reason": why}
    from scipy.special import stdtrit

    sd = float(differences.std(ddof=1))
    apart, over = differences, "pairs"
    if share_trunks(own):
        label_of = dict(zip((row["run_id"] for row in own), units(own), strict=True))
        labels = np.array([label_of[pair["run_id"]] for pair in pairs])
        apart, over = np.array([differences[labels == label].mean() for label in np.unique(labels)]), "trunks"
    if len(apart) < 2:
        why = "all pairs are of one trunk, an interval needs two"
        return {"pairs": pairs, **summary, "mean_nats": None, "sd_nats": sd, "reason": why}
    half = float(stdtrit(len(apart) - 1, 0.975)) * float(apart.std(ddof=1)) / math.sqrt(len(apart))
    mean = float(apart.mean())
    estimate = {"value": mean, "low": mean - half, "high": mean + half, "method": f"Student t over {over}"}
    return {"pairs": pairs, **summary, "mean_nats": estimate, "sd_nats": sd, "reason": None}


def _in_grid(row: Row, variant: str) -> bool:
    return row["role"] == "grid" and row["variant"] == variant and row["outcome"] == "finished"


def _pair(row: Row) -> tuple:
    return row["budget_flops"], row["size"], row["seed"]


def match_errors(rows: Sequence[Row], variant: str) -> dict[str, Any]:
    """What was held equal in this variant's pairs, the largest error of each budget (signed), and whether the pairs
    are matched in all three within `MATCH_BOUND`."""
    own = [row for row in rows if row["variant"] == variant and row["role"] in ("grid", "prediction")]
    largest = {name: max((row[name] for row in own), key=abs) for name in MATCH_ERRORS}
    held = ", ".join(sorted({row["held_equal"] for row in own}))
    off = {name: error for name, error in largest.items() if abs(error) > MATCH_BOUND}
    worst = max(map(abs, largest.values()))
    if off:
        differing = ", ".join(f"{MATCH_ERRORS[name]} {100 * error:+.1f} %" for name, error in off.items())
        note = f"{differing} against the baseline at worst (held equal: {held})".replace("-", "\N{MINUS SIGN}")
    else:
        note = f"FLOPs, parameters and KV cache agree within {100 * worst:.2g} %"
    return {"held_equal": held, "largest": largest, "worst": worst, "is_matched": not off, "note": note}


def seed_spread(rows: Sequence[Row], column: str = LOSS) -> dict[str, Any]:
    """The standard deviation of a loss over seeds, pooled over (variant, budget, size) with two seeds or more."""
    cells: dict[tuple, list[float]] = {}
    for row in rows:
        if row["role"] in ("grid", "seed") and row.get(column) is not None:
            cells.setdefault((row["variant"], row["budget_flops"], row["size"]), []).append(row[column])
    several = {key: values for key, values in cells.items() if len(values) > 1}
    degrees = sum(len(values) - 1 for values in several.values())
    if not degrees:
        reason = "no cell has two finished seeds"
        return {"sd": None, "degrees_of_freedom": 0, "cells": [], "reason": reason}
    squares = sum(float(np.var(values)) * len(values) for values in several.values())
    listed = [
        {"variant": key[0], "budget_flops": key[1], "size": key[2], "losses": values}
        for key, values in sorted(several.items())
    ]
    return {"sd": math.sqrt(squares / degrees), "degrees_of_freedom": degrees, "cells": listed, "reason": None}


def device_time(rows: Sequence[Row]) -> dict[str, Any]:
    """Device seconds (wall seconds of a run times its devices) in all, by role, and of runs that diverged.

    A run that failed has no row, so its time is not in here.
    """
    total: dict[str, Any] = {"num_runs": 0, "device_secs": 0.0, "num_unknown": 0, "train_flops": 0.0}
    by_role: dict[str, dict[str, Any]] = {}
    for row in rows:
        parts = [total, by_role.setdefault(row["role"], dict.fromkeys(total, 0))]
        if row["outcome"] == "diverged":
            parts.append(by_role.setdefault("diverged", dict.fromkeys(total, 0)))
        for part in parts:
            part["num_runs"] += 1
            part["num_unknown"] += row["total_secs"] is None
            part["device_secs"] += (row["total_secs"] or 0.0) * _num_devices(row)
            part["train_flops"] += row["train_flops"]
    return {"total": total, "by_role": by_role}


def _num_devices(row: Row) -> int:
    count, _, kind = row["device"].partition(" x ")
    if not count.isdigit() or not kind:
        raise BadInput(f"run {row['run_id']}: device is {row['device']!r}, expected a count and a kind: '1 x NAME'")
    return int(count)


def provenance(rows: Sequence[Row]) -> dict[str, list]:
    """The distinct values of every provenance column, sorted, and of the FLOP convention."""
    names = ("corpus_fingerprint", "code_fingerprint", "jax", "jaxlib", "python", "device", "threads", "host")
    return {name: sorted({row[name] for row in rows}) for name in (*names, "flops_convention", "held_equal")}


def _mixed_code(rows: Sequence[Row]) -> bool:
    """Whether rows that should share their code do not: all share the package's, and those of one variant that of its
    own parts, which stands after the plus."""
    found = {(row["variant"], row["code_fingerprint"]) for row in rows}
    packages = {code.partition("+")[0] for _, code in found}
    return len(packages) > 1 or len(found) > len({variant for variant, _ in found})


def _warnings(rows: Sequence[Row], analysis: Mapping[str, Any]) -> list[dict[str, str | None]]:
    """code, message and the variant that it is about, None where it is about the whole; each once, those of the whole
    and of the verdicts before those of single fits."""
    overall = analysis["losses"][LOSS] or {"groups": {}, "savings": {}, "warnings": []}
    found: list[dict[str, str | None]] = []

    def warn(code: str, message: str, variant: str | None = None) -> None:
        warning = {"code": code, "message": message, "variant": variant}
        if warning not in found:
            found.append(warning)

    for name, code in (
        ("corpus_fingerprint", "mixed_corpora"),
        ("code_fingerprint", "mixed_code"),
        ("flops_convention", "mixed_conventions"),
        ("device", "mixed_devices"),
        ("jax", "mixed_jax"),
    ):
        values = analysis["provenance"][name]
        if len(values) > 1 and (name != "code_fingerprint" or _mixed_code(rows)):
            warn(code, f"the rows come from {len(values)} values of {name}: {', '.join(map(str, values))}")
    for row in analysis["left_out"]:
        where = f"{row['variant']} of size {row['size']} at {compact(row['budget_flops'])} FLOPs"
        warn("run_left_out", f"{where} is left out of every fit: {row['reason']}")
    if few := few_trunks(rows):
        warn("few_trunks", few)
    repeated = [row for row in rows if row["epochs"] > 1]
    if repeated:
        worst = max(row["epochs"] for row in repeated)
        warn("repeated_data", f"{len(repeated)} runs read their training data more than once, up to {worst:.2f} times")
    for name, matched in analysis["match"].items():
        if not matched["is_matched"]:
            warn("unmatched_pairs", f"{name}: the pairs are not matched: {matched['note']}", name)
    for name, head in analysis["headline"].items():
        if differing := verdict.disagreement(_by_kind(head)):
            message = f"{name}: the kinds of frontier disagree on whether it saves compute ({differing})"
            warn("laws_disagree", message, name)
        if head["reason"]:
            passed = "not that of the surface" if head["kind"] else "not known"
            warn("verdict_not_of_surface", f"{name}: the verdict is {passed}: {head['reason']}", name)
        compared = overall["savings"].get(name)
        for flag in [] if compared is None else summary.flags_of_crossing(compared):
            crossed = verdict.crossed(name, analysis["reference"], compared["crossing"]).removeprefix(name)
            warn(flag["code"], f"{name}: it{crossed}".replace("it's", "its", 1), name)
        for flag in head["saving"]["warnings"] if head["saving"] else []:
            warn(flag["code"], f"{name}: {flag['message']}", name)
    for column, reason in analysis["reasons"].items():
        warn("not_fitted", f"{column} is not fitted: {reason}")
    for flag in overall["warnings"]:
        warn(flag["code"], flag["message"])
    for name, group in overall["groups"].items():
        for minimum in group["minima"]:
            for flag in minimum["warnings"]:
                warn(flag["code"], f"{name}: {verdict.flagged(flag, minimum)}", name)
        for flag in summary.flags_of_group(group, analysis["examined"]["diagnostics"][name]):
            warn(flag["code"], f"{name}: {flag['message']}", name)
    return found
