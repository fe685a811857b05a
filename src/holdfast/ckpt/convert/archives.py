"""Describes torch.save files as parts: records, their order and sizes, without reading data.

Format: torch/serialization.py and caffe2/serialize/inline_container.cc: records below one folder,
uncompressed, aligned to 64 bytes by padding in the extra field, so that torch can map the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.ckpt.contents import ITEMSIZE, Tensor
from holdfast.ckpt.convert import pickles
from holdfast.ckpt.convert.files import (
    Archive,
    ArchiveRecord,
    TensorBox,
    TensorRun,
    Zeros,
    total_size,
    whole_tensor,
)

#: The folder in the archive; torch writes the file's stem and reads any name.
FOLDER = "archive"
ALIGNMENT = 64
_LOCAL, _CENTRAL, _END, _END64, _LOCATOR64 = 30, 46, 22, 56, 20
#: From this value on, sizes and offsets are stored in the 64-bit fields.
LIMIT32 = 0xFFFFFFFF
#: Size of the zip64 extra field: two values in a local header, three in the directory.
EXTRA64_LOCAL, EXTRA64_CENTRAL = 20, 28
_PAD_HEADER = 4


class Storages:
    """Collects the storages of one torch.save file, and creates pickle references to them.

    A tensor added twice (tied weights) shares one storage, as in torch.
    """

    def __init__(self) -> None:
        self.records: list[ArchiveRecord] = []
        self._known: dict[int, tuple[Tensor, str, pickles.StorageReference]] = {}

    def tensor(
        self, tensor: Tensor, dtype: str | None = None, *, requires_grad: bool = False
    ) -> pickles.ReducedCall:
        """Add a complete tensor of the source; return its pickle value."""
        wanted = dtype or tensor.dtype
        known = self._known.get(id(tensor))
        if known is None or known[1] != wanted:
            known = (tensor, wanted, self.storage((whole_tensor(tensor, wanted),), wanted))
            self._known[id(tensor)] = known
        return pickles.pickled_tensor(known[2], tensor.shape, requires_grad=requires_grad)

    def storage(
        self, parts: Sequence[bytes | TensorRun | TensorBox | Zeros], dtype: str
    ) -> pickles.StorageReference:
        """Add a storage made of parts."""
        key = str(len(self.records))
        self.records.append(ArchiveRecord(f"data/{key}", tuple(parts)))
        return pickles.StorageReference(dtype, key, total_size(parts) // ITEMSIZE[dtype])

    def numbers(self, data: bytes, dtype: str, shape: tuple[int, ...]) -> pickles.ReducedCall:
        """Add a tensor of literal values."""
        return pickles.pickled_tensor(self.storage((data,), dtype), shape)

    def file(self, value: Any) -> Archive:
        """Return the torch.save file that holds ``value``, which refers to these storages."""
        first = (
            ArchiveRecord("data.pkl", (pickles.dumps(value),)),
            ArchiveRecord(".format_version", (b"1",)),
            ArchiveRecord(".storage_alignment", (str(ALIGNMENT).encode(),)),
            ArchiveRecord("byteorder", (b"little",)),
        )
        records = (*first, *self.records, ArchiveRecord("version", (b"3\n",)))
        return Archive(records, archive_size(records))


def padding(at: int, record: ArchiveRecord) -> int:
    """Return the extra-field bytes that align the record's data, given its header offset."""
    fixed = (
        at
        + _LOCAL
        + len(record_name(record))
        + (EXTRA64_LOCAL if record.size >= LIMIT32 else 0)
        + _PAD_HEADER
    )
    return _PAD_HEADER + -fixed % ALIGNMENT


def record_name(record: ArchiveRecord) -> bytes:
    """Return the record's name in the archive."""
    return f"{FOLDER}/{record.name}".encode()


def archive_size(records: Sequence[ArchiveRecord]) -> int:
    """Return the size of the complete archive: headers, data, directory."""
    at, directory = 0, 0
    for record in records:
        name = len(record_name(record))
        extra64 = EXTRA64_LOCAL if record.size >= LIMIT32 else 0
        directory += _CENTRAL + name + (EXTRA64_CENTRAL if needs_zip64(record.size, at) else 0)
        at += _LOCAL + name + extra64 + padding(at, record) + record.size
    large = at + directory >= LIMIT32 or len(records) >= 0xFFFF
    return at + directory + (_END64 + _LOCATOR64 if large else 0) + _END


def needs_zip64(size: int, offset: int) -> bool:
    """Return whether the directory entry of a record needs the 64-bit field."""
    return size >= LIMIT32 or offset >= LIMIT32
