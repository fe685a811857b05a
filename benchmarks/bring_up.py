"""Faults that keep hosts from starting a job: what `holdfast check --connect` says and when, and plain torchrun.

Two hosts (four for the slow link) are name spaces joined by a switch (``tests/hosts.py``), the faults are those of
``tests/bring_up.py``. torchrun runs as most do (``--nnodes --node-rank --master-addr --master-port``) a script that
makes a gloo group and two all-reduces, and is given 50 s a fault: its own limits are 15 and 30 minutes, and more.
At the end eight hosts that are well are checked together. All of it takes some five minutes of a quiet machine.
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

LIMIT_S = 50
#: Faults under way at once, as most of the time is waiting: with holdfast, whose times are told, and with torchrun.
OURS_AT_ONCE, AT_ONCE = 2, 7
MANY, MANY_TARGET_S, TARGET_S = 8, 20, 15
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
    print(f"{'fault':<36}{'host':<7}{'holdfast':>9}  {'says':<40}{'torchrun':>9}  says")
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        with ThreadPoolExecutor(OURS_AT_ONCE) as few:
            ours = list(few.map(_ours, faults))
        for fault, mine, other in zip(
            faults, ours, pool.map(lambda each: _torchruns(each, script), faults), strict=True
        ):
            started = [at for at in range(fault.count) if at not in fault.silent]
            for at in started:
                (took_s, found), (took, said) = mine[at], other[at]
                slowest = max(slowest, took_s)
                name = fault.name if at == started[0] else ""
                print(f"{name:<36}node{at:<3}{took_s:>7.1f} s  {found:<40}{took:>9}  {said[:90]}", flush=True)
    print(f"slowest answer of holdfast: {slowest:.1f} s (aim: {TARGET_S} s)")
    if not only:
        for more in ((), ("--no-job",)):
            print(f"{MANY} hosts that are well, holdfast check {' '.join(more):<9} {_many(more):.1f} s "
                  f"(aim: {MANY_TARGET_S} s)", flush=True)  # fmt: skip


def _many(more: Sequence[str]) -> float:
    """Seconds until the last of MANY hosts was told what was seen of all."""
    with hosts(MANY) as made:
        words = ("-m", "holdfast", "check", "--json", "--nnodes", str(MANY), *more)
        meeting = ("--rdzv-endpoint", f"{made[0].address}:{PORT}")
        started = [host.start(sys.executable, *words, "--node-rank", str(host.number), *meeting) for host in made]
        for each in started:
            each.wait()
        assert all(len(json.loads(each.output)["matrix"]["rows"]) == MANY for each in started)
        return max(each.took_s for each in started)


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
