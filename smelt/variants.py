"""ArchSpec -> ArchSpec, one function a paper's idea; the result is not yet matched to anything.

The name of the function is the label of the variant in plans, rows and figures. What a variant leaves alone
(width, heads, experts) is for `match` to move.
"""

from dataclasses import replace

from smelt.errors import BadInput
from smelt.spec import FFN, ArchSpec, Fusion, Latent, Mixing, Router, SigmoidScores, Views


def baseline(arch: ArchSpec) -> ArchSpec:
    """The architecture itself."""
    return arch


def _unlooped(arch: ArchSpec, what: str) -> int:
    if arch.loop.num_passes != 1:
        raise BadInput(f"{what} wants an unlooped architecture, this one has {arch.loop.num_passes} passes")
    if arch.outer_ffn not in (None, arch.ffn):
        raise BadInput(f"{what} wants one FFN for all layers, this architecture has an outer_ffn of its own")
    return arch.num_layers


def loop_span(arch: ArchSpec, *, num_layers: int, num_passes: int, residual_scale: float) -> ArchSpec:
    """Loop the middle `num_layers` of an unlooped stack `num_passes` times; floor((L-m)/2) layers come before
    (SMELT, arXiv 2609.01343). Physical depth is kept, executed depth grows."""
    depth = _unlooped(arch, "loop_span")
    if not 1 <= num_layers <= depth:
        raise BadInput(f"cannot loop {num_layers} of {depth} layers: give 1 to {depth}")
    before = (depth - num_layers) // 2
    after = depth - num_layers - before
    return replace(
        arch,
        num_prelude=before,
        num_coda=after,
        outer_ffn=None,
        loop=replace(arch.loop, num_layers=num_layers, num_passes=num_passes, residual_scale=residual_scale),
    )


def loop_middle(arch: ArchSpec) -> ArchSpec:
    """SMELT's recipe: the middle half of the layers twice, both sublayers scaled by 1/2 in the span."""
    depth = _unlooped(arch, "loop_middle")
    if depth < 2:
        raise BadInput(f"loop_middle wants at least 2 layers, this stack has {depth}")
    return loop_span(arch, num_layers=depth // 2, num_passes=2, residual_scale=0.5)


def loop_all(arch: ArchSpec, num_passes: int = 2) -> ArchSpec:
    """Looped-MoE's recipe: the whole stack `num_passes` times at equal executed depth, residuals unscaled.

    16 layers become 8x2, 4x4 or 2x8. Per-token FLOPs and KV cache stay, stored parameters shrink."""
    depth = _unlooped(arch, "loop_all")
    if num_passes < 1 or depth % num_passes:
        raise BadInput(f"loop_all cannot share {depth} executed layers among {num_passes} passes evenly")
    return replace(
        arch,
        num_prelude=0,
        num_coda=0,
        outer_ffn=None,
        loop=replace(arch.loop, num_layers=depth // num_passes, num_passes=num_passes, residual_scale=1.0),
    )


def dense(arch: ArchSpec) -> ArchSpec:
    """The dense sibling at equal active FFN width: one expert of k x F, no router."""

    def sibling(ffn: FFN) -> FFN:
        if ffn.shared_width or ffn.latent:
            raise BadInput(
                "dense wants plain experts: this FFN has a shared expert or a latent, which it has no sibling of"
            )
        return FFN(width=ffn.width * ffn.top_k, num_experts=1, top_k=1)

    return replace(arch, ffn=sibling(arch.ffn), outer_ffn=arch.outer_ffn and sibling(arch.outer_ffn))


def dense_loop_all(arch: ArchSpec) -> ArchSpec:
    """Looped-MoE's dense looped sibling: `dense`, its whole stack passed twice at equal executed depth."""
    return loop_all(dense(arch))


def flatten(arch: ArchSpec) -> ArchSpec:
    """Foil: (E, D, P) -> (2E, D/2, 2P); keeps stored experts, computed experts and executed depth. The residual scale
    stays too (Foil's is 1; of a block that is scaled by 1/P that is chosen)."""
    loop = arch.loop
    if loop.num_layers % 2:
        raise BadInput(f"flatten wants an even number of looped layers, this block has {loop.num_layers}")
    outer = arch.outer_ffn or arch.ffn
    return replace(
        arch,
        loop=replace(loop, num_layers=loop.num_layers // 2, num_passes=loop.num_passes * 2),
        ffn=replace(arch.ffn, num_experts=arch.ffn.num_experts * 2),
        outer_ffn=outer if arch.num_prelude + arch.num_coda else None,
    )


def untie_attention(arch: ArchSpec) -> ArchSpec:
    """Foil: one set of attention weights a (layer, pass); experts, routers and norms stay shared."""
    return replace(arch, loop=replace(arch.loop, attention_sets="per_pass"))


def latent_moe(arch: ArchSpec, *, width: int, shared_width: int) -> ArchSpec:
    """LatentMoE (arXiv 2601.18089): the routed experts work on a projection of `width`, beside one shared expert of
    `shared_width` on the full one. Their number and width stay as they are; prelude and coda with an FFN of their own
    keep theirs."""
    if arch.ffn.latent is not None:
        raise BadInput("latent_moe wants experts on the whole width, these have a latent already: apply it first")
    return replace(arch, ffn=replace(arch.ffn, latent=Latent(width=width), shared_width=shared_width))


def sigmoid_router(arch: ArchSpec, *, bias_rate: float = 0.001) -> ArchSpec:
    """One sigmoid head, gates renormalised over the chosen, balanced by a selection bias instead of a loss
    (DeepSeek-V3, whose rate is the default)."""
    if arch.router.sigmoid is not None:
        raise BadInput("sigmoid_router wants a softmax router, this one has sigmoid heads already: apply it first")
    scores = SigmoidScores(num_heads=1, fusion="sum", bias_rate=bias_rate)
    return replace(arch, router=Router(load_balance_coef=0.0, z_loss_coef=0.0, sigmoid=scores))


def multi_router(arch: ArchSpec, *, num_heads: int = 2, fusion: Fusion = "sum") -> ArchSpec:
    """Multi-Router: several heads of a sigmoid router, fused after the sigmoid."""
    if arch.router.sigmoid is None:
        raise BadInput("multi_router wants a sigmoid router: apply sigmoid_router first")
    sigmoid = replace(arch.router.sigmoid, num_heads=num_heads, fusion=fusion)
    return replace(arch, router=replace(arch.router, sigmoid=sigmoid))


def multi_view(arch: ArchSpec, *, mixing: Mixing = "routers") -> ArchSpec:
    """Multi-View: a view of the latent for each head of a multi-router, mixed for every chosen expert."""
    if arch.router.sigmoid is None or arch.router.sigmoid.num_heads < 2 or arch.ffn.latent is None:
        raise BadInput("multi_view wants several sigmoid heads and a latent: apply latent_moe and multi_router first")
    views = Views(num_views=arch.router.sigmoid.num_heads, mixing=mixing)
    return replace(arch, ffn=replace(arch.ffn, latent=replace(arch.ffn.latent, views=views)))


def mup(arch: ArchSpec, *, base_width: int) -> ArchSpec:
    """muP as Looped-MoE uses it: initial variance and rate of every matrix but the embedding over d_model / base_width,
    attention scaled by 1/d_k. Along a ladder all other widths are to grow with d_model."""
    return replace(arch, mup_base_width=base_width, attention=replace(arch.attention, scale="1/d_k"))
