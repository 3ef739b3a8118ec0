"""This machine, these sources and libraries -> what a result depends on beside its spec.

Where the fingerprint of a finished run differs from today's in code or corpus, the run is `stale`: it is kept, shown,
and not silently reused. Device, threads and versions move the last bits of a loss and are recorded for that.

    code fingerprint = digest of the package's sources [+ digest of the sources of parts of the user's own]
"""

import hashlib
import os
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from smelt.errors import BadInput
from smelt.spec import Own, RecordedOwn
from smelt.train.source import PACKAGE, bare_code, own_source

DECIDES_A_RESULT = (
    "spec.py",
    "data/pipeline.py",
    "model",
    "parallel.py",
    "train/schedule.py",
    "train/step.py",
    "train/evaluate.py",
    "train/forks.py",
    "train/run.py",
)


def code_fingerprint(own: Sequence[Own] = ()) -> str:
    """Digest of the sources that decide a loss, comments and docstrings left out; with parts of the user's own, a plus
    and the digest of theirs. Raises BadInput for a part whose source is not at hand."""
    if not own:
        return _package_fingerprint()
    for part in own:
        if isinstance(part, RecordedOwn):
            name = part.record()["name"]
            raise BadInput(f"{name} is known by its record alone, not its source: load the experiment that defines it")
    sources = "".join(own_source(type(part)) for part in own)
    return f"{_package_fingerprint()}+{hashlib.sha256(sources.encode()).hexdigest()[:12]}"


@cache
def _package_fingerprint() -> str:
    sources: list[Path] = []
    for part in DECIDES_A_RESULT:
        path = PACKAGE / part
        sources += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    total = hashlib.sha256()
    for source in sources:
        total.update(source.relative_to(PACKAGE).as_posix().encode() + b"\0" + bare_code(source.read_text()).encode())
    return total.hexdigest()[:12]


def provenance(
    corpus_fingerprint: str, own: Sequence[Own] = (), mesh: Any = None, accumulate: int = 1
) -> dict[str, Any]:
    """The provenance columns of a row, but for the time; `own` are the parts of the user's own in its architecture.

    mesh and accumulate: what the run is spread over, which `device` tells."""
    import jax
    import jaxlib

    spread = layout(mesh, accumulate)
    axes = [f"{axis}={size}" for axis, size in (spread["mesh"] or {}).items()]
    axes += [f"accumulate={accumulate}"] if accumulate > 1 else []
    num_devices = len(jax.devices()) if mesh is None else mesh.size
    return {
        "corpus_fingerprint": corpus_fingerprint,
        "code_fingerprint": code_fingerprint(own),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "python": platform.python_version(),
        "device": f"{num_devices} x {device_kind()}" + (f" ({', '.join(axes)})" if axes else ""),
        "threads": int(os.environ.get("NPROC", os.cpu_count() or 1)),
        "host": platform.node(),
    }


def layout(mesh: Any, accumulate: int) -> dict[str, Any]:
    """What a run is spread over: the sizes of a mesh, None for one device, and the micro-batches of a step."""
    return {"mesh": None if mesh is None else dict(mesh.shape), "accumulate": accumulate}


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
