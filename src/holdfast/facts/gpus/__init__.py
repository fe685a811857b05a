"""What is known of the GPUs of a host: the words for it, and who is asked (NVML, else nvidia-smi), never for long.

A driver that is stuck answers nobody, and a call into it can be ended by nobody: so whoever asks is a process of its
own, which is left behind when its time is over.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from holdfast.facts import programs
from holdfast.findings import Unknown

#: Without persistence mode the driver wakes each GPU at the first question, which takes about a second each.
LIMIT_S = 15.0
#: Of the time that there is for a check, the driver is given so much.
SHARE = 0.9
#: In a recorded tree of a host: what ``nvidia-smi -q -x`` said there.
RECORDED = "nvidia-smi.xml"
#: Where an NVLink leads that does not lead to a GPU.
SWITCH = "switch"


class Held(msgspec.Struct, frozen=True):
    """A process that computes on a GPU, and the memory that it holds there (None where the driver does not tell)."""

    pid: int
    memory_bytes: int | None = None


class NvLink(msgspec.Struct, frozen=True):
    """One NVLink of a GPU: whether it is up, bytes a second one way, and where it leads.

    ``rate`` is None where the driver does not tell. ``to``: another GPU's bus, SWITCH, or empty where it is not told.
    """

    up: bool
    rate: float | None = None
    to: str = ""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One NVIDIA GPU. None: this kind of GPU, or this driver, has no such thing.

    ``index`` is NVML's, which is the order of the PCI bus. ``bus`` is written as Linux does (``0000:65:00.0``).
    ``margin_c`` is how many degrees are left until the clocks are lowered. ``throttled`` are the reasons for which the
    clocks are lowered now, in nvidia-smi's words. ``ecc_*_errors`` are uncorrected, since the driver was loaded and
    ever. ``performance`` is 0 (full speed) to 15 (idle).
    """

    index: int
    name: str
    uuid: str
    bus: str
    memory_bytes: int | Unknown
    memory_used_bytes: int | Unknown
    temperature_c: int | Unknown | None = None
    slowdown_c: int | Unknown | None = None
    margin_c: int | Unknown | None = None
    power_limit_w: float | Unknown | None = None
    power_default_w: float | Unknown | None = None
    throttled: tuple[str, ...] | Unknown | None = None
    performance: int | Unknown | None = None
    persistence: bool | Unknown | None = None
    ecc: bool | Unknown | None = None
    ecc_errors: int | Unknown | None = None
    ecc_ever_errors: int | Unknown | None = None
    rows_pending: bool | Unknown | None = None
    rows_failed: bool | Unknown | None = None
    pages_pending: bool | Unknown | None = None
    recovery: str | Unknown | None = None
    pcie_gen: int | Unknown | None = None
    pcie_gen_most: int | Unknown | None = None
    pcie_width: int | Unknown | None = None
    pcie_width_most: int | Unknown | None = None
    nvlinks: tuple[NvLink, ...] | Unknown | None = None
    nvlink_errors: int | Unknown | None = None
    fabric: str | Unknown | None = None
    compute_mode: str | Unknown | None = None
    mig: bool | Unknown | None = None
    held: tuple[Held, ...] | Unknown = ()


class Pair(msgspec.Struct, frozen=True):
    """Two GPUs, and what is between them.

    ``way``: how they are joined (``NVLink``, or ``PIX`` … ``SYS`` as in `nvidia-smi topo -m`). ``peer``: whether they
    may read each other's memory (``OK``, or nvidia-smi's letters for why not).
    """

    one: int
    other: int
    way: str
    peer: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver said: its version, the newest CUDA that it can run, all GPUs. ``source`` is who was asked."""

    source: str
    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]
    pairs: tuple[Pair, ...] | Unknown = ()


class Stuck(Unknown, frozen=True):
    """The driver did not answer in time."""


class NoDriver(Unknown, frozen=True):
    """No NVIDIA driver is here, neither its library nor its program."""


def ask(root: str = "/", limit_s: float | None = None) -> Answer | Unknown:
    """Ask NVML, and nvidia-smi where NVML cannot be asked; :class:`NoDriver` where there is neither.

    Where there is less time than LIMIT_S, a driver that does not answer may be slow alone, and is not called stuck.
    Below a ``root`` of its own stands a recorded answer or none.
    """
    from holdfast.facts.gpus import smi  # noqa: PLC0415 - it needs the words above

    if root != "/":
        recorded = Path(root, RECORDED)
        return smi.parsed(recorded.read_bytes()) if recorded.is_file() else NoDriver("no answer of it was recorded")
    limit_s = LIMIT_S if limit_s is None else min(limit_s, LIMIT_S)
    until = time.monotonic() + limit_s
    said = programs.said([sys.executable, "-m", "holdfast.facts.gpus.nvml"], limit_s)
    if isinstance(said, programs.TooLate):
        return _too_late(limit_s)
    if isinstance(said, bytes):
        answer = msgspec.json.decode(said, type=Answer | str)
        if isinstance(answer, Answer):
            return answer
        said = Unknown(answer)
    told = smi.ask(max(until - time.monotonic(), 0.1))
    if isinstance(told, programs.TooLate):
        return _too_late(limit_s)
    if isinstance(told, programs.NotInstalled):
        return NoDriver(said.why)
    return Unknown(f"{said.why}; {told.why}") if isinstance(told, Unknown) else told


def _too_late(limit_s: float) -> Unknown:
    why = f"the NVIDIA driver did not answer within {limit_s:g} s"
    return Stuck(why) if limit_s >= LIMIT_S else Unknown(f"{why}; without persistence mode it may need {LIMIT_S:g} s")
