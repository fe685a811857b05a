"""Boxes of a job that is over, or that runs elsewhere: the table of ranks from files alone, as far as they tell it.

Of several generations or runs in one heap the newest is taken. Whether a process still lives is told where its script
noted its end, and where the box was written on this host by a process that is still there; elsewhere it is not known.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast import blackbox
from holdfast.errors import BoxUnreadable
from holdfast.facts import completion, processes
from holdfast.facts.boxes import Box
from holdfast.facts.evidence import Ignored, Piece
from holdfast.facts.flight_recorder import Dump
from holdfast.facts.node import RECENT_CALLS, RECENT_CALLS_OF_ALL, Summary, agree_on_groups
from holdfast.facts.processes import Process
from holdfast.facts.ranks import Group, Life, RankState
from holdfast.findings import Fact

MOST_BYTES = 1 << 30
#: Ranks of one generation start within this time of each other.
START_SPREAD_S = 3600.0
_WRONG = (ValueError, IndexError, KeyError, TypeError, OverflowError, msgspec.ValidationError)


class BoxTable(msgspec.Struct, frozen=True):
    """The table of the newest generation (None where no box can be read), and the boxes that are not in it.

    ``pieces`` are the boxes that are, by rank.
    """

    summary: Summary | None
    ignored: tuple[Ignored, ...]
    pieces: dict[int, Piece] = {}


class _Read(msgspec.Struct, frozen=True):
    piece: Piece
    state: RankState
    groups: dict[str, Group]
    facts: tuple[Fact, ...]
    generation: int
    world_size: int


def read(pieces: Iterable[Piece]) -> BoxTable:
    """The table that these boxes make, one box in memory at a time."""
    boxes: list[_Read] = []
    ignored: list[Ignored] = []
    for piece in pieces:
        try:
            boxes.append(_read(piece))
        except BoxUnreadable as error:
            ignored.append(Ignored(piece.name, error.why, lost=True))
        except _WRONG as error:
            ignored.append(Ignored(piece.name, f"it contradicts itself ({type(error).__name__})", lost=True))
        except OSError as error:
            ignored.append(Ignored(piece.name, (error.strerror or str(error)).lower(), lost=True))
    if not boxes:
        return BoxTable(None, tuple(ignored))
    newest = max(boxes, key=lambda box: (box.state.started, box.generation))
    kept: dict[int, _Read] = {}
    for box in sorted(boxes, key=lambda box: box.state.progress):
        if _of_one_generation(box, newest):
            if box.state.rank in kept:
                ignored.append(
                    Ignored(kept[box.state.rank].piece.name, f"{box.piece.name} is a newer box of the same rank")
                )
            kept[box.state.rank] = box
        else:
            ignored.append(Ignored(box.piece.name, "it is of an earlier generation, or of another run"))
    summary = _summary([kept[rank] for rank in sorted(kept)], newest.world_size)
    return BoxTable(summary, tuple(ignored), {rank: box.piece for rank, box in kept.items()})


def settle(table: BoxTable, dump_of: Callable[[int], Dump | None]) -> Summary | None:
    """The table, with what dumps tell of calls on NCCL of which a box alone cannot tell whether they are over.

    ``dump_of`` gives the flight recorder's dump of a rank; it is asked for ranks with such calls alone.
    """
    if table.summary is None:
        return None
    return replace(table.summary, ranks=tuple(_settled(table, state, dump_of) for state in table.summary.ranks))


def _settled(table: BoxTable, state: RankState, dump_of: Callable[[int], Dump | None]) -> RankState:
    if not any(call.is_doubtful for call in state.pending):
        return state
    dump, piece = dump_of(state.rank), table.pieces.get(state.rank)
    if dump is None or piece is None:
        return replace(state, unseen=(*state.unseen, "completion on NCCL: there is no dump of its flight recorder"))
    return completion.settle(state, dump, _opened(piece).collective)


def _of_one_generation(box: _Read, newest: _Read) -> bool:
    return (box.generation, box.world_size) == (newest.generation, newest.world_size) and (
        newest.state.started - box.state.started < START_SPREAD_S
    )


def _summary(boxes: list[_Read], world_size: int) -> Summary:
    groups, states = agree_on_groups([(box.state, box.groups) for box in boxes])
    newest = max(state.progress for state in states)
    facts = next((box.facts for box in boxes if box.facts), ())
    return Summary(tuple(states), groups, world_size, newest, newest, facts)


def _opened(piece: Piece) -> Box:
    """The box, mapped where it can be cut off by nobody: in a temporary copy, which has no name any more."""
    with tempfile.NamedTemporaryFile(prefix="holdfast-box-") as copy:
        left = MOST_BYTES
        with piece.open() as stream:
            while left > 0 and (data := stream.read(min(1 << 20, left))):
                copy.write(data)
                left -= len(data)
        copy.flush()
        return Box(Path(copy.name))


def _read(piece: Piece) -> _Read:
    box = _opened(piece)
    header, notes = box.header, box.read_notes()
    calls = max(4, min(RECENT_CALLS, RECENT_CALLS_OF_ALL // max(header.world_size, 1)))
    facts: list[Fact] = []
    for fact in notes.facts:
        with suppress(msgspec.ValidationError):
            facts.append(msgspec.convert(fact, Fact, strict=False))
    return _Read(piece, _state(box, calls), notes.groups(), tuple(facts), header.generation, header.world_size)


def _state(box: Box, calls: int) -> RankState:
    header, notes, step = box.header, box.read_notes(), box.step()
    progress = max(
        box.last_change(), step.since if step.counted else 0.0, notes.ended.time if notes.ended else 0.0
    )  # fmt: skip
    over = notes.raised is not None or notes.ended is not None
    life = Life.DEAD if over else _life(header.host, header.pid, header.start_ticks)
    return RankState(
        rank=header.rank, host=header.host, pid=header.pid, life=life, started=header.started, progress=progress,
        step=step.number if step.counted else None, phase=step.phase or None,
        phase_budget_s=step.budget_s if step.phase else None, phase_since=step.phase_since if step.phase else 0.0,
        groups=box.progress(), pending=tuple(box.pending()), recent=tuple(box.recent(calls)),
        raised=notes.raised, ended=notes.ended,
    )  # fmt: skip


def _life(host: str, pid: int, start_ticks: int) -> Life:
    """What became of the process, where this is its host and it is still there."""
    if host != socket.gethostname() or not start_ticks or blackbox.process_start_ticks(pid) != start_ticks:
        return Life.UNKNOWN
    seen = processes.look(pid)
    return seen.life if isinstance(seen, Process) else Life.UNKNOWN


def told(data: Mapping[str, object]) -> Summary | None:
    """The table of ranks that an incident's ``ranks.json`` holds; None where it holds none."""
    try:
        return msgspec.convert(data, Summary)
    except (msgspec.ValidationError, OverflowError):
        return None
