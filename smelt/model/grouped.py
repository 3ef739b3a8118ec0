"""Rows, the experts each chose and their weights -> what the chosen experts say; only what was chosen is computed.

Rows are sorted by expert, each expert's rows padded to whole blocks. There is room for the worst case, so nothing is
dropped; padding rows are zero and are never read back. Two ways of computing the blocks, chosen by `expert_rows`:

    blocks    one batched matmul over all blocks, each with a copy of its expert's weights: no loop, so it suits
              accelerators; on a CPU it is ahead as long as an expert's weights fit into the first cache
    loops     expert by expert, then block by block, as many as there are: weights are read where they lie, gradients
              are summed in cache, and blocks that hold nothing cost nothing

Measured on one Zen 5 core, top-2 of E, 2,048 tokens, forward and backward in ms; dense is an FFN of the same FLOPs:

    width x expert width, E      64 x 48, 8    128 x 96, 8    128 x 96, 32    256 x 192, 8    256 x 192, 32    512 x 384, 8
    blocks                       2.9           8.9            15.3            32.9            47.7             124
    loops                        3.1           7.9            10.5            25.4            32.6             90
    dense                        1.5           5.1            5.5             18.0            18.0             66

Every expert on every token (`experts.all_experts`) takes 2.3 times as long as blocks at width 128, and `lax.ragged_dot`
computes every expert on a CPU too.

Letters: N tokens of a batch, D width, E experts, F expert width, C choices of a token, U = N C choices, J blocks of P
rows, M = J P slots.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from smelt.model.matmul import matmul
from smelt.parallel import Slots, from_slots, slots_of, to_slots

# Measured on one Zen 5 core, top-2 of 8, 1,024 tokens: 32 and 128 rows are up to 15 % slower at widths 24 to 128.
BLOCK_ROWS = 64
LARGE, SMALL = 128, 32
# One matrix of an expert, in values, from which on loops are ahead.
LOOPED_FROM = 3072


def expert_sums(
    x_ND: Float[Array, "N D"],
    ids_NC: Int[Array, "N C"],
    weights_NC: Float[Array, "N C"],
    w_gate_EDF: Float[Array, "E D F"],
    w_up_EDF: Float[Array, "E D F"],
    w_down_EFD: Float[Array, "E F D"],
) -> Float[Array, "N D"]:
    """What the chosen experts of each token say, each times its weight, on one device."""
    E, D, F = w_gate_EDF.shape
    if jax.default_backend() != "cpu" or D * F < LOOPED_FROM:
        return (weights_NC[:, :, None] * expert_rows(x_ND, ids_NC, w_gate_EDF, w_up_EDF, w_down_EFD)).sum(1)
    return looped_sums(x_ND, ids_NC, weights_NC, w_gate_EDF, w_up_EDF, w_down_EFD)


class Plan(NamedTuple):
    """Where each choice lies: the stable counting sort of all choices by expert, with every expert starting at a block.
    Choices of no expert have no slot, and slots of padding no choice. The blocks of expert e are first_E[e] and those
    after it, before end_E[e]."""

    slots: Slots
    first_E: Int[Array, "E"]
    end_E: Int[Array, "E"]


def plan(ids_NC: Int[Array, "N C"], num_experts: int, block_rows: int) -> Plan:
    N, C = ids_NC.shape
    num_blocks = most_blocks(N * C, num_experts, block_rows)
    hot_UE = (ids_NC.reshape(-1, 1) == jnp.arange(num_experts)).astype(jnp.int32)
    running_UE = jnp.cumsum(hot_UE, axis=0)
    blocks_E = -(-running_UE[-1] // block_rows)
    end_E = jnp.cumsum(blocks_E)
    starts_E = (end_E - blocks_E) * block_rows
    slot_U = ((running_UE - 1 + starts_E) * hot_UE).sum(1)
    slot_U = jnp.where(ids_NC.reshape(-1) < num_experts, slot_U, num_blocks * block_rows)
    return Plan(slots_of(slot_U.reshape(N, C), num_blocks * block_rows), end_E - blocks_E, end_E)


def most_blocks(num_choices: int, num_experts: int, block_rows: int) -> int:
    """Blocks of the worst case: every expert's last one holds a single row."""
    return (num_choices + num_experts * (block_rows - 1)) // block_rows


