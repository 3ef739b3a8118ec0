"""Hidden states -> which k experts each token takes, with what weight, and the two router losses.

    logits = x W_r                        (float32)
    weights = softmax over the k largest logits, 0 elsewhere   (= top-k of the softmax, renormalised)
    load balance = E sum_i f_i pbar_i     f_i = share of the N k choices, pbar_i = mean of the full softmax
    z-loss = mean logsumexp(logits)^2

From Looped-MoE and Foil (arXiv 2605.09165, 2609.35751). SMELT states neither its score function nor its losses: chosen
to be these, for both arms. Equal logits: the lower expert number wins.

Letters: N tokens of a batch, D width, E experts, C the k choices of a token.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from smelt.model.initialisation import matrix
from smelt.model.matmul import matmul


class Routing(NamedTuple):
    """What a router hands to the experts and to the loss. A router of one's own returns this too.

    weights_NE are zero off the chosen experts; ids_NC are in the order of the router's preference.
    """

    weights_NE: Float[Array, "N E"]
    ids_NC: Int[Array, "N C"]
    load_E: Float[Array, "E"]
    load_balance: Float[Array, ""]
    z_loss: Float[Array, ""]


class Router(nn.Module):
    """Token-choice softmax router: best k, renormalised. No bias, no jitter."""

    num_experts: int
    top_k: int

    @nn.compact
    def __call__(self, x_ND: Float[Array, "N D"]) -> Routing:
        width = x_ND.shape[-1]
        w_DE = self.param("w_DE", matrix(fan_in=width), (width, self.num_experts))
        logits_NE = matmul(x_ND, w_DE)
        return route(logits_NE, self.top_k)


def route(logits_NE: Float[Array, "N E"], top_k: int) -> Routing:
    """Softmax routing of given logits."""
    num_experts = logits_NE.shape[1]
    ids_NC = best(logits_NE, top_k)
    chosen_NE = (ids_NC[:, :, None] == jnp.arange(num_experts)).any(1)
    weights_NE = jax.nn.softmax(logits_NE, axis=-1, where=chosen_NE)
    load_E = chosen_NE.mean(0, dtype=logits_NE.dtype) / top_k
    load_balance = num_experts * (load_E * jax.nn.softmax(logits_NE, axis=-1).mean(0)).sum()
    z_loss = (jax.nn.logsumexp(logits_NE, axis=-1) ** 2).mean()
    return Routing(weights_NE, ids_NC, load_E, load_balance, z_loss)


def best(logits_NE: Float[Array, "N E"], top_k: int) -> Int[Array, "N C"]:
    """The experts of the top_k largest logits, largest first."""
    if top_k > 2:
        return jax.lax.top_k(jax.lax.stop_gradient(logits_NE), top_k)[1]
    # Measured on CPU (8,192 tokens, k=2 of 8): two argmaxes 0.08 ms, lax.top_k 0.9 ms.
    ids = []
    left_NE = jax.lax.stop_gradient(logits_NE)
    for _ in range(top_k):
        ids.append(jnp.argmax(left_NE, axis=-1).astype(jnp.int32))
        left_NE = jnp.where(taken(ids[-1], left_NE.shape[1]), -jnp.inf, left_NE)
    return jnp.stack(ids, axis=-1)


def taken(ids_N: Int[Array, "N"], num_experts: int) -> Bool[Array, "N E"]:
    return ids_N[:, None] == jnp.arange(num_experts)
