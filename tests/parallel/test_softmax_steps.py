"""Training steps of every architecture with a softmax router, or none, on meshes."""

import pytest

from tests.model.shapes import ARCHITECTURES
from tests.parallel import steps

NAMES = [name for name, arch in ARCHITECTURES.items() if arch.router.sigmoid is None]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_a_mesh_leaves_what_it_leaves_on_one_device(name, monkeypatch: pytest.MonkeyPatch):
    steps.assert_meshes_leave_what_one_device_does(ARCHITECTURES[name], monkeypatch)
