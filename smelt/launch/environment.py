"""How a process that trains is set up: threads, pinning, and where compiled programs are kept.

One single-threaded process a core beats one process with a thread pool at the sizes a CPU can train: small matmuls
leave the pool waiting. Measured on two cores with the quickstart's steps, three alternating runs each: two pinned
processes together make 2.0 times the tokens a second of one with two threads at widths 16 and 24, 1.7 times at 40. The
thread count moves the last bits of a loss, so it is set explicitly and recorded in every row.
"""

import os
from pathlib import Path

CACHE = Path(os.environ.get("SMELT_CACHE", ".cache"))


def worker_environment(threads: int, num_devices: int | None = None) -> dict[str, str]:
    """Environment variables of a worker with this many threads, and so many devices where they are processors."""
    devices = {} if num_devices is None else {"JAX_NUM_CPU_DEVICES": str(num_devices)}  # of no effect on others
    return {
        **os.environ,
        **devices,
        "NPROC": str(threads),  # read by XLA for its CPU thread pool
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
    }


def available_cores() -> list[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, so that a shape is compiled once a machine and not once a process: in
    JAX_COMPILATION_CACHE_DIR where that is set, else beside the calibrations."""
    import jax

    folder = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or CACHE / "jax").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
