"""The decoder once more, unrolled and plain: every visit a Python step, every expert on every token.

An outside witness for `smelt.model` (its logits must be these) and for `smelt.budget` (XLA counts a scanned body once,
so that only an unrolled program can be counted).

Letters: B batch, T query position, S key position, D width, H query heads, G KV heads, K head width, E experts,
F expert width, L width of what an expert reads, M views, V vocabulary; R query heads a KV head, or heads of a router.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from smelt.spec import FFN, ArchSpec


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


class Choice(NamedTuple):
    """What a router says: gates that are zero off the chosen, the share of each view, and the two losses."""

    gates_BTE: jax.Array
    ratios_BTME: jax.Array | None
    load_balance: jax.Array
    z_loss: jax.Array


def _chosen(preference_BTE, top_k, masked_E):
    if masked_E is not None:
        preference_BTE = jnp.where(masked_E, -jnp.inf, preference_BTE)
    least_BT1 = jnp.sort(preference_BTE, axis=-1)[..., -top_k, None]
    return preference_BTE >= least_BT1


def _load_balance(chosen_BTE, probabilities_BTE):
    share_E, mean_E = chosen_BTE.mean((0, 1)) / chosen_BTE[0, 0].sum(), probabilities_BTE.mean((0, 1))
    return share_E.size * jnp.vdot(share_E, mean_E)


def _softmax_router(weights, top_k, x_BTD, masked_E) -> Choice:
    logits_BTE = jnp.einsum("BTD,DE->BTE", x_BTD, weights["w_DE"])
    if masked_E is not None:
        logits_BTE = jnp.where(masked_E, -jnp.inf, logits_BTE)
    chosen_BTE = _chosen(logits_BTE, top_k, masked_E)
    gates_BTE = jax.nn.softmax(jnp.where(chosen_BTE, logits_BTE, -jnp.inf), axis=-1)
    balance = _load_balance(chosen_BTE, jax.nn.softmax(logits_BTE, axis=-1))
    return Choice(gates_BTE, None, balance, jnp.mean(jax.nn.logsumexp(logits_BTE, axis=-1) ** 2))


def _fused(scores_RBTE, fusion):
    """max_r, sum_r, prod_r, or (prod_r)^(1/R) of the heads' scores."""
    if fusion == "max":
        return jnp.max(scores_RBTE, axis=0)
    if fusion == "sum":
        return jnp.einsum("RBTE->BTE", scores_RBTE)
    product_BTE = jnp.prod(scores_RBTE, axis=0)
    return product_BTE if fusion == "product" else product_BTE ** (1 / len(scores_RBTE))


def _sigmoid_router(arch: ArchSpec, ffn: FFN, weights, x_BTD, bias_E, masked_E) -> Choice:
    logits_RBTE = jnp.einsum("BTD,RDE->RBTE", x_BTD, weights["w_RDE"])
    scores_RBTE = 1 / (1 + jnp.exp(-logits_RBTE))
    fused_BTE = _fused(scores_RBTE, arch.router.sigmoid.fusion)
    chosen_BTE = _chosen(fused_BTE + bias_E, ffn.top_k, masked_E)
    gates_BTE = fused_BTE * chosen_BTE
    gates_BTE /= jnp.einsum("BTE->BT", gates_BTE)[..., None]
    probabilities_BTE = fused_BTE / jnp.einsum("BTE->BT", fused_BTE)[..., None]
    z_loss = jnp.mean(jax.nn.logsumexp(logits_RBTE, axis=-1) ** 2)
    ratios_BTME = None
    if ffn.views and ffn.views.mixing == "learned":
        ratios_BTME = jax.nn.softmax(jnp.einsum("BTD,MDE->BTME", x_BTD, weights["w_mix_MDE"]), axis=2)
    elif ffn.views:
        ratios_BTME = jnp.einsum("RBTE,BTE->BTRE", scores_RBTE, 1 / scores_RBTE.sum(0))
        if ffn.views.mixing == "routers_detached":
            ratios_BTME = jax.lax.stop_gradient(ratios_BTME)
    return Choice(gates_BTE, ratios_BTME, _load_balance(chosen_BTE, probabilities_BTE), z_loss)


def _swiglu(gate, up):
    return jax.nn.silu(gate) * up


