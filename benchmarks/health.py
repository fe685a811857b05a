"""Cost of the watcher's health checks: CPU time of one round, as a share of a core.

Child processes (the disk check, NVML's process) are included. Measured on this host as it is, with
a stand-in for NVML (compiled from tests/unit/host/gpus/nvml.c) if it has no NVIDIA GPU, and next to
`python -c pass`, the minimum of any Python process. No peer does this inside a launcher: gpud and
DCGM are services that run permanently.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from holdfast.core import settings
from holdfast.host.checks import CheckContext
from holdfast.host.gpus import driver as gpu_driver
from holdfast.watcher.host_health import HostHealthMonitor

ROUNDS = int(os.environ.get("HOLDFAST_BENCH_ROUNDS", "15"))
LIBRARY = Path(__file__).parent.parent / "tests" / "unit" / "host" / "gpus" / "nvml.c"
TARGET = 0.01


def cpu_s() -> float:
    """Return the CPU time of this process and its finished children."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def cost_s(step: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    begun = cpu_s()
    step()
    return cpu_s() - begun


def main() -> None:
    """Print the medians of interleaved rounds."""
    every_s = settings.read_seconds("HOLDFAST_HEALTH_S", {})
    health = HostHealthMonitor(CheckContext(environ=settings.current_environment()), every_s)
    steps = {
        "checks of this host": health.check,
        "NVML's process": gpu_driver.query_driver,
        "python -c pass": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
    }
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "libnvidia-ml.so.1")
        if not Path("/dev/nvidiactl").exists():
            subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, LIBRARY], check=True)
            os.environ["LD_LIBRARY_PATH"] = folder
        for step in steps.values():
            step()
        spent = {name: [] for name in steps}
        for _ in range(ROUNDS):
            for name, step in steps.items():
                spent[name].append(cost_s(step))
    for name, costs in spent.items():
        median_s = statistics.median(costs)
        print(
            f"{name:<22} {1000 * median_s:7.1f} ms of CPU, {median_s / every_s:.2%} of a core "
            f"every {every_s:g} s"
        )
    both = statistics.median(spent["checks of this host"]) + statistics.median(
        spent["NVML's process"]
    )
    print(f"together {both / every_s:.2%} of a core (target: at most {TARGET:.0%})")


if __name__ == "__main__":
    main()
