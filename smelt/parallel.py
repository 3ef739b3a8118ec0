"""Rows, the experts they chose and a mesh -> what those experts say, wherever they live; nothing is ever dropped.

    mesh ('data', 'expert')      rows are sharded over both axes, experts over 'expert'
    y[n, c] = compute(x[n], ids[n, c])      on the shard that owns expert ids[n, c], and back to the shard of row n

A shard lays the rows that it sends into one buffer by destination, an all-to-all swaps the buffers, the owners compute,
a second all-to-all brings the answers home. Sizes are static, so a (source, destination) pair has room for SLACK times
its even share; where any pair of the mesh needs more, all shards go further rounds of the same exchange, as many as
the fullest pair needs, counted on the device. Where the backend has a ragged all-to-all (not a CPU) it moves the useful
rows alone; what is limited is then the sum that one shard receives, and where that is too much, all go by rounds.

Moves are gathers in both directions, since a scatter-add is slow on CPU and its order is left to chance on a GPU.
Padding rows are zero, carry the id `number of local experts`, and are never read back.

This file knows no expert, no router and no model: `compute` does, and parameter trees are read by the axes in the names
of their leaves.

Letters: N rows, C choices of a row, D width, E experts, X shards of the expert axis, e experts of a shard, n rows of a
shard, U = n C choices of a shard, M rows of a buffer, S shards that send.
"""

import math
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from smelt.errors import BadInput

Compute = Callable[..., jax.Array]
Strategy = Literal["padded", "ragged"]

AXES = ("data", "expert")
# Room of a pair over its even share. Chosen: more is padding that every step computes, less a second round more often.
SLACK = 1.5
FURTHER = "further_rounds"  # what they are called in profiles and compiled programs


