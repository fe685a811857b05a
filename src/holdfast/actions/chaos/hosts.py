"""Two hosts on one machine, joined by a cable: network, name, /etc/hosts and /dev/shm of each are its own.

They are name spaces that live as long as a process in each, which ends when this one does. Of the machine's own
interfaces, firewall, name and files none is touched. Wants root, ``ip``, ``nft``, ``unshare`` and ``nsenter``.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from holdfast.errors import WorldError

DEVICE = "eth0"
#: An address range of private networks (RFC 1918) that is seldom used; it is seen in the name spaces alone.
_NETWORK = "10.213.7"
_PROGRAMS = ("ip", "nft", "unshare", "nsenter", "mount")
_UNSHARE = ("unshare", "--net", "--uts", "--mount")
#: Ports from which the kernel takes one where a program names none; gloo listens there.
_EPHEMERAL = "32768-60999"
_KEEPER = """
set -e
echo {name} > /proc/sys/kernel/hostname
mount -t tmpfs none /dev/shm
mount --bind {names} /etc/hosts
ip link set lo up
echo ready
exec cat
"""


@functools.cache
def why_not() -> str:
    """Why there can be no such hosts here; empty where they can be."""
    if os.geteuid():
        return "hosts in network name spaces need root"
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            return f"hosts in network name spaces need the program {program}"
    tried = subprocess.run([*_UNSHARE, "nft", "list", "ruleset"], capture_output=True, text=True, check=False)
    return tried.stderr.strip()


class Host:
    """One host: ``words`` in front of a command let it run there; faults stay until :meth:`mend`."""

    def __init__(self, number: int, names: Path) -> None:
        self.number, self.address = number, address(number)
        script = _KEEPER.format(name=f"node{number}", names=shlex.quote(str(names)))
        self._keeper = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
        )
        if self._keeper.stdout is None or self._keeper.stdout.readline() != b"ready\n":
            self.close()
            raise WorldError(f"the host node{number} cannot be made in name spaces")
        self.words = ("nsenter", "-t", str(self._keeper.pid), "--net", "--uts", "--mount")
        self.do("nft", "add table inet faults")
        for hook in ("input", "output"):
            self.do("nft", f"add chain inet faults {hook} {{ type filter hook {hook} priority 0; }}")

    @property
    def pid(self) -> int:
        """The process that keeps the name spaces."""
        return self._keeper.pid

    def close(self) -> None:
        """End it; what runs there lives on without a network, so end that before."""
        with self._keeper:
            self._keeper.kill()

    def do(self, *words: str) -> None:
        """Run a program here. Raises WorldError where it fails."""
        done = subprocess.run([*self.words, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise WorldError(f"node{self.number}: {shlex.join(words)} failed", why=done.stderr.strip()[:200])

    def processes(self) -> Iterator[psutil.Process]:
        """Whatever runs here, but for the one that keeps the host."""
        own = _network(self.pid)
        for process in psutil.process_iter():
            if process.pid != self.pid and own is not None and _network(process.pid) == own:
                yield process

    def cut(self, *ways: str) -> None:
        """Lose all packets, ``input`` or ``output``, in silence."""
        for way in ways:
            self.do("nft", f"add rule inet faults {way} {'iifname' if way == 'input' else 'oifname'} != lo drop")

    def block(self, ports: str = _EPHEMERAL) -> None:
        """Lose packets that would open a connection to these ports; those that are open stay so."""
        self.do("nft", f"add rule inet faults input iifname != lo ct state new tcp dport {ports} drop")

    def mend(self) -> None:
        """Take all faults away."""
        for hook in ("input", "output"):
            self.do("nft", f"flush chain inet faults {hook}")

    def shared(self) -> list[str]:
        """What lies in its /dev/shm."""
        return [path.name for path in Path(f"/proc/{self.pid}/root/dev/shm").iterdir()]


def address(number: int) -> str:
    """Of the host of that number."""
    return f"{_NETWORK}.{number + 1}"


@contextmanager
def joined(folder: Path) -> Iterator[Sequence[Host]]:
    """Two hosts that reach each other, and know each other by name (node0, node1); files are written to ``folder``.

    Raises:
        WorldError: this machine does not allow it.
    """
    names = folder / "hosts"
    known = {"localhost": "127.0.0.1", **{f"node{number}": address(number) for number in range(2)}}
    names.write_text("".join(f"{found} {name}\n" for name, found in known.items()))
    with ExitStack() as stack:
        made = []
        for number in range(2):
            made.append(Host(number, names))
            stack.callback(made[-1].close)
        first, second = made
        peer = ("type", "veth", "peer", "name", DEVICE, "netns", str(second.pid))
        first.do("ip", "link", "add", "name", DEVICE, *peer)
        for host in made:
            host.do("ip", "addr", "add", f"{host.address}/24", "dev", DEVICE)
            host.do("ip", "link", "set", DEVICE, "up")
        yield made


def _network(pid: int) -> Path | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").readlink()
    return None
