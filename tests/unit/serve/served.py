"""A run folder with a live state, a ledger and an incident, and a real server on a free port."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.causes import by_name
from holdfast.core.failures import JobFailure, RecoveryAction, RecoveryDecision
from holdfast.core.findings import (
    Fact,
    Level,
    Remedy,
    Subject,
    Verdict,
    make_finding,
    verdict_to_json,
)
from holdfast.core.ledger import Ledger, LedgerEvent, LedgerRecord
from holdfast.core.live_state import LiveState
from holdfast.core.rank_table import RankState, SourceLine, ThreadStack
from holdfast.report.json import envelope
from holdfast.serve.live.watch import RunWatch
from holdfast.serve.web.application import create_application
from holdfast.serve.web.server import make_server, open_socket
from holdfast.watcher.live_writer import LiveWriter
from tests.unit.serve.simulated_job import OVERHEATED, simulate, start_message

RUN = "20260107-141530-3fa2"
#: A text that would run as a script, if it were not escaped.
HOSTILE = "<img src=x onerror=document.title='hacked'>"
_REPORT = "<!doctype html><title>incident</title><style>p { color: green }</style><p>the report of incident 0</p>"


def write_live(
    folder: Path, world_size: int, *, stuck: int | None = None, seconds: int = 8
) -> None:
    """Write the states of some seconds until now, as the leader's watcher does."""
    writer, job = LiveWriter(1.0), start_message(folder, world_size, generation=1)
    now = time.time()
    for second in range(seconds):
        writer._series_at = float("-inf")
        table = simulate(
            world_size,
            now - seconds + 1 + second,
            step=100 + second,
            stuck=stuck if second == seconds - 1 else None,
        )
        writer._write(job, table, (OVERHEATED,), LiveState(stall_s=5.0))


def write_past(folder: Path) -> None:
    """Write a start, a failure with its incident, and the decision about it."""
    now = time.time()
    finding = make_finding(
        by_name("rank-missing-collective"),
        f"rank 2 never entered all_reduce {HOSTILE}",
        level=Level.ERROR,
        subject=Subject(rank=2, host="node000"),
        evidence=(Fact(text="63 ranks wait", origin="trace"),),
        remedies=(Remedy(text="let every rank enter it"),),
    )
    incident = folder / "incidents" / "0"
    incident.mkdir(parents=True)
    verdict = verdict_to_json(Verdict(question="why does the job hang?", root=finding))
    (incident / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    (incident / "report.html").write_text(_REPORT)
    stack = ThreadStack(
        (SourceLine("/job/train.py", 41, "train"), SourceLine("/job/train.py", 9, "main"))
    )
    (incident / "ranks.json").write_bytes(
        msgspec.json.encode({"ranks": [RankState(rank=2, stacks=(stack,))]})
    )
    ledger = Ledger(folder)
    ledger.add(
        LedgerRecord(event=LedgerEvent.BEGUN, at=now - 90, host="node000", text="train.py --lr 1")
    )
    ledger.add(
        LedgerRecord(
            event=LedgerEvent.STARTED, at=now - 80, world_size=64, nodes=8, ranks=tuple(range(8))
        )
    )
    failure = JobFailure(
        at=now - 30,
        generation=0,
        hang=True,
        message=finding.message,
        rank=2,
        code="SYNC004",
        cause=finding.cause,
    )
    decision = RecoveryDecision(action=RecoveryAction.RESTART, reason="restart: the first failure")
    ledger.add(
        LedgerRecord(
            event=LedgerEvent.FAILED,
            at=now - 30,
            failure=failure,
            decision=decision,
            folder=str(incident),
        )
    )


def write_check(path: Path) -> None:
    """Write what `holdfast check --json` prints, of two checks."""
    finding = make_finding(
        by_name("port-in-use"),
        "port 29500 is in use",
        level=Level.ERROR,
        subject=Subject(host="node000"),
    )
    checks = [
        {"name": "ports", "host": "node000", "state": "ok"},
        {"name": "gpus", "host": "node000", "state": "unknown", "unseen": ["no driver"]},
    ]
    path.write_bytes(msgspec.json.encode(envelope("check", [finding], None, checks=checks)))


def make_run(base: Path, world_size: int = 64, *, stuck: int | None = None) -> Path:
    """Return the folder of a run in ``base``."""
    folder = base / RUN
    folder.mkdir(parents=True)
    write_past(folder)
    write_live(folder, world_size, stuck=stuck)
    return folder


@contextmanager
def serving(base: Path, token: str | None = None, *, metrics_only: bool = False) -> Iterator[str]:
    """Yield the address of a server that runs in a thread."""
    application = create_application(RunWatch(base), token, metrics_only=metrics_only)
    listener = open_socket("127.0.0.1", 0)
    server = make_server(application)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
