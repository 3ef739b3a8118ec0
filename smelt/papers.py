"""A paper's printed model -> its ArchSpec: the shapes that `docs/counts.md` checks and that experiments start from.

    smelt_baseline, smelt_looped    SMELT (arXiv 2609.01343), scales "100M" and "1.6B"
    foil, foil_run                  Foil (arXiv 2609.35751), any shape or a registered run, in three tiers of width
    looped_moe                      Looped-MoE (arXiv 2605.09165), its siblings at any width: 16, 8x2, 4x4, 2x8
    multi_view_backbone             Multi-Router and Multi-View: the one-headed LatentMoE that both start from

SMELT prints d_model, depth and expert counts alone. Its heads and expert widths here are reconstructed (N_q d_k = d,
4 KV heads and SwiGLU experts assumed): they reproduce active and total parameters, FLOPs ratio and KV ratio of all
sparse cells of both scales to the printed digits. Its vocabulary, embedding tying and router coefficients are not
stated either; the values below enter none of its counts.

Looped-MoE has muP in both its halves, initial variance and rate. Foil's launch files have the first half alone, one
rate for all tensors; the standard parametrisation is that for every matrix whose inputs grow with the width, the head
excepted, and is what stands here. The constants of both papers' released initialisation, 2 / (fan_in + fan_out) at base
widths of 128 and 384, are not ours (`model.initialisation`: 1 / fan_in). For SMELT no QK-norm, no shared experts, no
biases and dropless routing are chosen. LatentMoE's experts are SwiGLU here, where its released ones are ungated. Of
Multi-Router and Multi-View only depth, experts, top-k and the totals are known.
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
# d_model, d_ff of the two experts of a token together, heads
FOIL_TIERS = {"pilot": (512, 1536, 8), "main": (1024, 3072, 16), "large": (1792, 4608, 28)}
# Registered runs with attention shared by passes: (E, D, P). S1 to S4 are a base and its three flattenings, S14 is 16
# layers of their own, S15 has two prelude and two coda layers.
FOIL_TIED = {
    "S1": (8, 8, 2),
    "S2": (16, 4, 4),
    "S3": (32, 2, 8),
    "S4": (64, 1, 16),
    "S5": (16, 4, 2),
    "S6": (8, 8, 1),
    "S7": (8, 4, 2),
    "S8": (8, 8, 3),
    "S9": (8, 8, 4),
    "S10": (16, 8, 2),
    "S11": (4, 8, 2),
    "S12": (8, 4, 4),
    "S13": (4, 8, 4),
    "S14": (8, 16, 1),
    "S15": (8, 8, 2),
    "N1": (8, 4, 8),
    "N2": (16, 4, 8),
    "N3": (16, 4, 6),
    "N4": (8, 8, 8),
}
# The same four with attention of each pass's own.
FOIL_UNTIED = {"U1": (8, 8, 2), "U2": (16, 4, 4), "U3": (32, 2, 8), "U4": (64, 1, 16)}
FOIL_NAMES = {
    "S1": "Base-tied",
    "S2": "proto-Foil-3",
    "S3": "proto-Foil-2",
    "S4": "proto-Foil-1",
    "U1": "Base",
    "U2": "Foil-3",
    "U3": "Foil-2",
    "U4": "Foil-1",
}
# Registered in the large tier. That they are the runs above in order is assumed; the shape of an L5 is not known.
FOIL_LARGE = {f"{prefix}{run[1:]}": run for run in FOIL_NAMES for prefix in ("UL" if run.startswith("U") else "L",)}
LOOPED_MOE_VOCAB_SIZE = 50_257
LOOPED_MOE_CONTEXT = 1024
LOOPED_MOE_BASE_WIDTH = 128  # of its muP
MULTI_VIEW_LATENT = 512  # inferred, as the width of 1024 is, from the overheads that are printed
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


def foil(
    num_experts: int, num_layers: int, num_passes: int, *, untied: bool, tier: str = "main", num_outer: int = 1
) -> ArchSpec:
    """A loop block (E, D, P) of Foil between `num_outer` prelude and as many coda layers of 8 experts.

    Base-tied is (8, 8, 2); each `flatten` gives the next; untied has one attention set a (layer, pass). Raises BadInput
    for a tier that is not registered."""
    if tier not in FOIL_TIERS:
        raise BadInput(f"Foil registers no tier {tier!r}: choose one of {', '.join(FOIL_TIERS)}")
    d_model, d_ff, num_heads = FOIL_TIERS[tier]
    return ArchSpec(
        vocab_size=FOIL_VOCAB_SIZE,
        d_model=d_model,
        num_prelude=num_outer,
        loop=Loop(
            num_layers=num_layers,
            num_passes=num_passes,
            residual_scale=1.0,
            attention_sets="per_pass" if untied else "shared",
        ),
        num_coda=num_outer,
        attention=Attention(num_heads=num_heads, num_kv_heads=num_heads, head_dim=64, scale="1/d_k"),
        ffn=FFN(width=d_ff // 2, num_experts=num_experts, top_k=2),
        outer_ffn=FFN(width=d_ff // 2, num_experts=8, top_k=2),
        router=ROUTER,
        norm_gain=False,
        tied_embeddings=False,
    )


def foil_run(run: str) -> ArchSpec:
    """A registered run of Foil by its id: S1 to S15 and N1 to N4 tied, U1 to U4 untied, L1 to L4 and UL1 to UL4 large.
    Raises BadInput for another.

    >>> foil_run("U4").loop.num_passes, foil_run("S15").num_prelude
    (16, 2)
    """
    tier, main = ("large", FOIL_LARGE[run]) if run in FOIL_LARGE else ("main", run)
    if main not in FOIL_TIED | FOIL_UNTIED:
        raise BadInput(f"Foil registers no run {run!r}: choose S1 to S15, N1 to N4, U1 to U4, L1 to L4 or UL1 to UL4")
    shape = (FOIL_TIED | FOIL_UNTIED)[main]
    return foil(*shape, untied=main in FOIL_UNTIED, tier=tier, num_outer=2 if main == "S15" else 1)


def looped_moe(d_model: int, *, num_experts: int, num_passes: int) -> ArchSpec:
    """A sibling of Looped-MoE at 16 executed layers: dense (1 expert) or MoE (8, top-2), `num_passes` over the stack
    (1, 2, 4 or 8: 16, 8x2, 4x4, 2x8), under muP.

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
    return variants.mup(variants.loop_all(unlooped, num_passes=num_passes), base_width=LOOPED_MOE_BASE_WIDTH)


def multi_view_backbone() -> ArchSpec:
    """24 layers of 256 experts top-8 on a latent, beside one shared expert, behind one sigmoid head that is balanced
    without a loss; `variants.multi_router` and `variants.multi_view` make the paper's two models of it.

    Depth, experts, top-k, 10 B parameters in all and 1 B active are the paper's; width and latent follow from its
    overheads (a head of 24 d E is 0.06 %, a view of 24 d l is 0.13 %). Chosen so that the totals come out: experts of
    992, a shared expert of twice that, 16 heads of 128, a vocabulary of 131,072."""
    plain = ArchSpec(
        vocab_size=131_072,
        d_model=1024,
        num_prelude=0,
        loop=Loop(num_layers=24, num_passes=1, residual_scale=1.0, attention_sets="shared"),
        num_coda=0,
        attention=Attention(num_heads=16, num_kv_heads=16, head_dim=128, scale="1/sqrt(d_k)"),
        ffn=FFN(width=992, num_experts=256, top_k=8),
        outer_ffn=None,
        router=ROUTER,
        norm_gain=True,
        tied_embeddings=False,
    )
    return variants.sigmoid_router(variants.latent_moe(plain, width=MULTI_VIEW_LATENT, shared_width=2 * 992))
