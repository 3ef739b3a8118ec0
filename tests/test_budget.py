"""Counts against witnesses from outside: the real parameter tree, the real keys and values, XLA's own count."""

import math
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from smelt import budget, model, papers, variants
from smelt.errors import BadInput
from smelt.spec import FFN, ArchSpec, Attention, Latent, Loop
from tests import reference_model
from tests.strategies import arch_specs

KEY = jax.random.key(0)


def _shapes(arch: ArchSpec):
    return jax.eval_shape(lambda key: model.init(arch, key), KEY)


def _kind(path) -> str:
    """The kind in `budget.Params` of a leaf, by its names."""
    names = [part.key for part in path]
    for part, kind in (("embedding", "embedding"), ("head", "head"), ("attention", "attention")):
        if part in names:
            return kind
    if names[-1].startswith("gain"):
        return "norms"
    return "routers" if "router" in names else "experts"


@given(arch_specs())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_parameters_of_every_kind_are_the_leaves_of_the_real_tree(arch):
    leaves = Counter()
    shapes = _shapes(arch)
    shapes.pop("balance", None)  # selection biases, which no gradient moves
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        leaves[_kind(path)] += math.prod(leaf.shape)
    counted = budget.params(arch)
    for kind in ("embedding", "head", "attention", "norms", "routers", "experts"):
        assert getattr(counted, kind) == leaves[kind], kind
    assert counted.total == leaves.total()


@given(arch_specs())
@settings(max_examples=10, deadline=None, derandomize=True)
def test_the_kv_cache_is_what_a_forward_pass_keeps_of_each_token(arch):
    tokens = jax.ShapeDtypeStruct((1, 3), jnp.int32)
    kept = jax.eval_shape(
        lambda params, tokens: reference_model.forward(arch, params, tokens).kept, _shapes(arch), tokens
    )
    values = sum(math.prod(leaf.shape) for leaf in kept) / 3
    assert budget.kv_cache_bytes_per_token(arch) == budget.KV_BYTES_PER_VALUE * values


MOE = ArchSpec(
    vocab_size=256,
    d_model=64,
    num_prelude=0,
    loop=Loop(num_layers=2, num_passes=1, residual_scale=1.0, attention_sets="shared"),
    num_coda=0,
    attention=Attention(num_heads=4, num_kv_heads=2, head_dim=16, scale="1/sqrt(d_k)"),
    ffn=FFN(width=64, num_experts=4, top_k=2),
    outer_ffn=None,
    router=papers.ROUTER,
    norm_gain=True,
    tied_embeddings=False,
)
MULTI_ROUTER = variants.multi_router(variants.sigmoid_router(MOE))
LATENT = variants.latent_moe(MULTI_ROUTER, width=32, shared_width=48)
WITNESSED = {
    "sparse": MOE,
    "smelt": variants.loop_middle(MOE),
    "dense, tied embeddings, no gains": replace(variants.dense(MOE), tied_embeddings=True, norm_gain=False),
    "foil": replace(
        variants.untie_attention(variants.flatten(replace(MOE, loop=replace(MOE.loop, num_passes=2)))),
        num_prelude=1,
        num_coda=1,
        outer_ffn=FFN(width=48, num_experts=2, top_k=1),
    ),
    "one sigmoid head": variants.sigmoid_router(MOE),
    "three heads, product": variants.multi_router(MULTI_ROUTER, num_heads=3, fusion="product"),
    "softmax over a latent, no shared expert": replace(MOE, ffn=replace(MOE.ffn, latent=Latent(width=24))),
    "latent, looped, muP": variants.mup(variants.loop_middle(LATENT), base_width=16),
    "views": variants.multi_view(LATENT),
    "views mixed by detached heads, geometric mean": variants.multi_view(
        variants.multi_router(LATENT, fusion="geometric_mean"), mixing="routers_detached"
    ),
    "views mixed by weights of their own, max": variants.multi_view(
        variants.multi_router(LATENT, fusion="max"), mixing="learned"
    ),
}
CONTEXT = 64
BATCH = 2


