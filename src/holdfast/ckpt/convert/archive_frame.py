"""Builds the zip headers and directory of an archive once each record's CRC32 is known.

Format: PKWARE APPNOTE 6.3.10 (4.3.7 local headers, 4.3.12 central directory, 4.3.14 to 4.3.16 its
end), with the padding of caffe2/serialize/inline_container.cc. torch ignores the CRC32; other zip
readers check it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from holdfast.ckpt.convert.archives import LIMIT32, needs_zip64, padding, record_name
from holdfast.ckpt.convert.files import ArchiveRecord

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<4sIQI")
_VERSION, _VERSION64 = 20, 45
_ZIP64 = 0x0001
#: Tag of the extra field that torch uses only for alignment.
_PADDING = int.from_bytes(b"FB", "little")
#: 1 January 1980 as a zip date, so that the output is deterministic.
_DATE = 0x21


def record_starts(records: Sequence[ArchiveRecord]) -> Iterator[int]:
    """Yield where the data of each record starts in the archive."""
    for head, size in _headers(records):
        yield head + size


def frame_bytes(
    records: Sequence[ArchiveRecord], checksums: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes): each record's header, then the directory with its end."""
    directory, end = bytearray(), 0
    for (at, size), record, crc in zip(_headers(records), records, checksums, strict=True):
        yield at, _header(record, at, crc)
        directory += _directory_entry(record, at, crc)
        end = at + size + record.size
    yield end, bytes(directory) + _directory_end(end, len(directory), len(records))


def _headers(records: Sequence[ArchiveRecord]) -> Iterator[tuple[int, int]]:
    """Yield the offset and size of each record's header."""
    at = 0
    for record in records:
        extra64 = 20 if record.size >= LIMIT32 else 0
        size = _LOCAL.size + len(record_name(record)) + extra64 + padding(at, record)
        yield at, size
        at += size + record.size


def _header(record: ArchiveRecord, at: int, crc: int) -> bytes:
    name, size = record_name(record), record.size
    extra = struct.pack("<HHQQ", _ZIP64, 16, size, size) if size >= LIMIT32 else b""
    version = _VERSION64 if extra else _VERSION
    pad = padding(at, record) - 4
    extra += struct.pack("<HH", _PADDING, pad) + b"Z" * pad
    short = min(size, LIMIT32)
    return (
        _LOCAL.pack(
            b"PK\x03\x04", version, 0, 0, 0, _DATE, crc, short, short, len(name), len(extra)
        )
        + name
        + extra
    )


def _directory_entry(record: ArchiveRecord, at: int, crc: int) -> bytes:
    name, size = record_name(record), record.size
    large = needs_zip64(size, at)
    extra = struct.pack("<HHQQQ", _ZIP64, 24, size, size, at) if large else b""
    version, short, offset = (_VERSION64, LIMIT32, LIMIT32) if large else (_VERSION, size, at)
    fields = (
        0,
        version,
        0,
        0,
        0,
        _DATE,
        crc,
        short,
        short,
        len(name),
        len(extra),
        0,
        0,
        0,
        0,
        offset,
    )
    return _CENTRAL.pack(b"PK\x01\x02", *fields) + name + extra


def _directory_end(at: int, size: int, count: int) -> bytes:
    """Return the end of the directory of ``size`` bytes and ``count`` entries at ``at``."""
    large = at + size >= LIMIT32 or count >= 0xFFFF
    few, short, offset = (0xFFFF, LIMIT32, LIMIT32) if large else (count, size, at)
    end = _END.pack(b"PK\x05\x06", 0, 0, few, few, short, offset, 0)
    if not large:
        return end
    end64 = _END64.pack(b"PK\x06\x06", 44, _VERSION64, _VERSION64, 0, 0, count, count, size, at)
    return end64 + _LOCATOR64.pack(b"PK\x06\x07", 0, at + size, 1) + end
