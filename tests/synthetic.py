"""A planted law and a seed -> a grid and the ledger rows that its runs would have written, in milliseconds.

    loss = E + A F^-a + K D^-c,   F training FLOPs per token, D tokens

The variant has the same counts as the baseline and reaches the baseline's loss with (1 - saving) of its compute.
Noise is shared by a pair but for a fifth of it, as runs that see the same tokens do.
"""

import dataclasses
import json
import math
from collections.abc import Collection, Sequence

import numpy as np

from smelt import budget, grid, ledger, spec, variants
from smelt.spec import FFN, ArchSpec, Attention, DataSpec, Loop, OptimSpec, Router

E, a, c = 1.0, 0.35, 0.42
A, K = 0.5155 * 3.5e5**a, 0.4295 * 8.6e5**c
BUDGETS_FLOPS = (1e11, 2.5e11, 6e11, 1.5e12)
PREDICTED_FLOPS = 3e12
WIDTHS = (12, 16, 20, 24, 32, 40, 48, 64, 80)
DOMAINS = {"code": 0.8, "docs": 1.0, "prose": 1.2}  # domain -> its share of what is above the floor
NOISE = 0.004


def scaled_heads(arch: ArchSpec) -> ArchSpec:
    """A variant that differs from its baseline in no count at all."""
    return dataclasses.replace(arch, attention=dataclasses.replace(arch.attention, scale="1/d_k"))


