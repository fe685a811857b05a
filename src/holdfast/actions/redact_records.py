"""Takes secrets out of records that are more than text: plain data, JSON, dumps of the flight recorder, boxes.

A dump is read, cleaned and written again. A box keeps every offset: texts in it are replaced by as many bytes, and what
lies between its areas, where nothing belongs, is not carried over.
"""

from __future__ import annotations

import pickle  # dumps are written with it; they are read by plain_pickle
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast import blackbox
from holdfast.actions.redact import Redactor
from holdfast.actions.secret_kinds import is_secret_name
from holdfast.blackbox import HEADER, Note
from holdfast.errors import BoxNoise, BoxTruncated
from holdfast.facts import flight_recorder, plain_pickle

_HOST_BYTES = 64
_PHASE_BYTES = 64
_JSON_NOTES = frozenset({Note.FACTS, Note.MEMBERS, Note.RAISED, Note.ENDED, Note.TROUBLE})
_VARIABLE = "environment variable "
#: Protocol of torch's own dumps.
_PROTOCOL = 2


class _Cleaner:
    """Goes through plain data once; what occurs in several places is cleaned once and stays one object."""

    def __init__(self, redactor: Redactor, *, fixed: bool) -> None:
        self._redactor, self._fixed = redactor, fixed
        self._known: dict[tuple[int, str], Any] = {}

    def __call__(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return self._redactor.value(key, value, fixed=self._fixed)
        if isinstance(value, int) and not isinstance(value, bool) and is_secret_name(key):
            self._redactor.counts["password"] += 1
            return 0
        if not isinstance(value, dict | list | tuple):
            return value
        where = (id(value), key)
        if where not in self._known:
            self._known[where] = self._mapping(value, key) if isinstance(value, dict) else self._sequence(value, key)
        return self._known[where]

    def _mapping(self, value: dict[Any, Any], key: str) -> dict[Any, Any]:
        named, origin = value.get("name"), value.get("origin")
        made = {}
        for name, each in value.items():
            said = name if isinstance(name, str) else ""
            if said == "value" and isinstance(named, str):
                said = named  # as Kubernetes writes variables
            if said == "text" and isinstance(origin, str) and origin.startswith(_VARIABLE) and isinstance(each, str):
                made[name] = self._variable(each)
            else:
                made[self(name) if isinstance(name, str) else name] = self(each, said or key)
        return made

    def _variable(self, text: str) -> str:
        """A fact of the environment: ``NAME=value``, where the value may have blanks."""
        name, equals, value = text.partition("=")
        return name + equals + self._redactor.value(name, value, fixed=self._fixed)

    def _sequence(self, values: list[Any] | tuple[Any, ...], key: str) -> list[Any] | tuple[Any, ...]:
        return type(values)(self._items(values, key))

    def _items(self, values: list[Any] | tuple[Any, ...], key: str) -> Iterator[Any]:
        if sum(isinstance(each, str) for each in values) > 1:
            values = self._as_lines(values)
        option = ""  # a list of arguments: what follows --token is one
        for each in values:
            yield self(each, option or key)
            option = each.lstrip("-") if isinstance(each, str) and each.startswith("-") and "=" not in each else ""

    def _as_lines(self, values: list[Any] | tuple[Any, ...]) -> list[Any]:
        """Texts that may be the lines of one, over which a secret goes; a value may have several lines itself."""
        whole = "\n".join(each for each in values if isinstance(each, str))
        clean = self._redactor.text(whole, fixed=self._fixed)
        if clean.count("\n") != whole.count("\n"):
            clean = self._redactor.without_keys(whole, fixed=self._fixed)
        lines = iter(clean.split("\n"))
        return [
            "\n".join(next(lines) for _ in range(each.count("\n") + 1)) if isinstance(each, str) else each
            for each in values
        ]


def plain(value: Any, redactor: Redactor, *, fixed: bool = False) -> Any:
    """Plain data (dicts, lists, texts, numbers) without secrets; a dict's key says what its value is."""
    return _Cleaner(redactor, fixed=fixed)(value)


def document(data: bytes, redactor: Redactor) -> bytes:
    """A JSON document without secrets, or what is none, cleaned as text."""
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return redactor.data(data)
    try:
        made = msgspec.json.encode(plain(content, redactor))
    except (UnicodeEncodeError, RecursionError):
        return redactor.data(data)
    return msgspec.json.format(made) if b"\n" in data.strip() else made + data[len(data.rstrip()) :]


def dump(data: bytes, name: str, redactor: Redactor) -> bytes:
    """A dump of torch's flight recorder without secrets, in the form in which it was: a pickle or JSON.

    Raises:
        DumpUnreadable: it cannot be read, and so nobody can say what is in it.
    """
    flight_recorder.parse(data, name)
    if not plain_pickle.looks_like_pickle(data):
        return document(data, redactor)
    return pickle.dumps(plain(plain_pickle.loads(data), redactor), protocol=_PROTOCOL)


def box(data: bytes, name: str, redactor: Redactor) -> bytes:
    """A box without secrets, of the same size, with every record where it was.

    Raises:
        BoxTruncated, BoxNoise: it is cut short or none, and so nobody can say what is in it.
    """
    if len(data) < blackbox.HEADER_BYTES:
        raise BoxTruncated(name)
    magic, *fields = HEADER.unpack_from(data, 0)
    groups_at, groups, notes_at, notes_bytes, ring_at, records, _ = fields[-7:]
    areas = (
        (groups_at, groups * blackbox.GROUP_BYTES),
        (notes_at, notes_bytes),
        (ring_at, records * blackbox.RECORD_BYTES),
    )
    if magic != blackbox.MAGIC or min(begin for begin, _ in areas) < blackbox.HEADER_BYTES:
        raise BoxNoise(name)
    if max(begin + size for begin, size in areas) > len(data):
        raise BoxTruncated(name)
    made = bytearray(len(data))
    for begin, size in (*_of_header(), areas[0], areas[2]):
        made[begin : begin + size] = data[begin : begin + size]
    _clean_name(made, HEADER.size - _HOST_BYTES, _HOST_BYTES, redactor)
    _clean_name(made, blackbox.STEP + blackbox.STEP_SLOT.size - _PHASE_BYTES, _PHASE_BYTES, redactor)
    (head,) = blackbox.HEADS.unpack_from(data, blackbox.NOTES_HEAD)
    notes = data[notes_at : notes_at + min(head, notes_bytes)]
    made[notes_at : notes_at + len(notes)] = b"".join(_note(line, redactor) for line in notes.splitlines(keepends=True))
    return bytes(made)


def _of_header() -> tuple[tuple[int, int], ...]:
    """Offset and size of what the first 4096 bytes hold."""
    head = struct.calcsize("<Q")
    return (
        (0, HEADER.size),
        (blackbox.RECORDS_HEAD, head),
        (blackbox.NOTES_HEAD, head),
        (blackbox.STEP, blackbox.STEP_SLOT.size),
    )


def _clean_name(made: bytearray, begin: int, size: int, redactor: Redactor) -> None:
    """A text that ends with a zero byte, in a field of fixed size."""
    text = bytes(made[begin : begin + size]).split(b"\0")[0]
    made[begin : begin + size] = redactor.data(text, fixed=True).ljust(size, b"\0")


def _note(line: bytes, redactor: Redactor) -> bytes:
    """One line of notes in as many bytes; what cleaning saves is filled up with blanks, which JSON does not mind."""
    body = line.rstrip(b"\r\n")
    kind, tab, rest = body.partition(b"\t")
    if tab and kind.decode(errors="replace") in _JSON_NOTES:
        made = _json_note(rest, redactor)
        if made is not None:
            return kind + tab + made.ljust(len(rest)) + line[len(body) :]
    return redactor.data(body, fixed=True) + line[len(body) :]


def _json_note(rest: bytes, redactor: Redactor) -> bytes | None:
    """The JSON of a note without secrets; None where it is none, or would not fit any more."""
    try:
        content = msgspec.json.decode(rest)
        clean = plain(content, redactor, fixed=True)
        made = rest if clean == content else msgspec.json.encode(clean)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return made if len(made) <= len(rest) else None
