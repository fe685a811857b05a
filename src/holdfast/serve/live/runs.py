"""Finds runs in a folder and reads their past: timeline, incidents, decisions, findings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core import ledger
from holdfast.core.documents import read_bounded
from holdfast.core.errors import HoldfastError, MissingFile
from holdfast.core.findings import Finding, Verdict
from holdfast.core.ledger import LedgerEvent, LedgerRecord
from holdfast.core.live_state import STATES
from holdfast.core.rank_table import RankState
from holdfast.core.text import os_error_reason
from holdfast.report.run_timeline import describe_records

#: Runs in a list, and incidents and events of a run: the newest.
MAX_RUNS, MAX_INCIDENTS, MAX_EVENTS = 200, 50, 200
MAX_VERDICT_BYTES, MAX_TABLE_BYTES = 8 << 20, 64 << 20
#: A run without an end whose live state is older was killed.
LIVE_S = 60.0


class RunEvent(msgspec.Struct, frozen=True):
    """An event of a run's timeline; ``details`` are (label, text)."""

    at: float
    kind: str
    title: str
    details: tuple[tuple[str, str], ...] = ()


class RunIncident(msgspec.Struct, frozen=True):
    """An incident: its number, the verdict (None: unreadable), and whether it has a page."""

    number: str
    verdict: Verdict | None
    has_page: bool


class RunHead(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list. ``status`` is the exit status, None while it runs or if it was killed."""

    name: str
    path: str
    begun: float = 0.0
    ended: float | None = None
    status: int | None = None
    command: str = ""
    world_size: int | None = None
    nodes: int | None = None
    starts: int = 0
    failures: int = 0
    live: bool = False


class RunPast(msgspec.Struct, frozen=True, kw_only=True):
    """What the run folder recorded, besides the live state."""

    head: RunHead
    events: tuple[RunEvent, ...] = ()
    incidents: tuple[RunIncident, ...] = ()
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()


class _StoredTable(msgspec.Struct, frozen=True):
    """The part of an incident's ``ranks.json`` that is read here."""

    ranks: tuple[RankState, ...] = ()


def is_run(folder: Path) -> bool:
    """Return whether ``folder`` is the folder of one run."""
    return (folder / ledger.FILE).is_file() or any(folder.glob(STATES))


def find_runs(base: Path) -> tuple[Path, ...]:
    """Return the run folders in ``base``, or ``base`` itself if it is one; the newest first.

    Raises:
        MissingFile: the folder cannot be read.
    """
    if is_run(base):
        return (base,)
    try:
        folders = [folder for folder in base.iterdir() if folder.is_dir()]
    except OSError as error:
        raise MissingFile(
            base,
            why=os_error_reason(error),
            next_step="pass a run folder of `holdfast run`, or the folder of all runs",
        ) from error
    folders.sort(key=lambda folder: folder.name, reverse=True)
    return tuple([folder for folder in folders if is_run(folder)][:MAX_RUNS])


def read_past(folder: Path) -> RunPast:
    """Return what the run folder recorded; what cannot be read is a sentence in ``problems``."""
    problems: list[str] = []
    records: Sequence[LedgerRecord] = ()
    try:
        records = ledger.read_ledger(folder)
    except HoldfastError as error:
        problems.append(str(error))
    events = [
        RunEvent(event.at, str(record.event), event.title, tuple(event.details))
        for record, event in zip(records, describe_records(records), strict=True)
    ]
    return RunPast(
        head=_head(folder, records),
        events=tuple(events[-MAX_EVENTS:]),
        incidents=tuple(_incidents(folder / "incidents", problems)),
        findings=tuple(finding for record in records for finding in record.findings)[-MAX_EVENTS:],
        problems=tuple(problems),
    )


def read_head(folder: Path) -> RunHead:
    """Return the line of a run in a list."""
    records: Sequence[LedgerRecord] = ()
    with suppress(HoldfastError):
        records = ledger.read_ledger(folder)
    return _head(folder, records)


def _head(folder: Path, records: Sequence[LedgerRecord]) -> RunHead:
    by_event = {event: [each for each in records if each.event is event] for event in LedgerEvent}
    starts, ends = by_event[LedgerEvent.STARTED], by_event[LedgerEvent.ENDED]
    begun = by_event[LedgerEvent.BEGUN]
    return RunHead(
        name=folder.name,
        path=str(folder),
        begun=records[0].at if records else 0.0,
        ended=ends[-1].at if ends else None,
        status=ends[-1].status if ends else None,
        command=begun[0].text if begun else "",
        world_size=starts[-1].world_size if starts else None,
        nodes=starts[-1].nodes if starts else None,
        starts=len(starts),
        failures=len(by_event[LedgerEvent.FAILED]),
        live=not ends and _is_written(folder),
    )


def _is_written(folder: Path) -> bool:
    """Return whether a leader wrote its state within the last minute."""
    with suppress(OSError):
        return any(time.time() - path.stat().st_mtime < LIVE_S for path in folder.glob(STATES))
    return False


def _incidents(folder: Path, problems: list[str]) -> list[RunIncident]:
    try:
        numbers = sorted(
            (path for path in folder.iterdir() if path.name.isdecimal()),
            key=lambda path: int(path.name),
        )
    except OSError:
        return []  # an old run whose incidents were deleted
    incidents = []
    for path in numbers[-MAX_INCIDENTS:]:
        verdict = None
        try:
            verdict = msgspec.json.decode(
                read_bounded(path / "verdict.json", MAX_VERDICT_BYTES), type=Verdict
            )
        except FileNotFoundError:
            problems.append(
                f"incident {path.name} has no verdict: its writer died, or it was deleted"
            )
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            problems.append(f"the verdict of incident {path.name} cannot be read: {error}")
        incidents.append(RunIncident(path.name, verdict, (path / "report.html").is_file()))
    return incidents


def read_stacks(folder: Path, rank: int) -> tuple[str, tuple[str, ...]] | None:
    """Return the incident and the stack (innermost first) of a rank in the newest with one."""
    try:
        numbers = sorted(
            (path for path in (folder / "incidents").iterdir() if path.name.isdecimal()),
            key=lambda path: -int(path.name),
        )
    except OSError:
        return None
    for path in numbers:
        try:
            data = read_bounded(path / "ranks.json", MAX_TABLE_BYTES)
            table = msgspec.json.decode(data, type=_StoredTable)
        except (OSError, msgspec.DecodeError, RecursionError):
            continue
        for state in table.ranks:
            if state.rank == rank and state.stacks:
                return path.name, tuple(map(str, state.stacks[-1].frames))
    return None
