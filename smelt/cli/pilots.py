"""An experiment's rows, a fit's JSON or typed numbers in; the law and the noise that a grid is planned with out."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smelt.cli.words import rows_of
from smelt.errors import BadInput


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What a plan starts from.

    fixed          columns of the law that the grid holds
    noise          None until it is known; noise_source says in words where it comes from
    noise_factors  the 95 % interval of the noise relative to itself, None where it was given
    covered_flops  smallest and largest compute of the runs behind the law, None without any
    standing       the grid that is there, one group of it
    """

    law: Any
    parameters: dict[str, float]
    flops_per_unit: float | None
    source: str
    fixed: Mapping[str, float] = dataclasses.field(default_factory=dict)
    noise: Any = None
    noise_source: str = "given"
    noise_factors: tuple[float, float] | None = None
    covered_flops: tuple[float, float] | None = None
    standing: Any = None
    warnings: tuple[Any, ...] = ()


def of_numbers(law: str, parameters: Mapping[str, float], flops_per_unit: float | None) -> Pilot:
    from smelt.fit import laws

    return Pilot(
        law=laws.law(law), parameters=dict(parameters), flops_per_unit=flops_per_unit, source="numbers as given"
    )


def of_json(path: Path, flops_per_unit: float | None) -> Pilot:
    """The fit of a table (`smelt fit --csv FILE --out FIT.json`), or the analysis of an experiment (fits/NAME.json)."""
    from smelt import fitted
    from smelt.files import read_json

    content = read_json(path)
    if isinstance(content, dict) and content.get("content") == fitted.CONTENT:
        return _of_table(path, flops_per_unit)
    try:
        reference = content["reference"]
        group = content["losses"]["val_loss_nats"]["groups"][reference]
        surface = group["surface"]
        return _of_surface(f"{path}, {reference}", surface, tuple(group["compute_range_flops"]), flops_per_unit)
    except (KeyError, TypeError):
        raise BadInput(
            f"{path} holds no fitted surface: give what smelt fit --out wrote, or --law and --parameters"
        ) from None


def _of_surface(
    where: str, surface: Mapping[str, Any], covered: tuple[float, float], flops_per_unit: float | None
) -> Pilot:
    from smelt.fit import laws, noise

    level = surface["noise_log"]
    return Pilot(
        law=laws.law(surface["law"]["name"]),
        parameters=dict(surface["parameters"]),
        flops_per_unit=flops_per_unit,
        source=f"the fit in {where}",
        noise=None if level is None else noise.given_noise(level),
        noise_source=f"residuals of the fit in {where}; pairs are taken to share none",
        covered_flops=covered,
    )


def _of_table(path: Path, flops_per_unit: float | None) -> Pilot:
    """The fit made again from its rows, which tell the noise of pairs and seeds too."""
    from smelt import fitted

    table, groups = fitted.asked(path)
    surface = groups.surfaces[groups.reference]
    if surface is None:
        raise BadInput(f"{path} has no surface of {groups.reference}: {groups.reasons[groups.reference]['surface']}")
    fixed = dict(groups.frontier_options[groups.reference])
    k = fixed.pop("flops_per_unit", None)
    own, covered = groups.rows[groups.reference], groups.compute_range_flops[groups.reference]
    budgets = own.get("budget_flops", own.get("train_flops"))
    rows = {**table.columns, **table.texts}
    noise, source, factors, warnings = _noise_of(rows, groups.law, table.loss, f"{path}")
    return Pilot(
        law=groups.law,
        parameters=surface.parameters,
        flops_per_unit=k if flops_per_unit is None else flops_per_unit,
        fixed=fixed,
        source=f"{groups.law.name} fitted to {surface.num_rows} rows of {table.path}",
        noise=noise,
        noise_source=source,
        noise_factors=factors,
        covered_flops=covered,
        standing=None if budgets is None else _standing(groups.law, own, budgets),
        warnings=(*surface.warnings, *warnings),
    )


