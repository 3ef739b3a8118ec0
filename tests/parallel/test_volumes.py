"""What crosses between devices and what lies on each, read from compiled programs and from arrays."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from smelt import model, parallel, variants
from smelt.spec import ArchSpec
from smelt.train import step as steps_of
from tests.model.shapes import BASELINE, LATENT, LENGTH
from tests.parallel import steps, volumes

ONE_LAYER = replace(LATENT, loop=replace(LATENT.loop, num_layers=1))


def with_views(num_views: int) -> ArchSpec:
    if num_views == 1:
        return ONE_LAYER
    return variants.multi_view(variants.multi_router(ONE_LAYER, num_heads=num_views))


def gradient_program(arch: ArchSpec, shape: tuple[int, int]) -> str:
    """The compiled gradient of one batch."""
    mesh = parallel.mesh(*shape)
    params = jax.eval_shape(lambda: model.init(arch, jax.random.key(0)))
    rows = parallel.batch_sharding(mesh, steps.NUM_SEQS)
    window = jax.ShapeDtypeStruct((steps.NUM_SEQS, LENGTH), np.int32, sharding=rows)

    def loss(params, tokens_BU, segments_BU):
        return model.losses(arch, params, tokens_BU, segments_BU, confine_attention=True, mesh=mesh)[0]

    return jax.jit(jax.grad(loss)).lower(params, window, window).compile().as_text()


def test_views_move_no_more_than_one_latent_vector_a_chosen_expert():
    programs = [gradient_program(with_views(num_views), (2, 4)) for num_views in (1, 2, 3)]
    moved = [volumes.exchanged_bytes(program) for program in programs]
    for program in programs:  # rows take no other way, but for sums of gradients
        assert "all-gather(" not in program
        assert "collective-permute(" not in program
    assert moved[0] == moved[1] == moved[2]
    # Of 11 tokens a device, 2 choices: rows there and back, forward and backward, and once the ids.
    room = parallel.room_of_a_pair(11, 2, 4)
    row_bytes, id_bytes = 4 * LATENT.ffn.latent.width, 4
    assert moved[0].always == 4 * room * (4 * row_bytes + id_bytes)


def test_useful_rows_are_those_of_choices_whose_expert_lives_elsewhere():
    ids_NC = np.array([[0, 3], [1, 2], [2, 3], [3, 0], [4, 4]])
    # Two shards of two experts each, 2 x 2 devices of two rows, the last one with padding alone; 4 is no expert.
    assert volumes.useful_rows(ids_NC, num_experts=4, shape=(2, 2)) == [2, 1, 0, 0]


def test_every_device_holds_its_part_of_experts_and_moments():
    shape = (2, 4)
    mesh = parallel.mesh(*shape)
    state = steps_of.init_state(BASELINE, steps.NOT_CLIPPED, 0)
    placed = jax.device_put(state, steps_of.state_shardings(mesh, state))

    def parts(leaf: jax.Array) -> int:
        """Into how many parts a leaf is cut."""
        return leaf.size // leaf.addressable_shards[0].data.size

    experts = placed.params["loop"]["experts"]["w_gate_EDF"]
    assert experts.addressable_shards[0].data.shape == (2, 1, 8, 10)  # layers, a quarter of the experts
    assert parts(placed.params["head"]["w_DV"]) == 1
    assert parts(placed.params["loop"]["router"]["w_DE"]) == 1
    moments = placed.optimizer[1]
    for moment in (moments.mu, moments.nu):
        assert parts(moment["loop"]["experts"]["w_gate_EDF"]) == 8
        assert parts(moment["head"]["w_DV"]) == 2
        assert parts(moment["final_norm"]["gain_D"]) == 2
    for one, other in zip(jax.tree.leaves(placed), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_does_not_divide_lies_on_every_device():
    mesh = parallel.mesh(2, 3)
    shapes = {"w_gate_EDF": jax.ShapeDtypeStruct((5, 4, 7, 3), np.float32), "alone": jax.ShapeDtypeStruct((), np.int32)}
    whole, spread = parallel.shardings(mesh, shapes), parallel.shardings(mesh, shapes, over_data=True)
    assert whole["w_gate_EDF"].shard_shape((5, 4, 7, 3)) == (5, 4, 7, 3)
    assert spread["w_gate_EDF"].shard_shape((5, 4, 7, 3)) == (5, 2, 7, 3)
    assert spread["alone"].shard_shape(()) == ()


@pytest.mark.parametrize(("num_seqs", "rows_of_a_device"), [(12, 2), (8, 4), (9, 9)])
def test_a_batch_is_spread_as_far_as_its_windows_divide(num_seqs, rows_of_a_device):
    assert parallel.batch_sharding(parallel.mesh(2, 3), num_seqs).shard_shape((num_seqs, 5)) == (rows_of_a_device, 5)
