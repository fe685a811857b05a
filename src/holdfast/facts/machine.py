"""What a report says of the machine beyond facts/host.py: limits, network, InfiniBand, NUMA, kernel messages.

Read from /proc and /sys, and from the programs of the drivers where they are installed. Nothing is changed.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from holdfast.facts import cgroups, proc, programs
from holdfast.facts.cgroups import CGROUPS
from holdfast.facts.host import seen_here
from holdfast.facts.proc import PROC
from holdfast.findings import Fact, Unknown

SYS = Path("/sys")
MOST_DEVICES = 128
#: What is asked of programs: name of the answer -> the command.
PROGRAMS: Mapping[str, Sequence[str]] = {
    "nvidia-smi": ("nvidia-smi",),
    "nvidia-smi-topology": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-errors": ("nvidia-smi", "-q", "-d", "ECC,PAGE_RETIREMENT,ROW_REMAPPER,PERFORMANCE,POWER"),
    "rocm-smi": ("rocm-smi",),
    "ibstat": ("ibstat",),
    "ip-link": ("ip", "-statistics", "link"),
    "ip-address": ("ip", "address"),
    "ip-route": ("ip", "route"),
}
_KERNEL = (
    ("dmesg", "--time-format", "iso"),
    ("dmesg",),
    ("journalctl", "-k", "--no-pager", "-o", "short-iso", "-n", "{lines}"),
)
_CGROUP_FILES = ("memory.max", "memory.high", "memory.events", "cpu.max", "cpuset.cpus.effective", "pids.max",
                 "pids.current", "memory.limit_in_bytes", "memory.failcnt", "cpu.cfs_quota_us")  # fmt: skip


def limits(proc_root: Path = PROC, cgroups_root: Path = CGROUPS) -> Iterator[Fact]:
    """What this process may use, as its shell and its control group say."""
    for name in sorted(name for name in dir(resource) if name.startswith("RLIMIT_")):
        soft, hard = (_shown(value) for value in resource.getrlimit(getattr(resource, name)))
        yield seen_here(f"limit {name.removeprefix('RLIMIT_').lower()}", f"{soft} (at most {hard})", "getrlimit")
    for controller in ("memory", "cpu", "pids"):
        group = cgroups.of("self", controller, proc_root, cgroups_root)
        if isinstance(group, Unknown):
            yield seen_here(f"control group of {controller}", group, "/proc/self/cgroup")
            continue
        for name in (name for name in _CGROUP_FILES if name.startswith(controller)):
            content = proc.text(group.folder / name)
            if isinstance(content, str):
                yield seen_here(name, " ".join(content.split()), str(group.folder / name))


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def interfaces(sys_root: Path = SYS) -> Iterator[Fact]:
    """Network interfaces: state, speed, size of packets, errors and drops. Hardware addresses are left out."""
    for folder in _listed(sys_root / "class/net"):
        words = [_first(folder / "operstate")]
        speed = _first(folder / "speed")
        words += [f"{speed} Mbit/s"] if speed.isdigit() else []
        words += [f"mtu {_first(folder / 'mtu')}"]
        for name in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped"):
            count = _first(folder / "statistics" / name)
            words += [f"{name} {count}"] if count not in ("", "0") else []
        yield seen_here(f"interface {folder.name}", ", ".join(word for word in words if word), str(folder))


def infiniband(sys_root: Path = SYS) -> Iterator[Fact]:
    """Ports of InfiniBand and RoCE adapters: state, rate, firmware, counters of errors."""
    devices = _listed(sys_root / "class/infiniband")
    if not devices:
        yield seen_here("InfiniBand", "no adapter by the kernel", str(sys_root / "class/infiniband"))
    for device in devices:
        kind = " ".join((_first(device / "hca_type"), _first(device / "fw_ver"))).strip()
        for port in _listed(device / "ports"):
            words = [kind, *(_first(port / name) for name in ("link_layer", "state", "phys_state", "rate"))]
            for name in ("symbol_error", "link_downed", "port_rcv_errors", "port_xmit_discards", "link_error_recovery"):
                count = _first(port / "counters" / name)
                words += [f"{name} {count}"] if count not in ("", "0") else []
            yield seen_here(f"InfiniBand {device.name} port {port.name}", ", ".join(filter(None, words)), str(port))


def nodes(sys_root: Path = SYS) -> Iterator[Fact]:
    """NUMA nodes with their processors."""
    for folder in _listed(sys_root / "devices/system/node"):
        if folder.name.removeprefix("node").isdigit():
            yield seen_here(f"NUMA {folder.name}", f"processors {_first(folder / 'cpulist')}", str(folder))


def answers() -> Iterator[tuple[str, bytes | Unknown]]:
    """What each of PROGRAMS says, or why nothing; a program that is missing is asked once."""
    missing: dict[str, Unknown] = {}
    for name, command in PROGRAMS.items():
        answer = missing.get(command[0]) or programs.said(command)
        if isinstance(answer, programs.NotInstalled):
            missing[command[0]] = answer
        yield name, answer


def kernel_messages(since: float | None = None, lines: int = 5000) -> bytes | Unknown:
    """The last lines of the kernel's log, from ``since`` (Unix seconds) on, or why they are closed to us."""
    reasons = []
    for form in _KERNEL:
        answer = programs.said([word.format(lines=lines) for word in form])
        if isinstance(answer, bytes) and answer.strip():
            recent = list(_since(answer.splitlines(keepends=True), since))[-lines:]
            return b"".join(recent) or Unknown("the kernel has said nothing since the evidence began")
        reasons.append(answer.why if isinstance(answer, Unknown) else f"{form[0]} says nothing")
    return Unknown("; ".join(dict.fromkeys(reasons)))


def _since(lines: Sequence[bytes], since: float | None) -> Iterator[bytes]:
    """Lines from that time on; one without a time belongs to the one before it."""
    recent = True
    for line in lines:
        if since is not None:
            with suppress(ValueError):
                recent = datetime.fromisoformat(line.split(b" ", 1)[0].decode(errors="replace")).timestamp() >= since
        if recent:
            yield line


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:MOST_DEVICES]
    except OSError:
        return []


def _first(path: Path) -> str:
    """The first line of a small file; nothing where it cannot be read (a link that is down has no speed)."""
    content = proc.text(path)
    return "" if isinstance(content, Unknown) else content.partition("\n")[0].strip()
