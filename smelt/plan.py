"""A Grid, a corpus and a calibration -> the grid as a table before anything trains: counts, prices and warnings.

A price that was not measured is None with its reason: seconds and memory come from a calibration of this machine
(`launch.calibration`) or not at all. Seconds are of steps and compilation; evaluation, saving and start-up come on
top. Runs that share a trunk (`trunk`) train it once, in one worker:

    train_flops       of a run, as if it were trained alone: what a law regresses on
    executed_flops    flops_per_token x the tokens that are trained for it, from the last fork before its own on
    wall_secs         the seconds of what is executed over the workers, or of the longest trunk where that is more

States that an interrupted trunk has kept make it cheaper than that. Warnings are data, each with a code: repeated_data,
one_sided, few_sizes, budget_off, match_off, few_steps, mup_proportions, price_extrapolated.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt import budget, trunk
from smelt.data.store import Corpus
from smelt.errors import BadInput
from smelt.grid import MIN_SIZES, Cell, Grid, describe
from smelt.launch.calibration import Calibration
from smelt.spec import RunSpec

# Peak resident memory of a worker that compiles its own shapes, measured over the quickstart (jax 0.12, Linux): 763 MiB
# in its first run, 1,030 MiB after some twenty; programs and freed memory stay.
PROCESS_BYTES = 1000 * 2**20
STATE_BYTES_PER_PARAM = 16  # float32 weights, two moments, gradient
KEPT_BYTES_PER_PARAM = 4  # final weights
FORK_BYTES_PER_PARAM = 12  # weights and two moments, where a trunk is left
KEPT_BYTES_PER_STEP = 140  # a line of metrics.jsonl
RUN_FILES_BYTES = 250_000  # losses by document, orbax's own files, row and state: measured 160 kB at two domains
BUDGET_TOLERANCE = 0.01
MATCH_AIM = 0.01
FEW_STEPS = 100
MUP_TOLERANCE = 0.15  # a size over d_model may move by so much, which is what whole numbers do to small models


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows of the table, totals, and warnings as {code, message}."""

    rows: tuple[dict[str, Any], ...]
    totals: dict[str, Any]
    warnings: tuple[dict[str, str], ...]


def plan(
    grid: Grid,
    *,
    num_train_tokens: Mapping[str, int | None],
    calibration: Calibration | None,
    num_workers: int,
    state_of: Callable[[Cell], str],
) -> Plan:
    """Price a grid. num_train_tokens: corpus name -> tokens of its training split, None where it is not built."""
    states = {cell.run.run_id: state_of(cell) for cell in grid.cells}
    left = [cell.run for cell in grid.cells if states[cell.run.run_id] not in ("finished", "diverged", "stale")]
    of_all, steps_left = trunk.executed_steps(cell.run for cell in grid.cells), trunk.executed_steps(left)
    steps = of_all | steps_left
    rows = tuple(
        _row(
            grid,
            cell,
            num_train_tokens[cell.run.data.corpus],
            calibration,
            states[cell.run.run_id],
            steps[cell.run.run_id],
        )
        for cell in grid.cells
    )
    missing = [row for row in rows if row["run_id"] in steps_left]
    reason = None if calibration else "no calibration of this machine is kept: smelt plan --calibrate times one"
    secs = {row["run_id"]: row["secs"] for row in missing}
    known_bytes = [row["memory_bytes"] for row in rows if row["memory_bytes"] is not None]
    totals = {
        "num_cells": len(rows),
        "num_to_train": len(missing),
        "train_flops": sum(row["train_flops"] for row in rows),
        "train_flops_left": sum(row["train_flops"] for row in missing),
        "executed_flops": sum(row["train_flops"] * of_all[row["run_id"]] / row["num_steps"] for row in rows),
        "executed_flops_left": sum(row["executed_flops"] for row in missing),
        "disk_bytes": sum(row["disk_bytes"] for row in rows),
        "num_workers": num_workers,
        "device": calibration.device if calibration else None,
        "wall_secs": _wall_secs(secs, left, num_workers) if calibration else None,
        "peak_memory_bytes": num_workers * max(known_bytes) if known_bytes else None,
        "null_reason": reason,
    }
    return Plan(rows=rows, totals=totals, warnings=tuple(_warnings(grid, rows)))


