"""Facts for `holdfast report`: limits, network, InfiniBand, NUMA, kernel messages.

Read from /proc and /sys, and from the drivers' programs if installed. Nothing is changed.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from holdfast.core.findings import Fact, Unknown
from holdfast.host import cgroups, programs
from holdfast.host.cgroups import CGROUPS
from holdfast.host.host_summary import local_fact
from holdfast.host.processes import proc
from holdfast.host.processes.proc import PROC

SYS = Path("/sys")
MAX_DEVICES = 128
#: Name of the output -> command.
PROGRAMS: Mapping[str, Sequence[str]] = {
    "nvidia-smi": ("nvidia-smi",),
    "nvidia-smi-topology": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-errors": (
        "nvidia-smi",
        "-q",
        "-d",
        "ECC,PAGE_RETIREMENT,ROW_REMAPPER,PERFORMANCE,POWER",
    ),
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
_CGROUP_FILES = tuple(
    """
    memory.max memory.high memory.events cpu.max cpuset.cpus.effective pids.max pids.current
    memory.limit_in_bytes memory.failcnt cpu.cfs_quota_us
    """.split()
)


def limits(proc_root: Path = PROC, cgroups_root: Path = CGROUPS) -> Iterator[Fact]:
    """Yield the resource limits and cgroup limits of this process."""
    for name in sorted(name for name in dir(resource) if name.startswith("RLIMIT_")):
        soft, hard = (_shown(value) for value in resource.getrlimit(getattr(resource, name)))
        yield local_fact(
            f"limit {name.removeprefix('RLIMIT_').lower()}",
            f"{soft} (hard limit {hard})",
            "getrlimit",
        )
    for controller in ("memory", "cpu", "pids"):
        group = cgroups.cgroup_of("self", controller, proc_root, cgroups_root)
        if isinstance(group, Unknown):
            yield local_fact(f"cgroup of {controller}", group, "/proc/self/cgroup")
            continue
        for name in (name for name in _CGROUP_FILES if name.startswith(controller)):
            content = proc.read_text(group.folder / name)
            if isinstance(content, str):
                yield local_fact(name, " ".join(content.split()), str(group.folder / name))


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def interfaces(sys_root: Path = SYS) -> Iterator[Fact]:
    """Yield network interfaces: state, speed, MTU, errors and drops.

    Hardware addresses are omitted.
    """
    for folder in _entries(sys_root / "class/net"):
        words = [_first_line(folder / "operstate")]
        speed = _first_line(folder / "speed")
        words += [f"{speed} Mbit/s"] if speed.isdigit() else []
        words += [f"mtu {_first_line(folder / 'mtu')}"]
        for name in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped"):
            count = _first_line(folder / "statistics" / name)
            words += [f"{name} {count}"] if count not in ("", "0") else []
        yield local_fact(
            f"interface {folder.name}", ", ".join(word for word in words if word), str(folder)
        )


def infiniband(sys_root: Path = SYS) -> Iterator[Fact]:
    """Yield ports of InfiniBand and RoCE adapters: state, rate, firmware, error counters."""
    devices = _entries(sys_root / "class/infiniband")
    if not devices:
        yield local_fact("InfiniBand", "no adapter", str(sys_root / "class/infiniband"))
    for device in devices:
        kind = " ".join((_first_line(device / "hca_type"), _first_line(device / "fw_ver"))).strip()
        for port in _entries(device / "ports"):
            words = [
                kind,
                *(
                    _first_line(port / name)
                    for name in ("link_layer", "state", "phys_state", "rate")
                ),
            ]
            for name in (
                "symbol_error",
                "link_downed",
                "port_rcv_errors",
                "port_xmit_discards",
                "link_error_recovery",
            ):
                count = _first_line(port / "counters" / name)
                words += [f"{name} {count}"] if count not in ("", "0") else []
            yield local_fact(
                f"InfiniBand {device.name} port {port.name}",
                ", ".join(filter(None, words)),
                str(port),
            )


def nodes(sys_root: Path = SYS) -> Iterator[Fact]:
    """Yield NUMA nodes with their CPUs."""
    for folder in _entries(sys_root / "devices/system/node"):
        if folder.name.removeprefix("node").isdigit():
            yield local_fact(
                f"NUMA {folder.name}", f"CPUs {_first_line(folder / 'cpulist')}", str(folder)
            )


def command_outputs() -> Iterator[tuple[str, bytes | Unknown]]:
    """Yield the output of each of PROGRAMS, or why there is none.

    A missing program is tried once.
    """
    missing: dict[str, Unknown] = {}
    for name, command in PROGRAMS.items():
        answer = missing.get(command[0]) or programs.run_program(command)
        if isinstance(answer, programs.NotInstalled):
            missing[command[0]] = answer
        yield name, answer


def kernel_messages(since: float | None = None, lines: int = 5000) -> bytes | Unknown:
    """Return the last lines of the kernel log since ``since`` (Unix s), or why it is unreadable."""
    reasons = []
    for form in _KERNEL:
        answer = programs.run_program([word.format(lines=lines) for word in form])
        if isinstance(answer, bytes) and answer.strip():
            recent = list(_since(answer.splitlines(keepends=True), since))[-lines:]
            return b"".join(recent) or Unknown("no kernel messages since the evidence began")
        reasons.append(answer.why if isinstance(answer, Unknown) else f"{form[0]} printed nothing")
    return Unknown("; ".join(dict.fromkeys(reasons)))


def _since(lines: Sequence[bytes], since: float | None) -> Iterator[bytes]:
    """Yield lines from that time on; a line without a timestamp belongs to the previous one."""
    recent = True
    for line in lines:
        if since is not None:
            with suppress(ValueError):
                recent = (
                    datetime.fromisoformat(
                        line.split(b" ", 1)[0].decode(errors="replace")
                    ).timestamp()
                    >= since
                )
        if recent:
            yield line


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:MAX_DEVICES]
    except OSError:
        return []


def _first_line(path: Path) -> str:
    """Return the first line of a small file.

    Empty if unreadable (a link that is down has no speed).
    """
    content = proc.read_text(path)
    return "" if isinstance(content, Unknown) else content.partition("\n")[0].strip()