def expert_rows(
    x_ND: Float[Array, "N D"],
    ids_NC: Int[Array, "N C"],
    w_gate_EDF: Float[Array, "E D F"],
    w_up_EDF: Float[Array, "E D F"],
    w_down_EFD: Float[Array, "E F D"],
    *,
    block_rows: int = BLOCK_ROWS,
) -> Float[Array, "N C D"]:
    """What each chosen expert says of its token, and zero for a choice numbered E, which is none: all blocks of the
    worst case at once."""
    num_experts, width = w_gate_EDF.shape[0], x_ND.shape[1]
    slots, _, end_E = plan(ids_NC, num_experts, block_rows)
    x_JPD = to_slots(x_ND, slots).reshape(-1, block_rows, width)
    expert_J = (jnp.arange(x_JPD.shape[0])[:, None] >= end_E).sum(1)
    expert_J = jnp.minimum(expert_J, num_experts - 1)
    per_block = jax.vmap(matmul)
    gate_JPF = per_block(x_JPD, weights_of(w_gate_EDF, expert_J))
    up_JPF = per_block(x_JPD, weights_of(w_up_EDF, expert_J))
    y_JPD = per_block(jax.nn.silu(gate_JPF) * up_JPF, weights_of(w_down_EFD, expert_J))
    return from_slots(y_JPD.reshape(-1, width), slots)


@jax.custom_vjp
def weights_of(w_EIO: Float[Array, "E I O"], expert_J: Int[Array, "J"]) -> Float[Array, "J I O"]:
    """The weights of each block's expert; their gradient sums the blocks of an expert by a matmul."""
    return w_EIO[expert_J]


def _weights_of_backward(saved: tuple[Array, int], dw_JIO: Array) -> tuple[Array, None]:
    expert_J, num_experts = saved
    hot_JE = (expert_J[:, None] == jnp.arange(num_experts)).astype(dw_JIO.dtype)
    return jnp.einsum("JE,JIO->EIO", hot_JE, dw_JIO), None


weights_of.defvjp(
    lambda w_EIO, expert_J: (weights_of(w_EIO, expert_J), (expert_J, w_EIO.shape[0])), _weights_of_backward
)


def looped_sums(
    x_ND: Float[Array, "N D"],
    ids_NC: Int[Array, "N C"],
    weights_NC: Float[Array, "N C"],
    w_gate_EDF: Float[Array, "E D F"],
    w_up_EDF: Float[Array, "E D F"],
    w_down_EFD: Float[Array, "E F D"],
) -> Float[Array, "N D"]:
    """`expert_sums` by the blocks that hold something, one after another. Rows are fetched, weighed and, in the backward
    pass, weighed again inside the loop, so that no copy of all rows is ever written."""
    where = plan(ids_NC, w_gate_EDF.shape[0], SMALL)
    return _looped(x_ND, weights_NC, where, w_gate_EDF, w_up_EDF, w_down_EFD)


@jax.custom_vjp
def _looped(
    x_ND: Array, weights_NC: Array, where: Plan, w_gate_EDF: Array, w_up_EDF: Array, w_down_EFD: Array
) -> Array:
    return _looped_forward(x_ND, weights_NC, where, w_gate_EDF, w_up_EDF, w_down_EFD)[0]


def _looped_forward(
    x_ND: Array, weights_NC: Array, where: Plan, w_gate_EDF: Array, w_up_EDF: Array, w_down_EFD: Array
) -> tuple[Array, Any]:
    (E, D, F), M = w_gate_EDF.shape, where.slots.choice_M.size
    row_M, weight_M = _of_slots(where.slots, weights_NC)

    def expert(e: Array, made: Any) -> Any:
        w_gate_DF, w_up_DF, w_down_FD = w_gate_EDF[e], w_up_EDF[e], w_down_EFD[e]

        def block(rows: Callable[[Array], Array], start: Array, made: Any) -> Any:
            y_MD, gate_MF, up_MF = made
            x_PD = x_ND[rows(row_M)]
            gate_PF, up_PF = x_PD @ w_gate_DF, x_PD @ w_up_DF
            y_PD = (jax.nn.silu(gate_PF) * up_PF) @ w_down_FD * rows(weight_M)[:, None]
            return _put(y_MD, y_PD, start), _put(gate_MF, gate_PF, start), _put(up_MF, up_PF, start)

        return _over_blocks(where.first_E[e], where.end_E[e], M, block, made)

    empty = partial(jnp.zeros, dtype=x_ND.dtype)
    y_MD, gate_MF, up_MF = lax.fori_loop(0, E, expert, (empty((M, D)), empty((M, F)), empty((M, F))))
    saved = x_ND, weights_NC, gate_MF, up_MF, where, w_gate_EDF, w_up_EDF, w_down_EFD
    return _summed(y_MD, where.slots), saved


