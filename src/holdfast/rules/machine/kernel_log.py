"""What the kernel's log says of devices: which of it speaks against this host."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place, fact
from holdfast.facts.checks.kernel_log import Event, KernelLog
from holdfast.findings import Finding, Level, finding
from holdfast.rules.causes import by_name
from holdfast.rules.logs.meanings import XIDS_OF_PROGRAMS, XIDS_THAT_FOLLOW

_DAY_S = 86400.0
#: Memory that is replaced (63, 64: rows or pages; 92: many corrected errors), by docs.nvidia.com/deploy/xid-errors.
_WORN = {63: "has noted bad memory, which a reset replaces", 64: "could not note bad memory",
         92: "corrects many memory errors"}  # fmt: skip
#: So many losses of a link in the log are no cable that was moved.
_FLAPS = 3


def judge(seen: KernelLog, _place: Place) -> Iterator[Finding]:
    """One finding a device and kind; what a program did wrong (Xid 13, 31, 43 …) is nobody's fault here."""
    if not isinstance(seen.events, tuple):
        return
    for event in seen.events:
        yield from _judged(event)


def _judged(event: Event) -> Iterator[Finding]:
    recent = event.age_s is None or event.age_s < _DAY_S
    level = Level.ERROR if recent else Level.WARNING
    evidence = (fact(f"kernel log, {event.count} x", event.text, "dmesg"),)
    when = _ago(event)
    if event.kind == "xid" and event.number is not None:
        yield from _xid(event, event.number, level, when)
    elif event.kind == "lost":
        yield finding(by_name("gpu-fell-off-bus-xid-ecc"), f"the GPU {event.device or 'without a number'} "
                      f"fell off the bus {when}", level=level, evidence=evidence, confidence=0.9)  # fmt: skip
    elif event.kind == "sxid":
        yield finding(by_name("gpu-link-degraded"), f"an NVSwitch reported SXid {event.number} {when}",
                      level=Level.WARNING, evidence=evidence, confidence=0.7)  # fmt: skip
    elif event.kind == "aer":
        yield finding(by_name("gpu-link-degraded"), f"the PCIe link of {event.device} had {event.count} errors that "
                      f"could not be corrected, the last {when}", level=Level.WARNING, evidence=evidence,
                      confidence=0.7)  # fmt: skip
    elif event.kind == "amdgpu":
        yield finding(by_name("gpu-hw-fault"), f"the AMD GPU {event.device} hung or was reset {when}",
                      level=Level.WARNING, evidence=evidence, confidence=0.7)  # fmt: skip
    elif event.kind == "adapter":
        yield finding(by_name("ib-port-degraded"), f"the firmware of the network adapter {event.device} failed {when}",
                      level=level, evidence=evidence, confidence=0.8)  # fmt: skip
    elif event.kind == "link-down" and event.count >= _FLAPS and recent:
        yield finding(by_name("ib-port-degraded"), f"the link of {event.device} went down {event.count} times, the "
                      f"last {when}", level=Level.WARNING, evidence=evidence, confidence=0.7)  # fmt: skip


def _xid(event: Event, number: int, level: Level, when: str) -> Iterator[Finding]:
    evidence = (fact(f"kernel log, {event.count} x", event.text, "dmesg"),)
    if number in XIDS_OF_PROGRAMS or number in XIDS_THAT_FOLLOW:
        return
    if number in _WORN:
        yield finding(by_name("gpu-memory-worn"), f"the GPU {event.device} {_WORN[number]} (Xid {number}, {when})",
                      level=Level.ERROR if number == 64 else Level.WARNING, evidence=evidence,
                      confidence=0.8)  # fmt: skip
        return
    yield finding(by_name("gpu-fell-off-bus-xid-ecc"), f"the driver reported Xid {number} of the GPU {event.device} "
                  f"{when}", level=level, evidence=evidence, confidence=0.8)  # fmt: skip


def _ago(event: Event) -> str:
    if event.age_s is None:
        return "since the last boot"
    hours = event.age_s / 3600
    return f"{event.age_s / 60:.0f} minutes ago" if hours < 2 else f"{hours:.0f} hours ago"
