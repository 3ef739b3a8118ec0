"""One training step: what muP, the rate and the selection biases do to each leaf."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from smelt import variants
from smelt.spec import DataSpec
from smelt.train import step
from tests.conftest import OPTIM, architecture

DATA = DataSpec(corpus="none", seq_len=8, batch_seqs=2, confine_attention=True, validation_tokens=8)
TOKENS = np.random.default_rng(0).integers(0, 256, (2, 9), np.int32)
ARCH = variants.sigmoid_router(architecture(8, num_layers=1), bias_rate=0.01)


def moved(arch, optim=OPTIM, rate: float = 0.1):
    """(weights, weights after one step) from the same beginning."""
    state = step.init_state(ARCH, optim, 0)
    before = jax.tree.map(np.asarray, state.params)
    program = step.compile_step(arch, optim, DATA)
    after, _ = program(state, TOKENS, TOKENS * 0, np.float32(rate), np.float32(1.0))
    return before, jax.tree.map(np.asarray, after.params)


def test_under_mup_matrices_move_at_their_share_of_the_rate_and_the_rest_at_all_of_it():
    whole, half = (dataclasses.replace(ARCH, mup_base_width=width) for width in (8, 4))
    before, after_whole = moved(whole)
    _, after_half = moved(half)
    steps = [jax.tree.map(lambda a, b: a - b, after, before) for after in (after_whole, after_half)]
    for path, one in jax.tree_util.tree_leaves_with_path(steps[0]):
        other = steps[1]
        for key in path:
            other = other[key.key]
        names = [key.key for key in path]
        share = 1.0 if names[0] in ("embedding", "balance") or names[-1] == "gain_D" else 0.5
        assert jnp.abs(one).max() > 0, names
        np.testing.assert_allclose(other, share * one, rtol=2e-3, atol=2e-7, err_msg=str(names))


def test_the_first_step_of_adam_moves_a_weight_by_the_rate_against_its_gradient():
    """m / sqrt(v) is the sign of the gradient at first, and decay adds weight_decay x the weight."""
    optim = dataclasses.replace(OPTIM, eps=1e-12)
    before, after = moved(ARCH, optim, rate=1e-3)
    head = before["head"]["w_DV"]
    u = (head - after["head"]["w_DV"]) / 1e-3 - optim.weight_decay * head
    np.testing.assert_allclose(np.abs(u), 1.0, atol=2e-3)


def test_biases_move_by_their_own_rate_whatever_the_learning_rate():
    before, after = moved(ARCH, rate=0.0)
    change = after["balance"]["loop"]["bias_KE"] - before["balance"]["loop"]["bias_KE"]
    assert set(np.unique(np.abs(change))) <= {np.float32(0.0), np.float32(0.01)}
    assert (change > 0).any()
    assert (change < 0).any()
    np.testing.assert_array_equal(after["head"]["w_DV"], before["head"]["w_DV"])


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(Exception, match="--accumulate 3 does not divide a batch of 2"):
        step.compile_step(ARCH, OPTIM, DATA, accumulate=3)
