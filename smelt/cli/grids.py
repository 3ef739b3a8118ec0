"""Verbs on a grid before and while it trains: plan, run, status.

A verb is a function: its arguments are its options, its docstring its help. Heavy imports stay inside, so that planning
starts at once.
"""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from smelt import terminal
from smelt.cli.words import Json, Name, at_least, print_json, say, status_of
from smelt.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE, BadInput


def plan(
    name: Name,
    *,
    calibrate: Annotated[bool, arg(help="time a few shapes on this machine first, about a minute")] = False,
    workers: Annotated[int | None, arg(help="processes the price is for; one a core where left out")] = None,
    assume_flops_per_sec: Annotated[
        float | None, arg(help="price it for a machine that sustains this rate a worker, instead of this one")
    ] = None,
    max_hours: Annotated[float | None, arg(help="refuse (exit 2) a grid that is predicted to take longer")] = None,
    rate_per_hour: Annotated[float | None, arg(help="price of an hour of this machine, to print a cost")] = None,
    csv: Annotated[Path | None, arg(help="also write the table as CSV")] = None,
    md: Annotated[bool, arg(help="print the table as markdown")] = False,
    wide: Annotated[bool, arg(help="all columns: shapes, batch, rate, the three errors, epochs, memory")] = False,
    json: Json = False,
) -> int:
    """Show the grid as a table with counts, matched errors and prices; nothing is trained.

    e.g. smelt plan quickstart; smelt plan quickstart --calibrate --max-hours 0.5; smelt plan my/grid.py --json;
    smelt plan smelt_paper --assume-flops-per-sec 4e14 --workers 1
    """
    from smelt import experiment as experiments
    from smelt import own
    from smelt.launch import calibration as calibrations
    from smelt.launch.environment import available_cores

    at_least("--workers", workers, 1)
    at_least("--assume-flops-per-sec", assume_flops_per_sec, 0, low_open=True)
    at_least("--max-hours", max_hours, 0, low_open=True)
    at_least("--rate-per-hour", rate_per_hour, 0)
    experiment = experiments.load(name)
    own.check(experiment.grid)
    if assume_flops_per_sec is not None:
        kept = calibrations.assumed(assume_flops_per_sec)
    else:
        kept = calibrations.calibrate(experiment, say) if calibrate else calibrations.kept()
    priced = _plan(experiment, kept, workers or len(available_cores()))
    totals = dict(priced.totals)
    if rate_per_hour is not None:
        totals["cost"] = None if totals["wall_secs"] is None else totals["wall_secs"] / 3600 * rate_per_hour
    if csv is not None:
        _write_csv(csv, priced.rows)
    if json:
        print_json({"experiment": experiment.name, "rows": priced.rows, "totals": totals, "warnings": priced.warnings})
    else:
        _print_plan(priced, totals, markdown=md, wide=wide)
    if max_hours is not None:
        if totals["wall_secs"] is None:
            raise BadInput(f"--max-hours cannot be checked: {totals['null_reason']}")
        if totals["wall_secs"] > max_hours * 3600:
            hours = totals["wall_secs"] / 3600
            raise BadInput(f"the grid is predicted to take {hours:.2f} h, over --max-hours {max_hours}: shrink it")
    return EXIT_DONE


def _plan(experiment: Any, calibration: Any, num_workers: int) -> Any:
    from smelt import plan as planning
    from smelt.data.store import open_corpus
    from smelt.launch import folder as folders

    num_train_tokens: dict[str, int | None] = {}
    for corpus in {cell.run.data.corpus for cell in experiment.grid.cells}:
        try:
            num_train_tokens[corpus] = open_corpus(corpus).num_train_tokens
        except BadInput as error:
            say(f"epochs are not known: {error}")
            num_train_tokens[corpus] = None
    return planning.plan(
        experiment.grid,
        num_train_tokens=num_train_tokens,
        calibration=calibration,
        num_workers=num_workers,
        state_of=lambda cell: folders.status(experiment.folder / cell.run.run_id).state,
    )


