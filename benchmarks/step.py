"""The quickstart's shapes -> model FLOP/s of a training step beside the machine's matmul peak, timed in turns.

`python -m benchmarks.step` pins itself to one core with one thread, as a worker is, and prints markdown. Peak is the
best of float32 matmuls of 1024^3; the step's figure is the median over ROUNDS rounds, each of which times the peak and
every shape once, so that a drift of the machine meets all of them.
"""

import os
import statistics
import sys
import time

ROUNDS = 15
STEPS = 8


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["NPROC"] = "1"
    import jax
    import jax.numpy as jnp
    import numpy as np

    from smelt import experiment, terminal
    from smelt.launch.allocator import keep_freed_memory
    from smelt.launch.environment import use_compilation_cache
    from smelt.train.fingerprint import device_kind
    from smelt.train.step import compile_step, init_state

    keep_freed_memory()
    use_compilation_cache()
    grid = experiment.load("quickstart").grid
    shapes = {}
    for cell in grid.cells:
        shapes.setdefault((cell.size, cell.variant), cell)
    programs, states, batches = {}, {}, {}
    for key, cell in sorted(shapes.items()):
        run = cell.run
        programs[key] = compile_step(run.arch, run.optim, run.data)
        states[key] = init_state(run.arch, run.optim, 0)
        window = (run.data.batch_seqs, run.data.seq_len + 1)
        batches[key] = np.random.default_rng(0).integers(0, 256, window, np.int32), np.ones(window, np.int32)

    square = jnp.ones((1024, 1024), jnp.float32)
    matmul = jax.jit(lambda a: a @ a).lower(square).compile()
    peaks: list[float] = []
    rates: dict[tuple[int, str], list[float]] = {key: [] for key in programs}
    for _ in range(ROUNDS):
        start = time.perf_counter()
        jax.block_until_ready(matmul(square))
        peaks.append(2 * 1024**3 / (time.perf_counter() - start))
        for key, program in programs.items():
            cell, state = shapes[key], states[key]
            start = time.perf_counter()
            for _ in range(STEPS):
                state, _ = program(state, *batches[key], np.float32(1e-3), np.float32(1.0))
            jax.block_until_ready(state)
            secs = (time.perf_counter() - start) / STEPS
            states[key] = state
            rates[key].append(grid.flops_per_token(cell) * cell.run.data.tokens_per_step / secs)
    peak = max(peaks)
    rows = []
    for (_, variant), values in rates.items():
        cell = shapes[_, variant]
        median = statistics.median(values)
        rows.append(
            [
                variant,
                str(cell.run.arch.d_model),
                f"{grid.flops_per_token(cell) * cell.run.data.tokens_per_step / median * 1e3:.1f}",
                f"{median / 1e9:.1f}",
                f"{min(values) / 1e9:.1f} to {max(values) / 1e9:.1f}",
                f"{median / peak:.0%}",
            ]
        )
    print(
        f"jax {jax.__version__}, one core of {device_kind()}, float32, {cell.run.data.tokens_per_step} tokens a step."
    )
    print(f"Matmul peak {peak / 1e9:.0f} GFLOP/s (median {statistics.median(peaks) / 1e9:.0f}), {ROUNDS} rounds.\n")
    print(terminal.table(["variant", "width", "step ms", "model GFLOP/s", "range", "of peak"], rows, markdown=True))


if __name__ == "__main__":
    sys.exit(main())
