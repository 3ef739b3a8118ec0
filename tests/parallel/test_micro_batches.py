"""Micro-batches leave what the batch does, and on a mesh what they leave without."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from smelt.errors import BadInput
from smelt.spec import Router
from tests.model.shapes import BASELINE, MULTI_VIEW, windows
from tests.parallel import steps


@pytest.mark.usefixtures("float64")
def test_micro_batches_leave_what_the_batch_does_but_for_the_router_losses():
    arch = replace(MULTI_VIEW, router=replace(MULTI_VIEW.router, load_balance_coef=0.0, z_loss_coef=0.0))
    whole = steps.left_by(steps.program(arch, None), arch)
    cut = steps.left_by(steps.program(arch, None, accumulate=4), arch)
    on_mesh = steps.left_by(steps.program(arch, (2, 2), accumulate=2), arch)
    for left in (cut, on_mesh):
        assert steps.largest_difference((left.gradients, left.params), (whole.gradients, whole.params)) < 1e-10
        for ours, oracle in zip(left.metrics, whole.metrics, strict=True):
            assert abs(ours["loss_nats"] - oracle["loss_nats"]) < 1e-10
            assert abs(ours["z_loss"] - oracle["z_loss"]) < 1e-10  # a mean over tokens, whatever it counts for
            assert abs(ours["grad_norm"] - oracle["grad_norm"]) < 1e-10


@pytest.mark.usefixtures("float64")
def test_balance_losses_of_micro_batches_are_their_means():
    arch = replace(BASELINE, router=Router(load_balance_coef=1.0, z_loss_coef=0.0))
    cut, on_mesh = (steps.left_by(steps.program(arch, shape, accumulate=2), arch) for shape in (None, (2, 2)))
    assert steps.largest_difference(on_mesh, cut) < 1e-10
    half = steps.program(arch, None, data=replace(steps.DATA, batch_seqs=steps.NUM_SEQS // 2))
    state = steps.initial(arch, False, True)
    balances = []
    for first in (0, 1):
        every_other = (window[first::2] for window in windows(steps.NUM_SEQS, seed=0))
        _, metrics = half.step(jax.tree.map(jnp.asarray, state), *every_other, np.float32(0.01), np.float32(0.5))
        balances.append(float(metrics["load_balance"]))
    assert cut.metrics[0]["load_balance"] == pytest.approx(np.mean(balances), abs=1e-12)


def test_micro_batches_that_do_not_divide_a_batch_are_refused():
    with pytest.raises(BadInput, match=r"--accumulate 3 does not divide a batch of 8"):
        steps.program(BASELINE, None, accumulate=3)
