"""A paper's printed model -> its ArchSpec: the shapes that `docs/counts.md` checks and that experiments start from.

    smelt_baseline, smelt_looped    SMELT (arXiv 2609.01343), scales "100M" and "1.6B"
    foil                            Foil (arXiv 2609.35751), width 1024
    looped_moe                      Looped-MoE (arXiv 2605.09165), its four siblings at any width

SMELT prints d_model, depth and expert counts alone. Its heads and expert widths here are reconstructed (N_q d_k = d,
4 KV heads and SwiGLU experts assumed): they reproduce active and total parameters, FLOPs ratio and KV ratio of all
sparse cells of both scales to the printed digits. Its vocabulary, embedding tying and router coefficients are not
stated either; the values below enter none of its counts.
"""

from smelt import variants
from smelt.errors import BadInput
from smelt.spec import FFN, ArchSpec, Attention, Loop, Router

SMELT_CONTEXT = 4096
SMELT_TOP_K = 8
SMELT_VOCAB_SIZE = 49_152  # assumed: not stated, and outside SMELT's counts
# d_model, layers, query heads, KV heads, head width, expert width
SMELT_BASELINE = {"100M": (672, 10, 12, 4, 56, 544), "1.6B": (2304, 30, 36, 4, 64, 768)}
SMELT_LOOPED = {"100M": (576, 10, 16, 4, 36, 424), "1.6B": (1848, 30, 44, 4, 42, 640)}
# experts of the Baseline -> of SMELT, at S = 0, ~85, ~95, ~97 %
SMELT_EXPERTS = {8: 16, 64: 96, 192: 288, 336: 504}
SMELT_BATCH_TOKENS = 256 * SMELT_CONTEXT
# each branch leaves the stable run at one of these steps and decays over 10 B more tokens
SMELT_BRANCH_STEPS = (10_000, 20_000, 50_000, 100_000, 150_000, 196_075)
SMELT_DECAY_TOKENS = 10 * 10**9
SMELT_HORIZONS_TOKENS = tuple(step * SMELT_BATCH_TOKENS + SMELT_DECAY_TOKENS for step in SMELT_BRANCH_STEPS)

FOIL_VOCAB_SIZE = 49_152
FOIL_CONTEXT = 4096
LOOPED_MOE_VOCAB_SIZE = 50_257
LOOPED_MOE_CONTEXT = 1024
# Coefficients of the released Looped-MoE and Foil configurations; assumed for SMELT.
ROUTER = Router(load_balance_coef=0.01, z_loss_coef=0.001)


def smelt_baseline(scale: str, num_experts: int) -> ArchSpec:
    """The unlooped MoE of SMELT's table. Raises BadInput for a scale that is not printed."""
    return _smelt(SMELT_BASELINE, scale, num_experts)


def smelt_looped(scale: str, num_experts: int) -> ArchSpec:
    """SMELT's own partner: narrower, 1.5 times the experts, the middle half of the layers twice."""
    return variants.loop_middle(_smelt(SMELT_LOOPED, scale, num_experts))


def _smelt(table: dict[str, tuple[int, ...]], scale: str, num_experts: int) -> ArchSpec:
    if scale not in table:
        raise BadInput(f"SMELT prints no scale {scale!r}: choose one of {', '.join(table)}")
    d_model, num_layers, num_heads, num_kv_heads, head_dim, width = table[scale]
    return ArchSpec(
        vocab_size=SMELT_VOCAB_SIZE,
        d_model=d_model,
        num_prelude=0,
        loop=Loop(num_layers=num_layers, num_passes=1, residual_scale=1.0, attention_sets="shared"),
        num_coda=0,
        attention=Attention(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale="1/sqrt(d_k)"),
        ffn=FFN(width=width, num_experts=num_experts, top_k=SMELT_TOP_K),
        outer_ffn=None,
        router=ROUTER,
        norm_gain=True,
        tied_embeddings=False,
    )


def foil(num_experts: int, num_layers: int, num_passes: int, *, untied: bool) -> ArchSpec:
    """A loop block (E, D, L) of Foil at width 1024, between one prelude and one coda layer of 8 experts.

    Base-tied is (8, 8, 2); each `flatten` gives the next; untied has one attention set a (layer, pass)."""
    outer = FFN(width=1536, num_experts=8, top_k=2)
    return ArchSpec(
        vocab_size=FOIL_VOCAB_SIZE,
        d_model=1024,
        num_prelude=1,
        loop=Loop(
            num_layers=num_layers,
            num_passes=num_passes,
            residual_scale=1.0,
            attention_sets="per_pass" if untied else "shared",
        ),
        num_coda=1,
        attention=Attention(num_heads=16, num_kv_heads=16, head_dim=64, scale="1/d_k"),
        ffn=FFN(width=1536, num_experts=num_experts, top_k=2),
        outer_ffn=outer,
        router=ROUTER,
        norm_gain=False,
        tied_embeddings=False,
    )


def looped_moe(d_model: int, *, num_experts: int, num_passes: int) -> ArchSpec:
    """A sibling of Looped-MoE at 16 executed layers: dense (1 expert) or MoE (8, top-2), `num_passes` over the stack.

    d_ff = 8 d / 3 rounded up to a multiple of 64, head width 64; an expert of the MoE has d_ff / 2. Raises BadInput
    for a width that is no multiple of 64 and for expert counts that the paper has not."""
    if d_model % 64:
        raise BadInput(f"d_model is {d_model}: Looped-MoE has heads of 64, give a multiple of it")
    if num_experts not in (1, 8):
        raise BadInput(f"num_experts is {num_experts}: Looped-MoE has 1 (dense) or 8")
    d_ff = -(-8 * d_model // 192) * 64
    top_k = 2 if num_experts > 1 else 1
    unlooped = ArchSpec(
        vocab_size=LOOPED_MOE_VOCAB_SIZE,
        d_model=d_model,
        num_prelude=0,
        loop=Loop(num_layers=16, num_passes=1, residual_scale=1.0, attention_sets="shared"),
        num_coda=0,
        attention=Attention(num_heads=d_model // 64, num_kv_heads=d_model // 64, head_dim=64, scale="1/d_k"),
        ffn=FFN(width=d_ff // top_k, num_experts=num_experts, top_k=top_k),
        outer_ffn=None,
        router=ROUTER,
        norm_gain=False,
        tied_embeddings=False,
    )
    return variants.loop_all(unlooped, num_passes=num_passes)
