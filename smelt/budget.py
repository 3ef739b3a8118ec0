"""Parameters, FLOPs per token, KV-cache bytes and sparsity of an architecture, from its spec alone.

Every number that a fit regresses on is defined here and nowhere else. smelt's own convention, *model FLOPs*:

    train_flops = 3 * forward_flops_per_token(arch, context) * num_tokens        (backward = 2 x forward)

- A multiply-add is 2 FLOPs. Every matmul counts: projections, router, chosen experts, head. Norms, softmax, RoPE,
  activations and embedding look-ups count 0.
- Attention counts the causal half over the full context: a query at position t meets t + 1 keys, (T + 1) / 2 on
  average. Confining attention to documents does not change the count.
- Every visit counts; what an implementation computes beyond the model (masked half, padding, rematerialisation)
  does not.
- An FFN's experts are all of it: routed and shared experts, the projections into and out of a latent, one more for
  every further view. A router is all its heads, and the weights of its own that mix views. Fusing scores and mixing
  views are elementwise and count 0; a selection bias is no parameter, since no gradient moves it.
- A part of the user's own counts what it says of itself (`spec.Own`).

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
    """Parameters by kind. `experts` are all stored FFN weights, shared experts and latent projections too."""

    embedding: int
    head: int
    attention: int
    norms: int
    routers: int
    experts: int
    own_layers: int

    @property
    def non_embedding(self) -> int:
        """Attention, norms, routers and all experts: SMELT's total N, and what the matcher equalises."""
        return self.attention + self.norms + self.routers + self.experts + self.own_layers

    @property
    def total(self) -> int:
        return self.non_embedding + self.embedding + self.head


def _attention_set(arch: ArchSpec, ffn: FFN) -> int:
    """Parameters of one set of q, k, v, o: 2 d H K + 2 d G K."""
    if own := arch.own_part("attention"):
        return own.num_params(arch, ffn)
    heads = arch.attention
    return 2 * arch.d_model * heads.head_dim * (heads.num_heads + heads.num_kv_heads)


def _attention_met(arch: ArchSpec, ffn: FFN) -> int:
    """Of it what one token meets."""
    own = arch.own_part("attention")
    return own.active_params(arch, ffn) if own else _attention_set(arch, ffn)


def _expert(arch: ArchSpec, ffn: FFN) -> int:
    """Parameters of one routed SwiGLU expert: gate, up and down, on the latent where there is one."""
    return 3 * (ffn.latent.width if ffn.latent else arch.d_model) * ffn.width


def _always(arch: ArchSpec, ffn: FFN) -> int:
    """Parameters of an FFN that every token meets: shared expert, projections into and out of the latent, one more into
    it for every further view."""
    shared = 0 if ffn.shared_width is None else 3 * arch.d_model * ffn.shared_width
    if ffn.latent is None:
        return shared
    further_views = ffn.latent.views.num_views - 1 if ffn.latent.views else 0
    return shared + (2 + further_views) * arch.d_model * ffn.latent.width


def _experts(arch: ArchSpec, ffn: FFN) -> int:
    """Stored parameters of one layer's FFN."""
    if own := arch.own_part("experts"):
        return own.num_params(arch, ffn)
    return ffn.num_experts * _expert(arch, ffn) + _always(arch, ffn)


def _chosen(arch: ArchSpec, ffn: FFN) -> int:
    """Parameters of one layer's FFN that a token meets."""
    if own := arch.own_part("experts"):
        return own.active_params(arch, ffn)
    return ffn.top_k * _expert(arch, ffn) + _always(arch, ffn)


def _router(arch: ArchSpec, ffn: FFN) -> int:
    if not ffn.has_router or arch.own_part("layer"):
        return 0
    if own := arch.own_part("router"):
        return own.num_params(arch, ffn)
    heads = arch.router.sigmoid.num_heads if arch.router.sigmoid else 1
    mixers = ffn.views.num_views if ffn.views and ffn.views.mixing == "learned" else 0
    return (heads + mixers) * arch.d_model * ffn.num_experts


def _router_met(arch: ArchSpec, ffn: FFN) -> int:
    """Of it what one token meets."""
    own = arch.own_part("router") if ffn.has_router else None
    return own.active_params(arch, ffn) if own else _router(arch, ffn)


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
    embedding = arch.vocab_size * arch.d_model
    head = 0 if arch.tied_embeddings else arch.vocab_size * arch.d_model
    if own := arch.own_part("layer"):
        layers = sum(s.num_layers * own.num_params(arch, s.ffn) for s in segments)
        return Params(
            embedding=embedding,
            head=head,
            attention=0,
            norms=_final_norm(arch),
            routers=0,
            experts=0,
            own_layers=layers,
        )
    return Params(
        embedding=embedding,
        head=head,
        attention=sum(s.num_layers * s.num_attention_sets * _attention_set(arch, s.ffn) for s in segments),
        norms=arch.num_layers * _norms(arch) + _final_norm(arch),
        routers=sum(s.num_layers * _router(arch, s.ffn) for s in segments),
        experts=sum(s.num_layers * _experts(arch, s.ffn) for s in segments),
        own_layers=0,
    )


def active_params(arch: ArchSpec) -> int:
    """Non-embedding parameters that one *physical* traversal touches, the loop block counted once: attention,
    norms, router and k experts. SMELT's "active params" column."""
    return _final_norm(arch) + sum(s.num_layers * _visit_params(arch, s) for s in arch.segments)


