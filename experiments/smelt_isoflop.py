"""Does looping the middle half of the layers twice beat the unlooped MoE at three matched budgets, on one GPU?

Prediction  The saving at 9.6e17 FLOPs is below 0 or its interval includes 0: SMELT's own law (S ~ 95 %) crosses near
            1.6e19 FLOPs. Written before any run.
Varies      six sizes around each expected optimum x 3e16 to 9.6e17 FLOPs x {baseline, loop_middle} x three seeds.
Held equal  FLOPs per token (smelt's model FLOPs, head included), non-embedding parameters, KV cache. The head is 19 to
            51 % of the FLOPs here: under SMELT's own, which leave it out, the variant gets 3 to 10 % more.
Fixed       a tokenised web corpus (`fineweb-edu`, GPT-2 BPE: smelt corpus build fineweb-edu --tokens ...), context
            1024 with attention confined to a document, 262,144 tokens a step from 4.8e17 FLOPs up and 65,536 below,
            AdamW, WSD.
Found       Not run: 103 hours at an assumed 2e14 FLOP/s (smelt plan smelt_isoflop --assume-flops-per-sec 2e14).
"""

import math

from smelt import grid, match, variants
from smelt.spec import FFN, ArchSpec, Attention, DataSpec, Loop, OptimSpec, Router

CONTEXT = 1024
LAYERS = 12
# d_model -> heads (of 48, a multiple of 6: two thirds of them is a head width too), KV heads. 64 experts top-8.
SHAPES = {
    192: (4, 2),
    256: (6, 2),
    320: (6, 3),
    384: (8, 4),
    512: (10, 5),
    640: (14, 7),
    768: (16, 4),
    960: (20, 5),
}


def baseline(d_model: int) -> ArchSpec:
    num_heads, num_kv_heads = SHAPES[d_model]
    return ArchSpec(
        vocab_size=50_304,
        d_model=d_model,
        num_prelude=0,
        loop=Loop(num_layers=LAYERS, num_passes=1, residual_scale=1.0, attention_sets="shared"),
        num_coda=0,
        attention=Attention(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=48, scale="1/sqrt(d_k)"),
        ffn=FFN(width=d_model // 2, num_experts=64, top_k=8),
        outer_ffn=None,
        router=Router(load_balance_coef=0.01, z_loss_coef=0.001),
        norm_gain=True,
        tied_embeddings=False,
    )


def recipe(arch: ArchSpec, budget_flops: float) -> tuple[OptimSpec, DataSpec]:
    """Assumed: the rate rule is to be tested on both arms (as quickstart_rates does) before this grid is paid for."""
    optim = OptimSpec(
        peak_lr=4e-3 * math.sqrt(192 / arch.d_model),
        schedule="wsd",
        warmup_frac=0.02,
        decay_frac=0.2,
        final_frac=0.0,
        beta1=0.9,
        beta2=0.95,
        eps=1e-8,
        weight_decay=0.1,
        clip_norm=1.0,
    )
    data = DataSpec(
        corpus="fineweb-edu",
        seq_len=CONTEXT,
        batch_seqs=256 if budget_flops >= 4.8e17 else 64,
        confine_attention=True,
        validation_tokens=4_194_304,
    )
    return optim, data


def matcher(arch: ArchSpec, variant: ArchSpec) -> match.Match:
    """On sizes that an accelerator likes."""
    return match.match(arch, variant, context=CONTEXT, bound=0.01, multiples={"d_model": 16, "head_dim": 8, "width": 8})


RUNS = grid.isoflop(
    ladder=[baseline(d_model) for d_model in SHAPES],
    sizes={
        3e16: range(0, 6),
        6e16: range(0, 6),
        1.2e17: range(0, 6),
        2.4e17: range(1, 7),
        4.8e17: range(1, 7),
        9.6e17: range(2, 8),
    },
    variants=(variants.baseline, variants.loop_middle),
    recipe=recipe,
    seeds=(0, 1, 2),
    matcher=matcher,
    held="three_budgets",
    bound=0.01,
    predictions={1.92e18: [6]},
)
