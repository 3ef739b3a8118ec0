"""Parameters and token windows -> the objective that training minimises, and the nats of each target.

    objective = mean cross-entropy + load_balance_coef * load balance + z_loss_coef * z-loss

Natural logarithms, float32. Every position of a window has a target, the next token; all targets count equally, those
that cross a document boundary and the separator among them.

Letters: B batch, T position, U = T + 1 tokens of a window, V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from smelt.model.decoder import Params, apply
from smelt.spec import ArchSpec


def cross_entropy(logits_BTV: Float[Array, "B T V"], targets_BT: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Nats of each target."""
    target_logits_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BTV, axis=-1) - target_logits_BT


def losses(
    arch: ArchSpec,
    params: Params,
    tokens_BU: Int[Array, "B U"],
    segments_BU: Int[Array, "B U"],
    **how: Any,
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """The objective of windows of T + 1 tokens, and what to log of it; `how` is what `apply` takes by name.

    Metrics: loss_nats (mean cross-entropy), load_balance (1 is even), z_loss, max_load (the busiest expert of any
    visit, as a multiple of an even share; absent without a router). `loads` are not for the log: the shares of each
    segment's visits, from which selection biases are moved.
    """
    logits_BTV, aux = apply(arch, params, tokens_BU[:, :-1], segments_BU[:, :-1], **how)
    loss_nats = cross_entropy(logits_BTV, tokens_BU[:, 1:]).mean()
    metrics = {"loss_nats": loss_nats, "load_balance": aux.load_balance, "z_loss": aux.z_loss}
    if aux.loads:
        busiest = [load.max() * load.shape[-1] for load in aux.loads.values()]
        metrics["max_load"] = jnp.stack(busiest).max()
        metrics["loads"] = aux.loads
    router = arch.router
    objective = loss_nats + router.load_balance_coef * aux.load_balance + router.z_loss_coef * aux.z_loss
    return objective, metrics


def token_losses(
    arch: ArchSpec,
    params: Params,
    tokens_BU: Int[Array, "B U"],
    segments_BU: Int[Array, "B U"],
    **how: Any,
) -> Float[Array, "B T"]:
    """Nats of each target of windows of T + 1 tokens, for evaluation; `how` is what `apply` takes by name."""
    logits_BTV, _ = apply(arch, params, tokens_BU[:, :-1], segments_BU[:, :-1], **how)
    return cross_entropy(logits_BTV, tokens_BU[:, 1:])
