"""Asks NVML, in a process of its own: ``python -m holdfast.facts.gpus.nvml``.

It prints an Answer as JSON, or a text that says why not.

nvidia-ml-py is NVIDIA's own wrapper of the library that comes with the driver. Each question is asked by itself: one
that a GPU or a driver does not know is None, one that fails is Unknown, and neither takes the others with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import byref
from itertools import combinations
from typing import Any

import msgspec

from holdfast.facts.gpus import SWITCH, Answer, Gpu, Held, NvLink, Pair
from holdfast.findings import Unknown

#: Bits of nvmlDeviceGetCurrentClocksEventReasons -> nvidia-smi's words, without idle and what somebody set.
THROTTLES = {
    0x04: "sw_power_cap", 0x08: "hw_slowdown", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}  # fmt: skip
RECOVERIES = ("none", "GPU reset", "node reboot", "drain P2P", "drain and reset", "recover IMEX domain", "bus reset",
              "system reboot")  # fmt: skip
FABRICS = ("not supported", "not started", "in progress", "completed")
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
#: nvmlGpuP2PStatus_t, as `nvidia-smi topo -p2p r` shows it.
PEERS = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
WAYS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_READ, _NVLINK = 0, 2
#: Fields of nvmlDeviceGetFieldValues: errors of all links (flits, data, replays, recoveries), and the recovery action.
_NVLINK_ERRORS, _RECOVERY = (38, 45, 52, 59), 230
#: MB a second of one NVLink (asked with the link's number), and of all that are up, which older drivers know.
_NVLINK_SPEED, _NVLINK_SPEED_COMMON = 164, 90
#: nvmlNvlinkVersion_t -> GB a second one way that NVIDIA gives for a link: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0. NVML's
#: speed of a newer link is that on the wire (26.6 for 4.0), with what is spent for correcting errors; a link of a
#: smaller board, or one that came up slower, is below this.
_NVLINK_RATES = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 25e9, 6: 25e9, 7: 50e9}
#: nvmlIntNvLinkDeviceType_t.
_TO_GPU, _TO_SWITCH = 0, 2


def look() -> Answer | Unknown:
    """Everything that the driver tells of all GPUs."""
    try:
        import pynvml as nvml  # noqa: PLC0415 - 8,000 lines, and only this process wants them
    except ImportError as error:
        return Unknown(f"nvidia-ml-py cannot be imported: {error}")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        return Answer(
            source="NVML", driver=str(nvml.nvmlSystemGetDriverVersion()), cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(_Device(nvml, handle).gpu(index) for index, handle in enumerate(handles)),
            pairs=tuple(_pairs(nvml, handles)),
        )  # fmt: skip
    except nvml.NVMLError as error:
        return Unknown(f"NVML: {error}")


class _Device:
    """One GPU, and how it is asked."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def _ask(self, name: str, *arguments: Any, then: Callable[[Any], Any] = lambda value: value) -> Any:
        """``nvmlDeviceGet<name>`` of this GPU, made into what is wanted; None where there is no such thing."""
        try:
            return then(getattr(self._nvml, f"nvmlDeviceGet{name}")(self._handle, *arguments))
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound, AttributeError):
            return None  # AttributeError: an nvidia-ml-py that is older than the question
        except (self._nvml.NVMLError, IndexError, ValueError) as error:
            return Unknown(f"NVML {name}: {error}")

    def gpu(self, index: int) -> Gpu:
        """All answers about it."""
        memory = self._ask("MemoryInfo", then=lambda info: (int(info.total), int(info.used)))
        total, used = memory if isinstance(memory, tuple) else (memory or Unknown("NVML tells no memory"),) * 2
        rows = self._ask("RemappedRows", then=lambda counts: (bool(counts[2]), bool(counts[3])))
        pending, failed = rows if isinstance(rows, tuple) else (rows, rows)
        ask = self._ask
        return Gpu(
            index=index, name=str(ask("Name")), uuid=str(ask("UUID")), bus=self._bus(), memory_bytes=total,
            memory_used_bytes=used, temperature_c=ask("Temperature", 0), slowdown_c=ask("TemperatureThreshold", 1),
            margin_c=ask("MarginTemperature"), throttled=self._throttled(),
            power_limit_w=ask("EnforcedPowerLimit", then=_watts),
            power_default_w=ask("PowerManagementDefaultLimit", then=_watts),
            performance=ask("PerformanceState"), persistence=ask("PersistenceMode", then=bool),
            ecc=ask("EccMode", then=lambda modes: bool(modes[0])), ecc_errors=ask("TotalEccErrors", 1, 0),
            ecc_ever_errors=ask("TotalEccErrors", 1, 1), rows_pending=pending, rows_failed=failed,
            pages_pending=ask("RetiredPagesPendingStatus", then=bool), recovery=self._field(_RECOVERY, RECOVERIES),
            pcie_gen=ask("CurrPcieLinkGeneration"), pcie_gen_most=ask("MaxPcieLinkGeneration"),
            pcie_width=ask("CurrPcieLinkWidth"), pcie_width_most=ask("MaxPcieLinkWidth"), nvlinks=self._nvlinks(),
            nvlink_errors=self._nvlink_errors(), fabric=self._fabric(),
            compute_mode=ask("ComputeMode", then=COMPUTE_MODES.__getitem__),
            mig=ask("MigMode", then=lambda modes: bool(modes[0])), held=self._held(),
        )  # fmt: skip

    def _bus(self) -> str:
        return str(self._ask("PciInfo", then=_as_linux))

    def _throttled(self) -> tuple[str, ...] | Unknown | None:
        bits = self._ask("CurrentClocksEventReasons")
        bits = self._ask("CurrentClocksThrottleReasons") if bits is None else bits  # its name before driver 535
        return tuple(word for bit, word in THROTTLES.items() if bits & bit) if isinstance(bits, int) else bits

    def _field(self, number: int, words: tuple[str, ...]) -> str | Unknown | None:
        value = self._number(number)
        if not isinstance(value, int):
            return value
        return words[value] if value < len(words) else f"number {value}"

    def _number(self, field: int, scope: int = 0) -> int | Unknown | None:
        """The value of one field; None where this GPU has no such field."""
        told = self._ask("FieldValues", [(field, scope)], then=lambda them: (them[0].nvmlReturn, them[0].value.uiVal))
        return (int(told[1]) if told[0] == 0 else None) if isinstance(told, tuple) else told

    def _nvlinks(self) -> tuple[NvLink, ...] | Unknown | None:
        links: list[NvLink] = []
        for number in range(int(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 18))):
            state = self._ask("NvLinkState", number, then=bool)
            if not isinstance(state, bool):
                return tuple(links) or (None if number == 0 and not isinstance(state, Unknown) else state)
            links.append(NvLink(up=True, rate=self._rate(number), to=self._end(number)) if state else NvLink(up=False))
        return tuple(links)

    def _rate(self, link: int) -> float | None:
        """Bytes a second: the least of what the driver tells and what the link's generation can do."""
        told = [self._number(_NVLINK_SPEED, link), self._number(_NVLINK_SPEED_COMMON)]
        speed = next((each * 1e6 for each in told if isinstance(each, int) and each), None)
        version = self._ask("NvLinkVersion", link)
        most = _NVLINK_RATES.get(version) if isinstance(version, int) else None
        return min((each for each in (speed, most) if each is not None), default=None)

    def _end(self, link: int) -> str:
        kind = self._ask("NvLinkRemoteDeviceType", link)
        if kind == _TO_GPU:
            bus = self._ask("NvLinkRemotePciInfo", link, then=_as_linux)
            return bus if isinstance(bus, str) else ""
        return SWITCH if kind == _TO_SWITCH else ""

    def _nvlink_errors(self) -> int | Unknown | None:
        told: list[int] | Unknown | None = self._ask(
            "FieldValues", list(_NVLINK_ERRORS),
            then=lambda fields: [int(field.value.ullVal) for field in fields if field.nvmlReturn == 0],
        )  # fmt: skip
        return sum(told) if isinstance(told, list) and told else None if isinstance(told, list) else told

    def _fabric(self) -> str | Unknown | None:
        """How far the GPU has joined the fabric of an NVSwitch machine, which the Fabric Manager sees to."""
        kind = getattr(self._nvml, "c_nvmlGpuFabricInfo_t", None)
        if kind is None:
            return None
        seen = kind()
        told: str | Unknown | None = self._ask("GpuFabricInfo", byref(seen), then=lambda _: FABRICS[seen.state])
        return told if told != FABRICS[0] else None

    def _held(self) -> tuple[Held, ...] | Unknown:
        processes = self._ask("ComputeRunningProcesses")
        if processes is None or isinstance(processes, Unknown):
            return processes or Unknown("NVML tells no processes")
        return tuple(Held(each.pid, each.usedGpuMemory) for each in processes)


def _as_linux(info: Any) -> str:
    """A place on the bus as Linux writes it (``0000:65:00.0``)."""
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


def _pairs(nvml: Any, handles: list[Any]) -> Iterator[Pair]:
    for (one, first), (other, second) in combinations(enumerate(handles), 2):
        way, peer = "unknown", "U"
        with suppress(nvml.NVMLError):
            way = WAYS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(first, second), "unknown")
        with suppress(nvml.NVMLError):
            if nvml.nvmlDeviceGetP2PStatus(first, second, _NVLINK) == 0:
                way = "NVLink"
        with suppress(nvml.NVMLError, IndexError):
            peer = PEERS[nvml.nvmlDeviceGetP2PStatus(first, second, _READ)]
        yield Pair(one, other, way, peer)


if __name__ == "__main__":
    told = look()
    sys.stdout.buffer.write(msgspec.json.encode(told.why if isinstance(told, Unknown) else told))
