"""A fit of anybody's table, and answers from fits -> tables of text, and the shape that figures draw.

    estimates, intervals, optima, savings, gains, left_out, minima     Table, for the terminal, CSV and LaTeX
    view                                                    the fit in the shape that figures take

It needs no matplotlib and computes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from smelt.analysis import LOSS
from smelt.report import tables
from smelt.report.tables import NONE, Table, flops, interval, percent, significant, sized
from smelt.verdict import KIND_NAMES

QUANTITIES = {
    "size_exponent": "optimal size ~ C^x",
    "token_exponent": "optimal tokens ~ C^x",
    "frontier_exponent": "frontier: loss above the floor ~ C^-x",
    "num_params_minima": "optimal parameters ~ C^x, minima",
    "num_tokens_minima": "optimal tokens ~ C^x, minima",
    "num_params_minima_corrected": "optimal parameters ~ C^x, minima without the parabola's bias",
    "num_tokens_minima_corrected": "optimal tokens ~ C^x, minima without the parabola's bias",
}
SHARE = "'Draws that save' is the plain share of the draws; intervals are moved out from theirs where rows are few."
COSTS = {"secs": "training seconds", "bytes": "stored bytes"}
SIZES = {"num_params": "parameters", "num_params_active": "active parameters", "flops_per_token": "FLOPs per token"}


def _made(headings: Mapping[str, bool], rows: Sequence[Sequence[str]], note: str = "") -> Table:
    """A table; a column without a heading that says nothing is left out."""
    if "" in headings and not any(row[-1] for row in rows):
        headings = {name: numeric for name, numeric in headings.items() if name}
        rows = [row[:-1] for row in rows]
    return Table(
        headings=tuple(headings), numeric=tuple(headings.values()), rows=tuple(tuple(row) for row in rows), note=note
    )


def estimates(content: Mapping[str, Any]) -> Table:
    """Parameters and exponents of every group, a row a quantity, with standard errors and 95 % intervals."""
    several = len(content["estimates"]) > 1
    rows = []
    for name, found in content["estimates"].items():
        group = content["fit"]["groups"][name]
        laws = {
            f"{part}_minima{suffix}": group[f"allocation{suffix}"][part]
            for part in group["allocation"]
            for suffix in ("", "_corrected")
        }
        through = {quantity: law["exponent"] for quantity, law in laws.items() if law}
        for quantity, estimate in {**found, **through}.items():
            error = estimate["standard_error"]
            rows.append(
                [
                    *([name] if several else []),
                    QUANTITIES.get(quantity, quantity),
                    significant(estimate, 5),
                    NONE if error is None else tables.short(error, 3),
                    estimate["reason"] or "",
                ]
            )
    headings = {"quantity": False, "estimate": True, "s.e.": True, "": False}
    method, groups = content["fit"]["method"], content["fit"]["groups"].items()
    note = f"{method['law']['equation']}; {content['table']['loss_unit']}; intervals are 95 %. {method['surface']}."
    found = {name: threshold(group["surface"]) for name, group in groups}
    note += "".join(f" {f'{name}: ' if several else ''}{words}." for name, words in found.items() if words)
    lacking = [f"{name}: {group['reasons']['surface']}" for name, group in groups if "surface" in group["reasons"]]
    absent = {answer["reason"].partition(": ")[2] for answer in content["optima"].values() if answer["reason"]}
    lacking += [f"No optimum: {reason}." for reason in sorted(absent)]
    return _made({"group": False, **headings} if several else headings, rows, " ".join([note, *lacking]))


def threshold(surface: Mapping[str, Any] | None) -> str:
    """Huber's delta of a surface as it is written, where that comes from, and how many rows it clips."""
    if surface is None or not surface["objective"].startswith("huber"):
        return ""
    rule = surface["delta_rule"]
    rule = f"1.345 residual deviations{rule[rule.index(',') :] if 'not' in rule else ''}" if "1.345" in rule else rule
    beyond = surface["beyond_delta_frac"]
    clipped = "" if beyond is None else f", {tables.percent(beyond, 0)} of rows beyond it"
    return f"Huber delta {tables.short(surface['delta'], 3)} ({rule}){clipped}"


