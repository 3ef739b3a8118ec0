"""Verbs on tables that are no grid of finished runs: envelope (training curves), link (scores against losses).

The numbers come from `smelt.fit`, what is shown from `smelt.report`; a table is read as `smelt fit` reads it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from smelt.cli.fits import DRAWS, Numbers, Reading, flat, reading_lines, shown, warning_lines
from smelt.cli.words import Json, Tables, at_least, print_json, say
from smelt.errors import EXIT_DONE, BadInput

Csv = Annotated[Path, arg(help="the table: .csv, .tsv, .parquet or .jsonl")]
Out = Annotated[Path | None, arg(help="also write it all as JSON")]
Drawn = Annotated[Path | None, arg(help="also draw it: a .svg, .pdf or .png file")]
AS_IT_IS = Reading()
SCORES = {"accuracy": "falling", "error": "rising"}  # with the loss
# An envelope takes the lowest of runs that agree in size and tokens, and every ratio of the two, by itself.
NO_MATTER = {"repeated_cells", "narrow_ratio"}
CURVE_POINTS = 81
MARGIN = 0.15  # of the losses seen, that a link is drawn beyond them


def envelope(
    *,
    csv: Csv,
    reading: OmitArgPrefixes[Reading] = AS_IT_IS,
    skip_tokens: Annotated[float, arg(help="leave out points before so many tokens: warm-up")] = 0.0,
    finished_points: Annotated[bool, arg(help="every point is a finished run: no rate was decaying there")] = False,
    draws: Annotated[int, arg(help="bootstrap draws of whole runs")] = DRAWS,
    seed: Annotated[int, arg(help="of the draws")] = 0,
    out: Out = None,
    tables: Tables = None,
    figure: Drawn = None,
    json: Json = False,
) -> int:
    """Approach 1: exponents of optimal size, tokens and loss along the envelope of training curves, with intervals.

    A row is a point of a run's curve. Laws go through hand-overs, where two sizes have one loss; those through every
    point of the envelope are given too, and are biased. e.g. smelt envelope --csv curves.csv --columns run_id=run
    num_params=N num_tokens=tokens loss_nats=loss --flops 6ND; smelt envelope --csv curves.parquet --columns run_id=id
    num_params=N num_tokens=D train_flops=gflops*1e9 loss_nats=loss --skip-tokens 1e8 --figure envelope.svg
    """
    from smelt import fit
    from smelt.report import curves as written

    at_least("--draws", draws, 2)
    at_least("--skip-tokens", skip_tokens, 0)
    _figure_name(figure)
    if reading.best_of:
        raise BadInput("--best-of says nothing about curves: an envelope is the lowest of them; leave it out")
    table = reading.read(csv)
    for name in ("run_id", "num_params", "num_tokens"):
        if name not in {**table.columns, **table.texts}:
            raise BadInput(f"{csv} has no column named {name}: a point of a curve has one; add --columns {name}=COLUMN")
    if "group" in table.texts:
        raise BadInput("an envelope is of one family: leave group out, and keep one with --where COLUMN=VALUE")
    loss = _loss(table)
    if "train_flops" not in table.columns:
        raise BadInput(f"the compute of {csv} is not known: add train_flops=COLUMN to --columns, or --flops 6ND")
    options = {"skip_tokens": skip_tokens, "finished_points": finished_points, "draws": draws, "seed": seed}
    found = fit.envelope(
        table.texts["run_id"],
        table.columns["num_params"],
        table.columns["num_tokens"],
        loss,
        train_flops=table.columns["train_flops"],
        **options,
    )
    flags = [*(flag for flag in table.warnings if flag.code not in NO_MATTER), *found.warnings]
    result = fit.jsonable(
        {
            "content": "an envelope of training curves",
            "table": _table(table),
            "options": options,
            "envelope": found,
            "warnings": flags,
        }
    )
    made = {"exponents": written.exponents(result["envelope"]), "handovers": written.handovers(result["envelope"])}
    if figure is not None:
        from smelt.report import curve_figures

        drawn = curve_figures.envelope(result, _curves(table, loss, found.runs_left_out), _label(table))
        _draw(drawn, figure)
    return _tell(result, made, csv, len(table.rows), out, tables, json)


def link(
    *,
    csv: Csv,
    reading: OmitArgPrefixes[Reading] = AS_IT_IS,
    chance: Annotated[
        float | None, arg(help="accuracy of guessing, 0.25 of four choices; fitted where left out")
    ] = None,
    at: Annotated[Numbers, arg(help="losses at which the score is wanted")] = (),
    draws: Annotated[int, arg(help="bootstrap draws by run")] = DRAWS,
    seed: Annotated[int, arg(help="of the draws")] = 0,
    out: Out = None,
    tables: Tables = None,
    figure: Drawn = None,
    json: Json = False,
) -> int:
    """Link benchmark scores to losses by a sigmoid, and give the score that goes with a loss, with 95 % intervals.

    A row is a run, or a checkpoint where run_id is named: checkpoints of a run are resampled together. In place of
    accuracy= give error=, which is 1 - accuracy. e.g. smelt link --csv runs.csv --columns loss_nats=loss accuracy=acc
    --chance 0.25 --at 2.4 2.2; smelt link --csv runs.csv --columns bits_per_byte=bpb error=err run_id=run --figure
    link.svg
    """
    from smelt import fit
    from smelt.report import curves as written

    at_least("--draws", draws, 2)
    _figure_name(figure)
    if chance is not None and not 0 <= chance < 1:
        raise BadInput(f"--chance is {chance:g}: give the accuracy of guessing, 0 to below 1 (0.25 of four choices)")
    table = reading.read(csv)
    loss = _loss(table)
    scores = [name for name in SCORES if name in table.columns]
    if len(scores) != 1 or scores[0] == table.loss:
        has = f"{table.loss} and {', '.join(scores)}" if len(scores) > 1 else f"{table.loss} alone"
        raise BadInput(f"a link is of one score to a loss: name accuracy=COLUMN or error=COLUMN beside it; have {has}")
    score = scores[0]
    base = chance if chance is None or score == "accuracy" else 1 - chance
    values = table.columns[score]
    units = table.texts.get("unit", table.texts.get("run_id"))
    found = fit.fit_link(loss, values, units=units, chance=base, direction=SCORES[score], draws=draws, seed=seed)
    answers = [(asked, fit.predict_accuracy(found, asked, seed=seed)) for asked in flat(at)]
    flags = [*table.warnings, *found.warnings, *(flag for _, answer in answers for flag in answer.warnings)]
    result = fit.jsonable(
        {
            "content": "a link of scores to losses",
            "table": _table(table),
            "options": {"chance": chance, "draws": draws, "seed": seed},
            "score": score,
            "link": found,
            "explained_frac": 1 - float(found.residuals @ found.residuals / ((values - values.mean()) ** 2).sum()),
            "predictions": [{"loss": asked, **fit.jsonable(answer)} for asked, answer in answers],
            "runs": {"loss": loss, score: values},
            "curve": _link_curve(found, flat(at)),
            "warnings": flags,
        }
    )
    made = {"link": written.link(result["link"], score, table.loss_unit, result["explained_frac"])}
    if answers:
        made["predicted"] = written.predicted(result["predictions"], score)
    if figure is not None:
        from smelt.report import curve_figures

        _draw(curve_figures.link(result, _label(table)), figure)
    return _tell(result, made, csv, len(table.rows), out, tables, json)


def _loss(table: Any) -> Any:
    if table.loss is None:
        raise BadInput(
            f"{table.path} has no loss named: add loss_nats=COLUMN (or bits_per_byte, loss:NAME) to --columns"
        )
    return table.columns[table.loss]


def _label(table: Any) -> str:
    return f"{table.loss} ({table.loss_unit})"


def _table(table: Any) -> dict[str, Any]:
    names = ("sha256", "loss", "loss_unit", "rows", "left_out", "notes", "settings")
    return {"file": str(table.path), **{name: getattr(table, name) for name in names}}


def _curves(table: Any, loss: Any, left_out: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By run its size, and compute and loss along it."""
    import numpy as np

    runs = np.array(table.texts["run_id"])
    found = {}
    for run in dict.fromkeys(table.texts["run_id"]):
        if run not in left_out:
            rows = np.flatnonzero(runs == run)
            rows = rows[np.argsort(table.columns["num_tokens"][rows])]
            columns = {"compute_flops": table.columns["train_flops"][rows], "loss": loss[rows]}
            found[run] = {"num_params": float(table.columns["num_params"][rows[0]]), **columns}
    return found


