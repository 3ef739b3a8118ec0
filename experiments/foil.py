"""Do flattened experts and untied attention lower a looped MoE's loss, at equal stored and computed experts and depth?

Question    Foil (arXiv 2609.35751) flattens the loop block, (E, D, P) -> (2E, D/2, 2P), so that a token may choose from
            twice the experts at equal stored experts, computed experts and executed depth, and gives every (layer,
            pass) attention of its own. Here are its eight models in its own (E, D, P), 64 times narrower.
Prediction  Untying pays: over the four shapes the mean loss of the untied models is below that of their tied partners
            by more than two standard errors, and the gain is largest at (64, 1, 16), where one attention set would
            serve sixteen visits. The last flattening of tied attention costs, as in the paper (proto_foil_1 above
            proto_foil_2). Flattening untied attention is within two seed spreads of nothing: the paper's gain is
            0.007 nats, less than half of what a seed moves here. Written before the first run.
Varies      {(8, 8, 2), (16, 4, 4), (32, 2, 8), (64, 1, 16)} x {attention a pass, shared} x three seeds.
Held equal  E_real, E_comp and executed depth, exactly, and tokens. Untied models store more attention, and a router
            over E experts costs FLOPs: 10 % more at E = 64 than at 8, where the paper's width makes it less than 1 %.
Fixed       corpus `builtin` (bytes), context 128 with attention confined to a document, 512 tokens a step, 400 steps,
            one prelude and one coda layer of 8 experts, width 16, AdamW, WSD, one rate for all.
Found       Untying pays as predicted: -0.022 nats over twelve pairs, 2.5 standard errors or 1.0 seed spreads (0.022, 16
            degrees of freedom). It does not pay most at (64, 1, 16): -0.021 there (0.7 s.e.), -0.039 at (16, 4, 4)
            (2.3 s.e.). Tied flattening costs 0.024 at its first step (3.2 s.e., 1.1 seed spreads), 0.001 at the second
            and 0.024 at the last (0.9 s.e.: the predicted sign, not resolved). Untied flattening stays within two seed
            spreads of Base, as predicted, but not on the paper's side: foil_3 -0.005 (0.3 s.e.), foil_2 +0.018
            (1.0 s.e.), foil_1 +0.039 (4.0 s.e., 1.8 seed spreads). 400 steps show few experts to each of 64.
            fits/foil.csv; 9.7 CPU-minutes.
"""

from dataclasses import replace

from smelt import experiment, grid, papers
from smelt.spec import FFN, ArchSpec, Attention, DataSpec, OptimSpec

QUICKSTART = experiment.module("quickstart")
CONTEXT = QUICKSTART.CONTEXT
NUM_STEPS = 400
EXPERTS = FFN(width=24, num_experts=8, top_k=2)  # 1.5 times the width, as Foil's are


def toy(num_experts: int, num_layers: int, num_passes: int, *, untied: bool) -> ArchSpec:
    """The paper's model with bytes for tokens and all widths over 64: two heads of 8, experts of 24."""
    return replace(
        papers.foil(num_experts, num_layers, num_passes, untied=untied),
        vocab_size=256,
        d_model=16,
        attention=Attention(num_heads=2, num_kv_heads=2, head_dim=8, scale="1/d_k"),
        ffn=replace(EXPERTS, num_experts=num_experts),
        outer_ffn=EXPERTS,
    )


def recipe(arch: ArchSpec, num_tokens: float) -> tuple[OptimSpec, DataSpec]:
    """The quickstart's recipe at one rate, lower than its rule gives at this width: 18 unscaled visits are deep."""
    optim, data = QUICKSTART.recipe(arch, 0.0)
    return replace(optim, peak_lr=0.01), replace(data, validation_tokens=65_536)


RUNS = grid.horizons(
    ladders={
        "base": [toy(8, 8, 2, untied=True)],
        "foil_3": [toy(16, 4, 4, untied=True)],
        "foil_2": [toy(32, 2, 8, untied=True)],
        "foil_1": [toy(64, 1, 16, untied=True)],
        "base_tied": [toy(8, 8, 2, untied=False)],
        "proto_foil_3": [toy(16, 4, 4, untied=False)],
        "proto_foil_2": [toy(32, 2, 8, untied=False)],
        "proto_foil_1": [toy(64, 1, 16, untied=False)],
    },
    num_tokens=[NUM_STEPS * 4 * CONTEXT],
    recipe=recipe,
    seeds=(0, 1, 2),
    held="expert_budget",
    bound=0.0,
    convention="foil",
)
