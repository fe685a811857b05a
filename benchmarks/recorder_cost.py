"""CPU time that recording adds to a collective, next to torch's recorder, a bare ring and DETAIL.

One process per configuration, one rank on gloo, an all-reduce of 4 floats. The processes take
turns, so that drift of the machine affects all equally. Printed are the median CPU time per call
over the turns, its difference to "no recorder", and the fastest turn, which was disturbed least.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TURNS = 15
CALLS = 4000

_CHILD = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
torch.set_num_threads(1)
# gloo's thread on the same core: no wake-ups across cores.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
mode, folder = sys.argv[1], Path(sys.argv[2])
if mode in ("native", "python"):
    from holdfast.core.trace_file import TraceWriter
    from holdfast.recorder.attach import attach
    from holdfast.recorder.build import ensure_built
    trace = TraceWriter(folder / f"{os.getpid()}.trace", rank=0, world_size=1)
    library = ensure_built(lambda text: print(text, file=sys.stderr)) if mode == "native" else None
    backend = attach(trace, mode, library)
    assert backend is not None and backend.mode == mode
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
call = dist.all_reduce
if mode == "ring":
    import collections, threading
    ring = collections.deque(maxlen=4096)
    def call(tensor, _inner=dist.all_reduce):
        frame = sys._getframe(1)
        site = frame.f_code.co_filename, frame.f_lineno
        record = ["all_reduce", tuple(tensor.shape), *site, time.monotonic_ns(), 0]
        ring.append(record)
        result = _inner(tensor)
        record[5] = time.monotonic_ns()
        return result
tensor = torch.ones(4)
for line in sys.stdin:
    count = int(line)
    began = time.process_time_ns()
    for _ in range(count):
        call(tensor)
    print((time.process_time_ns() - began) / count / 1000, flush=True)
os._exit(0)
"""

#: name -> (recorder, torch's flight recorder on, TORCH_DISTRIBUTED_DEBUG)
CONFIGURATIONS = {
    "no recorder": ("off", False, "OFF"),
    "bare Python ring": ("ring", False, "OFF"),
    "torch's flight recorder (its default)": ("off", True, "OFF"),
    "holdfast, C++": ("native", False, "OFF"),
    "holdfast, Python (no compiler)": ("python", False, "OFF"),
    "holdfast, C++, and torch's": ("native", True, "OFF"),
    "TORCH_DISTRIBUTED_DEBUG=DETAIL": ("off", False, "DETAIL"),
}


def _start(name: str, folder: Path) -> subprocess.Popen[str]:
    mode, torch_recorder, debug = CONFIGURATIONS[name]
    environment = os.environ | {
        "TORCH_FR_BUFFER_SIZE": "2000" if torch_recorder else "0",
        "TORCH_DISTRIBUTED_DEBUG": debug,
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", "-c", _CHILD, mode, str(folder)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def _turn(process: subprocess.Popen[str], calls: int) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{calls}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        running = {name: _start(name, Path(folder)) for name in CONFIGURATIONS}
        for process in running.values():
            _turn(process, 200)  # warm
        durations: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(TURNS):
            for name, process in running.items():
                durations[name].append(_turn(process, CALLS))
        for process in running.values():
            process.communicate()
    base = durations["no recorder"]
    print(
        f"{'':42} {'µs CPU per call':>16} {'least':>8} {'added':>8} {'added, least':>13} "
        f"{'ratio':>7}"
    )
    for name, values in durations.items():
        added = statistics.median(value - zero for value, zero in zip(values, base, strict=True))
        ratio = statistics.median(value / zero for value, zero in zip(values, base, strict=True))
        least = min(values) - min(base)
        print(
            f"{name:42} {statistics.median(values):16.2f} {min(values):8.2f} {added:+8.2f} "
            f"{least:+13.2f} {ratio:7.2f}"
        )


if __name__ == "__main__":
    main()
