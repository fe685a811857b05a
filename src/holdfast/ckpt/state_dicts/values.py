"""Flattens everything in a torch.save file besides the model into plain values by path."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from holdfast.ckpt.contents import ITEMSIZE, Tensor
from holdfast.ckpt.files.torch_files import TorchFile
from holdfast.ckpt.files.torch_pickle import TensorRef
from holdfast.ckpt.tensor_blocks import numpy_dtype
from holdfast.core.errors import CheckpointUnreadable

_PLAIN = (str, int, float, bool, type(None))
_MAX_DEPTH = 40


class TorchSource:
    """A torch.save file of a checkpoint, ``name`` below its root ('' if it is the root)."""

    def __init__(self, file: TorchFile, name: str) -> None:
        self.file, self.name = file, name

    def tensor(self, name: str, tensor: TensorRef) -> Tensor:
        """Return a tensor of the file. Raises CheckpointUnreadable: its data is missing."""
        return self.file.tensor(name, tensor, self.name)

    def number(self, tensor: TensorRef) -> float | int | None:
        """Read a one-element tensor as a number; None if it has none or several."""
        size = ITEMSIZE.get(tensor.dtype)
        if size is None or any(n != 1 for n in tensor.shape):
            return None
        (shard,) = self.file.shards(tensor, self.name)
        with self.file.path.open("rb") as stream:
            data = os.pread(stream.fileno(), size, shard.offset)
        if len(data) < size:
            raise CheckpointUnreadable(
                self.file.path, why=f"it is truncated: byte {shard.offset:,} does not exist"
            )
        value = np.frombuffer(data, numpy_dtype(tensor.dtype))[0]
        return None if np.iscomplexobj(value) else _to_python(value.item())


def flatten_values(
    source: TorchSource, value: Any, path: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield each value with its path: dicts by key, non-plain lists by index.

    A one-element tensor becomes a number, any other a ``Tensor``. A dict whose keys are not names
    (numbers, or containing dots) stays one value, because its keys could not be recovered from the
    path.
    """
    simplified = simplify(source, value)
    if isinstance(value, Mapping) and value and _are_names(value) and depth < _MAX_DEPTH:
        for key, item in value.items():
            yield from flatten_values(source, item, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, (list, tuple)) and not is_plain(simplified) and depth < _MAX_DEPTH:
        for number, item in enumerate(value):
            yield from flatten_values(
                source, item, f"{path}.{number}" if path else str(number), depth + 1
            )
    elif isinstance(simplified, TensorRef):
        yield path, source.tensor(path, simplified)
    else:
        yield path, simplified


def simplify(source: TorchSource, value: Any, depth: int = 0) -> Any:
    """Convert containers, and one-element tensors to numbers; other objects stay."""
    if isinstance(value, TensorRef):
        number = source.number(value)
        return value if number is None else number
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {key: simplify(source, entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        items = [simplify(source, item, depth + 1) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def is_plain(value: Any) -> bool:
    """Return whether ``value`` is text, number, None, or lists and dicts of them."""
    if isinstance(value, Mapping):
        return all(isinstance(key, (str, int)) and is_plain(entry) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return isinstance(value, _PLAIN)


def _are_names(value: Mapping[Any, Any]) -> bool:
    return all(
        isinstance(key, str) and key and "." not in key and not key.isdigit() for key in value
    )


def _to_python(value: Any) -> float | int:
    return value if isinstance(value, (int, float)) else float(value)
