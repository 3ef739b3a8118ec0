"""Run folders -> one row a finished run: the schema of a result, its writer, and its strict readers.

    runs/<experiment>/<run_id>/row.json          one row, written once, atomically
    fits/<name>.csv                              the rows of a committed result

A row holds every spec field flat (`arch.loop.num_passes`), every count under every convention, what was measured,
and where it comes from. A missing measurement is null, with its reason under `null_reasons`; it is never 0.
Readers refuse unknown or missing columns. The only open family are the per-domain columns
`val_loss_nats.<domain>`, `val_loss_se_nats.<domain>` and `bits_per_byte.<domain>`; and a ledger may lack the columns of
a part that none of its architectures has, which is absent from their hash too, so that the family of architectures can
grow without rewriting a ledger.

The ledger knows files and columns; what a row means to a law is for `fit`.
"""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt import budget, spec
from smelt.errors import BadInput
from smelt.files import read_json, write_json, write_text

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: type
    meaning: str
    nullable: bool = False
    may_lack: bool = False


IDENTITY = (
    Column("experiment", str, "name of the experiment"),
    Column("run_id", str, "hash of the spec"),
    Column("variant", str, "function of smelt.variants that made the architecture"),
    Column("size", int, "index of the baseline in the experiment's ladder"),
    Column("role", str, "grid, seed (seed spread), control or prediction"),
    Column("budget_flops", float, "training FLOPs that were aimed at, under flops_convention"),
    Column("flops_convention", str, "convention of budget_flops, train_flops and flops_per_token"),
    Column("held_equal", str, "what the matcher held equal between the pair"),
    Column("match_error_flops", float, "flops_per_token over the paired baseline's, minus 1"),
    Column("match_error_params", float, "num_params over the paired baseline's, minus 1"),
    Column("match_error_kv", float, "kv_cache_bytes_per_token over the paired baseline's, minus 1"),
    Column("match_error_held", float, "the largest absolute error of what is held equal (held_equal)"),
)
COUNTS = (
    Column("num_params", int, "non-embedding parameters, all experts"),
    Column("num_params_total", int, "num_params with embedding and head"),
    Column("num_params_active", int, "non-embedding, one physical traversal, k experts"),
    Column("num_params_executed", int, "non-embedding, every visit, k experts"),
    Column("kv_cache_bytes_per_token", int, "keys and values of every visit, 2 bytes a value"),
    Column("sparsity", float, "compute-equivalent S against the fully active baseline, under flops_convention"),
    Column("effective_depth", int, "executed layers"),
    Column("e_real", int, "stored experts of the loop block"),
    Column("e_eq", int, "expert choices offered over all passes"),
    Column("e_comp", int, "experts computed per token in the loop block"),
    Column("router_flops_frac", float, "the router's share of the forward model FLOPs"),
    Column("flops_per_token", float, "training FLOPs per token under flops_convention"),
    Column("train_flops", float, "flops_per_token x num_tokens: achieved, not planned"),
    *(
        Column(f"flops_per_token.{name}", float, f"training FLOPs per token, convention {name}")
        for name in budget.CONVENTIONS
    ),
    Column("num_tokens", int, "training tokens, repeats included"),
    Column("epochs", float, "num_tokens over the tokens of the training split; above 1 data repeats"),
)
OUTCOMES = ("finished", "diverged")
MEASUREMENTS = (
    Column("outcome", str, "finished or diverged"),
    Column("val_loss_nats", float, "mean of the domains' validation losses, nats per token", nullable=True),
    Column("val_loss_se_nats", float, "its standard error, documents as units", nullable=True),
    Column("bits_per_byte", float, "mean of the domains' bits per byte", nullable=True),
    Column("train_loss_nats", float, "mean training loss of the last steps", nullable=True),
    Column("train_loss_se_nats", float, "its standard error over those steps", nullable=True),
    Column("train_secs", float, "wall seconds of training, a shared trunk and data_wait_secs included", nullable=True),
    Column("compile_secs", float, "wall seconds of tracing and compiling", nullable=True),
    Column("data_wait_secs", float, "wall seconds the loop waited for data", nullable=True),
    Column("eval_secs", float, "wall seconds of validation", nullable=True),
    Column("save_secs", float, "wall seconds of writing checkpoints", nullable=True),
    Column("total_secs", float, "wall seconds of this run alone, a shared trunk left out", nullable=True),
    Column("tokens_per_sec", float, "num_tokens over train_secs", nullable=True),
    Column("peak_memory_bytes", int, "peak resident memory of the process so far", nullable=True),
)
PROVENANCE = (
    Column("corpus_fingerprint", str, "of the corpus that was read"),
    Column("code_fingerprint", str, "of the sources that decide a result: spec, model, train, data"),
    Column("jax", str, "version"),
    Column("jaxlib", str, "version"),
    Column("python", str, "version"),
    Column("device", str, "kind and count"),
    Column("threads", int, "threads of one process"),
    Column("host", str, "name of the machine"),
    Column("finished_at", str, "UTC time, ISO 8601"),
    Column("null_reasons", str, "JSON object: column -> why it is null"),
)


