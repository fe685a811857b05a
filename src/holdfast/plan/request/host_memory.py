"""Offloaded states of a plan: memory of each host, disk, and time over PCIe."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.text import format_duration
from holdfast.plan.request.plan_request import GIB, PlannedRun, PlanRequest
from holdfast.plan.setup import OffloadTarget
from holdfast.plan.step_time.work import host_transfer_time

#: Bytes per second of one NVMe disk over PCIe 4.0, a usual data sheet's value for reading.
_DISK_BANDWIDTH = 7e9


def describe_host_memory(run: PlannedRun) -> str:
    """Return "1,051 of 1,898 GiB of host memory per node"."""
    need, has = host_bytes(run), run.cluster.host_memory
    return f"{need / GIB:,.0f} of {has / GIB:,.0f} GiB of host memory per node"


def host_bytes(run: PlannedRun) -> int:
    """Return the bytes of offloaded states of one node."""
    return run.memory.host * min(run.cluster.per_node, run.setup.world_size)


def describe_offload(request: PlanRequest, run: PlannedRun) -> str:
    """Return the host memory and PCIe time of the offloaded states; "" if there are none."""
    if run.setup.offload is OffloadTarget.NONE:
        return ""
    transfer = host_transfer_time(request.model.main_transformer, run.setup, run.cluster.gpu)
    return f"{describe_host_memory(run)}, {format_duration(transfer)} over PCIe per step"


def assumed_host_memory(request: PlanRequest, run: PlannedRun) -> Iterator[str]:
    """Yield the assumption about the host's memory, if it matters and is not known."""
    if run.memory.host and not run.cluster.host_gib:
        size = f"{run.cluster.host_memory / GIB:,.0f} GiB"
        yield f"{size} of host memory per node, as usual for {request.first_cluster.gpu.name}"


def describe_disk_offload(run: PlannedRun) -> str:
    """Return what offloading the same states to NVMe needs; each is read and written per step."""
    need = host_bytes(run)
    seconds = format_duration(2 * need / _DISK_BANDWIDTH)
    return (
        f"{need / GIB:,.0f} GiB of disk per node, at least {seconds} per step with one disk of "
        f"{_DISK_BANDWIDTH / 1e9:.0f} GB/s"
    )
