"""Two runs, or two groups of matched runs -> their loss difference, paired by document.

    difference(domain) = sum_d (s_A,d - s_B,d) / sum_d n_d          s: nats of a document, n: its tokens
    standard error     = sqrt(m/(m-1) sum_d (s_A,d - s_B,d - difference n_d)^2) / sum_d n_d,  m documents

averaged over domains with equal weight. Both runs read the same slice, so what is hard for both cancels. The standard
error covers which documents were drawn, not which seed: the difference is also given in multiples of the seed spread,
the standard deviation of val_loss over seeds of one cell. Negative is better for A.
"""

import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.ledger import Row
from smelt.train.evaluate import DocumentLosses, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A minus B, in nats per token. None where it cannot be measured."""

    difference_nats: float
    standard_error_nats: float | None
    train_difference_nats: float | None
    train_standard_error_nats: float | None
    by_domain_nats: dict[str, float]

    @property
    def standard_errors(self) -> float | None:
        return self.difference_nats / self.standard_error_nats if self.standard_error_nats else None


def compare_runs(row_a: Row, folder_a: Path, row_b: Row, folder_b: Path) -> Difference:
    """Two finished runs. Raises BadInput where they were evaluated on other text, or one has not finished."""
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
    losses_a, losses_b = (_losses(folder / "validation.npz") for folder in (folder_a, folder_b))
    parts = {domain: _paired(losses_a[domain], losses_b[domain]) for domain in losses_a}
    errors = [error for _, error in parts.values() if error is not None]
    train_errors = [row["train_loss_se_nats"] for row in (row_a, row_b)]
    return Difference(
        difference_nats=float(np.mean([difference for difference, _ in parts.values()])),
        standard_error_nats=math.hypot(*errors) / len(parts) if len(errors) == len(parts) else None,
        train_difference_nats=row_a["train_loss_nats"] - row_b["train_loss_nats"],
        train_standard_error_nats=math.hypot(*train_errors),
        by_domain_nats={domain: difference for domain, (difference, _) in parts.items()},
    )


def _losses(path: Path) -> dict[str, DocumentLosses]:
    try:
        if path.exists() and not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is no zip archive")
        return load(path)
    except BadInput:
        raise
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        raise BadInput(f"{path} is damaged ({error}): restore it, or train the run again") from None


def _paired(a: DocumentLosses, b: DocumentLosses) -> tuple[float, float | None]:
    if not (np.array_equal(a.doc_ids, b.doc_ids) and np.array_equal(a.num_tokens, b.num_tokens)):
        raise BadInput("the runs were evaluated on other documents: build the same corpus, or train one of them again")
    differences, num_tokens = a.sum_nats - b.sum_nats, a.num_tokens
    difference = float(differences.sum() / num_tokens.sum())
    documents = len(a.doc_ids)
    if documents < 2:
        return difference, None
    residuals = differences - difference * num_tokens
    error = math.sqrt(documents / (documents - 1) * float(np.sum(residuals**2))) / float(num_tokens.sum())
    return difference, error


def pairs(rows_a: Sequence[Row], rows_b: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows of two groups with equal budget, size and seed, in order of budget and size."""

    def key(row: Row) -> tuple[Any, ...]:
        return row["budget_flops"], row["size"], row["seed"]

    of_b = {key(row): row for row in rows_b if row["outcome"] == "finished"}
    found = [(row, of_b[key(row)]) for row in rows_a if row["outcome"] == "finished" and key(row) in of_b]
    if not found:
        raise BadInput("the groups share no finished cell of equal budget, size and seed: nothing can be paired")
    return sorted(found, key=lambda pair: key(pair[0]))


def as_row(row_a: Row, row_b: Row, difference: Difference, spread: float | None) -> dict[str, Any]:
    """A compared pair as plain values, with every quantity that moved between the two."""
    moved = ("num_params", "num_params_active", "flops_per_token", "kv_cache_bytes_per_token", "train_flops")
    moved += ("e_real", "e_eq", "e_comp", "effective_depth")
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
        "moved": {name: [row_a[name], row_b[name]] for name in moved if row_a[name] != row_b[name]},
    }


def mean_difference(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean over pairs; the standard error is that of the pairs' scatter, None with one pair."""
    differences = np.array([item["difference_nats"] for item in found])
    count = len(differences)
    error = float(differences.std(ddof=1) / math.sqrt(count)) if count > 1 else None
    return {"difference_nats": float(differences.mean()), "standard_error_nats": error, "num_pairs": count}
