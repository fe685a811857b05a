"""Faults that prevent hosts from starting a job, in network namespaces, with the expected cause.

Used by ``tests/process/test_bring_up.py`` and by ``benchmarks/bring_up.py``, which compares with
torchrun.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tests.network_namespaces import EPHEMERAL, NOBODY, Host, Started

PORT = 29500
#: Occupies the port without sending anything, like a leftover process of an earlier job.
_LISTENER = f"import socket, time; listener = socket.create_server(('', {PORT})); print('ready', flush=True); time.sleep(600)"


def no_fault(*_hosts: Host) -> None:
    """Inject no fault."""


@dataclass(frozen=True)
class Fault:
    """A fault: ``make`` injects it before the job starts.

    ``causes``: the expected causes, one per host or one for all, because disconnected hosts observe
    different symptoms. ``words`` must be in the finding's message. ``silent`` hosts, counted from 0,
    are not started. ``later`` is called once the others are started. The other fields are the
    arguments of the hosts.
    """

    name: str
    causes: tuple[str, ...]
    words: tuple[str, ...] = ()
    make: Callable[..., object] = no_fault
    count: int = 2
    endpoint: str = "node0"
    nodes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    variables: tuple[Mapping[str, str], ...] = ()
    silent: tuple[int, ...] = ()
    later: Callable[..., object] | None = None

    def cause(self, at: int) -> str:
        """Return the expected cause on a host."""
        return self.causes[at % len(self.causes)]

    def place(self, at: int) -> tuple[int, int]:
        """Return the rank and world size passed to a host."""
        return (self.ranks or range(self.count))[at], (self.nodes or (self.count,) * self.count)[at]


def _take_port(first: Host, _: Host) -> None:
    listener = first.start(sys.executable, "-c", _LISTENER)
    while "ready" not in listener.output:
        time.sleep(0.02)


def _own_name_is_loopback(first: Host, second: Host) -> None:
    first.names({"node0": "127.0.1.1", "node1": second.address})
    second.names({"node0": first.address, "node1": "127.0.1.1"})


def _name_resolves_to_unused_address(_: Host, second: Host) -> None:
    second.names({"node0": NOBODY, "node1": second.address})


def _wrong_interface(first: Host, second: Host) -> None:
    for host in (first, second):
        host.interface("docker0", "172.17.0.1/16")  # the same address on all hosts, without a route


def _partition(first: Host, second: Host) -> None:
    """Partition the hosts once they are connected."""
    until = time.monotonic() + 20
    while (
        not first.do("ss", "-Htn", "state", "established", "sport", f"= :{PORT}")
        and time.monotonic() < until
    ):
        time.sleep(0.02)
    time.sleep(0.2)
    first.drop()
    second.drop()


_DOCKER = {"GLOO_SOCKET_IFNAME": "docker0", "NCCL_SOCKET_IFNAME": "docker0"}
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
_MISSING = {"GLOO_SOCKET_IFNAME": "eth9"}
_FIREWALL, _INTERFACE, _MASTER = (
    ("firewall-blocked-ports",),
    ("network-interface-wrong",),
    ("master-unreachable",),
)
_NEVER, _ARGUMENTS = "host-never-arrived", ("launch-arguments-differ",)

FAULTS: tuple[Fault, ...] = (
    Fault("master port dropped", _FIREWALL, ("29500",), lambda first, _: first.drop(PORT)),
    Fault(
        "master port rejected",
        _FIREWALL,
        ("29500",),
        lambda first, _: first.reject(PORT, told="icmpx admin-prohibited"),
    ),
    Fault(
        "master port reset",
        _FIREWALL,
        ("29500",),
        lambda first, _: first.reject(PORT, told="tcp reset"),
    ),
    Fault(
        "data ports dropped", _FIREWALL, ("node1", "node0"), lambda first, _: first.drop(EPHEMERAL)
    ),
    Fault(
        "data ports rejected",
        _FIREWALL,
        ("node1", "node0"),
        lambda first, _: first.reject(EPHEMERAL),
    ),
    Fault(
        "data ports dropped in one direction",
        _FIREWALL,
        ("from node0", "of node1"),
        lambda first, second: second.drop(EPHEMERAL, peer=first),
    ),
    Fault(
        "one host dropped",
        (_NEVER, *_FIREWALL),
        ("node0",),
        lambda first, second: first.drop(peer=second),
    ),
    Fault(
        "interface that leads nowhere",
        _INTERFACE,
        ("172.17.0.1",),
        _wrong_interface,
        variables=(_DOCKER, _DOCKER),
    ),
    Fault("interface is loopback", _INTERFACE, ("=lo",), variables=(_LOOPBACK, _LOOPBACK)),
    Fault("interface is missing", _INTERFACE, ("eth9", "node1"), variables=({}, _MISSING)),
    Fault("name is unknown", ("hostname-resolution",), ("node7",), endpoint="node7"),
    Fault(
        "name means another address",
        (_NEVER, *_MASTER),
        ("node0",),
        _name_resolves_to_unused_address,
    ),
    Fault("address is unused", _MASTER, (NOBODY,), endpoint=NOBODY),
    Fault("address has no route", _MASTER, ("10.9.9.9",), endpoint="10.9.9.9"),
    Fault("address is loopback", _MASTER, ("127.0.0.1",), endpoint="127.0.0.1"),
    Fault("address is the other host's", _MASTER, ("node1", "not of node0"), endpoint="node1"),
    Fault("port is taken", ("port-in-use",), ("29500", "node0"), _take_port),
    Fault("own name is 127.0.1.1", _INTERFACE, ("127.0.1.1",), _own_name_is_loopback),
    Fault(
        "large packets are lost",
        ("mtu-black-hole",),
        ("node1", "node0"),
        lambda first, _: first.lose_large(),
    ),
    Fault(
        "interface with a small MTU",
        ("mtu-black-hole",),
        ("1200 bytes on node1",),
        lambda _, second: second.mtu(1200),
    ),
    Fault("second rank never starts", (_NEVER,), ("node 1",), silent=(1,)),
    Fault("first rank never starts", _MASTER, ("node 0",), silent=(0,)),
    Fault("world of 2 and of 3", _ARGUMENTS, ("2 on node0", "3 on node1"), nodes=(2, 3)),
    Fault("rank 0 twice", _ARGUMENTS, ("node rank 0", "node0, node1"), ranks=(0, 0)),
    Fault(
        "clock is 3 s fast",
        ("clocks-differ",),
        ("node1", "3.0"),
        lambda _, second: second.shift_clock(3),
    ),
    Fault(
        "slow link",
        ("slow-link",),
        ("node3",),
        lambda *machines: machines[3].limit("100mbit"),
        count=4,
    ),
    Fault("partition in mid-run", ("network-fabric-fault",), ("node1",), later=_partition),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


def start(
    fault: Fault,
    machines: list[Host],
    words: Callable[[Fault, int], list[str]],
    *,
    fork: bool = False,
) -> list[Started | None]:
    """Inject the fault and start Python with ``words(fault, at)`` on each host; None: not started."""
    fault.make(*machines)
    started = [
        None
        if at in fault.silent
        else (host.fork if fork else partial(host.start, sys.executable))(
            *words(fault, at), **(fault.variables[at] if fault.variables else {})
        )
        for at, host in enumerate(machines)
    ]
    if fault.later is not None:
        fault.later(*machines)
    return started


def check(fault: Fault, at: int) -> list[str]:
    """Return the arguments of ``holdfast check --connect`` for a host."""
    rank, size = fault.place(at)
    place = (
        "--rank",
        rank,
        "--world-size",
        size,
        "--master-addr",
        fault.endpoint,
        "--master-port",
        PORT,
    )
    return [*map(str, ("-m", "holdfast", "check", "--connect", "--json", *place))]
