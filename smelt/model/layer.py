"""Hidden states -> hidden states: one pre-norm layer, attention then experts, each added to the residual stream.

    x = x + s Attention(norm(x));   x = x + s Experts(norm(x))        s = residual_scale

so the experts see the attention write already scaled (SMELT, arXiv 2609.01343). Norms are RMSNorm, eps 1e-5.

Why Linen. A layer is a Flax module so that a user's own attention, router or experts is one too, and can name its
own parameters. Linen rather than NNX: a Linen module is a pure function of a plain parameter tree, so stacked
layers go through `jax.vmap` and `jax.lax.scan` as they are, the tree is what checkpoints hold, and `sow` gives
probes a capture that costs nothing when it is off. NNX's own transforms cost 20 to 39 ms of Python a step for 24
small blocks (measured on flax 0.12.8 and 0.12.12), which is more than a step of the smallest models here.

Letters: B batch, T position, D width, N = B T tokens, E experts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from smelt.model.attention import Context
from smelt.model.initialisation import constant
from smelt.model.routing import Selection

NORM_EPS = 1e-5  # from Looped-MoE and Foil (arXiv 2605.09165, 2609.35751); SMELT does not say


class RMSNorm(nn.Module):
    gain: bool

    @nn.compact
    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        mean_square = jnp.mean(jnp.square(x_BTD), axis=-1, keepdims=True)
        normed_BTD = x_BTD * jax.lax.rsqrt(mean_square + NORM_EPS)
        if self.gain:
            normed_BTD *= self.param("gain_D", constant(1.0), (x_BTD.shape[-1],))
        return normed_BTD


class RouterStats(NamedTuple):
    """What one visit tells of its router: loads are shares of the choices, summing to 1."""

    load_balance: Float[Array, ""]
    z_loss: Float[Array, ""]
    load_E: Float[Array, "E"]


class Layer(nn.Module):
    """Attention and experts around the residual stream; `router` is None where there is one dense expert.

    A router is called with a `Selection` only where there is one: a bias, or experts that may not be taken."""

    attention: nn.Module
    router: nn.Module | None
    experts: nn.Module
    norm_gain: bool

    @nn.compact
    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        context: Context,
        residual_scale: float,
        selection: Selection | None = None,
    ) -> tuple[Float[Array, "B T D"], RouterStats | None]:
        write_BTD = self.attention(RMSNorm(self.norm_gain, name="attention_norm")(x_BTD), context)
        x_BTD = x_BTD + residual_scale * write_BTD
        normed_ND = RMSNorm(self.norm_gain, name="ffn_norm")(x_BTD).reshape(-1, x_BTD.shape[-1])
        routing = None
        if self.router is not None:
            routing = self.router(normed_ND) if selection is None else self.router(normed_ND, selection)
        write_ND = self.experts(normed_ND, routing, context)
        x_BTD = x_BTD + residual_scale * write_ND.reshape(x_BTD.shape)
        stats = None if routing is None else RouterStats(routing.load_balance, routing.z_loss, routing.load_E)
        return x_BTD, stats
