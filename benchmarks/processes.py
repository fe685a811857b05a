"""Run a command as a child process; measure wall time, CPU time and peak memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessCost:
    """Wall and CPU time (children included) in seconds; peak memory of the largest in MiB."""

    wall_s: float
    cpu_s: float
    memory_mib: float


def measure_process(
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    accepted: Collection[int] = (0,),
) -> ProcessCost:
    """Run the command and return its cost.

    Raises RuntimeError with the end of its standard error if its exit status is not accepted.
    """
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in accepted:
            errors.seek(0)
            text = errors.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(words)}: exit status {process.returncode}: {text}")
    return ProcessCost(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
