"""Read runs and incidents from the history store as plain structures, newest first."""

from __future__ import annotations

import msgspec
from sqlalchemy import or_, select
from sqlalchemy.orm import Session, selectinload

from holdfast.core.collective_history import CollectiveProblem
from holdfast.serve.store.database import HistoryStore
from holdfast.serve.store.tables import IncidentRow, RunRow, SlowCollectiveRow


class StoredDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What the recovery policy decided, and why."""

    action: str
    reason: str
    excluded: list[str]
    suspects: list[str]
    delay_s: float
    status: int | None


class StoredIncident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident with its decision; the columns of :class:`IncidentRow`."""

    run: str
    at: float
    generation: int
    code: str
    cause: str
    level: str
    message: str
    rank: int | None
    host: str | None
    file: str | None
    line: int | None
    hang: bool
    preempted: bool
    dead: list[int]
    world_size: int
    step: int | None
    saved: int | None
    started: float
    progressed: float
    saved_at: float | None
    recovered: float | None
    folder: str | None
    decision: StoredDecision


class StoredStart(msgspec.Struct, frozen=True, kw_only=True):
    """A start of the workers."""

    generation: int
    at: float
    world_size: int
    nodes: int


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its starts and incidents, oldest first."""

    name: str
    folder: str
    command: str
    host: str
    began: float
    seen: float
    ended: float | None
    status: int | None
    world_size: int
    nodes: int
    starts: list[StoredStart]
    incidents: list[StoredIncident]


class IncidentFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which incidents to return: from ``since`` on (Unix seconds), with cause (code or name)."""

    since: float = 0.0
    cause: str | None = None
    host: str | None = None


def read_runs(store: HistoryStore, since: float = 0.0) -> list[StoredRun]:
    """Return the runs that were active since then, newest first. Raises HistoryUnusable."""

    def work(session: Session) -> list[StoredRun]:
        query = (
            select(RunRow)
            .where(RunRow.seen >= since)
            .order_by(RunRow.began.desc(), RunRow.name)
            .options(selectinload(RunRow.starts), selectinload(RunRow.incidents))
        )
        return msgspec.convert(session.scalars(query).all(), list[StoredRun], from_attributes=True)

    return store.read(work)


def read_incidents(store: HistoryStore, wanted: IncidentFilter) -> list[StoredIncident]:
    """Return the matching incidents, newest first. Raises HistoryUnusable."""

    def work(session: Session) -> list[StoredIncident]:
        query = select(IncidentRow).where(IncidentRow.at >= wanted.since)
        if wanted.cause is not None:
            query = query.where(
                or_(
                    IncidentRow.code == wanted.cause.upper(),
                    IncidentRow.cause == wanted.cause.casefold(),
                )
            )
        if wanted.host is not None:
            query = query.where(IncidentRow.host == wanted.host)
        rows = session.scalars(query.order_by(IncidentRow.at.desc())).all()
        return msgspec.convert(rows, list[StoredIncident], from_attributes=True)

    return store.read(work)


def read_slow_collectives(store: HistoryStore, since: float = 0.0) -> list[CollectiveProblem]:
    """Return collectives that were slow since then, newest first. Raises HistoryUnusable."""

    def work(session: Session) -> list[CollectiveProblem]:
        query = select(SlowCollectiveRow).where(SlowCollectiveRow.at >= since)
        rows = session.scalars(query.order_by(SlowCollectiveRow.at.desc())).all()
        return msgspec.convert(rows, list[CollectiveProblem], from_attributes=True)

    return store.read(work)
