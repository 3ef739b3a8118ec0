"""Verbs that fit laws and ask the fits: fit, predict, savings.

A fit is of an experiment (NAME) or of anybody's table (FIT.json, which `smelt fit --csv ... --out FIT.json` writes);
both are asked in the same words. The numbers come from `smelt.fit`, the tables from `smelt.report`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from smelt import terminal
from smelt.cli.words import Json, Tables, assignments, at_least, print_json, rows_of, say
from smelt.errors import EXIT_DONE, EXIT_FAILED, BadInput

Words = UseAppendAction[tuple[tuple[str, ...], ...]]  # an option's words, all of them where it is given again
Numbers = UseAppendAction[tuple[tuple[float, ...], ...]]
Asked = Annotated[
    Positional[str], arg(metavar="NAME|FIT.json", help="an experiment, or a fit that smelt fit --csv --out wrote")
]
LossColumn = Annotated[
    str | None,
    arg(
        help="another loss of an experiment: bits_per_byte, or a domain of its validation (code, or val_loss_nats.code)"
    ),
]
Currency = Annotated[str, arg(help="flops, secs, bytes, or flops+inference:TOKENS (training and TOKENS to serve)")]
CURRENCIES = {"secs": "train_secs", "bytes": "stored_bytes"}
BYTES_A_PARAMETER = 2  # of an experiment's stored model: in a saving it cancels
DRAWS = 1000
TABLE_ENDS = (".csv", ".tsv", ".parquet", ".jsonl")
SHOWN = 5  # differences of --again that are printed


@dataclass(frozen=True, kw_only=True)
class Reading:
    """how a table of anybody's runs is read (.csv, .tsv, .parquet, .jsonl)"""

    columns: Annotated[
        Words,
        arg(
            help="OURS=THEIRS: num_params=N num_tokens=D train_flops=C loss_nats=loss (or loss_bits, bits_per_byte, "
            "error, loss:NAME); THEIRS may be COLUMN*NUMBER. Where left out: the columns that have our names"
        ),
    ] = ()
    where: Annotated[
        Words, arg(help="keep rows with COLUMN<VALUE (<=, >, >=, =, !=; =A|B for either), by the file's own names")
    ] = ()
    flops: Annotated[
        str | None, arg(help="6ND: makes the one of train_flops, num_params and num_tokens that is missing")
    ] = None
    best_of: Annotated[Words, arg(help="keep the lowest loss of rows that agree in these: num_params num_tokens")] = ()
    skip_bad: Annotated[bool, arg(help="leave out and list rows with NaN, infinite, zero or negative numbers")] = False
    drop_duplicates: Annotated[bool, arg(help="keep repeated rows once, and list the others")] = False

    def read(self, path: Path, further: Mapping[str, str] | None = None) -> Any:
        """The table of a file; `further` columns are named besides."""
        from smelt import foreign

        # loss:NAME alone is a loss column of that name.
        words = [
            f"{word}={word[5:]}" if word.startswith("loss:") and "=" not in word else word
            for word in flat(self.columns)
        ]
        for before, word in pairwise(["", *words]):
            if "=" not in word:
                raise BadInput(
                    f"--columns {word!r} names nothing: give OURS=THEIRS, in quotes where a name has blanks: "
                    f'"{f"{before} {word}".strip()}"'
                )
        columns = dict(assignments(words, str)) or (foreign.ours(path) if further else {})
        for name, theirs in (further or {}).items():
            if columns.setdefault(name, theirs) != theirs:
                raise BadInput(f"{name} is named twice, {columns[name]!r} and {theirs!r}: name it once")
        return foreign.read(
            path,
            columns,
            where=flat(self.where),
            flops=self.flops,
            best_of=flat(self.best_of),
            skip_bad=self.skip_bad,
            drop_duplicates=self.drop_duplicates,
        )


