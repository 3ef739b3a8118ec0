"""This machine, these sources and libraries -> what a result depends on beside its spec.

Where the fingerprint of a finished run differs from today's in code or corpus, the run is `stale`: it is kept, shown,
and not silently reused. Device, threads and versions move the last bits of a loss and are recorded for that.
"""

import hashlib
import io
import os
import platform
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
DECIDES_A_RESULT = (
    "spec.py",
    "data/pipeline.py",
    "model",
    "train/schedule.py",
    "train/step.py",
    "train/evaluate.py",
    "train/run.py",
)


@cache
def code_fingerprint() -> str:
    """Digest of the sources that decide a loss, comments and docstrings left out."""
    sources: list[Path] = []
    for part in DECIDES_A_RESULT:
        path = PACKAGE / part
        sources += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    total = hashlib.sha256()
    for source in sources:
        total.update(source.relative_to(PACKAGE).as_posix().encode() + b"\0" + bare_code(source.read_text()).encode())
    return total.hexdigest()[:12]


def bare_code(source: str) -> str:
    """Python source without comments, blank lines and bare strings.

    >>> bare_code("x = 1  # one\\n\\n'a docstring'\\n")
    'x=1\\n'
    """
    kept: list[str] = []
    statement_starts = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL):
            continue
        bare_string = token.type == tokenize.STRING and statement_starts
        if not bare_string and not (token.type == tokenize.NEWLINE and statement_starts):
            kept.append("\n" if token.type == tokenize.NEWLINE else token.string)
        starts = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
        statement_starts = token.type in starts or bare_string
    return "".join(kept)


def provenance(corpus_fingerprint: str) -> dict[str, Any]:
    """The provenance columns of a row, but for the time."""
    import jax
    import jaxlib

    devices = jax.devices()
    return {
        "corpus_fingerprint": corpus_fingerprint,
        "code_fingerprint": code_fingerprint(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "python": platform.python_version(),
        "device": f"{len(devices)} x {device_kind()}",
        "threads": int(os.environ.get("NPROC", os.cpu_count() or 1)),
        "host": platform.node(),
    }


def device_kind() -> str:
    """The accelerator's name, or the processor's model for a CPU."""
    import jax

    kind = jax.devices()[0].device_kind
    return processor_name() if kind.lower() == "cpu" else kind


@cache
def processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