def _wall_secs(secs: Mapping[str, float], left: Sequence[RunSpec], num_workers: int) -> float:
    """Of runs that take these seconds each: a trunk is one worker's."""
    trunks = [sum(secs[run.run_id] for run in runs) for runs in trunk.by_trunk(left).values()]
    return max(sum(trunks) / num_workers, max(trunks, default=0.0))


def kept_bytes(run: RunSpec) -> int:
    """What a run leaves on disk: weights and a line of metrics a step."""
    return KEPT_BYTES_PER_PARAM * budget.params(run.arch).total + KEPT_BYTES_PER_STEP * run.num_steps


def check_disk(cells: Sequence[Cell], folder: Path) -> None:
    """Raise BadInput where the disk of `folder` cannot hold what these runs keep: a run that cannot be saved at its end
    was trained for nothing."""
    wanted = sum(kept_bytes(cell.run) + RUN_FILES_BYTES for cell in cells)
    shared = [runs[0] for runs in trunk.by_trunk(cell.run for cell in cells).values() if len(runs) > 1]
    # Of the largest trunk, the state that a branch begins from and the one that it keeps for the next.
    wanted += 2 * FORK_BYTES_PER_PARAM * max((budget.params(run.arch).total for run in shared), default=0)
    place = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(place).free
    if free < wanted:
        raise BadInput(
            f"{folder} has {free / 1e6:.3g} MB free, {len(cells)} runs need {wanted / 1e6:.3g} MB: make room, or set "
            "SMELT_RUNS to another disk"
        )


def check_corpora(grid: Grid, corpora: Mapping[str, Corpus]) -> None:
    """Raise BadInput for the first cell that its corpus cannot serve: too small a vocabulary, or too little text."""
    seen: set[Any] = set()
    for cell in grid.cells:
        run, corpus = cell.run, corpora[cell.run.data.corpus]
        key = (run.arch.vocab_size, run.data)
        if key in seen:
            continue
        seen.add(key)
        name = f"{describe(cell)} on corpus {corpus.name}"
        if run.arch.vocab_size < corpus.vocab_size:
            raise BadInput(f"{name}: vocab_size {run.arch.vocab_size} is under the corpus's {corpus.vocab_size} ids")
        if corpus.num_train_tokens <= run.data.tokens_per_step:
            raise BadInput(
                f"{name}: {corpus.num_train_tokens} training tokens are less than one step: build a larger one"
            )
        for domain, held_out in corpus.num_validation_tokens.items():
            if held_out <= run.data.validation_tokens:
                wanted = run.data.validation_tokens
                raise BadInput(f"{name}: validation_tokens {wanted} is more than the {held_out} of domain {domain}")


def _row(
    grid: Grid,
    cell: Cell,
    num_train_tokens: int | None,
    calibration: Calibration | None,
    state: str,
    executed_steps: int,
) -> dict[str, Any]:
    run, arch = cell.run, cell.run.arch
    parameters, experts = budget.params(arch), budget.expert_budget(arch)
    flops_per_token, train_flops = grid.flops_per_token(cell), grid.train_flops(cell)
    errors = grid.match_errors(cell)
    secs = memory_bytes = None
    extrapolated = False
    executed_tokens = executed_steps * run.data.tokens_per_step
    if calibration:
        secs = executed_tokens * calibration.secs_per_token(flops_per_token)
        if executed_steps == run.num_steps:  # a branch finds the program that its trunk was trained with
            secs += calibration.compile_secs(flops_per_token)
        per_token = calibration.bytes_per_token(flops_per_token)
        if per_token is not None:
            state_bytes = STATE_BYTES_PER_PARAM * parameters.total
            memory_bytes = PROCESS_BYTES + state_bytes + run.data.tokens_per_step * per_token
        if not calibration.covers(flops_per_token):
            extrapolated = True
    return {
        "run_id": run.run_id,
        "role": cell.role,
        "variant": cell.variant,
        "budget_flops": cell.budget_flops,
        "size": cell.size,
        "seed": run.seed,
        "d_model": arch.d_model,
        "layers": f"{arch.num_prelude}+{arch.loop.num_layers}x{arch.loop.num_passes}+{arch.num_coda}",
        "effective_depth": arch.effective_depth,
        "e_real": experts.e_real,
        "e_eq": experts.e_eq,
        "e_comp": experts.e_comp,
        "router_flops_frac": budget.router_flops_frac(arch, run.data.seq_len),
        "heads": f"{arch.attention.num_heads}/{arch.attention.num_kv_heads}x{arch.attention.head_dim}",
        "experts": f"{arch.ffn.num_experts} top-{arch.ffn.top_k} x {arch.ffn.width}",
        "num_params": parameters.non_embedding,
        "num_params_total": parameters.total,
        "num_params_active": budget.active_params(arch),
        "flops_per_token": flops_per_token,
        "num_tokens": run.num_tokens,
        "tokens_per_param": run.num_tokens / parameters.non_embedding,
        "batch_tokens": run.data.tokens_per_step,
        "num_steps": run.num_steps,
        "peak_lr": run.optim.peak_lr,
        "executed_steps": executed_steps,
        "train_flops": train_flops,
        "executed_flops": flops_per_token * executed_tokens,
        "budget_error": train_flops / cell.budget_flops - 1,
        "match_error_flops": errors["flops_per_token"],
        "match_error_params": errors["num_params"],
        "match_error_kv": errors["kv_cache"],
        "match_error_held": grid.worst_held_error(cell),
        "epochs": run.num_tokens / num_train_tokens if num_train_tokens else None,
        "secs": secs,
        "memory_bytes": memory_bytes,
        "price_extrapolated": extrapolated,
        "disk_bytes": kept_bytes(run),
        "state": state,
    }


