"""What looking at the health of the host costs the job: CPU time of one look of the watcher, as a share of a core.

The children that a look starts (the disk's check, NVML's process) are counted. Once as this host is, once with a
library that stands for NVML (compiled from tests/facts/gpus/nvml.c), next to one `python -c pass`, the least that any
process of Python costs. No peer does this inside a launcher: gpud and DCGM are services that look all the time.
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

from holdfast import settings
from holdfast.actions.health import Health
from holdfast.facts import gpus
from holdfast.facts.checks import Place

ROUNDS = int(os.environ.get("HOLDFAST_BENCH_ROUNDS", "15"))
LIBRARY = Path(__file__).parent.parent / "tests" / "facts" / "gpus" / "nvml.c"
TARGET = 0.01


def cpu_s() -> float:
    """CPU time of this process and of all its children that have ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def cost_s(step: Callable[[], object]) -> float:
    """CPU time of one call."""
    begun = cpu_s()
    step()
    return cpu_s() - begun


def main() -> None:
    """Print the medians, taken in turns."""
    every_s = settings.seconds("HOLDFAST_HEALTH_S", {})
    health = Health(Place(environ=settings.environment()), every_s)
    steps = {
        "a look at this host": health.look,
        "NVML's process": gpus.ask,
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
        middle = statistics.median(costs)
        print(f"{name:<22} {1000 * middle:7.1f} ms of CPU, {middle / every_s:.2%} of a core every {every_s:g} s")
    both = statistics.median(spent["a look at this host"]) + statistics.median(spent["NVML's process"])
    print(f"together {both / every_s:.2%} of a core (target: at most {TARGET:.0%})")


if __name__ == "__main__":
    main()