def mesh(data: int, expert: int, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of data x expert devices, the first ones where there are more. Raises BadInput where there are fewer."""
    devices = jax.devices() if devices is None else devices
    if data < 1 or expert < 1:
        raise BadInput(f"mesh data={data},expert={expert}: give positive sizes")
    if data * expert > len(devices):
        raise BadInput(
            f"mesh data={data},expert={expert} needs {data * expert} devices and there are {len(devices)}: "
            "give a smaller mesh"
        )
    # Auto axes: with explicit ones, embedding look-ups and sorts of sharded arrays are refused.
    auto = (AxisType.Auto,) * 2
    return jax.make_mesh((data, expert), AXES, axis_types=auto, devices=devices[: data * expert])


def dispatch(
    mesh: Mesh | None,
    compute: Compute,
    x_ND: Float[Array, "N D"],
    ids_NC: Int[Array, "N C"],
    weights: Sequence[Array],
    strategy: Strategy | None = None,
) -> Float[Array, "N C D"]:
    """What each row's chosen experts say of it.

    weights: arrays that lead with E. compute(x_ND, ids_NC, *weights) -> y_NCD does the same for the experts whose
    weights it is given, numbered from 0; an id equal to their number is no expert and gives zeros. It takes all its
    arrays as arguments, and treats rows alike: they reach it in another order, among padding. A mesh of one device, or
    none, calls `compute` at once. strategy: where None, what SMELT_EXCHANGE in the environment says, else the ragged
    exchange on GPU and TPU and the padded one elsewhere.
    """
    if mesh is None or mesh.size == 1:
        return compute(x_ND, ids_NC, *weights)
    num_rows, num_experts, num_shards = x_ND.shape[0], weights[0].shape[0], mesh.shape["expert"]
    experts_of_shard = -(-num_experts // num_shards)
    nobody = experts_of_shard * num_shards
    ids_NC = jnp.where(ids_NC < num_experts, ids_NC, nobody)
    strategy = strategy or _strategy()
    over_all = PartitionSpec(AXES)
    on_shards = jax.shard_map(
        partial(_on_shard, compute, num_shards, experts_of_shard, strategy),
        mesh=mesh,
        in_specs=(over_all, over_all, PartitionSpec("expert")),
        out_specs=over_all,
    )
    rows = -(-num_rows // mesh.size) * mesh.size
    y_NCD = on_shards(
        _lengthened(x_ND, rows, 0),
        _lengthened(ids_NC, rows, nobody),
        tuple(_lengthened(weight, nobody, 0) for weight in weights),
    )
    return y_NCD[:num_rows]


def _strategy() -> Strategy:
    asked = os.environ.get("SMELT_EXCHANGE")
    if asked and asked not in Strategy.__args__:
        raise BadInput(f"SMELT_EXCHANGE is {asked!r}: give one of {', '.join(Strategy.__args__)}, or leave it out")
    return asked or ("ragged" if jax.default_backend() in ("gpu", "tpu") else "padded")


def room_of_a_pair(num_rows: int, num_choices: int, num_shards: int) -> int:
    """Rows that one shard can send to one other in a round, of rows and choices of one shard."""
    return min(num_rows * num_choices, max(1, round(SLACK * num_rows * num_choices / num_shards)))


def _lengthened(array: Array, length: int, fill: int) -> Array:
    missing = length - array.shape[0]
    if missing == 0:
        return array
    return jnp.pad(array, ((0, missing),) + ((0, 0),) * (array.ndim - 1), constant_values=fill)


def _on_shard(
    compute: Compute,
    num_shards: int,
    experts_of_shard: int,
    strategy: Strategy,
    x_ND: Array,
    ids_NC: Array,
    weights: tuple[Array, ...],
) -> Array:
    """One shard's part: its rows, and its experts for whoever sends rows to them."""
    # The gradient of weights that all data shards hold is summed here, outside of what `compute` differentiates itself.
    weights = tuple(lax.pcast(weight, "data", to="varying") for weight in weights)
    if num_shards == 1:
        return compute(x_ND, ids_NC, *weights)
    shard_NC, local_NC = ids_NC // experts_of_shard, ids_NC % experts_of_shard
    counts_X, place_NC = places(shard_NC, num_shards)
    room = room_of_a_pair(*ids_NC.shape, num_shards)
    num_rounds = lax.pmax(-(-counts_X.max() // room), AXES)  # all shards must agree on what they exchange
    choices = Choices(shard_NC, local_NC, place_NC)
    shape = Shape(num_shards, experts_of_shard, room)
    if strategy == "padded":
        y_NCD = _round(compute, shape, 0, x_ND, weights, choices)
        return _rounds(partial(_round, compute, shape), 1, num_rounds, y_NCD, x_ND, weights, choices)
    counts_SX = lax.all_gather(counts_X, "expert")
    fits = lax.pmax(counts_SX.sum(0).max(), AXES) <= num_shards * room
    ragged = partial(_ragged, compute, shape, counts_SX)
    y_NCD = lax.cond(fits, ragged, _silence(ragged), x_ND, weights, choices)
    num_rounds = jnp.where(fits, 0, num_rounds)
    return _rounds(partial(_round, compute, shape), 0, num_rounds, y_NCD, x_ND, weights, choices)


class Choices(NamedTuple):
    """Where each choice goes: shard X is none; `local` counts experts of a shard, `place` among what goes there."""

    shard_NC: Int[Array, "n C"]
    local_NC: Int[Array, "n C"]
    place_NC: Int[Array, "n C"]


class Shape(NamedTuple):
    """What fixes the buffers of an exchange."""

    num_shards: int
    experts_of_shard: int
    room: int


def places(shard_NC: Int[Array, "n C"], num_shards: int) -> tuple[Int[Array, "X"], Int[Array, "n C"]]:
    """How many choices go to each shard, and the place of each among those that go where it goes."""
    hot_UX = (shard_NC.reshape(-1, 1) == jnp.arange(num_shards)).astype(jnp.int32)
    running_UX = jnp.cumsum(hot_UX, axis=0)
    return running_UX[-1], ((running_UX - 1) * hot_UX).sum(1).reshape(shard_NC.shape)


def _round(
    compute: Compute, shape: Shape, index: Array | int, x_ND: Array, weights: tuple[Array, ...], choices: Choices
) -> Array:
    """The choices whose place falls into this round: `room` rows from every shard to every shard, and back."""
    num_shards, experts_of_shard, room = shape
    place_NC = choices.place_NC - index * room
    now_NC = (choices.shard_NC < num_shards) & (place_NC >= 0) & (place_NC < room)
    slots = slots_of(jnp.where(now_NC, choices.shard_NC * room + place_NC, num_shards * room), num_shards * room)
    swap = partial(lax.all_to_all, axis_name="expert", split_axis=0, concat_axis=0, tiled=True)
    rows_MD = swap(to_slots(x_ND, slots))
    ids_M = swap(_ids_to_slots(choices.local_NC, slots, experts_of_shard))
    said_MD = swap(compute(rows_MD, ids_M[:, None], *weights)[:, 0])
    return from_slots(said_MD, slots)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rounds(
    exchange: Callable[..., Array],
    first: int,
    num_rounds: Array,
    y_NCD: Array,
    x_ND: Array,
    weights: tuple[Array, ...],
    choices: Choices,
) -> Array:
    """`y_NCD` plus what the rounds from `first` on say: usually none is left.

    The derivative runs the rounds again, so that their buffers take room only while one is under way, and none in the
    program's memory between forward and backward.
    """
    with jax.named_scope(FURTHER):
        return lax.fori_loop(first, num_rounds, lambda i, y_NCD: y_NCD + exchange(i, x_ND, weights, choices), y_NCD)


def _rounds_backward(exchange: Callable[..., Array], first: int, saved: Any, dy_NCD: Array) -> tuple[Any, ...]:
    num_rounds, x_ND, weights, choices = saved

    def add(i: Array, sums: Any) -> Any:
        _, pull = jax.vjp(lambda x_ND, weights: exchange(i, x_ND, weights, choices), x_ND, weights)
        return jax.tree.map(jnp.add, sums, pull(dy_NCD))

    with jax.named_scope(FURTHER):
        dx_ND, dweights = lax.fori_loop(first, num_rounds, add, jax.tree.map(jnp.zeros_like, (x_ND, weights)))
    return None, dy_NCD, dx_ND, dweights, None


_rounds.defvjp(
    lambda exchange, first, num_rounds, y_NCD, x_ND, weights, choices: (
        _rounds(exchange, first, num_rounds, y_NCD, x_ND, weights, choices),
        (num_rounds, x_ND, weights, choices),
    ),
    _rounds_backward,
)


def _ragged(
    compute: Compute,
    shape: Shape,
    counts_SX: Array,
    x_ND: Array,
    weights: tuple[Array, ...],
    choices: Choices,
) -> Array:
    """As many rows from each shard to each as there are, into a buffer of X times a pair's room."""
    num_shards, experts_of_shard, room = shape
    num_sent, num_received = choices.place_NC.size, num_shards * room
    sent_X = counts_SX[lax.axis_index("expert")]
    starts_X = jnp.cumsum(sent_X) - sent_X
    slot_NC = starts_X[choices.shard_NC % num_shards] + choices.place_NC
    slots = slots_of(jnp.where(choices.shard_NC < num_shards, slot_NC, num_sent), num_sent)
    rows_MD = ragged_move(to_slots(x_ND, slots), counts_SX, num_received)
    # Ids travel as id + 1, since what no row was written to reads 0.
    ids_M = ragged_send(_ids_to_slots(choices.local_NC + 1, slots, 0), counts_SX, num_received)
    ids_M = jnp.where(ids_M == 0, experts_of_shard, ids_M - 1)
    said_MD = ragged_move(compute(rows_MD, ids_M[:, None], *weights)[:, 0], counts_SX.T, num_sent)
    return from_slots(said_MD, slots)


def _silence(function: Callable[..., Array]) -> Callable[..., Array]:
    """Zeros of what a function on shards returns."""

    def zeros(*operands: Any) -> Array:
        said = jax.eval_shape(function, *operands)
        return lax.pcast(jnp.zeros(said.shape, said.dtype), AXES, to="varying")

    return zeros


class Slots(NamedTuple):
    """Where each choice lies in a buffer and what each row of it holds; no slot is M, no choice is n C."""

    slot_NC: Int[Array, "N C"]
    choice_M: Int[Array, "M"]


def slots_of(slot_NC: Int[Array, "N C"], num_slots: int) -> Slots:
    """Both directions of an assignment of choices to slots, from the one."""
    choice_M = jnp.full(num_slots, slot_NC.size, jnp.int32)
    choices_U = jnp.arange(slot_NC.size, dtype=jnp.int32)
    return Slots(slot_NC, choice_M.at[slot_NC.reshape(-1)].set(choices_U, mode="drop"))


@jax.custom_vjp
def to_slots(x_ND: Float[Array, "N D"], slots: Slots) -> Float[Array, "M D"]:
    """Each slot's row, zero where it holds no choice."""
    row_M = slots.choice_M // slots.slot_NC.shape[1]
    return x_ND.at[row_M].get(mode="fill", fill_value=0)


@jax.custom_vjp
def from_slots(y_MD: Float[Array, "M D"], slots: Slots) -> Float[Array, "N C D"]:
    """Each choice's slot, zero where it has none."""
    return y_MD.at[slots.slot_NC].get(mode="fill", fill_value=0)


def _from_slots_backward(slots: Slots, dy_NCD: Array) -> tuple[Array, None]:
    dy_UD = dy_NCD.reshape(-1, dy_NCD.shape[-1])
    return dy_UD.at[slots.choice_M].get(mode="fill", fill_value=0), None


to_slots.defvjp(
    lambda x_ND, slots: (to_slots(x_ND, slots), slots),
    lambda slots, dx_MD: (from_slots(dx_MD, slots).sum(1), None),
)
from_slots.defvjp(lambda y_MD, slots: (from_slots(y_MD, slots), slots), _from_slots_backward)


def _ids_to_slots(ids_NC: Array, slots: Slots, fill: int) -> Array:
    return ids_NC.reshape(-1).at[slots.choice_M].get(mode="fill", fill_value=fill)


class RaggedOffsets(NamedTuple):
    """The last four arguments of `lax.ragged_all_to_all` as one shard gives them, one slice a shard."""

    input_offsets: Int[Array, "X"]
    send_sizes: Int[Array, "X"]
    output_offsets: Int[Array, "X"]
    recv_sizes: Int[Array, "X"]


def ragged_offsets(counts_SX: Int[Array, "S X"], shard: Int[Array, ""] | int) -> RaggedOffsets:
    """Of rows sorted by destination, packed by source where they arrive; counts_SX[s, x] rows go from s to x.

    The way back is that of the transposed counts.
    """
    sent_X, received_S = counts_SX[shard], counts_SX[:, shard]
    before_me_SX = jnp.cumsum(counts_SX, axis=0) - counts_SX
    return RaggedOffsets(
        input_offsets=jnp.cumsum(sent_X) - sent_X,
        send_sizes=sent_X,
        output_offsets=before_me_SX[shard],
        recv_sizes=received_S,
    )


def ragged_send(rows: Array, counts_SX: Array, num_received: int) -> Array:
    """Rows sorted by destination -> rows by source, then zeros."""
    # Zeros, not `lax.empty`: rows that nobody writes are computed with.
    received = jnp.zeros((num_received, *rows.shape[1:]), rows.dtype)
    received = lax.pcast(received, AXES, to="varying")
    offsets = ragged_offsets(counts_SX, lax.axis_index("expert"))
    return lax.ragged_all_to_all(rows, received, *offsets, axis_name="expert")


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def ragged_move(rows_MD: Float[Array, "M D"], counts_SX: Int[Array, "S X"], num_received: int) -> Array:
    """`ragged_send`, whose gradient goes the way back."""
    return ragged_send(rows_MD, counts_SX, num_received)


ragged_move.defvjp(
    lambda rows_MD, counts_SX, num_received: (
        ragged_send(rows_MD, counts_SX, num_received),
        (counts_SX, rows_MD.shape[0]),
    ),
    lambda num_received, saved, drows_MD: (ragged_send(drows_MD, saved[0].T, saved[1]), None),
)


def shardings(mesh: Mesh, tree: Any, *, over_data: bool = False) -> Any:
    """Where the leaves of a tree of parameters, or of one like it, live: a NamedSharding a leaf.

    A leaf whose name says that it leads with experts (`w_gate_EDF`, whatever is stacked before) is sharded by them
    where they divide over 'expert'; all others are on every device. over_data: of what only the update of the
    parameters needs, the moments of an optimizer, each data shard keeps a part (ZeRO stage 1, Rajbhandari et al. 2020):
    the largest axis that divides over 'data' is sharded by it.
    """

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        axes: list[str | None] = [None] * len(leaf.shape)
        expert_axis = _expert_axis(path, len(leaf.shape))
        if expert_axis is not None and leaf.shape[expert_axis] % mesh.shape["expert"] == 0:
            axes[expert_axis] = "expert"
        if over_data:
            size = mesh.shape["data"]
            free = [i for i, axis in enumerate(axes) if axis is None and leaf.shape[i] % size == 0]
            if free:
                axes[max(free, key=lambda i: leaf.shape[i])] = "data"
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree_util.tree_map_with_path(place, tree)


def _expert_axis(path: tuple[Any, ...], num_axes: int) -> int | None:
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    axes = re.search(r"_(E[A-Z]*)$", str(names[-1])) if names else None
    return num_axes - len(axes[1]) if axes and len(axes[1]) <= num_axes else None


def batch_sharding(mesh: Mesh, num_seqs: int) -> NamedSharding:
    """Where a batch of windows lives: over all devices, over 'data' where their number allows no more, or on each."""
    for axes in (AXES, ("data",)):
        if num_seqs % math.prod(mesh.shape[axis] for axis in axes) == 0:
            return NamedSharding(mesh, PartitionSpec(axes))
    return everywhere(mesh)


def everywhere(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def rows_of_process(sharding: NamedSharding, num_rows: int) -> slice:
    """The rows of a batch that the devices of this process hold, from the first to the last."""
    spans = [index[0].indices(num_rows) for index in sharding.addressable_devices_indices_map((num_rows,)).values()]
    return slice(min(start for start, *_ in spans), max(stop for _, stop, _ in spans))


def spread(tree: Any, shardings: Any) -> Any:
    """Arrays that every process has, laid over the devices of all of them."""

    def lay(leaf: Any, sharding: NamedSharding) -> jax.Array:
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(lay, tree, shardings)


def on_host(tree: Any) -> Any:
    """Whole numpy arrays, in every process, of arrays wherever they lie. All processes must ask for it."""

    def gathered(leaf: Any) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
        return np.asarray(leaf)

    return jax.tree.map(gathered, tree)


def from_first(tree: Any) -> Any:
    """The arrays that the first of several processes gives, in all of them; theirs must have the same shapes."""
    if jax.process_count() == 1:
        return tree

    def sent(leaf: Any) -> np.ndarray:
        whole = np.asarray(leaf)
        # As bytes: what is sent is summed over processes, which would turn -0.0 into 0.0.
        sent_bytes = multihost_utils.broadcast_one_to_all(np.frombuffer(whole.tobytes(), np.uint8))
        return np.frombuffer(np.asarray(sent_bytes, np.uint8).tobytes(), whole.dtype).reshape(whole.shape)

    return jax.tree.map(sent, tree)


def text_from_first(text: str) -> str:
    """The text that the first of several processes gives, in all of them."""
    if jax.process_count() == 1:
        return text
    sent = np.frombuffer(text.encode(), np.uint8)
    size = int(from_first(np.asarray(sent.size)))
    own = sent if sent.size == size else np.zeros(size, np.uint8)
    return from_first(own).tobytes().decode() if size else ""


def any_process(flag: bool) -> bool:
    """Whether any process says so. All processes must ask."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))
