"""Parameters, FLOPs per token, KV-cache bytes and sparsity of an architecture, from its spec alone.

Every number that a fit regresses on is defined here and nowhere else. smelt's own convention, *model FLOPs*:

    train_flops = 3 * forward_flops_per_token(arch, context) * num_tokens        (backward = 2 x forward)

- A multiply-add is 2 FLOPs. Every matmul counts: projections, router, chosen experts, head. Norms, softmax, RoPE,
  activations and embedding look-ups count 0.
- Attention counts the causal half over the full context: a query at position t meets t + 1 keys, (T + 1) / 2 on
  average. Confining attention to documents does not change the count.
- Every visit counts; what an implementation computes beyond the model (masked half, padding, rematerialisation)
  does not.

The papers count otherwise (see `CONVENTIONS`), and every row of a ledger carries all of them.
Letters: d d_model, H query heads, G KV heads, K head width, F expert width, E experts, k chosen, V vocabulary,
T context.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from smelt.errors import BadInput
from smelt.spec import FFN, ArchSpec, Segment

BACKWARD_OVER_FORWARD = 2
KV_BYTES_PER_VALUE = 2  # bfloat16: chosen; ratios do not depend on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters by kind. `experts` are all stored FFN weights, dense ones too."""

    embedding: int
    head: int
    attention: int
    norms: int
    routers: int
    experts: int

    @property
    def non_embedding(self) -> int:
        """Attention, norms, routers and all experts: SMELT's total N, and what the matcher equalises."""
        return self.attention + self.norms + self.routers + self.experts

    @property
    def total(self) -> int:
        return self.non_embedding + self.embedding + self.head


def _attention_set(arch: ArchSpec) -> int:
    """Parameters of one set of q, k, v, o: 2 d H K + 2 d G K."""
    heads = arch.attention
    return 2 * arch.d_model * heads.head_dim * (heads.num_heads + heads.num_kv_heads)


def _expert(arch: ArchSpec, ffn: FFN) -> int:
    """Parameters of one SwiGLU expert: gate, up and down."""
    return 3 * arch.d_model * ffn.width


def _router(arch: ArchSpec, ffn: FFN) -> int:
    return arch.d_model * ffn.num_experts if ffn.has_router else 0


def _norms(arch: ArchSpec) -> int:
    """Gains of one layer: before attention and before the FFN."""
    return 2 * arch.d_model if arch.norm_gain else 0


def _final_norm(arch: ArchSpec) -> int:
    return arch.d_model if arch.norm_gain else 0


def params(arch: ArchSpec) -> Params:
    """Stored parameters, exact against the leaves of the real tree.

    >>> from smelt.spec import *
    >>> arch = ArchSpec(vocab_size=256, d_model=64, num_prelude=0, num_coda=0, outer_ffn=None,
    ...     loop=Loop(num_layers=4, num_passes=1, residual_scale=1.0, attention_sets="shared"),
    ...     attention=Attention(num_heads=4, num_kv_heads=2, head_dim=16, scale="1/sqrt(d_k)"),
    ...     ffn=FFN(width=64, num_experts=8, top_k=2), router=Router(load_balance_coef=0.01, z_loss_coef=0.001),
    ...     norm_gain=True, tied_embeddings=False)
    >>> params(arch).non_embedding
    444992
    """
    segments = arch.segments
    return Params(
        embedding=arch.vocab_size * arch.d_model,
        head=0 if arch.tied_embeddings else arch.vocab_size * arch.d_model,
        attention=sum(s.num_layers * s.num_attention_sets for s in segments) * _attention_set(arch),
        norms=arch.num_layers * _norms(arch) + _final_norm(arch),
        routers=sum(s.num_layers * _router(arch, s.ffn) for s in segments),
        experts=sum(s.num_layers * s.ffn.num_experts * _expert(arch, s.ffn) for s in segments),
    )


def active_params(arch: ArchSpec) -> int:
    """Non-embedding parameters that one *physical* traversal touches, the loop block counted once: attention,
    norms, router and k experts. SMELT's "active params" column."""
    return _final_norm(arch) + sum(s.num_layers * _visit_params(arch, s) for s in arch.segments)


def executed_params(arch: ArchSpec) -> int:
    """The same with every visit counted: what is multiplied by when a token passes."""
    return _final_norm(arch) + sum(s.num_visits * _visit_params(arch, s) for s in arch.segments)


def _visit_params(arch: ArchSpec, segment: Segment) -> int:
    chosen = segment.ffn.top_k * _expert(arch, segment.ffn)
    return _attention_set(arch) + _norms(arch) + _router(arch, segment.ffn) + chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFlops:
    """Forward model FLOPs of one token by kind."""

    attention_projections: int
    attention_scores: int
    routers: int
    experts: int
    head: int

    @property
    def total(self) -> int:
        return self.attention_projections + self.attention_scores + self.routers + self.experts + self.head


def forward_flops(arch: ArchSpec, context: int) -> ForwardFlops:
    """Forward model FLOPs per token at a context of `context` tokens, averaged over positions."""
    heads = arch.attention
    segments = arch.segments
    return ForwardFlops(
        attention_projections=2 * arch.effective_depth * _attention_set(arch),
        # q k^T and p v: 2 FLOPs x H K each, over (T + 1) / 2 keys on average
        attention_scores=2 * arch.effective_depth * heads.num_heads * heads.head_dim * (context + 1),
        routers=2 * sum(s.num_visits * _router(arch, s.ffn) for s in segments),
        experts=2 * sum(s.num_visits * s.ffn.top_k * _expert(arch, s.ffn) for s in segments),
        head=2 * arch.vocab_size * arch.d_model,
    )


