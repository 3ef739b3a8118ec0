"""Dispatch against the oracle that computes every expert: values, gradients, and rows that belong to no token."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from smelt.model import experts, grouped, routing

E, D, F = 4, 6, 5


def weights() -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, shape) for key, shape in zip(keys, [(E, D, F), (E, D, F), (E, F, D)], strict=True)]


def blocks(x_ND, routing, *weights, block_rows):
    weights_NC = experts.weights_of_chosen(routing)
    return (weights_NC[:, :, None] * grouped.expert_rows(x_ND, routing.ids_NC, *weights, block_rows=block_rows)).sum(1)


def loops(x_ND, routing, *weights):
    return grouped.looped_sums(x_ND, routing.ids_NC, experts.weights_of_chosen(routing), *weights)


def logits(num_tokens: int, kind: str) -> jax.Array:
    logits_NE = jax.random.normal(jax.random.key(1), (num_tokens, E))
    return logits_NE + jnp.asarray([0.0, 50.0, 0.0, 100.0]) if kind == "all to two" else logits_NE


def outcome(strategy, top_k: int, logits_NE: jax.Array, x_ND: jax.Array, *weights: jax.Array):
    """Output, and gradients by input, router logits and all weights of a fixed projection of it."""

    def forward(logits_NE, x_ND, *weights):
        return strategy(x_ND, routing.route(logits_NE, top_k), *weights)

    y_ND, pull = jax.vjp(forward, logits_NE, x_ND, *weights)
    return y_ND, pull(jnp.sin(jnp.arange(y_ND.size, dtype=y_ND.dtype)).reshape(y_ND.shape))


@pytest.mark.parametrize(
    ("num_tokens", "block_rows", "top_k", "kind"),
    [(16, 8, 2, "even"), (13, 4, 2, "even"), (13, 8, 1, "even"), (9, 16, 3, "even"), (13, 4, 2, "all to two")],
)
def test_blocks_agree_with_computing_every_expert(num_tokens: int, block_rows: int, top_k: int, kind: str):
    x_ND = jax.random.normal(jax.random.key(2), (num_tokens, D))
    logits_NE = logits(num_tokens, kind)
    oracle = jax.jit(lambda *a: outcome(experts.all_experts, top_k, *a))(logits_NE, x_ND, *weights())

    ours = jax.jit(lambda *a: outcome(partial(blocks, block_rows=block_rows), top_k, *a))(logits_NE, x_ND, *weights())
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(oracle), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=3e-5)  # values of size 30, summed in another order


@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("kind", ["even", "all to two"])
@pytest.mark.parametrize("num_tokens", [3, 37, 300])
def test_loops_agree_with_computing_every_expert(num_tokens: int, top_k: int, kind: str):
    x_ND = jax.random.normal(jax.random.key(2), (num_tokens, D))
    logits_NE = logits(num_tokens, kind)
    oracle = jax.jit(lambda *a: outcome(experts.all_experts, top_k, *a))(logits_NE, x_ND, *weights())
    ours = jax.jit(lambda *a: outcome(loops, top_k, *a))(logits_NE, x_ND, *weights())
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(oracle), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())


def test_large_and_small_blocks_together_are_the_rows_of_an_expert():
    """An expert of 300 choices goes by two large blocks and two small ones, one of 5 by a small one."""
    ids_NC = jnp.asarray([[0]] * 300 + [[2]] * 5)
    x_ND = jax.random.normal(jax.random.key(2), (305, D))
    y_ND = grouped.looped_sums(x_ND, ids_NC, jnp.ones((305, 1)), *weights())
    rows_NCD = grouped.expert_rows(x_ND, ids_NC, *weights())
    np.testing.assert_allclose(y_ND, rows_NCD[:, 0], rtol=1e-5, atol=1e-5)


def test_a_choice_of_no_expert_adds_nothing_in_loops():
    x_ND = jax.random.normal(jax.random.key(2), (3, D))
    ids_NC = jnp.asarray([[0, E], [E, E], [3, 1]])
    rows_NCD = grouped.expert_rows(x_ND, ids_NC, *weights())

    def sums(x_ND, weights_NC):
        return grouped.looped_sums(x_ND, ids_NC, weights_NC, *weights())

    y_ND, pull = jax.vjp(sums, x_ND, jnp.ones((3, 2)))
    np.testing.assert_allclose(y_ND, rows_NCD.sum(1), rtol=1e-5, atol=1e-6)
    dx_ND, dweights_NC = pull(jnp.ones_like(y_ND))
    assert not y_ND[1].any()
    assert not dx_ND[1].any()
    np.testing.assert_allclose(dweights_NC, rows_NCD.sum(-1), rtol=1e-4, atol=1e-5)


def test_a_poisoned_token_reaches_no_other_token_in_loops():
    x_ND = jax.random.normal(jax.random.key(2), (37, D))
    routed = routing.route(logits(37, "even"), 2)
    clean_ND = loops(x_ND, routed, *weights())
    poisoned_ND = loops(x_ND.at[0].set(jnp.nan), routed, *weights())
    assert np.isnan(poisoned_ND[0]).all()
    np.testing.assert_array_equal(poisoned_ND[1:], clean_ND[1:])


def test_which_way_is_taken_follows_the_size_of_an_expert(monkeypatch: pytest.MonkeyPatch):
    x_ND, ids_NC = jnp.ones((4, 64)), jnp.zeros((4, 1), jnp.int32)

    def taken(width: int) -> bool:
        shapes = [(2, 64, width), (2, 64, width), (2, width, 64)]
        arguments = (x_ND, ids_NC, jnp.ones((4, 1)), *map(jnp.ones, shapes))
        return "while" in jax.jit(lambda *a: grouped.expert_sums(*a)).lower(*arguments).as_text()

    assert taken(64)
    assert not taken(8)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not taken(64)


def test_every_choice_has_one_slot_in_a_block_of_its_expert():
    ids_NC = jax.lax.top_k(jax.random.normal(jax.random.key(4), (37, E)), 2)[1]
    slots, first_E, end_E = grouped.plan(ids_NC, E, 8)
    slot_U, choice_M = np.asarray(slots.slot_NC).ravel(), np.asarray(slots.choice_M)
    assert len(set(slot_U)) == slot_U.size
    block_U, expert_U = slot_U // 8, np.asarray(ids_NC).ravel()
    assert (np.asarray(first_E)[expert_U] <= block_U).all()
    assert (block_U < np.asarray(end_E)[expert_U]).all()
    assert np.array_equal(choice_M[slot_U], np.arange(slot_U.size))
    assert (choice_M == slot_U.size).sum() == choice_M.size - slot_U.size


def test_a_choice_of_no_expert_is_zero_and_has_no_gradient():
    x_ND = jax.random.normal(jax.random.key(2), (3, D))
    ids_NC = jnp.asarray([[0, E], [E, E], [3, 1]])
    y_NCD, pull = jax.vjp(lambda x_ND: grouped.expert_rows(x_ND, ids_NC, *weights(), block_rows=4), x_ND)
    assert not y_NCD[0, 1].any()
    assert not y_NCD[1].any()
    assert y_NCD[2].any(axis=-1).all()
    (dx_ND,) = pull(jnp.ones_like(y_NCD))
    assert not dx_ND[1].any()


def test_a_poisoned_token_and_poisoned_padding_reach_no_other_token(monkeypatch: pytest.MonkeyPatch):
    x_ND = jax.random.normal(jax.random.key(2), (13, D))
    routed = routing.route(logits(13, "even"), 2)
    clean_ND = blocks(x_ND, routed, *weights(), block_rows=4)
    poisoned_ND = blocks(x_ND.at[0].set(jnp.nan), routed, *weights(), block_rows=4)
    assert np.isnan(poisoned_ND[0]).all()
    np.testing.assert_array_equal(poisoned_ND[1:], clean_ND[1:])

    to_slots = grouped.to_slots

    def with_poisoned_padding(x_ND, slots):
        padding_M1 = (slots.choice_M == slots.slot_NC.size)[:, None]
        return jnp.where(padding_M1, jnp.nan, to_slots(x_ND, slots))

    monkeypatch.setattr(grouped, "to_slots", with_poisoned_padding)
    np.testing.assert_array_equal(blocks(x_ND, routed, *weights(), block_rows=4), clean_ND)


def test_padding_rows_are_zero_in_both_directions():
    slots = grouped.plan(jnp.asarray([[0, 3], [0, 1], [3, 0]]), E, 4).slots
    padding_M = np.asarray(slots.choice_M) == 6
    assert padding_M.any()
    assert not grouped.to_slots(jnp.ones((3, D)), slots)[padding_M].any()
    _, pull = jax.vjp(lambda y_MD: grouped.from_slots(y_MD, slots), jnp.ones((slots.choice_M.size, D)))
    (dy_MD,) = pull(jnp.ones((3, 2, D)))
    assert not dy_MD[padding_M].any()
    assert (dy_MD[~padding_M] == 1).all()
