"""The frame of an archive: what stands between and after its records, once the CRC32 of each is known.

The form is PKWARE's APPNOTE 6.3.10 (4.3.7 local headers, 4.3.12 central directory, 4.3.14 to 4.3.16 its end), with the
padding of caffe2/serialize/inline_container.cc. Torch itself never looks at a CRC32; other readers of zip archives do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from holdfast.actions.conversion.archives import LIMIT32, name_of, needs64, padding
from holdfast.actions.conversion.files import Record

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<4sIQI")
_VERSION, _VERSION64 = 20, 45
_ZIP64 = 0x0001
#: Torch's own mark of the extra field that is there for alignment alone.
_PADDING = int.from_bytes(b"FB", "little")
#: 1 January 1980, as zip has dates: the same checkpoint is always the same bytes.
_DATE = 0x21


def starts(records: Sequence[Record]) -> Iterator[int]:
    """Where the bytes of each record begin in the archive."""
    for head, size in _heads(records):
        yield head + size


def frame(records: Sequence[Record], sums: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Where in the archive which bytes of its frame stand: each record's header, then the directory with its end."""
    directory, end = bytearray(), 0
    for (at, size), record, crc in zip(_heads(records), records, sums, strict=True):
        yield at, _header(record, at, crc)
        directory += _entry(record, at, crc)
        end = at + size + record.size
    yield end, bytes(directory) + _end(end, len(directory), len(records))


def _heads(records: Sequence[Record]) -> Iterator[tuple[int, int]]:
    """Where each record's header stands, and its bytes."""
    at = 0
    for record in records:
        extra64 = 20 if record.size >= LIMIT32 else 0
        size = _LOCAL.size + len(name_of(record)) + extra64 + padding(at, record)
        yield at, size
        at += size + record.size


def _header(record: Record, at: int, crc: int) -> bytes:
    name, size = name_of(record), record.size
    extra = struct.pack("<HHQQ", _ZIP64, 16, size, size) if size >= LIMIT32 else b""
    version = _VERSION64 if extra else _VERSION
    pad = padding(at, record) - 4
    extra += struct.pack("<HH", _PADDING, pad) + b"Z" * pad
    short = min(size, LIMIT32)
    return _LOCAL.pack(b"PK\x03\x04", version, 0, 0, 0, _DATE, crc, short, short, len(name), len(extra)) + name + extra


def _entry(record: Record, at: int, crc: int) -> bytes:
    name, size = name_of(record), record.size
    large = needs64(size, at)
    extra = struct.pack("<HHQQQ", _ZIP64, 24, size, size, at) if large else b""
    version, short, place = (_VERSION64, LIMIT32, LIMIT32) if large else (_VERSION, size, at)
    fields = (0, version, 0, 0, 0, _DATE, crc, short, short, len(name), len(extra), 0, 0, 0, 0, place)
    return _CENTRAL.pack(b"PK\x01\x02", *fields) + name + extra


def _end(at: int, size: int, count: int) -> bytes:
    """The end of the directory, which stands at ``at`` and has ``size`` bytes and ``count`` entries."""
    large = at + size >= LIMIT32 or count >= 0xFFFF
    few, short, place = (0xFFFF, LIMIT32, LIMIT32) if large else (count, size, at)
    end = _END.pack(b"PK\x05\x06", 0, 0, few, few, short, place, 0)
    if not large:
        return end
    end64 = _END64.pack(b"PK\x06\x06", 44, _VERSION64, _VERSION64, 0, 0, count, count, size, at)
    return end64 + _LOCATOR64.pack(b"PK\x06\x07", 0, at + size, 1) + end
