"""An ArchSpec and a key -> parameters; parameters and tokens -> logits, losses and router statistics.

    init(arch, key)                              -> params
    apply(arch, params, tokens, segments)        -> logits, Aux
    losses(arch, params, tokens, segments)       -> objective, metrics
    token_losses(arch, params, tokens, segments) -> nats of each target

The rooms: `attention`, `routing`, `experts`, `layer` hold the modules, `decoder` the loop over them,
`loss` what is minimised. Nothing here knows of optimizers, data or budgets.
"""

from smelt.model.decoder import Aux, apply, init
from smelt.model.loss import losses, token_losses

__all__ = ["Aux", "apply", "init", "losses", "token_losses"]
