"""Sigmoid heads, their fusion, the selection bias and the ratios of the views, against numpy done by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shapes import BASELINE, MULTI_VIEW

from smelt import model, variants
from smelt.model import routing
from smelt.model.initialisation import is_drawn
from smelt.model.routing import Selection, SigmoidRouter
from smelt.spec import Views
from smelt.train import step

# 3 tokens, 2 heads, 4 experts; no two fused scores of a token are equal under any fusion
LOGITS_NRE = np.asarray(
    [
        [[2.0, -1.0, 0.5, -3.0], [-1.0, 1.5, 0.25, 0.0]],
        [[0.0, 3.0, -2.0, 1.0], [1.0, -3.0, 0.5, -0.5]],
        [[-2.0, 0.1, 1.0, 4.0], [0.3, 0.2, -1.0, -4.5]],
    ]
)
SCORES_NRE = 1 / (1 + np.exp(-LOGITS_NRE))
FUSED = {
    "sum": SCORES_NRE[:, 0] + SCORES_NRE[:, 1],
    "max": np.maximum(SCORES_NRE[:, 0], SCORES_NRE[:, 1]),
    "product": SCORES_NRE[:, 0] * SCORES_NRE[:, 1],
    "geometric_mean": np.sqrt(SCORES_NRE[:, 0] * SCORES_NRE[:, 1]),
}
BIAS_E = np.asarray([0.0, -0.9, 0.8, 0.0])


def by_hand(fused_NE: np.ndarray, preference_NE: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
    ids_NC = np.argsort(-preference_NE, axis=1, kind="stable")[:, :top_k]
    weights_NE = np.zeros_like(fused_NE)
    for n, ids in enumerate(ids_NC):
        weights_NE[n, ids] = fused_NE[n, ids] / fused_NE[n, ids].sum()
    return ids_NC, weights_NE


@pytest.mark.parametrize("bias_E", [None, BIAS_E], ids=["unbiased", "biased"])
@pytest.mark.parametrize("fusion", FUSED)
def test_the_choice_follows_the_biased_fused_scores_and_the_gates_the_unbiased_ones(fusion: str, bias_E):
    fused_NE = FUSED[fusion]
    ids_NC, weights_NE = by_hand(fused_NE, fused_NE + (0 if bias_E is None else bias_E), 2)
    selection = Selection(None if bias_E is None else jnp.asarray(bias_E, jnp.float32))
    routed = routing.route_sigmoid(jnp.asarray(LOGITS_NRE, jnp.float32), 2, fusion, selection)
    load_E = np.bincount(ids_NC.ravel(), minlength=4) / ids_NC.size
    np.testing.assert_array_equal(routed.ids_NC, ids_NC)
    np.testing.assert_allclose(routed.weights_NE, weights_NE, rtol=2e-6)
    np.testing.assert_allclose(routed.load_E, load_E, rtol=1e-6)
    probability_NE = fused_NE / fused_NE.sum(1, keepdims=True)
    np.testing.assert_allclose(routed.load_balance, 4 * (load_E * probability_NE.mean(0)).sum(), rtol=2e-6)
    z_loss = (np.log(np.exp(LOGITS_NRE).sum(-1)) ** 2).mean()
    np.testing.assert_allclose(routed.z_loss, z_loss, rtol=2e-6)


def test_the_bias_of_this_test_moves_a_choice():
    assert (by_hand(FUSED["sum"], FUSED["sum"], 2)[0] != by_hand(FUSED["sum"], FUSED["sum"] + BIAS_E, 2)[0]).any()


def test_a_router_of_one_head_is_the_plain_sigmoid_router_under_every_fusion():
    one_N1E = jnp.asarray(LOGITS_NRE[:, :1], jnp.float32)
    ids_NC, weights_NE = by_hand(SCORES_NRE[:, 0], SCORES_NRE[:, 0], 2)
    for fusion in FUSED:
        routed = routing.route_sigmoid(one_N1E, 2, fusion)
        np.testing.assert_array_equal(routed.ids_NC, ids_NC)
        np.testing.assert_allclose(routed.weights_NE, weights_NE, rtol=1e-6)


def test_heads_summed_before_the_sigmoid_are_one_linear_router_and_after_it_they_are_not():
    x_ND = jax.random.normal(jax.random.key(0), (64, 6))
    w_RDE = jax.random.normal(jax.random.key(1), (2, 6, 8))
    logits_NRE = routing._heads(x_ND, w_RDE)
    before = routing.route_sigmoid(logits_NRE.sum(1, keepdims=True), 2, "sum")
    one_router = routing.route_sigmoid(routing._heads(x_ND, w_RDE.sum(0, keepdims=True)), 2, "sum")
    np.testing.assert_array_equal(before.ids_NC, one_router.ids_NC)
    np.testing.assert_allclose(before.weights_NE, one_router.weights_NE, atol=2e-6)
    after = routing.route_sigmoid(logits_NRE, 2, "sum")
    assert (after.ids_NC != one_router.ids_NC).any()


def routed_views(mixing: str):
    router = SigmoidRouter(num_experts=4, top_k=2, num_heads=2, fusion="sum", views=Views(num_views=2, mixing=mixing))
    x_ND = jax.random.normal(jax.random.key(0), (5, 3))
    boxed = router.init(jax.random.key(1), x_ND)["params"]
    return router, jax.tree.map(lambda leaf: leaf.value, boxed, is_leaf=is_drawn), x_ND


@pytest.mark.parametrize("mixing", ["routers", "routers_detached", "learned"])
def test_ratios_are_the_scores_of_the_chosen_expert_over_their_sum_or_a_softmax_of_their_own(mixing: str):
    router, params, x_ND = routed_views(mixing)
    routed = router.apply({"params": params}, x_ND)
    logits_NRE = np.einsum("ND,RDE->NRE", x_ND, params["w_RDE"])
    if mixing == "learned":
        mix_NME = np.exp(np.einsum("ND,MDE->NME", x_ND, params["w_mix_MDE"]))
    else:
        mix_NME = 1 / (1 + np.exp(-logits_NRE))
    shares_NME = mix_NME / mix_NME.sum(1, keepdims=True)
    for n, ids in enumerate(np.asarray(routed.ids_NC)):
        for c, i in enumerate(ids):
            np.testing.assert_allclose(routed.ratios_NCM[n, c], shares_NME[n, :, i], rtol=1e-5)


def test_the_ratios_teach_the_routers_unless_they_are_detached():
    slopes = {}
    for mixing in ("routers", "routers_detached"):
        router, params, x_ND = routed_views(mixing)

        def first_ratio(params, router=router, x_ND=x_ND):
            return router.apply({"params": params}, x_ND).ratios_NCM[:, :, 0].sum()

        slopes[mixing] = float(jnp.abs(jax.grad(first_ratio)(params)["w_RDE"]).max())
    assert slopes["routers"] > 1e-3
    assert slopes["routers_detached"] == 0


def test_the_bias_falls_where_the_load_is_high_and_pools_the_passes_of_a_looped_layer():
    arch = variants.loop_all(variants.sigmoid_router(BASELINE, bias_rate=0.01))  # one layer, two passes
    balance = {"loop": {"bias_KE": jnp.asarray([[0.0, 0.1, 0.0, 0.0]])}}
    loads = {"loop": jnp.asarray([[0.5, 0.1, 0.25, 0.15], [0.4, 0.1, 0.25, 0.25]])}
    moved = step.balanced(arch, balance, loads)
    # pooled loads 0.45, 0.1, 0.25, 0.2 against 0.25
    np.testing.assert_allclose(moved["loop"]["bias_KE"], [[-0.01, 0.11, 0.0, 0.01]], atol=1e-7)


def test_a_bias_evens_out_a_router_that_a_gradient_leaves_alone():
    x_ND = jax.random.normal(jax.random.key(0), (256, 6)) + 1.0
    logits_NRE = routing._heads(x_ND, 0.2 * jax.random.normal(jax.random.key(1), (1, 6, 8)))

    def moved(bias_E, _):
        load_E = routing.route_sigmoid(logits_NRE, 2, "sum", Selection(bias_E)).load_E
        return bias_E - 0.003 * jnp.sign(load_E - load_E.mean()), load_E.max()

    max_load = jax.lax.scan(moved, jnp.zeros(8), length=200)[1] * 8
    assert max_load[0] > 2.0
    assert max_load[-1] < 1.2


def test_no_gradient_no_decay_and_no_moment_touches_the_biases():
    tokens_BU = jax.random.randint(jax.random.key(0), (2, 9), 0, 13)
    params = model.init(MULTI_VIEW, jax.random.key(0))
    gradient = jax.grad(
        lambda params: model.losses(MULTI_VIEW, params, tokens_BU, tokens_BU * 0, confine_attention=False)[0]
    )(params)
    assert not jnp.any(gradient["balance"]["loop"]["bias_KE"])


@pytest.mark.parametrize("fusion", FUSED)
def test_scores_that_underflow_give_finite_weights_and_gradients(fusion: str):
    logits_NRE = jnp.full((2, 2, 4), -200.0)

    def weight(logits_NRE):
        routed = routing.route_sigmoid(logits_NRE, 2, fusion)
        return routed.weights_NE.sum() + routed.load_balance

    value, slope = jax.value_and_grad(weight)(logits_NRE)
    assert abs(value - 3) < 1e-5  # weights of 1 a token, and a load-balance loss of 1
    assert jnp.isfinite(slope).all()


def test_ratios_of_scores_that_underflow_have_a_slope():
    router, params, x_ND = routed_views("routers")
    params = {"w_RDE": -200.0 * jnp.ones_like(params["w_RDE"])}

    def first_ratio(params):
        return router.apply({"params": params}, jnp.abs(x_ND)).ratios_NCM[:, :, 0].sum()

    value, slope = jax.value_and_grad(first_ratio)(params)
    assert abs(value - 5 * 2 * 0.5) < 1e-5
    assert jnp.isfinite(slope["w_RDE"]).all()


def test_an_expert_with_exactly_its_share_keeps_its_bias():
    for num_experts in (10, 12, 24):
        arch = variants.sigmoid_router(BASELINE)
        arch = replace(arch, ffn=replace(arch.ffn, num_experts=num_experts))
        load_E = jnp.full(num_experts, 1 / num_experts).at[0].add(0.01).at[1].add(-0.01)
        balance = {"loop": {"bias_KE": jnp.zeros((2, num_experts))}}
        moved_KE = step.balanced(arch, balance, {"loop": jnp.stack([load_E, load_E])})["loop"]["bias_KE"]
        assert not moved_KE[:, 2:].any()
        assert (moved_KE[:, 0] < 0).all()
        assert (moved_KE[:, 1] > 0).all()
