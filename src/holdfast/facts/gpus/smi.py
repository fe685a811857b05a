"""Asks nvidia-smi, where NVML cannot be asked from Python, and reads what it says with -q -x (also recorded).

The XML has had the same names since driver 450, but for the reasons of throttling, which 535 renamed. Its parts that
a GPU does not have say N/A. Processes and thresholds are there; the links between GPUs are not.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from holdfast.facts import programs
from holdfast.facts.gpus import Answer, Gpu, Held
from holdfast.facts.gpus.nvml import THROTTLES
from holdfast.findings import Unknown

COMMAND = ("nvidia-smi", "-q", "-x")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MIB = 1 << 20
_LINKS = Unknown("nvidia-smi -q does not tell how GPUs are joined; nvidia-ml-py does")
#: expat refuses documents that blow themselves up by entities since 2.4; the driver's own use none.
_ENTITY = b"<!ENTITY"


def ask(limit_s: float) -> Answer | Unknown:
    """What nvidia-smi says here and now."""
    said = programs.said(COMMAND, limit_s)
    return said if isinstance(said, Unknown) else parsed(said)


def parsed(said: bytes) -> Answer | Unknown:
    """What it said, read."""
    if _ENTITY in said:
        return Unknown("nvidia-smi's XML has entities in it, which nvidia-smi never writes")
    try:
        log = ET.fromstring(said)  # noqa: S314 - entities were refused above
    except ET.ParseError as error:
        return Unknown(f"nvidia-smi's XML cannot be read: {error}")
    gpus = tuple(_gpu(index, element) for index, element in enumerate(log.findall("gpu")))
    return Answer(
        source="nvidia-smi -q -x", driver=log.findtext("driver_version", "unknown").strip(),
        cuda=log.findtext("cuda_version", "unknown").strip(), gpus=gpus, pairs=_LINKS if len(gpus) > 1 else (),
    )  # fmt: skip


def _gpu(index: int, gpu: ET.Element) -> Gpu:
    domain, _, rest = gpu.get("id", "").lower().partition(":")
    throttles = gpu.find("clocks_event_reasons")
    throttles = gpu.find("clocks_throttle_reasons") if throttles is None else throttles
    power = "gpu_power_readings" if gpu.find("gpu_power_readings") is not None else "power_readings"
    return Gpu(
        index=index, name=_word(gpu, "product_name") or "unknown", uuid=_word(gpu, "uuid") or "",
        bus=f"{domain[-4:]}:{rest}", memory_bytes=_mib(gpu, "fb_memory_usage/total"),
        memory_used_bytes=_mib(gpu, "fb_memory_usage/used"), temperature_c=_whole(gpu, "temperature/gpu_temp"),
        slowdown_c=_whole(gpu, "temperature/gpu_temp_slow_threshold"),
        margin_c=_whole(gpu, "temperature/gpu_temp_tlimit"), throttled=_throttled(throttles),
        power_limit_w=_first(gpu, f"{power}/current_power_limit", f"{power}/enforced_power_limit"),
        power_default_w=_number(gpu, f"{power}/default_power_limit"),
        performance=_whole(gpu, "performance_state"), persistence=_says(gpu, "persistence_mode", "Enabled"),
        ecc=_says(gpu, "ecc_mode/current_ecc", "Enabled"), ecc_errors=_uncorrected(gpu, "volatile"),
        ecc_ever_errors=_uncorrected(gpu, "aggregate"),
        rows_pending=_says(gpu, "remapped_rows/remapped_row_pending", "Yes"),
        rows_failed=_says(gpu, "remapped_rows/remapped_row_failure", "Yes"),
        pages_pending=_says(gpu, "retired_pages/pending_retirement", "Yes"), recovery=_recovery(gpu),
        pcie_gen=_whole(gpu, "pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
        pcie_gen_most=_whole(gpu, "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
        pcie_width=_whole(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width"),
        pcie_width_most=_whole(gpu, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        fabric=_lower(gpu, "fabric/state"), compute_mode=_lower(gpu, "compute_mode"),
        mig=_says(gpu, "mig_mode/current_mig", "Enabled"), held=_held(gpu),
    )  # fmt: skip


def _word(gpu: ET.Element, path: str) -> str | None:
    """What stands there; None for N/A and what else means nothing."""
    said = (gpu.findtext(path) or "").strip()
    return None if said in ("", "N/A", "[N/A]", "None") or said.startswith("Requested functionality") else said


def _lower(gpu: ET.Element, path: str) -> str | None:
    said = _word(gpu, path)
    return said.lower().replace("_", " ") if said else None


def _number(gpu: ET.Element, path: str) -> float | None:
    found = _NUMBER.search(_word(gpu, path) or "")
    return float(found[0]) if found else None


def _first(gpu: ET.Element, *paths: str) -> float | None:
    return next((value for path in paths if (value := _number(gpu, path)) is not None), None)


def _whole(gpu: ET.Element, path: str) -> int | None:
    value = _number(gpu, path)
    return None if value is None else int(value)


def _mib(gpu: ET.Element, path: str) -> int | Unknown:
    value = _whole(gpu, path)
    return Unknown(f"nvidia-smi tells no {path}") if value is None else value * _MIB


def _says(gpu: ET.Element, path: str, yes: str) -> bool | None:
    said = _word(gpu, path)
    return None if said is None else said == yes


def _throttled(reasons: ET.Element | None) -> tuple[str, ...] | None:
    if reasons is None:
        return None
    active = [reason.tag for reason in reasons if (reason.text or "").strip() == "Active"]
    return tuple(word for word in THROTTLES.values() if any(tag.endswith(f"_reason_{word}") for tag in active))


def _uncorrected(gpu: ET.Element, since: str) -> int | None:
    counts = gpu.find(f"ecc_errors/{since}")
    told = [_whole(gpu, f"ecc_errors/{since}/{count.tag}") for count in (counts if counts is not None else ())
            if "uncorrectable" in count.tag]  # fmt: skip
    known = [count for count in told if count is not None]
    return sum(known) if known else None


def _recovery(gpu: ET.Element) -> str | None:
    said = (gpu.findtext("gpu_recovery_action") or "").strip()
    if said in ("", "N/A"):
        return "GPU reset" if _says(gpu, "gpu_reset_status/reset_required", "Yes") else None
    return "none" if said == "None" else said


def _held(gpu: ET.Element) -> tuple[Held, ...]:
    """Processes that compute: C, or C+G for one that draws too."""
    found = []
    for process in gpu.findall("processes/process_info"):
        pid, kind = _whole(process, "pid"), _word(process, "type") or ""
        memory = _whole(process, "used_memory")
        if pid is not None and "C" in kind:
            found.append(Held(pid, None if memory is None else memory * _MIB))
    return tuple(found)
