"""Kernel log messages of the last week about GPUs (Xid), PCI devices and adapters."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host import machine_report, pci
from holdfast.host.checks import CheckContext, CheckResult, check_fact

#: In a recorded tree: the output of ``dmesg --time-format iso``.
RECORDED_FILE = "dmesg.txt"
ORIGIN = "kernel log"
RECENT_S = 7 * 86400.0
_MAX_LINES = 20_000
_MAX_EVENTS = 200
_BUS = r"(?P<device>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
#: Kinds of lines; the first match counts. ``device`` is a bus address, ``number`` an Xid.
KINDS = {
    "xid": rf"NVRM: Xid \((?:PCI:)?{_BUS}\): (?P<number>\d+)",
    "lost": rf"NVRM: (?:The NVIDIA )?GPU (?:at PCI:)?{_BUS}.{{0,120}}fallen off the bus"
    r"|NVRM: fallen off the bus",
    "sxid": rf"nvidia-nvswitch\d+: SXid \(PCI:{_BUS}\): (?P<number>\d+)",
    "aer": rf"{_BUS}:? (?:AER|PCIe Bus Error): "
    r".{0,40}(?:[Uu]ncorrect|severity=Uncorrected|Fatal)",
    "amdgpu": rf"amdgpu {_BUS}: "
    r".{0,40}(?:GPU reset begin|ring \S+ timeout|uncorrectable hardware error)",
    "adapter": rf"mlx5_core {_BUS}: "
    r".{0,80}(?:health compromised|device's health|failed reclaiming pages|fw fatal)",
    "link-down": rf"mlx5_core {_BUS} \S+: .{{0,20}}[Ll]ink [Dd](?:own|OWN)",
}
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}
#: Prefilter: a line without any of these words matches no pattern.
_WORDS = re.compile(r"NVRM|SXid|severity=Uncorr|Fatal|[Uu]ncorrect|amdgpu|mlx5_core")


class KernelLogEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one kind and device: their count, the last one, its age (None without a time)."""

    kind: str
    device: str
    number: int | None
    count: int
    text: str
    age_s: float | None


class KernelLogResult(CheckResult, frozen=True, kw_only=True):
    """The events of the log, or why the log is unreadable."""

    events: tuple[KernelLogEvent, ...] | Unknown = ()
    lines: int = 0

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if self.absent:
            return (check_fact(ORIGIN, self.absent, pci.DEVICES),)
        if isinstance(self.events, Unknown):
            return (check_fact(ORIGIN, self.events, "dmesg, journalctl"),)
        facts = tuple(
            check_fact(ORIGIN, f"{event.count} x {event.text}", "dmesg") for event in self.events
        )
        return facts or (
            check_fact(
                ORIGIN, f"no GPU or adapter errors in {self.lines} lines of the last week", "dmesg"
            ),
        )


def inspect(context: CheckContext) -> KernelLogResult:
    """Read the log if this host has a GPU or an InfiniBand adapter."""
    recorded = context.path(RECORDED_FILE)
    if context.root == "/":
        devices = pci.pci_devices()
        if not isinstance(devices, Unknown) and not any(
            device.is_gpu or device.vendor == pci.MELLANOX for device in devices
        ):
            return KernelLogResult(absent="no GPU and no InfiniBand adapter")
        log = machine_report.kernel_messages(time.time() - RECENT_S, _MAX_LINES)
    else:
        log = recorded.read_bytes() if recorded.is_file() else Unknown("no log was recorded")
    if isinstance(log, Unknown):
        return KernelLogResult(events=log)
    lines = log.decode(errors="replace").splitlines()
    return KernelLogResult(
        events=tuple(_group_events(lines, time.time()))[:_MAX_EVENTS], lines=len(lines)
    )


def _group_events(lines: list[str], now: float) -> Iterator[KernelLogEvent]:
    """Group matching lines by kind, device and number, the newest group last."""
    events: dict[tuple[str, str, int | None], KernelLogEvent] = {}
    for line in lines:
        if _WORDS.search(line) is None:
            continue
        kind, match = next(
            ((kind, hit) for kind, pattern in _PATTERNS.items() if (hit := pattern.search(line))),
            ("", None),
        )
        if match is None:
            continue
        fields = match.groupdict()
        number = int(fields["number"]) if fields.get("number") else None
        key = (kind, _normalize_bus(fields.get("device") or ""), number)
        before = events.pop(key, None)
        events[key] = KernelLogEvent(
            kind=key[0],
            device=key[1],
            number=number,
            count=1 + (before.count if before else 0),
            text=line.strip()[:300],
            age_s=_age_s(line, now),
        )
    yield from events.values()


def _normalize_bus(device: str) -> str:
    """Return a bus address in Linux's format: a four-digit domain, and function 0 by default."""
    if not device:
        return ""
    domain, _, rest = device.lower().partition(":")
    return f"{domain[-4:]}:{rest}" + ("" if "." in rest else ".0")


def _age_s(line: str, now: float) -> float | None:
    try:
        return max(0.0, round(now - datetime.fromisoformat(line.split(" ", 1)[0]).timestamp(), 1))
    except ValueError:
        return None
