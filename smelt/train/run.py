"""A Cell of a grid -> its run folder: metrics while it trains, then weights, validation losses and one row.

    spec.json  fingerprint.json  state.json  metrics.jsonl  log.txt  checkpoints/  validation.npz  row.json

A run that shares a trunk with others (`smelt.trunk`) begins where one of them left it and keeps the states that others
need; losses, weights and metrics are those of training it alone. What was shared is told apart by its seconds:

    train_secs, data_wait_secs    of every step of the run, whoever trained it: what the run costs alone
    the other seconds             of this run itself: total_secs, summed over rows, is what was spent

Order at the end: weights are saved before they are evaluated, and the row is written last, so that a run with a row
is whole. A non-finite loss raises; it is caught here, once, and becomes a row with outcome `diverged` and no loss.
The host waits for the device only where it logs.

A run that is spread over several processes is trained by all of them with these same calls. The first one's folder is
the run's; the others are given folders of their own, which nobody keeps.
"""

import datetime
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from smelt import ledger, parallel, spec, trunk
from smelt.data import pipeline
from smelt.data.corpus import Corpus
from smelt.errors import BadInput
from smelt.files import write_json
from smelt.grid import Cell, Grid
from smelt.train import checkpoint, evaluate, fingerprint, forks, row
from smelt.train.row import Clock, Measured
from smelt.train.schedule import learning_rate, view_ramp
from smelt.train.step import State, compile_step, init_state, shape_key, state_shardings

PENDING_STEPS = 16  # steps that may be in flight before the host reads their losses
REPORT_EVERY_SECS = 2.0


class Stopped(Exception):
    """A signal asked the run to stop; nothing of it is lost that a restart would not train again."""


class Diverged(Exception):
    """The loss was not finite."""


@dataclass
class Programs:
    """Compiled programs by shape, kept for the runs that follow in this process; and what each run is spread over."""

    mesh: Mesh | None = None
    accumulate: int = 1
    steps: dict[Any, Any] = field(default_factory=dict)
    evaluations: dict[Any, Any] = field(default_factory=dict)

    def step(self, run: spec.RunSpec) -> Any:
        key = shape_key(run.arch, run.optim, run.data)
        if key not in self.steps:
            self.steps[key] = compile_step(run.arch, run.optim, run.data, self.mesh, self.accumulate)
        return self.steps[key]

    def evaluation(self, run: spec.RunSpec) -> Any:
        key = (run.arch, run.data)
        if key not in self.evaluations:
            self.evaluations[key] = evaluate.compile_token_losses(run.arch, run.data, self.mesh)
        return self.evaluations[key]

    def batches(self, corpus: Corpus, run: spec.RunSpec, first_step: int, end_step: int) -> Iterator[pipeline.Batch]:
        """The batches of some steps, laid where the step wants them; a process reads what its devices hold."""
        data = run.data
        batches = pipeline.Batches(corpus, seq_len=data.seq_len, batch_seqs=data.batch_seqs, seed=run.seed)
        if self.mesh is None:
            return batches.prefetch(first_step, end_step)
        sharding = parallel.batch_sharding(self.mesh, data.batch_seqs)
        rows = parallel.rows_of_process(sharding, data.batch_seqs)
        shape = data.batch_seqs, data.seq_len + 1

        def laid(part: np.ndarray) -> jax.Array:
            return jax.make_array_from_process_local_data(sharding, part, shape)

        return (pipeline.Batch(*map(laid, batch)) for batch in batches.prefetch(first_step, end_step, rows))

    def laid(self, state: State) -> State:
        """A state where the step wants it."""
        return state if self.mesh is None else parallel.spread(state, state_shardings(self.mesh, state))


def train_cell(
    experiment: str,
    grid: Grid,
    cell: Cell,
    folder: Path,
    corpus: Corpus,
    programs: Programs,
    stop: Callable[[], None],
    siblings: Sequence[spec.RunSpec] = (),
) -> ledger.Row:
    """Train one cell and write its folder. `stop` is polled every step and raises Stopped. siblings: runs of its trunk
    that are still to be trained; with them the caller holds the claim on the trunk's folder."""
    clock = Clock()
    run = cell.run
    if run.arch.vocab_size < corpus.vocab_size:
        raise BadInput(
            f"vocab_size {run.arch.vocab_size} is smaller than the {corpus.vocab_size} ids of corpus "
            f"{run.data.corpus}: give the architecture at least as many"
        )
    provenance = fingerprint.provenance(corpus.fingerprint, run.arch.own, programs.mesh, programs.accumulate)
    write_json(folder / "spec.json", spec.to_dict(run))
    layout = fingerprint.layout(programs.mesh, programs.accumulate)
    write_json(folder / "fingerprint.json", provenance | layout)
    shared = _Shared(forks.folder_of(folder.parent, run), trunk.forks_to_keep(run, siblings), provenance | layout)
    left = [trunk.trunk_of(sibling).fork_step for sibling in siblings]
    forks.sweep(shared.folder, [trunk.trunk_of(run).fork_step, *left], shared.provenance)
    measured: Measured | None
    try:
        measured = _train_and_evaluate(run, folder, corpus, programs, stop, clock, shared)
        outcome, why = "finished", ""
    except Diverged as error:
        measured, outcome, why = None, "diverged", str(error)
    made = ledger.write(folder, row.make(experiment, grid, cell, corpus, clock, measured, outcome, why, provenance))
    forks.sweep(shared.folder, left, shared.provenance)
    return made