def _given(options: Any) -> dict[str, Any]:
    """Options that were given, by their names."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {
        f"--{name.replace('_', '-')}": value for name, value in values.items() if value != getattr(type(options), name)
    }


def flat(words: Iterable[Iterable[Any]]) -> list[Any]:
    return [word for several in words for word in several]


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """how a law is fitted to a table"""

    law: Annotated[str | None, arg(help="chinchilla where left out; an unknown name lists all")] = None
    objective: Annotated[str | None, arg(help="huber_log where left out; an unknown name lists all")] = None
    delta: Annotated[str | None, arg(help="Huber's threshold: from the residuals where left out; 0.001 by custom")] = (
        None
    )
    unit: Annotated[
        str | None, arg(help="column of what was drawn independently; the run where run_id is named, else the row")
    ] = None
    group: Annotated[str | None, arg(help="column of what is compared; without it all rows are one group")] = None
    reference: Annotated[str | None, arg(help="the group that savings are taken over")] = None
    budget: Annotated[str | None, arg(help="column of the IsoFLOP budgets")] = None
    fixed: Annotated[Words, arg(help="COLUMN=VALUE of a law's further columns for frontiers: density=0.05")] = ()
    at: Annotated[Numbers, arg(help="FLOPs at which savings are given; the budgets, or round numbers")] = ()

    def columns(self) -> dict[str, str]:
        """The columns that options name."""
        named = {"unit": self.unit, "group": self.group, "budget_flops": self.budget}
        return {ours: theirs for ours, theirs in named.items() if theirs is not None}

    def options(self, draws: int, seed: int) -> dict[str, Any]:
        """As `fitted.fit_table` takes them."""
        return {
            "law": self.law or "chinchilla",
            "objective": self.objective or "huber_log",
            "delta": _delta(self.delta),
            "reference": self.reference,
            "fixed": dict(assignments(flat(self.fixed), float)),
            "budgets_flops": flat(self.at),
            "draws": draws,
            "seed": seed,
        }


def _delta(text: str | None) -> float | str:
    if text is None:
        return "auto"
    try:
        return float(text)
    except ValueError:
        if text != "auto":
            raise BadInput(f"--delta is {text!r}: give a number above 0, or auto") from None
        return text


def fit(
    name: Annotated[Positional[str | None], arg(metavar="NAME", help="an experiment, or nothing with --csv")] = None,
    *,
    csv: Annotated[Path | None, arg(help="a table of anybody's logged losses")] = None,
    reading: OmitArgPrefixes[Reading] = Reading(),
    fitting: OmitArgPrefixes[Fitting] = Fitting(),
    again: Annotated[
        Path | None, arg(help="FIT.json: make it again from its rows, list what comes out another")
    ] = None,
    variants: Annotated[Words, arg(help="of an experiment only these variants, the first being the reference")] = (),
    draws: Annotated[int, arg(help="bootstrap draws")] = DRAWS,
    seed: Annotated[int, arg(help="of the draws")] = 0,
    out: Annotated[Path | None, arg(help="also write the fit as JSON")] = None,
    tables: Tables = None,
    figures: Annotated[Path | None, arg(help="folder for the figures as SVG and PDF")] = None,
    profiles: Annotated[bool, arg(help="also intervals by the profile of the objective: a second for 60 rows")] = False,
    commit: Annotated[bool, arg(help="keep an experiment's rows and fit as fits/NAME.csv and .json")] = False,
    json: Json = False,
) -> int:
    """Fit laws, minima and frontiers with 95 % intervals, and compute savings where there are groups.

    e.g. smelt fit quickstart; smelt fit quickstart_rates --variants "baseline, rate x2" "loop_middle, rate x2";
    smelt fit --csv runs.csv --columns num_params=N num_tokens=D loss_nats=loss --flops 6ND --where "loss<5" --out
    fit.json; smelt fit --csv runs.jsonl --columns num_params=N num_tokens=D train_flops=C bits_per_byte=bpb
    --group arch --reference dense; smelt fit --again fit.json (exit 1 where anything differs)
    """
    at_least("--draws", draws, 2)
    table_only = {**_given(reading), **_given(fitting), **({"--seed": seed} if seed else {})}
    experiment_only = {"--variants": variants, "--commit": commit}
    if again is not None:
        files = {
            "--out": out,
            "--tables": tables,
            "--figures": figures,
            "--draws": draws != DRAWS,
            "--profiles": profiles,
        }
        _refuse({"NAME": name, **table_only, **experiment_only, **files}, "--again")
        return _again(again, csv, json)
    if name is not None and name.endswith(TABLE_ENDS):
        raise BadInput(f"{name} is a table: name it and its columns, smelt fit --csv {name} --columns num_params=...")
    if (name is None) == (csv is None):
        raise BadInput("give either an experiment's NAME or --csv FILE with --columns")
    _refuse(table_only if csv is None else experiment_only, "an experiment" if csv is None else "--csv")
    if csv is not None:
        options = {**fitting.options(draws, seed), "profiles": profiles}
        return _fit_table(csv, reading, options, fitting.columns(), out, tables, figures, json)
    return _fit_experiment(str(name), flat(variants), draws, out, tables, figures, profiles, commit, json)


def _refuse(options: Mapping[str, Any], about: str) -> None:
    if given := [option for option, value in options.items() if value]:
        raise BadInput(f"{given[0]} says nothing about {about}: leave it out")


def _fit_table(
    path: Path,
    reading: Reading,
    options: Mapping[str, Any],
    further: Mapping[str, str],
    out: Path | None,
    tables: Path | None,
    figures: Path | None,
    json: bool,
) -> int:
    from smelt import fitted
    from smelt.fit import laws, surface
    from smelt.report import fits

    laws.law(options["law"])  # a name that is asked with ? is answered before any file is read
    surface.checked_objective(options["objective"], options["delta"])
    found = fitted.fit_table(reading.read(path, further), **options)
    if out is not None:
        fitted.save(found, out)
        say(f"kept {out}: smelt predict {out}, smelt savings {out} and smelt power {out} ask it")
    made = fits.of_fit(found.content)
    _write(made, tables)
    if figures is not None:
        from smelt.fit import examine, jsonable
        from smelt.report import page, style

        drawn = page.draw_fit(found.content, jsonable(examine.profiles(found.groups)))
        _told(style.write(drawn, figures), figures)
    if json:
        print_json(found.content)
        return EXIT_DONE
    lines = reading_lines(path, len(found.table.rows), found.content["table"])
    for name in ("estimates", "intervals", "optima", "minima", "savings", "tests"):
        lines += ["", shown(made[name])] if name in made and made[name].rows else []
    print("\n".join([*lines, *warning_lines(found.content["warnings"])]))
    return EXIT_DONE


def _fit_experiment(
    name: str,
    variants: Sequence[str],
    draws: int,
    out: Path | None,
    tables: Path | None,
    figures: Path | None,
    profiles: bool,
    commit: bool,
    json: bool,
) -> int:
    from smelt import analysis, committed
    from smelt.prediction import read_prediction
    from smelt.report import fits, flags, words
    from smelt.report import tables as written

    experiment, rows = rows_of(name)
    reference = experiment.grid.reference
    if variants:
        known = dict.fromkeys(row["variant"] for row in rows)
        if missing := [variant for variant in variants if variant not in known]:
            raise BadInput(f"{experiment.name} has no variant {missing[0]!r}: known are {'; '.join(known)}")
        if commit:
            raise BadInput("--commit keeps all rows of an experiment: leave --variants out")
        reference, rows = variants[0], [row for row in rows if row["variant"] in variants]
    if commit:
        predicted = read_prediction(experiment.folder)
        result = committed.commit(experiment.name, rows, reference, predicted=predicted, draws=draws)
        say(f"kept {committed.fits_folder() / experiment.name}.csv and .json")
    else:
        result = analysis.analyse(rows, reference, draws=draws)
    drawn = analysis.profiles(rows, reference, delta=result["settings"]["delta"]) if profiles or figures else {}
    if profiles:  # what is committed stays what its rows give without being asked
        held = {name: {key: found["interval"] for key, found in of_group.items()} for name, of_group in drawn.items()}
        result = {**result, "profiles": held}
    if out is not None:
        from smelt.files import write_json

        write_json(out, result)
    loss = result["losses"][analysis.LOSS]
    compared = [] if loss is None else [fits.intervals(loss["groups"], result["examined"], result.get("profiles"))]
    made = written.of_analysis(result)
    if compared and compared[0].rows:
        made["intervals"] = compared[0]
    _write(made, tables)
    if figures is not None:
        from smelt.report import page, style

        _told(style.write(page.draw(result, None, [], drawn), figures), figures)
    if json:
        print_json(result)
        return EXIT_DONE
    lines = [headline["sentence"] for headline in result["headline"].values()]
    saved = written.savings(result)
    saved = replace(saved, note=f"{saved.note} {fits.SHARE}") if saved.rows else saved
    for table in (saved, written.exponents(result), *compared, written.tests(result)):
        lines += ["", shown(table)] if table.rows or table.note else []
    found = flags.warnings(result["warnings"], words.run_names(result))
    lines += [""] + [
        f"warning ({flag['code']}): {flag['places']}{': ' if flag['places'] else ''}{flag['text']}" for flag in found
    ]
    print("\n".join(lines))
    return EXIT_DONE


def _again(path: Path, csv: Path | None, json: bool) -> int:
    from smelt import fitted

    if path.suffix != ".json":
        raise BadInput(f"--again takes a FIT.json that smelt fit --csv ... --out FIT.json wrote, got {path}")
    found = fitted.differences(path, csv)
    if json:
        print_json(found)
    elif not found:
        print(f"{path} comes out the same from its rows")
    else:
        print(f"{len(found)} values of {path} come out another:")
        rows = [[item["path"], str(item["committed"]), str(item["rederived"])] for item in found[:SHOWN]]
        print(terminal.table(["value", "then", "again"], rows))
    return EXIT_FAILED if found else EXIT_DONE


def shown(table: Any) -> str:
    """A table for the terminal, words to the left and numbers to the right; its note below."""
    if not table.rows:
        return table.note
    widths = [max(map(len, column)) for column in zip(table.headings, *table.rows, strict=True)]
    heads, *rows = (
        [
            cell if numeric else cell.ljust(width)
            for cell, numeric, width in zip(cells, table.numeric, widths, strict=True)
        ]
        for cells in (table.headings, *table.rows)
    )
    lines = [line.rstrip() for line in terminal.table(heads, rows).splitlines()]
    return "\n".join([*lines, *([table.note] if table.note else [])])


def reading_lines(path: Path, num_rows: int, read: Mapping[str, Any]) -> list[str]:
    """What was read, converted, chosen and left out."""
    lines = [f"{num_rows} rows of {path}"]
    if read["loss"]:
        lines[0] += f"; {read['loss']} in {read['loss_unit']}"
    lines += read["notes"]
    if left_out := read["left_out"]:
        kinds = Counter(_kind(item["reason"]) for item in left_out)
        most = ", ".join(f"{number} x {reason}" for reason, number in kinds.most_common(4))
        first = f"the first is row {left_out[0]['row']}, {left_out[0]['reason']}"
        lines.append(f"{terminal.plural(len(left_out), 'row')} left out: {most}; {first}")
    return lines


def _kind(reason: str) -> str:
    """What rows that are left out for one cause have in common."""
    alike = {"best of ": "not the best of its sweep", "repeats row ": "repeats another"}
    return next((word for start, word in alike.items() if reason.startswith(start)), reason.partition(": ")[0])


def warning_lines(warnings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line a code and group: the first of it, and how many more there are (all stand in the JSON)."""
    alike: dict[tuple, list[Mapping[str, Any]]] = {}
    for flag in warnings:
        alike.setdefault((flag["code"], flag.get("group")), []).append(flag)
    lines = [""] if alike else []
    for (code, group), flags in alike.items():
        about = f"{group}: " if group else ""
        more = f" (and {len(flags) - 1} more of this kind)" if len(flags) > 1 else ""
        lines.append(f"warning ({code}): {about}{flags[0]['message']}{more}")
    return lines


