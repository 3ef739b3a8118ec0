"""fan-in -> initialiser of a weight, one rule a kind of weight.

    matrices          truncated normal (3 sigma), std 1/sqrt(fan_in)
    embedding         std 1: the residual stream starts at rms 1, the size of what a layer writes
    head              std 1/d_model: logits start with variance 1/d_model, so the first loss is ln V
    tied embedding    std 1/d_model, and looked-up rows are multiplied by d_model
    gains             1

Output matrices are not scaled down by depth: the loop has its own residual_scale, and a second scale by depth
would tell a looped from an unlooped model of the same executed depth.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

TRUNCATION = 3.0
# The std of a standard normal cut at 3 sigma; dividing by it makes the drawn std the one that is named.
TRUNCATED_STD = 0.98658
Initialiser = Callable[..., jax.Array]


def matrix(*, fan_in: int) -> Initialiser:
    """Truncated normal of std 1/sqrt(fan_in)."""
    return truncated_normal(fan_in**-0.5)


def truncated_normal(std: float) -> Initialiser:
    def draw(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        unit = jax.random.truncated_normal(key, -TRUNCATION, TRUNCATION, shape, dtype)
        return unit * (std / TRUNCATED_STD)

    return draw
