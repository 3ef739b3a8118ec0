"""What a user says of devices and hosts -> what each run is spread over, and a worker's place in it.

    --mesh data=4,expert=2             devices of one run; none where left out
    --accumulate 2                     micro-batches of a step
    --hosts 10.0.0.1:1234,2,0          address of the first host, how many there are, which one this is;
                                       or the same in the environment, SMELT_HOSTS

A spread is an argument of the launch: no spec holds it, and a run has the same id on every one.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

from smelt.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The processes of one run, one a host; `address` is where the first one listens."""

    address: str
    count: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What one run is spread over: data x expert devices, or none said; micro-batches; hosts, or this one."""

    mesh: tuple[int, int] | None = None
    accumulate: int = 1
    hosts: Hosts | None = None

    @property
    def follows(self) -> bool:
        """Whether another host says what is trained and writes it down."""
        return self.hosts is not None and self.hosts.index > 0

    @property
    def devices_of_host(self) -> int | None:
        """None where no mesh is asked for."""
        if self.mesh is None:
            return None
        return self.mesh[0] * self.mesh[1] // (self.hosts.count if self.hosts else 1)

    def words(self) -> list[str]:
        """The arguments of a worker that say the same."""
        words = ["--accumulate", str(self.accumulate)]
        if self.mesh:
            words += ["--mesh", "data={},expert={}".format(*self.mesh)]
        if self.hosts:
            words += ["--hosts", f"{self.hosts.address},{self.hosts.count},{self.hosts.index}"]
        return words


def spread(mesh: str | None, accumulate: int, hosts: str | None) -> Spread:
    """What the words say. Raises BadInput for words that say nothing, or what cannot be.

    >>> spread("data=4,expert=2", 1, None).devices_of_host
    8
    """
    hosts = hosts or os.environ.get("SMELT_HOSTS") or None
    if accumulate < 1:
        raise BadInput(f"--accumulate is {accumulate}: give 1 or more micro-batches")
    asked = Spread(mesh=_mesh(mesh), accumulate=accumulate, hosts=_hosts(hosts))
    if asked.hosts:
        if asked.mesh is None:
            raise BadInput(
                f"--hosts {hosts} without --mesh: say what a run is spread over, e.g. --mesh data=2,expert=4"
            )
        if asked.mesh[0] * asked.mesh[1] % asked.hosts.count:
            raise BadInput(f"--mesh {mesh} does not divide over {asked.hosts.count} hosts: give each as many devices")
    return asked


def _mesh(words: str | None) -> tuple[int, int] | None:
    if words is None:
        return None
    sizes = {}
    for word in words.split(","):
        found = re.fullmatch(r"(data|expert)=([1-9]\d*)", word.strip())
        if found is None or found[1] in sizes:
            raise BadInput(f"--mesh {words!r}: give positive sizes of both or either axis, as in data=4,expert=2")
        sizes[found[1]] = int(found[2])
    return sizes.get("data", 1), sizes.get("expert", 1)


def _hosts(words: str | None) -> Hosts | None:
    if words is None:
        return None
    found = re.fullmatch(r"([^,\s]+:\d+),(\d+),(\d+)", words)
    if found is None or not int(found[3]) < int(found[2]):
        raise BadInput(
            f"--hosts {words!r}: give the first host's address and port, how many hosts there are, and which one this "
            "is, from 0; as in 10.0.0.1:1234,2,0"
        )
    return Hosts(address=found[1], count=int(found[2]), index=int(found[3]))


def join(asked: Spread) -> Any:
    """Meet the other hosts, where there are some, and return the mesh, None where none is asked for. The first thing
    that a process does with jax."""
    import jax

    from smelt import parallel

    if asked.hosts:
        jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
        jax.distributed.initialize(asked.hosts.address, asked.hosts.count, asked.hosts.index)
    if asked.mesh is None:
        return None
    data, expert = asked.mesh
    if asked.hosts and data * expert != jax.device_count():
        raise BadInput(
            f"--mesh data={data},expert={expert} has {data * expert} devices and {asked.hosts.count} hosts have "
            f"{jax.device_count()}: a mesh over hosts takes all of them"
        )
    return parallel.mesh(data, expert)
