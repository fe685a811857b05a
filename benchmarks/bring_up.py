"""Faults that keep hosts from starting a job: what `holdfast check --connect` says and when, and plain torchrun.

Two hosts (four for the slow link) are name spaces joined by a switch (``tests/hosts.py``), the faults are those of
``tests/bring_up.py``. torchrun runs as most do (``--nnodes --node-rank --master-addr --master-port``) a script that
makes a gloo group and two all-reduces, and is given 60 s a fault: its own limits are 15 and 30 minutes, and more.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bring_up import FAULTS, PORT, Fault, check, start
from tests.hosts import hosts, why_not

LIMIT_S = 60
#: Faults under way at once with torchrun, which waits most of the time.
AT_ONCE = 4
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for size in (1, 1 << 20):
    dist.all_reduce(torch.ones(size))
print("all went well", flush=True)
dist.destroy_process_group()
"""
#: Lines in which torch says what went wrong, the most telling first.
_TELLING = (r"EADDRINUSE[^,]*|Address already in use", r"Unable to find address.*", r"connectFullMesh failed.*",
            r"client socket has timed out.*", r"\d+/\d+ clients joined.*", r"Connection (?:refused|closed).*",
            r"\w*(?:Error|Exception)\b.*")  # fmt: skip


def main(only: Sequence[str] = ()) -> None:
    """Print the table, a line a fault and host; of the faults called so alone, where there are names."""
    if why := why_not():
        print(f"left out: {why}")
        return
    faults = [fault for fault in FAULTS if not only or fault.name in only]
    print(f"{'fault':<36}{'host':<7}{'holdfast':>9}  {'says':<26}{'torchrun':>9}  says")
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        ours = [_ours(fault) for fault in faults]  # one after the other; torchrun merely waits
        for fault, mine, other in zip(
            faults, ours, pool.map(lambda each: _torchruns(each, script), faults), strict=True
        ):
            started = [at for at in range(fault.count) if at not in fault.silent]
            for at in started:
                (took_s, found), (took, said) = mine[at], other[at]
                slowest = max(slowest, took_s)
                name = fault.name if at == started[0] else ""
                print(f"{name:<36}node{at:<3}{took_s:>7.1f} s  {found:<26}{took:>9}  {said[:90]}", flush=True)
    print(f"slowest answer of holdfast: {slowest:.1f} s (aim: 15 s)")


def _ours(fault: Fault) -> list[tuple[float, str]]:
    """Seconds, and the causes that were found, on each host that was started."""
    with hosts(fault.count) as made:
        started = start(fault, made, check)
        for each in started:
            if each is not None:
                each.wait()
        return [(each.took_s, _found(each.output)) if each is not None else (0.0, "") for each in started]


def _found(output: str) -> str:
    causes = dict.fromkeys(claim["cause"] for claim in json.loads(output)["findings"])
    return ", ".join(causes) or "nothing"


def _torchruns(fault: Fault, script: Path) -> list[tuple[str, str]]:
    """The same of torchrun: how long until it said or ended, and what."""

    def words(fault: Fault, at: int) -> list[str]:
        rank, size = fault.place(at)
        place = ("--nnodes", size, "--node-rank", rank, "--master-addr", fault.endpoint, "--master-port", PORT)
        return ["-m", "torch.distributed.run", "--nproc-per-node", "1", *map(str, place), str(script)]

    with hosts(fault.count) as made:
        started = start(fault, made, words)
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and any(each is not None and each.took_s is None for each in started):
            time.sleep(0.1)
        return [
            (f"{each.took_s:.1f} s" if each.took_s else f">{LIMIT_S} s", _said(each)) if each is not None else ("", "")
            for each in started
        ]


def _said(started) -> str:  # noqa: ANN001 - tests have no types
    """What it printed of the fault."""
    if "all went well" in started.output:
        return "all went well"
    text = re.sub(r"\x1b\[[0-9;]*m", "", started.output + started.errors)
    for pattern in _TELLING:
        if found := re.search(pattern, text):
            return found[0]
    return "nothing" if started.took_s is None else "ends without a reason"


if __name__ == "__main__":
    main(sys.argv[1:])