def executed_params(arch: ArchSpec) -> int:
    """The same with every visit counted: what is multiplied by when a token passes."""
    return _final_norm(arch) + sum(s.num_visits * _visit_params(arch, s) for s in arch.segments)


def _visit_params(arch: ArchSpec, segment: Segment) -> int:
    if arch.own_part("layer"):
        return _without_router(arch, segment.ffn)
    return _without_router(arch, segment.ffn) + _norms(arch) + _router_met(arch, segment.ffn)


def _without_router(arch: ArchSpec, ffn: FFN) -> int:
    """Attention and what a token meets of the FFN; a layer of one's own is not divided."""
    if own := arch.own_part("layer"):
        return own.active_params(arch, ffn)
    return _attention_met(arch, ffn) + _chosen(arch, ffn)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFlops:
    """Forward model FLOPs of one token by kind."""

    attention_projections: int
    attention_scores: int
    routers: int
    experts: int
    own: int
    head: int

    @property
    def total(self) -> int:
        layers = self.attention_projections + self.attention_scores + self.routers + self.experts + self.own
        return layers + self.head


def forward_flops(arch: ArchSpec, context: int) -> ForwardFlops:
    """Forward model FLOPs per token at a context of `context` tokens, averaged over positions. A part of the user's own
    counts in the place of ours: attention, scores and all, as projections; a whole layer as `own`."""
    heads = arch.attention

    def over_visits(place: str, ours: Callable[[FFN], int]) -> int:
        own = arch.own_part(place)
        having = (s for s in arch.segments if place != "router" or s.ffn.has_router)
        return sum(s.num_visits * (own.forward_flops(arch, s.ffn, context) if own else ours(s.ffn)) for s in having)

    head = 2 * arch.vocab_size * arch.d_model
    if arch.own_part("layer"):
        whole = over_visits("layer", lambda ffn: 0)
        return ForwardFlops(attention_projections=0, attention_scores=0, routers=0, experts=0, own=whole, head=head)
    # q k^T and p v: 2 FLOPs x H K each, over (T + 1) / 2 keys on average
    scores = 2 * arch.effective_depth * heads.num_heads * heads.head_dim * (context + 1)
    return ForwardFlops(
        attention_projections=over_visits("attention", lambda ffn: 2 * _attention_set(arch, ffn)),
        attention_scores=0 if arch.own_part("attention") else scores,
        routers=over_visits("router", lambda ffn: 2 * _router(arch, ffn)),
        experts=over_visits("experts", lambda ffn: 2 * _chosen(arch, ffn)),
        own=0,
        head=head,
    )


def _model(arch: ArchSpec, context: int) -> float:
    return (1 + BACKWARD_OVER_FORWARD) * forward_flops(arch, context).total


SMELT_MEAN_KEYS = 390 / 4096  # keys a query meets, over the context: documents of mean length ~780 in 4096 tokens


def _smelt(arch: ArchSpec, context: int) -> float:
    """6 x executed parameters (norms and router in, embedding and head out) + 12 L_eff H K s, where s = 390 of
    4096 reproduces the printed FLOPs ratios (reconstructed; the formula itself is not printed). At another context
    the same share of it is assumed, where the paper would take the mean length of the data's own documents."""
    return 6 * executed_params(arch) + _scores(arch, context, SMELT_MEAN_KEYS * context)


def _looped_moe(arch: ArchSpec, context: int) -> float:
    """6 x (executed attention and chosen experts + embedding and head): no router, no norms, no attention term."""
    return 6 * looped_moe_active(arch)


def looped_moe_active(arch: ArchSpec) -> int:
    """N_active of Looped-MoE: every executed layer, k experts, and 2 V d for embedding and unembedding."""
    layers = sum(s.num_visits * _without_router(arch, s.ffn) for s in arch.segments)
    return layers + 2 * arch.vocab_size * arch.d_model


def _foil(arch: ArchSpec, context: int) -> float:
    """6 x (executed attention, router and k experts + head) + 12 L_eff H K T: attention over the whole context.
    The trainer's formula names the loop's visits; that prelude and coda count alike is chosen."""
    layers = sum(s.num_visits * (_without_router(arch, s.ffn) + _router_met(arch, s.ffn)) for s in arch.segments)
    return 6 * (layers + arch.vocab_size * arch.d_model) + _scores(arch, context, context)


def _scores(arch: ArchSpec, context: int, keys: float) -> float:
    """12 L_eff H K keys; of an attention or layer of the user's own, what it says of a context beyond parameters."""
    if own := arch.own_part("attention") or arch.own_part("layer"):
        return 3 * sum(
            s.num_visits * (own.forward_flops(arch, s.ffn, context) - 2 * own.active_params(arch, s.ffn))
            for s in arch.segments
        )
    heads = arch.attention
    return 12 * arch.effective_depth * heads.num_heads * heads.head_dim * keys


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
    own = arch.own_part("attention") or arch.own_part("layer")
    if own:
        return KV_BYTES_PER_VALUE * sum(s.num_visits * own.kv_values(arch, s.ffn) for s in arch.segments)
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
    """The control of the sparsity: the same architecture with only as many experts as a token takes. One alone has no
    router, and so no views to be mixed."""

    def control(ffn: FFN) -> FFN:
        alone = ffn.top_k == 1 and ffn.latent is not None
        latent = replace(ffn.latent, views=None) if alone and ffn.latent else ffn.latent
        return replace(ffn, num_experts=ffn.top_k, latent=latent)

    return replace(arch, ffn=control(arch.ffn), outer_ffn=arch.outer_ffn and control(arch.outer_ffn))


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
