"""Hidden states -> what attention writes: causal grouped-query attention with rotary positions.

    q, k, v = x W_q, x W_k, x W_v;   out = softmax(scale * rope(q) rope(k)^T + mask) v W_o

Rotary positions turn the pair (i, i + K/2) by position * 10000^(-2i/K), i < K/2 (half pairs). Foil's
interleaved pairs are these up to a permutation of weights; SMELT states none. Positions are relative, so a packed
document needs no reset of them. Softmax in float32.

Letters: B batch, T query position, S key position, D width, H query heads, G key-value heads, R query heads
a key-value head (H = G R), K head width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from smelt.model.initialisation import matrix
from smelt.model.matmul import matmul
from smelt.spec import AttentionScale

# Queries of a block: at 32 and 64 the products are too thin, at 256 half of them is above the diagonal.
QUERY_BLOCK = 128
MOST_BLOCKS = 8  # of a window; longer windows have larger blocks, so that the program does not grow
ROPE_THETA = 1e4  # from Looped-MoE and Foil (arXiv 2605.09165, 2609.35751); SMELT does not say


class Context(NamedTuple):
    """What every visit of a batch shares: who may look at whom, how far the views have been ramped up (0 to 1), the
    devices that experts are spread over (None: one), and what the mask was made of beside causality: the segment ids
    where attention is confined, else None."""

    mask: Bool[Array, "#B T S"]
    gamma: Float[Array, ""] | float = 1.0
    mesh: Mesh | None = None
    segments: Int[Array, "B T"] | None = None


def context(
    segments_BT: Int[Array, "B T"],
    *,
    confine_attention: bool,
    gamma: Float[Array, ""] | float = 1.0,
    mesh: Mesh | None = None,
) -> Context:
    """Causal; with `confine_attention` only inside a packed document, that is where segment ids are equal."""
    num_positions = segments_BT.shape[1]
    causal_TS = np.tri(num_positions, dtype=bool)
    if not confine_attention:
        return Context(jnp.asarray(causal_TS)[None], gamma, mesh)
    return Context(causal_TS & (segments_BT[:, :, None] == segments_BT[:, None, :]), gamma, mesh, segments_BT)


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
        rows_ND = x_BTD.reshape(-1, width)
        shape = (*x_BTD.shape[:2], -1, K)
        q_BTHK = rope(matmul(rows_ND, w_q_DHK.reshape(width, -1)).reshape(shape))
        k_BSGK = rope(matmul(rows_ND, w_k_DGK.reshape(width, -1)).reshape(shape))
        v_BSGK = matmul(rows_ND, w_v_DGK.reshape(width, -1)).reshape(shape)
        scale = K**-0.5 if self.scale == "1/sqrt(d_k)" else 1 / K
        mixed_BTHK = _attention_of(context)(q_BTHK * scale, k_BSGK, v_BSGK)
        write_ND = matmul(mixed_BTHK.reshape(-1, H * K), w_o_HKD.reshape(-1, width))
        return write_ND.reshape(x_BTD.shape)


def _attention_of(context: Context) -> Callable[..., Array]:
    """(q, k, v) -> what is mixed. Blocks for windows of several, on the one CPU: on a mesh the batch is spread, and a
    loop over it would gather it; an accelerator wants no loop."""
    if context.mesh is None and jax.default_backend() == "cpu" and context.mask.shape[1] > QUERY_BLOCK:
        return lambda q, k, v: attend_blocks(q, k, v, context.segments)
    return lambda q, k, v: attend(q, k, v, context.mask)


@jax.custom_vjp
def attend(
    q_BTHK: Float[Array, "B T H K"],
    k_BSGK: Float[Array, "B S G K"],
    v_BSGK: Float[Array, "B S G K"],
    mask_BTS: Bool[Array, "#B T S"],
) -> Float[Array, "B T H K"]:
    """Softmax attention of already scaled queries; every query must see at least one key.

    The derivative is written out for two reasons. In the products that contract over queries the narrow operand comes
    first, as in `matmul`; and the softmax's correction is a sum over K of what went out instead of over S keys.
    Measured on one Zen 5 core, 8 sequences of 128, attention layer forward and backward: 2 heads of 12,
    0.72 ms -> 0.59 ms; 4 heads of 12, 1.65 ms -> 1.26 ms. For longer windows there is `attend_blocks`.
    """
    return _attend_forward(q_BTHK, k_BSGK, v_BSGK, mask_BTS)[0]


def _attend_forward(q_BTHK: Array, k_BSGK: Array, v_BSGK: Array, mask_BTS: Array) -> tuple[Array, Any]:
    B, T, H, K = q_BTHK.shape
    G = k_BSGK.shape[2]
    q_BTGRK = q_BTHK.reshape(B, T, G, H // G, K)
    scores_BGRTS = jnp.einsum("BTGRK,BSGK->BGRTS", q_BTGRK, k_BSGK)
    probs_BGRTS = jax.nn.softmax(jnp.where(mask_BTS[:, None, None], scores_BGRTS, -jnp.inf), axis=-1)
    mixed_BTGRK = jnp.einsum("BGRTS,BSGK->BGRTK", probs_BGRTS, v_BSGK).transpose(0, 3, 1, 2, 4)
    return mixed_BTGRK.reshape(q_BTHK.shape), (q_BTGRK, k_BSGK, v_BSGK, probs_BGRTS, mixed_BTGRK)


def _attend_backward(saved: Any, dmixed_BTHK: Array) -> tuple[Array, Array, Array, None]:
    q_BTGRK, k_BSGK, v_BSGK, probs_BGRTS, mixed_BTGRK = saved
    dmixed_BTGRK = dmixed_BTHK.reshape(q_BTGRK.shape)
    dv_BGKS = jnp.einsum("BTGRK,BGRTS->BGKS", dmixed_BTGRK, probs_BGRTS)
    dprobs_BGRTS = jnp.einsum("BTGRK,BSGK->BGRTS", dmixed_BTGRK, v_BSGK)
    drift_BTGR = (dmixed_BTGRK * mixed_BTGRK).sum(-1)
    dscores_BGRTS = probs_BGRTS * (dprobs_BGRTS - drift_BTGR.transpose(0, 2, 3, 1)[..., None])
    dq_BTGRK = jnp.einsum("BGRTS,BSGK->BGRTK", dscores_BGRTS, k_BSGK).transpose(0, 3, 1, 2, 4)
    dk_BGKS = jnp.einsum("BTGRK,BGRTS->BGKS", q_BTGRK, dscores_BGRTS)
    return dq_BTGRK.reshape(dmixed_BTHK.shape), dk_BGKS.transpose(0, 3, 1, 2), dv_BGKS.transpose(0, 3, 1, 2), None


attend.defvjp(_attend_forward, _attend_backward)


def _query_blocks(num_positions: int) -> list[tuple[int, int]]:
    size = max(QUERY_BLOCK, -(-num_positions // MOST_BLOCKS))
    return [(start, min(start + size, num_positions)) for start in range(0, num_positions, size)]


@jax.custom_vjp
def attend_blocks(
    q_BTHK: Float[Array, "B T H K"],
    k_BSGK: Float[Array, "B S G K"],
    v_BSGK: Float[Array, "B S G K"],
    segments_BT: Int[Array, "B T"] | None,
) -> Float[Array, "B T H K"]:
    """`attend` under the causal mask, inside of segments where they are given, without the scores above the diagonal.

    One head of one sequence at a time, so that its scores stay in cache, and of those only the blocks of queries
    against the keys up to them. Measured on one Zen 5 core, 8 sequences of 256, forward and backward, against `attend`:
    2 heads of 32, 5.1 -> 2.6 ms; 4 of 32, 11.5 -> 5.7 ms; 4 of 64, 18.3 -> 11.7 ms; 8 of 64, 38 -> 24 ms. Recomputing
    the probabilities instead of keeping them is 5 to 10 % slower.
    """
    return _blocks_forward(q_BTHK, k_BSGK, v_BSGK, segments_BT)[0]


def _blocks_forward(
    q_BTHK: Array, k_BSGK: Array, v_BSGK: Array, segments_BT: Array | None
) -> tuple[Array, tuple[Any, ...]]:
    B, T, H, K = q_BTHK.shape
    R = H // k_BSGK.shape[2]
    spans = _query_blocks(T)

    def one_head(n: Array, made: Any) -> Any:
        mixed_BTHK, probs = made
        b, h = n // H, n % H
        q_TK, k_SK, v_SK = _head(q_BTHK, b, h), _head(k_BSGK, b, h // R), _head(v_BSGK, b, h // R)
        mixed, kept = [], []
        for (start, end), of_all in zip(spans, probs, strict=True):
            scores_TS = q_TK[start:end] @ k_SK[:end].T
            probs_TS = jax.nn.softmax(jnp.where(_allowed(segments_BT, b, start, end), scores_TS, -jnp.inf), axis=-1)
            mixed.append(probs_TS @ v_SK[:end])
            kept.append(lax.dynamic_update_index_in_dim(of_all, probs_TS, n, 0))
        return _put_head(mixed_BTHK, jnp.concatenate(mixed), b, h), kept

    probs = [jnp.zeros((B * H, end - start, end), q_BTHK.dtype) for start, end in spans]
    mixed_BTHK, probs = lax.fori_loop(0, B * H, one_head, (jnp.zeros_like(q_BTHK), probs))
    return mixed_BTHK, (q_BTHK, k_BSGK, v_BSGK, probs, mixed_BTHK)


def _blocks_backward(saved: Any, dmixed_BTHK: Array) -> tuple[Array, Array, Array, None]:
    q_BTHK, k_BSGK, v_BSGK, probs, mixed_BTHK = saved
    B, T, H, K = q_BTHK.shape
    G = k_BSGK.shape[2]
    R = H // G
    spans = _query_blocks(T)

    def one_head(n: Array, made: Any) -> Any:
        dq_BTHK, dk_BSHK, dv_BSHK = made
        b, h = n // H, n % H
        q_TK, k_SK, v_SK = _head(q_BTHK, b, h), _head(k_BSGK, b, h // R), _head(v_BSGK, b, h // R)
        dmixed_TK, mixed_TK = _head(dmixed_BTHK, b, h), _head(mixed_BTHK, b, h)
        drift_T1 = (dmixed_TK * mixed_TK).sum(-1, keepdims=True)
        dq, dk_KS, dv_KS = [], jnp.zeros((K, T), q_TK.dtype), jnp.zeros((K, T), q_TK.dtype)
        for (start, end), of_all in zip(spans, probs, strict=True):
            probs_TS = lax.dynamic_index_in_dim(of_all, n, 0, keepdims=False)
            dprobs_TS = dmixed_TK[start:end] @ v_SK[:end].T
            dscores_TS = probs_TS * (dprobs_TS - drift_T1[start:end])
            dq.append(dscores_TS @ k_SK[:end])
            # The narrow operand first, as in `attend`.
            dk_KS = dk_KS.at[:, :end].add(q_TK[start:end].T @ dscores_TS)
            dv_KS = dv_KS.at[:, :end].add(dmixed_TK[start:end].T @ probs_TS)
        return (
            _put_head(dq_BTHK, jnp.concatenate(dq), b, h),
            _put_head(dk_BSHK, dk_KS.T, b, h),
            _put_head(dv_BSHK, dv_KS.T, b, h),
        )

    zeros = jnp.zeros_like(q_BTHK)
    dq_BTHK, dk_BSHK, dv_BSHK = lax.fori_loop(0, B * H, one_head, (zeros, zeros, zeros))
    dk_BSGK, dv_BSGK = (each.reshape(B, T, G, R, K).sum(3) for each in (dk_BSHK, dv_BSHK))
    return dq_BTHK, dk_BSGK, dv_BSGK, None


attend_blocks.defvjp(_blocks_forward, _blocks_backward)


def _allowed(segments_BT: Array | None, b: Array, start: int, end: int) -> Bool[Array, "T S"]:
    """Which keys up to the end of a block its queries may see."""
    causal_TS = np.tri(end - start, end, start, dtype=bool)
    if segments_BT is None:
        return jnp.asarray(causal_TS)
    segments_T = segments_BT[b]
    return causal_TS & (segments_T[start:end, None] == segments_T[None, :end])


def _head(x_BTHK: Array, b: Array, h: Array) -> Float[Array, "T K"]:
    _, T, _, K = x_BTHK.shape
    return lax.dynamic_slice(x_BTHK, (b, 0, h, 0), (1, T, 1, K)).reshape(T, K)


def _put_head(to_BTHK: Array, x_TK: Array, b: Array, h: Array) -> Array:
    return lax.dynamic_update_slice(to_BTHK, x_TK[None, :, None], (b, 0, h, 0))