def _write(made: Mapping[str, Any], folder: Path | None) -> None:
    from smelt.report import tables

    if folder is not None:
        _told(tables.write(made, folder), folder)


def _told(files: Sequence[Path], folder: Path) -> None:
    say(f"{terminal.plural(len(files), 'file')} in {folder}")


def _fits_of(
    word: str, reference: str | None, draws: int | None, loss_column: str | None
) -> tuple[Any, dict[str, Any]]:
    """The fits of an experiment or of a FIT.json, with their draws; and what the loss is."""
    from smelt import analysis, fitted
    from smelt import fit as fitting

    if word.endswith(TABLE_ENDS):
        raise BadInput(
            f"{word} is a table: fit it first (smelt fit --csv {word} ... --out FIT.json), then ask FIT.json"
        )
    if word.endswith(".json"):
        if draws is not None:
            raise BadInput(f"--draws says nothing about {word}: it was fitted with its own")
        if loss_column is not None:
            raise BadInput(f"--loss-column says nothing about {word}: it was fitted to one loss")
        table, groups = fitted.asked(Path(word), reference)
        about = {"loss": table.loss, "loss_unit": table.loss_unit, "notes": list(table.notes)}
        return groups, {**about, "warnings": [{**fitting.jsonable(flag), "group": None} for flag in table.warnings]}
    experiment, rows = rows_of(word)
    loss = _loss_column(rows, loss_column)
    table = analysis.table(rows, loss)
    kept = {row["run_id"]: row for row in rows}
    secs = [kept[run_id]["train_secs"] for run_id in table["run_id"]]
    if all(secs):
        table["train_secs"] = secs
    table["stored_bytes"] = [BYTES_A_PARAMETER * kept[run_id]["num_params_total"] for run_id in table["run_id"]]
    groups = fitting.fit_groups(table, reference or experiment.grid.reference, loss_column=loss, draws=draws or DRAWS)
    notes = [f"stored_bytes is {BYTES_A_PARAMETER} bytes a parameter, embedding and head included"]
    unit = "bits per byte" if loss == analysis.BITS else "nats per token"
    return groups, {"loss": loss, "loss_unit": unit, "notes": notes, "warnings": []}


