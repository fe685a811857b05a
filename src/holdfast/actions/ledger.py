"""The ledger of a run: what happened to it and what was done, one line of JSON each, kept over all restarts.

``ledger.jsonl`` in the run's folder is only ever appended to, and every line is on the disk before what it decides is
done. A last line that was cut off is left out when it is read: its writer died. A job that is started again and again
keeps a second copy in its history, a folder with one file a host.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import msgspec

from holdfast.actions.policy import Decision, Failure, Past
from holdfast.adjustments import Adjustments
from holdfast.errors import BadValue, MissingFile
from holdfast.findings import Finding

SCHEMA = "holdfast/ledger/1"
FILE = "ledger.jsonl"
MOST_BYTES = 64 << 20


class Event(StrEnum):
    """What a line tells."""

    BEGUN = "begun"  #: the run, with the command
    STARTED = "started"  #: workers were started
    FAILED = "failed"  #: a failure, and the decision about it
    REFUSED = "refused"  #: this host was not let in
    ENDED = "ended"  #: the run, with its status


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. ``at`` in Unix seconds; ``folder`` is that of the incident; the other fields belong to some events."""

    event: Event
    at: float
    schema: str = SCHEMA
    generation: int = 0
    host: str = ""
    nodes: int | None = None
    world_size: int | None = None
    ranks: tuple[int, ...] = ()
    adjustments: Adjustments | None = None
    failure: Failure | None = None
    decision: Decision | None = None
    findings: tuple[Finding, ...] = ()
    folder: str | None = None
    status: int | None = None
    text: str = ""


class Ledger:
    """The ledger of the run in ``folder``, which this process writes; also to the file ``copy`` of a history."""

    def __init__(self, folder: Path, copy: Path | None = None) -> None:
        self.path = folder / FILE
        self._paths = [self.path, *([copy] if copy is not None else [])]
        self._past: list[Past] = []
        #: Why the last line could not be written; empty where it could.
        self.trouble = ""

    @property
    def past(self) -> tuple[Past, ...]:
        """The failures and what was done, oldest first."""
        return tuple(self._past)

    def add(self, record: Record) -> None:
        """Append one line and sync it. A full disk does not stop the job: the policy remembers, ``trouble`` says it."""
        if record.failure is not None and record.decision is not None:
            self._past.append(Past(record.failure, record.decision))
        self.trouble = ""
        for path in self._paths:
            try:
                with path.open("a+b") as file:
                    file.write(_break(file) + msgspec.json.encode(record) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                self.trouble = f"{path}: {(error.strerror or str(error)).lower()}"


def _break(file: BinaryIO) -> bytes:
    """A line break where the last line has none, because its writer died."""
    if file.seek(0, os.SEEK_END) == 0:
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


def read(path: Path) -> tuple[Record, ...]:
    """The lines of a ledger; of a run's folder, that of the file in it; of a history, those of all hosts in order.

    Lines that cannot be read are left out, and so are failures that another host has told of already.

    Raises:
        MissingFile: there is none.
        BadValue: it is too large, or holds no line that holdfast could have written.
    """
    files = [] if (path / FILE).exists() else sorted(path.glob("*.jsonl"))
    if not files:
        return _lines(path / FILE if path.is_dir() else path)
    found: list[Record] = []
    told: set[tuple[float, int]] = set()
    for record in sorted((record for file in files for record in _lines(file)), key=lambda each: each.at):
        if record.failure is not None:
            name = (record.failure.at, record.failure.generation)
            if name in told:
                continue
            told.add(name)
        found.append(record)
    return tuple(found)


def _lines(file: Path) -> tuple[Record, ...]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise MissingFile(file, why=why, next_step="give the folder of a run, as `holdfast run` says it") from error
    if len(data) > MOST_BYTES:
        raise BadValue(f"the ledger {file}", why=f"it has more than {MOST_BYTES >> 20} MiB")
    found = [record for line in data.splitlines() if (record := _parsed(line)) is not None]
    if data.strip() and not found:
        raise BadValue(f"the ledger {file}", why=f"no line of it has the form {SCHEMA}")
    return tuple(found)


def past(records: Sequence[Record]) -> tuple[Past, ...]:
    """The failures among the lines, and what was done about them."""
    return tuple(Past(each.failure, each.decision) for each in records if each.failure and each.decision)


def _parsed(line: bytes) -> Record | None:
    try:
        found = msgspec.json.decode(line, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.schema == SCHEMA else None
