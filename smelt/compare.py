"""Two runs, or two groups of matched runs -> their loss difference, paired by document, and every quantity that moved.

    difference(domain) = sum_d (s_A,d - s_B,d) / sum_d n_d          s: nats of a document, n: its tokens
    standard error     = sqrt(m/(m-1) sum_d (s_A,d - s_B,d - difference n_d)^2) / sum_d n_d,  m documents

averaged over domains with equal weight. Both runs read the same slice, so what is hard for both cancels. The standard
error covers which documents were drawn, not which seed: the difference is also given in multiples of the seed spread,
the standard deviation of val_loss over seeds of one cell. Negative is better for A.

The mean over the pairs of two groups has two errors: of the pairs' scatter (their seeds and sizes), and of the
documents, which all pairs share and whose mean differences are taken before the error is. They are added in squares;
the scatter holds a little of the second, so the sum is on the large side.

Pairs whose runs were decayed from one trunk (`smelt.trunk`) scatter as one.

Where the run folders are not at hand the committed rows are compared: their losses, without an error over documents.
"""

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt import ledger
from smelt.analysis import trunks
from smelt.errors import BadInput
from smelt.ledger import Row

if TYPE_CHECKING:
    from smelt.train.evaluate import DocumentLosses

# What a table names where it moved: counts as they are, amounts as what A has more, parts of an architecture by name.
COUNTS = {"e_real": "E_real", "e_eq": "E_eq", "e_comp": "E_comp", "effective_depth": "depth"}
AMOUNTS = {
    "flops_per_token": "FLOPs a token",
    "train_flops": "FLOPs",
    "num_tokens": "tokens",
    "num_params": "parameters",
    "num_params_active": "active parameters",
    "kv_cache_bytes_per_token": "KV cache",
}
PARTS = {
    "arch.loop.attention_sets": "attention sets",
    "arch.router.sigmoid.num_heads": "sigmoid heads",
    "arch.router.sigmoid.fusion": "fusion",
    "arch.router.sigmoid.bias_rate": "bias rate",
    "arch.ffn.shared_width": "shared expert",
    "arch.ffn.latent.width": "latent",
    "arch.ffn.latent.views.num_views": "views",
    "arch.ffn.latent.views.mixing": "mixing",
    "arch.mup_base_width": "muP base width",
    "arch.own": "own parts",
}
LABELS = COUNTS | AMOUNTS | PARTS
# Beside these, in JSON and by name under a table: other counts, and every field of the spec but seed and steps.
OTHERS = (
    "num_params_total",
    "num_params_executed",
    *(
        name
        for name, column in ledger.COLUMNS.items()
        if column.meaning == ledger.SPEC_FIELD and name not in (*PARTS, "seed", "num_steps")
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One run or a group of runs, and where they lie: `folder` holds a folder a run, and is None where committed rows
    are all there is. `all_rows` are the experiment's, for its seed spread."""

    label: str
    rows: Sequence[Row]
    all_rows: Sequence[Row]
    folder: Path | None
    is_group: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A minus B, in nats per token. None where it cannot be measured. `documents`: domain -> (sums of nats of A minus
    those of B, tokens) of every document, empty where they are not at hand."""

    difference_nats: float
    standard_error_nats: float | None
    train_difference_nats: float
    train_standard_error_nats: float
    by_domain_nats: dict[str, float]
    documents: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    @property
    def standard_errors(self) -> float | None:
        return self.difference_nats / self.standard_error_nats if self.standard_error_nats else None


def compare_runs(row_a: Row, folder_a: Path, row_b: Row, folder_b: Path) -> Difference:
    """Two finished runs. Raises BadInput where they were evaluated on other text, or one has not finished."""
    _check_comparable(row_a, row_b)
    losses_a, losses_b = (_losses(folder / "validation.npz") for folder in (folder_a, folder_b))
    documents = {domain: _paired(losses_a[domain], losses_b[domain]) for domain in losses_a}
    return Difference(
        difference_nats=float(np.mean([_ratio(*pair)[0] for pair in documents.values()])),
        standard_error_nats=_standard_error(documents),
        train_difference_nats=row_a["train_loss_nats"] - row_b["train_loss_nats"],
        train_standard_error_nats=math.hypot(row_a["train_loss_se_nats"], row_b["train_loss_se_nats"]),
        by_domain_nats={domain: _ratio(*pair)[0] for domain, pair in documents.items()},
        documents=documents,
    )


def compare_rows(row_a: Row, row_b: Row) -> Difference:
    """Two finished runs of which only the rows are at hand: no error over documents."""
    _check_comparable(row_a, row_b)
    domains = [name for name in row_a if name.startswith("val_loss_nats.") and row_b.get(name) is not None]
    return Difference(
        difference_nats=row_a["val_loss_nats"] - row_b["val_loss_nats"],
        standard_error_nats=None,
        train_difference_nats=row_a["train_loss_nats"] - row_b["train_loss_nats"],
        train_standard_error_nats=math.hypot(row_a["train_loss_se_nats"], row_b["train_loss_se_nats"]),
        by_domain_nats={name.removeprefix("val_loss_nats."): row_a[name] - row_b[name] for name in domains},
    )


def _check_comparable(row_a: Row, row_b: Row) -> None:
    for row in (row_a, row_b):
        if row["outcome"] != "finished":
            raise BadInput(f"run {row['run_id']} has {row['outcome']}: only finished runs have a loss to compare")
    for name in ("corpus_fingerprint", "data.seq_len", "data.validation_tokens"):
        if row_a[name] != row_b[name]:
            raise BadInput(
                f"runs {row_a['run_id']} and {row_b['run_id']} were evaluated on other text: {name} is "
                f"{row_a[name]} and {row_b[name]}"
            )
    if row_a["run_id"] == row_b["run_id"]:
        raise BadInput(f"both sides are run {row_a['run_id']}: give two runs")


def _losses(path: Path) -> "dict[str, DocumentLosses]":
    from smelt.train.evaluate import load  # brings jax, which committed rows do without

    try:
        if path.exists() and not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is no zip archive")
        return load(path)
    except BadInput:
        raise
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        raise BadInput(f"{path} is damaged ({error}): restore it, or train the run again") from None


def _paired(a: "DocumentLosses", b: "DocumentLosses") -> tuple[np.ndarray, np.ndarray]:
    """(sums of nats of A minus those of B, tokens) of every document."""
    if not (np.array_equal(a.doc_ids, b.doc_ids) and np.array_equal(a.num_tokens, b.num_tokens)):
        raise BadInput("the runs were evaluated on other documents: build the same corpus, or train one of them again")
    return a.sum_nats - b.sum_nats, a.num_tokens


def _ratio(differences: np.ndarray, num_tokens: np.ndarray) -> tuple[float, float | None]:
    """Nats per token and its standard error, None with fewer than two documents."""
    difference = float(differences.sum() / num_tokens.sum())
    documents = len(num_tokens)
    if documents < 2:
        return difference, None
    residuals = differences - difference * num_tokens
    error = math.sqrt(documents / (documents - 1) * float(np.sum(residuals**2))) / float(num_tokens.sum())
    return difference, error


def _standard_error(documents: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Of the mean over domains; None where a domain has none."""
    errors = [_ratio(*pair)[1] for pair in documents.values()]
    known = [error for error in errors if error is not None]
    return math.hypot(*known) / len(errors) if errors and len(known) == len(errors) else None


def pairs(rows_a: Sequence[Row], rows_b: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows of two groups with equal budget, size and seed, in order of budget and size."""

    def key(row: Row) -> tuple[Any, ...]:
        return row["budget_flops"], row["size"], row["seed"]

    of_b = {key(row): row for row in rows_b if row["outcome"] == "finished"}
    found = [(row, of_b[key(row)]) for row in rows_a if row["outcome"] == "finished" and key(row) in of_b]
    if not found:
        raise BadInput("the groups share no finished cell of equal budget, size and seed: nothing can be paired")
    return sorted(found, key=lambda pair: key(pair[0]))


def compare_sides(a: Side, b: Side, spread: Mapping[str, Any]) -> dict[str, Any]:
    """Every pair of two sides and their mean, as plain values; `spread` is `analysis.seed_spread` of the reference's
    rows. Raises BadInput where a run stands against a group, and where nothing can be paired."""
    if a.is_group != b.is_group:
        raise BadInput(f"{a.label} and {b.label}: give two runs or two groups, not one of each")
    matched = pairs(a.rows, b.rows) if a.is_group else [(a.rows[0], b.rows[0])]
    found, differences = [], []
    for row_a, row_b in matched:
        if a.folder is None or b.folder is None:
            difference = compare_rows(row_a, row_b)
        else:
            difference = compare_runs(row_a, a.folder / row_a["run_id"], row_b, b.folder / row_b["run_id"])
        found.append(as_row(row_a, row_b, difference, spread["sd"]))
        differences.append(difference)
    return {
        "a": a.label,
        "b": b.label,
        "pairs": found,
        "mean": mean_difference(differences, spread["sd"], trunks([row_a for row_a, _ in matched])),
        "seed_spread_nats": spread["sd"],
        "seed_spread_degrees_of_freedom": spread["degrees_of_freedom"],
    }


def as_row(row_a: Row, row_b: Row, difference: Difference, spread: float | None) -> dict[str, Any]:
    """A compared pair as plain values, with every quantity that moved between the two: name -> [of A, of B]."""
    return {
        "run_a": row_a["run_id"],
        "run_b": row_b["run_id"],
        "budget_flops": row_a["budget_flops"],
        "size": row_a["size"],
        "seed": row_a["seed"],
        "difference_nats": difference.difference_nats,
        "standard_error_nats": difference.standard_error_nats,
        "standard_errors": difference.standard_errors,
        "seed_spreads": difference.difference_nats / spread if spread else None,
        "train_difference_nats": difference.train_difference_nats,
        "train_standard_error_nats": difference.train_standard_error_nats,
        "by_domain_nats": difference.by_domain_nats,
        "moved": {name: [row_a[name], row_b[name]] for name in (*LABELS, *OTHERS) if row_a[name] != row_b[name]},
    }


def mean_difference(found: Sequence[Difference], spread: float | None, units: Sequence[str]) -> dict[str, Any]:
    """Mean over pairs. `standard_error_nats` adds in squares the errors of the pairs' scatter (None with one unit) and
    of the documents (None where a pair has none, or pairs were evaluated on different ones).

    units: a label a pair; pairs of one label share their luck and scatter as one, as those of one trunk do."""
    values, labels = np.array([difference.difference_nats for difference in found]), np.array(units)
    mean = float(values.mean())
    apart = np.array([values[labels == label].mean() for label in np.unique(labels)])
    over_pairs = float(apart.std(ddof=1) / math.sqrt(len(apart))) if len(apart) > 1 else None
    over_documents = _standard_error(_mean_documents([difference.documents for difference in found]))
    known = [error for error in (over_pairs, over_documents) if error is not None]
    error = math.hypot(*known) if known else None
    return {
        "difference_nats": mean,
        "standard_error_nats": error,
        "standard_error_over_pairs_nats": over_pairs,
        "standard_error_over_documents_nats": over_documents,
        "standard_errors": mean / error if error else None,
        "seed_spreads": mean / spread if spread else None,
        "num_pairs": len(values),
        "num_units": len(apart),
    }


def _mean_documents(
    found: Sequence[Mapping[str, tuple[np.ndarray, np.ndarray]]],
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The mean over pairs of every document's difference; empty where pairs have other documents."""
    first, means = found[0], {}
    for domain, (_, num_tokens) in first.items():
        of_pairs = [documents.get(domain, (None, np.empty(0))) for documents in found]
        if not all(np.array_equal(tokens, num_tokens) for _, tokens in of_pairs):
            return {}
        means[domain] = (np.mean([sums for sums, _ in of_pairs], axis=0), num_tokens)
    return means


def moved_table(rows: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[list[str], list[list[str]], list[str]]:
    """(header, cells, what else moved) of the rows of a table, each given as the pairs (`as_row`) that it stands for.

    Only what moved in some row has a column; "=" where it did not. A count or a part reads "of B -> of A" where all
    pairs of the row agree; an amount, and a count that differs between pairs, is what A has more, in per cent."""
    columns = {}
    for name, label in LABELS.items():
        cells = [_moved_cell(name, [pair["moved"].get(name) for pair in row]) for row in rows]
        if any(cell != "=" for cell in cells) and not (name == "train_flops" and cells == columns.get("FLOPs a token")):
            columns[label] = cells
    others = [name for name in OTHERS if any(name in pair["moved"] for row in rows for pair in row)]
    return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)] or [[] for _ in rows], others


def _part(name: str, part: Any) -> str:
    """A part of an architecture for people; own parts by the names of their classes."""
    if part is None:
        return "none"
    return ", ".join(own["name"] for own in json.loads(part)) if name == "arch.own" else str(part)


def _moved_cell(name: str, values: Sequence[Sequence[Any] | None]) -> str:
    if not any(values):
        return "="
    if name not in AMOUNTS and all(value == values[0] for value in values):
        of_a, of_b = (_part(name, part) for part in values[0] or ())
        return f"{of_b} -> {of_a}"
    if name in PARTS:
        return "differs"
    shares = sorted(f"{100 * (value[0] / value[1] - 1 if value else 0.0):+.1f}" for value in values)
    shares = sorted({"+0.0" if share == "-0.0" else share for share in shares}, key=float)
    if shares == ["+0.0"]:
        return "="
    return f"{shares[0]}%" if len(shares) == 1 else f"{shares[0]} to {shares[-1]}%"
