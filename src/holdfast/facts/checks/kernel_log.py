"""What the kernel's log says of GPUs (Xid), the PCI bus and network adapters, in the last week of this boot."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime

import msgspec

from holdfast.facts import machine, pci
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact, Unknown

#: In a recorded tree: what ``dmesg --time-format iso`` said.
RECORDED = "dmesg.txt"
ORIGIN = "kernel log"
RECENT_S = 7 * 86400.0
_LINES = 20_000
_MOST_EVENTS = 200
_BUS = r"(?P<device>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
#: Kinds of lines; the first that fits counts. ``device`` is a bus number or name, ``number`` an Xid.
KINDS = {
    "xid": rf"NVRM: Xid \((?:PCI:)?{_BUS}\): (?P<number>\d+)",
    "lost": rf"NVRM: (?:The NVIDIA )?GPU (?:at PCI:)?{_BUS}.{{0,120}}fallen off the bus|NVRM: fallen off the bus",
    "sxid": rf"nvidia-nvswitch\d+: SXid \(PCI:{_BUS}\): (?P<number>\d+)",
    "aer": rf"{_BUS}:? (?:AER|PCIe Bus Error): .{{0,40}}(?:[Uu]ncorrect|severity=Uncorrected|Fatal)",
    "amdgpu": rf"amdgpu {_BUS}: .{{0,40}}(?:GPU reset begin|ring \S+ timeout|uncorrectable hardware error)",
    "adapter": rf"mlx5_core {_BUS}: .{{0,80}}(?:health compromised|device's health|failed reclaiming pages|fw fatal)",
    "link-down": rf"mlx5_core {_BUS} \S+: .{{0,20}}[Ll]ink [Dd](?:own|OWN)",
}
_EACH = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}
#: Words of which a line has to have one; most have none, and are not looked at twice.
_WORDS = re.compile(r"NVRM|SXid|severity=Uncorr|Fatal|[Uu]ncorrect|amdgpu|mlx5_core")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one kind about one device: how many, the last of them, how long ago (None where lines have no time)."""

    kind: str
    device: str
    number: int | None
    count: int
    text: str
    age_s: float | None


class KernelLog(Seen, frozen=True, kw_only=True):
    """What was found, or why the log is closed to us."""

    events: tuple[Event, ...] | Unknown = ()
    lines: int = 0

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if self.absent:
            return (fact(ORIGIN, self.absent, pci.DEVICES),)
        if isinstance(self.events, Unknown):
            return (fact(ORIGIN, self.events, "dmesg, journalctl"),)
        told = tuple(fact(ORIGIN, f"{event.count} x {event.text}", "dmesg") for event in self.events)
        return told or (fact(ORIGIN, f"nothing of GPUs or adapters in {self.lines} lines of a week", "dmesg"),)


def look(place: Place) -> KernelLog:
    """Read the log, where there is a device of which it could speak."""
    recorded = place.path(RECORDED)
    if place.root == "/":
        devices = pci.devices()
        if not isinstance(devices, Unknown) and not any(each.is_gpu or each.vendor == pci.MELLANOX for each in devices):
            return KernelLog(absent="no GPU and no InfiniBand adapter of which it could speak")
        said = machine.kernel_messages(time.time() - RECENT_S, _LINES)
    else:
        said = recorded.read_bytes() if recorded.is_file() else Unknown("no log was recorded")
    if isinstance(said, Unknown):
        return KernelLog(events=said)
    lines = said.decode(errors="replace").splitlines()
    return KernelLog(events=tuple(_gathered(lines, time.time()))[:_MOST_EVENTS], lines=len(lines))


def _gathered(lines: list[str], now: float) -> Iterator[Event]:
    """The lines that say something, those of one kind and device together, the newest last."""
    found: dict[tuple[str, str, int | None], Event] = {}
    for line in lines:
        if _WORDS.search(line) is None:
            continue
        kind, match = next(((kind, told) for kind, each in _EACH.items() if (told := each.search(line))), ("", None))
        if match is None:
            continue
        fields = match.groupdict()
        number = int(fields["number"]) if fields.get("number") else None
        key = (kind, _bus(fields.get("device") or ""), number)
        before = found.pop(key, None)
        found[key] = Event(
            kind=key[0], device=key[1], number=number, count=1 + (before.count if before else 0),
            text=line.strip()[:300], age_s=_age(line, now),
        )  # fmt: skip
    yield from found.values()


def _bus(device: str) -> str:
    """As Linux writes it: four digits of the domain, and a function where the line has none."""
    if not device:
        return ""
    domain, _, rest = device.lower().partition(":")
    return f"{domain[-4:]}:{rest}" + ("" if "." in rest else ".0")


def _age(line: str, now: float) -> float | None:
    try:
        return max(0.0, round(now - datetime.fromisoformat(line.split(" ", 1)[0]).timestamp(), 1))
    except ValueError:
        return None
