"""Queries NVML in a subprocess: ``python -m holdfast.host.gpus.nvml``.

It prints the driver's report as JSON, or a string with the reason why there is none.

nvidia-ml-py is NVIDIA's wrapper of the library that comes with the driver. Values are queried one
by one: one that a GPU or driver does not support is None, one that fails is Unknown, and neither
affects the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import byref
from itertools import combinations
from typing import Any

import msgspec

from holdfast.core.findings import Unknown
from holdfast.host.gpus import SWITCH, DriverReport, GpuPair, GpuProcess, HostGpu, NvLink

#: Bits of nvmlDeviceGetCurrentClocksEventReasons -> nvidia-smi's words, without idle and user
#: settings.
THROTTLE_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
RECOVERY_ACTIONS = (
    "none",
    "GPU reset",
    "node reboot",
    "drain P2P",
    "drain and reset",
    "recover IMEX domain",
    "bus reset",
    "system reboot",
)
FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
#: nvmlGpuP2PStatus_t, as `nvidia-smi topo -p2p r` shows it.
P2P_STATUSES = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
TOPOLOGY_LEVELS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_READ, _NVLINK = 0, 2
#: Fields of nvmlDeviceGetFieldValues: errors of all links (flits, data, replays, recoveries), and
#: recovery action.
_NVLINK_ERRORS, _RECOVERY = (38, 45, 52, 59), 230
#: MB/s of one NVLink (the field's scope is the link number), and of all active ones, which older
#: drivers support.
_NVLINK_SPEED, _NVLINK_SPEED_COMMON = 164, 90
#: nvmlNvlinkVersion_t -> bytes/s per direction that NVIDIA specifies for a link: 1.0, 2.0, 2.2,
#: 3.0, 3.1, 4.0, 5.0. For newer links NVML reports the wire speed (26.6 GB/s for 4.0), error
#: correction included; a link of a smaller board, or one that trained at a lower speed, is below
#: this.
_NVLINK_RATES = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 25e9, 6: 25e9, 7: 50e9}
#: nvmlIntNvLinkDeviceType_t.
_TO_GPU, _TO_SWITCH = 0, 2


def query_nvml() -> DriverReport | Unknown:
    """Query all values of all GPUs."""
    try:
        import pynvml as nvml  # noqa: PLC0415 - 8,000 lines that only this process needs
    except ImportError as error:
        return Unknown(f"nvidia-ml-py cannot be imported: {error}")
    try:
        nvml.nvmlInit()
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        return DriverReport(
            source="NVML",
            driver=str(nvml.nvmlSystemGetDriverVersion()),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(_GpuQuery(nvml, handle).gpu(index) for index, handle in enumerate(handles)),
            pairs=tuple(_query_pairs(nvml, handles)),
        )
    except nvml.NVMLError as error:
        return Unknown(f"NVML: {error}")


class _GpuQuery:
    """Queries the values of one GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def _get(
        self, name: str, *arguments: Any, convert: Callable[[Any], Any] = lambda value: value
    ) -> Any:
        """Return the converted result of ``nvmlDeviceGet<name>``.

        None if not supported, Unknown if it fails.
        """
        try:
            return convert(getattr(self._nvml, f"nvmlDeviceGet{name}")(self._handle, *arguments))
        except (
            self._nvml.NVMLError_NotSupported,
            self._nvml.NVMLError_FunctionNotFound,
            AttributeError,
        ):
            return None  # AttributeError: an older nvidia-ml-py without this function
        except (self._nvml.NVMLError, IndexError, ValueError) as error:
            return Unknown(f"NVML {name}: {error}")

    def gpu(self, index: int) -> HostGpu:
        """Return all values of the GPU."""
        memory = self._get("MemoryInfo", convert=lambda info: (int(info.total), int(info.used)))
        total, used = (
            memory
            if isinstance(memory, tuple)
            else (memory or Unknown("NVML reports no memory size"),) * 2
        )
        rows = self._get("RemappedRows", convert=lambda counts: (bool(counts[2]), bool(counts[3])))
        pending, failed = rows if isinstance(rows, tuple) else (rows, rows)
        get = self._get
        return HostGpu(
            index=index,
            name=str(get("Name")),
            uuid=str(get("UUID")),
            bus=self._bus(),
            memory_bytes=total,
            memory_used_bytes=used,
            temperature_c=get("Temperature", 0),
            slowdown_c=get("TemperatureThreshold", 1),
            margin_c=get("MarginTemperature"),
            throttled=self._throttle_reasons(),
            power_limit_w=get("EnforcedPowerLimit", convert=_watts),
            power_default_w=get("PowerManagementDefaultLimit", convert=_watts),
            performance=get("PerformanceState"),
            persistence=get("PersistenceMode", convert=bool),
            ecc=get("EccMode", convert=lambda modes: bool(modes[0])),
            ecc_errors=get("TotalEccErrors", 1, 0),
            ecc_lifetime_errors=get("TotalEccErrors", 1, 1),
            rows_pending=pending,
            rows_failed=failed,
            pages_pending=get("RetiredPagesPendingStatus", convert=bool),
            recovery=self._field_word(_RECOVERY, RECOVERY_ACTIONS),
            pcie_gen=get("CurrPcieLinkGeneration"),
            pcie_gen_max=get("MaxPcieLinkGeneration"),
            pcie_width=get("CurrPcieLinkWidth"),
            pcie_width_max=get("MaxPcieLinkWidth"),
            nvlinks=self._nvlinks(),
            nvlink_errors=self._nvlink_errors(),
            fabric=self._fabric(),
            compute_mode=get("ComputeMode", convert=COMPUTE_MODES.__getitem__),
            mig=get("MigMode", convert=lambda modes: bool(modes[0])),
            processes=self._processes(),
        )

    def _bus(self) -> str:
        return str(self._get("PciInfo", convert=_linux_address))

    def _throttle_reasons(self) -> tuple[str, ...] | Unknown | None:
        bits = self._get("CurrentClocksEventReasons")
        if bits is None:
            bits = self._get("CurrentClocksThrottleReasons")  # its name before driver 535
        return (
            tuple(word for bit, word in THROTTLE_REASONS.items() if bits & bit)
            if isinstance(bits, int)
            else bits
        )

    def _field_word(self, number: int, words: tuple[str, ...]) -> str | Unknown | None:
        value = self._field_value(number)
        if not isinstance(value, int):
            return value
        return words[value] if value < len(words) else f"number {value}"

    def _field_value(self, field: int, scope: int = 0) -> int | Unknown | None:
        """Return the value of one field; None if this GPU has no such field."""
        answer = self._get(
            "FieldValues",
            [(field, scope)],
            convert=lambda fields: (fields[0].nvmlReturn, fields[0].value.uiVal),
        )
        if not isinstance(answer, tuple):
            return answer  # type: ignore[no-any-return]  # None or Unknown
        status, value = answer
        return int(value) if status == 0 else None

    def _nvlinks(self) -> tuple[NvLink, ...] | Unknown | None:
        links: list[NvLink] = []
        for number in range(int(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 18))):
            state = self._get("NvLinkState", number, convert=bool)
            if not isinstance(state, bool):
                return tuple(links) or (
                    None if number == 0 and not isinstance(state, Unknown) else state
                )
            links.append(
                NvLink(up=True, rate=self._link_rate(number), remote=self._remote_end(number))
                if state
                else NvLink(up=False)
            )
        return tuple(links)

    def _link_rate(self, link: int) -> float | None:
        """Return bytes/s: the reported speed, limited by the specification of the link."""
        speeds = [self._field_value(_NVLINK_SPEED, link), self._field_value(_NVLINK_SPEED_COMMON)]
        reported = next((mb * 1e6 for mb in speeds if isinstance(mb, int) and mb), None)
        version = self._get("NvLinkVersion", link)
        specified = _NVLINK_RATES.get(version) if isinstance(version, int) else None
        return min((rate for rate in (reported, specified) if rate is not None), default=None)

    def _remote_end(self, link: int) -> str:
        kind = self._get("NvLinkRemoteDeviceType", link)
        if kind == _TO_GPU:
            bus = self._get("NvLinkRemotePciInfo", link, convert=_linux_address)
            return bus if isinstance(bus, str) else ""
        return SWITCH if kind == _TO_SWITCH else ""

    def _nvlink_errors(self) -> int | Unknown | None:
        counts: list[int] | Unknown | None = self._get(
            "FieldValues",
            list(_NVLINK_ERRORS),
            convert=lambda fields: [
                int(field.value.ullVal) for field in fields if field.nvmlReturn == 0
            ],
        )
        if not isinstance(counts, list):
            return counts
        return sum(counts) if counts else None

    def _fabric(self) -> str | Unknown | None:
        """Return the GPU's state in the NVSwitch fabric, which the Fabric Manager sets up."""
        kind = getattr(self._nvml, "c_nvmlGpuFabricInfo_t", None)
        if kind is None:
            return None
        info = kind()
        state: str | Unknown | None = self._get(
            "GpuFabricInfo", byref(info), convert=lambda _: FABRIC_STATES[info.state]
        )
        return state if state != FABRIC_STATES[0] else None

    def _processes(self) -> tuple[GpuProcess, ...] | Unknown:
        processes = self._get("ComputeRunningProcesses")
        if processes is None or isinstance(processes, Unknown):
            return processes or Unknown("NVML reports no processes")
        return tuple(GpuProcess(process.pid, process.usedGpuMemory) for process in processes)


def _linux_address(info: Any) -> str:
    """Return a bus address in Linux's format (``0000:65:00.0``)."""
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


def _query_pairs(nvml: Any, handles: list[Any]) -> Iterator[GpuPair]:
    for (first, first_handle), (second, second_handle) in combinations(enumerate(handles), 2):
        handles_of_pair = (first_handle, second_handle)
        link, p2p = "unknown", "U"
        with suppress(nvml.NVMLError):
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(*handles_of_pair)
            link = TOPOLOGY_LEVELS.get(level, "unknown")
        with suppress(nvml.NVMLError):
            if nvml.nvmlDeviceGetP2PStatus(*handles_of_pair, _NVLINK) == 0:
                link = "NVLink"
        with suppress(nvml.NVMLError, IndexError):
            p2p = P2P_STATUSES[nvml.nvmlDeviceGetP2PStatus(*handles_of_pair, _READ)]
        yield GpuPair(first, second, link, p2p)


if __name__ == "__main__":
    report = query_nvml()
    reply = report.why if isinstance(report, Unknown) else report
    sys.stdout.buffer.write(msgspec.json.encode(reply))
