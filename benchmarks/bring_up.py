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
from pathlib import Path

from tests.bring_up import FAULTS, PORT, Fault, check, start
from tests.hosts import hosts, why_not

LIMIT_S = 60
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


def main() -> None:
    """Print the table, a line a fault and host."""
    if why := why_not():
        print(f"left out: {why}")
        return
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        print(f"{'fault':<36}{'host':<7}{'holdfast':>9}  {'says':<26}{'torchrun':>9}  says")
        slowest = 0.0
        for fault in FAULTS:
            ours, theirs = _ours(fault), _torchruns(fault, script)
            for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
                if mine is None or other is None:
                    continue
                slowest = max(slowest, mine[0])
                name = fault.name if at == min(set(range(fault.count)) - set(fault.silent)) else ""
                print(
                    f"{name:<36}node{at:<3}{mine[0]:>7.1f} s  {mine[1]:<26}{other[0]:>9}  {other[1][:90]}", flush=True
                )
        print(f"slowest answer of holdfast: {slowest:.1f} s (aim: 15 s)")


def _ours(fault: Fault) -> list[tuple[float, str] | None]:
    """Seconds, and the causes that were found, on each host that was started."""
    with hosts(fault.count) as made:
        started = start(fault, made, check)
        for each in started:
            if each is not None:
                each.wait()
        return [each and (each.took_s, _found(each.output)) for each in started]


def _found(output: str) -> str:
    causes = dict.fromkeys(claim["cause"] for claim in json.loads(output)["findings"])
    return ", ".join(causes) or "nothing"


def _torchruns(fault: Fault, script: Path) -> list[tuple[str, str] | None]:
    """The same of torchrun: how long until it said or ended, and what."""

    def words(fault: Fault, at: int) -> list[str]:
        rank, size = fault.place(at)
        place = ("--nnodes", size, "--node-rank", rank, "--master-addr", fault.endpoint, "--master-port", PORT)
        return ["-m", "torch.distributed.run", "--nproc-per-node", "1", *map(str, place), str(script)]

    with hosts(fault.count) as made:
        started = start(fault, made, words)
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and any(each is not None and each.ended() is None for each in started):
            time.sleep(0.1)
        told = [each and (f"{each.took_s:.1f} s" if each.took_s is not None else f">{LIMIT_S} s", _said(each))
                for each in started]  # fmt: skip
        for each in started:
            if each is not None:
                each.kill()
        return told


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
    sys.exit(main())
