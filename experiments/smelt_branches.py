"""Does one constant-rate trunk a size, left at four steps to decay, tell of the middle loop what whole runs tell?

Question    SMELT trains one run at a constant rate and forks six decays from it (arXiv 2609.01343). At byte level, with
            four decays from each of ten trunks an arm: what does loop_middle save, and is that the quickstart's answer,
            where every token count was a run of its own?
Prediction  It is: loop_middle needs more compute, the saving at the largest budget lies between -80 and -15 % and its
            interval excludes 0; at least 34 of 40 pairs favour the baseline, by 0.03 to 0.09 nats on average. Rows of
            a trunk share their luck, so that the interval comes out wider than the quickstart's (54 points) although
            twice as many rows are fitted. The gap in loss shrinks with the horizon, for the deeper model catches up.
            Written before the first run of this grid (a draft of five sizes and two seeds was stopped after eight
            runs, whose losses in progress alone were seen: what is drawn as one is a size, so that ten tell more).
Varies      size (ten) x the step at which the trunk is left (150, 300, 600, 1000) x {baseline, loop_middle}.
Held equal  FLOPs per token (smelt's model FLOPs, head included), non-embedding parameters, KV cache, within 1 %.
Fixed       corpus `builtin` (bytes), context 128 with attention confined to a document, 512 tokens a step, the
            quickstart's AdamW and rate rule, 40 steps of warm-up, 120 of decay as 1 - sqrt to 5 % of the peak (SMELT
            decays by a cosine over 10 B tokens, 5 to 49 % of a run; here it is 11 to 44 %).
Found       Pair by pair it is the quickstart's answer: 40 of 40 favour the baseline, by 0.059 nats [0.046, 0.071] over
            trunks (quickstart: 0.060 [0.046, 0.074]). The saving is not: 2 % [-54, 61] at 1.67e11 FLOPs, unresolved.
            Runs of 270 to 1,120 steps are too short for the law (losses lie below it at both ends of compute, and the
            exponent of tokens comes out as 0.48 in one arm and 0.11 in the other), so that longer trunks would be
            needed, not more of them. The gap is 0.034, 0.075, 0.068 and 0.057 nats at the four horizons: it shrinks
            from the second on. Trunks shared, 29,600 steps were trained instead of 50,600. fits/smelt_branches.csv;
            12 minutes on two cores that others used too.
"""

from dataclasses import replace

from smelt import experiment, grid, variants
from smelt.spec import FFN, ArchSpec, Attention, DataSpec, OptimSpec

QUICKSTART = experiment.module("quickstart")
# d_model -> query heads, expert width: the quickstart's sizes and those between them, all with heads of 12.
SHAPES = {
    8: (1, 11),
    10: (1, 13),
    12: (1, 16),
    14: (1, 19),
    16: (2, 20),
    18: (2, 23),
    20: (2, 26),
    22: (2, 29),
    24: (2, 32),
    26: (2, 34),
}


def baseline(d_model: int) -> ArchSpec:
    num_heads, width = SHAPES[d_model]
    return replace(
        QUICKSTART.baseline(16),
        d_model=d_model,
        attention=Attention(num_heads=num_heads, num_kv_heads=1, head_dim=12, scale="1/sqrt(d_k)"),
        ffn=FFN(width=width, num_experts=8, top_k=2),
    )


def recipe(arch: ArchSpec) -> tuple[OptimSpec, DataSpec]:
    """The quickstart's for every budget, but for a warm-up and a decay in whole steps, which are the same for every
    horizon, and a validation slice of half the size: there are twice as many runs."""
    optim, data = QUICKSTART.recipe(arch, 0.0)
    in_steps = replace(optim, warmup_frac=0.0, warmup_steps=40, decay_frac=0.0, decay_steps=120)
    return in_steps, replace(data, validation_tokens=65_536)


RUNS = grid.branches(
    ladder=[baseline(d_model) for d_model in SHAPES],
    variants=(variants.baseline, variants.loop_middle),
    recipe=recipe,
    fork_steps=(150, 300, 600, 1000),
    seeds=(0,),
    matcher=QUICKSTART.matcher,
    held="three_budgets",
    bound=0.01,
)
