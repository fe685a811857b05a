"""Facts from the history of collectives: which timed out or were slow over the runs, and what was learnt from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast import settings
from holdfast.errors import BadValue
from holdfast.facts.evidence import Ignored, Piece
from holdfast.findings import Fact
from holdfast.history import MOST_BYTES, History, learn, merged, parse, sentence

#: Name of the folder beside the runs, and of the file that an incident or a run keeps of it.
FOLDER, FILE = "history", "history.json"
#: Hosts whose files are read.
_MOST_FILES = 256


def folder_of(runs: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Where the history of the runs in the folder ``runs`` is kept."""
    return settings.path("HOLDFAST_HISTORY", environ) or runs.absolute() / FOLDER


def read(folder: Path) -> History:
    """What all hosts wrote into the folder; what cannot be read counts as nothing."""
    found = []
    with suppress(OSError):
        for file in sorted(folder.glob("*.json"))[:_MOST_FILES]:
            with suppress(OSError, BadValue):
                if file.is_file() and file.stat().st_size <= MOST_BYTES:
                    found.append(parse(file.read_bytes(), str(file)))
    return merged(found)


def kept(history: History) -> bytes:
    """The history as a file of its own."""
    return msgspec.json.format(msgspec.json.encode(history))


def facts(history: History, origin: str) -> tuple[Fact, ...]:
    """A fact for each kind of call that had trouble, the latest first, and one for each change that follows from it."""
    told: list[Fact] = []
    for each in sorted(history.troubles, key=lambda trouble: trouble.at, reverse=True):
        told.append(Fact(text=sentence(each, history.runs), origin=origin, time=each.at or None))
        told += (Fact(text=reason, origin=origin) for reason in learn(each, history.runs).reasons)
    return tuple(told)


def from_pieces(pieces: Iterable[Piece]) -> tuple[tuple[Fact, ...], tuple[Ignored, ...]]:
    """The facts in files of evidence; several copies of one history count once. And what was no history."""
    found: list[History] = []
    names: list[str] = []
    ignored: list[Ignored] = []
    for piece in pieces:
        try:
            found.append(parse(_data(piece), piece.name))
            names.append(piece.name)
        except BadValue as error:
            ignored.append(Ignored(piece.name, error.why, lost=True))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return facts(merged(found), f"{names[0]}{more}") if names else (), tuple(ignored)


def _data(piece: Piece) -> bytes:
    with piece.open() as stream:
        return stream.read(MOST_BYTES + 1)