LEGEND = """N, active: non-embedding parameters, all and of one traversal. layers: prelude+looped x passes+coda.
heads: query/KV heads x width. off: achieved FLOPs over the budget. match: the worst error of what is held equal.
time: steps and compilation; evaluation and start-up come on top."""


def _print_plan(priced: Any, totals: dict[str, Any], *, markdown: bool, wide: bool) -> None:
    count, percent = terminal.count, terminal.percent
    columns: dict[str, Any] = {
        "run": lambda row: row["run_id"][:8],
        "role": lambda row: row["role"],
        "variant": lambda row: row["variant"],
        "budget": lambda row: count(row["budget_flops"]),
        "size": lambda row: str(row["size"]),
        "seed": lambda row: str(row["seed"]),
        "width": lambda row: str(row["d_model"]),
        "N": lambda row: count(row["num_params"]),
        "tokens": lambda row: count(row["num_tokens"]),
        "steps": lambda row: str(row["num_steps"]),
        "off": lambda row: percent(row["budget_error"]),
        "match": lambda row: f"{row['match_error_held']:.2%}",
        "time": lambda row: terminal.duration(row["secs"]),
        "state": lambda row: row["state"],
    }
    if wide:
        columns |= {
            "layers": lambda row: row["layers"],
            "heads": lambda row: row["heads"],
            "experts": lambda row: row["experts"],
            "active": lambda row: count(row["num_params_active"]),
            "tokens/N": lambda row: f"{row['tokens_per_param']:.3g}",
            "batch": lambda row: str(row["batch_tokens"]),
            "rate": lambda row: f"{row['peak_lr']:.3g}",
            "FLOPs": lambda row: count(row["train_flops"]),
            "F err": lambda row: percent(row["match_error_flops"]),
            "N err": lambda row: percent(row["match_error_params"]),
            "KV err": lambda row: percent(row["match_error_kv"]),
            "epochs": lambda row: "-" if row["epochs"] is None else f"{row['epochs']:.2f}",
            "memory": lambda row: terminal.num_bytes(row["memory_bytes"]),
        }
    table = [[render(row) for render in columns.values()] for row in priced.rows]
    print(terminal.table(list(columns), table, markdown))
    print(f"\n{LEGEND}" + ("" if wide else " More columns: --wide."))
    print(
        f"\n{totals['num_cells']} runs, {totals['num_to_train']} to train, {totals['train_flops']:.3g} FLOPs, "
        f"{terminal.num_bytes(totals['disk_bytes'])} on disk"
    )
    if totals["executed_flops"] < totals["train_flops"]:
        print(f"{totals['executed_flops']:.3g} FLOPs are executed: runs that share a trunk train it once")
    workers = terminal.plural(totals["num_workers"], "worker")
    if totals["wall_secs"] is None:
        print(f"time and memory: unknown, {totals['null_reason']}")
    else:
        memory = totals["peak_memory_bytes"]
        print(
            f"predicted {terminal.duration(totals['wall_secs'])} with {workers} on {totals['device']}, memory "
            + ("unknown: it was not timed here" if memory is None else terminal.num_bytes(memory))
        )
    if totals.get("cost") is not None:
        print(f"cost {totals['cost']:.2f}")
    for warning in priced.warnings:
        print(f"warning ({warning['code']}): {warning['message']}")


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    import csv
    import io

    from smelt.files import write_text

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def run(
    name: Name,
    *,
    workers: Annotated[int | None, arg(help="processes; one a core where left out")] = None,
    only: Annotated[tuple[str, ...], arg(help="variants, roles or run ids (their beginning) to train")] = (),
    limit: Annotated[int | None, arg(help="train at most so many runs, in the order of the plan")] = None,
    retry_failed: Annotated[bool, arg(help="train failed runs again")] = False,
    retrain_stale: Annotated[bool, arg(help="move rows of other code or corpus aside and train them again")] = False,
    dry_run: Annotated[bool, arg(help="say what would be trained, and stop")] = False,
    mesh: Annotated[str | None, arg(help="devices that each run is spread over, as in data=4,expert=2")] = None,
    accumulate: Annotated[int, arg(help="micro-batches of a step, one after another")] = 1,
    hosts: Annotated[
        str | None, arg(help="first host's address, how many hosts, which one this is, as in 10.0.0.1:1234,2,0")
    ] = None,
    json: Json = False,
) -> int:
    """Train what is missing; the same command again trains nothing.

    Runs that are to be predicted are trained last, after their loss was predicted from the others. Ctrl-C stops after
    the step at hand (exit 75), twice at once. e.g. smelt run quickstart; smelt run quickstart --only loop_middle;
    smelt run quickstart --mesh data=4,expert=2
    """
    from smelt import experiment as experiments
    from smelt import own
    from smelt.data.store import open_corpus
    from smelt.launch import folder as folders
    from smelt.launch.spread import spread
    from smelt.plan import check_corpora, check_disk

    asked = spread(mesh, accumulate, hosts)
    if asked.mesh and workers is not None:
        raise BadInput(f"--workers {workers} with --mesh {mesh}: a mesh is one worker; leave --workers out")
    at_least("--workers", workers, 1)
    at_least("--limit", limit, 1)
    if "" in only:
        raise BadInput("--only has an empty word, which would select every run: leave it out, or say what to train")
    experiment = experiments.load(name)
    grid = experiment.grid
    names = sorted({cell.run.data.corpus for cell in grid.cells})
    check_corpora(grid, {corpus: open_corpus(corpus) for corpus in names})

    for cell in grid.cells:
        if cell.run.data.batch_seqs % accumulate:
            raise BadInput(f"--accumulate {accumulate} does not divide a batch of {cell.run.data.batch_seqs} sequences")
    most = max(segment.ffn.num_experts for cell in grid.cells for segment in cell.run.arch.segments)
    if asked.mesh and asked.mesh[1] > most:
        raise BadInput(f"--mesh {mesh}: no layer has more than {most} experts to spread, give expert={most} or fewer")
    if asked.follows:  # the first host knows what is missing
        return _train(experiment, grid.cells, None, quiet=True, asked=asked)

    def folder_of(cell: Any) -> Path:
        return experiment.folder / cell.run.run_id

    chosen = [cell for cell in grid.cells if not only or _chosen(cell, only)]
    if not chosen:
        raise BadInput(f"--only {' '.join(only)} selects no run of {experiment.name}: see smelt plan {name}")
    state_of = status_of(experiment)
    stale = [cell for cell in chosen if retrain_stale and state_of(cell).state == "stale"]
    if not dry_run:
        _move_aside(experiment, stale)
    missing = [
        cell for cell in chosen if cell in stale or folders.pending([cell], folder_of, retry_failed=retry_failed)
    ][:limit]
    reused = sum(folders.status(folder_of(cell)).done and cell not in stale for cell in chosen)
    if dry_run:
        would = {"would_train": [cell.run.run_id for cell in missing], "reused": reused}
        print_json(would) if json else print(f"{len(missing)} runs would be trained, {reused} are there already")
        return EXIT_DONE
    check_disk(missing, experiment.folder)
    if missing:
        own.check(grid)
    if asked.hosts and len({cell.role == "prediction" for cell in missing}) == 2:
        raise BadInput(
            "some of these runs are predicted from the others before they are trained, and hosts meet once: train the "
            f"others first, with --only {' '.join(sorted({cell.role for cell in missing} - {'prediction'}))}"
        )
    code = EXIT_DONE
    for predicting in (False, True):
        stage = [cell for cell in missing if (cell.role == "prediction") == predicting]
        if not stage:
            continue
        if predicting:
            _predict_before_training(experiment)
        experiment.remember()
        code = _train(experiment, stage, workers, quiet=json, asked=asked)
        if code != EXIT_DONE:
            break
    # What failed before and was not tried again is told again: "0 failed" would say that all is well.
    untried = [cell for cell in chosen if cell not in missing and folders.status(folder_of(cell)).state == "failed"]
    told = [*missing, *untried]
    states = [folders.status(folder_of(cell)) for cell in told]
    summary = {
        "computed": sum(state.state == "finished" for state in states),
        "reused": reused,
        "diverged": sum(state.state == "diverged" for state in states),
        "failed": sum(state.state == "failed" for state in states),
        "left": sum(state.state in ("planned", "stopped", "running") for state in states),
    }
    for cell, state in zip(told, states, strict=True):
        if state.state in ("failed", "diverged"):
            say(f"{state.state}: run {cell.run.run_id} ({state.reason}); see {folder_of(cell)}")
    if code == EXIT_FAILED and summary["left"]:
        say(
            f"a worker ended before its runs did: see {experiment.folder}/worker-*.log (empty where the disk is full "
            "or the system killed it), then run the same command again"
        )
    if code == EXIT_DONE and summary["left"] and limit is None:
        say(f"{summary['left']} runs are being trained by another process: the same command again takes what it leaves")
        code = EXIT_RESUMABLE
    if untried:
        say(f"{len(untried)} runs that failed before were not tried again: --retry-failed trains them")
        code = code or EXIT_FAILED
    line = ", ".join(f"{number} {what}" for what, number in summary.items())
    print_json(summary) if json else print(line)
    return code


