"""Latents, shared experts and views against numpy, and the equalities that hold between them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shapes import ARCHITECTURES, LATENT, MULTI_VIEW, windows

from smelt import model, variants
from smelt.model import attention, experts
from smelt.model.initialisation import is_drawn
from smelt.model.routing import Router, Routing, SigmoidRouter

N, D, L, E, F, C, M = 5, 6, 4, 3, 7, 2, 2


def drawn(module: experts.Experts, x_ND: jax.Array, routed: Routing) -> dict:
    boxed = module.init(jax.random.key(0), x_ND, routed, CONTEXT)["params"]
    return jax.tree.map(lambda leaf: leaf.value, boxed, is_leaf=is_drawn)


CONTEXT = attention.context(jnp.zeros((1, 2), jnp.int32), confine_attention=False, gamma=0.6)
IDS_NC = jnp.asarray([[0, 2], [1, 0], [2, 1], [2, 0], [0, 1]])
GATES_NC = jnp.asarray([[0.7, 0.3], [0.5, 0.5], [0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
RATIOS_NCM = jax.nn.softmax(jax.random.normal(jax.random.key(3), (N, C, M)), axis=-1)


def routing_of(ratios_NCM: jax.Array | None, ids_NC=IDS_NC, gates_NC=GATES_NC) -> Routing:
    hot_NCE = jax.nn.one_hot(ids_NC, E)
    weights_NE = (gates_NC[..., None] * hot_NCE).sum(1)
    return Routing(weights_NE, ids_NC, hot_NCE.mean((0, 1)), jnp.zeros(()), jnp.zeros(()), ratios_NCM)


def silu(x):
    return x / (1 + np.exp(-x))


def ffn(i: int, z: np.ndarray, weights: dict) -> np.ndarray:
    hidden = silu(z @ weights["w_gate_EDF"][i]) * (z @ weights["w_up_EDF"][i])
    return hidden @ weights["w_down_EFD"][i]


@pytest.mark.parametrize("num_views", [1, 2])
def test_a_latent_layer_with_views_and_a_shared_expert_is_its_formula(num_views: int):
    module = experts.Experts(num_experts=E, width=F, shared_width=3, latent_width=L, num_views=num_views)
    x_ND = jax.random.normal(jax.random.key(1), (N, D))
    routed = routing_of(RATIOS_NCM if num_views > 1 else None)
    params = drawn(module, x_ND, routed)
    y_ND = module.apply({"params": params}, x_ND, routed, CONTEXT)
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    for n in range(N):
        h = np.asarray(x_ND[n], np.float64)
        first = h @ weights["w_in_DL"]
        total = np.zeros(L)
        for c in range(C):
            if num_views == 1:
                z = first
            else:  # as the paper writes it: a mixture of whole views
                second = first + 0.6 * (h @ weights["w_views_MDL"][0])
                z = float(RATIOS_NCM[n, c, 0]) * first + float(RATIOS_NCM[n, c, 1]) * second
            total += float(GATES_NC[n, c]) * ffn(int(IDS_NC[n, c]), z, weights)
        hidden = silu(h @ weights["w_shared_gate_DF"]) * (h @ weights["w_shared_up_DF"])
        wanted = total @ weights["w_out_LD"] + hidden @ weights["w_shared_down_FD"]
        np.testing.assert_allclose(y_ND[n], wanted, rtol=2e-4, atol=2e-5)


def test_mixing_inputs_is_not_mixing_outputs():
    module = experts.Experts(num_experts=E, width=F, latent_width=L, num_views=2)
    x_ND = jax.random.normal(jax.random.key(1), (N, D))
    params = drawn(module, x_ND, routing_of(RATIOS_NCM))

    def output(ratios_NCM):
        return module.apply({"params": params}, x_ND, routing_of(ratios_NCM), CONTEXT)

    of_view = [output(jnp.broadcast_to(jax.nn.one_hot(m, M), (N, C, M))) for m in range(M)]
    uniform_ND = output(jnp.full((N, C, M), 0.5))
    assert jnp.abs(uniform_ND - (of_view[0] + of_view[1]) / 2).max() > 1e-3


def test_every_expert_with_uniform_gates_is_the_mean_of_all():
    module = experts.Experts(num_experts=E, width=F)
    x_ND = jax.random.normal(jax.random.key(1), (N, D))
    all_ids_NC = jnp.broadcast_to(jnp.arange(E), (N, E))
    routed = routing_of(None, all_ids_NC, jnp.full((N, E), 1 / E))
    params = drawn(module, x_ND, routed)
    y_ND = module.apply({"params": params}, x_ND, routed, CONTEXT)
    mean_ND = np.mean([ffn(i, np.asarray(x_ND), params) for i in range(E)], axis=0)
    np.testing.assert_allclose(y_ND, mean_ND, rtol=2e-4, atol=1e-5)


def logits(arch, params, gamma=1.0):
    tokens_BT, segments_BT = windows(2)
    return jax.jit(lambda p: model.apply(arch, p, tokens_BT, segments_BT, confine_attention=True, gamma=gamma)[0])(
        params
    )


def test_equal_views_are_one_view_to_the_last_bit():
    one_view = replace(MULTI_VIEW, ffn=replace(MULTI_VIEW.ffn, latent=LATENT.ffn.latent))
    params = model.init(MULTI_VIEW, jax.random.key(0))
    loop = params["loop"]
    without = {name: leaf for name, leaf in loop["experts"].items() if name != "w_views_MDL"}
    plain_BTV = logits(one_view, params | {"loop": loop | {"experts": without}})
    equal = loop["experts"] | {"w_views_MDL": jnp.zeros_like(loop["experts"]["w_views_MDL"])}
    assert jnp.array_equal(logits(MULTI_VIEW, params | {"loop": loop | {"experts": equal}}), plain_BTV)
    assert jnp.array_equal(logits(MULTI_VIEW, params, gamma=0.0), plain_BTV)
    assert jnp.abs(logits(MULTI_VIEW, params) - plain_BTV).max() > 1e-3


def test_the_ramp_moves_the_logits_continuously():
    params = model.init(MULTI_VIEW, jax.random.key(0))
    steps = [logits(MULTI_VIEW, params, gamma=gamma) for gamma in (0.0, 1e-4)]
    assert 0 < jnp.abs(steps[1] - steps[0]).max() < 1e-2


def test_muP_keeps_the_variance_of_all_matrices_over_the_width_but_the_embedding():
    base = ARCHITECTURES["mup"]
    wide = replace(
        base,
        d_model=256,
        attention=replace(base.attention, num_heads=8, head_dim=32),
        ffn=replace(base.ffn, width=320, num_experts=4),
    )
    narrow = replace(wide, d_model=64, attention=replace(wide.attention, num_heads=2), ffn=replace(wide.ffn, width=80))
    wide, narrow = (variants.mup(arch, base_width=64) for arch in (wide, narrow))
    stds = {
        arch.d_model: jax.tree.map(lambda leaf: float(leaf.std()), model.init(arch, jax.random.key(0)))
        for arch in (wide, narrow)
    }
    ratios = jax.tree.map(lambda a, b: a / b, stds[256], stds[64])
    embedding = ratios.pop("embedding")["w_VD"]
    assert abs(embedding - 1) < 0.1
    for path, ratio in jax.tree_util.tree_leaves_with_path(ratios):
        assert abs(ratio - 0.5) < 0.05, path


def test_muP_matrices_learn_at_the_rate_over_the_width_and_the_rest_at_all_of_it():
    arch = variants.mup(replace(ARCHITECTURES["latent"], d_model=8), base_width=4)
    params = model.init(arch, jax.random.key(0))
    shares = model.rate_shares(arch, params)
    assert shares["embedding"]["w_VD"] == 1
    assert shares["head"]["w_DV"] == 0.5
    assert {shares["loop"]["experts"][name] for name in shares["loop"]["experts"]} == {0.5}
    assert shares["loop"]["router"]["w_RDE"] == 0.5
    assert model.rate_shares(arch, {"loop": {"router": {"log_gain_E": 0, "gain_net": {"w_DE": 0}}}}) == {
        "loop": {"router": {"log_gain_E": 1.0, "gain_net": {"w_DE": 0.5}}}
    }
    assert shares["loop"]["attention_norm"]["gain_D"] == shares["final_norm"]["gain_D"] == 1
    assert set(jax.tree.leaves(model.rate_shares(LATENT, params))) == {1.0}


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_a_router_without_preference_that_takes_every_expert_gives_the_mean_of_all(name: str):
    x_ND = jax.random.normal(jax.random.key(1), (N, D))
    if name == "softmax":
        router = Router(num_experts=E, top_k=E)
        params = {"w_DE": jnp.zeros((D, E))}
    else:
        router = SigmoidRouter(num_experts=E, top_k=E, num_heads=2, fusion="sum", views=None)
        params = {"w_RDE": jnp.zeros((2, D, E))}
    routed = router.apply({"params": params}, x_ND)
    module = experts.Experts(num_experts=E, width=F)
    weights = drawn(module, x_ND, routed)
    mean_ND = np.mean([ffn(i, np.asarray(x_ND), weights) for i in range(E)], axis=0)
    np.testing.assert_allclose(module.apply({"params": weights}, x_ND, routed, CONTEXT), mean_ND, rtol=2e-4, atol=1e-5)


def test_equal_views_that_are_not_zero_are_one_view_of_their_sum():
    """With M further views alike, their ratios sum to 1 - the first's: fed through one of two views it is the same."""
    x_ND = jax.random.normal(jax.random.key(1), (N, D))
    ratios_NCM = jax.nn.softmax(jax.random.normal(jax.random.key(5), (N, C, 3)), axis=-1)
    three = experts.Experts(num_experts=E, width=F, latent_width=L, num_views=3)
    two = experts.Experts(num_experts=E, width=F, latent_width=L, num_views=2)
    params = drawn(two, x_ND, routing_of(RATIOS_NCM))
    alike = params | {"w_views_MDL": jnp.repeat(params["w_views_MDL"], 2, axis=0)}
    joined = jnp.stack([ratios_NCM[..., 0], ratios_NCM[..., 1] + ratios_NCM[..., 2]], axis=-1)
    np.testing.assert_allclose(
        three.apply({"params": alike}, x_ND, routing_of(ratios_NCM), CONTEXT),
        two.apply({"params": params}, x_ND, routing_of(joined), CONTEXT),
        atol=2e-6,
    )
