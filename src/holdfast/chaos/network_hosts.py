"""Emulates two connected hosts on one machine, each with its own network and /dev/shm.

Each host is a set of namespaces (network, host name, mounts) that lives as long as a process in it,
which ends with this process. The machine's own interfaces, firewall, host name and files are not
modified. Requires root, ``ip``, ``nft``, ``unshare`` and ``nsenter``.
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

from holdfast.core.errors import WorldError

DEVICE = "eth0"
#: A rarely used private range (RFC 1918), visible only in the namespaces.
_NETWORK = "10.213.7"
_PROGRAMS = ("ip", "nft", "unshare", "nsenter", "mount")
_UNSHARE = ("unshare", "--net", "--uts", "--mount")
#: Ephemeral ports, on which gloo listens.
_EPHEMERAL = "32768-60999"
_HOST_SCRIPT = """
set -e
echo {name} > /proc/sys/kernel/hostname
mount -t tmpfs none /dev/shm
mount --bind {names} /etc/hosts
ip link set lo up
echo ready
exec cat
"""


@functools.cache
def unsupported_reason() -> str:
    """Return why hosts cannot be emulated here; '' if they can."""
    if os.geteuid():
        return "hosts in network namespaces need root"
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            return f"hosts in network namespaces need the program {program}"
    tried = subprocess.run(
        [*_UNSHARE, "nft", "list", "ruleset"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip()


class NetworkHost:
    """One host. ``command_prefix`` runs a command there; faults stay until :meth:`heal`."""

    def __init__(self, number: int, names: Path) -> None:
        self.number, self.address = number, host_address(number)
        script = _HOST_SCRIPT.format(name=f"node{number}", names=shlex.quote(str(names)))
        self._holder = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
        )
        if self._holder.stdout is None or self._holder.stdout.readline() != b"ready\n":
            self.close()
            raise WorldError(f"creating the namespaces of host node{number} failed")
        self.command_prefix = ("nsenter", "-t", str(self._holder.pid), "--net", "--uts", "--mount")
        self.run_command("nft", "add table inet faults")
        for hook in ("input", "output"):
            self.run_command(
                "nft", f"add chain inet faults {hook} {{ type filter hook {hook} priority 0; }}"
            )

    @property
    def pid(self) -> int:
        """Return the process that holds the namespaces."""
        return self._holder.pid

    def close(self) -> None:
        """End the host; its processes continue without a network, so end them first."""
        with self._holder:
            self._holder.kill()

    def run_command(self, *arguments: str) -> None:
        """Run a program on this host. Raises WorldError if it fails."""
        command = [*self.command_prefix, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WorldError(
                f"node{self.number}: {shlex.join(arguments)} failed", why=done.stderr.strip()[:200]
            )

    def processes(self) -> Iterator[psutil.Process]:
        """Yield the processes on this host, except the one that holds the namespaces."""
        own = _network_namespace(self.pid)
        for process in psutil.process_iter():
            if (
                process.pid != self.pid
                and own is not None
                and _network_namespace(process.pid) == own
            ):
                yield process

    def cut(self, *directions: str) -> None:
        """Drop all ``input`` or ``output`` packets."""
        for direction in directions:
            interface = "iifname" if direction == "input" else "oifname"
            self.run_command("nft", f"add rule inet faults {direction} {interface} != lo drop")

    def block(self, ports: str = _EPHEMERAL) -> None:
        """Drop packets that open connections to these ports; open connections continue."""
        self.run_command(
            "nft", f"add rule inet faults input iifname != lo ct state new tcp dport {ports} drop"
        )

    def heal(self) -> None:
        """Remove all faults."""
        for hook in ("input", "output"):
            self.run_command("nft", f"flush chain inet faults {hook}")

    def shared_memory(self) -> list[str]:
        """Return the names in its /dev/shm."""
        return [path.name for path in Path(f"/proc/{self.pid}/root/dev/shm").iterdir()]


def host_address(number: int) -> str:
    """Return the address of a host."""
    return f"{_NETWORK}.{number + 1}"


@contextmanager
def connected_hosts(folder: Path) -> Iterator[Sequence[NetworkHost]]:
    """Create two connected hosts that resolve each other's names (node0, node1).

    Raises:
        WorldError: this machine does not support it.
    """
    names = folder / "hosts"
    host_names = {
        "localhost": "127.0.0.1",
        **{f"node{number}": host_address(number) for number in range(2)},
    }
    names.write_text("".join(f"{ip} {name}\n" for name, ip in host_names.items()))
    with ExitStack() as stack:
        hosts = []
        for number in range(2):
            hosts.append(NetworkHost(number, names))
            stack.callback(hosts[-1].close)
        first, second = hosts
        peer = ("type", "veth", "peer", "name", DEVICE, "netns", str(second.pid))
        first.run_command("ip", "link", "add", "name", DEVICE, *peer)
        for host in hosts:
            host.run_command("ip", "addr", "add", f"{host.address}/24", "dev", DEVICE)
            host.run_command("ip", "link", "set", DEVICE, "up")
        yield hosts


def _network_namespace(pid: int) -> Path | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").readlink()
    return None
