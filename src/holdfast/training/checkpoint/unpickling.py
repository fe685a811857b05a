"""Read a checkpoint's index (``.metadata``), a pickle, allowing only the types that torch writes.

torch's own reader uses ``pickle.load``, which executes whatever the file contains (torch 2.4 to
2.13, ``filesystem.py``).
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.metadata import Metadata

from holdfast.core.errors import CheckpointUnreadable

_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    *(
        (_METADATA, name)
        for name in (
            "Metadata",
            "MetadataIndex",
            "TensorStorageMetadata",
            "TensorProperties",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib._local", "PosixPath"),
}
_DTYPE = re.compile(r"[a-z]+[0-9a-z_]*\Z")


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if (
            module == "torch"
            and _DTYPE.match(name)
            and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return getattr(torch, name)
        raise pickle.UnpicklingError(
            f"it references {module}.{name}, which no checkpoint index needs"
        )


def read_index(stream: BinaryIO, name: Path | str) -> Metadata:
    """Return the index in ``stream``.

    Raises:
        CheckpointUnreadable: it is not an index, or holds more than plain descriptions of tensors.
    """
    try:
        index = _IndexUnpickler(stream).load()
    except Exception as error:  # a pickle may fail in any way
        raise CheckpointUnreadable(name, why=f"its index cannot be read: {error}") from error
    if not isinstance(index, Metadata):
        raise CheckpointUnreadable(name, why=f"its index is a {type(index).__name__}")
    return index