def _chosen(cell: Any, only: Sequence[str]) -> bool:
    return any(word in (cell.variant, cell.role) or cell.run.run_id.startswith(word) for word in only)


def _train(experiment: Any, cells: Sequence[Any], workers: int | None, *, quiet: bool, asked: Any) -> int:
    from smelt.launch import local

    def terminated(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        with terminal.watching(quiet) as watch:
            return local.train(experiment, cells, workers, watch, spread=asked)
    except KeyboardInterrupt:
        say("stopped: finished runs are kept, the same command goes on with the others")
        return EXIT_RESUMABLE
    finally:
        signal.signal(signal.SIGTERM, before)


def _predict_before_training(experiment: Any) -> None:
    """Keep a prediction before its first run is trained; one that was kept before such a run stays as it is."""
    from smelt import ledger, prediction

    rows = ledger.read_folder(experiment.folder)
    if any(row["role"] == "prediction" for row in rows) and prediction.read_prediction(experiment.folder):
        return
    if path := prediction.write_prediction(experiment, rows):
        say(f"predicted before training: {path}")


def _move_aside(experiment: Any, cells: Sequence[Any]) -> None:
    import time

    from smelt.launch import folder as folders

    for cell in cells:
        folder = experiment.folder / cell.run.run_id
        with folders.claim(folder) as mine:
            if mine:
                folder.rename(folder.with_name(f".stale-{cell.run.run_id}-{time.time():.0f}"))


def status(name: Name, *, json: Json = False) -> int:
    """Every run's state and why; from any shell, at any time.

    e.g. smelt status quickstart; smelt status quickstart --json
    """
    from smelt import experiment as experiments
    from smelt.grid import describe

    experiment = experiments.load(name)
    found, state_of = [], status_of(experiment)
    for cell in experiment.grid.cells:
        state = state_of(cell)
        facts = {"run_id": cell.run.run_id, "run": describe(cell), "state": state.state, "reason": state.reason or None}
        found.append(facts | {"step": state.step, "num_steps": cell.run.num_steps, "loss_nats": state.loss_nats})
    if json:
        print_json(found)
        return EXIT_DONE
    rows = [
        [
            item["run_id"],
            item["state"],
            "-" if item["step"] is None else f"{item['step']}/{item['num_steps']}",
            "-" if item["loss_nats"] is None else f"{item['loss_nats']:.4f}",
            item["run"],
            item["reason"] or "",
        ]
        for item in found
    ]
    print(terminal.table(["run", "state", "step", "loss", "what", "why"], rows))
    counts: dict[str, int] = {}
    for item in found:
        counts[item["state"]] = counts.get(item["state"], 0) + 1
    print("\n" + ", ".join(f"{number} {state}" for state, number in counts.items()))
    return EXIT_DONE
