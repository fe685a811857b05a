"""Query the NVIDIA driver with a timeout, by NVML or nvidia-smi.

A call into a stuck driver cannot be interrupted, so that the query runs in a subprocess, which is
abandoned after its timeout.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from holdfast.core.findings import Unknown
from holdfast.host import programs
from holdfast.host.gpus import DriverReport, DriverTimeout, NoDriver, nvidia_smi

#: Without persistence mode the first query initializes each GPU, which takes about a second each.
LIMIT_S = 15.0
#: Share of a check's time limit for the driver query.
SHARE = 0.9
#: In a recorded tree: the output of ``nvidia-smi -q -x``.
RECORDED = "nvidia-smi.xml"


def query_driver(root: str = "/", limit_s: float | None = None) -> DriverReport | Unknown:
    """Query NVML, or nvidia-smi if NVML is unavailable; :class:`NoDriver` if there is neither.

    With a limit below LIMIT_S a driver that does not answer may just be slow, and is not reported
    as stuck. A recorded tree (``root``) has a recorded answer or none.
    """
    if root != "/":
        recorded = Path(root, RECORDED)
        return (
            nvidia_smi.parse_report(recorded.read_bytes())
            if recorded.is_file()
            else NoDriver(f"no recorded {RECORDED}")
        )
    limit_s = LIMIT_S if limit_s is None else min(limit_s, LIMIT_S)
    deadline = time.monotonic() + limit_s
    output = programs.run_program([sys.executable, "-m", "holdfast.host.gpus.nvml"], limit_s)
    if isinstance(output, programs.ProgramTimeout):
        return _driver_timeout(limit_s)
    if isinstance(output, bytes):
        report = msgspec.json.decode(output, type=DriverReport | str)
        if isinstance(report, DriverReport):
            return report
        output = Unknown(report)
    fallback = nvidia_smi.query_nvidia_smi(max(deadline - time.monotonic(), 0.1))
    match fallback:
        case programs.ProgramTimeout():
            fallback = _driver_timeout(limit_s)
        case programs.NotInstalled():
            fallback = NoDriver(output.why)
        case Unknown():
            fallback = Unknown(f"{output.why}; {fallback.why}")
    return fallback


def _driver_timeout(limit_s: float) -> Unknown:
    why = f"the NVIDIA driver did not answer within {limit_s:g} s"
    if limit_s >= LIMIT_S:
        return DriverTimeout(why)
    return Unknown(f"{why}; without persistence mode it may need {LIMIT_S:g} s")
