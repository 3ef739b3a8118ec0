"""Routing and its losses against numpy done by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from smelt.model import routing

LOGITS_NE = np.asarray([[2.0, 1.0, 0.0, -1.0], [0.0, 3.0, 3.0, 0.0], [-1.0, 0.5, 0.0, 4.0]], np.float32)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_weights_are_the_softmax_over_the_chosen_and_losses_are_their_formulas(top_k: int):
    routed = routing.route(jnp.asarray(LOGITS_NE), top_k)
    probs_NE = np.exp(LOGITS_NE) / np.exp(LOGITS_NE).sum(1, keepdims=True)
    ids_NC = np.argsort(-LOGITS_NE, axis=1, kind="stable")[:, :top_k]
    weights_NE = np.zeros_like(probs_NE)
    for n, ids in enumerate(ids_NC):
        weights_NE[n, ids] = probs_NE[n, ids] / probs_NE[n, ids].sum()
    load_E = np.bincount(ids_NC.ravel(), minlength=4) / ids_NC.size
    np.testing.assert_array_equal(routed.ids_NC, ids_NC)
    np.testing.assert_allclose(routed.weights_NE, weights_NE, rtol=1e-6)
    np.testing.assert_allclose(routed.load_E, load_E, rtol=1e-6)
    np.testing.assert_allclose(routed.load_balance, 4 * (load_E * probs_NE.mean(0)).sum(), rtol=1e-6)
    z_loss = (np.log(np.exp(LOGITS_NE).sum(1)) ** 2).mean()
    np.testing.assert_allclose(routed.z_loss, z_loss, rtol=1e-6)


def test_equal_logits_go_to_the_lower_expert():
    for top_k in (2, 3):
        assert routing.best(jnp.zeros((1, 5)), top_k).tolist() == [list(range(top_k))]


def test_an_even_router_has_a_load_balance_loss_of_one_and_a_collapsed_one_of_e_over_k():
    even = routing.route(jnp.eye(4) * 1e-3, 1)
    collapsed = routing.route(jnp.tile(jnp.asarray([60.0, 0.0, 0.0, 0.0]), (7, 1)), 1)
    np.testing.assert_allclose([even.load_balance, collapsed.load_balance], [1.0, 4.0], rtol=1e-5)


def test_the_router_learns_from_the_weights_it_gives():
    gradient_NE = jax.grad(lambda logits_NE: routing.route(logits_NE, 2).weights_NE[0, 0])(jnp.asarray(LOGITS_NE))
    assert gradient_NE[0, 0] > 0 > gradient_NE[0, 1]
    assert not gradient_NE[0, 2:].any()
