"""Remove secrets from structured records: plain data, JSON, flight-recorder dumps, trace files.

A dump is read, redacted and written again. A trace file keeps all offsets: texts are replaced by
the same number of bytes, and the unused bytes between its areas are not copied.
"""

from __future__ import annotations

import pickle  # only to write dumps; plain_pickle reads them
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.core import plain_pickle, trace_file
from holdfast.core.errors import TraceCorrupt, TraceTruncated
from holdfast.core.redaction.redact import Redactor
from holdfast.core.redaction.secret_kinds import is_secret_name
from holdfast.core.trace_file import HEADER, TraceNote
from holdfast.watcher.flight_recorder import dump_reader

_HOST_BYTES = 64
_PHASE_BYTES = 64
_JSON_NOTES = frozenset(
    {TraceNote.FACTS, TraceNote.MEMBERS, TraceNote.RAISED, TraceNote.ENDED, TraceNote.TROUBLE}
)
_VARIABLE_ORIGIN = "environment variable "
#: Pickle protocol of torch's dumps.
_PROTOCOL = 2


class _DataRedactor:
    """Redacts plain data; an object that occurs several times is redacted once and stays shared."""

    def __init__(self, redactor: Redactor, *, fixed: bool) -> None:
        self._redactor, self._fixed = redactor, fixed
        self._redacted: dict[tuple[int, str], Any] = {}

    def __call__(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return self._redactor.redact_value(key, value, fixed=self._fixed)
        if isinstance(value, int) and not isinstance(value, bool) and is_secret_name(key):
            self._redactor.counts["password"] += 1
            return 0
        if not isinstance(value, dict | list | tuple):
            return value
        cache_key = (id(value), key)
        if cache_key not in self._redacted:
            self._redacted[cache_key] = (
                self._redact_mapping(value, key)
                if isinstance(value, dict)
                else type(value)(self._redact_items(value, key))
            )
        return self._redacted[cache_key]

    def _redact_mapping(self, mapping: dict[Any, Any], key: str) -> dict[Any, Any]:
        variable, origin = mapping.get("name"), mapping.get("origin")
        is_environment = isinstance(origin, str) and origin.startswith(_VARIABLE_ORIGIN)
        redacted = {}
        for name, value in mapping.items():
            if not isinstance(name, str):
                redacted[name] = self(value, key)
            elif name == "text" and is_environment and isinstance(value, str):
                redacted[name] = self._redact_variable(value)
            elif name == "value" and isinstance(variable, str):  # Kubernetes' form of variables
                redacted[name] = self(value, variable or key)
            else:
                redacted[self(name)] = self(value, name or key)
        return redacted

    def _redact_variable(self, text: str) -> str:
        """Redact ``NAME=value``, where the value may contain blanks."""
        name, equals, value = text.partition("=")
        return name + equals + self._redactor.redact_value(name, value, fixed=self._fixed)

    def _redact_items(self, values: list[Any] | tuple[Any, ...], key: str) -> Iterator[Any]:
        if sum(isinstance(each, str) for each in values) > 1:
            values = self._redact_lines(values)
        option = ""  # of a list of arguments: a token follows --token
        for each in values:
            yield self(each, option or key)
            option = (
                each.lstrip("-")
                if isinstance(each, str) and each.startswith("-") and "=" not in each
                else ""
            )

    def _redact_lines(self, values: list[Any] | tuple[Any, ...]) -> list[Any]:
        """Redact texts as the lines of one text, because a secret may extend over several.

        A value may itself have several lines.
        """
        joined = "\n".join(each for each in values if isinstance(each, str))
        redacted = self._redactor.redact_text(joined, fixed=self._fixed)
        if redacted.count("\n") != joined.count("\n"):
            redacted = self._redactor.redact_private_keys(joined, fixed=self._fixed)
        lines = iter(redacted.split("\n"))
        return [
            "\n".join(next(lines) for _ in range(each.count("\n") + 1))
            if isinstance(each, str)
            else each
            for each in values
        ]


def redact_data(value: Any, redactor: Redactor, *, fixed: bool = False) -> Any:
    """Return plain data without secrets; the keys of a dict are the names of its values."""
    return _DataRedactor(redactor, fixed=fixed)(value)


def redact_document(data: bytes, redactor: Redactor) -> bytes:
    """Return a JSON document without secrets; other content is redacted as text."""
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return redactor.redact_bytes(data)
    try:
        redacted = msgspec.json.encode(redact_data(content, redactor))
    except (UnicodeEncodeError, RecursionError):
        return redactor.redact_bytes(data)
    if b"\n" in data.strip():
        return msgspec.json.format(redacted)
    return redacted + data[len(data.rstrip()) :]


def redact_dump(data: bytes, name: str, redactor: Redactor) -> bytes:
    """Return a flight-recorder dump without secrets, in its original format: pickle or JSON.

    Raises:
        DumpUnreadable: it is unreadable, so it may contain anything.
    """
    dump_reader.parse_dump(data, name)
    if not plain_pickle.looks_like_pickle(data):
        return redact_document(data, redactor)
    content = redact_data(plain_pickle.load_plain_pickle(data), redactor)
    return pickle.dumps(content, protocol=_PROTOCOL)


def redact_trace(data: bytes, name: str, redactor: Redactor) -> bytes:
    """Return a trace file without secrets, of the same size, with every record at its offset.

    Raises:
        TraceTruncated, TraceCorrupt: it is not a complete trace file, so it may contain anything.
    """
    if len(data) < trace_file.HEADER_BYTES:
        raise TraceTruncated(name)
    magic, *fields = HEADER.unpack_from(data, 0)
    groups_at, groups, notes_at, notes_bytes, ring_at, records, _ = fields[-7:]
    areas = (
        (groups_at, groups * trace_file.GROUP_BYTES),
        (notes_at, notes_bytes),
        (ring_at, records * trace_file.RECORD_BYTES),
    )
    if magic != trace_file.MAGIC or min(begin for begin, _ in areas) < trace_file.HEADER_BYTES:
        raise TraceCorrupt(name)
    if max(begin + size for begin, size in areas) > len(data):
        raise TraceTruncated(name)
    redacted = bytearray(len(data))
    for begin, size in (*_header_fields(), areas[0], areas[2]):
        redacted[begin : begin + size] = data[begin : begin + size]
    phase_begin = trace_file.STEP + trace_file.STEP_SLOT.size - _PHASE_BYTES
    _redact_field(redacted, HEADER.size - _HOST_BYTES, _HOST_BYTES, redactor)
    _redact_field(redacted, phase_begin, _PHASE_BYTES, redactor)
    (head,) = trace_file.HEADS.unpack_from(data, trace_file.NOTES_HEAD)
    notes = data[notes_at : notes_at + min(head, notes_bytes)]
    redacted[notes_at : notes_at + len(notes)] = b"".join(
        _redact_note(line, redactor) for line in notes.splitlines(keepends=True)
    )
    return bytes(redacted)


def _header_fields() -> tuple[tuple[int, int], ...]:
    """Return offset and size of the fields in the first 4096 bytes."""
    head = struct.calcsize("<Q")
    return (
        (0, HEADER.size),
        (trace_file.RECORDS_HEAD, head),
        (trace_file.NOTES_HEAD, head),
        (trace_file.STEP, trace_file.STEP_SLOT.size),
    )


def _redact_field(trace: bytearray, begin: int, size: int, redactor: Redactor) -> None:
    """Redact a zero-terminated text in a field of fixed size."""
    text = bytes(trace[begin : begin + size]).split(b"\0")[0]
    trace[begin : begin + size] = redactor.redact_bytes(text, fixed=True).ljust(size, b"\0")


def _redact_note(line: bytes, redactor: Redactor) -> bytes:
    """Return one line of notes with the same number of bytes; JSON is padded with blanks."""
    body = line.rstrip(b"\r\n")
    kind, tab, content = body.partition(b"\t")
    if tab and kind.decode(errors="replace") in _JSON_NOTES:
        redacted = _redact_json_note(content, redactor)
        if redacted is not None:
            return kind + tab + redacted.ljust(len(content)) + line[len(body) :]
    return redactor.redact_bytes(body, fixed=True) + line[len(body) :]


def _redact_json_note(data: bytes, redactor: Redactor) -> bytes | None:
    """Return the JSON of a note without secrets; None if it is invalid or no longer fits."""
    try:
        content = msgspec.json.decode(data)
        clean = redact_data(content, redactor, fixed=True)
        redacted = data if clean == content else msgspec.json.encode(clean)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return redacted if len(redacted) <= len(data) else None
