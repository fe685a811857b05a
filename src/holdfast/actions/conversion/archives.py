"""Files of torch.save as parts: which records, in which order, how many bytes, without reading a number.

The form is that of torch/serialization.py and of its archive writer (caffe2/serialize/inline_container.cc): records
below one folder, stored, aligned to 64 bytes by padding in the extra field, so that torch can map the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.actions.conversion import pickles
from holdfast.actions.conversion.files import Archive, Box, Record, Run, Zeros, size_of, whole
from holdfast.facts.checkpoints.contents import ITEMSIZE, Tensor

#: The folder in the archive; torch takes the file's stem, and reads any.
FOLDER = "archive"
ALIGNMENT = 64
_LOCAL, _CENTRAL, _END, _END64, _LOCATOR64 = 30, 46, 22, 56, 20
#: Sizes and offsets from here on stand in the 64-bit fields alone.
LIMIT32 = 0xFFFFFFFF
#: Extra field that holds 64-bit sizes: in the local header two of them, in the central directory three.
EXTRA64_LOCAL, EXTRA64_CENTRAL = 20, 28
_PAD_HEADER = 4


class Storages:
    """The records of numbers of one file of torch.save, and the pickle's way to refer to them.

    Tensors that are given twice (tied ones) share their storage, as in torch.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._known: dict[int, tuple[Tensor, str, pickles.StorageOf]] = {}

    def tensor(self, found: Tensor, dtype: str | None = None, *, requires_grad: bool = False) -> pickles.Call:
        """A whole tensor of the source, as a value for the pickle."""
        wanted = dtype or found.dtype
        known = self._known.get(id(found))
        if known is None or known[1] != wanted:
            known = (found, wanted, self.storage((whole(found, wanted),), wanted))
            self._known[id(found)] = known
        return pickles.tensor(known[2], found.shape, requires_grad=requires_grad)

    def storage(self, parts: Sequence[bytes | Run | Box | Zeros], dtype: str) -> pickles.StorageOf:
        """A storage of any parts."""
        key = str(len(self.records))
        self.records.append(Record(f"data/{key}", tuple(parts)))
        return pickles.StorageOf(dtype, key, size_of(parts) // ITEMSIZE[dtype])

    def numbers(self, data: bytes, dtype: str, shape: tuple[int, ...]) -> pickles.Call:
        """A tensor of numbers that are known here."""
        return pickles.tensor(self.storage((data,), dtype), shape)

    def file(self, value: Any) -> Archive:
        """The file of torch.save that holds ``value``, whose tensors came from this."""
        first = (
            Record("data.pkl", (pickles.dumps(value),)),
            Record(".format_version", (b"1",)),
            Record(".storage_alignment", (str(ALIGNMENT).encode(),)),
            Record("byteorder", (b"little",)),
        )
        records = (*first, *self.records, Record("version", (b"3\n",)))
        return Archive(records, archive_size(records))


def padding(at: int, record: Record) -> int:
    """Bytes of the extra field that let the record's numbers begin at a multiple of 64, its header being at ``at``."""
    fixed = at + _LOCAL + len(name_of(record)) + (EXTRA64_LOCAL if record.size >= LIMIT32 else 0) + _PAD_HEADER
    return _PAD_HEADER + -fixed % ALIGNMENT


def name_of(record: Record) -> bytes:
    """Its name in the archive."""
    return f"{FOLDER}/{record.name}".encode()


def archive_size(records: Sequence[Record]) -> int:
    """Bytes of the whole archive: headers, numbers, directory."""
    at, directory = 0, 0
    for record in records:
        name = len(name_of(record))
        extra64 = EXTRA64_LOCAL if record.size >= LIMIT32 else 0
        directory += _CENTRAL + name + (EXTRA64_CENTRAL if needs64(record.size, at) else 0)
        at += _LOCAL + name + extra64 + padding(at, record) + record.size
    large = at + directory >= LIMIT32 or len(records) >= 0xFFFF
    return at + directory + (_END64 + _LOCATOR64 if large else 0) + _END


def needs64(size: int, offset: int) -> bool:
    """The directory's entry of a record has the 64-bit field."""
    return size >= LIMIT32 or offset >= LIMIT32
