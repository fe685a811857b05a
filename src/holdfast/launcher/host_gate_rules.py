"""Rules of the health gate: exclude a host that has degraded or on which the job must fail.

Fewer reasons than in `check`: possible problems, and those that existed when the job began, do not
exclude the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.causes.gpu.gpu_fell_off_bus_xid_ecc import GPU_FELL_OFF_BUS_XID_ECC
from holdfast.causes.gpu.gpu_memory_worn import GPU_MEMORY_WORN
from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.causes.network.ib_port_degraded import IB_PORT_DEGRADED
from holdfast.core.findings import Cause, Finding, Subject, make_finding
from holdfast.host.checks import CheckContext, CheckResult
from holdfast.host.checks.devices.gpu_health import GpuHealthResult, describe_gpu
from holdfast.host.checks.devices.infiniband import InfiniBandResult, describe_port
from holdfast.host.checks.system.memory import MemoryResult
from holdfast.host.gpus import HostGpu
from holdfast.host.gpus.visible_devices import parse_visible_devices

#: Checks that run: each takes under a second on a healthy host.
CHECK_NAMES = ("gpu-health", "infiniband", "memory")
_MIB = 1 << 20
#: Less free memory than this cannot start one interpreter with torch (about 200 MiB per worker).
MIN_FREE_BYTES = 64 * _MIB


def unfit_reasons(
    results: Mapping[str, CheckResult],
    baseline: Mapping[str, CheckResult],
    context: CheckContext,
    host: str,
) -> tuple[Finding, ...]:
    """Return why this host is excluded; ``baseline`` holds the results before the first start.

    Unknown values never exclude a host.
    """
    findings: list[Finding] = []
    gpus, ports, memory = (results.get(name) for name in CHECK_NAMES)
    if isinstance(gpus, GpuHealthResult):
        findings += _find_gpu_problems(gpus, baseline.get("gpu-health"), context, host)
    if isinstance(ports, InfiniBandResult):
        findings += _find_port_problems(ports, baseline.get("infiniband"), host)
    if isinstance(memory, MemoryResult):
        findings += _find_memory_problems(memory, host)
    return tuple(findings)


def _find_gpu_problems(
    now: GpuHealthResult, first: CheckResult | None, context: CheckContext, host: str
) -> Iterator[Finding]:
    before = {}
    if isinstance(first, GpuHealthResult) and first.answer:
        before = {gpu.uuid: gpu for gpu in _visible_gpus(first.answer.gpus, context)}
    if now.stuck and before:
        yield make_finding(
            GPU_FELL_OFF_BUS_XID_ECC,
            "the NVIDIA driver does not respond: a GPU or its firmware hangs",
            subject=Subject(host=host),
            evidence=now.facts(),
            confidence=0.9,
        )
    if now.answer is None:
        return
    for gpu in _visible_gpus(now.answer.gpus, context):
        for cause, message in _describe_gpu_problems(gpu, before.get(gpu.uuid)):
            subject = Subject(host=host, gpu=gpu.index)
            evidence = (describe_gpu(gpu, now.answer.source),)
            yield make_finding(cause, message, subject=subject, evidence=evidence)
    lost = sorted(before.keys() - {gpu.uuid for gpu in now.answer.gpus})
    if lost:
        yield make_finding(
            GPU_FELL_OFF_BUS_XID_ECC,
            f"{', '.join(lost)} has disappeared since the job began: the driver no longer lists it",
            subject=Subject(host=host),
            evidence=now.facts(),
        )


def _describe_gpu_problems(gpu: HostGpu, before: HostGpu | None) -> Iterator[tuple[Cause, str]]:
    if isinstance(gpu.recovery, str) and gpu.recovery != "none":
        message = f"the driver requests a {gpu.recovery} of GPU {gpu.index}"
        yield GPU_FELL_OFF_BUS_XID_ECC, message
    if gpu.rows_failed is True:
        yield GPU_MEMORY_WORN, f"GPU {gpu.index}: row remapping of its memory failed"
    errors, errors_before = gpu.ecc_errors, before.ecc_errors if before else None
    if isinstance(errors, int) and isinstance(errors_before, int) and errors > errors_before:
        count = errors - errors_before
        message = f"GPU {gpu.index} had {count} uncorrectable memory errors since the job began"
        yield GPU_FELL_OFF_BUS_XID_ECC, message


def _visible_gpus(gpus: Sequence[HostGpu], context: CheckContext) -> tuple[HostGpu, ...]:
    """Return the GPUs that are visible to the job."""
    numbers = parse_visible_devices(context.environ, gpus).gpus
    return tuple(gpu for gpu in gpus if gpu.index in numbers)


def _find_port_problems(
    now: InfiniBandResult, first: CheckResult | None, host: str
) -> Iterator[Finding]:
    """Report that all ports that worked when the job began are down; NCCL needs one."""
    worked = set()
    if isinstance(first, InfiniBandResult):
        worked = {port.name for port in first.ports if port.is_active}
    down = [port for port in now.ports if port.name in worked and not port.is_active]
    if down and len(down) == len(worked):
        names = ", ".join(port.name for port in down)
        yield make_finding(
            IB_PORT_DEGRADED,
            f"{names} worked when the job began; no port is active now",
            subject=Subject(host=host),
            evidence=tuple(map(describe_port, down)),
        )


def _find_memory_problems(now: MemoryResult, host: str) -> Iterator[Finding]:
    if now.available_bytes is not None and now.available_bytes < MIN_FREE_BYTES:
        yield make_finding(
            HOST_OOM_KILLED,
            f"{now.available_bytes // _MIB} MiB of memory are free; no worker can start",
            subject=Subject(host=host),
            evidence=now.facts(),
        )
