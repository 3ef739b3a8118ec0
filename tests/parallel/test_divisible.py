"""Every architecture on 4 x 2 devices, over whose expert axis most numbers of experts divide: a training step leaves
what it leaves on one device, for routers as they are drawn and for such as send every token to one device."""

import numpy as np
import pytest

from tests.model.shapes import ARCHITECTURES
from tests.parallel import steps

SHAPE = (4, 2)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_step_leaves_what_it_leaves_on_one_device(name):
    arch = ARCHITECTURES[name]
    alone, on_mesh = steps.program(arch, None), steps.program(arch, SHAPE)
    for all_to_the_first in (False, True):
        ours, oracle = (steps.left_by(program, arch, all_to_the_first) for program in (on_mesh, alone))
        assert steps.largest_difference(ours, oracle) < 1e-10
        if all_to_the_first and "max_load" in oracle.metrics[0]:
            # Of a block of E experts, k take everything.
            assert oracle.metrics[0]["max_load"] == arch.ffn.num_experts / arch.ffn.top_k


@pytest.mark.parametrize("name", ["multi_view"])
def test_in_float32_a_step_differs_by_rounding_alone(name):
    arch = ARCHITECTURES[name]
    ours, oracle = (steps.left_by(steps.program(arch, shape), arch) for shape in (SHAPE, None))
    assert ours.params["embedding"]["w_VD"].dtype == np.float32
    assert steps.largest_difference(ours.metrics, oracle.metrics) < 1e-5
    assert steps.largest_difference(ours.gradients, oracle.gradients) < 1e-6
    # AdamW divides by the root of squares: what is next to zero may differ by a large part of itself, at most the rate.
    assert steps.largest_difference(ours.params, oracle.params) < 1e-4
