"""Does muP hold the best learning rate still from width 16 to width 128, where the standard parametrisation moves it?

Question    Looped-MoE (arXiv 2605.09165) divides initial variance and rate of every matrix but the embedding by the
            ratio of the width to a base width, router, experts and head included, and reports one optimum over an
            eightfold range of widths at four executed layers. Its Looped-MoE is trained here at rates two apart.
Prediction  Under muP the optimum, by a parabola in log2 of the rate, moves by less than one octave from width 16 to
            128. In the standard parametrisation, where every tensor of every width gets the same rate, it falls by one
            to three octaves: the whole way of muP's ratio (three) if matrices alone decided, less since embeddings
            want their rate kept. At its own best rate no arm is better by more than two seed spreads at width 16,
            where both are the same model. Written before the first run.
Varies      width (16, 32, 64, 128) x peak rate (2^-9 to 2^-4, factors of 2) x {muP with base width 16, standard}; two
            seeds at widths 16 and 32, one above. 2^-3 was added up to width 64, where the first rates ended at or
            beside the optimum.
Held equal  Tokens and steps within a width and across widths; nothing else.
Fixed       Looped-MoE with two layers passed twice, 8 experts top-2, heads 8 wide, attention over d_k, in both arms;
            corpus `builtin` (bytes), context 128, 512 tokens a step, 200 steps, AdamW, WSD.
Found       As predicted, and clearer. By parabolas through the five rates around each best one, the optimum under muP
            is 2^-5.06, -5.06, -5.07 and -5.12 at widths 16, 32, 64 and 128: it moves by 0.06 octaves, 95 % intervals
            reaching 0.3 to 0.5 either way (at 128, with one rate above the optimum, [-5.6, -2.7]). In the standard
            parametrisation it falls from -5.06 [-5.4, -4.8] over -5.93 [-6.3, -5.4] and -7.14 [-7.5, -6.8] to -7.67
            [-9.2, -7.3], by 2.6 octaves of the ratio's 3. At width 16 both arms are one model and their losses are
            equal to the last bit. At 2^-5, best at 16 to within 0.04 nats, the standard model of 128 is 0.20 nats worse
            than muP's: 5 seed spreads (0.037 over all rates, 28 degrees of freedom). Each at its best rate, muP leads
            by 0.017, -0.002 and 0.028 nats at 32, 64 and 128: less than one spread. fits/mup_rates.csv; 6.7
            CPU-minutes.
"""

from collections.abc import Callable
from dataclasses import replace

from smelt import experiment, grid, variants
from smelt.spec import ArchSpec, DataSpec, OptimSpec, RunSpec

QUICKSTART = experiment.module("quickstart")
LOOPED_MOE = experiment.module("looped_moe")
BASE_WIDTH = 16
WIDTHS = (16, 32, 64, 128)
NUM_STEPS = 200
RATES = {f"2^{power}": 2.0**power for power in range(-9, -3)}


def standard(d_model: int) -> ArchSpec:
    """Two layers passed twice, for four executed ones as in the paper's check of muP; heads are 8 wide."""
    return variants.loop_all(LOOPED_MOE.layers_of_experts(d_model, num_layers=4, head_dim=8))


def recipe(arch: ArchSpec, num_tokens: float) -> tuple[OptimSpec, DataSpec]:
    """The quickstart's recipe but for the rate, which the sweep sets; decay is 0.1 times each tensor's rate."""
    optim, data = QUICKSTART.recipe(arch, 0.0)
    return replace(optim, peak_lr=2.0**-6), replace(data, validation_tokens=16_384)


def at_rate(rate: float) -> Callable[[RunSpec], RunSpec]:
    def change(run: RunSpec) -> RunSpec:
        return replace(run, optim=replace(run.optim, peak_lr=rate))

    return change


def pairs(widths: tuple[int, ...], seeds: tuple[int, ...]) -> grid.Grid:
    return grid.horizons(
        ladders={
            "muP": [variants.mup(standard(width), base_width=BASE_WIDTH) for width in widths],
            "standard": [standard(width) for width in widths],
        },
        num_tokens=[NUM_STEPS * 4 * 128],
        recipe=recipe,
        seeds=seeds,
        held="none",
        bound=0.0,
    )


BASE = pairs(WIDTHS, (0,))
BASE = replace(BASE, cells=(*BASE.cells, *pairs(WIDTHS[:2], (1,)).cells))
RUNS = grid.sweep(BASE, {label: at_rate(rate) for label, rate in RATES.items()})
HIGHER = grid.sweep(grid.only(BASE, sizes=(0, 1, 2)), {"2^-3": at_rate(2.0**-3)})
RUNS = replace(RUNS, cells=(*RUNS.cells, *HIGHER.cells))