@pytest.mark.parametrize("arch", WITNESSED.values(), ids=WITNESSED)
def test_the_reference_that_xla_counts_computes_what_the_model_computes(arch):
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(0.2 * rng.standard_normal(leaf.shape), leaf.dtype), _shapes(arch))
    tokens = jnp.asarray(rng.integers(0, arch.vocab_size, (BATCH, CONTEXT)))
    none = {
        segment.name: jnp.zeros((segment.num_layers, segment.ffn.num_experts), bool)
        for segment in arch.segments
        if segment.ffn.num_experts > segment.ffn.top_k
    }
    one_a_layer = {
        name: jnp.arange(of_all.shape[1]) == jnp.arange(len(of_all))[:, None] for name, of_all in none.items()
    }

    @jax.jit
    def differences(params, tokens, gamma, masked):
        how = {"gamma": gamma, "masked": masked}
        logits, aux = model.apply(arch, params, tokens, jnp.zeros_like(tokens), confine_attention=False, **how)
        witness = reference_model.forward(arch, params, tokens, **how)
        of_logits = jnp.abs(logits - witness.logits_BTV).max() / jnp.abs(logits).max()
        of_z_loss = jnp.abs(aux.z_loss - witness.z_loss) / (1 + jnp.abs(aux.z_loss))
        return jnp.stack([of_logits, of_z_loss, jnp.abs(aux.load_balance - witness.load_balance)])

    for gamma, masked in ((1.0, none), (0.3, one_a_layer)):
        assert (differences(params, tokens, gamma, masked) < 1e-5).all()


def _matmul_flops(arch: ArchSpec) -> float:
    """Forward matmul FLOPs of the reference per token: the model FLOPs, and what it computes beyond the model, which
    are the masked half of the attention scores, the experts that no token chose, and the mixing of views."""
    counted = budget.forward_flops(arch, CONTEXT)
    beyond = counted.attention_scores * (2 * CONTEXT / (CONTEXT + 1) - 1)
    for segment in arch.segments:
        ffn = segment.ffn
        inner = ffn.latent.width if ffn.latent else arch.d_model
        beyond += segment.num_visits * (ffn.num_experts - ffn.top_k) * 6 * inner * ffn.width
        if ffn.views:
            beyond += segment.num_visits * 2 * ffn.views.num_views * ffn.num_experts * inner
    return counted.total + beyond


def _elementwise_flops(arch: ArchSpec, *, step: bool) -> float:
    """FLOPs per token outside matmuls, which the model FLOPs leave out by convention.

    Forward, as written in the reference: 6 a score (scale, mask, maximum, difference, sum, quotient; exponentials are
    counted apart by XLA), 5 an expert unit (silu 4, times up) and 1 to weigh it where it is routed, 3 a rotated value,
    4 a value of a norm with gain, 1 an add to the residual stream or of a shared expert, some 17 a router logit with
    its sort. Step: the backward pass beside it, whose operations fusion partly repeats; *measured* on jax 0.12.0.1 by
    varying one size at a time.
    """
    score, unit, rotated, value, logit, vocab = (22, 24, 9, 28, 37, 4) if step else (6, 5, 3, 5, 17, 0)
    if not arch.norm_gain:
        value -= 8 if step else 1
    heads = arch.attention
    total = value * arch.d_model + vocab * arch.vocab_size
    for segment in arch.segments:
        experts = segment.ffn.num_experts
        weighted = segment.ffn.has_router * (4 if step else 1)
        visit = score * heads.num_heads * CONTEXT + (unit + weighted) * experts * segment.ffn.width
        visit += rotated * heads.head_dim * (heads.num_heads + heads.num_kv_heads)
        visit += 2 * value * arch.d_model + logit * experts * segment.ffn.has_router
        if segment.ffn.shared_width:
            visit += unit * segment.ffn.shared_width + arch.d_model
        total += segment.num_visits * visit
    return total


def _loss(arch: ArchSpec, params, tokens_BT):
    logits_BTV = reference_model.logits(arch, params, tokens_BT)
    picked_BT = jnp.take_along_axis(logits_BTV, tokens_BT[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits_BTV, axis=-1) - picked_BT).mean()


def _xla_flops_per_token(function, arch: ArchSpec) -> float:
    tokens = jax.ShapeDtypeStruct((BATCH, CONTEXT), jnp.int32)
    compiled = jax.jit(lambda params, tokens: function(arch, params, tokens)).lower(_shapes(arch), tokens).compile()
    return compiled.cost_analysis()["flops"] / (BATCH * CONTEXT)


