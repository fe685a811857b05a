"""Simulated hosts on one machine: own network, processes, host name, /etc/hosts and /dev/shm each.

    with hosts(2) as (first, second):
        first.drop(port=29500)
        second.start(sys.executable, "-m", "holdfast", ...)

A host is a set of namespaces that exists as long as its first process; when that ends, the kernel
removes everything in it. The machine's own interfaces, firewall, name and files are not changed.
Requires root, ``ip``, ``nft`` and ``unshare``.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.links import NETWORK, courier
from tests.fork_server import fork_server
from tests.forked_programs import run_forking

LIMIT_S, _NEVER_S = 60, 3600
DEVICE = "eth0"
#: An unused address: packets are lost after the kernel's ARP requests, about three seconds.
NOBODY = f"{NETWORK}.99"
#: Ephemeral ports, which gloo and NCCL listen on.
EPHEMERAL = "32768-60999"
_PROGRAMS = ("ip", "nft", "tc", "unshare", "nsenter")
_UNSHARE = (
    "unshare",
    "--net",
    "--uts",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
_HOST_SCRIPT = """
set -e
echo {name} > /proc/sys/kernel/hostname
mount -t tmpfs none /dev/shm
for file in hosts resolv.conf nsswitch.conf; do
    [ ! -e /etc/$file ] || mount --bind {folder}/$file /etc/$file
done
ip link set lo up
echo ready
exec sleep infinity
"""
# Shifts time.time(); a time namespace shifts only the monotonic clocks.
_SHIFT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *result) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, result);
    if (!failed && clock == CLOCK_REALTIME && getenv("SHIFTED_S")) result->tv_sec += atoi(getenv("SHIFTED_S"));
    return failed;
}
"""


