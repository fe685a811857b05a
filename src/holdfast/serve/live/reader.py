"""Reads the live state and the series of a run folder.

A run folder may be half deleted, of another version, on a slow disk, or have two leaders. Nothing
here raises for that: what could not be read is one sentence in ``problems``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.core.documents import decode_document, read_bounded
from holdfast.core.errors import HoldfastError
from holdfast.core.ledger import LedgerEvent, read_ledger
from holdfast.core.live_state import (
    MAX_SERIES_BYTES,
    MAX_STATE_BYTES,
    SCHEMA,
    SERIES,
    SERIES_SCHEMA,
    STATES,
    LiveState,
    SeriesPoint,
)
from holdfast.core.text import format_duration, os_error_reason

#: A state is stale after this many of its periods, and at least this many seconds.
STALE_PERIODS, STALE_S = 5, 10.0
#: Columns of a series that readers use: neighbouring points are merged.
SERIES_COLUMNS = 480

_Item = TypeVar("_Item")


class LiveReading(msgspec.Struct, frozen=True, kw_only=True):
    """The newest state of a run (None: there is none), how old it is, and what was wrong."""

    state: LiveState | None = None
    age_s: float = 0.0
    stale: bool = False
    problems: tuple[str, ...] = ()


class _Unreadable(ValueError):
    """A document was rejected; the text is a predicate, such as "is larger than 1 MiB"."""


class LiveFiles(msgspec.Struct, frozen=True):
    """The states of all leaders, oldest first, and why others could not be read."""

    states: tuple[LiveState, ...]
    problems: tuple[str, ...]


def read_live(folder: Path, now: float) -> LiveReading:
    """Return the state of the newest generation; of two leaders, the one that wrote last."""
    return select_state(read_files(folder), now, _describe_end(folder))


def _describe_end(folder: Path) -> str:
    """Return how the run ended; empty if its ledger has no end or cannot be read."""
    try:
        records = read_ledger(folder)
    except HoldfastError:
        return ""
    ends = [record for record in records if record.event is LedgerEvent.ENDED]
    return f"the run ended with status {ends[-1].status}; this is its last state" if ends else ""


def read_files(folder: Path) -> LiveFiles:
    """Read the states of all leaders."""
    states: list[LiveState] = []
    problems: list[str] = []
    for path in _files(folder, STATES):
        try:
            states.append(_read_state(path))
        except FileNotFoundError:
            continue  # deleted since the listing
        except OSError as error:
            problems.append(f"{path.name} cannot be read: {os_error_reason(error)}")
        except _Unreadable as error:
            problems.append(f"{path.name} {error}")
    states.sort(key=lambda state: (state.generation, state.at))
    return LiveFiles(tuple(states), tuple(problems))


def select_state(files: LiveFiles, now: float, end: str = "") -> LiveReading:
    """Return the state to show at ``now``, how old it is, and what was wrong.

    ``end`` describes how the run ended, and explains why its state is old.
    """
    states, problems = files.states, list(files.problems)
    if not states:
        return LiveReading(problems=tuple(problems))
    newest = states[-1]
    age_s = max(now - newest.at, 0.0)
    stale = age_s > max(STALE_PERIODS * newest.period_s, STALE_S)
    rivals = [other for other in states[:-1] if other.at + STALE_S > newest.at]
    if rivals:
        others = ", ".join(
            f"{rival.written_by} (generation {rival.generation})" for rival in rivals
        )
        problems.append(
            f"two leaders write the live state: {newest.written_by} (generation "
            f"{newest.generation}) is shown, {others} is ignored"
        )
    if stale:
        old = f"the live state is out of date: written {format_duration(age_s)} ago"
        problems.append(end or old)
    return LiveReading(state=newest, age_s=round(age_s, 1), stale=stale, problems=tuple(problems))


def _read_state(path: Path) -> LiveState:
    data = read_bounded(path, MAX_STATE_BYTES)
    state = decode_document(
        data, LiveState, schema=SCHEMA, max_bytes=MAX_STATE_BYTES, error=_Unreadable
    )
    problem = find_inconsistency(state)
    if problem:
        raise _Unreadable(problem)
    return state


def find_inconsistency(state: LiveState) -> str:
    """Return what is wrong with columns and indices, as a predicate; empty if nothing is."""
    lengths = {len(getattr(state.ranks, name)) for name in state.ranks.__struct_fields__}
    if len(lengths) != 1:
        return "is not valid: its columns differ in length"
    tables = {"node": state.nodes, "life": state.lives, "phase": state.phases}
    tables |= {"call": state.calls, "wait": state.waits}
    for name, table in tables.items():
        column = getattr(state.ranks, name)
        if column and not (min(column) >= -1 and max(column) < len(table)):
            return f"is not valid: an index in {name} is out of range"
    if any(not 0 <= wait.call < len(state.calls) for wait in state.waits):
        return "is not valid: an index of a wait is out of range"
    return ""


def read_series(
    folder: Path,
    columns: int = SERIES_COLUMNS,
    within: tuple[float, float] = (-inf, inf),
) -> tuple[SeriesPoint, ...]:
    """Return the points of all leaders by time, at most ``columns``; skip unreadable lines.

    ``within``: the first and last time, for more detail of a part of the run.
    """
    decoder = msgspec.json.Decoder(SeriesPoint)
    points: list[SeriesPoint] = []
    whole = within == (-inf, inf)
    for path in _files(folder, SERIES):
        try:
            lines = read_bounded(path, 2 * MAX_SERIES_BYTES).splitlines()
        except OSError:
            continue
        lines = _thin_out(lines, columns) if whole else lines
        decoded = (point for line in lines if (point := _point(line, decoder)) is not None)
        points.extend(point for point in decoded if within[0] <= point.at <= within[1])
    points.sort(key=lambda point: point.at)
    return tuple(_thin_out(points, 2 * columns if whole else columns)[::-1])


def _thin_out(items: list[_Item], limit: int) -> list[_Item]:
    """Return at most ``limit`` items at equal distances, the last one first."""
    return items[::-1][:: -(-len(items) // limit) or 1]


def _point(line: bytes, decoder: msgspec.json.Decoder[SeriesPoint]) -> SeriesPoint | None:
    try:
        point = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the last line of a writer that died, or another version
    return point if point.schema == SERIES_SCHEMA else None


def _files(folder: Path, pattern: str) -> Iterable[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return ()
