"""Rows and a weight matrix -> their product, with a weight gradient whose narrower operand comes first.

The gradient of y = x w by w contracts over all N rows. XLA on CPU copies the first operand of such a product into
transposed order, and fuses whatever made it (a whole SwiGLU backward) into that strided copy. With the narrow
operand first the copy is small. Measured on one Zen 5 core, N = 1,024 rows, 8 experts of width 24 on a
model of width 24: all experts, forward and backward, 3.2 ms as XLA differentiates it, 0.87 ms through here.

Letters: N rows, I inputs, O outputs.
"""

import jax
from jaxtyping import Array, Float


@jax.custom_vjp
def matmul(x_NI: Float[Array, "N I"], w_IO: Float[Array, "I O"]) -> Float[Array, "N O"]:
    return x_NI @ w_IO


def _forward(x_NI: Array, w_IO: Array) -> tuple[Array, tuple[Array, Array]]:
    return x_NI @ w_IO, (x_NI, w_IO)


def _backward(saved: tuple[Array, Array], dy_NO: Array) -> tuple[Array, Array]:
    x_NI, w_IO = saved
    over_rows = (((0,), (0,)), ((), ()))
    if x_NI.shape[1] <= dy_NO.shape[1]:
        dw_IO = jax.lax.dot_general(x_NI, dy_NO, over_rows)
    else:
        dw_IO = jax.lax.dot_general(dy_NO, x_NI, over_rows).T
    return dy_NO @ w_IO.T, dw_IO


matmul.defvjp(_forward, _backward)
