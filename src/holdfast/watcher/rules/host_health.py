"""Judges a host's checks while a job runs: what became worse, and what may end the job.

The rules are those before a job, except that notes are dropped. Counters are compared with the
first round, so that old faults are not reported as new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from holdfast.causes.gpu.gpu_fell_off_bus_xid_ecc import GPU_FELL_OFF_BUS_XID_ECC
from holdfast.causes.gpu.gpu_link_degraded import GPU_LINK_DEGRADED
from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.causes.network.ib_port_degraded import IB_PORT_DEGRADED
from holdfast.core.findings import Finding, Level, Subject, make_finding
from holdfast.host.check_rules import judge_check
from holdfast.host.checks import CHECKS, CheckContext, CheckResult, check_fact
from holdfast.host.checks.devices.gpu_health import GpuHealthResult, describe_gpu
from holdfast.host.checks.devices.infiniband import InfiniBandResult, describe_port
from holdfast.host.checks.system.memory import MemoryResult

#: The checks that are cheap enough to repeat, and whose result may change during a job.
WATCHED = ("gpu-health", "amd-gpus", "kernel-log", "infiniband", "memory", "shared-memory", "disk")
_GIB = 1 << 30
#: If less than both is left, the next allocation may trigger the OOM killer.
_LOW_FRACTION, _LOW_BYTES = 0.05, 2 * _GIB
#: Increase of a port's counter that is a fault: a working link retries occasionally.
_PORT_FAULTS = {"link_downed": 1, "link_error_recovery": 1, "symbol_error": 100}
_NVLINK_FAULTS = 10
_REPORTED = (Level.ERROR, Level.WARNING)


def judge(
    now: Mapping[str, CheckResult],
    first: Mapping[str, CheckResult],
    context: CheckContext,
    host: str,
    at: float,
) -> tuple[Finding, ...]:
    """Return the findings of all checks, errors first; ``first`` holds the results at job start."""
    findings: list[Finding] = []
    for name, result in now.items():
        if result.absent:
            continue
        if isinstance(result, MemoryResult):
            findings += _judge_memory(result, first.get(name))
            continue
        findings += (
            finding
            for finding in judge_check(CHECKS[name], result, context, host, at)
            if finding.level in _REPORTED
        )
        findings += _judge_increase(result, first.get(name))
    findings = [
        replace(finding, subject=replace(finding.subject, host=host)) for finding in findings
    ]
    return tuple(sorted(findings, key=lambda finding: _REPORTED.index(finding.level)))


def _judge_memory(result: MemoryResult, first: CheckResult | None) -> Iterator[Finding]:
    before = first.kills if isinstance(first, MemoryResult) else None
    if result.kills is not None and before is not None and result.kills > before:
        count = result.kills - before
        yield make_finding(
            HOST_OOM_KILLED,
            f"the OOM killer killed {count} process{'' if count == 1 else 'es'} of this cgroup "
            "since the job started",
            evidence=result.facts(),
            confidence=0.9,
        )
    room, whole = result.available_bytes, result.limit_bytes
    if room is not None and whole and room < _LOW_FRACTION * whole and room < _LOW_BYTES:
        of = "the cgroup limit" if result.limit == whole else "this host's memory"
        yield make_finding(
            HOST_OOM_KILLED,
            f"{room / _GIB:.1f} of {whole / _GIB:.1f} GiB of {of} are left: the OOM killer will "
            "soon kill a process",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.7,
        )


def _judge_increase(result: CheckResult, first: CheckResult | None) -> Iterator[Finding]:
    """Judge errors counted since the first round."""
    if isinstance(result, InfiniBandResult) and isinstance(first, InfiniBandResult):
        yield from _judge_ports(result, first)
    if isinstance(result, GpuHealthResult):
        if result.stuck:
            yield make_finding(
                GPU_FELL_OFF_BUS_XID_ECC,
                "the NVIDIA driver does not respond: a GPU or its firmware is stuck",
                evidence=result.facts(),
                confidence=0.7,
            )
        if isinstance(first, GpuHealthResult):
            yield from _judge_gpus(result, first)


def _judge_ports(result: InfiniBandResult, first: InfiniBandResult) -> Iterator[Finding]:
    before = {port.name: port.errors for port in first.ports}
    for port in result.ports:
        if port.name not in before:
            continue
        increase = {
            name: port.errors.get(name, 0) - before[port.name].get(name, 0) for name in _PORT_FAULTS
        }
        faults = [
            f"{name} {count}" for name, count in increase.items() if count >= _PORT_FAULTS[name]
        ]
        if faults:
            yield make_finding(
                IB_PORT_DEGRADED,
                f"{port.name} has counted {', '.join(faults)} since the job started",
                level=Level.WARNING,
                evidence=(describe_port(port),),
                confidence=0.8,
            )


def _judge_gpus(result: GpuHealthResult, first: GpuHealthResult) -> Iterator[Finding]:
    if not (result.answer and first.answer):
        return
    before = {gpu.uuid: gpu.nvlink_errors for gpu in first.answer.gpus}
    source = result.answer.source
    for gpu in result.answer.gpus:
        old, new = before.get(gpu.uuid), gpu.nvlink_errors
        if isinstance(new, int) and isinstance(old, int) and new - old >= _NVLINK_FAULTS:
            yield make_finding(
                GPU_LINK_DEGRADED,
                f"the NVLinks of GPU {gpu.index} have counted {new - old} errors or retries since "
                "the job started",
                level=Level.WARNING,
                subject=Subject(gpu=gpu.index),
                confidence=0.6,
                evidence=(
                    describe_gpu(gpu, source),
                    check_fact("before the job", old, source),
                ),
            )
    lost = sorted(set(before) - {gpu.uuid for gpu in result.answer.gpus})
    if lost:
        yield make_finding(
            GPU_FELL_OFF_BUS_XID_ECC,
            f"the driver no longer lists {', '.join(lost)}, which was present when the job started",
            evidence=result.facts(),
            confidence=0.95,
        )