def _out_of_proportion(grid: Grid) -> list[tuple[str, str, float, float]]:
    """(variant, size, its smallest and largest share of d_model) of what muP wants in proportion and is not."""
    found = []
    for variant in grid.variants:
        archs = {cell.run.arch for cell in grid.cells if cell.variant == variant and cell.run.arch.mup_base_width}
        sizes = {
            "attention width": [(a, a.attention.num_heads * a.attention.head_dim) for a in archs],
            "expert width": [(a, a.ffn.width) for a in archs],
            "shared expert width": [(a, a.ffn.shared_width) for a in archs],
            "latent width": [(a, a.ffn.latent and a.ffn.latent.width) for a in archs],
        }
        for name, of_archs in sizes.items():
            shares = [size / arch.d_model for arch, size in of_archs if size]
            if shares and max(shares) > (1 + MUP_TOLERANCE) * min(shares):
                found.append((variant, name, min(shares), max(shares)))
    return found


def _warnings(grid: Grid, rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []

    def warn(code: str, message: str) -> None:
        found.append({"code": code, "message": message})

    for row in rows:
        name = f"{row['variant']} of size {row['size']} at {row['budget_flops']:.3g} FLOPs"
        if row["epochs"] is not None and row["epochs"] > 1:
            warn("repeated_data", f"{name} reads the training split {row['epochs']:.2f} times")
        if grid.design == "isoflop" and abs(row["budget_error"]) > BUDGET_TOLERANCE:
            warn("budget_off", f"{name} is {row['budget_error']:+.2%} off its budget: whole steps are too coarse")
        if row["num_steps"] < FEW_STEPS:
            warn("few_steps", f"{name} has {row['num_steps']} steps: a smaller batch gives more")
    extrapolated = sum(row["price_extrapolated"] for row in rows)
    if extrapolated:
        message = f"{extrapolated} runs are larger or smaller than every timed shape: their seconds are a guess"
        warn("price_extrapolated", message)
    for (size, variant), worst in {(row["size"], row["variant"]): row["match_error_held"] for row in rows}.items():
        if worst > MATCH_AIM:
            warn("match_off", f"{variant} of size {size} is matched to {worst:.2%} only (aim {MATCH_AIM:.0%})")
    for variant, name, low, high in _out_of_proportion(grid):
        warn(
            "mup_proportions",
            f"{variant}: {name} over d_model goes from {low:.2f} to {high:.2f}, and muP takes it to be one number",
        )
    for flops in grid.budgets_flops if grid.design == "isoflop" else ():
        sizes = {
            row["size"]: row["num_params"] for row in rows if row["budget_flops"] == flops and row["role"] == "grid"
        }
        if len(sizes) < MIN_SIZES:
            warn(
                "few_sizes",
                f"{flops:.3g} FLOPs: a parabola wants {MIN_SIZES} sizes around its minimum, here are {len(sizes)}",
            )
        if grid.expected_optimum is not None and len(sizes) > 1:
            optimum = grid.expected_optimum(flops)
            below = sum(num_params < optimum for num_params in sizes.values())
            if below == 0 or below == len(sizes):
                side = "above" if below == 0 else "below"
                warn("one_sided", f"{flops:.3g} FLOPs: every size lies {side} the expected optimum of {optimum:.3g}")
    return found
