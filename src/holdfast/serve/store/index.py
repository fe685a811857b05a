"""Write runs to the history store, and delete old ones. Both can be repeated without effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from sqlalchemy import delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from holdfast.core.collective_history import CollectiveProblem
from holdfast.core.errors import UsageError
from holdfast.core.text import one_line
from holdfast.serve.store.database import HistoryStore
from holdfast.serve.store.location import FILE, run_marker
from holdfast.serve.store.run_rows import RunRows, read_run
from holdfast.serve.store.tables import (
    DecisionRow,
    IncidentRow,
    RunRow,
    SlowCollectiveRow,
    StartRow,
    StoreBase,
)
from holdfast.watcher.history_facts import history_folder, read_histories

#: Runs written in one transaction: others wait for a fraction of a second only.
BATCH = 50


class IndexResult(msgspec.Struct, frozen=True):
    """How many runs were indexed; ``unreadable`` has one sentence per ledger that was skipped."""

    runs: int
    incidents: int
    unreadable: tuple[str, ...] = ()


def index_folders(store: HistoryStore, folders: Sequence[Path]) -> IndexResult:
    """Add or update the runs in run folders; remove their markers if the store is beside them.

    Raises:
        HistoryUnusable: the store cannot be written; the runs before may have been added.
    """
    runs, incidents, unreadable = set(), 0, []
    for first in range(0, len(folders), BATCH):
        batch: list[RunRows] = []
        marked = _marker_times(store, folders[first : first + BATCH])
        for folder in folders[first : first + BATCH]:
            try:
                rows = read_run(folder)
            except UsageError as error:
                unreadable.append(str(error))
                continue
            batch += [rows] if rows is not None else []
        store.write(lambda session, batch=batch: _merge_all(session, batch))  # type: ignore[misc]
        for marker, time_ns in marked.items():
            if _marker_time(marker) == time_ns:  # nothing was recorded since
                marker.unlink(missing_ok=True)
        runs |= {rows.run.name for rows in batch}
        incidents += sum(len(rows.incidents) for rows in batch)
    for parent in dict.fromkeys(folder.absolute().parent for folder in folders):
        problems = read_histories(history_folder(parent)).troubles
        store.write(lambda session, problems=problems: _merge_problems(session, problems))  # type: ignore[misc]
    return IndexResult(len(runs), incidents, tuple(unreadable))


def _marker_times(store: HistoryStore, folders: Iterable[Path]) -> dict[Path, int]:
    beside = [each for each in folders if str(each.absolute().parent / FILE) == store.name]
    times = {run_marker(each): _marker_time(run_marker(each)) for each in beside}
    return {marker: time_ns for marker, time_ns in times.items() if time_ns is not None}


def _marker_time(marker: Path) -> int | None:
    try:
        return marker.stat().st_mtime_ns
    except OSError:
        return None


def _merge_all(session: Session, batch: Sequence[RunRows]) -> None:
    for rows in batch:
        _merge_run(session, rows.run)
    session.flush()
    incidents = [incident for rows in batch for incident in rows.incidents]
    _upsert(session, StartRow, [start for rows in batch for start in rows.starts])
    _upsert(session, IncidentRow, incidents)
    _upsert(session, DecisionRow, [incident.decision for incident in incidents])


def _merge_run(session: Session, run: RunRow) -> None:
    """Insert the run, or combine it with what another node of the job has recorded."""
    known = session.get(RunRow, run.name)
    if known is None:
        session.merge(run)
        return
    known.began, known.seen = min(known.began, run.began), max(known.seen, run.seen)
    known.world_size = max(known.world_size, run.world_size)
    known.nodes = max(known.nodes, run.nodes)
    if run.ended is not None and run.ended >= (known.ended or 0.0):
        known.ended, known.status = run.ended, run.status


def _upsert(session: Session, table: type[StoreBase], rows: Iterable[StoreBase]) -> None:
    """Insert rows or update those with equal keys; a value that is known is kept over None."""
    columns = table.__table__.columns
    keys = [column.name for column in columns if column.primary_key]
    values: dict[tuple[object, ...], dict[str, object]] = {}
    for row in rows:
        fields = {column.name: getattr(row, column.name) for column in columns}
        key = tuple(fields[name] for name in keys)
        known = {name: value for name, value in fields.items() if value is not None}
        values[key] = {**values.get(key, fields), **known}
    if not values:
        return
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    insert = dialect.insert(table)
    kept = {
        column.name: func.coalesce(insert.excluded[column.name], column)
        if column.nullable
        else insert.excluded[column.name]
        for column in columns
        if not column.primary_key
    }
    statement = insert.on_conflict_do_update(index_elements=keys, set_=kept)
    session.execute(statement, list(values.values()))


def _merge_problems(session: Session, problems: Iterable[CollectiveProblem]) -> None:
    """Insert or update slow collectives; the history forgets old ones, the store does not."""
    names = SlowCollectiveRow.__table__.columns.keys()
    rows = []
    for problem in problems:
        values = {name: getattr(problem, name) for name in names}
        rows.append(
            SlowCollectiveRow(
                **{
                    name: one_line(value) if isinstance(value, str) else value
                    for name, value in values.items()
                }
            )
        )
    _upsert(session, SlowCollectiveRow, rows)


def prune(store: HistoryStore, before: float) -> int:
    """Delete the runs whose newest event is older than ``before``; return their number."""

    def work(session: Session) -> int:
        old = RunRow.seen < before
        count = session.scalar(select(func.count()).select_from(RunRow).where(old)) or 0
        session.execute(delete(RunRow).where(old))
        session.execute(delete(SlowCollectiveRow).where(SlowCollectiveRow.at < before))
        return count

    return store.write(work)