def intervals(
    groups: Mapping[str, Mapping[str, Any]],
    examined: Mapping[str, Any],
    profiles: Mapping[str, Mapping[str, Any]] | None = None,
) -> Table:
    """95 % intervals of the same quantities by the bootstrap, by leaving out budgets in turn, and by the profile of the
    objective where it was made; empty where there is the bootstrap alone. `groups` are those of `summary.written`."""
    profiles, rows = profiles or {}, []
    jackknives = {name: found for name, found in examined["jackknives"].items() if found is not None}
    for name in groups if jackknives or profiles else ():
        surface, left_out, of_profile = groups[name]["surface"], jackknives.get(name), profiles.get(name, {})
        estimates = {} if surface is None else dict(surface["estimates"])
        if size := groups[name]["allocation_surface"]["size"]:
            estimates["allocation_exponent"] = size
        for quantity, estimate in estimates.items():
            other = [left_out["estimates"].get(quantity)] if left_out else [None] if jackknives else []
            other += [of_profile.get(quantity)] if profiles else []
            what = QUANTITIES["size_exponent"] if quantity == "allocation_exponent" else quantity
            row = [what, tables.short(estimate["value"], 4), *map(_ends, [estimate, *other])]
            rows.append([name, *row] if len(groups) > 1 else row)
    headings = {"quantity": False, "estimate": True, "bootstrap": True}
    assumes = ["the bootstrap takes units that are drawn independently"]
    if jackknives:
        headings["jackknife"] = True
        said = next(iter(jackknives.values()))["assumes"].replace(" groups ", " budgets ")
        assumes.append(f"the jackknife {said}")
    if profiles:
        headings["profile"] = True
        assumes.append("the profile rows that are independent and scatter alike")
    note = f"What each 95 % interval assumes: {'; '.join(assumes)}." if rows else ""
    return _made({"group": False, **headings} if len(groups) > 1 else headings, rows, note)


def _ends(estimate: Mapping[str, Any] | None) -> str:
    """[low, high] of an estimate; an open side is written so."""
    if estimate is None or estimate["low"] is None is estimate["high"]:
        return NONE
    low, high = ("open" if estimate[end] is None else tables.short(estimate[end], 4) for end in ("low", "high"))
    return tables.Cell(f"[{low}, {high}]", estimate["value"], estimate["low"], estimate["high"])


def optima(answers: Sequence[Mapping[str, Any]], loss_unit: str, currency: str = "flops") -> Table:
    """Optimal size, tokens and loss a row a group and compute, with how far each extrapolates."""
    served = currency.partition("inference:")[2]
    size = next((SIZES[a["size_column"]] for a in answers if a["size_column"]), None)
    headings = {"group": False, f"FLOPs with {served} tokens served" if served else "FLOPs": True}
    flat = any(answer["size_within_1_percent"] for answer in answers)
    if size is not None:
        headings |= {f"optimal {size}": True, **({"within 1 %": True} if flat else {})}
        headings |= {"tokens": True, "tokens per parameter": True}
    rows = []
    for answer in answers:
        compute = answer["compute_flops"]
        row = [answer["group"], NONE if compute is None else flops(compute)]
        if size is not None:
            ratio = significant(answer["tokens_per_param"], 3)
            row += [sized(answer["size"]), *([_between(answer["size_within_1_percent"])] if flat else [])]
            row += [sized(answer["num_tokens"]), ratio]
        costs = [significant(answer["cost"], 3)] if currency in COSTS else []
        rows.append([*row, significant(answer["loss"], 4), *costs, answer["extent"] or answer["reason"] or ""])
    note = "Intervals are 95 %, of the law's optimum; one run's loss scatters beyond."
    if size == SIZES["flops_per_token"]:
        note += " Tokens per parameter count a parameter as six training FLOPs per token."
    if flat:
        note += " Sizes within 1 % reach the optimum's loss with 1 % more compute."
    headings[f"loss ({loss_unit})"] = True
    if currency in COSTS:
        headings[COSTS[currency]] = True
    return _made({**headings, "": False}, rows, note)


