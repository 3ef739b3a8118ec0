"""Dispatch over eight devices against every expert on every row: values, gradients, rounds, padding, bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from smelt import parallel
from smelt.errors import BadInput
from tests.parallel import volumes

D, F = 6, 5


@jax.custom_vjp
def product(x_ND: jax.Array, w_DF: jax.Array) -> jax.Array:
    """A matmul with a derivative of its own, as the experts' is."""
    return x_ND @ w_DF


product.defvjp(lambda x, w: (x @ w, (x, w)), lambda saved, dy: (dy @ saved[1].T, saved[0].T @ dy))


def every_expert(x_ND: jax.Array, ids_NC: jax.Array, *weights: jax.Array) -> jax.Array:
    """Every expert on every row, and those of `ids` picked; an id that is none picks nothing."""
    y_END = jax.vmap(lambda gate, up, down: product(jax.nn.silu(product(x_ND, gate)) * product(x_ND, up), down))(
        *weights
    )
    hot_NCE = (ids_NC[:, :, None] == jnp.arange(weights[0].shape[0])).astype(x_ND.dtype)
    return jnp.einsum("NCE,END->NCD", hot_NCE, y_END)


def case(num_rows: int, num_choices: int, num_experts: int, kind: str = "even", seed: int = 0):
    """Rows, choices and weights. `kind`: how choices are spread."""
    generator = np.random.default_rng(seed)
    x_ND = generator.normal(size=(num_rows, D))
    scores_NE = generator.normal(size=(num_rows, num_experts))
    if kind == "all to the first":
        scores_NE -= 1e3 * np.arange(num_experts)
    ids_NC = np.argsort(-scores_NE, axis=1)[:, :num_choices]
    if kind == "twice the same":
        ids_NC = np.zeros_like(ids_NC)
    if kind == "none":
        ids_NC = np.full_like(ids_NC, num_experts)
    if kind == "some none":
        ids_NC = np.where(generator.random(ids_NC.shape) < 0.3, num_experts, ids_NC)
    weights = [generator.normal(size=(num_experts, *shape)) for shape in ((D, F), (D, F), (F, D))]
    return jnp.asarray(x_ND), jnp.asarray(ids_NC, jnp.int32), [jnp.asarray(weight) for weight in weights]


def outcome(mesh, x_ND, ids_NC, weights, compute=every_expert, **how):
    """Output, and gradients by rows and weights of a fixed projection of it."""

    @jax.jit
    def both(x_ND, *weights):
        y_NCD, pull = jax.vjp(lambda x, *w: parallel.dispatch(mesh, compute, x, ids_NC, w, **how), x_ND, *weights)
        return y_NCD, pull(jnp.sin(jnp.arange(y_NCD.size, dtype=y_NCD.dtype)).reshape(y_NCD.shape))

    return both(x_ND, *weights)


def assert_equal_outcomes(ours, oracle, atol):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(oracle), strict=True):
        assert np.isfinite(np.asarray(other)).all()
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


CASES = [
    # rows and experts divide over every axis; neither does; fewer experts than shards
    (64, 2, 8, "even"),
    (61, 2, 7, "even"),
    (61, 3, 5, "some none"),
    (40, 2, 8, "all to the first"),
    (40, 2, 8, "twice the same"),
    (16, 1, 8, "none"),
]
ON_MESHES = [((2, 4), kind) for kind in CASES] + [
    (shape, kind) for shape in ((1, 8), (4, 2), (8, 1)) for kind in (CASES[1], CASES[3])
]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("shape", "kind"), ON_MESHES, ids=str)
def test_a_mesh_says_and_learns_what_one_device_does(shape, kind):
    ours = outcome(parallel.mesh(*shape), *case(*kind))
    assert_equal_outcomes(ours, outcome(None, *case(*kind)), atol=1e-10)


def test_float32_differs_by_rounding_alone():
    rows, ids, weights = case(61, 2, 7)
    assert rows.dtype == jnp.float32
    ours = outcome(parallel.mesh(2, 4), rows, ids, weights)
    assert_equal_outcomes(ours, outcome(None, rows, ids, weights), atol=2e-5)  # gradients of size 30, in another order


