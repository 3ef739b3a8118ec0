"""Which layers, how often, at which depth and at which scale does SMELT loop best at three matched budgets?

Question    SMELT's own ablations (arXiv 2609.01343): the span (how many middle layers are looped twice), the number of
            passes over the middle half, physical depth against width with and without the loop, and residuals in the
            span scaled by 1/P or not. The matcher pays for each: narrower, more experts, smaller heads, so that what
            is compared is where equal budgets go.
Prediction  The unlooped baseline is best: the quickstart's loop_middle lost 0.06 nats at these sizes. Hence loss rises
            with the span (0, 2, 3, 4, 6 of 6 layers) and with the passes (1 to 4), for every further visit is paid by
            width; four layers, looped or not, beat six, and six beat eight; residuals unscaled are within two seed
            spreads of 1/P. The order of span 2 against span 3 is the least sure. Written before the first run.
Varies      {baseline, span 2, 4, 6 and the middle 3 (loop_middle), 3 and 4 passes over the middle 3, loop_middle with
            residuals unscaled, 4 and 8 layers unlooped and looped in the middle half} at one budget, two seeds, the
            baseline with four.
Held equal  FLOPs per token (smelt's model FLOPs, head included), non-embedding parameters, KV cache, within 4 %.
Fixed       corpus `builtin` (bytes), context 128 with attention confined to a document, 512 tokens a step, the
            quickstart's optimizer and rate rule.
Found       Mostly as predicted, each step against the baseline in nats over two pairs (seed spread 0.023, 14 degrees of
            freedom, so that a mean has a standard error of 0.023 too; those over two pairs say little). Loss rises with
            the span: 2 layers +0.024, 3 +0.038, 4 +0.046, 6 +0.056 (2.4 spreads), where the paper's curve has its
            minimum at the middle half; and with the passes over the middle 3: 2 +0.038, 3 +0.047, 4 +0.085 (3.6
            spreads), where the paper is best at 2. Residuals unscaled cost 0.009 over 1/P (0.4 spreads), within two
            spreads as predicted. Depth is not as predicted: six layers beat four by 0.044 (1.9 spreads) and eight are
            level with six (+0.012, 0.5 spreads); looping the middle half costs nothing at four layers and 0.036 (1.5
            spreads) at eight. fits/smelt_ablations.csv; 10.2 CPU-minutes on shared cores.
"""

from dataclasses import replace

from smelt import experiment, grid, match, variants
from smelt.spec import ArchSpec, Attention, DataSpec, OptimSpec

QUICKSTART = experiment.module("quickstart")
BUDGET_FLOPS = 1.5e11
# Six layers with KV heads 40 wide: 8, 9, 10, 12 and 15 visits then have a head width that keeps the cache within 2.5 %.
BASELINE = replace(
    QUICKSTART.baseline(24),
    loop=replace(QUICKSTART.baseline(24).loop, num_layers=6),
    attention=Attention(num_heads=2, num_kv_heads=1, head_dim=40, scale="1/sqrt(d_k)"),
)


def _span(arch: ArchSpec, num_layers: int, num_passes: int) -> ArchSpec:
    return variants.loop_span(arch, num_layers=num_layers, num_passes=num_passes, residual_scale=1 / num_passes)


def span_2(arch: ArchSpec) -> ArchSpec:
    return _span(arch, 2, 2)


def span_4(arch: ArchSpec) -> ArchSpec:
    return _span(arch, 4, 2)


def span_6(arch: ArchSpec) -> ArchSpec:
    return _span(arch, 6, 2)


def three_passes(arch: ArchSpec) -> ArchSpec:
    return _span(arch, 3, 3)


def four_passes(arch: ArchSpec) -> ArchSpec:
    return _span(arch, 3, 4)


def unscaled(arch: ArchSpec) -> ArchSpec:
    """loop_middle with the loop's residuals at full size."""
    return variants.loop_span(arch, num_layers=3, num_passes=2, residual_scale=1.0)


def _of_depth(arch: ArchSpec, num_layers: int) -> ArchSpec:
    """Another depth at about the same parameters and cache, where the matcher starts: widths go against its root, the
    heads against the depth itself."""
    wider = arch.num_layers / num_layers
    return replace(
        arch,
        d_model=round(arch.d_model * wider**0.5),
        loop=replace(arch.loop, num_layers=num_layers),
        attention=replace(arch.attention, head_dim=round(arch.attention.head_dim * wider)),
        ffn=replace(arch.ffn, width=round(arch.ffn.width * wider**0.5)),
    )


def layers_4(arch: ArchSpec) -> ArchSpec:
    return _of_depth(arch, 4)


def layers_8(arch: ArchSpec) -> ArchSpec:
    return _of_depth(arch, 8)


def loop_middle_of_4(arch: ArchSpec) -> ArchSpec:
    return variants.loop_middle(layers_4(arch))


def loop_middle_of_8(arch: ArchSpec) -> ArchSpec:
    return variants.loop_middle(layers_8(arch))


def matcher(arch: ArchSpec, variant: ArchSpec) -> match.Match:
    """The number of heads stays: left free, it pays for eight layers by a width of 12."""
    free = ("d_model", "head_dim", "num_experts", "width")
    return match.match(arch, variant, context=QUICKSTART.CONTEXT, free=free, multiples={"d_model": 1, "width": 1})


VARIANTS = (variants.baseline, span_2, variants.loop_middle, span_4, span_6, three_passes, four_passes)
VARIANTS += (unscaled, layers_4, layers_8, loop_middle_of_4, loop_middle_of_8)


def recipe(arch: ArchSpec, budget_flops: float) -> tuple[OptimSpec, DataSpec]:
    """The quickstart's, with half its held-out text."""
    optim, data = QUICKSTART.recipe(arch, budget_flops)
    return optim, replace(data, validation_tokens=65_536)


RUNS = grid.isoflop(
    ladder=[BASELINE],
    sizes={BUDGET_FLOPS: (0,)},
    variants=VARIANTS,
    recipe=recipe,
    seeds=(0, 1),
    matcher=matcher,
    held="three_budgets",
    bound=0.04,
    extra_seeds={(BUDGET_FLOPS, 0): (2, 3)},
)
