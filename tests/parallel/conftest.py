"""Eight devices: their number is fixed once a process and moves the last bits of everything, so that these tests run in
processes of their own (tests/test_parallel.py starts them)."""

import os

# These programs are compiled and run once or twice: a third of the time goes if LLVM does not improve them.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def float64():
    """Arrays of 64 bits, for what is held to 1e-10."""
    with jax.enable_x64(True):
        yield
