"""Faults that prevent the start of a job: `holdfast check --connect` compared with plain torchrun.

Two hosts (four for the slow link) are namespaces joined by a switch
(``tests/network_namespaces.py``), with the faults of ``tests/bring_up.py``. torchrun runs
(``--nnodes --node-rank --master-addr --master-port``) a script with a gloo group and two
all-reduces, for 50 s per fault: its own limits are 15 and 30 minutes, and more. At the end, eight
healthy hosts are checked together. Takes about five minutes on a quiet machine.
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
from tests.network_namespaces import hosts, why_not

LIMIT_S = 50
#: Concurrent faults: with holdfast, whose durations are reported, and with torchrun; most is
#: waiting.
HOLDFAST_CONCURRENCY, CONCURRENCY = 2, 7
HOST_COUNT, HOST_COUNT_TARGET_S, TARGET_S = 8, 20, 15
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for size in (1, 1 << 20):
    dist.all_reduce(torch.ones(size))
print("success", flush=True)
dist.destroy_process_group()
"""
#: Lines in which torch reports the error, most specific first.
_ERROR_LINES = (
    r"EADDRINUSE[^,]*|Address already in use",
    r"Unable to find address.*",
    r"connectFullMesh failed.*",
    r"client socket has timed out.*",
    r"\d+/\d+ clients joined.*",
    r"Connection (?:refused|closed).*",
    r"\w*(?:Error|Exception)\b.*",
)


def main(only: Sequence[str] = ()) -> None:
    """Print one line per fault and host, for the named faults or all."""
    if why := why_not():
        print(f"skipped: {why}")
        return
    faults = [fault for fault in FAULTS if not only or fault.name in only]
    print(f"{'fault':<36}{'host':<7}{'holdfast':>9}  {'reports':<40}{'torchrun':>9}  reports")
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(CONCURRENCY) as pool:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        with ThreadPoolExecutor(HOLDFAST_CONCURRENCY) as few:
            ours = list(few.map(_run_holdfast, faults))
        for fault, mine, other in zip(
            faults, ours, pool.map(lambda each: _run_torchrun(each, script), faults), strict=True
        ):
            started = [at for at in range(fault.count) if at not in fault.silent]
            for at in started:
                (took_s, causes), (took, message) = mine[at], other[at]
                slowest = max(slowest, took_s)
                name = fault.name if at == started[0] else ""
                print(
                    f"{name:<36}node{at:<3}{took_s:>7.1f} s  {causes:<40}{took:>9}  {message[:90]}",
                    flush=True,
                )
    print(f"slowest result of holdfast: {slowest:.1f} s (target: {TARGET_S} s)")
    if not only:
        for more in ((), ("--no-job",)):
            print(
                f"{HOST_COUNT} healthy hosts, holdfast check {' '.join(more):<9} "
                f"{_time_healthy_hosts(more):.1f} s "
                f"(target: {HOST_COUNT_TARGET_S} s)",
                flush=True,
            )


def _time_healthy_hosts(more: Sequence[str]) -> float:
    """Return the seconds until the last of HOST_COUNT hosts has the shared result."""
    with hosts(HOST_COUNT) as made:
        command = ("-m", "holdfast", "check", "--json", "--nnodes", str(HOST_COUNT), *more)
        endpoint = ("--rdzv-endpoint", f"{made[0].address}:{PORT}")
        started = [
            host.start(sys.executable, *command, "--node-rank", str(host.number), *endpoint)
            for host in made
        ]
        for each in started:
            each.wait()
        assert all(len(json.loads(each.output)["matrix"]["rows"]) == HOST_COUNT for each in started)
        return max(each.took_s for each in started)


def _run_holdfast(fault: Fault) -> list[tuple[float, str]]:
    """Return duration and detected causes on each started host."""
    with hosts(fault.count) as made:
        started = start(fault, made, check)
        for each in started:
            if each is not None:
                each.wait()
        return [
            (each.took_s, _causes(each.output)) if each is not None else (0.0, "")
            for each in started
        ]


def _causes(output: str) -> str:
    causes = dict.fromkeys(finding["cause"] for finding in json.loads(output)["findings"])
    return ", ".join(causes) or "nothing"


def _run_torchrun(fault: Fault, script: Path) -> list[tuple[str, str]]:
    """Return duration and message of torchrun on each started host."""

    def command(fault: Fault, at: int) -> list[str]:
        rank, size = fault.place(at)
        rendezvous = (
            "--nnodes",
            size,
            "--node-rank",
            rank,
            "--master-addr",
            fault.endpoint,
            "--master-port",
            PORT,
        )
        return [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "1",
            *map(str, rendezvous),
            str(script),
        ]

    with hosts(fault.count) as made:
        started = start(fault, made, command)
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and any(
            each is not None and each.took_s is None for each in started
        ):
            time.sleep(0.1)
        return [
            (f"{each.took_s:.1f} s" if each.took_s else f">{LIMIT_S} s", _error_message(each))
            if each is not None
            else ("", "")
            for each in started
        ]


def _error_message(started) -> str:  # noqa: ANN001 - tests have no types
    """Return the line in which torchrun reports the fault."""
    if "success" in started.output:
        return "success"
    text = re.sub(r"\x1b\[[0-9;]*m", "", started.output + started.errors)
    for pattern in _ERROR_LINES:
        if found := re.search(pattern, text):
            return found[0]
    return "no output" if started.took_s is None else "ends without a reason"


if __name__ == "__main__":
    main(sys.argv[1:])
