"""Experts that no token may take: what `masked` of `model.apply` does, seen from outside."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shapes import ARCHITECTURES, windows

from smelt import model
from smelt.errors import BadInput
from smelt.spec import ArchSpec

MASKED = ("loop_middle", "foil", "multi_router", "foil_multi_view")
TOKENS, SEGMENTS = windows(2)


@cache
def params_of(name: str) -> dict:
    """Drawn weights, and selection biases that matter where there are any."""
    arch = ARCHITECTURES[name]
    params = model.init(arch, jax.random.key(1))
    for bias in params.get("balance", {}).values():
        bias["bias_KE"] = 0.3 * jax.random.normal(jax.random.key(2), bias["bias_KE"].shape)
    return params


@cache
def program(name: str):
    def apply(params, tokens_BT, segments_BT, masked):
        return model.apply(
            ARCHITECTURES[name], params, tokens_BT, segments_BT, confine_attention=True, gamma=0.5, masked=masked
        )

    return jax.jit(apply)


def masks(arch: ArchSpec, masked_of_layer) -> dict[str, jax.Array]:
    """masked_of_layer(number of the layer, E) -> the experts of that layer that are masked."""
    return {
        segment.name: jnp.stack(
            [masked_of_layer(layer, segment.ffn.num_experts) for layer in range(segment.num_layers)]
        )
        for segment in arch.segments
    }


def one_a_layer(layer: int, num_experts: int) -> jax.Array:
    return jnp.arange(num_experts) == (layer + 1) % num_experts


def none(layer: int, num_experts: int) -> jax.Array:
    return jnp.zeros(num_experts, bool)


def of_layers(arch: ArchSpec, loads: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """Loads of visits as (passes, layers, E)."""
    return {
        segment.name: np.asarray(loads[segment.name]).reshape(segment.num_passes, segment.num_layers, -1)
        for segment in arch.segments
    }


@pytest.mark.parametrize("name", MASKED)
def test_a_masked_expert_gets_no_token_in_any_pass_and_the_others_get_all(name):
    arch = ARCHITECTURES[name]
    masked = masks(arch, one_a_layer)
    _, aux = program(name)(params_of(name), TOKENS, SEGMENTS, masked)
    _, before = program(name)(params_of(name), TOKENS, SEGMENTS, masks(arch, none))
    for segment, loads in of_layers(arch, aux.loads).items():
        hidden = np.broadcast_to(masked[segment], loads.shape)
        assert (loads[hidden] == 0).all()
        assert of_layers(arch, before.loads)[segment][hidden].sum() > 0
        np.testing.assert_allclose(loads.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("name", MASKED)
def test_masking_an_expert_that_no_token_takes_changes_no_logit(name):
    arch = ARCHITECTURES[name]
    num_unused = 0
    for token in range(arch.vocab_size):  # one token alone leaves experts unused
        window = jnp.full((1, 1), token), jnp.zeros((1, 1), jnp.int32)
        logits, aux = program(name)(params_of(name), *window, masks(arch, none))
        unused = {segment: jnp.asarray((loads == 0).all(0)) for segment, loads in of_layers(arch, aux.loads).items()}
        again, _ = program(name)(params_of(name), *window, unused)
        assert (again == logits).all()
        num_unused += sum(int(hidden.sum()) for hidden in unused.values())
    assert num_unused > arch.vocab_size / 2


@pytest.mark.parametrize("name", MASKED)
def test_a_model_with_a_masked_expert_is_the_model_without_it(name):
    arch = ARCHITECTURES[name]
    last = masks(arch, lambda layer, num_experts: jnp.arange(num_experts) == num_experts - 1)
    logits, _ = program(name)(params_of(name), TOKENS, SEGMENTS, last)

    def without_last(path, leaf):
        axes = path[-1].key.rpartition("_")[2]
        if "E" not in axes:
            return leaf
        return jax.lax.slice_in_dim(leaf, 0, -1, axis=leaf.ndim - len(axes) + axes.index("E"))

    fewer = replace(
        arch,
        ffn=replace(arch.ffn, num_experts=arch.ffn.num_experts - 1),
        outer_ffn=arch.outer_ffn and replace(arch.outer_ffn, num_experts=arch.outer_ffn.num_experts - 1),
    )
    params = jax.tree_util.tree_map_with_path(without_last, params_of(name))
    wanted, _ = jax.jit(lambda params: model.apply(fewer, params, TOKENS, SEGMENTS, confine_attention=True, gamma=0.5))(
        params
    )
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-5)


def test_masking_all_but_k_experts_sends_every_token_to_those():
    arch = ARCHITECTURES["foil"]
    masked = masks(arch, lambda layer, num_experts: jnp.arange(num_experts) >= 2)
    _, aux = program("foil")(params_of("foil"), TOKENS, SEGMENTS, masked)
    for loads in aux.loads.values():
        assert (loads[:, :2] == 0.5).all()


def test_a_mask_of_one_segment_leaves_the_layers_before_it_alone():
    arch = ARCHITECTURES["foil"]
    nothing = masks(arch, none)
    _, before = program("foil")(params_of("foil"), TOKENS, SEGMENTS, nothing)
    _, after = program("foil")(
        params_of("foil"), TOKENS, SEGMENTS, nothing | {"loop": masks(arch, one_a_layer)["loop"]}
    )
    assert (after.loads["prelude"] == before.loads["prelude"]).all()
    assert (after.loads["loop"] != before.loads["loop"]).any()


def test_no_gradient_reaches_a_masked_expert():
    arch = ARCHITECTURES["foil_multi_view"]
    masked = masks(arch, one_a_layer)

    def objective(params):
        how = {"confine_attention": True, "gamma": 0.5, "masked": masked}
        return model.losses(arch, params, TOKENS, SEGMENTS, **how)[0]

    experts = jax.jit(jax.grad(objective))(params_of("foil_multi_view"))["loop"]["experts"]
    for name in ("w_gate_EDF", "w_up_EDF", "w_down_EFD"):
        moved = np.asarray((experts[name] != 0).any((-1, -2)))
        assert not moved[np.asarray(masked["loop"])].any()
        assert moved.any()


def test_a_mask_that_leaves_too_few_experts_or_has_another_shape_is_refused():
    arch = ARCHITECTURES["loop_middle"]
    for masked_KE, words in (
        (np.asarray([[True, True, True, False]]), "leaves a layer 1"),
        (np.zeros(4, bool), "shape"),
    ):
        with pytest.raises(BadInput, match=words):
            model.apply(
                arch, params_of("loop_middle"), TOKENS, SEGMENTS, confine_attention=True, masked={"loop": masked_KE}
            )


def test_a_mask_of_a_segment_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match="'lop', which this architecture has not: give some of loop"):
        model.apply(
            ARCHITECTURES["baseline"],
            params_of("baseline"),
            TOKENS,
            SEGMENTS,
            confine_attention=True,
            masked={"lop": np.zeros((2, 4), bool)},
        )
