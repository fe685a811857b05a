"""Reads safetensors files: a JSON header with the offset of every tensor, then their bytes.

Format: github.com/huggingface/safetensors, "Format"; limits as in its Rust library
(safetensors/src/tensor.rs). Folders are read by ``huggingface``.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.ckpt.contents import (
    ITEMSIZE,
    CheckpointContents,
    CheckpointFormat,
    FileProblem,
    Tensor,
    TensorShard,
)
from holdfast.ckpt.files.size_limits import tensor_limit, too_many_tensors
from holdfast.ckpt.files.torch_files import open_binary
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown
from holdfast.core.text import os_error_reason, pluralize

#: torch dtype names by safetensors dtype names.
DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
SUFFIX = ".safetensors"
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_SHOWN = 3
_METADATA = "__metadata__"
_STEP = "step"


class _TensorEntry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class SafetensorsFile(msgspec.Struct, frozen=True):
    """The tensors and metadata of one file.

    ``ordered``: the tensors are not in the library's own order (by element size, then name), so the
    order is the model's.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    ordered: bool
    size: int
    problems: tuple[FileProblem, ...] = ()

    @property
    def ties(self) -> dict[str, str]:
        """Return aliases as recorded by ``safetensors.torch.save_model``."""
        return {
            name: first
            for name, first in self.metadata.items()
            if first in self.tensors and name not in self.tensors
        }

    @property
    def step(self) -> int | Unknown:
        """Return the step, if ``holdfast ckpt convert`` recorded it."""
        text = self.metadata.get(_STEP, "")
        return (
            int(text)
            if text.isdecimal() and len(text) < 19
            else Unknown("not recorded in safetensors files")
        )


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize a file by its suffix or its first bytes."""
    if not path.is_file():
        return None
    if path.suffix == SUFFIX:
        return CheckpointFormat.SAFETENSORS
    try:
        with path.open("rb") as stream:
            start = stream.read(_LENGTH_BYTES + 2)
    except OSError:
        return None
    size = int.from_bytes(start[:_LENGTH_BYTES], "little")
    return (
        CheckpointFormat.SAFETENSORS
        if start[_LENGTH_BYTES:] == b'{"' and size <= _MAX_HEADER_BYTES
        else None
    )


def read_contents(path: Path) -> CheckpointContents:
    """Return the contents of one file. Raises CheckpointUnreadable."""
    file = read_file(path, "")
    return CheckpointContents(
        format=CheckpointFormat.SAFETENSORS,
        root=str(path),
        tensors=file.tensors,
        ties=file.ties,
        step=file.step,
        world_size=Unknown("not recorded in a single file"),
        writer=file.metadata.get("format", ""),
        values=other_metadata(file),
        files={"": file.size},
        problems=file.problems,
    )


def read_file(path: Path, name: str) -> SafetensorsFile:
    """Read one file, ``name`` below the checkpoint root.

    Raises:
        CheckpointUnreadable: it has no header.
    """
    try:
        with open_binary(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            header_bytes = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if header_bytes > _MAX_HEADER_BYTES:
                raise CheckpointUnreadable(
                    path, why="it does not begin with the length of a safetensors header"
                )
            header = stream.read(header_bytes)
    except OSError as error:
        raise CheckpointUnreadable(path, why=os_error_reason(error)) from error
    if size < _LENGTH_BYTES or len(header) < header_bytes:
        raise CheckpointUnreadable(
            path, why=f"it is truncated within its header: it has {size:,} bytes"
        )
    if (count := header.count(b'"data_offsets"')) > tensor_limit(size):
        raise CheckpointUnreadable(path, why=too_many_tensors(count, size))
    raw, metadata = _parse_header(path, header)
    start = _LENGTH_BYTES + header_bytes
    tensors: dict[str, Tensor] = {}
    problems: list[FileProblem] = []
    short: list[str] = []
    for key, entry in raw.items():
        why = _entry_problem(entry)
        if why:
            problems.append(FileProblem(kind="unreadable", file=name, why=f"{key}: {why}"))
        elif start + entry.data_offsets[1] > size:
            short.append(key)
        else:
            tensors[key] = _make_tensor(key, entry, start, name)
    if short:
        listed = ", ".join(short[:_SHOWN]) + (", ..." if len(short) > _SHOWN else "")
        problems.append(
            FileProblem(
                kind="truncated",
                file=name,
                why=f"it is truncated: {pluralize(len(short), 'tensor')} missing: {listed}",
            )
        )
    return SafetensorsFile(tensors, metadata, _is_ordered(list(raw.items())), size, tuple(problems))


def other_metadata(file: SafetensorsFile) -> dict[str, str]:
    """Return the metadata that is not interpreted here."""
    known = {"format", _STEP, *file.ties}
    return {key: value for key, value in file.metadata.items() if key not in known}


def _parse_header(path: Path, header: bytes) -> tuple[dict[str, _TensorEntry], dict[str, str]]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(
            raw.pop(_METADATA, msgspec.Raw(b"{}")), type=dict[str, str] | None
        )
        decoder = msgspec.json.Decoder(_TensorEntry)
        return {key: decoder.decode(item) for key, item in raw.items()}, metadata or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointUnreadable(path, why=f"invalid header: {error}") from error


def _entry_problem(entry: _TensorEntry) -> str:
    """Return why a header entry is invalid, or ''."""
    begin, end = entry.data_offsets
    if entry.dtype not in DTYPES:
        return f"unsupported dtype {entry.dtype}"
    if begin < 0 or any(n < 0 for n in entry.shape):
        return "invalid offset or shape"
    if math.prod(entry.shape) * ITEMSIZE[DTYPES[entry.dtype]] != end - begin:
        return f"its shape does not match its {end - begin:,} bytes"
    return ""


def _make_tensor(name: str, entry: _TensorEntry, start: int, file: str) -> Tensor:
    zeros = (0,) * len(entry.shape)
    shard = TensorShard(
        file=file, offset=start + entry.data_offsets[0], shape=entry.shape, start=zeros
    )
    shards = (shard,) if math.prod(entry.shape) else ()
    return Tensor(name=name, dtype=DTYPES[entry.dtype], shape=entry.shape, shards=shards)


def _is_ordered(entries: Sequence[tuple[str, _TensorEntry]]) -> bool:
    """Return whether the order differs from the library's: widest alignment first, then name."""
    offsets = [entry.data_offsets[0] for _, entry in entries]
    name_order_broken = (
        first[0] > second[0]
        for first, second in itertools.pairwise(entries)
        if first[1].dtype == second[1].dtype
    )
    return offsets != sorted(offsets) or any(name_order_broken)
