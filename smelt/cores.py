"""Independent calls -> their results, in the same order, made on as many cores as this process may use.

Each call runs in a fork of this process, which has everything that was made before, and its result is sent back: so it
must be data, and what it changes elsewhere is lost. One after the other here where there is one core, no fork, or jax,
whose threads a fork leaves behind.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from smelt.launch.environment import available_cores

_calls: Sequence[Callable[[], Any]] = ()


def results(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What the calls return. Raises what the first of them raises."""
    global _calls
    workers = min(len(calls), len(available_cores()))
    if workers < 2 or sys.platform != "linux" or "jax" in sys.modules:
        return [call() for call in calls]
    import multiprocessing

    _calls = calls
    try:
        # Ctrl-C is for this process, which ends the others.
        with multiprocessing.get_context("fork").Pool(workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            return pool.map(_call, range(len(calls)), chunksize=1)
    finally:
        _calls = ()


def _call(index: int) -> Any:
    return _calls[index]()
