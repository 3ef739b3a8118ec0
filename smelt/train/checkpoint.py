"""State <-> a folder on disk, through orbax; the only file that knows orbax.

    checkpoints/<step>/     params at the end of a run
    <any folder>/           a whole state, from which training goes on (`forks` says where)

`step` is the number of completed steps. A checkpoint is written beside and renamed by orbax; existing ones are never
overwritten. A state is kept by the names of its leaves and comes back as numpy arrays, bit by bit, wherever the program
that goes on with it wants them to lie: what was written of one mesh is read on any other. All processes of a run save;
the first of them writes.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from smelt import parallel
from smelt.errors import BadInput


def _checkpointer() -> Any:
    logging.getLogger("absl").setLevel(logging.ERROR)  # orbax narrates every save
    import orbax.checkpoint as ocp

    # It meets no other process: what it is given is whole, and no other one calls it.
    alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}, barrier_sync_key_prefix="first")
    return ocp.StandardCheckpointer(multiprocessing_options=alone)


def save_params(folder: Path, step: int, params: Any) -> Path:
    """Write the weights after `step` completed steps. Leftovers of an earlier attempt are replaced, and half-written
    ones (of a kill, of a full disk), which orbax neither reads nor removes, are swept."""
    target = (folder / "checkpoints" / str(step)).resolve()
    whole = parallel.on_host(params)
    if jax.process_index() > 0:
        return target
    for left in (target, *target.parent.glob("*.orbax-checkpoint-tmp*")):
        if left.exists():
            shutil.rmtree(left)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _checkpointer() as checkpointer:
        checkpointer.save(target, {"params": whole})
    return target


def load_params(folder: Path, like: Any) -> Any:
    """The newest weights of a run folder, checked against the shapes of `like`."""
    steps = sorted(int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit())
    if not steps:
        raise BadInput(f"{folder} holds no checkpoint: the run has not finished here")
    target = (folder / "checkpoints" / str(steps[-1])).resolve()
    with _checkpointer() as checkpointer:
        return checkpointer.restore(target, {"params": like})["params"]


def save_state(target: Path, state: Any) -> None:
    """Write a whole state into a folder that is not there yet."""
    whole = parallel.on_host(state)
    if jax.process_index() > 0:
        return
    with _checkpointer() as checkpointer:
        checkpointer.save(target.resolve(), _by_name(whole))


def load_state(target: Path, like: Any) -> Any:
    """The state that `save_state` wrote, in the tree of `like`, whose leaves may be shapes."""
    leaves = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in _by_name(like).items()}
    with _checkpointer() as checkpointer:
        kept = checkpointer.restore(target.resolve(), leaves)
    return jax.tree.unflatten(jax.tree.structure(like), [kept[name] for name in leaves])


def _by_name(state: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