@pytest.mark.usefixtures("float64")
def test_equal_runs_are_equal_to_the_last_bit():
    once, again = (outcome(parallel.mesh(2, 4), *case(64, 2, 8)) for _ in range(2))
    for one, other in zip(jax.tree.leaves(once), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


def counting(calls: list[int]):
    """`every_expert`, which also tells whenever a device computes it."""

    def compute(x_ND, ids_NC, *weights):
        jax.debug.callback(lambda: calls.append(1))
        return every_expert(x_ND, ids_NC, *weights)

    return compute


def rounds_of(shape, num_rows, num_choices, num_experts, kind) -> int:
    """How many rounds the fullest pair needs, counted on the host."""
    _, ids_NC, _ = case(num_rows, num_choices, num_experts, kind)
    data, expert = shape
    of_shard = -(-num_experts // expert)
    shards = np.asarray(ids_NC).reshape(data * expert, -1) // of_shard
    fullest = max(int((of_source == target).sum()) for of_source in shards for target in range(expert))
    return -(-fullest // parallel.room_of_a_pair(num_rows // (data * expert), num_choices, expert))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("kind", "expected"), [("round robin", 1), ("even", 2), ("all to the first", 3)])
def test_further_rounds_are_gone_when_a_pair_overflows_and_only_then(kind, expected):
    shape, num_rows = (2, 4), 64
    rows_ND, ids_NC, weights = case(num_rows, 1, 8, "even" if kind == "round robin" else kind)
    if kind == "round robin":
        ids_NC = (jnp.arange(num_rows, dtype=jnp.int32) % 8)[:, None]
    else:
        assert rounds_of(shape, num_rows, 1, 8, kind) == expected
    calls = []
    mesh = parallel.mesh(*shape)
    y_NCD = jax.jit(lambda x, *w: parallel.dispatch(mesh, counting(calls), x, ids_NC, w))(rows_ND, *weights)
    jax.effects_barrier()
    assert len(calls) == expected * 8
    np.testing.assert_allclose(y_NCD, every_expert(rows_ND, ids_NC, *weights), rtol=0, atol=1e-10)


@jax.custom_vjp
def poisoned_gradient(x_ND: jax.Array, padding_N: jax.Array) -> jax.Array:
    """The rows as they are; what flows back into those of padding is NaN."""
    return x_ND


poisoned_gradient.defvjp(
    lambda x, padding: (x, padding), lambda padding, dx: (jnp.where(padding[:, None], jnp.nan, dx), None)
)


@jax.custom_vjp
def poisoned_value(y_NCD: jax.Array, padding_N: jax.Array) -> jax.Array:
    """What the rows of padding say is NaN; what flows back is as it was."""
    return jnp.where(padding_N[:, None, None], jnp.nan, y_NCD)


poisoned_value.defvjp(lambda y, padding: (poisoned_value(y, padding), None), lambda _, dy: (dy, None))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["even", "all to the first"])
def test_nothing_of_a_padding_row_is_ever_read(kind):
    padded = []

    def poisoned(x_ND, ids_NC, *weights):
        padding_N = ids_NC[:, 0] == weights[0].shape[0]
        jax.debug.callback(lambda number: padded.append(int(number)), padding_N.sum())
        y_NCD = every_expert(poisoned_gradient(x_ND, padding_N), ids_NC, *weights)
        return poisoned_value(y_NCD, padding_N)

    ours = outcome(parallel.mesh(2, 4), *case(61, 2, 7, kind), compute=poisoned)
    assert_equal_outcomes(ours, outcome(None, *case(61, 2, 7, kind)), atol=1e-10)
    jax.effects_barrier()
    assert max(padded) > 0, "no device computed any padding: this test shows nothing of it"


def test_a_poisoned_row_reaches_no_other():
    rows, ids, weights = case(61, 2, 7)
    clean_NCD, _ = outcome(parallel.mesh(2, 4), rows, ids, weights)
    dirty_NCD, _ = outcome(parallel.mesh(2, 4), rows.at[7].set(jnp.nan), ids, weights)
    assert np.isnan(dirty_NCD[7]).all()
    np.testing.assert_array_equal(np.delete(dirty_NCD, 7, axis=0), np.delete(clean_NCD, 7, axis=0))


def test_the_buffers_in_the_compiled_program_are_those_that_a_round_has_room_for():
    num_rows, num_choices, mesh = 64, 2, parallel.mesh(2, 4)
    rows, ids, weights = case(num_rows, num_choices, 8)
    text = jax.jit(lambda x, i, *w: parallel.dispatch(mesh, every_expert, x, i, w)).lower(rows, ids, *weights).compile()
    room = parallel.room_of_a_pair(num_rows // 8, num_choices, 4)
    row_bytes, id_bytes = 4 * D, 4
    one_round = 4 * room * (2 * row_bytes + id_bytes)
    assert volumes.exchanged_bytes(text.as_text()) == volumes.Exchanged(always=one_round, a_further_round=one_round)


def test_a_mesh_that_the_machine_does_not_have_is_refused():
    with pytest.raises(BadInput, match="needs 16 devices and there are 8"):
        parallel.mesh(4, 4)
    with pytest.raises(BadInput, match="positive"):
        parallel.mesh(0, 4)
