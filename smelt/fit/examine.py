"""Fits of groups in; what each hangs on, and whether the rows show a floor and exponents that groups share, out.

Everything is asked of the fits as they stand, with their rows, budgets, units and draws; `diagnostics`, `nested`,
`jackknife` and `profiles` say how each is tested. What cannot be asked is None, with the reason.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from smelt.errors import BadInput
from smelt.fit import summary
from smelt.fit.answers import known
from smelt.fit.diagnostics import Diagnostics, diagnose
from smelt.fit.groups import Groups, attempt, is_frontier
from smelt.fit.jackknife import Jackknife, jackknife
from smelt.fit.nested import NestedTest, floor_test, shared_test
from smelt.fit.profiles import Profile, profile
from smelt.fit.result import jsonable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """By group. `shared` asks whether its exponents are the reference's; the reference has none. `jackknives` leave out
    each budget in turn: intervals for errors that budgets share. reasons: group -> part -> why it is None."""

    diagnostics: dict[str, Diagnostics | None]
    floors: dict[str, NestedTest | None]
    shared: dict[str, NestedTest | None]
    jackknives: dict[str, Jackknife | None]
    reasons: dict[str, dict[str, str]]


def examine(fits: Groups) -> Examined:
    """See the module. The tests of shared exponents fit both groups twice and draw them again: they take longest."""
    reasons: dict[str, dict[str, str]] = {name: {} for name in fits.names}
    others = fits.names[1:]
    return Examined(
        diagnostics={name: attempt(reasons[name], "diagnostics", diagnosed, fits, name) for name in fits.names},
        floors={name: attempt(reasons[name], "floor", _floor, fits, name) for name in fits.names},
        shared={name: attempt(reasons[name], "shared", _shared, fits, name) for name in others},
        jackknives={name: attempt(reasons[name], "jackknife", _jackknife, fits, name) for name in fits.names},
        reasons=reasons,
    )


def warnings(fits: Groups, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """What is said against the fits of all groups, or of these: code, message, and the group that it is about or None.
    An answer that is read off a fit carries them."""
    written = summary.written(fits)
    of_rows = {name: jsonable(attempt({}, "diagnostics", diagnosed, fits, name)) for name in fits.names}
    found = [{"code": flag["code"], "message": flag["message"], "group": None} for flag in written["warnings"]]
    found += summary.flags_of_groups(written, of_rows)
    return [flag for flag in found if names is None or flag["group"] in (None, *names)]


def profiles(fits: Groups, group: str | None = None, *, points: int = 41) -> dict[str, dict[str, Profile]]:
    """By group and parameter, how the objective rises as an exponent or the floor is held elsewhere; 3 points are
    enough for the intervals alone."""
    found: dict[str, dict[str, Profile]] = {}
    for name in known(fits, group):
        surface = fits.surfaces[name]
        if surface is not None:
            floor = () if surface.law.floor is None else (surface.law.floor,)
            names = (*floor, *surface.law.exponents)
            kept = {p: attempt({}, p, profile, surface, p, points=points) for p in names}
            found[name] = {parameter: value for parameter, value in kept.items() if value is not None}
    return found


def diagnosed(fits: Groups, name: str) -> Diagnostics | None:
    """`fit.diagnose` of a group's surface and rows; None without a surface."""
    surface, group = fits.surfaces[name], fits.rows[name]
    if surface is None:
        return None
    return diagnose(
        surface,
        {column: group[column] for column in fits.law.columns},
        group["loss_nats"],
        budgets=group.get("budget_flops"),
        units=list(group["unit"]),
        labels=[f"row {label}" if isinstance(label, int) else str(label) for label in group["label"]],
    )


def _floor(fits: Groups, name: str) -> NestedTest | None:
    surface = fits.surfaces[name]
    return None if surface is None or surface.law.floor is None else floor_test(surface)


def _shared(fits: Groups, name: str) -> NestedTest | None:
    both = (fits.reference, name)
    if any(fits.surfaces[group] is None for group in both):
        return None
    if is_frontier(fits.law):
        raise BadInput("a law in compute alone is a frontier of one exponent: compare the savings read off it")
    rows: dict[str, Any] = {group: fits.rows[group] for group in both}
    return shared_test(
        {group: {column: rows[group][column] for column in fits.law.columns} for group in both},
        {group: rows[group]["loss_nats"] for group in both},
        fits.law,
        objective=fits.objective,
        delta=fits.delta,
        units={group: list(rows[group]["unit"]) for group in both},
        draws=fits.method["num_draws"],
        seed=fits.method["seed"],
    )


def _jackknife(fits: Groups, name: str) -> Jackknife | None:
    surface, group = fits.surfaces[name], fits.rows[name]
    if surface is None:
        return None
    if "budget_flops" not in group:
        raise BadInput("there is no column budget_flops: without it no budget can be left out")
    return jackknife(surface, [float(budget) for budget in group["budget_flops"]])
