"""Judges GPU, PCIe and network-adapter messages of the kernel log."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.gpu.gpu_fell_off_bus_xid_ecc import GPU_FELL_OFF_BUS_XID_ECC
from holdfast.causes.gpu.gpu_hw_fault import GPU_HW_FAULT
from holdfast.causes.gpu.gpu_link_degraded import GPU_LINK_DEGRADED
from holdfast.causes.gpu.gpu_memory_worn import GPU_MEMORY_WORN
from holdfast.causes.network.ib_port_degraded import IB_PORT_DEGRADED
from holdfast.core.findings import Cause, Finding, Level, make_finding
from holdfast.host.checks import CheckContext, check_fact
from holdfast.host.checks.system.kernel_log import KernelLogEvent, KernelLogResult
from holdfast.host.gpus.xids import XIDS_OF_PROGRAMS, XIDS_THAT_FOLLOW

_DAY_S = 86400.0
#: Xids about memory repair (63, 64: rows or pages; 92: many corrected errors),
#: docs.nvidia.com/deploy/xid-errors.
_MEMORY_XIDS = {
    63: "recorded bad memory for row remapping or page retirement; a GPU reset applies it",
    64: "failed to record bad memory for row remapping or page retirement",
    92: "has a high rate of corrected ECC errors",
}
#: Fewer link losses than this in the log may be a cable that was moved.
_MIN_FLAPS = 3


def judge(result: KernelLogResult, _context: CheckContext) -> Iterator[Finding]:
    """Report one finding per device and kind.

    Xids caused by a program (13, 31, 43, …) are no fault of the host.
    """
    if not isinstance(result.events, tuple):
        return
    for event in result.events:
        finding = _judge_event(event)
        if finding is not None:
            yield finding


def _judge_event(event: KernelLogEvent) -> Finding | None:
    """Return the finding of one event. Events older than a day are at most a warning."""
    recent = event.age_s is None or event.age_s < _DAY_S
    serious = Level.ERROR if recent else Level.WARNING
    when, device = _describe_age(event), event.device
    cause: Cause
    level, confidence = Level.WARNING, 0.7
    match event.kind:
        case "xid" if event.number is not None:
            return _judge_xid(event, event.number, serious, when)
        case "lost":
            cause, level, confidence = GPU_FELL_OFF_BUS_XID_ECC, serious, 0.9
            message = f"GPU {device or '(address not logged)'} fell off the bus {when}"
        case "sxid":
            cause = GPU_LINK_DEGRADED
            message = f"an NVSwitch reported SXid {event.number} {when}"
        case "aer":
            cause = GPU_LINK_DEGRADED
            message = (
                f"the PCIe link of {device} had {event.count} uncorrectable errors, the last {when}"
            )
        case "amdgpu":
            cause = GPU_HW_FAULT
            message = f"AMD GPU {device} hung or was reset {when}"
        case "adapter":
            cause, level, confidence = IB_PORT_DEGRADED, serious, 0.8
            message = f"the firmware of network adapter {device} failed {when}"
        case "link-down" if event.count >= _MIN_FLAPS and recent:
            cause = IB_PORT_DEGRADED
            message = f"the link of {device} went down {event.count} times, the last {when}"
        case _:
            return None
    return _event_finding(event, cause, message, level, confidence)


def _judge_xid(event: KernelLogEvent, number: int, level: Level, when: str) -> Finding | None:
    if number in XIDS_OF_PROGRAMS or number in XIDS_THAT_FOLLOW:
        return None
    if number in _MEMORY_XIDS:
        message = f"GPU {event.device} {_MEMORY_XIDS[number]} (Xid {number}, {when})"
        worst = Level.ERROR if number == 64 else Level.WARNING
        return _event_finding(event, GPU_MEMORY_WORN, message, worst, 0.8)
    message = f"the driver reported Xid {number} on GPU {event.device} {when}"
    return _event_finding(event, GPU_FELL_OFF_BUS_XID_ECC, message, level, 0.8)


def _event_finding(
    event: KernelLogEvent, cause: Cause, message: str, level: Level, confidence: float
) -> Finding:
    evidence = (check_fact(f"kernel log, {event.count} x", event.text, "dmesg"),)
    return make_finding(cause, message, level=level, evidence=evidence, confidence=confidence)


def _describe_age(event: KernelLogEvent) -> str:
    if event.age_s is None:
        return "since the last boot"
    hours = event.age_s / 3600
    return f"{event.age_s / 60:.0f} minutes ago" if hours < 2 else f"{hours:.0f} hours ago"