@functools.cache
def why_not() -> str:
    """Return why such hosts are impossible here; empty if they are possible."""
    if os.geteuid():
        return "hosts in network namespaces require root"
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            return f"hosts in network namespaces require the program {program}"
    tried = subprocess.run(
        [*_UNSHARE, "nft", "list", "ruleset"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip()


class Started:
    """A program on a host, with output to files; ``took_s`` is None while it runs.

    ``start`` starts it with these open files.
    """

    def __init__(self, start, folder):
        self._out, self._err = (Path(tempfile.mkstemp(dir=folder)[1]) for _ in range(2))
        self.took_s = self.status = None
        began = time.monotonic()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = start(stdout=out, stderr=err)
        self._waiter = threading.Thread(target=self._await, args=(began,), daemon=True)
        self._waiter.start()

    @property
    def output(self):
        return self._out.read_text(errors="replace")

    @property
    def errors(self):
        return self._err.read_text(errors="replace")

    def _await(self, began):
        self.status = self._process.wait(_NEVER_S)
        self.took_s = time.monotonic() - began

    def wait(self, limit_s=LIMIT_S):
        """Wait for the program; return its exit status. Fails if it exceeds the limit."""
        self._waiter.join(limit_s)
        assert self.took_s is not None, f"not ended in {limit_s} s: {self.output}{self.errors}"
        return self.status

    def kill(self):
        """Kill the program and its process group."""
        if self.took_s is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._waiter.join()


class Host:
    """One host; faults last until :meth:`mend`. A host drops packets that are sent to it.

    ``variables`` are set for programs started later.
    """

    def __init__(self, number, folder, switch):
        self.number, self.name, self.address = number, f"node{number}", f"{NETWORK}.{number + 1}"
        self.folder, self._switch, self.variables = folder, switch, {}
        folder.mkdir()
        self.names({})
        self.resolver("127.0.0.1")  # no DNS server: names not in /etc/hosts fail at once
        (folder / "nsswitch.conf").write_text("hosts: files dns\n")
        self._started = []
        script = _HOST_SCRIPT.format(name=self.name, folder=shlex.quote(str(folder)))
        self._unshared = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        line = self._unshared.stdout.readline()
        assert line == b"ready\n", f"the host {self.name} cannot be created"
        children = Path(
            f"/proc/{self._unshared.pid}/task/{self._unshared.pid}/children"
        ).read_text()
        self.pid = int(children)
        self._enter = ("nsenter", "-t", str(self.pid), "--net", "--uts", "--mount", "--pid")
        self.do(
            "nft",
            "add table inet faults; add chain inet faults input { type filter hook input priority 0; }",
        )

    def close(self):
        for each in self._started:
            each.kill()
        self._unshared.kill()  # --kill-child: the kernel kills all processes of the host
        self._unshared.communicate()

    def die(self):
        """Kill the host: all processes and its memory."""
        self._unshared.kill()

    # ---- programs

    def start(self, *words, folder=None, **variables):
        """Start a program in ``folder``, by default the host's, with additional variables."""
        start = functools.partial(
            subprocess.Popen,
            [*self._enter, *map(str, words)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=self._environment(variables),
            cwd=folder or self.folder,
        )
        self._started.append(Started(start, self.folder))
        return self._started[-1]

    def fork(self, *words, folder=None, **variables):
        """Start ``-m MODULE …`` or ``SCRIPT …`` in ``folder``; it and its Python child processes are forked.

        With a shifted clock, they are interpreters, which load the library that shifts it.
        """
        if "LD_PRELOAD" in self.variables:
            return self.start(sys.executable, *words, folder=folder, **variables)
        start = functools.partial(
            fork_server().start,
            run_forking,
            *map(str, words),
            environment=self._environment(variables),
            folder=folder or self.folder,
            inside=self.pid,
        )
        self._started.append(Started(start, self.folder))
        return self._started[-1]

    def _environment(self, variables):
        own = {"COLUMNS": "120", "OMP_NUM_THREADS": "1"}
        return os.environ | own | self.variables | variables

    def do(self, *words):
        """Run a program that must succeed; return its output."""
        done = subprocess.run(
            [*self._enter, *map(str, words)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{self.name}: {shlex.join(map(str, words))}: {done.stderr}"
        return done.stdout

    # ---- network faults

    def _fault(self, verdict, port, peer, direction):
        if direction == "out" and not self._has_output:
            self.do("nft", "add chain inet faults output { type filter hook output priority 0; }")
        matched = "iifname != lo " if direction == "in" else "oifname != lo "
        if peer is not None:
            matched += f"ip {'saddr' if direction == 'in' else 'daddr'} {peer.address} "
        if port is not None:  # open connections stay open, as with any firewall
            matched += f"ct state new tcp dport {port} "
        self.do("nft", f"add rule inet faults {direction}put {matched}{verdict}")

    @property
    def _has_output(self):
        return "hook output" in self.do("nft", "list table inet faults")

    def drop(self, port=None, peer=None, direction="in"):
        """Drop packets: to one port ("29500", EPHEMERAL), from one peer, or all."""
        self._fault("drop", port, peer, direction)

    def reject(self, port=None, peer=None, direction="in", told="icmpx port-unreachable"):
        """Reject packets with the reply ``told``.

        Other replies: ``icmpx admin-prohibited`` (firewalld), ``tcp reset``.
        """
        self._fault(f"reject with {told}", port, peer, direction)

    def lose_large(self, largest=1400):
        """Drop larger packets to this host in the switch without ICMP errors (MTU black hole)."""
        self._switch.on_port(self, f"meta length > {largest} drop")

    def mend(self):
        """Remove all firewall rules of faults on this host and in the switch."""
        self.do("nft", "flush chain inet faults input")
        if self._has_output:
            self.do("nft", "flush chain inet faults output")
        self._switch.mend(self)

    def mtu(self, size):
        """Set the interface's MTU."""
        self.do("ip", "link", "set", DEVICE, "mtu", size)

    def link(self, state):
        """Set the interface ``down`` or ``up``."""
        self.do("ip", "link", "set", DEVICE, state)

    def limit(self, rate):
        """Limit the interface's rate to ``rate`` ("100mbit")."""
        self.do(
            "tc",
            "qdisc",
            "replace",
            "dev",
            DEVICE,
            "root",
            "tbf",
            "rate",
            rate,
            "burst",
            "64kb",
            "latency",
            "50ms",
        )

    def interface(self, name, address):
        """Add another interface that is up and has no route, like docker0."""
        self.do("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        self.do("ip", "addr", "add", address, "dev", name)
        for end in (name, f"{name}-end"):
            self.do("ip", "link", "set", end, "up")

    # ---- name and clock faults

    def names(self, known):
        """Write /etc/hosts: localhost and ``known`` names."""
        lines = [
            f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **known}.items()
        ]
        (self.folder / "hosts").write_text("".join(lines))

    def resolver(self, address):
        """Set the DNS server."""
        (self.folder / "resolv.conf").write_text(f"nameserver {address}\n")

    def shift_clock(self, seconds):
        """Shift the clock of programs started later by whole seconds."""
        source, library = self.folder / "shift.c", self.folder / "shift.so"
        source.write_text(_SHIFT)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.variables |= {"LD_PRELOAD": str(library), "SHIFTED_S": str(seconds)}


class _Switch:
    """The bridge between the hosts, in its own network namespace."""

    def __init__(self):
        self._unshared = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._unshared.stdout.readline() == b"ready\n"
        self._do("ip", "link", "add", "switch", "type", "bridge", "forward_delay", 0)
        self._do("ip", "link", "set", "switch", "up")
        self._do("nft", "add table bridge faults")

    def _do(self, *words):
        command = ["nsenter", "-t", str(self._unshared.pid), "--net", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"the switch: {shlex.join(map(str, words))}: {done.stderr}"

    def plug(self, host):
        port = f"port{host.number}"
        self._do(
            "ip", "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", host.pid
        )
        self._do("ip", "link", "set", port, "master", "switch", "up")
        self._do(
            "nft", f"add chain bridge faults {port} {{ type filter hook forward priority 0; }}"
        )
        host.do("ip", "addr", "add", f"{host.address}/24", "dev", DEVICE)
        host.do("ip", "link", "set", DEVICE, "up")

    def on_port(self, host, rule):
        self._do(
            "nft", f"add rule bridge faults port{host.number} oifname port{host.number} {rule}"
        )

    def mend(self, host):
        self._do("nft", f"flush chain bridge faults port{host.number}")

    def close(self):
        self._unshared.kill()
        self._unshared.communicate()


@contextmanager
def hosts(count: int, round_trip_ms: float = 0) -> Iterator[list[Host]]:
    """Yield ``count`` hosts that can connect to each other by name (node0, node1, ...).

    With ``round_trip_ms``, a courier replaces the switch, which then cannot drop large packets.
    """
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="holdfast-hosts-", ignore_cleanup_errors=True)
            )
        )
        switch = _Switch()
        stack.callback(switch.close)
        created = []
        for number in range(count):
            created.append(Host(number, folder / f"node{number}", switch))
            stack.callback(created[-1].close)
        if round_trip_ms:
            stack.enter_context(
                courier([f"/proc/{host.pid}/ns/net" for host in created], round_trip_ms, DEVICE)
            )
        else:
            for host in created:
                switch.plug(host)
        for host in created:
            host.names({other.name: other.address for other in created})
        yield created
