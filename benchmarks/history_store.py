"""Time of the history store by size: indexing, queries and pages, on SQLite or PostgreSQL.

``python -m benchmarks.history_store [--store URL]`` writes generated ledgers of jobs with
``--ranks`` ranks on ``--nodes`` nodes (one run folder a node), then measures each operation. Ratios
between sizes show the growth.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.core.failures import JobFailure, JobState, RecoveryAction, RecoveryDecision
from holdfast.core.ledger import Ledger, LedgerEvent, LedgerRecord
from holdfast.core.text import format_precise_duration
from holdfast.serve.store.cost import compute_cost
from holdfast.serve.store.database import HistoryStore
from holdfast.serve.store.index import index_folders
from holdfast.serve.store.page import cost_page
from holdfast.serve.store.queries import IncidentFilter, read_incidents, read_runs
from holdfast.serve.store.run_rows import find_run_folders

CAUSES = (("PROC006", "rank-killed"), ("SYNC002", "rank-missing-collective"), ("MEM001", "oom"))
RUN_S = 3600.0
#: A job has this many failures.
FAILURES = 3


def records(number: int, job: str, ranks: int, nodes: int) -> Iterator[LedgerRecord]:
    """Yield the ledger of a node of job ``number``, which begins an hour after the previous one."""
    began = 1.7e9 + number * RUN_S
    yield LedgerRecord(event=LedgerEvent.BEGUN, at=began, host="node0", text="train.py --steps 9")
    for generation in range(FAILURES + 1):
        at = began + 1 + generation * RUN_S / (FAILURES + 1)
        shape: dict[str, Any] = {"job": job, "world_size": ranks, "nodes": nodes}
        yield LedgerRecord(event=LedgerEvent.STARTED, at=at, generation=generation, **shape)
        if generation == FAILURES:
            break
        code, cause = CAUSES[generation]
        failed_at, rank = at + 800, (number + generation) % ranks
        state = JobState(step=50, saved=40, saved_at=at + 700, progressed=at + 790)
        failure = JobFailure(
            at=failed_at,
            generation=generation,
            code=code,
            cause=cause,
            message=f"rank {rank} failed",
            rank=rank,
            host=f"node{rank // 8}",
            dead=(rank,),
            job_state=state,
        )
        decision = RecoveryDecision(action=RecoveryAction.RESTART, reason="restart")
        yield LedgerRecord(
            event=LedgerEvent.FAILED, at=failed_at, failure=failure, decision=decision
        )
    yield LedgerRecord(event=LedgerEvent.ENDED, at=began + RUN_S - 1, status=0)


def write_folders(base: Path, jobs: int, folders: int, ranks: int, nodes: int) -> None:
    """Write the run folders of ``jobs`` jobs, ``folders`` for each."""
    for number in range(jobs):
        job = f"job{number:06}"
        for node in range(folders):
            folder = base / (job if node == 0 else f"{job}.{node}")
            folder.mkdir(parents=True)
            Ledger.add = _add_unsynced  # type: ignore[method-assign]
            ledger = Ledger(folder)
            for record in records(number, job, ranks, nodes):
                ledger.add(record)


def _add_unsynced(self: Ledger, record: LedgerRecord) -> None:
    import msgspec  # noqa: PLC0415 - only here

    with self.path.open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def measure(name: str, work: Callable[[], Any]) -> Any:
    """Print the wall time and CPU time of ``work`` and return its result."""
    began, used = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    print(f"{name:44} {format_precise_duration(wall):>10} {format_precise_duration(cpu):>10} CPU")
    return result


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="URL (default: a SQLite file)")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--folders", type=int, default=1, help="run folders of each job")
    parser.add_argument("--ranks", type=int, default=16384)
    parser.add_argument("--nodes", type=int, default=2048)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "runs"
        write_folders(base, options.jobs, options.folders, options.ranks, options.nodes)
        store = measure(
            "create the store",
            lambda: HistoryStore(options.store or str(Path(folder) / "h.sqlite"), create=True),
        )
        found = find_run_folders(base)
        print(measure(f"index {len(found)} folders", lambda: index_folders(store, found)))
        measure("index them again", lambda: index_folders(store, found))
        measure("index one folder again", lambda: index_folders(store, found[-1:]))
        runs = measure("read all runs", lambda: read_runs(store))
        last = IncidentFilter(since=runs[0].seen - 7 * 86400)
        print(len(measure("read incidents of 7 days", lambda: read_incidents(store, last))))
        host = IncidentFilter(host="node0")
        print(len(measure("read incidents of one host", lambda: read_incidents(store, host))))
        cost = measure("compute the cost", lambda: compute_cost(runs, 0.0, runs[0].seen))
        page = measure("render the page", lambda: cost_page(cost, runs, store.name))
        size = sum(file.stat().st_size for file in Path(folder).glob("h.sqlite*"))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(f"store {size / 1e6:.1f} MB, page {len(page) / 1e3:.0f} kB, peak {memory} MiB")


if __name__ == "__main__":
    main()
