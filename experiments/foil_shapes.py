"""What lowers a tied looped MoE's loss most: twice the experts (E), another pass (P) or more layers (D)?

Question    Foil's ablations train shapes (E, D, P) separately: widening against looping, the gain of each added pass,
            and what passes give against stored layers. They move what the other experiment holds: E_real, E_comp,
            FLOPs and parameters, all named in the table of differences.
Prediction  Widening (8, 4, 2) -> (16, 4, 2) lowers the loss, at 2 passes and at 4 alike, by less than one seed spread:
            more experts at equal compute learn slowly and 400 steps are few. Two passes beat one by more than two
            standard errors; the gain per pass from 2 to 4 is smaller than that from 1 to 2, as the paper reports.
            Eight stored layers beat four passed twice. Written before the first run.
Varies      (E, D, P): (8, 4, 1), (8, 4, 2), (8, 4, 4), (16, 4, 2), (16, 4, 4), (8, 8, 1) x three seeds, attention
            shared by passes as in the paper's ablations.
Held equal  Tokens, and nothing else: every quantity that moves is reported.
Fixed       what experiments/foil.py fixes.
Found       Looping does not pay here at all, against the prediction: the second pass costs 0.048 nats (3.7 standard
            errors, 2.4 seed spreads of 0.020, 12 degrees of freedom), the third and fourth 0.014 more (1.7 s.e. over
            six pairs). Widening gains 0.013 (1.1 s.e. over six pairs), below one seed spread as predicted, alike at
            2 and 4 passes. Eight stored layers beat four passed twice by 0.039 (2.2 s.e., 2.0 seed spreads), as
            predicted, but no more than tie with four passed once. All shapes share one rate, and an update moves a
            layer that is passed P times P times: a lower rate for more passes was not tried. fits/foil_shapes.csv;
            3.9 CPU-minutes.
"""

from smelt import experiment, grid

FOIL = experiment.module("foil")

RUNS = grid.horizons(
    ladders={
        f"E{num_experts} D{num_layers} P{num_passes}": [FOIL.toy(num_experts, num_layers, num_passes, untied=False)]
        for num_experts, num_layers, num_passes in (
            (8, 4, 2),
            (8, 4, 1),
            (8, 4, 4),
            (16, 4, 2),
            (16, 4, 4),
            (8, 8, 1),
        )
    },
    num_tokens=[FOIL.NUM_STEPS * 4 * FOIL.CONTEXT],
    recipe=FOIL.recipe,
    seeds=(0, 1, 2),
    held="none",
    bound=0.0,
    convention="foil",
)
