"""Meshes of eight CPU devices x architectures -> by how much two training steps differ from those of one device, and
what they exchange.

`python -m benchmarks.parallel [--only NAME ...]` prints markdown. Differences are the largest over all leaves, and over
routers as they are drawn and such as send every token to one device: `loss` of all that is logged of two steps,
`gradient` of the first one's, `update` of the parameters after both. Volumes are read from compiled programs and from
the choices of the untrained router.
"""

import argparse
import math
import os
import sys
from dataclasses import replace
from typing import Any

os.environ["NPROC"] = "1"

import jax
import jax.numpy as jnp
import numpy as np

from smelt import model, parallel, terminal, variants
from smelt.launch.environment import use_compilation_cache
from smelt.spec import ArchSpec, DataSpec
from smelt.train.fingerprint import device_kind
from tests.conftest import architecture
from tests.model.shapes import ARCHITECTURES
from tests.parallel import steps, volumes

DEVICES = 8
DOUBLE = [(8, 1), (4, 2), (2, 3), (1, 8)]
SINGLE = [(4, 2)]
# Of the volumes: LatentMoE, 16 experts of which 4 are taken, on a latent half as wide as the model.
VOLUME_MESH = (2, 4)
VOLUME_DATA = DataSpec(corpus="none", seq_len=128, batch_seqs=32, confine_attention=True, validation_tokens=128)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(ARCHITECTURES))
    names = parser.parse_args().only
    jax.config.update("jax_num_cpu_devices", DEVICES)
    use_compilation_cache()
    print(f"jax {jax.__version__}, {DEVICES} CPU devices of {device_kind()}.\n")
    rows = []
    for name in names:
        with jax.enable_x64(True):
            rows += differences(name, DOUBLE, "float64")
        rows += differences(name, SINGLE, "float32")
    head = ["architecture", "experts", "mesh data x expert", "", "loss", "gradient", "update"]
    print(terminal.table(head, rows, markdown=True))
    print(f"\nLargest of float64: {max(float(cell) for row in rows if row[3] == 'float64' for cell in row[4:]):.1e}.\n")
    print(exchanged())


def differences(name: str, meshes: list[tuple[int, int]], precision: str) -> list[list[str]]:
    arch = ARCHITECTURES[name]
    alone = steps.program(arch, None)
    oracles = [steps.left_by(alone, arch, all_to_the_first) for all_to_the_first in (False, True)]
    rows = []
    for shape in meshes:
        program = steps.program(arch, shape)
        found = [steps.left_by(program, arch, all_to_the_first) for all_to_the_first in (False, True)]
        worst = [
            max(steps.largest_difference(one[part], other[part]) for one, other in zip(found, oracles, strict=True))
            for part in range(3)
        ]
        experts = "/".join(str(ffn.num_experts) for ffn in (arch.outer_ffn, arch.ffn) if ffn)
        rows.append([name, experts, f"{shape[0]} x {shape[1]}", precision, *(f"{value:.1e}" for value in worst)])
        print(f"{name} {shape} {precision} done", file=sys.stderr)
    return rows


def exchanged() -> str:
    """The table of volumes, with what it is of."""
    rows = []
    for num_views in (1, 2, 3):
        arch = with_views(num_views)
        text = steps.program(arch, VOLUME_MESH, data=VOLUME_DATA).step.as_text()
        handed = volumes.exchanged_bytes(text)
        leaving = 1 - 1 / VOLUME_MESH[1]
        choices = routed(arch)
        useful_rows = np.sum([volumes.useful_rows(ids, arch.ffn.num_experts, VOLUME_MESH) for ids in choices], axis=0)
        row_bytes = 4 * (4 * arch.ffn.latent.width + 1)  # four vectors and one id a row
        rows.append(
            [
                str(num_views),
                terminal.num_bytes(useful_rows.mean() * row_bytes),
                terminal.num_bytes(handed.always * leaving),
                f"{useful_rows.mean() * row_bytes / (handed.always * leaving):.0%}",
                terminal.num_bytes(handed.a_further_round * leaving),
                str(max(rounds(ids, arch) for ids in choices)),
            ]
        )
    arch = with_views(1)
    tokens = VOLUME_DATA.batch_seqs * VOLUME_DATA.seq_len
    data, expert = VOLUME_MESH
    opening = (
        f"One step of {tokens} tokens on {data} x {expert} devices, forward and backward: {arch.num_layers} layers, "
        f"width {arch.d_model}, latent {arch.ffn.latent.width}, {arch.ffn.top_k} of {arch.ffn.num_experts} experts, "
        f"float32.\nBytes that leave one device, on average; a pair has room for {parallel.SLACK} times its even share."
        "\n\n"
    )
    head = ["views", "useful", "with padding", "useful share", "a further round, where one is gone", "rounds at step 0"]
    return opening + terminal.table(head, rows, markdown=True)


def with_views(num_views: int) -> ArchSpec:
    plain = architecture(width=64, num_layers=2, num_experts=16, head_dim=16)
    latent = variants.sigmoid_router(variants.latent_moe(plain, width=32, shared_width=64))
    latent = replace(latent, ffn=replace(latent.ffn, width=64, top_k=4))
    if num_views == 1:
        return latent
    return variants.multi_view(variants.multi_router(latent, num_heads=num_views))


def routed(arch: ArchSpec) -> list[np.ndarray]:
    """The choices (N, C) of every visit of a batch of even tokens, by the router as it is drawn."""
    seen: list[np.ndarray] = []
    dispatch = parallel.dispatch

    def recording(mesh: Any, compute: Any, x_ND: Any, ids_NC: Any, weights: Any) -> Any:
        jax.debug.callback(lambda ids: seen.append(np.asarray(ids)), ids_NC, ordered=True)
        return dispatch(mesh, compute, x_ND, ids_NC, weights)

    params = model.init(arch, jax.random.key(0))
    window = (VOLUME_DATA.batch_seqs, VOLUME_DATA.seq_len)
    tokens_BT = jnp.asarray(np.random.default_rng(0).integers(0, arch.vocab_size, window), jnp.int32)
    parallel.dispatch = recording
    try:
        jax.block_until_ready(model.apply(arch, params, tokens_BT, jnp.ones_like(tokens_BT), confine_attention=True))
        jax.effects_barrier()
    finally:
        parallel.dispatch = dispatch
    return seen


def rounds(ids_NC: np.ndarray, arch: ArchSpec) -> int:
    """What the fullest pair of devices needs."""
    data, expert = VOLUME_MESH
    shards = (ids_NC // -(-arch.ffn.num_experts // expert)).reshape(data * expert, -1)
    fullest = max(np.bincount(of_source, minlength=expert).max() for of_source in shards)
    room = parallel.room_of_a_pair(len(ids_NC) // (data * expert), ids_NC.shape[1], expert)
    return math.ceil(fullest / room)


if __name__ == "__main__":
    main()
