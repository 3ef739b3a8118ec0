"""An ArchSpec and a key -> parameters; parameters and tokens -> logits, losses and router statistics.

    init(arch, key)                              -> params
    apply(arch, params, tokens, segments)        -> logits, Aux
    losses(arch, params, tokens, segments)       -> objective, metrics
    token_losses(arch, params, tokens, segments) -> nats of each target
    rate_shares(arch, params)                    -> the share of the learning rate of each leaf

The rooms: `attention`, `routing`, `experts`, `layer` hold the modules, `decoder` the loop over them,
`loss` what is minimised, `initialisation` how weights begin and how fast each kind learns. Nothing here knows of
optimizers, data or budgets. What a part of the user's own needs is named here too.
"""

from smelt.model.attention import Context, attend, rope
from smelt.model.decoder import Aux, apply, biased_segments, init
from smelt.model.initialisation import constant, is_gain, matrix, normal, rate_shares
from smelt.model.layer import RMSNorm, RouterStats
from smelt.model.loss import losses, token_losses
from smelt.model.matmul import matmul
from smelt.model.routing import Routing, Selection, best, choose, load_balance_loss, route

__all__ = [
    "Aux",
    "Context",
    "RMSNorm",
    "RouterStats",
    "Routing",
    "Selection",
    "apply",
    "attend",
    "best",
    "biased_segments",
    "choose",
    "constant",
    "init",
    "is_gain",
    "load_balance_loss",
    "losses",
    "matmul",
    "matrix",
    "normal",
    "rate_shares",
    "rope",
    "route",
    "token_losses",
]
