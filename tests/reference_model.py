"""The decoder once more, unrolled and plain: every visit a Python step, every expert on every token.

An outside witness for `smelt.model` (its logits must be these) and for `smelt.budget` (XLA counts a scanned body once,
so that only an unrolled program can be counted).

Letters: B batch, T query position, S key position, D width, H query heads, G KV heads, R query heads a KV head, K head
width, E experts, F expert width, V vocabulary.
"""

import jax
import jax.numpy as jnp

from smelt.spec import ArchSpec


def _norm(x_BTD, weights):
    normed_BTD = x_BTD * jax.lax.rsqrt(jnp.mean(x_BTD**2, axis=-1, keepdims=True) + 1e-5)
    return normed_BTD * weights["gain_D"] if weights else normed_BTD


def _rope(x_BTHK):
    T, K = x_BTHK.shape[1], x_BTHK.shape[3]
    angles_TI = jnp.arange(T)[:, None] * 1e4 ** (-jnp.arange(K // 2) / (K // 2))
    cos, sin = jnp.cos(angles_TI)[:, None], jnp.sin(angles_TI)[:, None]
    first, second = x_BTHK[..., : K // 2], x_BTHK[..., K // 2 :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attention(arch: ArchSpec, weights, x_BTD, kept):
    heads = arch.attention
    B, T, _ = x_BTD.shape
    G, K = heads.num_kv_heads, heads.head_dim
    q_BTHK = _rope(jnp.einsum("BTD,DHK->BTHK", x_BTD, weights["w_q_DHK"]))
    k_BSGK = _rope(jnp.einsum("BSD,DGK->BSGK", x_BTD, weights["w_k_DGK"]))
    v_BSGK = jnp.einsum("BSD,DGK->BSGK", x_BTD, weights["w_v_DGK"])
    kept += [k_BSGK, v_BSGK]
    scale = K**-0.5 if heads.scale == "1/sqrt(d_k)" else 1 / K
    q_BTGRK = q_BTHK.reshape(B, T, G, heads.num_heads // G, K)
    scores_BGRTS = scale * jnp.einsum("BTGRK,BSGK->BGRTS", q_BTGRK, k_BSGK)
    scores_BGRTS = jnp.where(jnp.tril(jnp.ones((T, T), bool)), scores_BGRTS, -jnp.inf)
    mixed_BTGRK = jnp.einsum("BGRTS,BSGK->BTGRK", jax.nn.softmax(scores_BGRTS, axis=-1), v_BSGK)
    return jnp.einsum("BTHK,HKD->BTD", mixed_BTGRK.reshape(q_BTHK.shape), weights["w_o_HKD"])


def _ffn(weights, top_k, x_BTD):
    experts = weights["experts"]
    gate_BTEF = jnp.einsum("BTD,EDF->BTEF", x_BTD, experts["w_gate_EDF"])
    up_BTEF = jnp.einsum("BTD,EDF->BTEF", x_BTD, experts["w_up_EDF"])
    hidden_BTEF = jax.nn.silu(gate_BTEF) * up_BTEF
    if "router" in weights:
        logits_BTE = jnp.einsum("BTD,DE->BTE", x_BTD, weights["router"]["w_DE"])
        least_BT1 = jnp.sort(logits_BTE, axis=-1)[..., -top_k, None]
        chosen_BTE = jnp.where(logits_BTE >= least_BT1, logits_BTE, -jnp.inf)
        hidden_BTEF *= jax.nn.softmax(chosen_BTE, axis=-1)[..., None]
    return jnp.einsum("BTEF,EFD->BTD", hidden_BTEF, experts["w_down_EFD"])


def logits(arch: ArchSpec, params, tokens_BT):
    """Logits (B, T, V) of tokens that are one document each."""
    return forward(arch, params, tokens_BT)[0]


def forward(arch: ArchSpec, params, tokens_BT):
    """(logits, the keys and values of every visit: what decoding keeps)."""
    kept = []
    w_VD = params["embedding"]["w_VD"]
    x_BTD = w_VD[tokens_BT]
    if arch.tied_embeddings:
        x_BTD *= arch.d_model
    for segment in arch.segments:
        for num_pass in range(segment.num_passes):
            for num_layer in range(segment.num_layers):
                tree = dict(params[segment.name])
                attention = tree.pop("attention")
                weights = jax.tree.map(lambda leaf, i=num_layer: leaf[i], tree)
                own = (num_pass, num_layer) if segment.num_attention_sets > 1 else num_layer
                attention = jax.tree.map(lambda leaf, i=own: leaf[i], attention)
                normed_BTD = _norm(x_BTD, weights.get("attention_norm"))
                x_BTD += segment.residual_scale * _attention(arch, attention, normed_BTD, kept)
                normed_BTD = _norm(x_BTD, weights.get("ffn_norm"))
                x_BTD += segment.residual_scale * _ffn(weights, segment.ffn.top_k, normed_BTD)
    x_BTD = _norm(x_BTD, params.get("final_norm"))
    w_DV = w_VD.T if arch.tied_embeddings else params["head"]["w_DV"]
    return jnp.einsum("BTD,DV->BTV", x_BTD, w_DV), kept