SPEC_FIELD = "field of the spec; null where the architecture has no such part"


def _spec_columns() -> tuple[Column, ...]:
    """In the order of the fields. Choices are text, and parts of one's own are one JSON text (`spec.flatten`)."""
    columns: list[Column] = []

    def walk(prefix: str, kind: Any, nullable: bool, may_lack: bool) -> None:
        for field in dataclasses.fields(kind):
            inner, name = spec.member_kind(field.type), f"{prefix}{field.name}"
            absent = may_lack or field.default is not dataclasses.MISSING
            null = nullable or absent or inner is not field.type
            if dataclasses.is_dataclass(inner):
                walk(f"{name}.", inner, null, absent)
            else:
                scalar = inner if inner in (int, float, bool, str) else str
                columns.append(Column(name, scalar, SPEC_FIELD, null, absent))

    walk("", spec.RunSpec, False, False)
    return tuple(columns)


COLUMNS: dict[str, Column] = {
    column.name: column for column in (*IDENTITY, *_spec_columns(), *COUNTS, *MEASUREMENTS, *PROVENANCE)
}
DOMAIN_FAMILIES = ("val_loss_nats.", "val_loss_se_nats.", "bits_per_byte.")


def _column(name: str) -> Column | None:
    if name in COLUMNS:
        return COLUMNS[name]
    if name.startswith(DOMAIN_FAMILIES) and not name.endswith("."):
        return Column(name, float, "of one validation domain", nullable=True)
    return None


def counts(arch: spec.ArchSpec, baseline: spec.ArchSpec, context: int, convention: str) -> Row:
    """The count columns that follow from the architecture alone; `baseline` is the sparsity's control."""
    parameters = budget.params(arch)
    experts = budget.expert_budget(arch)
    return {
        "num_params": parameters.non_embedding,
        "num_params_total": parameters.total,
        "num_params_active": budget.active_params(arch),
        "num_params_executed": budget.executed_params(arch),
        "kv_cache_bytes_per_token": budget.kv_cache_bytes_per_token(arch),
        "sparsity": budget.sparsity(arch, baseline, context, convention),
        "effective_depth": arch.effective_depth,
        "e_real": experts.e_real,
        "e_eq": experts.e_eq,
        "e_comp": experts.e_comp,
        "router_flops_frac": budget.router_flops_frac(arch, context),
        "flops_per_token": budget.train_flops_per_token(arch, context, convention),
        **{f"flops_per_token.{name}": budget.train_flops_per_token(arch, context, name) for name in budget.CONVENTIONS},
    }


def check(row: Mapping[str, Any], where: str) -> Row:
    """The row in column order. Raises BadInput on a missing or unknown column, a wrong kind, a non-finite number,
    or a null without its reason."""
    if not isinstance(row, Mapping):
        raise BadInput(f"{where} holds {type(row).__name__}, not the columns of a row")
    row = {name: None for name, column in COLUMNS.items() if column.may_lack} | dict(row)
    if missing := [name for name in COLUMNS if name not in row]:
        raise BadInput(f"{where}: column {missing[0]!r} is missing ({len(missing)} in all)")
    if unknown := [name for name in row if _column(name) is None]:
        raise BadInput(f"{where}: unknown column {unknown[0]!r}")
    reasons = _reasons(row["null_reasons"], where)
    ordered: Row = {}
    for name in [*COLUMNS, *sorted(name for name in row if name not in COLUMNS)]:
        column, value = _column(name), row[name]
        assert column is not None
        if value is None:
            if not column.nullable:
                raise BadInput(f"{where}: {name} is null, and may not be")
            if column.meaning != SPEC_FIELD and not reasons.get(name):
                raise BadInput(f"{where}: {name} is null without a reason in null_reasons")
        else:
            value = _typed(column, value, where)
        ordered[name] = value
    if ordered["outcome"] not in OUTCOMES:
        raise BadInput(f"{where}: outcome is {ordered['outcome']!r}: expected one of {', '.join(OUTCOMES)}")
    return ordered


def _reasons(text: Any, where: str) -> dict[str, Any]:
    try:
        reasons = json.loads(text)
    except (TypeError, ValueError):
        reasons = None
    if not isinstance(reasons, dict):
        raise BadInput(f"{where}: null_reasons is {text!r}: expected a JSON object, column -> why it is null")
    return reasons


def _typed(column: Column, value: Any, where: str) -> Any:
    if column.kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise BadInput(f"{where}: {column.name} is {value}: a measurement that failed is null with its reason")
        return float(value)
    if type(value) is not column.kind:
        raise BadInput(f"{where}: {column.name} is {value!r}: expected {column.kind.__name__}")
    return value


def write(folder: Path, row: Mapping[str, Any]) -> Row:
    """Check a row and write it to `folder`/row.json, whole or not at all."""
    checked = check(row, str(folder / "row.json"))
    write_json(folder / "row.json", checked)
    return checked