def _between(ends: Sequence[float] | None) -> str:
    return NONE if ends is None else f"{tables.si(ends[0])} to {tables.si(ends[1])}"


def runs(answers: Sequence[Mapping[str, Any]], loss_unit: str) -> Table:
    """The predicted loss of one new run, a row a group."""
    columns = list(answers[0]["columns"]) if answers else []
    headings = {"group": False, **dict.fromkeys(columns, True), f"loss of a run ({loss_unit})": True, "": False}
    rows = [
        [
            answer["group"],
            *(tables.si(answer["columns"][name]) for name in columns),
            significant(answer["loss"], 5),
            answer["extent"] or answer["reason"] or "",
        ]
        for answer in answers
    ]
    return _made(headings, rows, "95 % prediction intervals: the law's uncertainty and the scatter of one run.")


def savings(compared: Mapping[str, Mapping[str, Any]], reference: str, currency: str = "flops") -> Table:
    """What is saved at every budget under every kind of frontier, the recommended one first."""
    served = currency.partition("inference:")[2]
    what = f"Compute of training and {served} tokens served" if served else COSTS.get(currency, "compute").capitalize()
    order = _order(compared)
    rows = []
    for name, by_kind in compared.items():
        budgets = [[s["budget_flops"] for s in by_kind[kind]["at_budgets"] or []] for kind in order]
        for index, budget in enumerate(max(budgets, key=len, default=[])):
            at = {kind: (by_kind[kind]["at_budgets"] or [None] * (index + 1))[index] for kind in order}
            main = at.get(by_kind["recommended"])
            share = None if main is None else main["share_positive"]
            rows.append(
                [
                    name,
                    flops(budget),
                    *(interval(at[kind] and at[kind]["estimate"], 1, 100.0, " %") for kind in order),
                    percent(share, 0),
                    _remark(main, by_kind["recommended"]),
                ]
            )
    kinds = {KIND_NAMES[kind]: True for kind in order}
    headings = {"group": False, "FLOPs": True, **kinds, "draws that save": True, "": False}
    note = f"{what} saved over {reference} at equal loss; below 0 it needs more."
    note += " The first kind is recommended." if len(order) > 1 else ""
    note += f" {SHARE}" if rows else ""
    return _made(headings, rows, " ".join([note, *_lacking(compared)]))


def gains(compared: Mapping[str, Mapping[str, Any]], reference: str) -> Table:
    """Compute-equivalent gain at every loss under every kind of frontier."""
    order = _order(compared)
    rows = []
    for name, by_kind in compared.items():
        losses = [[g["loss"] for g in by_kind[kind]["at_losses"] or []] for kind in order]
        for index, loss in enumerate(max(losses, key=len, default=[])):
            at = {kind: (by_kind[kind]["at_losses"] or [None] * (index + 1))[index] for kind in order}
            main = at.get(by_kind["recommended"])
            share = None if main is None else main["share_positive"]
            rows.append(
                [
                    name,
                    tables.short(loss, 5),
                    *(significant(at[kind] and at[kind]["gain"], 4) for kind in order),
                    NONE if main is None or main["target_flops"] is None else flops(main["target_flops"]),
                    percent(share, 0),
                    _remark(main, by_kind["recommended"]),
                ]
            )
    kinds = {f"gain, {KIND_NAMES[kind]}": True for kind in order}
    headings = {"group": False, "loss": True, **kinds, "at FLOPs": True, "draws that save": True, "": False}
    note = f"Compute that {reference} needs for this loss over the group's own; above 1 the group needs less."
    return _made(headings, rows, " ".join([note, *_lacking(compared)]))


