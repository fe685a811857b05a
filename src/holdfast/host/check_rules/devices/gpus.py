"""Judges whether a job will find the GPUs that it expects, in the expected order, and unused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.causes.gpu.cuda_driver_mismatch import CUDA_DRIVER_MISMATCH
from holdfast.causes.gpu.gpu_fell_off_bus_xid_ecc import GPU_FELL_OFF_BUS_XID_ECC
from holdfast.causes.gpu.gpu_in_use import GPU_IN_USE
from holdfast.causes.gpu.gpu_renumbered import GPU_RENUMBERED
from holdfast.causes.gpu.gpu_settings import GPU_SETTINGS
from holdfast.causes.gpu.invalid_device_ordinal import INVALID_DEVICE_ORDINAL
from holdfast.causes.remedies import disruptive
from holdfast.core.findings import Fact, Finding, Level, Remedy, Subject, make_finding
from holdfast.host.checks import CheckContext, check_fact
from holdfast.host.checks.devices.gpus import DRIVER_GPUS, GpusResult, GpuUser
from holdfast.host.gpus import DriverReport, HostGpu
from holdfast.host.gpus.visible_devices import ORDER, VARIABLE, VisibleDevices

_GIB = 1 << 30
#: Used GPU memory that no listed process owns; the driver's own share is below this.
_UNOWNED_BYTES = 2 * _GIB


def judge(result: GpusResult, context: CheckContext) -> Iterator[Finding]:
    """Judge the driver, missing GPUs, the GPUs visible to the job, and their other users."""
    yield from _judge_driver(result)
    if result.visible is not None and result.answer is None:
        yield make_finding(
            INVALID_DEVICE_ORDINAL,
            f"{VARIABLE}={result.visible.value} is set, but this host or container has no GPU",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.7,
        )
    if result.answer is None or result.visible is None:
        return
    yield from _judge_missing_gpus(result, result.answer)
    yield from _judge_visible_devices(result, result.answer.gpus, result.visible, context)
    yield from _judge_fabric_manager(result, result.answer)
    yield from _judge_modes(result.answer)
    yield from _judge_users(result, result.answer)


def _judge_driver(result: GpusResult) -> Iterator[Finding]:
    evidence = result.facts()
    if result.stuck:
        yield make_finding(
            GPU_FELL_OFF_BUS_XID_ECC,
            "the NVIDIA driver does not respond: a GPU or its firmware is stuck, and any process "
            "that uses it will hang",
            evidence=evidence,
            confidence=0.7,
        )
    elif result.on_bus and result.answer is None:
        drivers = {device.driver for device in result.on_bus}
        why = (
            f"they are bound to {', '.join(sorted(drivers - {''}))}"
            if drivers - {"", "nvidia"}
            else "no driver responds"
        )
        yield make_finding(
            CUDA_DRIVER_MISMATCH,
            f"{_count_gpus(len(result.on_bus))} on the PCI bus, but {why}: CUDA will find none",
            evidence=evidence,
            confidence=0.9,
        )


def _judge_missing_gpus(result: GpusResult, report: DriverReport) -> Iterator[Finding]:
    """Report GPUs on the bus, or listed by the kernel driver, that NVML does not list."""
    listed = {gpu.bus for gpu in report.gpus}
    #: Passed to a virtual machine (vfio-pci) or bound to another driver.
    other_driver = {device.bus for device in result.on_bus if device.driver not in ("", "nvidia")}
    on_bus = {device.bus for device in result.on_bus} | set(result.of_driver)
    missing = sorted(on_bus - listed - other_driver)
    if missing and not report.gpus:
        yield make_finding(
            CUDA_DRIVER_MISMATCH,
            f"{_count_gpus(len(missing))} on the PCI bus, but the driver lists none: hidden from "
            "this container, or failed; CUDA will find none",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.6,
        )
    elif missing:
        names = ", ".join(result.of_driver) or "none"
        yield make_finding(
            GPU_FELL_OFF_BUS_XID_ECC,
            f"{_count_gpus(len(missing))} missing from the driver's list ({', '.join(missing)}): "
            "failed, or hidden from this container",
            evidence=(
                *result.facts(),
                check_fact("listed by the kernel driver", names, DRIVER_GPUS),
            ),
            confidence=0.6,
        )


def _judge_visible_devices(
    result: GpusResult, gpus: Sequence[HostGpu], visible: VisibleDevices, context: CheckContext
) -> Iterator[Finding]:
    cause = INVALID_DEVICE_ORDINAL
    evidence = result.facts()
    setting = f"{VARIABLE}={visible.value}"
    if visible.duplicate:
        yield make_finding(
            cause,
            f"{setting} lists {visible.duplicate} twice: CUDA then shows no GPU at all",
            evidence=evidence,
        )
    elif visible.invalid:
        is_mig = visible.invalid.startswith("MIG-")
        effect = (
            f"only {len(visible.gpus)} of {len(gpus)} are visible"
            if visible.gpus
            else "none is visible"
        )
        yield make_finding(
            cause,
            f"{setting}: {visible.invalid} is not a GPU of this host, and CUDA ignores it and all "
            f"later entries: {effect}",
            level=Level.WARNING if is_mig else Level.ERROR,
            evidence=evidence,
            confidence=0.5 if is_mig else 1.0,
        )
    if context.workers is not None and context.workers > len(visible.gpus):
        effect = (
            "the others fail with `invalid device ordinal`" if visible.gpus else "CUDA finds none"
        )
        yield make_finding(
            cause,
            f"{context.workers} workers on this host, but only {len(visible.gpus)} visible GPUs: "
            f"{effect}",
            evidence=evidence,
        )
    yield from _judge_numbering(gpus, visible, evidence)


def _judge_numbering(
    gpus: Sequence[HostGpu], visible: VisibleDevices, evidence: tuple[Fact, ...]
) -> Iterator[Finding]:
    cause = GPU_RENUMBERED
    in_order = visible.gpus == tuple(range(len(visible.gpus)))
    if visible.value is not None and visible.gpus and not in_order:
        names = ", ".join(f"cuda:{number} is GPU {gpu}" for number, gpu in enumerate(visible.gpus))
        yield make_finding(
            cause,
            f"{VARIABLE}={visible.value} renumbers the GPUs: {names}",
            level=Level.NOTE,
            evidence=evidence,
        )
    models = {gpu.name for gpu in gpus}
    if len(models) > 1 and not visible.by_bus:
        yield make_finding(
            cause,
            f"mixed GPU models ({', '.join(sorted(models))}): CUDA numbers the fastest first, "
            "nvidia-smi uses PCI bus order, so that GPU numbers may differ",
            level=Level.WARNING,
            evidence=evidence,
            confidence=0.8,
            remedies=(
                disruptive("Make CUDA use PCI bus order too.", f"export {ORDER}=PCI_BUS_ID"),
            ),
        )


def _judge_fabric_manager(result: GpusResult, report: DriverReport) -> Iterator[Finding]:
    """Drivers before Hopper do not report the fabric state.

    The Fabric Manager process indicates it.
    """
    no_state = all(gpu.fabric is None for gpu in report.gpus)
    if result.switches and not result.has_fabric_manager and no_state:
        yield make_finding(
            CUDA_DRIVER_MISMATCH,
            f"this host has {result.switches} NVSwitches, but no visible Fabric Manager process: "
            "without it CUDA fails with `system not yet initialized`",
            level=Level.WARNING,
            confidence=0.5,
            evidence=(*result.facts(), check_fact("nv-fabricmanager", "no such process", "/proc")),
        )


def _judge_modes(report: DriverReport) -> Iterator[Finding]:
    for gpu in report.gpus:
        name, subject = f"GPU {gpu.index}", Subject(gpu=gpu.index)
        if gpu.compute_mode == "prohibited":
            yield make_finding(
                GPU_SETTINGS,
                f"{name} is in compute mode prohibited: no process can use it",
                subject=subject,
                evidence=(check_fact(name, f"compute mode {gpu.compute_mode}", report.source),),
            )
        if gpu.mig is True:
            yield make_finding(
                GPU_SETTINGS,
                f"{name} is in MIG mode: a process sees one slice of it, and NCCL cannot connect "
                "slices of one GPU",
                level=Level.WARNING,
                subject=subject,
                confidence=0.8,
                evidence=(check_fact(name, "MIG mode is on", report.source),),
            )


def _judge_users(result: GpusResult, report: DriverReport) -> Iterator[Finding]:
    cause = GPU_IN_USE
    for gpu in report.gpus:
        users = [user for user in result.users if user.gpu == gpu.index]
        used = gpu.memory_used_bytes
        if users:
            yield make_finding(
                cause,
                f"GPU {gpu.index} is in use by {', '.join(map(_describe_user, users))}",
                level=Level.WARNING,
                subject=Subject(gpu=gpu.index),
                evidence=result.facts(),
                remedies=(*_kill_remedy(users), *cause.remedies),
            )
        elif gpu.processes == () and isinstance(used, int) and used > _UNOWNED_BYTES:
            yield make_finding(
                cause,
                f"GPU {gpu.index} has {used / _GIB:.1f} GiB in use, but the driver lists no "
                f"process that uses it",
                level=Level.WARNING,
                subject=Subject(gpu=gpu.index),
                evidence=result.facts(),
                confidence=0.6,
            )


def _describe_user(user: GpuUser) -> str:
    memory = f" with {user.memory_bytes / _GIB:.1f} GiB" if user.memory_bytes is not None else ""
    if user.name is None:
        return f"process {user.pid}{memory}, in another container or already gone from /proc"
    state = ", a zombie (its parent has not waited for it)" if user.state == "Z" else ""
    return f"{user.name} (process {user.pid}, user {user.owner}){memory}{state}"


def _kill_remedy(users: Sequence[GpuUser]) -> tuple[Remedy, ...]:
    pids = " ".join(str(user.pid) for user in users if user.name is not None and user.state != "Z")
    if not pids:
        return ()
    return (
        disruptive(
            "End it, after making sure whose it is and that it is not needed.", f"kill {pids}"
        ),
    )


def _count_gpus(number: int) -> str:
    return "1 NVIDIA GPU" if number == 1 else f"{number} NVIDIA GPUs"
