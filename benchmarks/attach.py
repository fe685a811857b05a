"""Time from `holdfast attach` to its verdict on a hung job of eight ranks, next to py-spy per rank.

The job is `tests/faults/specimens/rank_sleeps.py` on gloo, started by torchrun; rank 2 has slept
for over ten seconds. attach waits one second between its two samples. `py-spy dump` for one process
after the other is the manual alternative; it prints eight stacks and gives no verdict. Both inspect
the same job, py-spy last, because it stops the processes.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.faults.specimens.expected import EXPECTED

HERE = Path(sys.executable).parent
SPECIMEN = Path(__file__).parent.parent / "tests" / "faults" / "specimens" / "rank_sleeps.py"
PROCESSES = 8
ROUNDS = int(os.environ.get("HOLDFAST_BENCH_ROUNDS", "9"))
ASLEEP_S = 12
TARGET_S = 3.0


def run_timed(command: list[str]) -> tuple[float, str]:
    """Run the command; return its duration in seconds and its output."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return time.perf_counter() - began, done.stdout


def measure(port: int, pids: list[int]) -> None:
    """Print the medians over the rounds."""
    attached, right, sizes = [], 0, set()
    for _ in range(ROUNDS):
        seconds, output = run_timed(
            [str(HERE / "holdfast"), "attach", "--json", "--port", str(port)]
        )
        attached.append(seconds)
        found = json.loads(output)
        root = found["verdict"]["root"]
        right += root is not None and root["subject"]["rank"] in EXPECTED["rank_sleeps"].ranks
        sizes.add(len(found["samples"]["ranks"]))
    # Last: py-spy stops the processes, which resets how long they have slept.
    py_spy_s = [
        sum(run_timed([str(HERE / "py-spy"), "dump", "--pid", str(pid)])[0] for pid in pids)
        for _ in range(ROUNDS)
    ]
    print(
        f"holdfast attach, {PROCESSES} ranks: median {statistics.median(attached):.2f} s "
        f"({min(attached):.2f} to {max(attached):.2f}; target {TARGET_S:.0f} s), "
        f"right rank {right} of {ROUNDS}, ranks found {sorted(sizes)}"
    )
    print(
        f"py-spy dump, {len(pids)} times: median {statistics.median(py_spy_s):.2f} s "
        f"({min(py_spy_s):.2f} to {max(py_spy_s):.2f}), no verdict"
    )


def main() -> None:
    """Start the job, wait until it hangs, and measure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = [
        str(HERE / "torchrun"),
        "--nproc-per-node",
        str(PROCESSES),
        "--master-port",
        str(port),
        str(SPECIMEN),
    ]
    with tempfile.TemporaryFile() as output:
        job = subprocess.Popen(
            launch, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=output, stderr=output
        )
        try:
            measure(port, wait_for_hang(job.pid))
        finally:
            for each in [*psutil.Process(job.pid).children(recursive=True), job]:
                each.kill()
            job.wait()


def wait_for_hang(pid: int) -> list[int]:
    """Return the ranks' pids once all have started and been idle for ASLEEP_S seconds."""
    quiet_since, before = time.monotonic(), -1.0
    while True:
        time.sleep(1)
        ranks = [
            each
            for each in psutil.Process(pid).children()
            if SPECIMEN.name in " ".join(each.cmdline())
        ]
        used = sum(sum(each.cpu_times()[:2]) for each in ranks)
        if len(ranks) < PROCESSES or used - before > 0.2:
            quiet_since = time.monotonic()
        before = used
        if time.monotonic() - quiet_since > ASLEEP_S:
            return [each.pid for each in ranks]


if __name__ == "__main__":
    main()