@dataclass(frozen=True, slots=True)
class _Shared:
    """Of a run's trunk: where states are kept, the steps at which this run keeps one, and under which provenance."""

    folder: Path
    keep_steps: list[int]
    provenance: dict[str, Any]


def _train_and_evaluate(
    run: spec.RunSpec,
    folder: Path,
    corpus: Corpus,
    programs: Programs,
    stop: Callable[[], None],
    clock: Clock,
    shared: _Shared,
) -> Measured:
    stop()
    with clock.timed("compile"):
        step_program, evaluation = programs.step(run), programs.evaluation(run)
    stop()
    state, losses = _train(run, folder, corpus, programs, step_program, stop, clock, shared)
    with clock.timed("save"):
        checkpoint.save_params(folder, run.num_steps, state.params)
    with clock.timed("eval"):
        slices = pipeline.validation_windows(corpus, run.data.seq_len, run.data.validation_tokens)
        documents = evaluate.validation_losses(evaluation, state.params, slices, run.data.batch_seqs, stop)
        evaluate.save(folder / "validation.npz", documents)
    return Measured(losses, documents, {domain: windows.num_bytes for domain, windows in slices.items()})


def _train(
    run: spec.RunSpec,
    folder: Path,
    corpus: Corpus,
    programs: Programs,
    program: Any,
    stop: Callable[[], None],
    clock: Clock,
    shared: _Shared,
) -> tuple[State, np.ndarray]:
    """All steps that its trunk has not kept; returns the final state and the training loss of every step in nats."""
    begun = _begin(run, folder, shared)
    clock.secs.update(begun.secs)
    losses = np.full(run.num_steps, np.nan)
    losses[: begun.step] = begun.losses_nats()
    pending: list[tuple[int, float, dict[str, Any]]] = []
    told = time.monotonic()
    with open(folder / "metrics.jsonl", "w") as metrics_file:
        metrics_file.write(begun.metrics)

        def drain() -> None:
            for step, lr, metrics in pending:
                values = {name: float(value) for name, value in metrics.items()}
                losses[step] = values["loss_nats"]
                if not all(math.isfinite(value) for value in values.values()):
                    bad = next(name for name, value in values.items() if not math.isfinite(value))
                    raise Diverged(f"{bad} is {values[bad]} at step {step}, rate {lr:.3g}")
                metrics_file.write(json.dumps({"step": step, "lr": lr, **values}) + "\n")
            pending.clear()

        def advance(state: State, first_step: int, end_step: int) -> State:
            nonlocal told
            upcoming = programs.batches(corpus, run, first_step, end_step)
            for step in range(first_step, end_step):
                stop()
                with clock.timed("data_wait"):
                    batch = next(upcoming)
                lr = learning_rate(run.optim, run.num_steps, step)
                gamma = view_ramp(run.optim, run.num_steps, step)
                state, metrics = program(state, batch.tokens, batch.segments, np.float32(lr), np.float32(gamma))
                pending.append((step, lr, metrics))
                if len(pending) == PENDING_STEPS or step + 1 == end_step:
                    drain()
                    if time.monotonic() - told > REPORT_EVERY_SECS:
                        told = time.monotonic()
                        metrics_file.flush()
                        tell(folder, "running", step=step + 1, num_steps=run.num_steps, loss_nats=losses[step])
            return state

        state = programs.laid(begun.state)
        keep_steps = [step for step in shared.keep_steps if step > begun.step]
        for first_step, end_step in pairwise(sorted({begun.step, *keep_steps, run.num_steps})):
            with clock.timed("train"):
                state = advance(state, first_step, end_step)
            if end_step in keep_steps:
                metrics_file.flush()
                _keep(state, end_step, folder, clock, shared)
    return state, losses


def _begin(run: spec.RunSpec, folder: Path, shared: _Shared) -> forks.Fork:
    """The furthest state that the trunk has kept, of which fork.json then tells, or the state before step 0."""
    first = init_state(run.arch, run.optim, run.seed)
    begun = forks.furthest(
        shared.folder, trunk.trunk_of(run).fork_step, jax.eval_shape(lambda: first), shared.provenance
    )
    begun = _of_first(begun, first)
    told = folder / "fork.json"
    if begun is None:
        told.unlink(missing_ok=True)
        return forks.Fork(0, first, "", {})
    write_json(told, {"trunk_id": shared.folder.name, "step": begun.step, "secs": begun.secs})
    return begun


def _of_first(begun: forks.Fork | None, like: State) -> forks.Fork | None:
    """What the first of several processes begins from, in all of them: it alone sees the trunk's folder."""
    if jax.process_count() == 1:
        return begun
    told = "" if begun is None else json.dumps([begun.step, begun.metrics, begun.secs])
    told = parallel.text_from_first(told)
    if not told:
        return None
    step, metrics, secs = json.loads(told)
    return forks.Fork(step, parallel.from_first(like if begun is None else begun.state), metrics, secs)


def _keep(state: State, step: int, folder: Path, clock: Clock, shared: _Shared) -> None:
    """Save the state for the other runs of the trunk."""
    metrics = (folder / "metrics.jsonl").read_text()
    secs = {purpose: clock.secs[purpose] for purpose in ("train", "data_wait")}
    with clock.timed("save"):
        forks.save(shared.folder, forks.Fork(step, state, metrics, secs), shared.provenance)


def tell(folder: Path, state: str, **facts: Any) -> None:
    """Replace state.json: what the run is doing, for `status` and the live table."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in facts.items()}
    write_json(folder / "state.json", {"state": state, "updated_at": now, **facts})
