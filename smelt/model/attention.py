"""Hidden states -> what attention writes: causal grouped-query attention with rotary positions.

    q, k, v = x W_q, x W_k, x W_v;   out = softmax(scale * rope(q) rope(k)^T + mask) v W_o

Rotary positions turn the pair (i, i + K/2) by position * 10000^(-2i/K), i < K/2 (half pairs). They are relative,
so a packed document needs no reset of its positions. Softmax in float32.

Letters: B batch, T query position, S key position, D width, H query heads, G key-value heads, R query heads
a key-value head (H = G R), K head width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from smelt.model.initialisation import matrix
from smelt.spec import AttentionScale

ROPE_THETA = 1e4  # from Looped-MoE and Foil (arXiv 2605.09165, 2609.35751); SMELT does not say


class Context(NamedTuple):
    """What every visit of a batch shares: who may look at whom."""

    mask: Bool[Array, "#B T S"]


def context(segments_BT: Int[Array, "B T"], *, confine_attention: bool) -> Context:
    """Causal; with `confine_attention` only inside a packed document, that is where segment ids are equal."""
    num_positions = segments_BT.shape[1]
    causal_TS = np.tri(num_positions, dtype=bool)
    if not confine_attention:
        return Context(jnp.asarray(causal_TS)[None])
    return Context(causal_TS & (segments_BT[:, :, None] == segments_BT[:, None, :]))


def rope(x_BTHK: Float[Array, "B T H K"]) -> Float[Array, "B T H K"]:
    """Each half pair turned by its position's angle; angles are made in float64."""
    num_positions, head_dim = x_BTHK.shape[1], x_BTHK.shape[3]
    rates = ROPE_THETA ** (-np.arange(head_dim // 2) / (head_dim // 2))
    angles = np.arange(num_positions)[:, None] * rates
    cos = jnp.asarray(np.cos(angles)[:, None, :], x_BTHK.dtype)
    sin = jnp.asarray(np.sin(angles)[:, None, :], x_BTHK.dtype)
    first, second = jnp.split(x_BTHK, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Attention(nn.Module):
    """Grouped-query attention; `scale` is what multiplies the scores. No biases."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: AttentionScale

    @nn.compact
    def __call__(self, x_BTD: Float[Array, "B T D"], context: Context) -> Float[Array, "B T D"]:
        width = x_BTD.shape[-1]
        H, G, K = self.num_heads, self.num_kv_heads, self.head_dim
        w_q_DHK = self.param("w_q_DHK", matrix(fan_in=width), (width, H, K))
        w_k_DGK = self.param("w_k_DGK", matrix(fan_in=width), (width, G, K))
        w_v_DGK = self.param("w_v_DGK", matrix(fan_in=width), (width, G, K))
        w_o_HKD = self.param("w_o_HKD", matrix(fan_in=H * K), (H, K, width))
        q_BTHK = rope(jnp.einsum("BTD,DHK->BTHK", x_BTD, w_q_DHK))
        k_BSGK = rope(jnp.einsum("BTD,DGK->BTGK", x_BTD, w_k_DGK))
        v_BSGK = jnp.einsum("BTD,DGK->BTGK", x_BTD, w_v_DGK)
        scale = K**-0.5 if self.scale == "1/sqrt(d_k)" else 1 / K
        mixed_BTHK = attend(q_BTHK * scale, k_BSGK, v_BSGK, context)
        return jnp.einsum("BTHK,HKD->BTD", mixed_BTHK, w_o_HKD)


def attend(
    q_BTHK: Float[Array, "B T H K"],
    k_BSGK: Float[Array, "B S G K"],
    v_BSGK: Float[Array, "B S G K"],
    context: Context,
) -> Float[Array, "B T H K"]:
    """Softmax attention of already scaled queries."""
    B, T, H, K = q_BTHK.shape
    G = k_BSGK.shape[2]
    q_BTGRK = q_BTHK.reshape(B, T, G, H // G, K)
    scores_BGRTS = jnp.einsum("BTGRK,BSGK->BGRTS", q_BTGRK, k_BSGK)
    scores_BGRTS = jnp.where(context.mask[:, None, None], scores_BGRTS, -jnp.inf)
    probs_BGRTS = jax.nn.softmax(scores_BGRTS, axis=-1)
    return jnp.einsum("BGRTS,BSGK->BTGRK", probs_BGRTS, v_BSGK).reshape(B, T, H, K)