def _loss_column(rows: Sequence[Mapping[str, Any]], asked: str | None) -> str:
    """A column of losses by its name or its domain's; the validation loss where none is asked for."""
    from smelt import analysis

    known = analysis.loss_columns(rows)
    named = next((name for name in known if asked in (name, name.removeprefix(f"{analysis.LOSS}."))), None)
    if asked is not None and named is None:
        raise BadInput(f"there is no loss {asked!r}: choose one of {', '.join(known)}")
    return named or analysis.LOSS


def predict(
    name: Asked,
    *,
    flops: Annotated[Numbers, arg(help="training FLOPs at which size, tokens and loss are best")] = (),
    num_params: Annotated[str | None, arg(help="parameters of a run whose loss is wanted: 7e9 or 7B")] = None,
    num_tokens: Annotated[str | None, arg(help="training tokens of that run: 2e12 or 2T")] = None,
    run: Annotated[Words, arg(help="further columns of that run: flops_per_token=1e6")] = (),
    group: Annotated[str | None, arg(help="only this group or variant")] = None,
    fixed: Annotated[Words, arg(help="COLUMN=VALUE of the law's further columns: density=0.05")] = (),
    currency: Currency = "flops",
    loss_column: LossColumn = None,
    draws: Annotated[int | None, arg(help="bootstrap draws of an experiment's fit")] = None,
    tables: Tables = None,
    json: Json = False,
) -> int:
    """Optimal size, tokens, tokens per parameter and loss at a compute, or the loss of one run, with 95 % intervals.

    Every answer says how far it extrapolates. e.g. smelt predict quickstart --flops 1e12; smelt predict fit.json
    --flops 1e22 1e23; smelt predict fit.json --num-params 7B --num-tokens 2T; smelt predict fit.json --flops 1e22
    --currency flops+inference:1T (the best use of 1e22 FLOPs for training and serving a trillion tokens)
    """
    from smelt.fit import answers, examine, jsonable
    from smelt.report import fits

    at_least("--draws", draws, 2)
    columns = {
        **{
            column: text
            for column, text in (("num_params", num_params), ("num_tokens", num_tokens))
            if text is not None
        },
        **dict(assignments(flat(run), str)),
    }
    columns = {column: _counted(column, text) for column, text in columns.items()}
    if not flat(flops) and not columns:
        raise BadInput("nothing is asked: give --flops X, or --num-params N --num-tokens D")
    groups, about = _fits_of(name, None, draws, loss_column)
    replaced = dict(assignments(flat(fixed), float))
    held = {column for options in groups.frontier_options.values() for column in options}
    for column in groups.law.columns if columns else ():
        if column not in {*columns, *replaced, *held}:
            option = f"--{column.replace('_', '-')}" if column in ("num_params", "num_tokens") else f"--run {column}="
            raise BadInput(f"a run of {groups.law.equation} has {column} too: give {option}")
    paid = _currency(currency)
    _check_column(name, groups, answers.known(groups, group), paid)
    optima = answers.optima(groups, flat(flops), group=group, fixed=replaced, **paid) if flat(flops) else []
    runs = answers.run_losses(groups, {**replaced, **columns}, group=group) if columns else []
    flags = _deduplicated([*about.pop("warnings"), *examine.warnings(groups, answers.known(groups, group))])
    flags = _deduplicated([*flags, *(flag for answer in (*optima, *runs) for flag in jsonable(answer.warnings))])
    asked = {"law": groups.method["law"], "currency": currency, "optima": optima, "runs": runs}
    result = jsonable({**about, **asked, "warnings": flags})
    made = {}
    if optima:
        made["optima"] = fits.optima(result["optima"], about["loss_unit"], currency)
    if runs:
        made["runs"] = fits.runs(result["runs"], about["loss_unit"])
    _write(made, tables)
    if json:
        print_json(result)
        return EXIT_DONE
    lines = [part for table in made.values() for part in ("", shown(table))]
    print(
        "\n".join(
            [
                f"{groups.law.equation}, of {about['loss']}",
                *(about["notes"] if paid else []),
                *lines,
                *warning_lines(flags),
            ]
        )
    )
    return EXIT_DONE


