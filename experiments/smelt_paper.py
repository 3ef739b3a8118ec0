"""SMELT's printed sparse configurations, 100M and 1.6B, at their six token horizons: what would the paper's grid cost?

Question    At matched FLOPs, parameters and KV cache, does looping the middle half of the layers twice lower the
            loss, at scales 100M and 1.6B and sparsity ~85, ~95 and ~97 %?
Prediction  SMELT saves compute on the frontier: 7.8 % [3, 15] at 1e20 and 15.8 % [10, 25] at 1e21 FLOPs for S ~ 95 %
            (the paper's own fit, arXiv 2609.01343). A plan: it prices itself and is not trained here.
Varies      scale x sparsity x {baseline, SMELT} x tokens (20.5, 31.0, 62.4, 114.9, 167.3, 215.6 B).
Fixed       context 4096 packed with segment masks, 256 sequences a step, AdamW, one constant-rate trunk an arm that is
            left at the paper's six steps to decay over 10 B tokens. Its decay is a cosine, ours 1 - sqrt; rates and
            warm-up are not stated, ours are assumed.
Found       Not run. Shared trunks read the paper's 266 B tokens an arm, six whole runs would read 612 B.
"""

from smelt import grid, papers
from smelt.spec import ArchSpec, DataSpec, OptimSpec

SPARSE = (64, 192, 336)


def recipe(arch: ArchSpec) -> tuple[OptimSpec, DataSpec]:
    """Assumed throughout: the paper states no optimizer constants. The rate falls as 1/d_model from 1e-3 at 672."""
    optim = OptimSpec(
        peak_lr=1e-3 * 672 / arch.d_model,
        schedule="wsd",
        warmup_frac=0.0,
        warmup_steps=2_000,
        decay_frac=0.0,
        decay_steps=round(papers.SMELT_DECAY_TOKENS / papers.SMELT_BATCH_TOKENS),
        final_frac=0.1,
        beta1=0.9,
        beta2=0.95,
        eps=1e-8,
        weight_decay=0.1,
        clip_norm=1.0,
    )
    data = DataSpec(
        corpus="web-49152", seq_len=4096, batch_seqs=256, confine_attention=True, validation_tokens=8_388_608
    )
    return optim, data


PAIRS = {
    papers.smelt_baseline(scale, experts): papers.smelt_looped(scale, papers.SMELT_EXPERTS[experts])
    for scale in papers.SMELT_BASELINE
    for experts in SPARSE
}


def baseline(arch: ArchSpec) -> ArchSpec:
    return arch


def loop_middle(arch: ArchSpec) -> ArchSpec:
    """The paper's own partner, as it prints it."""
    return PAIRS[arch]


RUNS = grid.branches(
    ladder=list(PAIRS),
    variants=(baseline, loop_middle),
    recipe=recipe,
    fork_steps=papers.SMELT_BRANCH_STEPS,
    seeds=(0,),
    matcher=None,
    held="three_budgets",
    bound=0.04,
    convention="smelt",
)
