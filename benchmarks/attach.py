"""From the command to the verdict: `holdfast attach` at a job of eight that hangs, next to py-spy called for each rank.

The job is `tests/specimens/rank_sleeps.py` on gloo, started by torchrun, and rank 2 has slept for over ten seconds.
Between its two looks attach waits a second. `py-spy dump`, called for one process after the other, is what one would do
by hand; it prints eight stacks and gives no verdict. Both in the same job, py-spy last, because it stops the processes.
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

from tests.specimens.expected import EXPECTED

HERE = Path(sys.executable).parent
SPECIMEN = Path(__file__).parent.parent / "tests" / "specimens" / "rank_sleeps.py"
PROCESSES = 8
ROUNDS = int(os.environ.get("HOLDFAST_BENCH_ROUNDS", "9"))
ASLEEP_S = 12
TARGET_S = 3.0


def once(command: list[str]) -> tuple[float, str]:
    """Seconds that the command took, and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return time.perf_counter() - began, done.stdout


def measure(port: int, pids: list[int]) -> None:
    """Print the medians over the rounds."""
    attached, right, sizes = [], 0, set()
    for _ in range(ROUNDS):
        seconds, said = once([str(HERE / "holdfast"), "attach", "--json", "--port", str(port)])
        attached.append(seconds)
        found = json.loads(said)
        root = found["verdict"]["root"]
        right += root is not None and root["subject"]["rank"] in EXPECTED["rank_sleeps"].ranks
        sizes.add(len(found["samples"]["ranks"]))
    # Afterwards: py-spy stops the processes, and they have then not slept for long.
    spied = [sum(once([str(HERE / "py-spy"), "dump", "--pid", str(pid)])[0] for pid in pids) for _ in range(ROUNDS)]
    print(
        f"holdfast attach, {PROCESSES} ranks: median {statistics.median(attached):.2f} s "
        f"({min(attached):.2f} to {max(attached):.2f}; target {TARGET_S:.0f} s), right rank {right} of {ROUNDS}, "
        f"ranks seen {sorted(sizes)}"
    )
    print(
        f"py-spy dump, {len(pids)} times: median {statistics.median(spied):.2f} s "
        f"({min(spied):.2f} to {max(spied):.2f}), no verdict"
    )


def main() -> None:
    """Start the job, let it come to its hang, and measure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = [str(HERE / "torchrun"), "--nproc-per-node", str(PROCESSES), "--master-port", str(port), str(SPECIMEN)]
    with tempfile.TemporaryFile() as output:
        job = subprocess.Popen(launch, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=output, stderr=output)
        try:
            measure(port, hanging(job.pid))
        finally:
            for each in [*psutil.Process(job.pid).children(recursive=True), job]:
                each.kill()
            job.wait()


def hanging(pid: int) -> list[int]:
    """The ranks, once all are there and have used next to no processor time for a while."""
    quiet_since, before = time.monotonic(), -1.0
    while True:
        time.sleep(1)
        ranks = [each for each in psutil.Process(pid).children() if SPECIMEN.name in " ".join(each.cmdline())]
        used = sum(sum(each.cpu_times()[:2]) for each in ranks)
        if len(ranks) < PROCESSES or used - before > 0.2:
            quiet_since = time.monotonic()
        before = used
        if time.monotonic() - quiet_since > ASLEEP_S:
            return [each.pid for each in ranks]


if __name__ == "__main__":
    main()
