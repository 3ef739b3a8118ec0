"""Training steps of every architecture with sigmoid heads on meshes; one in float32."""

import numpy as np
import pytest

from tests.model.shapes import ARCHITECTURES
from tests.parallel import steps

NAMES = [name for name, arch in ARCHITECTURES.items() if arch.router.sigmoid is not None]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_a_mesh_leaves_what_it_leaves_on_one_device(name, monkeypatch: pytest.MonkeyPatch):
    steps.assert_meshes_leave_what_one_device_does(ARCHITECTURES[name], monkeypatch)


@pytest.mark.parametrize("name", ["multi_view"])
def test_in_float32_a_step_differs_by_rounding_alone(name):
    arch = ARCHITECTURES[name]
    ours, oracle = (steps.left_by(steps.program(arch, shape), arch) for shape in ((4, 2), None))
    assert ours.params["embedding"]["w_VD"].dtype == np.float32
    assert steps.largest_difference(ours.metrics, oracle.metrics) < 1e-5
    assert steps.largest_difference(ours.gradients, oracle.gradients) < 1e-6
    # AdamW divides by the root of squares: what is next to zero may differ by a large part of itself, at most the rate.
    assert steps.largest_difference(ours.params, oracle.params) < 1e-4