def architecture(width: int) -> ArchSpec:
    return ArchSpec(
        vocab_size=256,
        d_model=width,
        num_prelude=0,
        loop=Loop(num_layers=4, num_passes=1, residual_scale=1.0, attention_sets="shared"),
        num_coda=0,
        attention=Attention(num_heads=2, num_kv_heads=2, head_dim=max(2, width // 4 * 2), scale="1/sqrt(d_k)"),
        ffn=FFN(width=width, num_experts=8, top_k=2),
        outer_ffn=None,
        router=Router(load_balance_coef=0.01, z_loss_coef=1e-3),
        norm_gain=True,
        tied_embeddings=False,
    )


def recipe(arch: ArchSpec, budget_flops: float) -> tuple[OptimSpec, DataSpec]:
    optim = OptimSpec(
        peak_lr=1e-2,
        schedule="wsd",
        warmup_frac=0.1,
        decay_frac=0.3,
        final_frac=0.0,
        beta1=0.9,
        beta2=0.95,
        eps=1e-8,
        weight_decay=0.1,
        clip_norm=1.0,
    )
    data = DataSpec(corpus="builtin", seq_len=64, batch_seqs=8, confine_attention=True, validation_tokens=8192)
    return optim, data


def planted_grid(
    *, arms: Sequence[grid.Variant] = (variants.baseline, scaled_heads), held: str = "three_budgets"
) -> grid.Grid:
    """Four budgets, five sizes each around the planted optimum, two extra seeds and one predicted pair."""
    ladder = [architecture(width) for width in WIDTHS]
    per_token = [budget.train_flops_per_token(arch, 64, "model") for arch in ladder]

    def nearest(flops: float, count: int) -> list[int]:
        optimum = (a * A * flops**c / (c * K)) ** (1 / (a + c))
        return sorted(sorted(range(len(ladder)), key=lambda i: abs(math.log(per_token[i] / optimum)))[:count])

    sizes = {flops: nearest(flops, 5) for flops in BUDGETS_FLOPS}
    used = sorted({size for indices in sizes.values() for size in indices} | set(nearest(PREDICTED_FLOPS, 1)))
    renumbered = {size: index for index, size in enumerate(used)}
    return grid.isoflop(
        ladder=[ladder[size] for size in used],
        sizes={flops: [renumbered[size] for size in indices] for flops, indices in sizes.items()},
        variants=arms,
        recipe=recipe,
        seeds=(0,),
        matcher=None,
        held=held,
        bound=0.04,
        extra_seeds={(BUDGETS_FLOPS[1], renumbered[sizes[BUDGETS_FLOPS[1]][2]]): (1, 2)},
        predictions={PREDICTED_FLOPS: [renumbered[size] for size in nearest(PREDICTED_FLOPS, 1)]},
    )


def planted_rows(
    design: grid.Grid,
    *,
    saving: float = 0.0,
    noise: float = NOISE,
    seed: int = 0,
    diverged: Collection[str] = (),
    experiment: str = "planted",
    minutes_late: int = 0,
) -> list[ledger.Row]:
    """One checked row a cell. `diverged` names run ids that have no loss; prediction cells finish `minutes_late`."""
    generator = np.random.default_rng(seed)
    shared: dict[tuple, np.ndarray] = {}
    rows = []
    for cell in design.cells:
        key = (cell.budget_flops, cell.size, cell.run.seed)
        if key not in shared:
            shared[key] = noise * math.sqrt(0.8) * generator.standard_normal(len(DOMAINS))
        scatter = shared[key] + noise * math.sqrt(0.2) * generator.standard_normal(len(DOMAINS))
        gain = 1.0 if cell.variant == design.reference else (1 - saving) ** -0.5
        above = A * (design.flops_per_token(cell) * gain) ** -a + K * (cell.run.num_tokens * gain) ** -c
        losses = {
            domain: E + share * above + float(eps)
            for (domain, share), eps in zip(DOMAINS.items(), scatter, strict=True)
        }
        late = minutes_late if cell.role == "prediction" else 0
        rows.append(_row(experiment, design, cell, losses, cell.run.run_id in diverged, late))
    return rows


def _row(
    experiment: str, design: grid.Grid, cell: grid.Cell, losses: dict[str, float], diverged: bool, late: int
) -> ledger.Row:
    run, errors = cell.run, design.match_errors(cell)
    secs = design.train_flops(cell) / 8e9
    row: ledger.Row = {
        "experiment": experiment,
        "run_id": run.run_id,
        "variant": cell.variant,
        "size": cell.size,
        "role": cell.role,
        "budget_flops": cell.budget_flops,
        "flops_convention": design.convention,
        "held_equal": design.held,
        "match_error_flops": errors["flops_per_token"],
        "match_error_params": errors["num_params"],
        "match_error_kv": errors["kv_cache"],
        "match_error_held": design.worst_held_error(cell),
        **spec.flatten(run),
        **ledger.counts(run.arch, cell.baseline, run.data.seq_len, design.convention),
        "train_flops": design.train_flops(cell),
        "num_tokens": run.num_tokens,
        "epochs": run.num_tokens / 6e7,
        "outcome": "diverged" if diverged else "finished",
        "train_secs": secs,
        "compile_secs": 2.0,
        "data_wait_secs": 0.01 * secs,
        "eval_secs": 0.5,
        "save_secs": 0.1,
        "total_secs": secs + 2.6,
        "tokens_per_sec": run.num_tokens / secs,
        "peak_memory_bytes": 600 * 2**20,
        "corpus_fingerprint": "c0ffee000001",
        "code_fingerprint": "5eed00000001",
        "jax": "0.12.0",
        "jaxlib": "0.12.0",
        "python": "3.13.0",
        "device": "1 x planted law",
        "threads": 1,
        "host": "nowhere",
        "finished_at": f"2026-11-30T12:{late:02d}:00+00:00",
    }
    mean = float(np.mean(list(losses.values())))
    measured = {
        "val_loss_nats": mean,
        "val_loss_se_nats": 0.004,
        "bits_per_byte": mean / math.log(2),
        "train_loss_nats": mean - 0.02,
        "train_loss_se_nats": 0.01,
    }
    for domain, loss in losses.items():
        measured[f"val_loss_nats.{domain}"] = loss
        measured[f"val_loss_se_nats.{domain}"] = 0.006
        measured[f"bits_per_byte.{domain}"] = loss / math.log(2)
    if diverged:
        measured = dict.fromkeys(measured)
    row |= measured
    reasons = dict.fromkeys(measured, "loss_nats is nan at step 7, rate 0.01") if diverged else {}
    return ledger.check({**row, "null_reasons": json.dumps(reasons)}, "planted row")
