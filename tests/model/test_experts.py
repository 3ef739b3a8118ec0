"""Dispatch against the oracle that computes every expert: values, gradients, and rows that belong to no token."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from smelt.model import experts, routing

E, D, F = 4, 6, 5


def weights() -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, shape) for key, shape in zip(keys, [(E, D, F), (E, D, F), (E, F, D)], strict=True)]


def blocks(x_ND, routing, *weights, block_rows):
    return experts.weighted(experts.expert_rows(x_ND, routing.ids_NC, *weights, block_rows=block_rows), routing)


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


def test_every_choice_has_one_slot_in_a_block_of_its_expert():
    ids_NC = jax.lax.top_k(jax.random.normal(jax.random.key(4), (37, E)), 2)[1]
    plan = experts.block_plan(ids_NC, E, 8)
    slots = np.asarray(plan.slot_NC).ravel()
    assert len(set(slots)) == slots.size
    assert np.array_equal(np.asarray(plan.expert_J)[slots // 8], np.asarray(ids_NC).ravel())
    assert np.array_equal(np.asarray(plan.choice_S)[slots], np.arange(slots.size))
    assert (np.asarray(plan.choice_S) == slots.size).sum() == plan.choice_S.size - slots.size


def test_a_poisoned_token_and_poisoned_padding_reach_no_other_token(monkeypatch: pytest.MonkeyPatch):
    x_ND = jax.random.normal(jax.random.key(2), (13, D))
    routed = routing.route(logits(13, "even"), 2)
    clean_ND = blocks(x_ND, routed, *weights(), block_rows=4)
    poisoned_ND = blocks(x_ND.at[0].set(jnp.nan), routed, *weights(), block_rows=4)
    assert np.isnan(poisoned_ND[0]).all()
    np.testing.assert_array_equal(poisoned_ND[1:], clean_ND[1:])

    to_slots = experts.to_slots

    def with_poisoned_padding(x_ND, plan):
        padding_S1 = (plan.choice_S == plan.slot_NC.size)[:, None]
        return jnp.where(padding_S1, jnp.nan, to_slots(x_ND, plan))

    monkeypatch.setattr(experts, "to_slots", with_poisoned_padding)
    np.testing.assert_array_equal(blocks(x_ND, routed, *weights(), block_rows=4), clean_ND)


def test_padding_rows_are_zero_in_both_directions():
    plan = experts.block_plan(jnp.asarray([[0, 3], [0, 1], [3, 0]]), E, 4)
    padding_S = np.asarray(plan.choice_S) == 6
    assert padding_S.any()
    assert not experts.to_slots(jnp.ones((3, D)), plan)[padding_S].any()
    _, pull = jax.vjp(lambda y_SD: experts.from_slots(y_SD, plan), jnp.ones((plan.choice_S.size, D)))
    (dy_SD,) = pull(jnp.ones((3, 2, D)))
    assert not dy_SD[padding_S].any()
    assert (dy_SD[~padding_S] == 1).all()
