"""What a variant changes and what it must leave alone."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smelt import budget, papers, variants
from smelt.errors import BadInput
from tests.strategies import arch_specs, plain_specs, unlooped_specs

FAST = settings(max_examples=60, deadline=None, derandomize=True)
SMELT = papers.smelt_baseline("100M", 64)


@given(arch_specs())
@FAST
def test_flattening_keeps_stored_and_computed_experts_and_executed_depth(arch):
    assume(arch.loop.num_layers % 2 == 0)
    flat = variants.flatten(arch)
    before, after = budget.expert_budget(arch), budget.expert_budget(flat)
    assert (after.e_real, after.e_comp) == (before.e_real, before.e_comp)
    assert flat.effective_depth == arch.effective_depth
    assert after.e_eq == 2 * before.e_eq
    assert budget.kv_cache_bytes_per_token(flat) == budget.kv_cache_bytes_per_token(arch)


def test_foils_ladder_is_three_flattenings_of_its_base():
    arch = papers.foil(8, 8, 2, untied=True)
    for shape in ((16, 4, 4), (32, 2, 8), (64, 1, 16)):
        arch = variants.flatten(arch)
        assert arch == papers.foil(*shape, untied=True)
    assert budget.expert_budget(arch).e_eq == 1024


def test_foils_untied_base_is_its_tied_base_with_attention_untied():
    assert variants.untie_attention(papers.foil(8, 8, 2, untied=False)) == papers.foil(8, 8, 2, untied=True)


@given(arch_specs())
@FAST
def test_untying_attention_moves_no_count_but_attention_parameters(arch):
    untied = variants.untie_attention(arch)
    before, after = budget.params(arch), budget.params(untied)
    assert replace(after, attention=0) == replace(before, attention=0)
    assert budget.forward_flops(untied, 64) == budget.forward_flops(arch, 64)
    assert budget.kv_cache_bytes_per_token(untied) == budget.kv_cache_bytes_per_token(arch)


@given(unlooped_specs())
@FAST
def test_looping_the_middle_keeps_stored_layers_and_adds_half_of_them_as_visits(arch):
    assume(arch.num_layers >= 2 and arch.outer_ffn is None)
    looped = variants.loop_middle(arch)
    assert looped.num_layers == arch.num_layers
    assert looped.effective_depth == arch.num_layers + arch.num_layers // 2
    assert looped.num_prelude == (arch.num_layers - arch.num_layers // 2) // 2
    assert budget.params(looped).experts == budget.params(arch).experts
    assert looped.loop.residual_scale == 0.5


def test_smelt_loops_layers_3_to_7_of_10_and_8_to_22_of_30():
    for scale, first, last in (("100M", 3, 7), ("1.6B", 8, 22)):
        looped = papers.smelt_looped(scale, 96)
        assert looped.num_prelude + 1 == first
        assert looped.num_prelude + looped.loop.num_layers == last


@given(unlooped_specs(), st.integers(1, 4))
@FAST
def test_looping_the_whole_stack_keeps_flops_and_kv_and_divides_what_is_stored(arch, num_passes):
    assume(arch.num_layers % num_passes == 0 and arch.outer_ffn is None)
    looped = variants.loop_all(arch, num_passes)
    assert budget.forward_flops(looped, 32) == budget.forward_flops(arch, 32)
    assert budget.kv_cache_bytes_per_token(looped) == budget.kv_cache_bytes_per_token(arch)
    assert budget.params(looped).experts * num_passes == budget.params(arch).experts
    assert budget.looped_moe_active(looped) == budget.looped_moe_active(arch)


@given(plain_specs())
@FAST
def test_the_dense_sibling_computes_as_much_in_its_ffn_and_has_no_router(arch):
    sibling = variants.dense(arch)
    assert budget.params(sibling).routers == 0
    assert budget.forward_flops(sibling, 8).experts == budget.forward_flops(arch, 8).experts


SIGMOID = variants.sigmoid_router(SMELT)
MULTI_VIEW = variants.multi_view(
    variants.latent_moe(variants.multi_router(SIGMOID, num_heads=3), width=96, shared_width=64)
)


@given(plain_specs(), st.integers(2, 4))
@FAST
def test_heads_cost_router_weights_alone(arch, num_heads):
    one = variants.sigmoid_router(arch)
    several = variants.multi_router(one, num_heads=num_heads)
    assert budget.params(several) == replace(budget.params(one), routers=num_heads * budget.params(arch).routers)
    before, after = budget.forward_flops(one, 64), budget.forward_flops(several, 64)
    assert after == replace(before, routers=num_heads * before.routers)
    assert budget.kv_cache_bytes_per_token(several) == budget.kv_cache_bytes_per_token(one)


def test_a_further_view_costs_one_projection_into_the_latent_a_layer_whatever_mixes_it():
    latent = variants.latent_moe(variants.multi_router(SIGMOID), width=96, shared_width=64)
    of_routers = variants.multi_view(latent)
    assert budget.params(of_routers).experts == budget.params(latent).experts + 10 * 672 * 96
    assert budget.params(of_routers).routers == budget.params(latent).routers
    assert budget.params(variants.multi_view(latent, mixing="routers_detached")) == budget.params(of_routers)
    learned = budget.params(variants.multi_view(latent, mixing="learned"))
    assert learned == replace(budget.params(of_routers), routers=2 * budget.params(latent).routers)


@given(plain_specs(), st.integers(1, 64))
@FAST
def test_mup_moves_no_count(arch, base_width):
    assume(not arch.tied_embeddings)
    scaled = variants.mup(arch, base_width=base_width)
    assert budget.params(scaled) == budget.params(arch)
    assert budget.forward_flops(scaled, 64) == budget.forward_flops(arch, 64)
    assert scaled.attention.scale == "1/d_k"


BAD = [
    (lambda: variants.multi_router(SMELT), "multi_router wants a sigmoid router: apply sigmoid_router first"),
    (lambda: variants.sigmoid_router(SIGMOID), "this one has sigmoid heads already: apply it first"),
    (
        lambda: variants.latent_moe(variants.latent_moe(SMELT, width=8, shared_width=8), width=4, shared_width=8),
        "these have a latent already: apply it first",
    ),
    (lambda: variants.multi_view(SIGMOID), "multi_view wants several sigmoid heads and a latent"),
    (lambda: variants.multi_view(variants.latent_moe(SIGMOID, width=9, shared_width=9)), "wants several sigmoid heads"),
    (lambda: variants.multi_view(variants.multi_router(SIGMOID)), "and a latent: apply latent_moe"),
    (lambda: variants.multi_router(MULTI_VIEW, num_heads=2), "num_views is 3 and the router has 2 sigmoid heads"),
    (lambda: variants.dense(MULTI_VIEW), "dense wants plain experts"),
    (lambda: variants.loop_middle(variants.loop_middle(SMELT)), "loop_middle wants an unlooped .* has 2 passes"),
    (lambda: variants.loop_all(variants.loop_middle(SMELT)), "loop_all wants an unlooped architecture"),
    (lambda: variants.loop_all(SMELT, 3), "loop_all cannot share 10 executed layers among 3 passes evenly"),
    (lambda: variants.loop_all(SMELT, 0), "cannot share 10 executed layers among 0 passes"),
    (
        lambda: variants.loop_all(replace(papers.foil(8, 8, 1, untied=False), ffn=SMELT.ffn)),
        "loop_all wants one FFN for all layers",
    ),
    (
        lambda: variants.loop_span(SMELT, num_layers=11, num_passes=2, residual_scale=0.5),
        "cannot loop 11 of 10 layers",
    ),
    (lambda: variants.loop_span(SMELT, num_layers=2, num_passes=0, residual_scale=0.5), "num_passes is 0"),
    (
        lambda: variants.loop_middle(replace(SMELT, loop=replace(SMELT.loop, num_layers=1))),
        "loop_middle wants at least 2 layers, this stack has 1",
    ),
    (lambda: variants.flatten(papers.foil(64, 1, 16, untied=False)), "even number of looped layers, .* has 1"),
    (lambda: papers.smelt_baseline("7B", 64), "no scale '7B': choose one of 100M, 1.6B"),
    (lambda: papers.looped_moe(100, num_experts=8, num_passes=1), "d_model is 100"),
    (lambda: papers.looped_moe(128, num_experts=4, num_passes=1), "num_experts is 4"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_a_variant_refuses_what_it_cannot_loop_in_one_line(make, message):
    with pytest.raises(BadInput, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
