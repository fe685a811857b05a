"""Judges GPU health: temperature, throttling, power cap, ECC errors, PCIe and NVLink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from holdfast.causes.gpu.cuda_driver_mismatch import CUDA_DRIVER_MISMATCH
from holdfast.causes.gpu.gpu_fell_off_bus_xid_ecc import GPU_FELL_OFF_BUS_XID_ECC
from holdfast.causes.gpu.gpu_link_degraded import GPU_LINK_DEGRADED
from holdfast.causes.gpu.gpu_memory_worn import GPU_MEMORY_WORN
from holdfast.causes.gpu.gpu_settings import GPU_SETTINGS
from holdfast.causes.gpu.gpu_throttled import GPU_THROTTLED
from holdfast.core.findings import Fact, Finding, Level, Subject, make_finding
from holdfast.core.rank_sets import compress_ranks
from holdfast.host.check_rules.devices import gpu_topology
from holdfast.host.checks import CheckContext, check_fact
from holdfast.host.checks.devices.gpu_health import GpuHealthResult, describe_gpu
from holdfast.host.gpus import DriverReport, GpuPair, HostGpu

#: The driver's throttle reasons: temperature, power supply, and hardware without a more specific
#: reason.
_THERMAL_REASONS = ("hw_thermal_slowdown", "sw_thermal_slowdown")
_POWER_REASONS = ("hw_power_brake_slowdown",)
_UNSPECIFIED_REASONS = ("hw_slowdown",)
#: Degrees below the throttling temperature at which a GPU is reported; before a job it should be
#: idle and cool.
_MARGIN_C = 5
#: A power cap below this share of the default was set by a user, and makes this GPU slower than the
#: others.
_REDUCED_POWER = 0.95
#: Performance states up to which the PCIe link should run at full speed; idle GPUs lower it.
_BUSY_PSTATE = 2


def judge(result: GpuHealthResult, _context: CheckContext) -> Iterator[Finding]:
    """Judge each GPU, then settings and the links between GPUs."""
    report = result.answer
    if report is None:
        return
    for gpu in report.gpus:
        evidence = (describe_gpu(gpu, report.source),)
        yield from _judge_temperature(gpu, evidence)
        yield from _judge_power_cap(gpu, evidence)
        yield from _judge_memory_errors(gpu, evidence)
        yield from _judge_links(gpu, evidence)
    yield from _judge_settings(report)
    yield from _judge_fabric(report)
    yield from _judge_peer_access(result, report)
    yield from _judge_nvlink_counts(result, report)
    yield from gpu_topology.judge_pairs(report, result.facts())


def _judge_temperature(gpu: HostGpu, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    warning = partial(
        make_finding,
        GPU_THROTTLED,
        level=Level.WARNING,
        subject=Subject(gpu=gpu.index),
        evidence=evidence,
    )
    reasons = gpu.throttled if isinstance(gpu.throttled, tuple) else ()
    at = f" at {gpu.temperature_c} °C" if isinstance(gpu.temperature_c, int) else ""
    thermal = [reason for reason in reasons if reason in _THERMAL_REASONS]
    if thermal:
        yield warning(
            f"GPU {gpu.index} is thermally throttled{at} ({', '.join(thermal)}): all ranks will "
            f"wait for it"
        )
    margin_c = _thermal_margin_c(gpu)
    if not thermal and margin_c is not None and margin_c <= _MARGIN_C:
        yield warning(
            f"GPU {gpu.index} is{at} {margin_c} °C below its throttling temperature", confidence=0.7
        )
    power = [reason for reason in reasons if reason in _POWER_REASONS] or [
        reason for reason in reasons if reason in _UNSPECIFIED_REASONS and not thermal
    ]
    if power:
        yield warning(
            f"GPU {gpu.index} is throttled by its hardware ({', '.join(power)}): insufficient "
            f"power or cooling"
        )


def _thermal_margin_c(gpu: HostGpu) -> int | None:
    """Return the degrees below the throttling temperature, as reported or computed."""
    if isinstance(gpu.margin_c, int):
        return gpu.margin_c
    if isinstance(gpu.temperature_c, int) and isinstance(gpu.slowdown_c, int):
        return gpu.slowdown_c - gpu.temperature_c
    return None


def _judge_power_cap(gpu: HostGpu, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    cap, default = gpu.power_limit_w, gpu.power_default_w
    if isinstance(cap, float) and isinstance(default, float) and cap < _REDUCED_POWER * default:
        default_fact = check_fact(f"GPU {gpu.index}: default power cap", f"{default:g} W", "NVML")
        yield make_finding(
            GPU_SETTINGS,
            f"GPU {gpu.index} has a power cap of {cap:g} W; the default is {default:g} W. It will "
            "be slower than the other GPUs",
            level=Level.WARNING,
            subject=Subject(gpu=gpu.index),
            confidence=0.8,
            evidence=(*evidence, default_fact),
        )


def _judge_memory_errors(gpu: HostGpu, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    finding = partial(make_finding, subject=Subject(gpu=gpu.index), evidence=evidence)
    if isinstance(gpu.ecc_errors, int) and gpu.ecc_errors:
        yield finding(
            GPU_FELL_OFF_BUS_XID_ECC,
            f"GPU {gpu.index} has {gpu.ecc_errors} uncorrectable ECC errors since its driver was "
            "loaded: processes on it may crash",
        )
    if gpu.rows_failed is True:
        yield finding(
            GPU_MEMORY_WORN, f"row remapping failed on GPU {gpu.index}: the GPU must be replaced"
        )
    if gpu.rows_pending is True or gpu.pages_pending is True:
        yield finding(
            GPU_MEMORY_WORN,
            f"GPU {gpu.index} has pending row remapping or page retirement: bad memory stays in "
            "use until a GPU reset",
            level=Level.WARNING,
        )
    if isinstance(gpu.recovery, str) and gpu.recovery != "none":
        yield finding(
            GPU_FELL_OFF_BUS_XID_ECC, f"the driver requires a {gpu.recovery} for GPU {gpu.index}"
        )
    lifetime = gpu.ecc_lifetime_errors
    if isinstance(lifetime, int) and lifetime and not gpu.ecc_errors:
        yield finding(
            GPU_MEMORY_WORN,
            f"GPU {gpu.index} has had {lifetime} uncorrectable ECC errors in its lifetime, none "
            "since its driver was loaded",
            level=Level.NOTE,
        )


def _judge_links(gpu: HostGpu, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    finding = partial(
        make_finding, GPU_LINK_DEGRADED, subject=Subject(gpu=gpu.index), evidence=evidence
    )
    width, max_width = gpu.pcie_width, gpu.pcie_width_max
    if isinstance(width, int) and isinstance(max_width, int) and width < max_width:
        yield finding(
            f"GPU {gpu.index} uses {width} of {max_width} PCIe lanes: transfers to the host and to "
            "network adapters are proportionally slower",
            level=Level.WARNING,
        )
    gen, max_gen = gpu.pcie_gen, gpu.pcie_gen_max
    busy = isinstance(gpu.performance, int) and gpu.performance <= _BUSY_PSTATE
    if busy and isinstance(gen, int) and isinstance(max_gen, int) and gen < max_gen:
        yield finding(
            f"GPU {gpu.index} is busy, but its PCIe link runs at generation {gen} of {max_gen}",
            level=Level.NOTE,
            confidence=0.5,
        )
    links = _nvlink_states(gpu)
    if any(links) and not all(links):
        down = ", ".join(str(number) for number, up in enumerate(links) if not up)
        yield finding(
            f"GPU {gpu.index} has {sum(links)} of {len(links)} NVLinks up; down: {down}",
            level=Level.WARNING,
            confidence=0.7,
        )
    if isinstance(gpu.nvlink_errors, int) and gpu.nvlink_errors:
        yield finding(
            f"the NVLinks of GPU {gpu.index} have had {gpu.nvlink_errors} errors or replays since "
            "its driver was loaded",
            level=Level.NOTE,
            confidence=0.5,
        )


def _judge_settings(report: DriverReport) -> Iterator[Finding]:
    """Report settings that are usually equal on all GPUs of a host in one finding each."""
    not_persistent = [gpu for gpu in report.gpus if gpu.persistence is False]
    if not_persistent:
        yield make_finding(
            GPU_SETTINGS,
            f"persistence mode is off on {_describe_gpus(not_persistent)}: the driver unloads GPU "
            "state between jobs, and each start takes seconds longer",
            level=Level.NOTE,
            evidence=tuple(describe_gpu(gpu, report.source) for gpu in not_persistent),
        )
    without_ecc = [gpu for gpu in report.gpus if gpu.ecc is False]
    if without_ecc:
        yield make_finding(
            GPU_SETTINGS,
            f"ECC is off on {_describe_gpus(without_ecc)}: bit flips go undetected",
            level=Level.NOTE,
            evidence=tuple(describe_gpu(gpu, report.source) for gpu in without_ecc),
        )


def _nvlink_states(gpu: HostGpu) -> tuple[bool, ...]:
    """Return whether each NVLink is up; empty if not reported."""
    return tuple(link.up for link in gpu.nvlinks) if isinstance(gpu.nvlinks, tuple) else ()


def _describe_gpus(gpus: Sequence[HostGpu]) -> str:
    numbers = compress_ranks([gpu.index for gpu in gpus])
    return f"GPU {numbers}" if len(gpus) == 1 else f"GPUs {numbers}"


def _judge_fabric(report: DriverReport) -> Iterator[Finding]:
    """CUDA on NVSwitch machines needs each GPU in the fabric, which the Fabric Manager sets up."""
    waiting = [gpu for gpu in report.gpus if gpu.fabric in ("not started", "in progress")]
    if waiting:
        yield make_finding(
            CUDA_DRIVER_MISMATCH,
            f"NVSwitch fabric setup is {waiting[0].fabric} on {_describe_gpus(waiting)}: CUDA "
            "fails with `system not yet initialized` until the Fabric Manager completes it",
            evidence=tuple(
                check_fact(f"GPU {gpu.index}: fabric", gpu.fabric, report.source) for gpu in waiting
            ),
        )


def _judge_peer_access(result: GpuHealthResult, report: DriverReport) -> Iterator[Finding]:
    """Report pairs without peer access whose link (NVLink, or that of other pairs) allows it."""
    pairs = report.pairs if isinstance(report.pairs, tuple) else ()
    allowed = {pair.link for pair in pairs if pair.p2p == "OK"}
    blocked = [
        pair
        for pair in pairs
        if pair.p2p not in ("OK", "U") and (pair.link == "NVLink" or pair.link in allowed)
    ]
    if blocked:
        yield make_finding(
            GPU_LINK_DEGRADED,
            f"{_describe_pairs(blocked)} have no peer-to-peer access, unlike other pairs with the "
            "same link: their traffic passes through the host",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.7,
        )


def _judge_nvlink_counts(result: GpuHealthResult, report: DriverReport) -> Iterator[Finding]:
    """Report GPUs with fewer active NVLinks than the others; missing links may not even be listed.

    If as many GPUs have none as have some, they were never linked: bridges connect two of four.
    """
    links = {
        gpu.index: _nvlink_states(gpu) for gpu in report.gpus if isinstance(gpu.nvlinks, tuple)
    }
    most = max(map(sum, links.values()), default=0)
    without = [index for index, up in links.items() if not any(up)]
    fewer = [index for index, up in links.items() if any(up) and all(up) and sum(up) < most]
    fewer = sorted(fewer + (without if 2 * len(without) < len(links) else []))
    if fewer:
        yield make_finding(
            GPU_LINK_DEGRADED,
            f"GPU {', '.join(map(str, fewer))}: {sum(links[fewer[0]])} NVLinks up, while other "
            f"GPUs of this host have {most}",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.6,
        )


def _describe_pairs(pairs: list[GpuPair]) -> str:
    names = ", ".join(f"{pair.first} and {pair.second}" for pair in pairs[:4])
    return f"GPUs {names}" + (f" and {len(pairs) - 4} more pairs" if len(pairs) > 4 else "")
