"""Hypothesis strategies for specs: every architecture the decoder can be, small enough to build.

@given(arch_specs())
def test_...(arch): ...
"""

from dataclasses import replace

from hypothesis import strategies as st

from smelt.spec import (
    FFN,
    ArchSpec,
    Attention,
    DataSpec,
    Latent,
    Loop,
    OptimSpec,
    Router,
    RunSpec,
    SigmoidScores,
    Views,
)


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    num_kv_heads = draw(st.integers(1, 3))
    return Attention(
        num_heads=num_kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=num_kv_heads,
        head_dim=2 * draw(st.integers(1, 6)),
        scale=draw(st.sampled_from(("1/sqrt(d_k)", "1/d_k"))),
    )


@st.composite
def routers(draw: st.DrawFn) -> Router:
    """Softmax, or up to three sigmoid heads; with and without a selection bias."""
    sigmoid = SigmoidScores(
        num_heads=draw(st.integers(1, 3)),
        fusion=draw(st.sampled_from(("sum", "max", "product", "geometric_mean"))),
        bias_rate=draw(st.sampled_from((0.0, 0.001))),
    )
    return Router(
        load_balance_coef=draw(st.floats(0, 1)),
        z_loss_coef=draw(st.floats(0, 1)),
        sigmoid=draw(st.sampled_from((None, sigmoid))),
    )


@st.composite
def latents(draw: st.DrawFn, router: Router) -> Latent:
    """With as many views as the router has heads, or any number that mixes by itself, or none."""
    num_heads = router.sigmoid.num_heads if router.sigmoid else 0
    views = [None]
    if router.sigmoid:
        views.append(Views(num_views=draw(st.integers(2, 3)), mixing="learned"))
    if num_heads >= 2:
        views.append(Views(num_views=num_heads, mixing=draw(st.sampled_from(("routers", "routers_detached")))))
    return Latent(width=draw(st.integers(1, 16)), views=draw(st.sampled_from(views)))


@st.composite
def ffns(draw: st.DrawFn, router: Router | None = None) -> FFN:
    """Dense or sparse; given a router, perhaps with a shared expert, a latent, views."""
    num_experts = draw(st.integers(1, 6))
    plain = FFN(width=draw(st.integers(1, 24)), num_experts=num_experts, top_k=draw(st.integers(1, num_experts)))
    if router is None:
        return plain
    shared_width, latent = draw(st.none() | st.integers(1, 12)), draw(st.none() | latents(router))
    if latent and not plain.has_router:
        latent = replace(latent, views=None)
    return replace(plain, shared_width=shared_width, latent=latent)


@st.composite
def loops(draw: st.DrawFn, max_passes: int = 3) -> Loop:
    return Loop(
        num_layers=draw(st.integers(1, 4)),
        num_passes=draw(st.integers(1, max_passes)),
        residual_scale=draw(st.sampled_from((1.0, 0.5, 1 / 3))),
        attention_sets=draw(st.sampled_from(("shared", "per_pass"))),
    )


@st.composite
def arch_specs(draw: st.DrawFn, max_passes: int = 3, parts: bool = True) -> ArchSpec:
    """Dense or sparse, looped or not, attention and embeddings tied or untied; with or without prelude, coda, gains;
    with `parts` also every router, shared experts, latents, views and muP."""
    num_prelude, num_coda = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    router = draw(routers())
    if not parts:
        router = replace(router, sigmoid=None)
    layers = ffns(router if parts else None)
    tied_embeddings = draw(st.booleans())
    return ArchSpec(
        vocab_size=draw(st.integers(1, 80)),
        d_model=draw(st.integers(1, 32)),
        num_prelude=num_prelude,
        loop=draw(loops(max_passes)),
        num_coda=num_coda,
        attention=draw(attentions()),
        ffn=draw(layers),
        outer_ffn=draw(st.none() | layers) if num_prelude + num_coda else None,
        router=router,
        norm_gain=draw(st.booleans()),
        tied_embeddings=tied_embeddings,
        mup_base_width=draw(st.none() | st.integers(1, 64)) if parts and not tied_embeddings else None,
    )


def plain_specs() -> st.SearchStrategy[ArchSpec]:
    """Softmax routers over plain experts: what has a dense sibling."""
    return arch_specs(parts=False)


def unlooped_specs() -> st.SearchStrategy[ArchSpec]:
    """What a loop is made of."""
    return arch_specs(max_passes=1)


@st.composite
def run_specs(draw: st.DrawFn) -> RunSpec:
    schedule = draw(st.sampled_from(("wsd", "cosine")))
    optim = OptimSpec(
        peak_lr=draw(st.floats(1e-6, 1.0)),
        schedule=schedule,
        warmup_frac=draw(st.floats(0, 0.5)),
        decay_frac=1.0 if schedule == "cosine" else draw(st.floats(0, 0.5)),
        final_frac=draw(st.floats(0, 1)),
        beta1=draw(st.floats(0, 0.999)),
        beta2=draw(st.floats(0, 0.999)),
        eps=draw(st.floats(1e-12, 1e-3)),
        weight_decay=draw(st.floats(0, 1)),
        clip_norm=draw(st.floats(0.1, 10)),
    )
    data = DataSpec(
        corpus=draw(st.text(min_size=1, max_size=8)),
        seq_len=draw(st.integers(1, 4096)),
        batch_seqs=draw(st.integers(1, 512)),
        confine_attention=draw(st.booleans()),
        validation_tokens=draw(st.integers(1, 10**7)),
    )
    return RunSpec(
        arch=draw(arch_specs()),
        optim=optim,
        data=data,
        num_steps=draw(st.integers(1, 10**6)),
        seed=draw(st.integers(0, 2**31)),
    )
