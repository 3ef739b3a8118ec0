"""An architecture and a mesh -> what two training steps leave: losses, gradients, updated parameters, on the host; and
that this is what they leave on one device.

The architectures are two files of tests, by their routers, so that two processes share them.
"""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from smelt import parallel
from smelt.model import decoder
from smelt.spec import ArchSpec, DataSpec
from smelt.train import step as steps
from tests.conftest import OPTIM
from tests.model.shapes import LENGTH, windows

NUM_SEQS = 8
DATA = DataSpec(
    corpus="none", seq_len=LENGTH - 1, batch_seqs=NUM_SEQS, confine_attention=True, validation_tokens=LENGTH
)
NOT_CLIPPED = replace(OPTIM, clip_norm=1e6)  # so that the first moments are the gradients, times 1 - beta1


class Left(NamedTuple):
    metrics: list[dict[str, np.ndarray]]
    gradients: Any
    params: Any


class Program(NamedTuple):
    """The compiled step of an architecture on a mesh, and where its state goes."""

    step: Any
    shardings: Any | None


def program(arch: ArchSpec, shape: tuple[int, int] | None, accumulate: int = 1, data: DataSpec = DATA) -> Program:
    mesh = None if shape is None else parallel.mesh(*shape)
    compiled = steps.compile_step(arch, NOT_CLIPPED, data, mesh, accumulate)
    if mesh is None:
        return Program(compiled, None)
    shapes = jax.eval_shape(lambda: steps.init_state(arch, NOT_CLIPPED, 0))
    return Program(compiled, steps.state_shardings(mesh, shapes))


@cache
def initial(arch: ArchSpec, all_to_the_first: bool, wide: bool) -> steps.State:
    """On the host. all_to_the_first: routers that are zero, so that the lowest numbers win every tie."""
    del wide  # arrays of 64 bits or not: another state, so another entry of the cache
    state = steps.init_state(arch, NOT_CLIPPED, 0)
    if all_to_the_first:
        state = state._replace(params=jax.tree_util.tree_map_with_path(_zero_router, state.params))
    return jax.tree.map(np.asarray, state)


def _zero_router(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
    return jnp.zeros_like(leaf) if "'router'" in jax.tree_util.keystr(path) else leaf


def left_by(program: Program, arch: ArchSpec, all_to_the_first: bool = False) -> Left:
    """Two steps: the second meets the moments of the first."""
    state = initial(arch, all_to_the_first, jax.config.jax_enable_x64)
    state = jax.device_put(state, program.shardings) if program.shardings else jax.tree.map(jnp.asarray, state)
    metrics, gradients = [], None
    for step in range(2):
        batch = windows(NUM_SEQS, seed=step)
        state, of_step = program.step(state, *batch, np.float32(0.01), np.float32(0.5))
        metrics.append(jax.tree.map(np.asarray, of_step))
        if step == 0:
            moments = state.optimizer[1].mu
            gradients = jax.tree.map(lambda moment: np.asarray(moment) / (1 - NOT_CLIPPED.beta1), moments)
    return Left(metrics, gradients, jax.tree.map(np.asarray, state.params))


def largest_difference(one: Any, other: Any) -> float:
    """Over all leaves of two trees; infinite where either is not finite."""
    differences = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b), initial=0.0)), one, other)
    largest = max(jax.tree.leaves(differences), default=0.0)
    return largest if np.isfinite(largest) else np.inf


def assert_meshes_leave_what_one_device_does(arch: ArchSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, for routers as they are drawn and such as send every token to one device and none to another: on
    4 x 2 devices, over whose expert axis most numbers of experts divide; and on 2 x 3, over whose axes neither experts
    nor windows do, with layers scanned and recomputed as deep models are."""
    routers = (False, True)
    alone = program(arch, None)
    oracles = [left_by(alone, arch, all_to_the_first) for all_to_the_first in routers]
    if "max_load" in oracles[1].metrics[0]:
        # k of E experts took everything.
        assert oracles[1].metrics[0]["max_load"] == max(s.ffn.num_experts / s.ffn.top_k for s in arch.segments)
    for shape, unrolled_visits in (((4, 2), decoder.UNROLLED_VISITS), ((2, 3), 0)):
        monkeypatch.setattr(decoder, "UNROLLED_VISITS", unrolled_visits)
        on_mesh = program(arch, shape)
        for all_to_the_first, oracle in zip(routers, oracles, strict=True):
            assert largest_difference(left_by(on_mesh, arch, all_to_the_first), oracle) < 1e-10, shape
