"""Numbers -> what a person reads in a terminal: tables, durations, sizes, and the live view of a grid.

With a terminal it is rich; without one it is plain lines, one every LINE_SECS. Nothing here decides anything.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from smelt.grid import describe
from smelt.launch.local import Progress

LINE_SECS = 15.0


def count(value: float | None) -> str:
    """1234567 -> 1.23M; large powers as 1.2e15.

    >>> count(1234567), count(3e11), count(None), count(256)
    ('1.23M', '3e+11', '-', '256')
    """
    if value is None:
        return "-"
    for limit, unit, suffix in ((1e4, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if abs(value) < limit:
            return f"{value / unit:.4g}{suffix}" if suffix == "" else f"{value / unit:.3g}{suffix}"
    return f"{value:.3g}"


def duration(secs: float | None) -> str:
    """
    >>> duration(5), duration(59.7), duration(75), duration(4000), duration(3e5), duration(None)
    ('5s', '1m00s', '1m15s', '1h06m', '83h', '-')
    """
    if secs is None:
        return "-"
    whole = round(secs)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 3600:,}h"


def plural(number: int, noun: str) -> str:
    """
    >>> plural(1, "worker"), plural(2, "worker")
    ('1 worker', '2 workers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def num_bytes(value: float | None) -> str:
    """
    >>> num_bytes(2_500_000), num_bytes(None)
    ('2.5 MB', '-')
    """
    if value is None:
        return "-"
    for limit, unit, suffix in ((1e6, 1e3, "kB"), (1e9, 1e6, "MB"), (1e12, 1e9, "GB")):
        if value < limit:
            return f"{value / unit:.3g} {suffix}"
    return f"{value / 1e12:.3g} TB"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2%}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool = False) -> str:
    """Aligned plain text, or GitHub markdown: a table that a pipe, a log and a person can all read."""
    if markdown:
        lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def progress_line(progress: Progress) -> str:
    """One line: counts by state, share of the FLOPs, ETA, and the runs at work."""
    states = ", ".join(f"{number} {state}" for state, number in sorted(progress.states.items()))
    at_work = "; ".join(
        f"{describe(cell)}: step {status.step or 0}/{cell.run.num_steps}"
        + (f", loss {status.loss_nats:.3f}" if status.loss_nats is not None else "")
        for cell, status in progress.running
    )
    share = progress.flops_done / progress.flops_total
    line = f"[{duration(progress.elapsed_secs)}] {share:.0%} of the FLOPs, ETA {duration(progress.eta_secs)}; {states}"
    return f"{line}; {at_work}" if at_work else line


@contextmanager
def watching(quiet: bool) -> Iterator[Any]:
    """Yields the function that shows a Progress: a live view on a terminal, a line now and then elsewhere."""
    if quiet:
        yield lambda progress: None
        return
    if not sys.stderr.isatty():
        told = 0.0

        def line(progress: Progress) -> None:
            nonlocal told
            if time.monotonic() - told >= LINE_SECS or progress.flops_done >= progress.flops_total:
                told = time.monotonic()
                print(progress_line(progress), file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=2, transient=True) as live:
        yield lambda progress: live.update(_view(progress))


def _view(progress: Progress) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    states = ", ".join(f"{number} {state}" for state, number in sorted(progress.states.items()))
    head = f"{states}   {duration(progress.elapsed_secs)} gone, ETA {duration(progress.eta_secs)}"
    grid = Table("run", "step", "loss, nats", box=None)
    for cell, status in progress.running:
        loss = "-" if status.loss_nats is None else f"{status.loss_nats:.4f}"
        grid.add_row(describe(cell), f"{status.step or 0}/{cell.run.num_steps}", loss)
    bar = ProgressBar(total=progress.flops_total, completed=progress.flops_done, width=60)
    return Group(Text(head), bar, grid)


def signed(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:+.{digits}f}"


def estimate(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
