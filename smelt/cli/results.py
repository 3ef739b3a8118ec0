"""Verbs on what was trained and logged: compare, report, export, merge, import, repro, diff."""

from glob import escape
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from smelt import terminal
from smelt.cli.fits import Reading, reading_lines
from smelt.cli.words import Json, Name, Tables, at_least, print_json, rows_of, status_of
from smelt.errors import EXIT_DONE, BadInput


def compare(
    a: Annotated[Positional[str], arg(metavar="A", help="a run id (its beginning), or EXPERIMENT/VARIANT")],
    b: Annotated[Positional[str], arg(metavar="B", help="the reference: a run id, or EXPERIMENT/VARIANT")],
    *,
    json: Json = False,
) -> int:
    """Loss of A minus loss of B, paired by document: in nats, standard errors and seed spreads.

    Two groups are compared cell by cell (equal budget, size and seed) and in the mean. e.g. smelt compare
    quickstart/loop_middle quickstart/baseline; smelt compare 0d3bd1 812d6f
    """
    from smelt import compare as comparing
    from smelt.analysis import seed_spread

    side_a, side_b = _side(a), _side(b)
    spread_found = seed_spread(side_b.all_rows)
    spread, freedom = spread_found["sd"], spread_found["degrees_of_freedom"]
    if side_a.is_group != side_b.is_group:
        raise BadInput(f"{a} and {b}: give two runs or two groups, not one of each")
    matched = comparing.pairs(side_a.rows, side_b.rows) if side_a.is_group else [(side_a.rows[0], side_b.rows[0])]
    found = []
    for row_a, row_b in matched:
        difference = comparing.compare_runs(
            row_a, side_a.folder / row_a["run_id"], row_b, side_b.folder / row_b["run_id"]
        )
        found.append(comparing.as_row(row_a, row_b, difference, spread))
    mean = comparing.mean_difference(found)
    result = {"pairs": found, "mean": mean, "seed_spread_nats": spread, "seed_spread_degrees_of_freedom": freedom}
    if json:
        print_json(result)
        return EXIT_DONE
    signed = terminal.signed
    rows = [
        [
            f"{item['budget_flops']:.3g}",
            str(item["size"]),
            str(item["seed"]),
            signed(item["difference_nats"]),
            signed(item["standard_error_nats"]).lstrip("+"),
            signed(item["standard_errors"], 1),
            signed(item["seed_spreads"], 1),
            signed(item["train_difference_nats"]),
        ]
        for item in found
    ]
    print(
        terminal.table(
            ["budget", "size", "seed", "A - B, nats", "s.e.", "in s.e.", "in seed spreads", "training"], rows
        )
    )
    print(f"\nmean over {len(found)} pairs: {signed(mean['difference_nats'])} nats (negative: A is better)")
    if mean["standard_error_nats"] is not None:
        print(f"standard error over pairs: {mean['standard_error_nats']:.4f}")
    if spread is None:
        print("seed spread: unknown, no cell was trained with two seeds")
    else:
        print(f"seed spread, pooled over cells: {spread:.4f} nats ({freedom} degrees of freedom)")
    return EXIT_DONE


class _Side:
    """A group of rows or one row, and the folder of their runs."""

    def __init__(
        self, rows: list[dict[str, Any]], all_rows: list[dict[str, Any]], folder: Path, is_group: bool
    ) -> None:
        self.rows, self.all_rows, self.folder, self.is_group = rows, all_rows, folder, is_group


def _side(word: str) -> _Side:
    from smelt import ledger
    from smelt.experiment import runs_root

    if "/" in word:
        name, _, variant = word.partition("/")
        folder = runs_root() / name
        rows = ledger.read_folder(folder)
        chosen = [row for row in rows if row["variant"] == variant and row["role"] in ("grid", "control")]
        if not chosen:
            known = ", ".join(sorted({row["variant"] for row in rows})) or "none trained"
            raise BadInput(f"no finished run of group {variant!r} in {folder}: known are {known}")
        return _Side(chosen, rows, folder, True)
    row_path = _run_folder(word) / "row.json"
    if not row_path.exists():
        raise BadInput(f"run {row_path.parent.name} has no row: it has not finished (smelt status)")
    rows = ledger.read_folder(row_path.parent.parent)
    return _Side([ledger.read_row(row_path.parent)], rows, row_path.parent.parent, False)


def _run_folder(word: str) -> Path:
    from smelt.experiment import runs_root

    found = sorted(path.parent for path in runs_root().glob(f"*/{escape(word)}*/spec.json"))
    if not found:
        raise BadInput(f"no run id begins with {word!r} under {runs_root()}: see smelt status NAME")
    if len({path.name for path in found}) > 1:
        raise BadInput(
            f"{word!r} begins several run ids ({', '.join(path.name for path in found[:3])}): give more of it"
        )
    return found[0]


def report(
    name: Name,
    *,
    out: Annotated[Path | None, arg(help="the page; runs/NAME/report.html where left out")] = None,
    figures: Annotated[
        Path | None, arg(help="folder for the figures as SVG and PDF, and the rows as CSV and parquet")
    ] = None,
    tables: Tables = None,
    draws: Annotated[int, arg(help="bootstrap draws")] = 1000,
) -> int:
    """Write one self-contained HTML page: the answer, the figures, the tables, what failed and why.

    e.g. smelt report quickstart; smelt report quickstart --out page.html --figures figures --tables tables
    """
    from smelt import analysis, committed
    from smelt.report import page

    at_least("--draws", draws, 2)
    experiment, rows = rows_of(name)
    analysed = analysis.analyse(rows, experiment.grid.reference, draws=draws)
    kept = committed.folder_of(experiment.name) / f"{experiment.name}.csv"
    prediction = committed.read(experiment.name)[2] if kept.exists() else None
    target = out or experiment.folder / "report.html"
    print(
        page.write_experiment(
            experiment,
            rows,
            analysed,
            target,
            status_of=lambda cell: status_of(experiment, cell),
            prediction=prediction,
            files=figures,
            tables_folder=tables,
        )
    )
    return EXIT_DONE


