"""A Cell of a grid -> its run folder: metrics while it trains, then weights, validation losses and one row.

    spec.json  fingerprint.json  state.json  metrics.jsonl  log.txt  checkpoints/  validation.npz  row.json

Order at the end: weights are saved before they are evaluated, and the row is written last, so that a run with a row
is whole. A non-finite loss raises; it is caught here, once, and becomes a row with outcome `diverged` and no loss.
The host waits for the device only where it logs.
"""

import datetime
import json
import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smelt import ledger, spec
from smelt.data import pipeline
from smelt.data.corpus import Corpus
from smelt.errors import BadInput
from smelt.files import write_json
from smelt.grid import Cell, Grid
from smelt.train import checkpoint, evaluate, fingerprint
from smelt.train.schedule import learning_rate
from smelt.train.step import State, compile_step, init_state, shape_key

LAST_STEPS_FRAC = 0.05  # the training loss of a row is the mean over the last 5 % of the steps, at least 10
PENDING_STEPS = 16  # steps that may be in flight before the host reads their losses
REPORT_EVERY_SECS = 2.0


class Stopped(Exception):
    """A signal asked the run to stop; nothing of it is lost that a restart would not train again."""


class Diverged(Exception):
    """The loss was not finite."""


@dataclass
class Programs:
    """Compiled programs by shape, kept for the runs that follow in this process."""

    steps: dict[Any, Any] = field(default_factory=dict)
    evaluations: dict[Any, Any] = field(default_factory=dict)

    def step(self, run: spec.RunSpec) -> Any:
        key = shape_key(run.arch, run.optim, run.data)
        if key not in self.steps:
            self.steps[key] = compile_step(run.arch, run.optim, run.data)
        return self.steps[key]

    def evaluation(self, run: spec.RunSpec) -> Any:
        key = (run.arch, run.data)
        if key not in self.evaluations:
            self.evaluations[key] = evaluate.compile_token_losses(run.arch, run.data)
        return self.evaluations[key]


def train_cell(
    experiment: str,
    grid: Grid,
    cell: Cell,
    folder: Path,
    corpus: Corpus,
    programs: Programs,
    stop: Callable[[], None],
) -> ledger.Row:
    """Train one cell from its first step and write its folder. `stop` is polled every step and raises Stopped."""
    clock = Clock()
    run = cell.run
    if run.arch.vocab_size < corpus.vocab_size:
        raise BadInput(
            f"vocab_size {run.arch.vocab_size} is smaller than the {corpus.vocab_size} ids of corpus "
            f"{run.data.corpus}: give the architecture at least as many"
        )
    provenance = fingerprint.provenance(corpus.fingerprint)
    write_json(folder / "spec.json", spec.to_dict(run))
    write_json(folder / "fingerprint.json", provenance)
    measured: dict[str, Any]
    try:
        measured = _train_and_evaluate(run, folder, corpus, programs, stop, clock)
        outcome, why = "finished", ""
    except Diverged as error:
        measured, outcome, why = {}, "diverged", str(error)
    row = _row(experiment, grid, cell, corpus, clock, measured, outcome, why, provenance)
    return ledger.write(folder, row)


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


def _train_and_evaluate(
    run: spec.RunSpec, folder: Path, corpus: Corpus, programs: Programs, stop: Callable[[], None], clock: Clock
) -> dict[str, Any]:
    stop()
    with clock.timed("compile"):
        step_program, evaluation = programs.step(run), programs.evaluation(run)
    stop()
    state, losses = _train(run, folder, corpus, step_program, stop, clock)
    with clock.timed("save"):
        checkpoint.save_params(folder, run.num_steps, state.params)
    with clock.timed("eval"):
        slices = pipeline.validation_windows(corpus, run.data.seq_len, run.data.validation_tokens)
        documents = evaluate.validation_losses(evaluation, state.params, slices, run.data.batch_seqs, stop)
        evaluate.save(folder / "validation.npz", documents)
    num_bytes = {domain: windows.num_bytes for domain, windows in slices.items()}
    return {"losses": losses, "documents": documents, "num_bytes": num_bytes}


def _train(
    run: spec.RunSpec, folder: Path, corpus: Corpus, program: Any, stop: Callable[[], None], clock: Clock
) -> tuple[State, np.ndarray]:
    """All steps; returns the final state and the training loss of every step in nats."""
    batches = pipeline.Batches(corpus, seq_len=run.data.seq_len, batch_seqs=run.data.batch_seqs, seed=run.seed)
    state = init_state(run.arch, run.optim, run.seed)
    losses = np.full(run.num_steps, np.nan)
    pending: list[tuple[int, float, dict[str, Any]]] = []
    told = time.monotonic()
    with open(folder / "metrics.jsonl", "w") as metrics_file, clock.timed("train"):

        def drain() -> None:
            for step, lr, metrics in pending:
                values = {name: float(value) for name, value in metrics.items()}
                losses[step] = values["loss_nats"]
                if not all(math.isfinite(value) for value in values.values()):
                    bad = next(name for name, value in values.items() if not math.isfinite(value))
                    raise Diverged(f"{bad} is {values[bad]} at step {step}, rate {lr:.3g}")
                metrics_file.write(json.dumps({"step": step, "lr": lr, **values}) + "\n")
            pending.clear()

        upcoming = batches.prefetch(0, run.num_steps)
        for step in range(run.num_steps):
            stop()
            with clock.timed("data_wait"):
                batch = next(upcoming)
            lr = learning_rate(run.optim, run.num_steps, step)
            state, metrics = program(state, batch.tokens, batch.segments, np.float32(lr))
            pending.append((step, lr, metrics))
            if len(pending) == PENDING_STEPS or step + 1 == run.num_steps:
                drain()
                if time.monotonic() - told > REPORT_EVERY_SECS:
                    told = time.monotonic()
                    metrics_file.flush()
                    tell(folder, "running", step=step + 1, num_steps=run.num_steps, loss_nats=losses[step])
    return state, losses


def tell(folder: Path, state: str, **facts: Any) -> None:
    """Replace state.json: what the run is doing, for `status` and the live table."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in facts.items()}
    write_json(folder / "state.json", {"state": state, "updated_at": now, **facts})


def _row(
    experiment: str,
    grid: Grid,
    cell: Cell,
    corpus: Corpus,
    clock: Clock,
    measured: dict[str, Any],
    outcome: str,
    why: str,
    provenance: dict[str, Any],
) -> ledger.Row:
    run = cell.run
    errors = grid.match_errors(cell)
    row: ledger.Row = {
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


def _measurements(run: spec.RunSpec, clock: Clock, measured: dict[str, Any]) -> dict[str, Any]:
    secs = {f"{purpose}_secs": clock.secs.get(purpose) for purpose in ("train", "compile", "data_wait", "eval", "save")}
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values: dict[str, Any] = {
        **secs,
        "total_secs": clock.total_secs,
        "tokens_per_sec": run.num_tokens / secs["train_secs"] if measured and secs["train_secs"] else None,
        "peak_memory_bytes": kibibytes if sys.platform == "darwin" else kibibytes * 1024,
    }
    if not measured:
        absent = ("val_loss_nats", "val_loss_se_nats", "bits_per_byte", "train_loss_nats", "train_loss_se_nats")
        return values | dict.fromkeys(absent)
    last = measured["losses"][-max(10, round(LAST_STEPS_FRAC * run.num_steps)) :]
    documents: dict[str, evaluate.DocumentLosses] = measured["documents"]
    bits = {
        domain: evaluate.bits_per_byte(of_domain, measured["num_bytes"][domain])
        for domain, of_domain in documents.items()
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
