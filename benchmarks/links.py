"""Links with latency on one machine: network name spaces whose packets a process hands on when they are due.

Wants root, ``ip`` and /dev/net/tun; ``tc netem`` would do it in the kernel, which many kernels are built without.
``tests/hosts.py`` has whole hosts, between which packets can be lost, refused or changed; they too use this courier.
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
    """What is missing for links with latency; empty where nothing is."""
    if os.geteuid():
        return "links with latency need root"
    if shutil.which("ip") is None:
        return "links with latency need the program ip"
    return "" if os.access("/dev/net/tun", os.W_OK) else "links with latency need /dev/net/tun"


@contextmanager
def slow_links(size: int, round_trip_ms: float) -> Iterator[list[tuple[str, str]]]:
    """So many network name spaces, and the device in each that leads to the others, and takes its time."""
    spaces = [f"holdfast{os.getpid()}-{number}" for number in range(size)]
    try:
        for space in spaces:
            subprocess.run(["ip", "netns", "add", space], check=True)
            subprocess.run(["ip", "-n", space, "link", "set", "lo", "up"], check=True)
        with courier([f"/run/netns/{space}" for space in spaces], round_trip_ms):
            yield [(space, DEVICE) for space in spaces]
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


@contextmanager
def courier(spaces: Sequence[str], round_trip_ms: float, device: str = DEVICE) -> Iterator[None]:
    """Join the name spaces, given as files: each gets a ``device`` whose packets a process hands on when due."""
    command = [sys.executable, "-m", "benchmarks.links", str(round_trip_ms / 2), device, *spaces]
    carrying = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    try:
        assert carrying.stdout is not None
        assert carrying.stdout.readline() == b"ready\n"
        yield
    finally:
        carrying.kill()
        carrying.communicate()


def _open(space: str, number: int, name: str) -> int:
    """A device in the name space, as the descriptor that gives the packets it sends and takes those it gets."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net", "rb") as home, open(space, "rb") as there:  # noqa: PTH123
        assert libc.setns(there.fileno(), _NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
        subprocess.run(["ip", "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", name], check=True)
        subprocess.run(["ip", "link", "set", name, "mtu", str(_LARGEST), "up"], check=True)
        assert libc.setns(home.fileno(), _NEW_NETWORK) == 0
    return device


def _carry(delay_s: float, devices: list[int]) -> None:
    """Hand on packets for ever; what is sent to an address that is nobody's is dropped."""
    network = bytes(map(int, NETWORK.split(".")))
    under_way: deque[tuple[float, int, bytes]] = deque()
    watched = select.epoll()
    for device in devices:
        watched.register(device, select.EPOLLIN)
    while True:
        left = under_way[0][0] - time.monotonic() if under_way else -1
        for device, _ in watched.poll(max(left, 0) if under_way else -1):
            packet = os.read(device, _LARGEST + 1)
            if packet[0] >> 4 == 4 and packet[16:19] == network and 0 < packet[19] <= len(devices):
                under_way.append((time.monotonic() + delay_s, devices[packet[19] - 1], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, device, packet = under_way.popleft()
            os.write(device, packet)


if __name__ == "__main__":
    opened = [_open(space, number, sys.argv[2]) for number, space in enumerate(sys.argv[3:])]
    print("ready", flush=True)
    _carry(float(sys.argv[1]) / 1000, opened)
