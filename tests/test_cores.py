"""Independent calls on several cores."""

import subprocess
import sys

import pytest

from smelt import cores
from smelt.errors import BadInput
from smelt.launch.environment import available_cores

# In a process without jax, whose threads keep this one from forking.
SCRIPT = """
import os
from smelt import cores
from smelt.errors import BadInput

def refused():
    raise BadInput("the third")

here = os.getpid()
print(cores.results([lambda n=n: (n, os.getpid() != here) for n in range(5)]))
try:
    cores.results([os.getpid, os.getpid, refused])
except BadInput as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux" or len(available_cores()) < 2, reason="one core, or no fork to trust")
def test_results_come_in_order_from_other_processes_and_so_do_refusals():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    first, error = done.stdout.splitlines()
    assert first == str([(number, True) for number in range(5)])
    assert error == "the third"


def test_one_call_is_made_here():
    made = []
    assert cores.results([lambda: made.append(1) or "done"]) == ["done"]
    assert made == [1]
    with pytest.raises(BadInput):
        cores.results([_refused])


def _refused():
    raise BadInput("no")
