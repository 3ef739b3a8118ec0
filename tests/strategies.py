"""Hypothesis strategies for specs: every architecture the decoder can be, small enough to build.

@given(arch_specs())
def test_...(arch): ...
"""

from hypothesis import strategies as st

from smelt.spec import FFN, ArchSpec, Attention, DataSpec, Loop, OptimSpec, Router, RunSpec


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
def ffns(draw: st.DrawFn) -> FFN:
    num_experts = draw(st.integers(1, 6))
    return FFN(width=draw(st.integers(1, 24)), num_experts=num_experts, top_k=draw(st.integers(1, num_experts)))


@st.composite
def loops(draw: st.DrawFn, max_passes: int = 3) -> Loop:
    return Loop(
        num_layers=draw(st.integers(1, 4)),
        num_passes=draw(st.integers(1, max_passes)),
        residual_scale=draw(st.sampled_from((1.0, 0.5, 1 / 3))),
        attention_sets=draw(st.sampled_from(("shared", "per_pass"))),
    )


@st.composite
def arch_specs(draw: st.DrawFn, max_passes: int = 3) -> ArchSpec:
    """Dense or sparse, looped or not, attention and embeddings tied or untied; with or without prelude, coda, gains."""
    num_prelude, num_coda = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    return ArchSpec(
        vocab_size=draw(st.integers(1, 80)),
        d_model=draw(st.integers(1, 32)),
        num_prelude=num_prelude,
        loop=draw(loops(max_passes)),
        num_coda=num_coda,
        attention=draw(attentions()),
        ffn=draw(ffns()),
        outer_ffn=draw(st.none() | ffns()) if num_prelude + num_coda else None,
        router=Router(load_balance_coef=draw(st.floats(0, 1)), z_loss_coef=draw(st.floats(0, 1))),
        norm_gain=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
    )


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