@pytest.mark.parametrize("arch", WITNESSED.values(), ids=WITNESSED)
def test_forward_flops_are_xlas_own_count_less_what_the_convention_leaves_out(arch):
    explained = _matmul_flops(arch) + _elementwise_flops(arch, step=False)
    assert _xla_flops_per_token(reference_model.logits, arch) == pytest.approx(explained, rel=0.002)


@pytest.mark.parametrize("name", ["smelt", "dense, tied embeddings, no gains", "views"])
def test_a_step_costs_three_forwards_in_xlas_own_count(name):
    arch = WITNESSED[name]
    counted = _xla_flops_per_token(jax.grad(_loss, argnums=1), arch)
    explained = 3 * _matmul_flops(arch) + _elementwise_flops(arch, step=True)
    assert counted == pytest.approx(explained, rel=0.006)


@given(arch_specs())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_what_is_active_lies_between_nothing_and_everything(arch):
    stored = budget.params(arch).non_embedding
    active, executed = budget.active_params(arch), budget.executed_params(arch)
    untied = arch.loop.attention_sets == "per_pass" and arch.loop.num_passes > 1
    assert 0 < active <= executed
    assert active <= stored
    if arch.loop.num_passes == 1:
        assert active == executed
    control = budget.fully_active(arch)
    if not untied and control == arch:
        assert active == stored


@given(arch_specs())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_control_has_no_sparsity_and_more_experts_have_more(arch):
    control = budget.fully_active(arch)
    more = replace(arch, ffn=replace(arch.ffn, num_experts=arch.ffn.num_experts + 4))
    for convention in budget.CONVENTIONS:
        assert budget.sparsity(control, arch, 64, convention) == pytest.approx(0.0)
        if arch.ffn.has_router and convention == "looped_moe":  # it alone has no router to pay for
            assert budget.sparsity(more, arch, 64, convention) > budget.sparsity(arch, arch, 64, convention)


def test_looped_moe_counts_six_active_parameters():
    arch = papers.looped_moe(704, num_experts=8, num_passes=2)
    layers = 16 * (4 * 704**2 + 2 * 3 * 704 * 960)
    assert budget.train_flops_per_token(arch, 1024, "looped_moe") == 6 * (layers + 2 * 50_257 * 704)
    # 1e18 FLOPs of it are 1.00 B tokens (Looped-MoE)
    assert round(1e18 / budget.train_flops_per_token(arch, 1024, "looped_moe") / 1e9, 2) == 1.0


def test_foil_counts_as_its_trainer_does_with_prelude_and_coda_as_visits():
    d, visits, context = 1024, 8 * 2 + 2, 4096
    per_visit = 4 * d**2 + d * 8 + 3 * 2 * d * 1536
    expected = 6 * (visits * per_visit + d * 49_152) + 12 * visits * d * context
    assert budget.train_flops_per_token(papers.foil(8, 8, 2, untied=True), context, "foil") == expected


def test_foils_router_costs_under_one_percent_of_its_experts():
    arch = papers.foil(64, 1, 16, untied=True)
    flops = budget.forward_flops(replace(arch, num_prelude=0, num_coda=0, outer_ffn=None), 4096)
    assert flops.routers / flops.experts == pytest.approx(0.007, abs=0.0005)


def test_chinchilla_counts_six_stored_parameters_of_a_dense_model():
    arch = papers.looped_moe(512, num_experts=1, num_passes=1)
    assert budget.train_flops_per_token(arch, 1024, "chinchilla") == 6 * budget.params(arch).total


def test_context_costs_scores_alone():
    short, long = (budget.forward_flops(MOE, context) for context in (1, 1023))
    assert replace(short, attention_scores=0) == replace(long, attention_scores=0)
    assert long.attention_scores == 512 * short.attention_scores  # one key on average against 512


@pytest.mark.parametrize(
    ("context", "convention", "message"),
    [
        (128, "palm", "unknown FLOP convention 'palm': choose one of model, smelt"),
        (0, "model", "context is 0: give a positive number of tokens"),
    ],
)
def test_a_wrong_convention_or_context_is_refused_in_one_line(context, convention, message):
    with pytest.raises(BadInput, match=message):
        budget.train_flops_per_token(MOE, context, convention)