def _counted(column: str, text: str) -> float:
    """A count as tables write it: 7e9, 7B."""
    from smelt.foreign.cells import BadCell, number

    try:
        return number(text, "count")
    except BadCell as error:
        raise BadInput(f"{column} {error}") from None


def savings(
    name: Asked,
    *,
    at: Annotated[Numbers, arg(help="training FLOPs; the budgets where left out")] = (),
    loss: Annotated[Numbers, arg(help="losses at which the two are compared, in place of budgets")] = (),
    variant: Annotated[str | None, arg(help="only this group or variant")] = None,
    reference: Annotated[str | None, arg(help="another reference than the fit's own")] = None,
    currency: Currency = "flops",
    loss_column: LossColumn = None,
    draws: Annotated[int | None, arg(help="bootstrap draws of an experiment's fit")] = None,
    tables: Tables = None,
    json: Json = False,
) -> int:
    """Compute that a group saves over the reference at equal loss, under every kind of frontier, with 95 % intervals.

    e.g. smelt savings quickstart; smelt savings quickstart --at 1e12; smelt savings fit.json --loss 2.5 2.4 --reference
    dense; smelt savings quickstart --currency secs
    """
    from smelt.fit import answers, examine, jsonable, summary
    from smelt.report import fits

    at_least("--draws", draws, 2)
    if flat(at) and flat(loss):
        raise BadInput("--at asks at budgets and --loss at losses: give one of them")
    groups, about = _fits_of(name, reference, draws, loss_column)
    others = [variant] if variant is not None else list(groups.names[1:])
    if not others:
        raise BadInput(f"{name} has one group only, {groups.reference}: a saving is over another (smelt fit --group)")
    paid = _currency(currency)
    if flat(loss) and paid:
        raise BadInput(f"--loss compares training FLOPs: leave --currency {currency} out, or ask --at budgets")
    for other in others:
        _check_column(name, groups, [*answers.known(groups, other), groups.reference], paid)
    points = flat(at) or list(groups.points_flops)
    if not flat(loss) and not points:
        raise BadInput(f"the compute of {name}'s rows is not known: name train_flops, or fit with --flops 6ND")
    found = {}
    for other in others:
        if flat(loss):
            found[other] = answers.gained(groups, other, flat(loss))
        else:
            found[other] = (answers.saved_in if paid else answers.saved)(groups, other, points, **paid)
    flags = [*about.pop("warnings"), *examine.warnings(groups, [groups.reference, *others])]
    if not paid:  # frontiers cross in training FLOPs
        compared = summary.written(groups)["savings"]
        flags += [{**flag, "group": other} for other in others for flag in summary.flags_of_crossing(compared[other])]
    flags += [flag for by_kind in jsonable(found).values() for flag in _flags(by_kind)]
    flags = _deduplicated(flags)
    asked = {"reference": groups.reference, "currency": currency, "savings": found}
    result = jsonable({**about, **asked, "warnings": flags})
    if flat(loss):
        made = fits.gains(result["savings"], groups.reference)
    else:
        made = fits.savings(result["savings"], groups.reference, currency)
    _write({"gains" if flat(loss) else "savings": made}, tables)
    if json:
        print_json(result)
        return EXIT_DONE
    of = [] if loss_column is None else [f"of {about['loss']} ({about['loss_unit']})"]
    print("\n".join([*of, *(about["notes"] if paid else []), shown(made), *warning_lines(flags)]))
    return EXIT_DONE


