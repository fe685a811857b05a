"""The index of a checkpoint (``.metadata``) is a pickle: it is read with nothing allowed but what torch puts into it.

torch's own reader uses ``pickle.load``, which runs whatever the file says (torch 2.4 to 2.13, ``filesystem.py``).
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.metadata import Metadata

from holdfast.errors import CheckpointUnreadable

_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    *((_METADATA, name) for name in (
        "Metadata", "MetadataIndex", "TensorStorageMetadata", "TensorProperties", "BytesStorageMetadata",
        "ChunkStorageMetadata", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"), ("pathlib", "PurePosixPath"), ("pathlib._local", "PosixPath"),
}  # fmt: skip
_DTYPE = re.compile(r"[a-z]+[0-9a-z_]*\Z")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and _DTYPE.match(name) and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no index of a checkpoint needs")


def read_index(stream: BinaryIO, name: Path | str) -> Metadata:
    """The index in ``stream``.

    Raises:
        CheckpointUnreadable: it is none, or holds more than plain descriptions of tensors.
    """
    try:
        found = _Unpickler(stream).load()
    except Exception as error:  # a pickle may fail in any way
        raise CheckpointUnreadable(name, why=f"its index cannot be read: {error}") from error
    if not isinstance(found, Metadata):
        raise CheckpointUnreadable(name, why=f"its index is a {type(found).__name__}")
    return found
