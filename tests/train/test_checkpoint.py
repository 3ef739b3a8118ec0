"""Weights come back as they were written, whatever an earlier attempt left."""

import numpy as np
import pytest

from smelt.errors import BadInput
from smelt.train import checkpoint


def test_weights_are_saved_over_what_a_killed_attempt_left(tmp_path):
    params = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    checkpoint.save_params(tmp_path, 7, {"w": params["w"] + 1})
    half = tmp_path / "checkpoints" / "7.orbax-checkpoint-tmp"
    half.mkdir()
    (half / "part").write_bytes(b"torn")
    checkpoint.save_params(tmp_path, 7, params)
    assert np.array_equal(checkpoint.load_params(tmp_path, params)["w"], params["w"])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["7"]


def test_a_run_without_weights_says_so(tmp_path):
    with pytest.raises(BadInput, match="holds no checkpoint"):
        checkpoint.load_params(tmp_path, {})
