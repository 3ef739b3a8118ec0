"""The matcher holds what it says it holds, in the order that it states, and says why where it cannot."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.match import BYTE_LEVEL, LADDER, byte_level_moe
from smelt import budget, experiment, papers, variants
from smelt.errors import BadInput
from smelt.match import BUDGETS, DEFAULT_FREE, HELD, Mend, co_design, lattice, match, relative_errors
from smelt.match.search import AIM, RECIPE_STEP
from smelt.spec import FFN
from tests.strategies import arch_specs

SMALL = {"context": 128, "multiples": {"d_model": 4, "head_dim": 4, "width": 2}}
BASE = byte_level_moe(64, 4, 1, 24, 64)
SPARSE_PAIRS = [(scale, *pair) for scale in papers.SMELT_LOOPED for pair in list(papers.SMELT_EXPERTS.items())[1:]]


@pytest.mark.parametrize(("scale", "base_experts", "looped_experts"), SPARSE_PAIRS)
def test_every_sparse_smelt_baseline_gets_a_partner_closer_than_the_papers_own(scale, base_experts, looped_experts):
    baseline = papers.smelt_baseline(scale, base_experts)
    settings = {"context": papers.SMELT_CONTEXT, "convention": "smelt"}
    printed = relative_errors(papers.smelt_looped(scale, looped_experts), baseline, **settings)
    found = match(baseline, variants.loop_middle(baseline), **settings)
    assert found.worst <= max(abs(printed[name]) for name in HELD["three_budgets"])
    assert found.worst <= AIM
    assert found.arch.ffn.top_k == baseline.ffn.top_k
    assert found.arch.num_layers == baseline.num_layers
    # the recipe's directions: narrower, more experts, narrower heads, at least as many query heads a KV head
    ours, theirs = lattice.sizes_of(found.arch), lattice.sizes_of(baseline)
    assert ours["d_model"] < theirs["d_model"]
    assert 1.4 <= ours["num_experts"] / theirs["num_experts"] <= 1.7
    assert ours["head_dim"] < theirs["head_dim"]
    assert ours["num_heads"] * theirs["num_kv_heads"] >= theirs["num_heads"] * ours["num_kv_heads"]


@pytest.mark.parametrize("baseline", LADDER, ids=lambda arch: f"{budget.params(arch).non_embedding}")
def test_a_byte_level_model_of_the_quickstart_is_matched_within_one_percent(baseline):
    found = match(baseline, variants.loop_middle(baseline), **BYTE_LEVEL)
    assert found.worst <= AIM, found.held_errors
    assert found.reason == ""
    for size, value in lattice.sizes_of(found.arch).items():
        assert value % BYTE_LEVEL["multiples"].get(size, 1) == 0
    assert 10 <= found.arch.ffn.num_experts <= 15  # 1.5 times the 8 are 12


def test_a_match_of_the_largest_paper_model_takes_under_two_core_seconds():
    baseline = papers.smelt_baseline("1.6B", 336)
    free = ("num_layers", "d_model", "num_heads", "num_kv_heads", "head_dim", "num_experts", "width")
    started = time.process_time()
    match(baseline, variants.loop_middle(baseline), context=4096, free=free)
    assert time.process_time() - started < 2.0


@given(arch_specs())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_counts_of_a_lattice_are_the_counts_of_each_of_its_points(arch):
    own = lattice.sizes_of(arch)
    rng = np.random.default_rng(0)
    sizes = {name: rng.integers(1, 9, 7) * (2 if name == "head_dim" else 1) for name in own if name != "num_layers"}
    sizes["num_heads"] = sizes["num_kv_heads"] * 2
    sizes["num_experts"] = sizes["num_experts"] + arch.ffn.top_k if arch.ffn.has_router else np.ones(7, np.int64)
    for convention in budget.CONVENTIONS:
        for value in BUDGETS.values():
            counted = np.broadcast_to(value(lattice.lattice_spec(arch, sizes), 64, convention), 7)
            for i in range(7):
                point = lattice.with_sizes(arch, {name: int(column[i]) for name, column in sizes.items()})
                assert counted[i] == value(point, 64, convention)


def _exhaustive(baseline, variant, sizes_tried, context):
    """Every ArchSpec of a small lattice, ordered by the keys as the docstring of `match` states them."""
    own = lattice.sizes_of(variant)
    expected = baseline.ffn.num_experts * variant.effective_depth / variant.num_layers
    candidates = []
    for width in sizes_tried["width"]:
        for num_experts in sizes_tried["num_experts"]:
            for d_model in sizes_tried["d_model"]:
                sizes = own | {"width": width, "num_experts": num_experts, "d_model": d_model}
                arch = lattice.with_sizes(variant, sizes)
                errors = relative_errors(arch, baseline, context=context)
                worst = max(abs(errors[name]) for name in HELD["three_budgets"])
                against = (d_model > own["d_model"]) + (num_experts < own["num_experts"])
                distance = (
                    abs(np.log(own["d_model"] / d_model))  # H K / d with H K fixed
                    + abs(np.log(width * own["d_model"] / (own["width"] * d_model)))
                    + abs(np.log(num_experts / expected))
                )
                tier = 0 if worst <= AIM else 1 if worst <= 0.04 else 2
                beyond = worst if tier == 2 else 0.0
                candidates.append(((tier, beyond, against, round(distance / RECIPE_STEP), worst, distance), sizes))
    candidates.sort(key=lambda item: item[0])
    return candidates


def test_the_search_finds_what_trying_every_candidate_finds_in_the_stated_order():
    baseline = BASE
    looped = variants.loop_middle(baseline)
    variant = replace(looped, attention=replace(looped.attention, head_dim=16, num_heads=5))
    tried = {"width": range(30, 80), "num_experts": range(8, 20), "d_model": range(36, 69, 4)}
    found = match(
        baseline,
        variant,
        context=128,
        free=("d_model", "width", "num_experts"),
        multiples={"d_model": 4, "width": 1},
    )
    best = _exhaustive(baseline, variant, tried, 128)
    assert best[0][0][0] == 0
    assert lattice.sizes_of(found.arch) == best[0][1]
    assert [lattice.sizes_of(other.arch) for other in found.runners_up] == [sizes for _, sizes in best[1:4]]


def test_runners_up_are_no_better_than_the_match_and_all_different():
    found = match(BASE, variants.loop_middle(BASE), **SMALL)
    archs = [found.arch, *(other.arch for other in found.runners_up)]
    assert len(set(archs)) == 4
    assert all(other.fits and other.held == found.held for other in found.runners_up)


def test_a_model_is_its_own_exact_match():
    found = match(BASE, variants.baseline(BASE), **SMALL)
    assert found.arch == BASE
    assert found.worst == 0.0


def test_a_model_off_the_multiples_is_its_own_match_too():
    odd = replace(BASE, d_model=63, ffn=replace(BASE.ffn, width=61))
    found = match(odd, variants.baseline(odd), **SMALL)
    assert (found.arch, found.worst, found.runners_up, found.reason) == (odd, 0.0, (), "")
    assert co_design(odd, (variants.baseline,), **SMALL).baseline == odd


ALONE = [
    variants.baseline,
    variants.loop_middle,
    variants.loop_all,
    variants.dense,
    variants.dense_loop_all,
    variants.flatten,
    variants.untie_attention,
]


@pytest.fixture(scope="module")
def quickstart_baselines():
    return {cell.size: cell.baseline for cell in experiment.load("quickstart").grid.cells}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("variant", ALONE, ids=lambda variant: variant.__name__)
@pytest.mark.parametrize("size", [1, 3])
def test_every_variant_of_the_quickstart_gets_an_answer_in_every_mode_and_each_mend_fits(
    size, variant, held, quickstart_baselines
):
    baseline = quickstart_baselines[size]
    found = match(baseline, variant(baseline), context=128, held=held)
    assert found.fits == (found.reason == "") == (found.mends == ())
    for mend in found.mends:
        mended = match(
            baseline,
            variant(baseline),
            context=128,
            held=mend.held or held,
            free=(*DEFAULT_FREE[mend.held or held], *mend.free),
            multiples=mend.multiples,
        )
        assert mended.fits, mend


def test_multiples_that_leave_nothing_to_try_are_refused():
    looped = variants.loop_middle(BASE)
    for free, multiples in ((None, {"num_heads": 5, "num_kv_heads": 7}), (("num_layers",), {"num_layers": 7})):
        with pytest.raises(BadInput, match="leave no architecture to try: give smaller ones"):
            match(BASE, looped, context=128, free=free, multiples=multiples)


def test_what_is_not_free_does_not_move():
    looped = variants.loop_middle(BASE)
    found = match(BASE, looped, **SMALL, free=("width", "num_experts"))
    moved = {n for n, v in lattice.sizes_of(found.arch).items() if v != lattice.sizes_of(looped)[n]}
    assert moved <= {"width", "num_experts"}


def test_depth_moves_only_when_free_and_keeps_the_looped_share():
    baseline = byte_level_moe(64, 4, 2, 16, 64, num_layers=12)
    looped = variants.loop_middle(baseline)
    assert not match(baseline, looped, **SMALL, free=("width", "num_experts")).fits
    found = match(baseline, looped, **SMALL, free=("num_layers", "width", "num_experts"))
    # 8 layers, 4 of them twice, execute the baseline's 12; its experts restore what 4 layers held
    assert (found.arch.num_layers, found.arch.loop.num_layers) == (8, 4)
    assert found.errors["kv_cache"] == 0.0
    assert found.worst <= AIM


def test_an_unreachable_kv_cache_is_named_and_what_to_free_really_helps():
    looped = variants.loop_middle(BASE)
    found = match(BASE, looped, **SMALL, free=("d_model", "width", "num_experts"))
    assert not found.fits
    assert found.errors["kv_cache"] == pytest.approx(0.5)
    assert found.reason.startswith("kv_cache cannot be met within 4.0% of the baseline (nearest: flops_per_token ")
    assert "kv_cache +50.0%" in found.reason
    assert found.reason.endswith("free head_dim")
    assert found.mends == (Mend(free=("head_dim",)),)
    assert match(BASE, looped, **SMALL, free=("d_model", "width", "num_experts", "head_dim")).fits
    with pytest.raises(BadInput, match="kv_cache cannot be met"):
        found.require()


def test_several_dimensions_are_named_when_no_single_one_helps():
    looped = variants.loop_middle(BASE)
    found = match(BASE, looped, **SMALL, free=("d_model", "width"))
    assert found.reason.endswith("free head_dim and num_experts")
    assert match(BASE, looped, **SMALL, free=("d_model", "width", "head_dim", "num_experts")).fits


def test_too_coarse_multiples_are_named():
    coarse = {"d_model": 4, "head_dim": 4, "num_experts": 200}
    found = match(BASE, variants.loop_middle(BASE), context=128, multiples=coarse)
    assert not found.fits
    assert "num_params cannot be met" in found.reason
    assert found.reason.endswith("let num_experts move in multiples of 1")
    assert found.mends == (Mend(multiples={"num_experts": 1}),)


def test_a_dense_model_cannot_hold_the_parameters_of_a_sparse_one_and_says_so():
    found = match(BASE, variants.dense(BASE), **SMALL)
    assert not found.fits
    assert found.reason.startswith("flops_per_token and num_params cannot be met together within 4.0%")
    assert found.reason.endswith("no dimension mends it: move the baseline too (co_design) or hold flops_and_kv")
    assert match(BASE, variants.dense(BASE), **SMALL, held="flops_and_kv").fits


def test_dense_siblings_are_matched_on_flops_and_kv_and_report_their_parameters():
    for variant in (variants.dense, variants.dense_loop_all):
        found = match(BASE, variant(BASE), **SMALL, held="flops_and_kv")
        assert found.worst <= AIM
        assert found.held_errors.keys() == {"flops_per_token", "kv_cache"}
        assert found.errors["num_params"] < -0.5


def test_looped_moe_siblings_share_active_parameters_without_moving():
    moe = papers.looped_moe(512, num_experts=8, num_passes=1)
    for variant in (variants.loop_all, variants.dense, variants.dense_loop_all):
        found = match(moe, variant(moe), context=1024, held="active_params", convention="looped_moe")
        assert found.arch == variant(moe)
        assert found.worst == 0.0
        assert found.errors["flops_per_token"] == 0.0


def test_active_parameters_are_held_by_moving_the_expert_width():
    looped = variants.loop_middle(BASE)
    found = match(BASE, looped, **SMALL, held="active_params")
    assert found.worst <= AIM
    assert found.arch == replace(looped, ffn=replace(looped.ffn, width=found.arch.ffn.width))


def test_foils_ladder_holds_its_expert_budget_and_reports_its_parameters():
    base = papers.foil(8, 8, 2, untied=False)
    untied = match(base, variants.untie_attention(base), context=4096, held="expert_budget")
    assert untied.worst == 0.0
    assert untied.arch == papers.foil(8, 8, 2, untied=True)
    assert untied.errors["num_params"] == pytest.approx(33_554_432 / budget.params(base).non_embedding)
    flat = match(base, variants.flatten(base), context=4096, held="expert_budget")
    assert flat.worst == 0.0
    assert flat.errors["flops_per_token"] == pytest.approx(0.0, abs=0.01)


def test_untied_attention_reaches_three_budgets_where_its_experts_may_shrink():
    looped = variants.loop_middle(BASE)
    found = match(looped, variants.untie_attention(looped), **SMALL)
    assert found.fits


def test_with_nothing_held_nothing_moves_and_the_overhead_is_reported():
    looped = variants.loop_middle(BASE)
    found = match(BASE, looped, **SMALL, held="none")
    assert found.arch == looped
    assert (found.worst, found.reason) == (0.0, "")
    assert found.errors["kv_cache"] == pytest.approx(0.5)


def test_experts_of_prelude_and_coda_follow_the_width_they_shared_and_keep_their_number():
    base = replace(papers.foil(8, 8, 1, untied=False), d_model=256)
    looped = replace(base, loop=replace(base.loop, num_passes=2))
    found = match(base, looped, context=512)
    assert found.fits
    assert found.arch.outer_ffn == FFN(width=found.arch.ffn.width, num_experts=8, top_k=2)
    assert found.arch.ffn.num_experts > 8


def test_co_design_moves_the_baseline_just_enough_that_every_variant_fits():
    stubborn = byte_level_moe(32, 4, 4, 8, 32)  # 4 KV heads of 8 have no two-thirds among heads of 8
    coarse = {"context": 128, "multiples": {"d_model": 4, "head_dim": 8, "width": 2}}
    loops = (variants.loop_middle, variants.loop_all)
    alone = match(stubborn, variants.loop_middle(stubborn), **coarse)
    assert alone.worst > AIM
    together = co_design(stubborn, loops, **coarse)
    assert together.worst <= AIM
    assert together.require() is together
    assert [pair.baseline for pair in together.matches] == [together.baseline] * 2
    before, after = lattice.sizes_of(stubborn), lattice.sizes_of(together.baseline)
    steps = {"d_model": 4, "head_dim": 8, "width": 2}
    assert all(abs(after[name] - before[name]) <= 2 * steps.get(name, 1) for name in before)
    assert (after["num_layers"], after["num_experts"]) == (4, 8)


def test_co_design_leaves_a_baseline_that_already_serves_every_variant():
    together = co_design(BASE, (variants.loop_middle, variants.loop_all), **SMALL)
    assert together.baseline == BASE


def test_co_design_says_which_variant_cannot_be_served():
    together = co_design(BASE, (variants.loop_middle, variants.dense), **SMALL, baseline_steps=1)
    assert not together.fits
    with pytest.raises(BadInput, match="num_params"):
        together.require()


BAD = [
    ({"held": "everything"}, "unknown held 'everything': choose one of three_budgets"),
    ({"free": ("d_model", "depth")}, "unknown dimension 'depth' in free: known are d_model, num_layers"),
    ({"multiples": {"dim": 2}}, "unknown dimension 'dim' in multiples"),
    ({"multiples": {"d_model": 0}}, "multiple of d_model is 0: give a positive integer"),
    ({"multiples": {"d_model": 2.0}}, "multiple of d_model is 2.0"),
    ({"multiples": {"head_dim": 3}}, "multiple of head_dim is 3: RoPE turns pairs"),
    ({"bound": 0.0}, "bound is 0.0"),
    ({"bound": float("nan")}, "bound is nan"),
    ({"bound": 4}, "bound is 4: give a relative error between 0 and 1"),
    ({"context": 0}, "context is 0"),
    ({"convention": "palm"}, "unknown FLOP convention 'palm': choose one of model"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[message for _, message in BAD])
def test_the_matcher_refuses_bad_input_in_one_line(given, message):
    with pytest.raises(BadInput, match=message) as caught:
        match(BASE, variants.loop_middle(BASE), **{"context": 128, **given})
    assert "\n" not in str(caught.value)


def test_co_design_refuses_bad_input_in_one_line():
    with pytest.raises(BadInput, match="co_design got no variants"):
        co_design(BASE, (), context=128)
    with pytest.raises(BadInput, match="unknown dimension 'depth' in baseline_free"):
        co_design(BASE, (variants.loop_middle,), context=128, baseline_free=("depth",))
    with pytest.raises(BadInput, match="baseline_steps is -1"):
        co_design(BASE, (variants.loop_middle,), context=128, baseline_steps=-1)


@given(
    d_model=st.sampled_from((8, 16, 24, 48)),
    num_kv_heads=st.integers(1, 4),
    group=st.integers(1, 3),
    head_dim=st.sampled_from((4, 8, 12)),
    width=st.integers(2, 64),
    num_experts=st.integers(2, 16),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_match_is_never_worse_than_its_bound_without_saying_so(
    d_model, num_kv_heads, group, head_dim, width, num_experts
):
    baseline = byte_level_moe(d_model, group * num_kv_heads, num_kv_heads, head_dim, width, num_experts=num_experts)
    found = match(baseline, variants.loop_middle(baseline), **SMALL)
    assert found.errors == relative_errors(found.arch, baseline, context=128)
    assert (found.worst <= found.bound) == (found.reason == "")


def test_a_latent_and_a_shared_expert_keep_their_proportion_to_the_width():
    latent = variants.sigmoid_router(variants.latent_moe(BASE, width=32, shared_width=64))
    found = match(latent, variants.loop_middle(latent), **SMALL).arch
    assert found.d_model != latent.d_model
    assert found.ffn.latent.width == round(32 * found.d_model / 64)
    assert found.ffn.shared_width == found.d_model
