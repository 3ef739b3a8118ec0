"""A cell and what was measured of it -> its row; nothing here decides a loss.

Wall seconds are kept by purpose (`Clock`): train holds the wait for data, compile the tracing.
"""

import datetime
import json
import math
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from smelt import ledger, spec
from smelt.data.corpus import Corpus
from smelt.grid import Cell, Grid
from smelt.ledger import Row
from smelt.train import evaluate

LAST_STEPS_FRAC = 0.05  # the training loss of a row is the mean over the last 5 % of the steps, at least 10


@dataclass(frozen=True, slots=True)
class Measured:
    """Of a finished run: training loss of every step in nats, losses by document, and the bytes of each slice."""

    train_losses: np.ndarray
    documents: Mapping[str, evaluate.DocumentLosses]
    num_bytes: Mapping[str, float | None]


class Clock:
    """Wall seconds by purpose."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.secs: dict[str, float] = {}

    def timed(self, purpose: str) -> "_Timed":
        return _Timed(self, purpose)

    @property
    def total_secs(self) -> float:
        return time.perf_counter() - self.started


class _Timed:
    def __init__(self, clock: Clock, purpose: str) -> None:
        self.clock, self.purpose = clock, purpose

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        secs = time.perf_counter() - self.start
        self.clock.secs[self.purpose] = self.clock.secs.get(self.purpose, 0.0) + secs


def make(
    experiment: str,
    grid: Grid,
    cell: Cell,
    corpus: Corpus,
    clock: Clock,
    measured: Measured | None,
    outcome: str,
    why: str,
    provenance: dict[str, Any],
) -> Row:
    """The row of an ended run: labels, spec, counts, measurements, provenance. `why`: the reason of missing losses."""
    run = cell.run
    errors = grid.match_errors(cell)
    row: Row = {
        "experiment": experiment,
        "run_id": run.run_id,
        "variant": cell.variant,
        "size": cell.size,
        "role": cell.role,
        "budget_flops": cell.budget_flops,
        "flops_convention": grid.convention,
        "held_equal": grid.held,
        "match_error_flops": errors["flops_per_token"],
        "match_error_params": errors["num_params"],
        "match_error_kv": errors["kv_cache"],
        "match_error_held": grid.worst_held_error(cell),
        **spec.flatten(run),
        **ledger.counts(run.arch, cell.baseline, run.data.seq_len, grid.convention),
        "train_flops": grid.train_flops(cell),
        "num_tokens": run.num_tokens,
        "epochs": run.num_tokens / corpus.num_train_tokens,
        "outcome": outcome,
        **_measurements(run, clock, measured),
        **provenance,
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    nulls = [name for name, value in row.items() if value is None and name not in spec.flatten(run)]
    row["null_reasons"] = json.dumps({name: why or _why_null(name) for name in nulls})
    return row


def _why_null(name: str) -> str:
    if name.startswith("bits_per_byte"):
        return "the corpus does not say how many bytes its tokens stand for"
    return "fewer than two documents in the validation slice"


def _measurements(run: spec.RunSpec, clock: Clock, measured: Measured | None) -> dict[str, Any]:
    secs = {f"{purpose}_secs": clock.secs.get(purpose) for purpose in ("train", "compile", "data_wait", "eval", "save")}
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values: dict[str, Any] = {
        **secs,
        "total_secs": clock.total_secs,
        "tokens_per_sec": run.num_tokens / secs["train_secs"] if measured is not None and secs["train_secs"] else None,
        "peak_memory_bytes": kibibytes if sys.platform == "darwin" else kibibytes * 1024,
    }
    if measured is None:
        absent = ("val_loss_nats", "val_loss_se_nats", "bits_per_byte", "train_loss_nats", "train_loss_se_nats")
        return values | dict.fromkeys(absent)
    last = measured.train_losses[-max(10, round(LAST_STEPS_FRAC * run.num_steps)) :]
    documents = measured.documents
    bits = {
        domain: evaluate.bits_per_byte(of_domain, measured.num_bytes[domain]) for domain, of_domain in documents.items()
    }
    known_bits = [value for value in bits.values() if value is not None]
    errors = {domain: of_domain.standard_error_nats for domain, of_domain in documents.items()}
    known = [error for error in errors.values() if error is not None]
    values |= {
        "val_loss_nats": float(np.mean([of_domain.loss_nats for of_domain in documents.values()])),
        "val_loss_se_nats": math.hypot(*known) / len(documents) if len(known) == len(documents) else None,
        "bits_per_byte": float(np.mean(known_bits)) if len(known_bits) == len(bits) else None,
        "train_loss_nats": float(last.mean()),
        "train_loss_se_nats": float(last.std(ddof=1) / math.sqrt(len(last))),
    }
    for domain, of_domain in documents.items():
        values[f"val_loss_nats.{domain}"] = of_domain.loss_nats
        values[f"val_loss_se_nats.{domain}"] = errors[domain]
        values[f"bits_per_byte.{domain}"] = bits[domain]
    return values
