"""An experiment's rows, a fit's JSON or typed numbers in; the law and the noise that a grid is planned with out."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smelt.cli.words import say
from smelt.errors import BadInput


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What a plan starts from.

    noise          None until it is known; noise_source says in words where it comes from
    noise_factors  the 95 % interval of the noise relative to itself, None where it was given
    covered_flops  smallest and largest compute of the runs behind the law, None without any
    standing       the grid that is there, one group of it
    """

    law: Any
    parameters: dict[str, float]
    flops_per_unit: float | None
    source: str
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
    """The surface of `smelt fit --csv FILE --out FIT.json`, or of the reference in an experiment's analysis."""
    from smelt.files import read_json
    from smelt.fit import laws, noise

    found = read_json(path)
    if not isinstance(found, dict):
        raise BadInput(f"{path} holds no fit: give what smelt fit --out wrote")
    where = str(path)
    if "losses" in found:
        analysed = found["losses"].get("val_loss_nats") or {"groups": {}}
        where = f"{path}, {found['reference']}"
        found = (analysed["groups"].get(found["reference"]) or {}).get("surface") or {}
    if not {"law", "parameters", "noise_log"} <= found.keys():
        raise BadInput(f"{where} holds no fitted surface: fit one (smelt fit), or give --law and --parameters")
    law = laws.law(found["law"]["name"])
    size = next((name for name in ("flops_per_token", "num_params") if name in law.columns), None)
    covered = found.get("column_ranges", {}).get(f"{size} x num_tokens")
    k = 1.0 if size == "flops_per_token" else flops_per_unit
    level = found["noise_log"]
    return Pilot(
        law=law,
        parameters=dict(found["parameters"]),
        flops_per_unit=flops_per_unit,
        source=f"the fit in {where}",
        noise=None if level is None else noise.given_noise(level),
        noise_source=f"residuals of the fit in {where}; pairs are taken to share none",
        covered_flops=None if covered is None or k is None else (covered[0] * k, covered[1] * k),
    )


def of_experiment(name: str, law_name: str | None, flops_per_unit: float | None) -> Pilot:
    """The law fitted to the reference's runs, the noise of all runs and their seeds, and the grid that stands."""
    from smelt import experiment as experiments
    from smelt import fit
    from smelt.analysis import LOSS
    from smelt.fit import laws

    experiment = experiments.load(name)
    rows = [row for row in _rows(experiment) if row["outcome"] == "finished" and row["role"] in ("grid", "seed")]
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
        }

    fitted = fit.fit_surface(table(own), table(own)["loss_nats"], law)
    budgets = [row["budget_flops"] for row in own]
    warnings, estimated, source = tuple(fitted.warnings), None, ""
    try:
        estimated = fit.noise_from_rows(table(rows), law)
        source = f"{estimated.source} of {experiment.name}"
        warnings += estimated.warnings
    except BadInput as error:
        source = str(error)
    factors = None
    if estimated is not None and estimated.factor_low is not None and estimated.factor_high is not None:
        factors = (estimated.factor_low, estimated.factor_high)
    return Pilot(
        law=law,
        parameters=fitted.parameters,
        flops_per_unit=flops_per_unit,
        source=f"{law.name} fitted to {len(own)} runs of {experiment.name}, {reference}",
        noise=None if estimated is None else estimated.noise,
        noise_source=source,
        noise_factors=factors,
        covered_flops=(min(budgets), max(budgets)),
        standing=fit.standing_points(table(own), budgets),
        warnings=warnings,
    )


def _rows(experiment: Any) -> list[dict[str, Any]]:
    from smelt import committed, ledger

    rows = ledger.read_folder(experiment.folder)
    kept = committed.folder_of(experiment.name) / f"{experiment.name}.csv"
    if not rows and kept.exists():
        say(f"no run of {experiment.name} here: reading the committed rows {kept}")
        rows = ledger.read_csv(kept)
    if not rows:
        raise BadInput(f"{experiment.name} has no finished run: train a pilot, or give --law, --parameters and --noise")
    return rows


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
