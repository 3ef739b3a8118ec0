"""Anybody's table and options -> a fit that names its rows; a fit from its file -> the same made again, to be asked.

    FIT.json   table      the file and its sha256, the rows used by their places in it, those left out with reasons, the
                          names, filters and conversions
               options    those of `fit.fit_groups`
               estimates  by group: parameters, exponents
               optima     by group: size, tokens, loss at the largest compute of the rows
               fit        `fit.summary.written`: the rest of the fits
               examined   `fit.examine`: diagnostics, tests of a floor and of shared exponents, jackknives over budgets
               profiles   by group and parameter the interval by the profile of the objective, where it was asked for
               warnings   code, message and the group that it is about, None where it is about the whole

A fit is its rows and its options: nothing else is kept of it, and its draws are made again from the seed.
"""

import dataclasses
import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any

from smelt import committed, fit, foreign
from smelt.errors import BadInput
from smelt.files import read_json, write_json
from smelt.fit import answers, examine, summary

CONTENT = "a fit of anybody's table"
# What a fit is made again from, and the types that a file keeps it in: the arguments of `foreign.read`, and of
# `fit.fit_groups`.
SETTINGS = {
    "columns": dict[str, str],
    "where": list[str],
    "flops": str | None,
    "best_of": list[str],
    "skip_bad": bool,
    "drop_duplicates": bool,
}
OPTIONS = {
    "law": str,
    "objective": str,
    "delta": float | int | str,
    "reference": str | None,
    "fixed": dict[str, float | int] | None,
    "budgets_flops": list[float | int],
    "draws": int,
    "seed": int,
}
DEFAULTS = {name: inspect.signature(fit.fit_groups).parameters[name].default for name in OPTIONS}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The rows, the fits with their draws, and what is written of both."""

    table: foreign.Table
    groups: fit.Groups
    content: dict[str, Any]


def fit_table(table: foreign.Table, *, profiles: bool = False, **options: Any) -> Fitted:
    """Fit a law to every group of a table that was read; without a group column all rows are one.

    `options` are those of `fit.fit_groups` named in OPTIONS; those left out are its defaults. `profiles`
    adds the intervals of floor and exponents by the profile of the objective, which take a second for 60 rows. Raises
    BadInput for a table without a loss, where no group has a fit, and whatever `fit_groups` refuses.
    """
    if unknown := [name for name in options if name not in OPTIONS]:
        raise BadInput(f"a fit's file does not keep {unknown[0]!r}: give {', '.join(OPTIONS)}, or call fit.fit_groups")
    options = DEFAULTS | options
    law = fit.laws.law(options["law"])
    if fit.laws.NAMED.get(law.name) != law:
        raise BadInput(f"the law {law.name} is none that a file can name: call fit.fit_groups with it")
    options["law"] = law.name
    groups = _groups(table, options)
    written, examined = summary.written(groups), fit.jsonable(examine.examine(groups))
    content = {
        "content": CONTENT,
        "table": {
            "file": str(table.path),
            "sha256": table.sha256,
            "loss": table.loss,
            "loss_unit": table.loss_unit,
            "rows": table.rows,
            "left_out": table.left_out,
            "notes": table.notes,
            "selection": table.selection,
            "settings": table.settings,
        },
        "options": options,
        "estimates": {name: answers.exponents(groups, name) for name in groups.names},
        "optima": {name: _largest(groups, name) for name in groups.names},
        "fit": written,
        "examined": examined,
        "warnings": _warnings(table, written, examined),
    }
    if profiles:
        content["profiles"] = {
            name: {parameter: found.interval for parameter, found in by_name.items()}
            for name, by_name in examine.profiles(groups, points=3).items()
        }
    return Fitted(table=table, groups=groups, content=fit.jsonable(content))


def _groups(table: foreign.Table, options: Mapping[str, Any]) -> fit.Groups:
    if table.loss is None:
        has = ", ".join(table.settings["columns"]) or "none"
        raise BadInput(f"no loss is named: add loss_nats=<its column> (or loss_bits, bits_per_byte, error); have {has}")
    if scores := [name for name in ("accuracy", "error") if name in table.columns and name != table.loss]:
        raise BadInput(f"{scores[0]} is named beside {table.loss}: leave it out of a fit; smelt link takes both")
    columns: dict[str, Any] = {**table.columns, **table.texts, "row": table.rows}
    groups = fit.fit_groups(columns, loss_column=table.loss, **options)
    if not any(groups.surfaces.values()):
        raise BadInput(groups.reasons[groups.reference]["surface"])
    return groups


def _largest(groups: fit.Groups, name: str) -> answers.Answer:
    covered = groups.compute_range_flops[name]
    if covered is None:
        return answers.Answer(group=name, compute_flops=None, reason=answers.why_no_frontier(groups, name, "surface"))
    return answers.optima(groups, [covered[1]], group=name)[0]


def save(fitted: Fitted, path: Path | str) -> None:
    """Write the fit; its table is named from the folder of the fit, so that the two can move together."""
    path = Path(path)
    place = os.path.relpath(fitted.table.path.resolve(), path.resolve().parent)
    table = {**fitted.content["table"], "file": place}
    write_json(path, {**fitted.content, "table": table})


def load(path: Path | str) -> dict[str, Any]:
    """What `save` wrote. Raises BadInput for any other file, and for one that lacks what a fit is made again from."""
    path = Path(path)
    content = read_json(path)
    if not isinstance(content, dict) or content.get("content") != CONTENT:
        raise BadInput(f"{path} is no fit of a table: smelt fit --csv FILE --out {path.name} writes one")
    table, options = content.get("table"), content.get("options")
    settings = table.get("settings") if isinstance(table, dict) else None
    whole = isinstance(settings, dict) and isinstance(options, dict) and {"file", "sha256"} <= table.keys()
    if not whole or settings.keys() != SETTINGS.keys() or options.keys() != OPTIONS.keys():
        raise BadInput(f"{path} lacks the table, settings or options that it was made from: fit the table again")
    kept = {"file": table["file"], "sha256": table["sha256"], **settings, **options}
    for name, kind in {"file": str, "sha256": str, **SETTINGS, **OPTIONS}.items():
        if not _is_kept_as(kind, kept[name]):
            raise BadInput(f"{path} was edited: its {name} is {kept[name]!r}; restore it, or fit the table again")
    return content


def _is_kept_as(kind: Any, value: Any) -> bool:
    """Whether a value has a type of SETTINGS or OPTIONS, its members included; a truth value is no number."""
    if isinstance(kind, UnionType):
        return any(_is_kept_as(one, value) for one in kind.__args__)
    if isinstance(kind, GenericAlias):
        members = value.values() if isinstance(value, dict) else value
        return isinstance(value, kind.__origin__) and all(_is_kept_as(kind.__args__[-1], one) for one in members)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def asked(path: Path | str, reference: str | None = None) -> tuple[foreign.Table, fit.Groups]:
    """The rows and the fits of a file, made again, over another reference where one is named. Raises BadInput where the
    rows are not found, or are not the same."""
    path = Path(path)
    kept = load(path)
    options = kept["options"] if reference is None else {**kept["options"], "reference": reference}
    table = _table(path, kept, None)
    if table.sha256 != kept["table"]["sha256"]:
        raise BadInput(
            f"{table.path} is not the file that {path} was made from (sha256 {table.sha256[:12]}, was "
            f"{kept['table']['sha256'][:12]}): fit it again, or look with smelt fit --again {path}"
        )
    return table, _groups(table, options)


def differences(path: Path, table: Path | None = None) -> list[dict[str, Any]]:
    """Every value of a fit that its rows, or those of `table`, do not give again; empty where all come out the same."""
    kept = load(path)
    again = fit_table(_table(path, kept, table), profiles="profiles" in kept, **kept["options"]).content
    for content in (kept, again):
        content["table"] = {key: value for key, value in content["table"].items() if key != "file"}
    return list(committed.differences(kept, again, path.stem))


def _table(path: Path, kept: Mapping[str, Any], table: Path | None) -> foreign.Table:
    place = table or path.parent / kept["table"]["file"]
    if not place.exists():
        raise BadInput(
            f"{place}, the table of {path}, does not exist: restore it, or give its place with --csv "
            f"(smelt fit --again {path} --csv FILE)"
        )
    return foreign.read(place, **kept["table"]["settings"])


def _warnings(
    table: foreign.Table, written: Mapping[str, Any], examined: Mapping[str, Any]
) -> list[dict[str, str | None]]:
    found: list[dict[str, str | None]] = []

    def warn(flag: Mapping[str, str], group: str | None) -> None:
        repeated = flag["code"] == "duplicated_rows" and any(w["code"] == flag["code"] for w in found)
        warning = {"code": flag["code"], "message": flag["message"], "group": group}
        if not repeated and warning not in found:
            found.append(warning)

    for flag in (*map(dataclasses.asdict, table.warnings), *written["warnings"]):
        warn(flag, None)
    for flag in summary.flags_of_groups(written, examined["diagnostics"]):
        warn(flag, flag["group"])
    for name, compared in written["savings"].items():
        savings = compared[compared["recommended"]]["at_budgets"] if compared["recommended"] else None
        for flag in (*summary.flags_of_crossing(compared), *_flags(savings)):
            warn(flag, name)
    return found


def _flags(value: Any) -> Iterator[Mapping[str, str]]:
    """All warnings inside a part of a fit."""
    if isinstance(value, Mapping):
        yield from value.get("warnings") or ()
        for key, item in value.items():
            if key != "warnings":
                yield from _flags(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _flags(item)
