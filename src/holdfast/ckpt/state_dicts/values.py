"""Flattens everything in a torch.save file besides the model into plain values by path."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from holdfast.ckpt.contents import ITEMSIZE, Tensor
from holdfast.ckpt.files.torch_files import TorchFile
from holdfast.ckpt.files.torch_pickle import OpaqueObject, TensorRef
from holdfast.ckpt.tensor_blocks import numpy_dtype
from holdfast.core.errors import CheckpointUnreadable

_PLAIN = (str, int, float, bool, type(None))
_MAX_DEPTH = 40
#: Arrays that numpy's random states contain: path, dtypes and number of elements.
_ARRAY, _WORDS, _MAX_WORDS = "multiarray._reconstruct", ("u4", "i4", "u8", "i8"), 4096


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
        yield path, _with_tensors(source, path, simplified)


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
    return _parse_array(value) if isinstance(value, OpaqueObject) else value


def is_plain(value: Any, also: tuple[type, ...] = ()) -> bool:
    """Return whether ``value`` is text, number, None or of ``also``, or lists and dicts of them."""
    if isinstance(value, Mapping):
        return all(
            isinstance(key, (str, int)) and is_plain(entry, also) for key, entry in value.items()
        )
    if isinstance(value, (list, tuple)):
        return all(is_plain(entry, also) for entry in value)
    return isinstance(value, (*_PLAIN, *also))


def _with_tensors(source: TorchSource, path: str, value: Any) -> Any:
    """Replace the tensors inside a value that stays whole."""
    if isinstance(value, TensorRef):
        return source.tensor(path, value)
    if isinstance(value, dict):
        return {key: _with_tensors(source, path, entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_with_tensors(source, path, entry) for entry in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def _parse_array(value: OpaqueObject) -> Any:
    """Return numpy's array of words, as in its random state, as a list; others unchanged."""
    try:
        _, (size,), dtype, _, data = value.__dict__["state"]
        kind, order = dtype.__dict__["args"][0], dtype.__dict__["state"][1]
        if value.path.endswith(_ARRAY) and kind in _WORDS and order == "<" and size <= _MAX_WORDS:
            return np.frombuffer(data, kind, size).tolist()
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        pass
    return value


def _are_names(value: Mapping[Any, Any]) -> bool:
    return all(
        isinstance(key, str) and key and "." not in key and not key.isdigit() for key in value
    )


def _to_python(value: Any) -> float | int:
    return value if isinstance(value, (int, float)) else float(value)
