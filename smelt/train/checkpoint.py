"""State <-> a folder on disk, through orbax; the only file that knows orbax.

    checkpoints/<step>/     params, and the optimizer where the run can be continued

`step` is the number of completed steps. A checkpoint is written beside and renamed by orbax; existing ones are never
overwritten.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from smelt.errors import BadInput


def _checkpointer() -> Any:
    logging.getLogger("absl").setLevel(logging.ERROR)  # orbax narrates every save
    import orbax.checkpoint as ocp

    return ocp.StandardCheckpointer()


def save_params(folder: Path, step: int, params: Any) -> Path:
    """Write the weights after `step` completed steps. Leftovers of an earlier attempt are replaced, and half-written
    ones (of a kill, of a full disk), which orbax neither reads nor removes, are swept."""
    target = (folder / "checkpoints" / str(step)).resolve()
    for left in (target, *target.parent.glob("*.orbax-checkpoint-tmp*")):
        if left.exists():
            shutil.rmtree(left)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _checkpointer() as checkpointer:
        checkpointer.save(target, {"params": jax.tree.map(np.asarray, params)})
    return target


def load_params(folder: Path, like: Any) -> Any:
    """The newest weights of a run folder, checked against the shapes of `like`."""
    steps = sorted(int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit())
    if not steps:
        raise BadInput(f"{folder} holds no checkpoint: the run has not finished here")
    target = (folder / "checkpoints" / str(steps[-1])).resolve()
    with _checkpointer() as checkpointer:
        return checkpointer.restore(target, {"params": like})["params"]
