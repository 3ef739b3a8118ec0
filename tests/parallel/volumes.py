"""The text of a compiled program -> bytes that one device hands to its all-to-alls, its own share included.

Two sums: what every call of the program exchanges, and what stands in the body of a loop whose number of turns is
counted on the device, a further round of a dispatch.
"""

import re
from typing import NamedTuple

import numpy as np

SIZES = {"f64": 8, "f32": 4, "bf16": 2, "s32": 4, "s64": 8, "u32": 4}


class Exchanged(NamedTuple):
    always: int
    a_further_round: int


def exchanged_bytes(program: str) -> Exchanged:
    """Of `compiled.as_text()`. What stands in the body of a scan is counted once."""
    sums = {True: 0, False: 0}
    for line in program.splitlines():
        operation = re.search(r"= (.*?) all-to-all\(", line)
        if operation:
            sums["further_rounds" in line] += sum(
                _num_bytes(*shape) for shape in re.findall(r"(\w+)\[([\d,]*)\]", operation[1])
            )
    return Exchanged(always=sums[False], a_further_round=sums[True])


def _num_bytes(kind: str, sizes: str) -> int:
    total = SIZES[kind]
    for size in filter(None, sizes.split(",")):
        total *= int(size)
    return total


def useful_rows(ids_NC: np.ndarray, num_experts: int, shape: tuple[int, int]) -> list[int]:
    """Rows that each device must send to another one: of its tokens' choices, those whose expert lives elsewhere."""
    data, expert = shape
    experts_of_shard = -(-num_experts // expert)
    missing = -len(ids_NC) % (data * expert)
    padded = np.pad(ids_NC, ((0, missing), (0, 0)), constant_values=num_experts)
    by_device = padded.reshape(data, expert, -1)
    own = np.arange(expert)[None, :, None]
    elsewhere = (by_device < num_experts) & (by_device // experts_of_shard != own)
    return elsewhere.sum(-1).reshape(-1).tolist()
