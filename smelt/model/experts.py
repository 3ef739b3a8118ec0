"""Hidden states and a routing -> the weighted sum of what the chosen SwiGLU experts say; no token is ever lost.

    y = sum_i weight_i * W_down,i (silu(W_gate,i x) * W_up,i x)

Dispatch strategies are pure functions of one signature: `all_experts` computes every expert and weighs the
unchosen by zero; `blocks` sorts tokens by expert into blocks of one expert each. Both are dropless.

Letters: N tokens of a batch, D width, E experts, F expert width, H = E F hidden units, C choices of a token (k), M rows
of the sorted and padded buffer, J blocks, L rows of a block (M = J L).
"""

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from smelt.model.initialisation import matrix
from smelt.model.matmul import matmul
from smelt.model.routing import Routing


class Experts(nn.Module):
    """E SwiGLU experts of width F; without a routing there must be one expert, a dense FFN."""

    num_experts: int
    width: int

    @nn.compact
    def __call__(self, x_ND: Float[Array, "N D"], routing: Routing | None) -> Float[Array, "N D"]:
        D, E, F = x_ND.shape[-1], self.num_experts, self.width
        w_gate_EDF = self.param("w_gate_EDF", matrix(fan_in=D), (E, D, F))
        w_up_EDF = self.param("w_up_EDF", matrix(fan_in=D), (E, D, F))
        w_down_EFD = self.param("w_down_EFD", matrix(fan_in=F), (E, F, D))
        if routing is None:
            return dense_ffn(x_ND, w_gate_EDF[0], w_up_EDF[0], w_down_EFD[0])
        return all_experts(x_ND, routing, w_gate_EDF, w_up_EDF, w_down_EFD)


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
