"""Runs nvidia-smi where NVML is unavailable, and parses the XML of -q -x (also a recorded one).

Its element names are unchanged since driver 450, except for the throttle reasons, which driver 535
renamed. Unsupported values are N/A. It contains processes and thresholds but not the links between
GPUs.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from msgspec.structs import replace

from holdfast.core.findings import Unknown
from holdfast.host import programs
from holdfast.host.gpus import DriverReport, GpuProcess, HostGpu
from holdfast.host.gpus.nvml import THROTTLE_REASONS
from holdfast.host.gpus.topology import query_topology

COMMAND = ("nvidia-smi", "-q", "-x")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MIB = 1 << 20
_NO_TOPOLOGY = Unknown("nvidia-smi -q does not report GPU links; nvidia-smi topo -m does")
#: expat rejects entity-expansion attacks only since 2.4; nvidia-smi itself writes no entities.
_ENTITY = b"<!ENTITY"


def query_nvidia_smi(limit_s: float) -> DriverReport | Unknown:
    """Run nvidia-smi and parse its report."""
    output = programs.run_program(COMMAND, limit_s)
    report = output if isinstance(output, Unknown) else parse_report(output)
    if isinstance(report, DriverReport) and len(report.gpus) > 1:
        return replace(report, pairs=query_topology(limit_s))
    return report


def parse_report(xml: bytes) -> DriverReport | Unknown:
    """Parse the XML of ``nvidia-smi -q -x``."""
    if _ENTITY in xml:
        return Unknown("the XML of nvidia-smi contains entities, which nvidia-smi never writes")
    try:
        log = ET.fromstring(xml)  # noqa: S314 - entities were rejected above
    except ET.ParseError as error:
        return Unknown(f"the XML of nvidia-smi cannot be read: {error}")
    gpus = tuple(_parse_gpu(index, element) for index, element in enumerate(log.findall("gpu")))
    return DriverReport(
        source="nvidia-smi -q -x",
        driver=log.findtext("driver_version", "unknown").strip(),
        cuda=log.findtext("cuda_version", "unknown").strip(),
        gpus=gpus,
        pairs=_NO_TOPOLOGY if len(gpus) > 1 else (),
    )


def _parse_gpu(index: int, gpu: ET.Element) -> HostGpu:
    domain, _, rest = gpu.get("id", "").lower().partition(":")
    reasons = gpu.find("clocks_event_reasons")
    reasons = gpu.find("clocks_throttle_reasons") if reasons is None else reasons
    power = "gpu_power_readings" if gpu.find("gpu_power_readings") is not None else "power_readings"
    return HostGpu(
        index=index,
        name=_word(gpu, "product_name") or "unknown",
        uuid=_word(gpu, "uuid") or "",
        bus=f"{domain[-4:]}:{rest}",
        memory_bytes=_mib(gpu, "fb_memory_usage/total"),
        memory_used_bytes=_mib(gpu, "fb_memory_usage/used"),
        temperature_c=_whole(gpu, "temperature/gpu_temp"),
        slowdown_c=_whole(gpu, "temperature/gpu_temp_slow_threshold"),
        margin_c=_whole(gpu, "temperature/gpu_temp_tlimit"),
        throttled=_throttle_reasons(reasons),
        power_limit_w=_first_number(
            gpu, f"{power}/current_power_limit", f"{power}/enforced_power_limit"
        ),
        power_default_w=_number(gpu, f"{power}/default_power_limit"),
        performance=_whole(gpu, "performance_state"),
        persistence=_flag(gpu, "persistence_mode", "Enabled"),
        ecc=_flag(gpu, "ecc_mode/current_ecc", "Enabled"),
        ecc_errors=_uncorrected(gpu, "volatile"),
        ecc_lifetime_errors=_uncorrected(gpu, "aggregate"),
        rows_pending=_flag(gpu, "remapped_rows/remapped_row_pending", "Yes"),
        rows_failed=_flag(gpu, "remapped_rows/remapped_row_failure", "Yes"),
        pages_pending=_flag(gpu, "retired_pages/pending_retirement", "Yes"),
        recovery=_recovery(gpu),
        pcie_gen=_whole(gpu, "pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
        pcie_gen_max=_whole(gpu, "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
        pcie_width=_whole(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width"),
        pcie_width_max=_whole(gpu, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        fabric=_lower(gpu, "fabric/state"),
        compute_mode=_lower(gpu, "compute_mode"),
        mig=_flag(gpu, "mig_mode/current_mig", "Enabled"),
        processes=_compute_processes(gpu),
    )


def _word(gpu: ET.Element, path: str) -> str | None:
    """Return the text of an element; None for N/A and its equivalents."""
    text = (gpu.findtext(path) or "").strip()
    return (
        None
        if text in ("", "N/A", "[N/A]", "None") or text.startswith("Requested functionality")
        else text
    )


def _lower(gpu: ET.Element, path: str) -> str | None:
    text = _word(gpu, path)
    return text.lower().replace("_", " ") if text else None


def _number(gpu: ET.Element, path: str) -> float | None:
    match = _NUMBER.search(_word(gpu, path) or "")
    return float(match[0]) if match else None


def _first_number(gpu: ET.Element, *paths: str) -> float | None:
    return next((value for path in paths if (value := _number(gpu, path)) is not None), None)


def _whole(gpu: ET.Element, path: str) -> int | None:
    value = _number(gpu, path)
    return None if value is None else int(value)


def _mib(gpu: ET.Element, path: str) -> int | Unknown:
    value = _whole(gpu, path)
    return Unknown(f"nvidia-smi reports no {path}") if value is None else value * _MIB


def _flag(gpu: ET.Element, path: str, true: str) -> bool | None:
    text = _word(gpu, path)
    return None if text is None else text == true


def _throttle_reasons(reasons: ET.Element | None) -> tuple[str, ...] | None:
    if reasons is None:
        return None
    active = [reason.tag for reason in reasons if (reason.text or "").strip() == "Active"]
    return tuple(
        word
        for word in THROTTLE_REASONS.values()
        if any(tag.endswith(f"_reason_{word}") for tag in active)
    )


def _uncorrected(gpu: ET.Element, since: str) -> int | None:
    counts = gpu.find(f"ecc_errors/{since}")
    values = [
        _whole(gpu, f"ecc_errors/{since}/{count.tag}")
        for count in (counts if counts is not None else ())
        if "uncorrectable" in count.tag
    ]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _recovery(gpu: ET.Element) -> str | None:
    action = (gpu.findtext("gpu_recovery_action") or "").strip()
    if action in ("", "N/A"):
        return "GPU reset" if _flag(gpu, "gpu_reset_status/reset_required", "Yes") else None
    return "none" if action == "None" else action


def _compute_processes(gpu: ET.Element) -> tuple[GpuProcess, ...]:
    """Return the processes of type C (compute) or C+G (compute and graphics)."""
    processes = []
    for process in gpu.findall("processes/process_info"):
        pid, kind = _whole(process, "pid"), _word(process, "type") or ""
        memory = _whole(process, "used_memory")
        if pid is not None and "C" in kind:
            processes.append(GpuProcess(pid, None if memory is None else memory * _MIB))
    return tuple(processes)
