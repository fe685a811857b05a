"""The tables of the history store. Times are in Unix seconds; keys are natural, not counters.

A run is one start of a job, on all its nodes; its name is that of the first leader's run folder.
The nodes of a job record equal failures with equal times, so indexing their folders in any order,
any number of times, yields the same rows.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, ForeignKeyConstraint, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class StoreBase(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map: ClassVar = {str: Text, float: Double, list[str]: JSON, list[int]: JSON}


class RunRow(StoreBase):
    """A run; ``command`` is redacted, ``seen`` is the newest event.

    ``ended`` and ``status`` are None if no end was recorded.
    """

    __tablename__ = "runs"

    name: Mapped[str] = mapped_column(primary_key=True)
    folder: Mapped[str]
    command: Mapped[str]
    host: Mapped[str]
    began: Mapped[float] = mapped_column(index=True)
    seen: Mapped[float]
    ended: Mapped[float | None]
    status: Mapped[int | None]
    world_size: Mapped[int]
    nodes: Mapped[int]
    starts: Mapped[list[StartRow]] = relationship(
        order_by="StartRow.at", cascade="all, delete-orphan", passive_deletes=True
    )
    incidents: Mapped[list[IncidentRow]] = relationship(
        order_by="IncidentRow.at", cascade="all, delete-orphan", passive_deletes=True
    )


class StartRow(StoreBase):
    """A start of the workers; ``number`` counts the starts of one generation."""

    __tablename__ = "starts"

    run: Mapped[str] = mapped_column(ForeignKey("runs.name", ondelete="CASCADE"), primary_key=True)
    generation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[float]
    world_size: Mapped[int]
    nodes: Mapped[int]


class IncidentRow(StoreBase):
    """A failure, as the recovery policy saw it; ``at`` is the time of the decision.

    ``progressed`` is when a rank last advanced, ``saved_at`` when the newest checkpoint of this
    generation was committed, ``recovered`` when the next workers started (None: never).
    ``dead`` are the ranks with a non-zero exit status.
    """

    __tablename__ = "incidents"

    run: Mapped[str] = mapped_column(ForeignKey("runs.name", ondelete="CASCADE"), primary_key=True)
    at: Mapped[float] = mapped_column(primary_key=True, index=True)
    generation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    code: Mapped[str]
    cause: Mapped[str] = mapped_column(index=True)
    level: Mapped[str]
    message: Mapped[str]
    rank: Mapped[int | None]
    host: Mapped[str | None]
    file: Mapped[str | None]
    line: Mapped[int | None]
    hang: Mapped[bool]
    preempted: Mapped[bool]
    dead: Mapped[list[int]]
    world_size: Mapped[int]
    step: Mapped[int | None]
    saved: Mapped[int | None]
    started: Mapped[float]
    progressed: Mapped[float]
    saved_at: Mapped[float | None]
    recovered: Mapped[float | None]
    folder: Mapped[str | None]
    decision: Mapped[DecisionRow] = relationship(
        lazy="joined", innerjoin=True, cascade="all, delete-orphan", passive_deletes=True
    )
    job: Mapped[RunRow] = relationship(viewonly=True)


class DecisionRow(StoreBase):
    """What the recovery policy decided about an incident, and why."""

    __tablename__ = "decisions"
    __table_args__ = (
        ForeignKeyConstraint(
            ["run", "at", "generation"],
            ["incidents.run", "incidents.at", "incidents.generation"],
            ondelete="CASCADE",
        ),
    )

    run: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    action: Mapped[str]
    reason: Mapped[str]
    excluded: Mapped[list[str]]
    suspects: Mapped[list[str]]
    delay_s: Mapped[float]
    status: Mapped[int | None]


class SlowCollectiveRow(StoreBase):
    """A kind of collective that timed out or was slow, counted over the runs of the project.

    The columns are those of ``CollectiveProblem``.
    """

    __tablename__ = "slow_collectives"

    operation: Mapped[str] = mapped_column(primary_key=True)
    group: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    phase: Mapped[str] = mapped_column(primary_key=True)
    link: Mapped[str] = mapped_column(primary_key=True)
    site: Mapped[str] = mapped_column(primary_key=True)
    words: Mapped[str]
    timeouts: Mapped[int] = mapped_column(BigInteger)
    absent: Mapped[int] = mapped_column(BigInteger)
    slow: Mapped[int] = mapped_column(BigInteger)
    longest_s: Mapped[float]
    limit_s: Mapped[float]
    bandwidth: Mapped[float]
    runs: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[float] = mapped_column(index=True)
