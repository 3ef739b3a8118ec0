"""Verbs on what was trained and logged: compare, report, export, merge, import, repro, diff."""

from glob import escape
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from smelt import terminal
from smelt.cli.fits import Reading, reading_lines
from smelt.cli.words import Json, Name, Tables, at_least, print_json, rows_of, status_of
from smelt.errors import EXIT_DONE, BadInput

# What the launcher sets for a run: this process's own say nothing.
OF_THE_LAUNCH = ("threads", "mesh", "accumulate")


def compare(
    sides: Annotated[
        Positional[tuple[str, ...]], arg(metavar="SIDE", help="run ids (their beginnings), or EXPERIMENT/VARIANT")
    ],
    *,
    to: Annotated[
        tuple[str, ...], arg(help="what they are compared with: one for all, or one each; the last SIDE where left out")
    ] = (),
    md: Annotated[bool, arg(help="print the table as markdown")] = False,
    json: Json = False,
) -> int:
    """Loss of A minus loss of B, paired by document: in nats, standard errors and seed spreads, with all that moved.

    Two groups are compared cell by cell (equal budget, size and seed) and in the mean; several at once in the mean
    alone, a row each. e.g. smelt compare quickstart/loop_middle quickstart/baseline; smelt compare 0d3bd1 812d6f; smelt
    compare siblings/loop_all siblings/dense --to siblings/baseline --md
    """
    from smelt import compare as comparing
    from smelt.analysis import seed_spread

    if not to:
        if len(sides) != 2:
            raise BadInput(f"{len(sides)} sides and no --to: give two sides, or what they are compared with as --to")
        sides, to = sides[:1], sides[1:]
    if not sides:
        raise BadInput("--to stands alone: give at least one side to compare with it")
    if len(to) not in (1, len(sides)):
        raise BadInput(f"--to names {len(to)} for {len(sides)} sides: give one for all, or one each")
    found = []
    for a, b in zip(sides, to * len(sides) if len(to) == 1 else to, strict=True):
        side, reference = _side(a), _side(b)
        found.append(comparing.compare_sides(side, reference, seed_spread(reference.all_rows)))
    if json:
        print_json(found[0] if len(found) == 1 else {"comparisons": found})
        return EXIT_DONE
    header, rows, others = (_pairs_table if len(found) == 1 else _groups_table)(found)
    print(terminal.table(header, rows, md))
    print("\n" + "\n".join(_compare_notes(found, others)))
    return EXIT_DONE


def _measured(item: dict[str, Any]) -> list[str]:
    signed = terminal.signed
    return [
        signed(item["difference_nats"]),
        signed(item["standard_error_nats"]).lstrip("+"),
        signed(item["standard_errors"], 1),
        signed(item["seed_spreads"], 1),
    ]


MEASURED = ["A - B, nats", "s.e.", "in s.e.", "in seed spreads"]


def _pairs_table(found: list[dict[str, Any]]) -> tuple[list[str], list[list[str]], list[str]]:
    """A row a pair, and their mean."""
    from smelt.compare import moved_table

    (only,) = found
    pairs = only["pairs"]
    rows = [
        [
            f"{pair['budget_flops']:.3g}",
            str(pair["size"]),
            str(pair["seed"]),
            *_measured(pair),
            terminal.signed(pair["train_difference_nats"]),
        ]
        for pair in pairs
    ]
    of_rows = [[pair] for pair in pairs]
    if len(pairs) > 1:
        rows.append(["mean", "", "", *_measured(only["mean"]), ""])
        of_rows.append(pairs)
    header, moved, others = moved_table(of_rows)
    rows = [[*row, *cells] for row, cells in zip(rows, moved, strict=True)]
    return ["budget", "size", "seed", *MEASURED, "training", *header], rows, others


