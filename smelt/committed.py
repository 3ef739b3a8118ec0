"""Rows of a finished experiment <-> what is committed of it: its rows, their analysis and its prediction.

    fits/<name>.csv               rows, through the ledger
    fits/<name>.json              `analysis.analyse` of them
    fits/<name>.prediction.json   what was predicted before the predicted runs were trained

`rederive` makes the second and third again from the first and lists every number that comes out another. On the machine
that made them all come out the same; another processor rounds otherwise, and a flat minimum passes on more than the
last bit. Ends of intervals are percentiles of refits: one refit more or fewer that converges moves them by a rank.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from smelt import analysis, ledger, prediction
from smelt.errors import BadInput
from smelt.experiment import ROOT
from smelt.files import read_json, write_json
from smelt.ledger import Row

TOLERANCE = 1e-6  # relative, of every number but those below; measured: another instruction set moves K by 4e-8
NOTHING = 1e-8  # absolute: residuals, differences of losses and savings that are smaller are rounding
# Absolute, of what is counted in standard errors or in per cent: measured, losses times (1 + 2e-16) move them by 2e-7.
COUNTED, COUNTED_TOLERANCE = ("influence", "size_bias_percent"), 1e-6
DRAWN_TOLERANCE = 0.02  # relative to the number or to its interval's width, of what is made of draws
DRAWN = ("low", "high", "standard_error", "unreached_frac", "share_positive", "crossing_frac", "joint_p_value")
# What is left of a gradient that is zero, and how many rounds and starts a solver took: rounding, and no result.
ROUNDING = ("scaled_gradient", "newton_decrement", "delta_rule", "num_starts_agreeing")


def fits_folder() -> Path:
    """Where results are committed to: `fits/` of the working folder, or SMELT_FITS."""
    return Path(os.environ.get("SMELT_FITS", "fits"))


def folder_of(name: str) -> Path:
    """Where a committed result lies: in `fits_folder`, else beside the package."""
    return next((place for place in (fits_folder(), ROOT / "fits") if (place / f"{name}.csv").exists()), fits_folder())


def commit(
    name: str,
    rows: Sequence[Row],
    reference: str,
    *,
    predicted: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Write the committed files of `name` and return the analysis. Raises BadInput without a finished grid run."""
    folder = folder or fits_folder()
    ordered = sorted(
        rows, key=lambda row: (row["budget_flops"], row["size"], row["variant"], row["seed"], row["run_id"])
    )
    result = analysis.analyse(ordered, reference, draws=draws, seed=seed)
    ledger.export(ordered, folder / f"{name}.csv")
    write_json(folder / f"{name}.json", {"experiment": name, **result})
    if predicted is not None:
        write_json(folder / f"{name}.prediction.json", dict(predicted))
    return result


def names(folder: Path | None = None) -> list[str]:
    """The results that are committed."""
    return sorted(path.stem for path in (folder or fits_folder()).glob("*.csv"))


def read(name: str, folder: Path | None = None) -> tuple[list[Row], dict[str, Any], dict[str, Any] | None]:
    """(rows, analysis, prediction or None). Raises BadInput for an unknown name."""
    folder = folder or folder_of(name)
    if not (folder / f"{name}.csv").exists():
        raise BadInput(f"no committed result {name!r} in {folder}: known are {', '.join(names(folder)) or 'none'}")
    path = folder / f"{name}.prediction.json"
    predicted = read_json(path) if path.exists() else None
    return ledger.read_csv(folder / f"{name}.csv"), read_json(folder / f"{name}.json"), predicted


def rederive(name: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """Every value of a committed result that its committed rows do not give again; empty where all do."""
    rows, kept, predicted = read(name, folder)
    settings = kept["settings"]
    again = analysis.analyse(rows, kept["reference"], **settings)
    found = list(differences({key: kept[key] for key in kept if key != "experiment"}, again, name))
    if predicted is not None:
        again = prediction.rederived(predicted, rows)
        kept = {key: predicted[key] for key in predicted if key not in ("experiment", "written_at")}
        found += differences(kept, again, f"{name}.prediction")
    return found


def differences(kept: Any, again: Any, path: str, around: Mapping | None = None) -> Iterator[dict[str, Any]]:
    """Every value of a JSON result that came out another when it was made again, by its path; rounding is none."""
    if isinstance(kept, Mapping) and isinstance(again, Mapping):
        for key in [*kept, *(key for key in again if key not in kept)]:
            if key not in kept or key not in again:
                yield {"path": f"{path}.{key}", "committed": kept.get(key), "rederived": again.get(key)}
            elif key not in ROUNDING:
                yield from differences(kept[key], again[key], f"{path}.{key}", kept)
    elif isinstance(kept, list) and isinstance(again, list) and len(kept) == len(again):
        for index, (one, other) in enumerate(zip(kept, again, strict=True)):
            yield from differences(one, other, f"{path}[{index}]", around)
    elif not _agree(kept, again, path, around or {}):
        yield {"path": path, "committed": kept, "rederived": again}


def _agree(kept: Any, again: Any, path: str, around: Mapping) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (kept, again))
    if not numbers:
        return kept == again
    allowed = NOTHING + TOLERANCE * max(abs(kept), abs(again))
    if any(f".{name}" in path for name in COUNTED):
        allowed += COUNTED_TOLERANCE
    if path.rpartition(".")[2].split("[")[0] in DRAWN:
        low, high = around.get("low"), around.get("high")
        width = high - low if isinstance(low, float) and isinstance(high, float) else 0.0
        allowed = DRAWN_TOLERANCE * max(abs(kept), width)
    return abs(kept - again) <= allowed
