"""Foil's eight models at width 1024 and its two horizons: what would the paper's comparison cost?

Question    At equal stored experts, computed experts and executed depth, do flattened experts and untied attention
            lower the loss of a looped MoE at 20 and 100 B tokens?
Prediction  The paper's own (arXiv 2609.35751): every Foil lies below Base, Foil-1 by 0.007 nats at 20 B and by 0.012 at
            100 B tokens; untying alone gains 0.042 and 0.049 at (64, 1, 16). A plan: it prices itself and is not
            trained here.
Varies      {(8, 8, 2), (16, 4, 4), (32, 2, 8), (64, 1, 16)} x {attention a pass, shared} x {50,000, 254,313 steps}.
Held equal  E_real, E_comp and executed depth, exactly, and tokens.
Fixed       context 4096 without segment masks, 96 sequences a step, AdamW, one rate of 3e-4 for all tensors, the last
            tenth of the steps decaying to 5 % (its released launch files).
Found       Not run: 1,520 hours at an assumed 4e14 FLOP/s (smelt plan foil_paper --assume-flops-per-sec 4e14 --workers
            1). The longer runs continue the shorter ones from before the decay, as the paper's do, which saves 18 B of
            120 B tokens an arm.
"""

from smelt import grid, papers
from smelt.spec import ArchSpec, DataSpec, OptimSpec

BATCH_SEQS = 96
RUNS_OF_THE_PAPER = ("U1", "U2", "U3", "U4", "S1", "S2", "S3", "S4")
WARMUP_STEPS = 1_000
STEPS = (50_000, 254_313)


def recipe(arch: ArchSpec, num_tokens: float) -> tuple[OptimSpec, DataSpec]:
    data = DataSpec(
        corpus="web-49152",
        seq_len=papers.FOIL_CONTEXT,
        batch_seqs=BATCH_SEQS,
        confine_attention=False,
        validation_tokens=8_388_608,
    )
    optim = OptimSpec(
        peak_lr=3e-4,
        schedule="wsd",
        warmup_frac=WARMUP_STEPS * data.tokens_per_step / num_tokens,
        decay_frac=0.1,
        final_frac=0.05,
        beta1=0.9,
        beta2=0.95,
        eps=1e-8,
        weight_decay=0.1,
        clip_norm=1.0,
    )
    return optim, data


RUNS = grid.horizons(
    ladders={papers.FOIL_NAMES[run]: [papers.foil_run(run)] for run in RUNS_OF_THE_PAPER},
    num_tokens=[steps * BATCH_SEQS * papers.FOIL_CONTEXT for steps in STEPS],
    recipe=recipe,
    seeds=(0,),
    held="expert_budget",
    bound=0.0,
    convention="foil",
)
