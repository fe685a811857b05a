"""The ledger of a run: events and decisions over all restarts, one JSON object per line.

``ledger.jsonl`` in the run folder is append-only; each line is synced before its decision is
carried out. A truncated last line (its writer died) is skipped on reading. Jobs that are requeued
keep a second copy in their history, a folder with one file per host.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import msgspec

from holdfast.core.adjustments import Adjustments
from holdfast.core.documents import decode_document, read_bounded
from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.failures import JobFailure, PastFailure, RecoveryDecision
from holdfast.core.findings import Finding
from holdfast.core.text import os_error_reason

SCHEMA = "holdfast/ledger/1"
FILE = "ledger.jsonl"
MAX_BYTES = 64 << 20


class LedgerEvent(StrEnum):
    """Type of a ledger line."""

    BEGUN = "begun"  #: the run, with the command
    STARTED = "started"  #: workers were started
    FAILED = "failed"  #: a failure, and the decision about it
    REFUSED = "refused"  #: the health gate excluded this host
    ENDED = "ended"  #: the run, with its status


class LedgerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line; a factory is no default that encoding omits, so each line has its schema.

    ``at`` is in Unix seconds, ``folder`` the incident's; other fields depend on the event. ``job``
    is equal on all nodes of a job: the name of the first leader's run folder.
    """

    event: LedgerEvent
    at: float
    schema: str = msgspec.field(default_factory=lambda: SCHEMA)
    generation: int = 0
    host: str = ""
    job: str = ""
    nodes: int | None = None
    world_size: int | None = None
    ranks: tuple[int, ...] = ()
    adjustments: Adjustments | None = None
    failure: JobFailure | None = None
    decision: RecoveryDecision | None = None
    findings: tuple[Finding, ...] = ()
    folder: str | None = None
    status: int | None = None
    text: str = ""


class Ledger:
    """Writes the ledger of the run in ``folder``, and the file ``copy`` of a history."""

    def __init__(self, folder: Path, copy: Path | None = None) -> None:
        self.path = folder / FILE
        self._paths = [self.path, *([copy] if copy is not None else [])]
        self._past: list[PastFailure] = []
        #: Why the last line could not be written; empty if it was.
        self.write_error = ""

    @property
    def past(self) -> tuple[PastFailure, ...]:
        """Failures and decisions, oldest first."""
        return tuple(self._past)

    def add(self, record: LedgerRecord) -> None:
        """Append one line and sync it; an error does not stop the job but sets ``write_error``."""
        if record.failure is not None and record.decision is not None:
            self._past.append(PastFailure(record.failure, record.decision))
        self.write_error = ""
        for path in self._paths:
            try:
                with path.open("a+b") as file:
                    file.write(_line_break(file) + msgspec.json.encode(record) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                self.write_error = f"{path}: {os_error_reason(error)}"


def _line_break(file: BinaryIO) -> bytes:
    """Return a line break if the last line lacks one because its writer died."""
    if file.seek(0, os.SEEK_END) == 0:
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


def read_ledger(path: Path) -> tuple[LedgerRecord, ...]:
    """Read a ledger file, the ledger of a run folder, or a history folder (all hosts, by time).

    Skips unreadable lines and failures that another host has recorded already.

    Raises:
        MissingFile: no ledger exists.
        InvalidValue: it is too large, or no line is a ledger record.
    """
    files = [] if (path / FILE).exists() else sorted(path.glob("*.jsonl"))
    if not files:
        return _read_file(path / FILE if path.is_dir() else path)
    records: list[LedgerRecord] = []
    recorded: set[tuple[float, int]] = set()
    for record in sorted(
        (record for file in files for record in _read_file(file)), key=lambda each: each.at
    ):
        if record.failure is not None:
            failure_id = (record.failure.at, record.failure.generation)
            if failure_id in recorded:
                continue
            recorded.add(failure_id)
        records.append(record)
    return tuple(records)


def _read_file(file: Path) -> tuple[LedgerRecord, ...]:
    try:
        data = read_bounded(file, MAX_BYTES)
    except OSError as error:
        why = os_error_reason(error)
        raise MissingFile(
            file, why=why, next_step="pass the run folder that `holdfast run` printed"
        ) from error
    if len(data) > MAX_BYTES:
        raise InvalidValue(f"the ledger {file}", why=f"it is larger than {MAX_BYTES >> 20} MiB")
    records = []
    for line in data.splitlines():
        with suppress(ValueError):
            records.append(
                decode_document(
                    line, LedgerRecord, schema=SCHEMA, max_bytes=MAX_BYTES, error=ValueError
                )
            )
    if data.strip() and not records:
        raise InvalidValue(f"the ledger {file}", why=f"it contains no line of the schema {SCHEMA}")
    return tuple(records)


def past_failures(records: Sequence[LedgerRecord]) -> tuple[PastFailure, ...]:
    """Return the failures among the records with their decisions."""
    return tuple(
        PastFailure(each.failure, each.decision)
        for each in records
        if each.failure and each.decision
    )
