"""Hidden states -> which k experts each token takes, with what weight, and the two router losses.

Softmax (Looped-MoE, Foil: arXiv 2605.09165, 2609.35751; SMELT states no score function: chosen to be this one)

    logits = x W_r                        (float32)
    weights = softmax over the k largest logits, 0 elsewhere   (= top-k of the softmax, renormalised)

Sigmoid, R heads (Multi-Router; R = 1 is the router of DeepSeek-V3)

    s_r = sigmoid(x W_r),  r = 1..R       fused_i = sum_r s_{r,i}, or their max, product, geometric mean
    chosen = top-k of fused + bias        the bias moves the choice alone
    weights_i = fused_i / sum over the chosen of fused          (the factor alpha_i is chosen to be 1)
    ratios_{m,i} = s_{m,i} / sum_r s_{r,i}                       of the views of a chosen expert (Multi-View)

Heads are summed after the sigmoid: summed before, they would be one linear router. The bias is moved by the training
step, not by a gradient: bias_i += rate x sign(mean load - load_i) (DeepSeek-V3).

    load balance = E sum_i f_i pbar_i     f_i = share of the N k choices, pbar_i = mean probability
    z-loss = mean logsumexp(logits)^2

The probability of sigmoid scores is their fused score over its sum, and their z-loss the mean over heads: both chosen.
Equal scores: the lower expert number wins.

Letters: N tokens of a batch, D width, E experts, C the k choices of a token, R heads, M views.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from smelt.model.initialisation import matrix
from smelt.model.matmul import matmul
from smelt.spec import Fusion, Views


class Routing(NamedTuple):
    """What a router hands to the experts and to the loss. A router of one's own returns this too.

    weights_NE are zero off the chosen experts; ids_NC are in the order of the router's preference. ratios_NCM mix the
    views of each chosen expert and sum to 1; None where there are no views.
    """

    weights_NE: Float[Array, "N E"]
    ids_NC: Int[Array, "N C"]
    load_E: Float[Array, "E"]
    load_balance: Float[Array, ""]
    z_loss: Float[Array, ""]
    ratios_NCM: Float[Array, "N C M"] | None = None


class Selection(NamedTuple):
    """What moves the choice of one layer's experts and no gate: added scores, and which experts may be taken at all."""

    bias_E: Float[Array, "E"] | None = None
    allowed_E: Bool[Array, "E"] | None = None


class Router(nn.Module):
    """Token-choice softmax router: best k, renormalised. No bias, no jitter."""

    num_experts: int
    top_k: int

    @nn.compact
    def __call__(self, x_ND: Float[Array, "N D"], selection: Selection = Selection()) -> Routing:  # noqa: B008
        width = x_ND.shape[-1]
        w_DE = self.param("w_DE", matrix(fan_in=width), (width, self.num_experts))
        return route(matmul(x_ND, w_DE), self.top_k, selection.allowed_E)


class SigmoidRouter(nn.Module):
    """R sigmoid heads fused into one choice; with `views`, also the ratios in which each chosen expert reads them."""

    num_experts: int
    top_k: int
    num_heads: int
    fusion: Fusion
    views: Views | None

    @nn.compact
    def __call__(self, x_ND: Float[Array, "N D"], selection: Selection = Selection()) -> Routing:  # noqa: B008
        D, E, R = x_ND.shape[-1], self.num_experts, self.num_heads
        w_RDE = self.param("w_RDE", matrix(fan_in=D), (R, D, E))
        logits_NRE = _heads(x_ND, w_RDE)
        routing = route_sigmoid(logits_NRE, self.top_k, self.fusion, selection)
        if self.views is None:
            return routing
        if self.views.mixing == "learned":
            M = self.views.num_views
            w_mix_MDE = self.param("w_mix_MDE", matrix(fan_in=D), (M, D, E))
            shares_NME = jax.nn.softmax(_heads(x_ND, w_mix_MDE), axis=1)
        else:
            # s_m / sum s by logarithms: a quotient of scores that underflow has no slope.
            shares_NME = jax.nn.softmax(jax.nn.log_sigmoid(logits_NRE), axis=1)
            if self.views.mixing == "routers_detached":
                shares_NME = jax.lax.stop_gradient(shares_NME)
        return routing._replace(ratios_NCM=of_chosen(shares_NME, routing.ids_NC))


def _heads(x_ND: Float[Array, "N D"], w_RDE: Float[Array, "R D E"]) -> Float[Array, "N R E"]:
    """x W_r of every head, as one product."""
    R, D, E = w_RDE.shape
    return matmul(x_ND, w_RDE.swapaxes(0, 1).reshape(D, R * E)).reshape(-1, R, E)


