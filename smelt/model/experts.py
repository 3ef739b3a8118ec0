"""Hidden states and a routing -> the weighted sum of what the chosen SwiGLU experts say; no token is ever lost.

    y = sum_i weight_i * W_down,i (silu(W_gate,i x) * W_up,i x)

With a latent (LatentMoE, arXiv 2601.18089) the experts read a projection of x and write into its width; with views
(Multi-View) each chosen expert reads its own mixture of several projections, made before anything is dispatched:

    z_i = W_in x + gamma sum_{m>=2} ratio_{m,i} W_view,m x        (view m = W_in x + gamma W_view,m x, ratios sum to 1)
    y = W_out sum_i weight_i FFN_i(z_i)  [+ FFN_shared(x)]

The shared expert reads the whole width and is added unweighted. Computation is `grouped.expert_rows` behind
`parallel.dispatch`, which brings rows to the devices of their experts; `all_experts` computes every expert and weighs
the unchosen by zero. Both are dropless.

Letters: N tokens of a batch, D width, L width of the latent, E experts, F expert width, H = E F hidden units, C choices
of a token (k), M views after the first.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from smelt import parallel
from smelt.errors import BadInput
from smelt.model.attention import Context
from smelt.model.grouped import expert_rows, expert_sums
from smelt.model.initialisation import matrix
from smelt.model.matmul import matmul
from smelt.model.routing import Routing


class Experts(nn.Module):
    """E SwiGLU experts of width F; without a routing there must be one expert, a dense FFN."""

    num_experts: int
    width: int
    shared_width: int | None = None
    latent_width: int | None = None
    num_views: int = 1

    @nn.compact
    def __call__(self, x_ND: Float[Array, "N D"], routing: Routing | None, context: Context) -> Float[Array, "N D"]:
        D, E, F = x_ND.shape[-1], self.num_experts, self.width
        inner = self.latent_width or D
        weights = (
            self.param("w_gate_EDF", matrix(fan_in=inner), (E, inner, F)),
            self.param("w_up_EDF", matrix(fan_in=inner), (E, inner, F)),
            self.param("w_down_EFD", matrix(fan_in=F), (E, F, inner)),
        )
        rows_ND = x_ND
        if self.latent_width:
            rows_ND = matmul(x_ND, self.param("w_in_DL", matrix(fan_in=D), (D, inner)))
        if routing is None:
            y_ND = dense_ffn(rows_ND, *(w_EIO[0] for w_EIO in weights))
        else:
            ids_NC, weights_NC = routing.ids_NC, weights_of_chosen(routing)
            if self.num_views > 1:
                w_views_MDL = self.param("w_views_MDL", matrix(fan_in=D), (self.num_views - 1, D, inner))
                rows_ND = mixed_views(x_ND, rows_ND, w_views_MDL, routing, context.gamma).reshape(-1, inner)
                ids_NC, weights_NC = ids_NC.reshape(-1, 1), weights_NC.reshape(-1, 1)
            if context.mesh is None:
                y_ND = expert_sums(rows_ND, ids_NC, weights_NC, *weights)
            else:
                y_NCD = parallel.dispatch(context.mesh, expert_rows, rows_ND, ids_NC, weights)
                y_ND = (weights_NC[:, :, None] * y_NCD).sum(1)
            if self.num_views > 1:
                y_ND = y_ND.reshape(*routing.ids_NC.shape, inner).sum(1)
        if self.latent_width:
            y_ND = matmul(y_ND, self.param("w_out_LD", matrix(fan_in=inner), (inner, D)))
        if self.shared_width:
            shared = (
                self.param("w_shared_gate_DF", matrix(fan_in=D), (D, self.shared_width)),
                self.param("w_shared_up_DF", matrix(fan_in=D), (D, self.shared_width)),
                self.param("w_shared_down_FD", matrix(fan_in=self.shared_width), (self.shared_width, D)),
            )
            y_ND += dense_ffn(x_ND, *shared)
        return y_ND


def mixed_views(
    x_ND: Float[Array, "N D"],
    first_NL: Float[Array, "N L"],
    w_views_MDL: Float[Array, "M D L"],
    routing: Routing,
    gamma: Float[Array, ""] | float,
) -> Float[Array, "N C L"]:
    """What each chosen expert reads. Written as the first view plus gamma times the others' share, so that gamma = 0
    gives the first view to the last bit."""
    if routing.ratios_NCM is None:
        raise BadInput("views want a routing with ratios_NCM, and this router gives none: let its Routing have them")
    M, D, L = w_views_MDL.shape
    further_NML = matmul(x_ND, w_views_MDL.swapaxes(0, 1).reshape(D, M * L)).reshape(-1, M, L)
    share_NCL = jnp.einsum("NCM,NML->NCL", routing.ratios_NCM[:, :, 1:], further_NML)
    return first_NL[:, None] + gamma * share_NCL


def weights_of_chosen(routing: Routing) -> Float[Array, "N C"]:
    """The weight of each choice."""
    chosen_NCE = routing.ids_NC[:, :, None] == jnp.arange(routing.weights_NE.shape[1])
    return jnp.where(chosen_NCE, routing.weights_NE[:, None, :], 0).sum(-1)


def dense_ffn(
    x_ND: Float[Array, "N D"],
    w_gate_DF: Float[Array, "D F"],
    w_up_DF: Float[Array, "D F"],
    w_down_FD: Float[Array, "F D"],
) -> Float[Array, "N D"]:
    hidden_NF = jax.nn.silu(matmul(x_ND, w_gate_DF)) * matmul(x_ND, w_up_DF)
    return matmul(hidden_NF, w_down_FD)


def all_experts(
    x_ND: Float[Array, "N D"],
    routing: Routing,
    w_gate_EDF: Float[Array, "E D F"],
    w_up_EDF: Float[Array, "E D F"],
    w_down_EFD: Float[Array, "E F D"],
) -> Float[Array, "N D"]:
    """Every expert on every token, as one FFN of width E F whose hidden units carry their expert's weight."""
    (N, D), (E, _, F) = x_ND.shape, w_gate_EDF.shape
    gate_NH = matmul(x_ND, w_gate_EDF.swapaxes(0, 1).reshape(D, E * F))
    up_NH = matmul(x_ND, w_up_EDF.swapaxes(0, 1).reshape(D, E * F))
    hidden_NEF = (jax.nn.silu(gate_NH) * up_NH).reshape(N, E, F) * routing.weights_NE[:, :, None]
    return matmul(hidden_NEF.reshape(N, E * F), w_down_EFD.reshape(E * F, D))
