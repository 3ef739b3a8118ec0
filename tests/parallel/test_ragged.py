"""The ragged exchange against what `lax.ragged_all_to_all` documents, which no CPU has: the offsets in numpy, shard by
shard, and the whole dispatch with that operation written out in what a CPU has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from smelt import parallel
from smelt.errors import BadInput
from tests.parallel.test_dispatch import assert_equal_outcomes, case, every_expert, outcome


def documented(operands, outputs, offsets):
    """The SEND and RECEIVE of the documentation, for all shards at once; one slice a shard.

    Also holds what it asks for: what a shard says that it receives is what the other says that it sends."""
    results = [output.copy() for output in outputs]
    for source, sent in enumerate(offsets):
        for target, received in enumerate(offsets):
            size = int(sent.send_sizes[target])
            assert size == int(received.recv_sizes[source])
            start, written = int(sent.input_offsets[target]), int(sent.output_offsets[target])
            assert start + size <= len(operands[source])
            assert written + size <= len(results[target])
            results[target][written : written + size] = operands[source][start : start + size]
    return results


@pytest.mark.parametrize("kind", ["even", "nothing", "all to one", "all from one", "sparse"])
def test_rows_arrive_packed_by_source_and_the_way_back_returns_them(kind):
    generator = np.random.default_rng(0)
    num_shards = 5
    counts_SX = generator.integers(0, 7, (num_shards, num_shards)).astype(np.int32)
    if kind == "nothing":
        counts_SX[:] = 0
    if kind == "all to one":
        counts_SX[:, [0, 1, 2, 4]] = 0
    if kind == "all from one":
        counts_SX[1:] = 0
    if kind == "sparse":
        counts_SX *= generator.random(counts_SX.shape) < 0.3
    sent = [[f"{s}>{x}:{i}" for x in range(num_shards) for i in range(counts_SX[s, x])] for s in range(num_shards)]
    length = int(max(counts_SX.sum(0).max(), counts_SX.sum(1).max())) + 3
    operands = [np.asarray(rows + [""] * (length - len(rows)), dtype="U16") for rows in sent]
    empty = [np.full(length, "", dtype="U16") for _ in range(num_shards)]

    there = documented(operands, empty, [parallel.ragged_offsets(counts_SX, s) for s in range(num_shards)])
    for target, rows in enumerate(there):
        expected = [f"{s}>{target}:{i}" for s in range(num_shards) for i in range(counts_SX[s, target])]
        assert list(rows) == expected + [""] * (length - len(expected))

    back = documented(there, empty, [parallel.ragged_offsets(counts_SX.T, s) for s in range(num_shards)])
    for rows, home in zip(back, operands, strict=True):
        np.testing.assert_array_equal(rows, home)


def test_the_example_of_the_documentation_is_reproduced():
    offsets = [
        parallel.RaggedOffsets([0, 1], [1, 2], [0, 0], [1, 1]),
        parallel.RaggedOffsets([0, 1], [1, 1], [1, 2], [2, 1]),
    ]
    received = documented([np.array([1, 2, 2]), np.array([3, 4, 0])], [np.zeros(4, int), np.zeros(4, int)], offsets)
    np.testing.assert_array_equal(received, [[1, 3, 0, 0], [2, 2, 4, 0]])


def written_out(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name):
    """`lax.ragged_all_to_all` by gathering all that every shard has; its derivative is zero, so that none is used."""
    operands_SM, inputs_SX, outputs_SX = (
        lax.all_gather(array, axis_name) for array in (operand, input_offsets, output_offsets)
    )
    me = lax.axis_index(axis_name)
    row_M1 = jnp.arange(output.shape[0])[:, None]
    from_MS = (row_M1 >= outputs_SX[:, me]) & (row_M1 < outputs_SX[:, me] + recv_sizes)
    source_M = jnp.argmax(from_MS, axis=1)
    row_of_source_M = inputs_SX[source_M, me] + row_M1[:, 0] - outputs_SX[source_M, me]
    written_M = from_MS.any(1).reshape(-1, *(1,) * (output.ndim - 1))
    return lax.stop_gradient(jnp.where(written_M, operands_SM[source_M, row_of_source_M], output))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("shape", [(1, 8), (2, 4)], ids=str)
@pytest.mark.parametrize("kind", [(61, 2, 7, "some none"), (40, 2, 8, "all to the first")], ids=str)
def test_the_ragged_exchange_says_and_learns_what_one_device_does(shape, kind, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lax, "ragged_all_to_all", written_out)
    ours = outcome(parallel.mesh(*shape), *case(*kind), strategy="ragged")
    assert_equal_outcomes(ours, outcome(None, *case(*kind)), atol=1e-10)


def test_a_machine_without_it_is_never_asked_for_it():
    rows, ids, weights = case(16, 2, 8)
    lowered = jax.jit(
        lambda x: parallel.dispatch(parallel.mesh(2, 4), lambda x, i, w: x[:, None] * w[0, 0, 0], x, ids, weights[:1])
    )
    assert "ragged" not in lowered.lower(rows).as_text()


def test_the_environment_chooses_an_exchange_and_a_word_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch):
    rows, ids, weights = case(16, 2, 8)
    monkeypatch.setenv("SMELT_EXCHANGE", "rugged")
    with pytest.raises(BadInput, match="SMELT_EXCHANGE is 'rugged': give one of padded, ragged"):
        outcome(parallel.mesh(2, 4), rows, ids, weights)
    monkeypatch.setenv("SMELT_EXCHANGE", "ragged")
    lowered = jax.jit(lambda x: parallel.dispatch(parallel.mesh(2, 4), every_expert, x, ids, weights)).lower(rows)
    assert "ragged" in lowered.as_text()
