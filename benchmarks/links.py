"""Links with latency on one machine: network namespaces whose packets a process delays.

Requires root, ``ip`` and /dev/net/tun; ``tc netem`` would do this in the kernel, but many kernels
lack it. ``tests/network_namespaces.py`` provides complete hosts, between which packets can be lost,
rejected or changed; they use this courier too.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001  # linux/if_tun.h
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_LARGEST = 65_000
DEVICE = "tun0"
NETWORK = "10.203.77"  # the hosts in it are 1, 2, ...


def why_not() -> str:
    """Return what is missing for links with latency; empty if nothing is."""
    if os.geteuid():
        return "links with latency need root"
    if shutil.which("ip") is None:
        return "links with latency need the program ip"
    return "" if os.access("/dev/net/tun", os.W_OK) else "links with latency need /dev/net/tun"


@contextmanager
def slow_links(size: int, round_trip_ms: float) -> Iterator[list[tuple[str, str]]]:
    """Yield (network namespace, device) pairs; the devices are connected with this latency."""
    namespaces = [f"holdfast{os.getpid()}-{number}" for number in range(size)]
    try:
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "add", namespace], check=True)
            subprocess.run(["ip", "-n", namespace, "link", "set", "lo", "up"], check=True)
        with courier([f"/run/netns/{namespace}" for namespace in namespaces], round_trip_ms):
            yield [(namespace, DEVICE) for namespace in namespaces]
    finally:
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


@contextmanager
def courier(
    namespaces: Sequence[str], round_trip_ms: float, device: str = DEVICE
) -> Iterator[None]:
    """Connect the namespaces (as files) with a ``device`` in each whose packets are delayed."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.links",
        str(round_trip_ms / 2),
        device,
        *namespaces,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.communicate()


def _open(namespace: str, number: int, name: str) -> int:
    """Create a device in the namespace; return the descriptor for its packets."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net", "rb") as home, open(namespace, "rb") as target:  # noqa: PTH123
        assert libc.setns(target.fileno(), _NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
        subprocess.run(["ip", "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", name], check=True)
        subprocess.run(["ip", "link", "set", name, "mtu", str(_LARGEST), "up"], check=True)
        assert libc.setns(home.fileno(), _NEW_NETWORK) == 0
    return device


def _carry(delay_s: float, devices: list[int]) -> None:
    """Forward packets until killed; packets to unused addresses are dropped."""
    network = bytes(map(int, NETWORK.split(".")))
    in_flight: deque[tuple[float, int, bytes]] = deque()
    watched = select.epoll()
    for device in devices:
        watched.register(device, select.EPOLLIN)
    while True:
        remaining_s = in_flight[0][0] - time.monotonic() if in_flight else -1
        for device, _ in watched.poll(max(remaining_s, 0) if in_flight else -1):
            packet = os.read(device, _LARGEST + 1)
            if packet[0] >> 4 == 4 and packet[16:19] == network and 0 < packet[19] <= len(devices):
                in_flight.append((time.monotonic() + delay_s, devices[packet[19] - 1], packet))
        while in_flight and in_flight[0][0] <= time.monotonic():
            _, device, packet = in_flight.popleft()
            os.write(device, packet)


if __name__ == "__main__":
    opened = [
        _open(namespace, number, sys.argv[2]) for number, namespace in enumerate(sys.argv[3:])
    ]
    print("ready", flush=True)
    _carry(float(sys.argv[1]) / 1000, opened)
