"""The allocator setting, in a process of its own: what was freed is taken again instead of mapped anew."""

import os
import platform
import subprocess
import sys

ROUNDS = """
import ctypes, resource, sys
from smelt.launch import allocator

kept = sys.argv[1] == "keep" and allocator.keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def scratch(num_bytes=64 * 2**20):
    block = libc.malloc(num_bytes)
    ctypes.memset(block, 1, num_bytes)
    libc.free(block)

scratch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    scratch()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(choice: str) -> tuple[bool, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", ROUNDS, choice]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    kept, num_faults = done.stdout.split()
    return bool(int(kept)), int(num_faults)


def test_a_process_that_keeps_freed_memory_does_not_fault_it_in_again():
    kept, few = faults("keep")
    _, many = faults("leave")
    assert kept == (platform.libc_ver()[0] == "glibc")
    assert few < 100 or not kept
    assert many > few or not kept
