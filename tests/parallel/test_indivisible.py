"""Every architecture on 2 x 3 devices, over whose axes neither experts nor windows divide, its layers scanned and
recomputed as deep models are: a training step leaves what it leaves on one device. And in micro-batches."""

from dataclasses import replace

import numpy as np
import pytest

from smelt.errors import BadInput
from smelt.model import decoder
from smelt.spec import Router
from tests.model.shapes import ARCHITECTURES, BASELINE, MULTI_VIEW
from tests.parallel import steps

SHAPE = (2, 3)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_step_leaves_what_it_leaves_on_one_device(name, monkeypatch: pytest.MonkeyPatch):
    arch = ARCHITECTURES[name]
    alone = steps.program(arch, None)
    monkeypatch.setattr(decoder, "UNROLLED_VISITS", 0)
    on_mesh = steps.program(arch, SHAPE)
    for all_to_the_first in (False, True):
        ours, oracle = (steps.left_by(program, arch, all_to_the_first) for program in (on_mesh, alone))
        assert steps.largest_difference(ours, oracle) < 1e-10


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
    halves = []
    for half in (0, 1):
        data = replace(steps.DATA, batch_seqs=steps.NUM_SEQS // 2)
        halves.append(_load_balance_of_every_other_window(arch, data, half))
    assert cut.metrics[0]["load_balance"] == pytest.approx(np.mean(halves), abs=1e-12)


def _load_balance_of_every_other_window(arch, data, first: int) -> float:
    import jax

    tokens_BU, segments_BU = (window[first::2] for window in steps.windows(steps.NUM_SEQS, seed=0))
    state = jax.tree.map(jax.numpy.asarray, steps.initial(arch, False, True))
    _, metrics = steps.program(arch, None, data=data).step(
        state, tokens_BU, segments_BU, np.float32(0.01), np.float32(0.5)
    )
    return float(metrics["load_balance"])


def test_micro_batches_that_do_not_divide_a_batch_are_refused():
    with pytest.raises(BadInput, match=r"--accumulate 3 does not divide a batch of 8"):
        steps.program(BASELINE, None, accumulate=3)