def _link_curve(found: Any, asked: Sequence[float]) -> dict[str, Any]:
    """The link over the losses seen and asked, and the 95 % band of its expected score, for drawing."""
    import numpy as np

    from smelt import fit

    low, high = min(found.loss_range[0], *asked, np.inf), max(found.loss_range[1], *asked, 0.0)
    margin = MARGIN * (high - low)
    at = np.linspace(max(low - margin, 0.5 * low), high + margin, CURVE_POINTS)
    expected = [fit.predict_accuracy(found, float(loss)).expected for loss in at]
    band = {name: [getattr(estimate, name) for estimate in expected] for name in ("value", "low", "high")}
    return {"loss": at, **band}


def _figure_name(path: Path | None) -> None:
    if path is not None and path.suffix not in (".svg", ".pdf", ".png"):
        raise BadInput(f"cannot draw to {path.name!r}: give a name that ends in .svg, .pdf or .png")


def _draw(figure: Any, path: Path) -> None:
    from smelt.files import write_bytes
    from smelt.report import style

    write_bytes(path, style.as_file(figure, path.suffix[1:]))


def _tell(
    result: Mapping[str, Any],
    made: Mapping[str, Any],
    path: Path,
    num_rows: int,
    out: Path | None,
    folder: Path | None,
    json: bool,
) -> int:
    if out is not None:
        from smelt.files import write_json

        write_json(out, result)
    if folder is not None:
        from smelt.report import tables

        say(f"{len(tables.write(made, folder))} files in {folder}")
    if json:
        print_json(result)
        return EXIT_DONE
    lines = reading_lines(path, num_rows, result["table"])
    for table in made.values():
        lines += ["", shown(table)] if table.rows else []
    print("\n".join([*lines, *warning_lines(result["warnings"])]))
    return EXIT_DONE
