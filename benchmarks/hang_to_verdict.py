"""Time from a hang to the verdict, for every specimen that hangs: holdfast next to torchrun.

holdfast runs with ``--act-after 5s`` and otherwise default settings: by default, a root that may
recover is reported as suspected at this time and acted on after 60 s without progress.

Specimens that need special settings are excluded (``never_ends``: no rank waits for that rank in a
collective, so that it is reported after half an hour). The time is that from the last progress of
any rank to the verdict. torchrun runs one specimen as shipped, for at most 180 s (gloo's timeout is
30 minutes), and with a process-group timeout of 60 s; the rank that it names is printed.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.specimens.expected import EXPECTED, Ending

HERE = Path(sys.executable).parent
SPECIMENS = Path(__file__).parent.parent / "tests" / "faults" / "specimens"
SHIPPED_LIMIT_S = float(os.environ.get("HOLDFAST_BENCH_SHIPPED_S", "180"))
GROUP_LIMIT_S = 60

_WITH_LIMIT = """
import datetime, functools, runpy, sys
import torch.distributed as dist
limit = datetime.timedelta(seconds=float(sys.argv[1]))
original = dist.init_process_group
dist.init_process_group = functools.partial(original, timeout=limit)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_holdfast(name: str) -> tuple[float | None, bool, str]:
    """Return seconds to the verdict, whether it names the right rank, and its message."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            str(HERE / "holdfast"),
            "run",
            "--standalone",
            "--nproc-per-node=4",
            "--max-restarts=0",
            "--act-after=5s",
            "--run-dir",
            folder,
            "--json-report",
            str(report),
            str(SPECIMENS / f"{name}.py"),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, capture_output=True, check=False, timeout=120)
        found = json.loads(report.read_text())
    root = found["verdict"]["root"]
    right = root is not None and root["subject"]["rank"] in EXPECTED[name].ranks
    seconds = found["incidents"][-1]["detected_s"] if found["incidents"] else None
    return seconds, right, root["message"] if root else "nothing found"


def run_torchrun(
    name: str, group_limit_s: float | None, limit_s: float
) -> tuple[float | None, str]:
    """Return seconds until torchrun ended the job (None: not within the limit) and its rank."""
    script = [str(SPECIMENS / f"{name}.py")]
    with tempfile.TemporaryDirectory() as folder:
        if group_limit_s is not None:
            wrapper = Path(folder) / "with_limit.py"
            wrapper.write_text(_WITH_LIMIT)
            script = [str(wrapper), str(group_limit_s), *script]
        command = [str(HERE / "torchrun"), "--standalone", "--nproc-per-node=4", *script]
        began = time.monotonic()
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        try:
            _, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate()
            return None, "nothing"
    named = re.search(r"Root Cause.*?rank\s*:\s*(\d+)", errors, re.DOTALL)
    return time.monotonic() - began, f"rank {named[1]}" if named else "nothing"


def main() -> None:
    """Print a line per specimen, the median, the share of right ranks, and torchrun's results."""
    hangs = {
        name: expected for name, expected in EXPECTED.items() if expected.ending is Ending.HANG
    }
    names = [name for name, expected in hangs.items() if not expected.environment]
    seconds, right = [], 0
    for name in names:
        duration_s, is_right, message = run_holdfast(name)
        right += is_right
        seconds.append(duration_s if duration_s is not None else float("inf"))
        print(
            f"{name:28} {seconds[-1]:6.1f} s  {'right rank' if is_right else 'WRONG RANK':12} "
            f"{message[:90]}",
            flush=True,
        )
    print(
        f"holdfast: median {statistics.median(seconds):.1f} s (target 10 s), right rank in {right} "
        f"of {len(names)}"
    )
    shipped, named = run_torchrun("rank_sleeps", None, SHIPPED_LIMIT_S)
    ended = f"{'ended' if shipped else 'nothing'} in {shipped or SHIPPED_LIMIT_S:.0f} s"
    print(f"torchrun as shipped, rank_sleeps: {ended}, names {named}")
    limited, named = run_torchrun("rank_sleeps", GROUP_LIMIT_S, 180)
    ended = f"{limited or 180:.0f} s after start"
    print(
        f"torchrun, group limit {GROUP_LIMIT_S} s, rank_sleeps (guilty: rank 2): {ended}, names "
        f"{named}"
    )


if __name__ == "__main__":
    main()
