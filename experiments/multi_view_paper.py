"""Multi-Router and Multi-View on a 10B-A1B LatentMoE over 708 B tokens: what would the paper's comparison cost?

Question    Do two router heads, and two views of the experts' input mixed by them, lower the loss of a LatentMoE?
Prediction  The paper's own: losses of 2.25621, 2.25047 and 2.24883 nats over the last thousand steps for one head, two
            heads and two views, with 1.2e-3 between repeated runs. A plan: it prices itself and is not trained here.
Varies      {one head, two heads, two views}.
Held equal  Tokens; a second head stores 0.06 % more parameters, a second view a further 0.13 %.
Fixed       24 layers, 256 experts top-8 beside one shared expert. Width, latent and vocabulary are inferred, context,
            batch and every constant of the optimizer are assumed: none of them is known.
Found       Not run: 8,988 hours at an assumed 4e14 FLOP/s (smelt plan multi_view_paper --assume-flops-per-sec 4e14
            --workers 1).
"""

from smelt import grid, papers, variants
from smelt.spec import ArchSpec, DataSpec, OptimSpec

NUM_TOKENS = 708e9
ONE_HEAD = papers.multi_view_backbone()
TWO_HEADS = variants.multi_router(ONE_HEAD, num_heads=2)


def recipe(arch: ArchSpec, num_tokens: float) -> tuple[OptimSpec, DataSpec]:
    """Assumed throughout."""
    optim = OptimSpec(
        peak_lr=4e-4,
        schedule="wsd",
        warmup_frac=0.01,
        decay_frac=0.1,
        final_frac=0.05,
        beta1=0.9,
        beta2=0.95,
        eps=1e-8,
        weight_decay=0.1,
        clip_norm=1.0,
    )
    data = DataSpec(
        corpus="web-131072", seq_len=4096, batch_seqs=1024, confine_attention=True, validation_tokens=8_388_608
    )
    return optim, data


RUNS = grid.horizons(
    ladders={"one_head": [ONE_HEAD], "two_heads": [TWO_HEADS], "two_views": [variants.multi_view(TWO_HEADS)]},
    num_tokens=[NUM_TOKENS],
    recipe=recipe,
    seeds=(0,),
    held="none",
    bound=0.0,
)