def _groups_table(found: list[dict[str, Any]]) -> tuple[list[str], list[list[str]], list[str]]:
    """A row a comparison: the mean over its pairs."""
    from smelt.compare import moved_table

    header, moved, others = moved_table([item["pairs"] for item in found])
    rows = [
        [item["a"], item["b"], str(item["mean"]["num_pairs"]), *_measured(item["mean"]), *cells]
        for item, cells in zip(found, moved, strict=True)
    ]
    return ["A", "B", "pairs", *MEASURED, *header], rows, others


def _compare_notes(found: list[dict[str, Any]], others: list[str]) -> list[str]:
    """What a reader of the table has to know, a line each."""
    lines = ["Negative: A is better. Amounts are what A has more than B; counts and parts read B -> A."]
    if any(name in pair["moved"] for item in found for pair in item["pairs"] for name in ("e_real", "e_eq", "e_comp")):
        lines.append(
            "E_real, E_eq and E_comp are of the loop block alone; all layers of an unlooped model are its block."
        )
    means = [item["mean"] for item in found]
    if any(mean["num_pairs"] > 1 for mean in means):
        shared = ", those of one trunk as one" if any(m["num_units"] < m["num_pairs"] for m in means) else ""
        lines.append(f"s.e. of a mean: over its pairs{shared} and over documents, added in squares.")
    if all(mean["standard_error_over_documents_nats"] is None for mean in means):
        lines.append("No error over documents: the run folders, or more than one document, are not at hand.")
    for item in {item["seed_spread_nats"]: item for item in found}.values():
        if item["seed_spread_nats"] is None:
            lines.append("Seed spread: unknown, no cell was trained with two seeds.")
        else:
            freedom = item["seed_spread_degrees_of_freedom"]
            lines.append(
                f"Seed spread, pooled over cells: {item['seed_spread_nats']:.4f} nats ({freedom} degrees of freedom)."
            )
    if others:
        lines.append(f"Also moved: {', '.join(others)}.")
    return lines


def _side(word: str) -> Any:
    """A group of runs, or one. Where nothing of a group was trained here its committed rows are read."""
    from smelt import committed, ledger
    from smelt.compare import Side
    from smelt.experiment import runs_root

    if "/" in word:
        name, _, variant = word.partition("/")
        folder = runs_root() / name
        rows = ledger.read_folder(folder)
        kept = committed.folder_of(name) / f"{name}.csv"
        if not rows and kept.exists():
            rows, folder = ledger.read_csv(kept), None
        chosen = [row for row in rows if row["variant"] == variant and row["role"] in ("grid", "control")]
        if not chosen:
            known = ", ".join(sorted({row["variant"] for row in rows})) or "none trained"
            raise BadInput(f"no finished run of group {variant!r} in {folder or kept}: known are {known}")
        return Side(label=word, rows=chosen, all_rows=rows, folder=folder, is_group=True)
    row_path = _run_folder(word) / "row.json"
    if not row_path.exists():
        raise BadInput(f"run {row_path.parent.name} has no row: it has not finished (smelt status)")
    rows = ledger.read_folder(row_path.parent.parent)
    row = ledger.read_row(row_path.parent)
    return Side(label=row["run_id"], rows=[row], all_rows=rows, folder=row_path.parent.parent, is_group=False)


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
            status_of=status_of(experiment),
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
    today = provenance(made["corpus_fingerprint"], _own_parts(folder))
    differs = {
        key: {"then": made[key], "now": today.get(key)}
        for key in made
        if key not in OF_THE_LAUNCH and made[key] != today.get(key)
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


def _own_parts(folder: Path) -> tuple[Any, ...]:
    """A run's parts of the user's own as its experiment's file has them today; none where it no longer has the run."""
    from smelt import experiment as experiments
    from smelt.files import read_json

    if "own" not in read_json(folder / "spec.json")["arch"]:
        return ()
    try:
        return experiments.load(folder.parent.name).grid.cell(folder.name).run.arch.own
    except BadInput:
        return ()


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