def _standing(law: Any, rows: Mapping[str, Any], budgets: Any) -> Any:
    """The grid in the law's own columns; None for a law without size and tokens, which is no law to plan with."""
    from smelt import fit

    own = {name: rows[name] for name in law.columns if name in (*fit.designs.SIZE_COLUMNS, "num_tokens")}
    return fit.standing_points(own, budgets) if len(own) > 1 else None


def _noise_of(rows: Mapping[str, Any], law: Any, loss_column: str, name: str) -> tuple[Any, str, Any, tuple[Any, ...]]:
    """(noise or None, where it comes from or why there is none, its interval's factors, warnings)."""
    from smelt import fit

    try:
        told = fit.noise_from_rows(rows, law, loss_column=loss_column)
    except BadInput as error:
        return None, str(error), None, ()
    factors = None if told.factor_low is None or told.factor_high is None else (told.factor_low, told.factor_high)
    return told.noise, f"{told.source} of {name}", factors, told.warnings


def of_experiment(name: str, law_name: str | None, flops_per_unit: float | None) -> Pilot:
    """The law fitted to the reference's runs, the noise of all runs and their seeds, and the grid that stands."""
    from smelt import fit
    from smelt.analysis import LOSS, share_trunks, trunks
    from smelt.fit import laws

    experiment, rows = rows_of(name)
    rows = [row for row in rows if row["outcome"] == "finished" and row["role"] in ("grid", "seed")]
    reference = experiment.grid.reference
    own = [row for row in rows if row["variant"] == reference and row["role"] == "grid"]
    if not own:
        raise BadInput(
            f"{reference} of {experiment.name} has no finished run of the grid: there is no law to plan with"
        )
    columns = ("budget_flops", "num_params", "num_tokens", "train_flops", "flops_per_token", "seed")
    law = laws.law(law_name or "flops_tokens")

    def table(kept: list[dict[str, Any]]) -> dict[str, list]:
        found: dict[str, list] = {column: [row[column] for row in kept] for column in columns}
        return found | {
            "group": [row["variant"] for row in kept],
            "pair": [row["size"] for row in kept],
            "loss_nats": [row[LOSS] for row in kept],
            **({"trunk": trunks(kept)} if share_trunks(kept) else {}),
        }

    fitted = fit.fit_surface(table(own), table(own)["loss_nats"], law)
    budgets = [row["budget_flops"] for row in own]
    noise, source, factors, warnings = _noise_of(table(rows), law, "loss_nats", experiment.name)
    return Pilot(
        law=law,
        parameters=fitted.parameters,
        flops_per_unit=flops_per_unit,
        source=f"{law.name} fitted to {len(own)} runs of {experiment.name}, {reference}",
        noise=noise,
        noise_source=source,
        noise_factors=factors,
        covered_flops=(min(budgets), max(budgets)),
        standing=_standing(law, table(own), budgets),
        warnings=(*fitted.warnings, *warnings),
    )


def with_noise(
    pilot: Pilot,
    *,
    total: float | None,
    unit: str,
    pair_correlation: float | None,
    trunk_correlation: float | None,
    seed_frac: float | None,
) -> Pilot:
    """`pilot` with what was typed of its noise in place of what it told. Raises BadInput where nothing tells it."""
    from smelt.fit import noise

    if total is None and pilot.noise is None:
        why = "" if pilot.noise_source == "given" else f" ({pilot.noise_source})"
        raise BadInput(f"nothing tells the noise of a run{why}: give --noise, such as 0.004 of ln loss")
    typed = {"pair_correlation": pair_correlation, "trunk_correlation": trunk_correlation, "seed_frac": seed_frac}
    typed = {name: value for name, value in typed.items() if value is not None}
    if total is not None:
        return dataclasses.replace(
            pilot, noise=noise.given_noise(total, unit=unit, **typed), noise_source="given", noise_factors=None
        )
    kept = {name: getattr(pilot.noise, name) for name in ("pair_correlation", "trunk_correlation", "seed_frac")}
    if not typed:
        return pilot
    return dataclasses.replace(
        pilot,
        noise=noise.given_noise(pilot.noise.total, unit=pilot.noise.unit, **(kept | typed)),
        noise_source=f"{pilot.noise_source}; {', '.join(typed)} given",
    )