def _looped_backward(saved: Any, dy_ND: Array) -> Any:
    x_ND, weights_NC, gate_MF, up_MF, where, w_gate_EDF, w_up_EDF, w_down_EFD = saved
    (E, D, F), M = w_gate_EDF.shape, where.slots.choice_M.size
    row_M, weight_M = _of_slots(where.slots, weights_NC)

    def expert(e: Array, made: Any) -> Any:
        dx_MD, dweight_M, *dw = made
        # Read by every block of the expert: turned once.
        w_gate_FD, w_up_FD, w_down_DF = w_gate_EDF[e].T, w_up_EDF[e].T, w_down_EFD[e].T

        def block(rows: Callable[[Array], Array], start: Array, made: Any) -> Any:
            dx_MD, dweight_M, dw_gate_DF, dw_up_DF, dw_down_FD = made
            row_P, weight_P1 = rows(row_M), rows(weight_M)[:, None]
            x_PD, dy_PD, gate_PF, up_PF = x_ND[row_P], dy_ND[row_P], rows(gate_MF), rows(up_MF)
            hidden_PF, pull = jax.vjp(lambda gate_PF, up_PF: jax.nn.silu(gate_PF) * up_PF, gate_PF, up_PF)
            dhidden_PF = dy_PD @ w_down_DF
            dgate_PF, dup_PF = pull(weight_P1 * dhidden_PF)
            return (
                _put(dx_MD, dgate_PF @ w_gate_FD + dup_PF @ w_up_FD, start),
                _put(dweight_M, (hidden_PF * dhidden_PF).sum(1), start),
                dw_gate_DF + _over_rows(x_PD, dgate_PF),
                dw_up_DF + _over_rows(x_PD, dup_PF),
                dw_down_FD + _over_rows(weight_P1 * hidden_PF, dy_PD),
            )

        sums = (dx_MD, dweight_M, empty((D, F)), empty((D, F)), empty((F, D)))
        dx_MD, dweight_M, *sums = _over_blocks(where.first_E[e], where.end_E[e], M, block, sums)
        dw = (lax.dynamic_update_index_in_dim(to, one, e, 0) for to, one in zip(dw, sums, strict=True))
        return dx_MD, dweight_M, *dw

    empty = partial(jnp.zeros, dtype=x_ND.dtype)
    dw = (empty((E, D, F)), empty((E, D, F)), empty((E, F, D)))
    dx_MD, dweight_M, *dw = lax.fori_loop(0, E, expert, (empty((M, D)), empty(M), *dw))
    dweights_NC = dweight_M.at[where.slots.slot_NC].get(mode="fill", fill_value=0)
    return _summed(dx_MD, where.slots), dweights_NC, None, *dw


_looped.defvjp(_looped_forward, _looped_backward)


def _of_slots(slots: Slots, weights_NC: Array) -> tuple[Int[Array, "M"], Float[Array, "M"]]:
    """The row and the weight of each slot: some row, with weight 0, where it holds no choice."""
    N, C = slots.slot_NC.shape
    weight_M = weights_NC.reshape(-1).at[slots.choice_M].get(mode="fill", fill_value=0)
    return jnp.minimum(slots.choice_M // C, N - 1), weight_M


def _summed(rows_MD: Array, slots: Slots) -> Float[Array, "N D"]:
    """The rows of each token's choices, added up; choice by choice, since a sum over an axis would write them first."""
    each = [rows_MD.at[slot_N].get(mode="fill", fill_value=0) for slot_N in slots.slot_NC.T]
    return sum(each[1:], start=each[0])


def _over_blocks(first: Array, end: Array, num_slots: int, block: Callable[..., Any], made: Any) -> Any:
    """An expert's small blocks, as many of them as go into LARGE ones taken so. The larger a block, the more often is
    a weight used once it is at hand; the smaller, the less of it is padding."""
    large = LARGE if num_slots >= LARGE else SMALL
    start, stop = first * SMALL, end * SMALL
    turn = start + (stop - start) // large * large
    for size, begin, until in ((large, start, turn), (SMALL, turn, stop)):

        def one(i: Array, made: Any, size: int = size, begin: Array = begin) -> Any:
            at = begin + i * size
            return block(lambda all_M: lax.dynamic_slice_in_dim(all_M, at, size), at, made)

        made = lax.fori_loop(0, (until - begin) // size, one, made)
    return made


def _put(all_M: Array, block_P: Array, start: Array) -> Array:
    return lax.dynamic_update_slice_in_dim(all_M, block_P, start, 0)


def _over_rows(a_PI: Array, b_PO: Array) -> Array:
    return lax.dot_general(a_PI, b_PO, (((0,), (0,)), ((), ())))