def export(
    name: Name,
    *,
    out: Annotated[Path, arg(help="a .csv or .parquet file")],
    merge_with: Annotated[tuple[Path, ...], arg(help="ledgers of other machines (.csv, .parquet) to merge in")] = (),
) -> int:
    """Write the rows of an experiment as one table. e.g. smelt export quickstart --out rows.parquet"""
    from smelt import ledger

    _, rows = rows_of(name)
    merged = ledger.merge([rows, *(ledger.read_table(path) for path in merge_with)])
    ledger.export(merged, out)
    print(f"{len(merged)} rows in {out}")
    return EXIT_DONE


def merge(
    tables: Annotated[
        Positional[tuple[Path, ...]], arg(metavar="FILE", help="ledgers written by smelt export (.csv, .parquet)")
    ],
    *,
    out: Annotated[Path, arg(help="a .csv or .parquet file")],
) -> int:
    """Merge ledgers of several machines; a run that stands in two is kept once, or refused where they disagree.

    e.g. smelt merge laptop.csv server.csv --out all.csv
    """
    from smelt import ledger

    merged = ledger.merge(ledger.read_table(path) for path in tables)
    ledger.export(merged, out)
    print(f"{len(merged)} rows in {out}")
    return EXIT_DONE


def import_table(
    table: Annotated[Positional[Path], arg(metavar="FILE", help="a .csv, .tsv, .parquet or .jsonl of anybody's runs")],
    *,
    reading: OmitArgPrefixes[Reading] = Reading(),  # noqa: B008
    out: Annotated[Path, arg(help="a .csv file under our names")],
    json: Json = False,
) -> int:
    """Check anybody's table and write its columns under our names, ready for smelt fit --csv.

    e.g. smelt import theirs.jsonl --columns num_params=N num_tokens=D loss_nats=loss --out ours.csv
    """
    from smelt import foreign
    from smelt.files import write_text

    if out.suffix != ".csv":
        raise BadInput(f"cannot import to {out.name!r}: give a name that ends in .csv")
    if out.resolve() == table.resolve():
        raise BadInput(f"{out} is the table itself: give another name, its other columns would be lost")
    found = reading.read(table)
    write_text(out, foreign.to_csv(found))
    told = {
        "out": str(out),
        "rows": list(found.rows),
        "columns": [*found.columns, *found.texts],
        "loss": found.loss,
        "loss_unit": found.loss_unit,
        "notes": list(found.notes),
        "left_out": list(found.left_out),
        "warnings": [{"code": flag.code, "message": flag.message} for flag in found.warnings],
    }
    if json:
        print_json(told)
        return EXIT_DONE
    lines = [f"{len(found.rows)} rows in {out}", *reading_lines(table, len(found.rows), told)]
    print("\n".join([*lines, *(f"warning ({flag['code']}): {flag['message']}" for flag in told["warnings"])]))
    return EXIT_DONE


def repro(
    run: Annotated[Positional[str], arg(metavar="RUN", help="a run id, or its beginning")], *, json: Json = False
) -> int:
    """Print the command and the environment that made a run, and what differs here today.

    e.g. smelt repro 0d3bd1
    """
    from smelt.files import read_json
    from smelt.train.fingerprint import provenance

    folder = _run_folder(run)
    made = read_json(folder / "fingerprint.json")
    if not isinstance(made, dict) or "corpus_fingerprint" not in made:
        raise BadInput(f"{folder / 'fingerprint.json'} names no corpus_fingerprint: it is damaged, restore it")
    today = provenance(made["corpus_fingerprint"])
    # Threads are set by the launcher for each worker, so this process's own say nothing.
    differs = {
        key: {"then": made[key], "now": today[key]} for key in made if key != "threads" and made[key] != today.get(key)
    }
    command = f"smelt run {folder.parent.name} --only {folder.name}"
    if json:
        print_json({"command": command, "environment": made, "differs": differs})
        return EXIT_DONE
    print(command)
    for key, value in made.items():
        note = f"   (here: {today[key]})" if key in differs else ""
        print(f"  {key} {value}{note}")
    return EXIT_DONE


def diff(
    a: Annotated[Positional[str], arg(metavar="A", help="a run id, or its beginning")],
    b: Annotated[Positional[str], arg(metavar="B", help="a run id, or its beginning")],
    *,
    json: Json = False,
) -> int:
    """The fields in which two runs' specs differ. e.g. smelt diff 0d3bd1 812d6f"""
    from smelt import spec
    from smelt.files import read_json

    flat_a, flat_b = (spec.flatten(spec.run_from_dict(read_json(_run_folder(word) / "spec.json"))) for word in (a, b))
    differing = {key: [flat_a[key], flat_b[key]] for key in flat_a if flat_a[key] != flat_b[key]}
    if json:
        print_json(differing)
    else:
        print(terminal.table(["field", a, b], [[key, str(x), str(y)] for key, (x, y) in differing.items()]))
    return EXIT_DONE