def _model(arch: ArchSpec, context: int) -> float:
    return (1 + BACKWARD_OVER_FORWARD) * forward_flops(arch, context).total


SMELT_MEAN_KEYS = 390 / 4096  # keys a query meets, over the context: documents of mean length ~780 in 4096 tokens


def _smelt(arch: ArchSpec, context: int) -> float:
    """6 x executed parameters (norms and router in, embedding and head out) + 12 L_eff H K s, where s = 390 of
    4096 reproduces the printed FLOPs ratios (reconstructed; the formula itself is not printed). At another context
    the same share of it is assumed, where the paper would take the mean length of the data's own documents."""
    heads = arch.attention
    scores = 12 * arch.effective_depth * heads.num_heads * heads.head_dim * SMELT_MEAN_KEYS * context
    return 6 * executed_params(arch) + scores


def _looped_moe(arch: ArchSpec, context: int) -> float:
    """6 x (executed attention and chosen experts + embedding and head): no router, no norms, no attention term."""
    return 6 * looped_moe_active(arch)


def looped_moe_active(arch: ArchSpec) -> int:
    """N_active of Looped-MoE: every executed layer, k experts, and 2 V d for embedding and unembedding."""
    layers = sum(s.num_visits * (_attention_set(arch) + s.ffn.top_k * _expert(arch, s.ffn)) for s in arch.segments)
    return layers + 2 * arch.vocab_size * arch.d_model


def _foil(arch: ArchSpec, context: int) -> float:
    """6 x (executed attention, router and k experts + head) + 12 L_eff H K T: attention over the whole context.
    The trainer's formula names the loop's visits; that prelude and coda count alike is chosen."""
    heads = arch.attention
    layers = sum(
        s.num_visits * (_attention_set(arch) + _router(arch, s.ffn) + s.ffn.top_k * _expert(arch, s.ffn))
        for s in arch.segments
    )
    scores = 12 * arch.effective_depth * heads.num_heads * heads.head_dim * context
    return 6 * (layers + arch.vocab_size * arch.d_model) + scores


def _chinchilla(arch: ArchSpec, context: int) -> float:
    """6 N with N the active parameters of one physical traversal plus embedding and head."""
    stored = params(arch)
    return 6 * (active_params(arch) + stored.embedding + stored.head)


CONVENTIONS: dict[str, Callable[[ArchSpec, int], float]] = {
    "model": _model,
    "smelt": _smelt,
    "looped_moe": _looped_moe,
    "foil": _foil,
    "chinchilla": _chinchilla,
}


def train_flops_per_token(arch: ArchSpec, context: int, convention: str = "model") -> float:
    """Training FLOPs per token under a named convention. Raises BadInput for an unknown name."""
    if convention not in CONVENTIONS:
        raise BadInput(f"unknown FLOP convention {convention!r}: choose one of {', '.join(CONVENTIONS)}")
    if context < 1:
        raise BadInput(f"context is {context}: give a positive number of tokens")
    return float(CONVENTIONS[convention](arch, context))


def kv_cache_bytes_per_token(arch: ArchSpec) -> int:
    """Keys and values of every visit: 2 x L_eff x G x K values of KV_BYTES_PER_VALUE bytes."""
    heads = arch.attention
    return 2 * arch.effective_depth * heads.num_kv_heads * heads.head_dim * KV_BYTES_PER_VALUE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertBudget:
    """Foil's accounting of the loop block: stored experts E D, choices offered E D P, experts computed k D P."""

    e_real: int
    e_eq: int
    e_comp: int


def expert_budget(arch: ArchSpec) -> ExpertBudget:
    """Of the loop block alone; prelude and coda are fixed costs in Foil's accounting."""
    loop, ffn = arch.loop, arch.ffn
    return ExpertBudget(
        e_real=ffn.num_experts * loop.num_layers,
        e_eq=ffn.num_experts * loop.num_layers * loop.num_passes,
        e_comp=ffn.top_k * loop.num_layers * loop.num_passes,
    )


def fully_active(arch: ArchSpec) -> ArchSpec:
    """The control of the sparsity: the same architecture with only as many experts as a token takes."""
    outer = arch.outer_ffn and replace(arch.outer_ffn, num_experts=arch.outer_ffn.top_k)
    return replace(arch, ffn=replace(arch.ffn, num_experts=arch.ffn.top_k), outer_ffn=outer)


def sparsity(arch: ArchSpec, baseline: ArchSpec, context: int, convention: str = "model") -> float:
    """SMELT's compute-equivalent sparsity S = 1 - (F / F0) N0 / N, the control (F0, N0) being the fully active
    form of the unlooped `baseline` that `arch` is compared with (N is non-embedding). The text of the paper names this
    control; its printed SMELT rows follow SMELT's own S = 0 row instead, which lies 0.1 to 1.2 points higher."""
    control = fully_active(baseline)
    return compute_equivalent_sparsity(
        train_flops_per_token(arch, context, convention),
        params(arch).non_embedding,
        train_flops_per_token(control, context, convention),
        params(control).non_embedding,
    )


def compute_equivalent_sparsity(
    flops_per_token: float, num_params: float, control_flops_per_token: float, control_num_params: float
) -> float:
    """S = 1 - (F / F0) N0 / N from the four numbers."""
    return 1.0 - flops_per_token / control_flops_per_token * control_num_params / num_params


def router_flops_frac(arch: ArchSpec, context: int) -> float:
    """The router's share of the forward model FLOPs."""
    flops = forward_flops(arch, context)
    return flops.routers / flops.total