def of_chosen(values_NRE: Float[Array, "N R E"], ids_NC: Int[Array, "N C"]) -> Float[Array, "N C R"]:
    """The values of each choice. A masked sum: the derivative of a gather is a scatter, slow on CPU and unordered on
    GPU."""
    hot_NC1E = (ids_NC[:, :, None] == jnp.arange(values_NRE.shape[-1]))[:, :, None]
    return jnp.where(hot_NC1E, values_NRE[:, None], 0).sum(-1)


def route(logits_NE: Float[Array, "N E"], top_k: int, allowed_E: Bool[Array, "E"] | None = None) -> Routing:
    """Softmax routing of given logits; an expert that is not allowed has probability 0 before the choice."""
    if allowed_E is not None:
        logits_NE = jnp.where(allowed_E, logits_NE, -jnp.inf)
    ids_NC, chosen_NE, load_E = choose(logits_NE, top_k)
    weights_NE = jax.nn.softmax(logits_NE, axis=-1, where=chosen_NE)
    load_balance = load_balance_loss(load_E, jax.nn.softmax(logits_NE, axis=-1))
    z_loss = (jax.nn.logsumexp(logits_NE, axis=-1) ** 2).mean()
    return Routing(weights_NE, ids_NC, load_E, load_balance, z_loss)


def route_sigmoid(
    logits_NRE: Float[Array, "N R E"],
    top_k: int,
    fusion: Fusion,
    selection: Selection = Selection(),  # noqa: B008
) -> Routing:
    """Sigmoid routing of the logits of R heads."""
    log_fused_NE = log_fused(logits_NRE, fusion)
    fused_NE = jnp.exp(log_fused_NE)
    preference_NE = fused_NE if selection.bias_E is None else fused_NE + selection.bias_E
    if selection.allowed_E is not None:
        preference_NE = jnp.where(selection.allowed_E, preference_NE, -jnp.inf)
    ids_NC, chosen_NE, load_E = choose(preference_NE, top_k)
    weights_NE = jax.nn.softmax(log_fused_NE, axis=-1, where=chosen_NE)
    load_balance = load_balance_loss(load_E, jax.nn.softmax(log_fused_NE, axis=-1))
    z_loss = (jax.nn.logsumexp(logits_NRE, axis=-1) ** 2).mean()
    return Routing(weights_NE, ids_NC, load_E, load_balance, z_loss)


def log_fused(logits_NRE: Float[Array, "N R E"], fusion: Fusion) -> Float[Array, "N E"]:
    """The logarithm of the fused sigmoid scores. Scores over their sum are then a softmax, which stays exact where
    scores underflow, as a product of several soon does."""
    logs_NRE = jax.nn.log_sigmoid(logits_NRE)
    match fusion:
        case "sum":
            return jax.nn.logsumexp(logs_NRE, axis=1)
        case "max":
            return logs_NRE.max(1)
        case "product":
            return logs_NRE.sum(1)
        case "geometric_mean":
            return logs_NRE.mean(1)


def choose(
    preference_NE: Float[Array, "N E"], top_k: int
) -> tuple[Int[Array, "N C"], Bool[Array, "N E"], Float[Array, "E"]]:
    """The chosen experts of each token as numbers and as a mask, and each expert's share of all choices."""
    ids_NC = best(preference_NE, top_k)
    chosen_NE = (ids_NC[:, :, None] == jnp.arange(preference_NE.shape[1])).any(1)
    return ids_NC, chosen_NE, chosen_NE.mean(0, dtype=preference_NE.dtype) / top_k


def load_balance_loss(load_E: Float[Array, "E"], probabilities_NE: Float[Array, "N E"]) -> Float[Array, ""]:
    """E sum_i f_i pbar_i: 1 where either is even. No gradient passes the load."""
    return load_E.size * (load_E * probabilities_NE.mean(0)).sum()


def best(preference_NE: Float[Array, "N E"], top_k: int) -> Int[Array, "N C"]:
    """The experts of the top_k largest values, largest first."""
    if top_k > 2:
        return jax.lax.top_k(jax.lax.stop_gradient(preference_NE), top_k)[1]
    # Measured on CPU (8,192 tokens, k=2 of 8): two argmaxes 0.08 ms, lax.top_k 0.9 ms.
    ids = []
    left_NE = jax.lax.stop_gradient(preference_NE)
    for _ in range(top_k):
        ids.append(jnp.argmax(left_NE, axis=-1).astype(jnp.int32))
        left_NE = jnp.where(taken(ids[-1], left_NE.shape[1]), -jnp.inf, left_NE)
    return jnp.stack(ids, axis=-1)


def taken(ids_N: Int[Array, "N"], num_experts: int) -> Bool[Array, "N E"]:
    return ids_N[:, None] == jnp.arange(num_experts)