def _ffn(ffn: FFN, weights, x_BTD, choice: Choice | None, gamma):
    """Every expert on every token; L, what an expert reads, is the width or the latent's."""
    if ffn.latent is None:
        inputs_BTEL = jnp.broadcast_to(x_BTD[:, :, None], (*x_BTD.shape[:2], ffn.num_experts, x_BTD.shape[-1]))
    elif ffn.views is None:
        z_BTL = jnp.einsum("BTD,DL->BTL", x_BTD, weights["w_in_DL"])
        inputs_BTEL = jnp.broadcast_to(z_BTL[:, :, None], (*z_BTL.shape[:2], ffn.num_experts, z_BTL.shape[-1]))
    else:
        w_in_MDL = jnp.stack([weights["w_in_DL"], *(weights["w_in_DL"] + gamma * weights["w_views_MDL"])])
        views_BTML = jnp.einsum("BTD,MDL->BTML", x_BTD, w_in_MDL)
        inputs_BTEL = jnp.einsum("BTME,BTML->BTEL", choice.ratios_BTME, views_BTML)
    gate_BTEF = jnp.einsum("BTEL,ELF->BTEF", inputs_BTEL, weights["w_gate_EDF"])
    up_BTEF = jnp.einsum("BTEL,ELF->BTEF", inputs_BTEL, weights["w_up_EDF"])
    hidden_BTEF = _swiglu(gate_BTEF, up_BTEF)
    if choice is not None:
        hidden_BTEF *= choice.gates_BTE[..., None]
    y_BTD = jnp.einsum("BTEF,EFL->BTL", hidden_BTEF, weights["w_down_EFD"])
    if ffn.latent:
        y_BTD = jnp.einsum("BTL,LD->BTD", y_BTD, weights["w_out_LD"])
    if ffn.shared_width:
        gate_BTF = jnp.einsum("BTD,DF->BTF", x_BTD, weights["w_shared_gate_DF"])
        up_BTF = jnp.einsum("BTD,DF->BTF", x_BTD, weights["w_shared_up_DF"])
        y_BTD += jnp.einsum("BTF,FD->BTD", _swiglu(gate_BTF, up_BTF), weights["w_shared_down_FD"])
    return y_BTD


class Forward(NamedTuple):
    """`kept`: the keys and values of every visit, which are what decoding keeps. Losses are means over the visits that
    have a router."""

    logits_BTV: jax.Array
    kept: list[jax.Array]
    load_balance: jax.Array | float
    z_loss: jax.Array | float


def logits(arch: ArchSpec, params, tokens_BT, gamma=1.0):
    """Logits (B, T, V) of tokens that are one document each."""
    return forward(arch, params, tokens_BT, gamma).logits_BTV


def forward(arch: ArchSpec, params, tokens_BT, gamma=1.0, masked=None) -> Forward:
    """gamma: ramp of the views. masked: segment -> bool (layers, E) of experts that no token may take."""
    kept, choices = [], []
    w_VD = params["embedding"]["w_VD"]
    x_BTD = w_VD[tokens_BT]
    if arch.tied_embeddings:
        x_BTD *= arch.d_model
    for segment in arch.segments:
        biases = params.get("balance", {}).get(segment.name, {}).get("bias_KE")
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
                choice, masked_E = None, masked[segment.name][num_layer] if segment.name in (masked or {}) else None
                if segment.ffn.has_router and arch.router.sigmoid is None:
                    choice = _softmax_router(weights["router"], segment.ffn.top_k, normed_BTD, masked_E)
                elif segment.ffn.has_router:
                    bias_E = 0.0 if biases is None else biases[num_layer]
                    choice = _sigmoid_router(arch, segment.ffn, weights["router"], normed_BTD, bias_E, masked_E)
                choices += [choice] if choice else []
                x_BTD += segment.residual_scale * _ffn(segment.ffn, weights["experts"], normed_BTD, choice, gamma)
    x_BTD = _norm(x_BTD, params.get("final_norm"))
    w_DV = w_VD.T if arch.tied_embeddings else params["head"]["w_DV"]
    count = max(len(choices), 1)
    return Forward(
        logits_BTV=jnp.einsum("BTD,DV->BTV", x_BTD, w_DV),
        kept=kept,
        load_balance=sum(choice.load_balance for choice in choices) / count,
        z_loss=sum(choice.z_loss for choice in choices) / count,
    )
