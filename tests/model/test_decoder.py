"""The decoder against its spec: parameter counts, causality, packing, loops, initial loss."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shapes import ARCHITECTURES, FOIL, FOUR, LENGTH, VOCAB, windows

from smelt import budget, model, variants
from smelt.model import decoder
from smelt.spec import ArchSpec

# Counted by hand from the shapes in `shapes.py`: width 8; attention 2*8*6*(2+1) = 288, for foil 2*8*4*(2+2) = 256;
# 4 experts of width 10 = 960, their router 32; outer 3 experts of width 6 = 432, their router 24; dense 3*8*20 = 480;
# on a latent of 4: experts 480, into and out of it 64, each further view 32; shared expert of width 6 = 144.
LEAVES = {
    "baseline": 2 * (288 + 960 + 32 + 16) + 8 + 2 * 13 * 8,
    "loop_middle": 2 * (288 + 960 + 32 + 16) + 8 + 2 * 13 * 8,
    "loop_all": 2 * (288 + 960 + 32 + 16) + 8 + 2 * 13 * 8,
    "dense": 2 * (288 + 480 + 16) + 8 + 2 * 13 * 8,
    "foil": 2 * (256 + 432 + 24) + 2 * (2 * 256 + 960 + 32) + 2 * 13 * 8,
    "tied": 2 * (288 + 960 + 32 + 16) + 8 + 13 * 8,
    "latent": 2 * (288 + 480 + 64 + 144 + 32 + 16) + 8 + 2 * 13 * 8,
    "multi_router": 2 * (288 + 960 + 64 + 16) + 8 + 2 * 13 * 8,
    "multi_view": 2 * (288 + 480 + 64 + 64 + 144 + 96 + 16) + 8 + 2 * 13 * 8,
    "learned_mixing": 2 * (288 + 480 + 64 + 32 + 144 + 64 + 64 + 16) + 8 + 2 * 13 * 8,
    "foil_multi_view": (
        2 * (288 + 480 + 64 + 64 + 144 + 96 + 16) + (2 * 288 + 960 + 64 + 64 + 144 + 192 + 16) + 8 + 2 * 13 * 8
    ),
    "mup": 2 * (288 + 960 + 32) + 2 * 13 * 8,
}
every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@cache
def params_of(arch: ArchSpec) -> decoder.Params:
    """Drawn weights, with gains moved off 1 so that a forgotten gain shows."""
    params = model.init(arch, jax.random.key(1))
    return jax.tree.map_with_path(
        lambda path, leaf: leaf * 1.25 if path[-1] == jax.tree_util.DictKey("gain_D") else leaf, params
    )


@cache
def logits_of(arch: ArchSpec, confine_attention: bool):
    return jax.jit(
        lambda params, tokens_BT, segments_BT: model.apply(
            arch, params, tokens_BT, segments_BT, confine_attention=confine_attention
        )[0]
    )


@pytest.mark.smoke
@every_architecture
def test_the_leaves_of_the_tree_sum_to_the_count_made_by_hand(name: str):
    arch = ARCHITECTURES[name]
    shapes = jax.eval_shape(lambda key: model.init(arch, key), jax.random.key(0))
    biases = shapes.pop("balance", {})
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == LEAVES[name] == budget.params(arch).total
    for segment in arch.segments if biases else ():
        assert biases[segment.name]["bias_KE"].shape == (segment.num_layers, segment.ffn.num_experts)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((shapes, biases)))


def test_layers_of_a_segment_are_stacked_and_untied_attention_leads_with_its_passes():
    loop = jax.eval_shape(lambda key: model.init(FOIL, key), jax.random.key(0))["loop"]
    assert loop["attention"]["w_q_DHK"].shape == (2, 2, 8, 2, 4)
    assert loop["experts"]["w_gate_EDF"].shape == (2, 4, 8, 10)


@pytest.mark.smoke
@every_architecture
def test_a_later_token_never_moves_an_earlier_logit(name: str):
    tokens_BT, segments_BT = windows(2)
    logits = logits_of(ARCHITECTURES[name], False)
    before_BTV = logits(params_of(ARCHITECTURES[name]), tokens_BT, segments_BT)
    for position in (1, 6, LENGTH - 1):
        changed_BT = tokens_BT.at[0, position:].set((tokens_BT[0, position:] + 5) % VOCAB)
        after_BTV = logits(params_of(ARCHITECTURES[name]), changed_BT, segments_BT)
        assert jnp.array_equal(before_BTV[0, :position], after_BTV[0, :position])  # bitwise
        assert jnp.array_equal(before_BTV[1], after_BTV[1])  # nor does another window
        assert not jnp.array_equal(before_BTV[0, position:], after_BTV[0, position:])


@every_architecture
def test_a_packed_document_has_the_logits_it_has_alone(name: str):
    arch = ARCHITECTURES[name]
    tokens_BT, _ = windows(2)
    segments_BT = jnp.asarray([[0] * 5 + [1] * 7] * 2)
    packed_BTV = logits_of(arch, True)(params_of(arch), tokens_BT, segments_BT)
    alone_BTV, _ = model.apply(arch, params_of(arch), tokens_BT[:, 5:], segments_BT[:, 5:] * 0, confine_attention=False)
    # RoPE turns by other angles that cancel: equal but for float32 rounding of logits of size 0.3.
    np.testing.assert_allclose(packed_BTV[:, 5:], alone_BTV, atol=2e-6)
    unconfined_BTV = logits_of(arch, False)(params_of(arch), tokens_BT, segments_BT)
    assert jnp.abs(unconfined_BTV[:, 5:] - alone_BTV).max() > 1e-3


def test_one_pass_of_a_loop_is_the_unlooped_model():
    tokens_BT, segments_BT = windows(2)
    cut = variants.loop_span(FOUR, num_layers=2, num_passes=1, residual_scale=1.0)
    whole = params_of(FOUR)
    parts = {"prelude": slice(0, 1), "loop": slice(1, 3), "coda": slice(3, 4)}
    params = {name: leaf for name, leaf in whole.items() if name != "loop"}
    for name, layers in parts.items():
        params[name] = jax.tree.map(lambda leaf, layers=layers: leaf[layers], whole["loop"])
    same = logits_of(cut, False)(params, tokens_BT, segments_BT)
    assert jnp.array_equal(same, logits_of(FOUR, False)(whole, tokens_BT, segments_BT))


def test_untied_attention_with_equal_sets_is_tied_attention():
    tokens_BT, segments_BT = windows(2)
    tied = ARCHITECTURES["loop_middle"]
    params = params_of(tied)
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params["loop"]["attention"])
    untied_params = params | {"loop": params["loop"] | {"attention": twice}}
    untied_BTV = logits_of(variants.untie_attention(tied), False)(untied_params, tokens_BT, segments_BT)
    assert jnp.array_equal(untied_BTV, logits_of(tied, False)(params, tokens_BT, segments_BT))


def written_out(arch: ArchSpec, params: decoder.Params, tokens_BT: jax.Array, segments_BT: jax.Array) -> jax.Array:
    """The logits as a plain loop over passes and layers, norms by hand."""
    look = decoder.context(segments_BT, confine_attention=True)

    def normed(x_BTD: jax.Array, gain: dict | None) -> jax.Array:
        return x_BTD / jnp.sqrt((x_BTD**2).mean(-1, keepdims=True) + 1e-5) * (gain["gain_D"] if gain else 1.0)

    x_BTD = params["embedding"]["w_VD"][tokens_BT]
    for segment in arch.segments:
        layer, stacked = decoder.layer_of(arch, segment), params[segment.name]
        scale = arch.loop.residual_scale if segment.name == "loop" else 1.0
        for visit in range(segment.num_passes * segment.num_layers):
            of_pass, i = divmod(visit, segment.num_layers)
            own = jax.tree.map(lambda leaf, i=i: leaf[i], stacked | {"attention": {}})
            where = (of_pass, i) if segment.num_attention_sets > 1 else i
            own["attention"] = jax.tree.map(lambda leaf, where=where: leaf[where], stacked["attention"])
            seen_BTD = normed(x_BTD, own.get("attention_norm"))
            x_BTD = x_BTD + scale * layer.attention.apply({"params": own["attention"]}, seen_BTD, look)
            rows_ND = normed(x_BTD, own.get("ffn_norm")).reshape(-1, arch.d_model)
            routing = layer.router.apply({"params": own["router"]}, rows_ND)
            write_ND = layer.experts.apply({"params": own["experts"]}, rows_ND, routing, look)
            x_BTD = x_BTD + scale * write_ND.reshape(x_BTD.shape)
    return normed(x_BTD, params.get("final_norm")) @ params["head"]["w_DV"]


@pytest.mark.parametrize("name", ["loop_middle", "foil"])
def test_a_loop_is_its_layers_written_out_with_scaled_writes(name: str):
    arch = ARCHITECTURES[name]
    params, (tokens_BT, segments_BT) = params_of(arch), windows(2)
    by_hand_BTV = jax.jit(partial(written_out, arch))(params, tokens_BT, segments_BT)
    logits_BTV = logits_of(arch, True)(params, tokens_BT, segments_BT)
    np.testing.assert_allclose(logits_BTV, by_hand_BTV, atol=2e-6)  # float32 rounding of logits of size 0.3


def test_a_scanned_stack_is_the_stack_written_out(monkeypatch: pytest.MonkeyPatch):
    arch, (tokens_BT, segments_BT) = FOIL, windows(2)

    def objective(params: decoder.Params) -> jax.Array:
        return model.losses(arch, params, tokens_BT, segments_BT, confine_attention=True)[0]

    flat = jax.jit(jax.value_and_grad(objective))(params_of(arch))
    monkeypatch.setattr(decoder, "UNROLLED_VISITS", 0)
    scanned = jax.jit(jax.value_and_grad(objective))(params_of(arch))
    for one, other in zip(jax.tree.leaves(flat), jax.tree.leaves(scanned), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)  # other fusions round otherwise


@pytest.mark.parametrize("name", ["baseline", "tied"])
def test_the_first_loss_is_that_of_a_uniform_guess(name: str):
    wide = replace(ARCHITECTURES[name], d_model=64, vocab_size=256)
    tokens_BT = jax.random.randint(jax.random.key(3), (2, 33), 0, 256)
    params = model.init(wide, jax.random.key(0))
    nats_BT = jax.jit(lambda params: model.token_losses(wide, params, tokens_BT, tokens_BT, confine_attention=False))(
        params
    )
    assert abs(nats_BT.mean() - np.log(256)) < 0.05
