"""Parses the notes of a trace file: call sites, groups, facts, and what the rank reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.core.rank_table import (
    ProcessGroupInfo,
    RaisedException,
    ScriptEnd,
    SourceLine,
    StepProblem,
)
from holdfast.core.trace_file import TraceNote
from holdfast.watcher.tracebacks import original_exception


@dataclass
class TraceNotes:
    """The parsed notes.

    ``names`` maps the index of a group to its name. A warning is a topic and a sentence.
    ``dropped`` counts malformed lines.
    """

    sites: dict[int, SourceLine] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    backends: dict[str, str] = field(default_factory=dict)
    members: dict[str, ProcessGroupInfo] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    raised: RaisedException | None = None
    ended: ScriptEnd | None = None
    words: list[str] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    saved: int | None = None
    saved_at: float | None = None
    loaded: int | None = None
    preempted: int | None = None
    troubles: list[StepProblem] = field(default_factory=list)
    dropped: int = 0

    def groups(self) -> dict[str, ProcessGroupInfo]:
        """Return every group that the rank created or used, by name; members may be unknown."""
        used = {
            name: ProcessGroupInfo(name, None, "", self.backends.get(name, ""))
            for name in self.names.values()
        }
        return used | {
            name: msgspec.structs.replace(group, backend=self.backends.get(name, ""))
            for name, group in self.members.items()
        }


_JSON_NOTES = frozenset(
    {
        TraceNote.MEMBERS,
        TraceNote.FACTS,
        TraceNote.RAISED,
        TraceNote.ENDED,
        TraceNote.TROUBLE,
        TraceNote.WARNED,
        TraceNote.SAVED,
        TraceNote.PREEMPTED,
    }
)


def parse_note(notes: TraceNotes, fields: list[str]) -> None:
    """Store one line in ``notes``. Raises what malformed content raises, msgspec's errors too."""
    kind = fields[0]
    if kind == TraceNote.SITE:
        notes.sites[int(fields[1])] = SourceLine(fields[4], int(fields[2]), fields[3])
    elif kind == TraceNote.GROUP:
        notes.names[int(fields[1])] = fields[3]
        notes.backends[fields[3]] = fields[2]
    elif kind == TraceNote.WORD:
        notes.words.append(fields[1])
    elif kind in _JSON_NOTES:
        _store(notes, kind, msgspec.json.decode(fields[1]))
    else:
        notes.dropped += 1


def _store(notes: TraceNotes, kind: str, data: Any) -> None:
    """Store the content of a note in JSON."""
    match kind:
        case TraceNote.MEMBERS:
            name, ranks = str(data["name"]), _shared(tuple(int(rank) for rank in data["ranks"]))
            notes.members[name] = ProcessGroupInfo(name, ranks, str(data["description"]))
        case TraceNote.FACTS:
            notes.facts.extend(fact for fact in data if isinstance(fact, dict))
        case TraceNote.RAISED:
            frames = msgspec.convert(data.get("frames", ()), tuple[SourceLine, ...])
            place = _source_line(data)
            raised = RaisedException(str(data["type"]), str(data["text"]), place, frames=frames)
            notes.raised = original_exception(raised)
        case TraceNote.ENDED if notes.ended is None:  # an exit handler may call os._exit
            notes.ended = ScriptEnd(str(data["how"]), _source_line(data), float(data["time"]))
        case TraceNote.TROUBLE:
            notes.troubles.append(msgspec.convert(data, StepProblem))
        case TraceNote.WARNED:
            notes.warnings.append((str(data["about"]), str(data["text"])))
        case TraceNote.SAVED if data.get("loaded"):
            notes.loaded = int(data["step"])
        case TraceNote.SAVED:
            notes.saved, notes.saved_at = int(data["step"]), float(data["time"])
        case TraceNote.PREEMPTED:
            notes.preempted = int(data["status"])


@lru_cache(maxsize=1024)
def _shared(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return one tuple for equal members: those of the ranks of a node are compared often."""
    return ranks


def _source_line(value: Mapping[str, Any]) -> SourceLine | None:
    if "file" not in value:
        return None
    return SourceLine(str(value["file"]), int(value["line"]), str(value["function"]))