def _order(compared: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The kinds of frontier that any group has, that which most recommend first."""
    recommended = [by_kind["recommended"] for by_kind in compared.values()]
    had = [kind for kind in KIND_NAMES if any(by_kind[kind]["reason"] is None for by_kind in compared.values())]
    return sorted(had, key=lambda kind: -recommended.count(kind))


def _remark(main: Mapping[str, Any] | None, kind: str | None) -> str:
    if main is None:
        return ""
    reason = (main.get("estimate") or main.get("gain"))["reason"]
    far = main["extrapolation"]
    words = reason or (f"extrapolates {far:.3g}x" if far is not None and far > 1 + 1e-6 else "inside")
    return words if kind == "surface" else f"{words}; read from {KIND_NAMES[kind]}"


def _lacking(compared: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Why kinds of frontier are missing, each reason once."""
    reasons: dict[str, list[str]] = {}
    for by_kind in compared.values():
        for kind in KIND_NAMES:
            if by_kind[kind]["reason"]:
                reasons.setdefault(by_kind[kind]["reason"].partition(": ")[2], []).append(KIND_NAMES[kind])
    return [f"Missing ({'; '.join(dict.fromkeys(kinds))}): {reason}." for reason, kinds in reasons.items()]


def left_out(content: Mapping[str, Any]) -> Table:
    """Every row of the file that is not used, with the reason."""
    rows = [[tables.number(item["row"], 0), item["reason"]] for item in content["table"]["left_out"]]
    return _made({"row of the file": True, "why it is not used": False}, rows)


def tests(content: Mapping[str, Any]) -> Table:
    """Do the rows show a floor, does a group share the reference's exponents, and where do their frontiers cross?"""
    examined, rows = content["examined"], []
    for name in content["fit"]["group_names"]:
        for part in ("floors", "shared"):
            if found := examined[part].get(name):
                rows.append(
                    [
                        name,
                        found["question"],
                        significant({"value": found[found["decisive"]], "low": None, "high": None}, 2),
                        found["sentence"],
                    ]
                )
        crossing = content["fit"]["savings"].get(name, {}).get("crossing")
        if crossing is not None:
            what = f"where does its frontier cross {content['fit']['reference']}'s?"
            rows.append(
                [name, what, NONE, crossing["compute"]["reason"] or f"at {significant(crossing['compute'], 3)} FLOPs"]
            )
    return _made({"group": False, "question": False, "p": True, "answer": False}, rows)


def view(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fit as the figures take an analysis: its groups are the variants."""
    found = dict(content["fit"])
    groups = {}
    for name, group in found["groups"].items():
        rows = dict(group["rows"])
        rows.setdefault("budget_flops", rows.get("train_flops"))
        groups[name] = {**group, "rows": rows}
    names = found["group_names"]
    return {
        "losses": {LOSS: {**found, "groups": groups}},
        "variants": names,
        "reference": found["reference"],
        "headline": {name: {"kind": found["savings"][name]["recommended"]} for name in names[1:]},
        "labels": {"loss": f"{content['table']['loss']} ({content['table']['loss_unit']})", "size": "parameters"},
    }


def of_fit(content: Mapping[str, Any]) -> dict[str, Table]:
    """All tables of a fit, by name."""
    unit = content["table"]["loss_unit"]
    found = {"estimates": estimates(content)}
    if any(answer["loss"] for answer in content["optima"].values()):
        found["optima"] = optima(list(content["optima"].values()), unit)
    if content["fit"]["savings"]:
        found["savings"] = savings(content["fit"]["savings"], content["fit"]["reference"])
    if any(group["minima"] for group in content["fit"]["groups"].values()):
        found["minima"] = tables.minima(view(content))
        found["minima_corrected"] = tables.minima_corrected(view(content))
    if (compared := intervals(content["fit"]["groups"], content["examined"], content.get("profiles"))).rows:
        found["intervals"] = compared
    found["tests"] = tests(content)
    if content["table"]["left_out"]:
        found["left_out"] = left_out(content)
    return found
