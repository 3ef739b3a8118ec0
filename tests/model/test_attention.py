"""Attention by blocks against attention over whole score matrices: values, gradients, segments, long windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from smelt.model import attention


def inputs(B: int, T: int, H: int, G: int, K: int) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(B, T, H, K), (B, T, G, K), (B, T, G, K), (B, T, H, K)]
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def outcome(attend, q, k, v, direction):
    mixed, pull = jax.vjp(attend, q, k, v)
    return mixed, *pull(direction)


@pytest.mark.parametrize("confined", [False, True])
@pytest.mark.parametrize(("T", "H", "G"), [(129, 2, 2), (256, 4, 1), (300, 4, 2), (1030, 1, 1)])
def test_blocks_agree_with_whole_score_matrices(T: int, H: int, G: int, confined: bool):
    q, k, v, direction = inputs(2, T, H, G, 6)
    segments_BT = jnp.cumsum(jax.random.bernoulli(jax.random.key(1), 0.05, (2, T)), axis=1).astype(jnp.int32)
    look = attention.context(segments_BT, confine_attention=confined)
    assert (look.segments is not None) == confined
    whole = jax.jit(lambda *a: outcome(lambda q, k, v: attention.attend(q, k, v, look.mask), *a))
    by_blocks = jax.jit(lambda *a: outcome(lambda q, k, v: attention.attend_blocks(q, k, v, look.segments), *a))
    for one, other in zip(by_blocks(q, k, v, direction), whole(q, k, v, direction), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6 * np.abs(other).max())


def test_blocks_leave_out_what_is_above_the_diagonal():
    """Of a window of two blocks one of four is above it; the loop over heads is one iteration to XLA."""
    q, k, v, _ = inputs(1, 256, 1, 1, 64)
    mask = jnp.asarray(np.tri(256, dtype=bool))[None]

    def flops(attend) -> float:
        return jax.jit(attend).lower(q, k, v).compile().cost_analysis()["flops"]

    whole = flops(lambda q, k, v: attention.attend(q, k, v, mask))
    assert flops(lambda q, k, v: attention.attend_blocks(q, k, v, None)) < 0.85 * whole


def test_a_window_of_one_block_and_a_mesh_take_the_whole_matrix(monkeypatch: pytest.MonkeyPatch):
    def looped(T: int, mesh=None) -> bool:
        look = attention.context(jnp.ones((1, T), jnp.int32), confine_attention=True)._replace(mesh=mesh)
        module = attention.Attention(num_heads=1, num_kv_heads=1, head_dim=2, scale="1/d_k")
        x_BTD = jnp.ones((1, T, 4))
        params = jax.tree.map(jnp.asarray, module.init(jax.random.key(0), x_BTD, look)["params"])
        return "while" in jax.jit(lambda x: module.apply({"params": params}, x, look)).lower(x_BTD).as_text()

    assert looped(attention.QUERY_BLOCK + 1)
    assert not looped(attention.QUERY_BLOCK)
    assert not looped(attention.QUERY_BLOCK + 1, mesh=object())
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not looped(attention.QUERY_BLOCK + 1)
