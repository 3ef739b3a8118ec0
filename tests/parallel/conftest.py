"""Eight devices: their number is fixed once a process and moves the last bits of everything, so that these tests run in
processes of their own (tests/test_parallel.py starts them)."""

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def float64():
    """Arrays of 64 bits, for what is held to 1e-10."""
    with jax.enable_x64(True):
        yield