def read_folder(experiment_folder: Path) -> list[Row]:
    """Rows of all run folders, by run_id; a folder without a row has not finished and is left out, and so is one that
    was moved aside (its name begins with a dot)."""
    folders = sorted(path.parent for path in experiment_folder.glob("*/row.json"))
    return [read_row(folder) for folder in folders if not folder.name.startswith(".")]


def read_row(folder: Path) -> Row:
    """The row of a run folder. Raises BadInput where it is damaged, or is the row of another run."""
    path = folder / "row.json"
    try:
        row = check(read_json(path), str(path))
        if row["run_id"] != folder.name:
            raise BadInput(f"{path} is the row of run {row['run_id']}")
    except BadInput as error:
        raise BadInput(f"{error}; move {folder} away to train the run again") from None
    return row


def merge(ledgers: Iterable[Sequence[Row]]) -> list[Row]:
    """Rows of several machines as one list. The same run from two places is kept once where its losses agree;
    where they differ (other device, code or corpus) BadInput names it: choose one."""
    kept: dict[str, Row] = {}
    for rows in ledgers:
        for row in rows:
            first = kept.setdefault(row["run_id"], row)
            differing = [
                name for name in ("val_loss_nats", "corpus_fingerprint", "code_fingerprint") if first[name] != row[name]
            ]
            if differing:
                name = differing[0]
                raise BadInput(
                    f"run {row['run_id']} stands twice with {name} {first[name]!r} ({first['host']}) and "
                    f"{row[name]!r} ({row['host']}): leave one of them out"
                )
    return list(kept.values())


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV; null is the empty field, floats keep every digit."""
    names = _all_columns(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if row.get(name) is None else _cell(row[name]) for name in names])
    return text.getvalue()


def _cell(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _all_columns(rows: Sequence[Row]) -> list[str]:
    if not rows:
        raise BadInput("the ledger has no finished run: train some first (smelt run), or look at smelt status")
    extra = sorted({name for row in rows for name in row if name not in COLUMNS})
    return [*COLUMNS, *extra]


def export(rows: Sequence[Row], path: Path) -> None:
    """Write rows to .csv or .parquet, by the suffix."""
    if path.suffix == ".csv":
        write_text(path, to_csv(rows))
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        names = _all_columns(rows)
        kinds = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_(), str: pyarrow.string()}
        schema = pyarrow.schema([(name, kinds[_known(name).kind]) for name in names])
        table = pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows], schema)
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(table, sink)
        from smelt.files import write_bytes

        write_bytes(path, sink.getvalue().to_pybytes())
    else:
        raise BadInput(f"cannot export to {path.name}: give a name that ends in .csv or .parquet")


def _known(name: str) -> Column:
    column = _column(name)
    if column is None:
        raise BadInput(f"unknown column {name!r}")
    return column


def read_table(path: Path) -> list[Row]:
    """Rows that `export` wrote, by the suffix."""
    if path.suffix != ".parquet":
        return read_csv(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    import pyarrow
    import pyarrow.parquet

    try:
        records = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise BadInput(f"{path} is no parquet file ({str(error).splitlines()[0]})") from None
    return [check(record, f"{path}:{number}") for number, record in enumerate(records, start=1)]


def read_csv(path: Path) -> list[Row]:
    """Rows that `export` wrote as .csv."""
    records = _records(path)
    return [
        check({name: _parse(name, text, where) for name, text in record.items()}, where) for where, record in records
    ]


def _records(path: Path) -> list[tuple[str, dict[str, str]]]:
    """(file:line, column -> text) a row; blank lines are skipped. Raises BadInput where a line has more or fewer fields
    than the header, and where a column stands in it twice."""
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        for name in header:
            if header.count(name) > 1:
                raise BadInput(f"{path} has {header.count(name)} columns {name!r}: rename or drop all but one")
        found = []
        for fields in reader:
            where = f"{path}:{reader.line_num}"
            if len(fields) not in (0, len(header)):
                raise BadInput(f"{where} has {len(fields)} fields, the header {len(header)}: mend it")
            if fields:
                found.append((where, dict(zip(header, fields, strict=True))))
    except csv.Error as error:
        raise BadInput(f"{path}:{reader.line_num} is not CSV ({error}): mend the line") from None
    if not found:
        raise BadInput(f"{path} holds no rows")
    return found


def _parse(name: str, text: str, where: str) -> Any:
    column = _column(name)
    if column is None:
        raise BadInput(f"{where}: unknown column {name!r}")
    if text == "":
        return None if column.nullable else ("" if column.kind is str else None)
    if column.kind is bool:
        if text not in ("True", "False"):
            raise BadInput(f"{where}: {name} is {text!r}: expected True or False")
        return text == "True"
    try:
        return column.kind(text)
    except ValueError:
        raise BadInput(f"{where}: {name} is {text!r}: expected {column.kind.__name__}") from None
