"""OptimSpec and the number of steps -> the learning rate of a step, on the host.

    warm-up   peak x (s + 1) / W                                     for s < W
    wsd       peak; over the last D steps                            peak x (1 - (1 - f) sqrt(x)),  x from 0 to 1
    cosine    after the warm-up                                      peak x (f + (1 - f) (1 + cos(pi x)) / 2)

with f = final_frac; W and D, the steps of the warm-up and of the decay, are as stated or ceil(share x steps of the
run). The 1 - sqrt form of wsd is that of Foil's released trainer.
"""

import math

from smelt.spec import OptimSpec


def learning_rate(optim: OptimSpec, num_steps: int, step: int) -> float:
    """Rate of step 0 <= step < num_steps.

    >>> from smelt.spec import OptimSpec
    >>> optim = OptimSpec(peak_lr=0.01, schedule="wsd", warmup_frac=0.1, decay_frac=0.2, final_frac=0.0, beta1=0.9,
    ...     beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0)
    >>> [round(learning_rate(optim, 100, step), 4) for step in (0, 9, 50, 79, 99)]
    [0.001, 0.01, 0.01, 0.01, 0.0]
    """
    warmup_steps = optim.num_warmup_steps(num_steps)
    if step < warmup_steps:
        return optim.peak_lr * (step + 1) / warmup_steps
    if optim.schedule == "cosine":
        progress = (step + 1 - warmup_steps) / max(1, num_steps - warmup_steps)
        falling = (1 + math.cos(math.pi * progress)) / 2
    else:
        decay_steps = optim.num_decay_steps(num_steps)
        into_decay = step + 1 - (num_steps - decay_steps)
        falling = 1.0 if into_decay <= 0 else 1 - math.sqrt(into_decay / decay_steps)
    return optim.peak_lr * (optim.final_frac + (1 - optim.final_frac) * falling)


def view_ramp(optim: OptimSpec, num_steps: int, step: int) -> float:
    """gamma, by which the further views of a Multi-View model are added: 0 at step 0, 1 from the end of the warm-up on
    (the paper says that it rises early in training: the length and the straight line are chosen). Without a warm-up it
    is 1 throughout."""
    warmup_steps = optim.num_warmup_steps(num_steps)
    return 1.0 if step >= warmup_steps else step / warmup_steps
