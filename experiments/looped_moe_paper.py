"""Looped-MoE's four siblings on its own IsoFLOP grid, 5e16 to 1e18 FLOPs: what would the paper's comparison cost?

Question    At equal active parameters, does an MoE whose stack of 8 layers is passed twice beat the dense model of 16?
Prediction  The paper states MoE < Looped-MoE < Base < Looped. Its own optima, digitised, have Looped-MoE 0.024 nats
            below Base at 5e16 FLOPs and 0.032 above at 1e18, so the order of these two at 1e18 is predicted to be the
            other one. A plan: it prices itself and is not trained here.
Varies      {dense, looped_dense, moe, looped_moe} x five widths x four budgets; 4x4 and 2x8 at width 704 and 1e18.
Held equal  Executed active parameters with embedding and head, exactly. Stored parameters differ.
Fixed       FineWeb-Edu in GPT-2 tokens, context 1024, muP with base width 128, AdamW (0.9, 0.999), the last tenth of
            the steps decaying to 5 %. Batch, warm-up, clipping and the rate at the base width are not stated: assumed.
            Decay is in proportion to the rate here and independent of it there: equal at the peak and the base width.
Found       Not run: 104 hours at an assumed 1e14 FLOP/s (smelt plan looped_moe_paper --assume-flops-per-sec 1e14
            --workers 1).
"""

from dataclasses import replace

from smelt import experiment, grid, match, papers
from smelt.spec import ArchSpec, DataSpec, OptimSpec

TOY = experiment.module("looped_moe")
WIDTHS = (128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 896)
SIZES = {5e16: range(0, 5), 2e17: range(2, 7), 5e17: range(4, 9), 1e18: range(7, 12)}


def recipe(arch: ArchSpec, budget_flops: float) -> tuple[OptimSpec, DataSpec]:
    optim = OptimSpec(
        peak_lr=1.5e-2,  # the optimum that its sweep shows at all widths
        schedule="wsd",
        warmup_frac=0.02,
        decay_frac=0.1,
        final_frac=0.05,
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
        weight_decay=1e-4 / 1.5e-2,  # its 1e-4 a step, independent of the rate, at the peak and the base width
        clip_norm=1.0,
    )
    data = DataSpec(
        corpus="fineweb-edu",
        seq_len=papers.LOOPED_MOE_CONTEXT,
        batch_seqs=64 if budget_flops < 5e17 else 128,
        confine_attention=False,
        validation_tokens=4_194_304,
    )
    return optim, data


def matcher(arch: ArchSpec, variant: ArchSpec) -> match.Match:
    return match.match(arch, variant, context=papers.LOOPED_MOE_CONTEXT, held="active_params")


def siblings(labels: tuple[grid.Variant, ...]) -> grid.Grid:
    return grid.isoflop(
        ladder=[papers.looped_moe(d_model, num_experts=8, num_passes=1) for d_model in WIDTHS],
        sizes=SIZES,
        variants=labels,
        recipe=recipe,
        seeds=(0,),
        matcher=matcher,
        held="active_params",
        bound=0.0,
        convention="looped_moe",
    )


FOUR = siblings((TOY.dense, TOY.looped_dense, TOY.moe, TOY.looped_moe))
DEEPER = grid.only(
    siblings((TOY.dense, TOY.looped_moe_4_passes, TOY.looped_moe_8_passes)),
    budgets_flops=(1e18,),
    sizes=(WIDTHS.index(704),),
    variants=("looped_moe_4_passes", "looped_moe_8_passes"),
)

RUNS = replace(FOUR, cells=(*FOUR.cells, *DEEPER.cells))
