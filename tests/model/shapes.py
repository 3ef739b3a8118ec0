"""The smallest architectures that differ in kind, and windows of packed documents for them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from smelt import variants
from smelt.spec import FFN, ArchSpec, Attention, Loop, Router

VOCAB = 13
LENGTH = 12

BASELINE = ArchSpec(
    vocab_size=VOCAB,
    d_model=8,
    num_prelude=0,
    loop=Loop(num_layers=2, num_passes=1, residual_scale=1.0, attention_sets="shared"),
    num_coda=0,
    attention=Attention(num_heads=2, num_kv_heads=1, head_dim=6, scale="1/sqrt(d_k)"),
    ffn=FFN(width=10, num_experts=4, top_k=2),
    outer_ffn=None,
    router=Router(load_balance_coef=0.01, z_loss_coef=0.001),
    norm_gain=True,
    tied_embeddings=False,
)
FOUR = replace(BASELINE, loop=replace(BASELINE.loop, num_layers=4))
FOIL = replace(
    variants.untie_attention(variants.loop_span(FOUR, num_layers=2, num_passes=2, residual_scale=1.0)),
    outer_ffn=FFN(width=6, num_experts=3, top_k=2),
    attention=Attention(num_heads=2, num_kv_heads=2, head_dim=4, scale="1/d_k"),
    norm_gain=False,
)
LATENT = variants.sigmoid_router(variants.latent_moe(BASELINE, width=4, shared_width=6))
MULTI_VIEW = variants.multi_view(variants.multi_router(LATENT, num_heads=3))
# One layer of 8 experts passed twice, between a prelude and a coda of 4: every layer has views.
FOIL_MULTI_VIEW = variants.untie_attention(
    variants.flatten(
        variants.loop_span(replace(MULTI_VIEW, loop=replace(FOUR.loop)), num_layers=2, num_passes=1, residual_scale=1.0)
    )
)
ARCHITECTURES = {
    "baseline": BASELINE,
    "loop_middle": variants.loop_middle(BASELINE),
    "loop_all": variants.loop_all(FOUR),
    "dense": variants.dense(BASELINE),
    "foil": FOIL,
    "tied": replace(BASELINE, tied_embeddings=True),
    "latent": LATENT,
    "multi_router": variants.multi_router(variants.sigmoid_router(BASELINE), num_heads=2, fusion="max"),
    "multi_view": MULTI_VIEW,
    "learned_mixing": variants.multi_view(variants.multi_router(LATENT, fusion="product"), mixing="learned"),
    "foil_multi_view": FOIL_MULTI_VIEW,
    "mup": variants.mup(replace(BASELINE, norm_gain=False), base_width=4),
}


def windows(num_windows: int, length: int = LENGTH, seed: int = 0) -> tuple[jax.Array, jax.Array]:
    """Tokens and segment ids; each window packs three documents."""
    generator = np.random.default_rng(seed)
    tokens_BT = generator.integers(0, VOCAB, (num_windows, length))
    segments_BT = np.sort(generator.integers(0, 3, (num_windows, length)), axis=1)
    return jnp.asarray(tokens_BT, jnp.int32), jnp.asarray(segments_BT, jnp.int32)