def _currency(text: str) -> dict[str, Any]:
    """As `answers` take it: nothing for training FLOPs, a measured column, or tokens to serve."""
    if text == "flops":
        return {}
    if text in CURRENCIES:
        return {"column": CURRENCIES[text]}
    word, colon, tokens = text.partition(":")
    if word != "flops+inference" or not colon:
        raise BadInput(f"--currency is {text!r}: give flops, {', '.join(CURRENCIES)} or flops+inference:TOKENS")
    return {"inference_tokens": _counted("--currency", tokens)}


def _check_column(name: str, groups: Any, asked: Iterable[str], paid: Mapping[str, Any]) -> None:
    """Refuse a currency whose column the rows do not have."""
    column = paid.get("column")
    lacking = [group for group in asked if column is not None and column not in groups.rows[group]]
    if not lacking:
        return
    of = "" if len(groups.names) == 1 else f" of {lacking[0]}"
    mend = f"fit the table again with --columns {column}=COLUMN" if name.endswith(".json") else "ask in flops"
    raise BadInput(f"the rows{of} in {name} have no {column}: name {column}=COLUMN ({mend})")


def _deduplicated(flags: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each warning once: code, message and the group that it is about."""
    found: list[dict[str, Any]] = []
    for flag in flags:
        warning = {"code": flag["code"], "message": flag["message"], "group": flag.get("group")}
        if warning not in found:
            found.append(warning)
    return found


def _flags(by_kind: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    kind = by_kind["recommended"]
    found = [] if kind is None else by_kind[kind].get("at_budgets") or by_kind[kind].get("at_losses") or []
    return [flag for item in found for flag in item["warnings"]]
