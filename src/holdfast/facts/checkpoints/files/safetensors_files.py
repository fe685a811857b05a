"""safetensors: a header in JSON that places every tensor, then their bytes. One file; ``huggingface`` knows folders.

The form is that of the format's own description (github.com/huggingface/safetensors, "Format"), the limits are those of
its Rust library (safetensors/src/tensor.rs).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import ITEMSIZE, Contents, Format, Gap, Piece, Tensor
from holdfast.facts.checkpoints.files.torch_files import open_binary
from holdfast.findings import Unknown
from holdfast.report.text import plural

#: torch's names of dtypes, by the format's.
DTYPES: Mapping[str, str] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
SUFFIX = ".safetensors"
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
_SHOWN = 3
_METADATA = "__metadata__"
_STEP = "step"


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class File(msgspec.Struct, frozen=True):
    """The tensors of one file, and its metadata. ``ordered``: they are in another order than the library's own.

    That one is by the size of elements and then by name, so that the model's order is lost.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    ordered: bool
    size: int
    gaps: tuple[Gap, ...] = ()

    @property
    def ties(self) -> dict[str, str]:
        """Second names, as ``safetensors.torch.save_model`` notes them down."""
        return {
            name: first for name, first in self.metadata.items()
            if first in self.tensors and name not in self.tensors
        }  # fmt: skip

    @property
    def step(self) -> int | Unknown:
        """The step, where ``holdfast ckpt convert`` noted one down."""
        said = self.metadata.get(_STEP, "")
        return int(said) if said.isdecimal() and len(said) < 19 else Unknown("safetensors files do not say")


def recognises(path: Path) -> Format | None:
    """A file that begins as one does; its name does not matter, but where it has the suffix it is one, if damaged."""
    if not path.is_file():
        return None
    if path.suffix == SUFFIX:
        return Format.SAFETENSORS
    try:
        with path.open("rb") as stream:
            start = stream.read(_LENGTH_BYTES + 2)
    except OSError:
        return None
    size = int.from_bytes(start[:_LENGTH_BYTES], "little")
    return Format.SAFETENSORS if start[_LENGTH_BYTES:] == b'{"' and size <= _MOST_HEADER_BYTES else None


def read(path: Path) -> Contents:
    """What is in the file. Raises CheckpointUnreadable."""
    found = read_file(path, "")
    return Contents(
        format=Format.SAFETENSORS, root=str(path), tensors=found.tensors, ties=found.ties, step=found.step,
        world_size=Unknown("it is one file, which any number of ranks may have written"),
        writer=found.metadata.get("format", ""), values=other_metadata(found), files={"": found.size}, gaps=found.gaps,
    )  # fmt: skip


def read_file(path: Path, name: str) -> File:
    """One file, which is ``name`` below the root of the checkpoint. Raises CheckpointUnreadable: it has no header."""
    try:
        with open_binary(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            header_bytes = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if header_bytes > _MOST_HEADER_BYTES:
                raise CheckpointUnreadable(path, why="it does not begin with the length of a header of safetensors")
            header = stream.read(header_bytes)
    except OSError as error:
        raise CheckpointUnreadable(path, why=(error.strerror or str(error)).lower()) from error
    if size < _LENGTH_BYTES or len(header) < header_bytes:
        raise CheckpointUnreadable(path, why=f"it is cut short within its header: it has {size:,} bytes")
    raw, metadata = _parsed(path, header)
    start = _LENGTH_BYTES + header_bytes
    tensors: dict[str, Tensor] = {}
    gaps: list[Gap] = []
    short: list[str] = []
    for key, entry in raw.items():
        why = _wrong(entry)
        if why:
            gaps.append(Gap(kind="unreadable", file=name, why=f"{key}: {why}"))
        elif start + entry.data_offsets[1] > size:
            short.append(key)
        else:
            tensors[key] = _tensor(key, entry, start, name)
    if short:
        listed = ", ".join(short[:_SHOWN]) + (", ..." if len(short) > _SHOWN else "")
        gaps.append(
            Gap(kind="truncated", file=name, why=f"it is cut short: {plural(len(short), 'tensor')} of it: {listed}")
        )
    return File(tensors, metadata, _is_ordered(list(raw.items())), size, tuple(gaps))


def other_metadata(file: File) -> dict[str, str]:
    """Its metadata without what is understood here."""
    known = {"format", _STEP, *file.ties}
    return {key: value for key, value in file.metadata.items() if key not in known}


def _parsed(path: Path, header: bytes) -> tuple[dict[str, _Entry], dict[str, str]]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop(_METADATA, msgspec.Raw(b"{}")), type=dict[str, str] | None)
        decoder = msgspec.json.Decoder(_Entry)
        return {key: decoder.decode(each) for key, each in raw.items()}, metadata or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointUnreadable(path, why=f"its header cannot be read: {error}") from error


def _wrong(entry: _Entry) -> str:
    """Why what the header says of a tensor cannot be."""
    begin, end = entry.data_offsets
    if entry.dtype not in DTYPES:
        return f"it is of {entry.dtype}, which is not known here"
    if begin < 0 or any(n < 0 for n in entry.shape):
        return "its place in the file cannot be"
    if math.prod(entry.shape) * ITEMSIZE[DTYPES[entry.dtype]] != end - begin:
        return f"its shape and its {end - begin:,} bytes do not agree"
    return ""


def _tensor(name: str, entry: _Entry, start: int, file: str) -> Tensor:
    zeros = (0,) * len(entry.shape)
    piece = Piece(file=file, offset=start + entry.data_offsets[0], shape=entry.shape, start=zeros)
    pieces = (piece,) if math.prod(entry.shape) else ()
    return Tensor(name=name, dtype=DTYPES[entry.dtype], shape=entry.shape, pieces=pieces)


def _is_ordered(entries: Sequence[tuple[str, _Entry]]) -> bool:
    """Not in the order of the library: by alignment, the widest first, and then by name."""
    places = [entry.data_offsets[0] for _, entry in entries]
    alike = (one[0] > two[0] for one, two in itertools.pairwise(entries) if one[1].dtype == two[1].dtype)
    return places != sorted(places) or any(alike)
