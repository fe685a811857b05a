"""Whatever else stands in a file of torch.save besides a model: told by its path, as plain as it can be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import ITEMSIZE, Tensor
from holdfast.facts.checkpoints.files.torch_files import TorchFile
from holdfast.facts.checkpoints.files.torch_pickle import TensorAt
from holdfast.facts.checkpoints.pieces import dtype_of

_PLAIN = (str, int, float, bool, type(None))
_DEEPEST = 40


class Source:
    """One file of torch.save of a checkpoint, which is ``name`` below its root ('' where it is the root)."""

    def __init__(self, file: TorchFile, name: str) -> None:
        self.file, self.name = file, name

    def tensor(self, name: str, found: TensorAt) -> Tensor:
        """A tensor of the file. Raises CheckpointUnreadable: its numbers are not in it."""
        return self.file.tensor(name, found, self.name)

    def number(self, found: TensorAt) -> float | int | None:
        """The number of a tensor of one element, which is read; None where it has none or several."""
        size = ITEMSIZE.get(found.dtype)
        if size is None or any(n != 1 for n in found.shape):
            return None
        (piece,) = self.file.pieces(found, self.name)
        with self.file.path.open("rb") as stream:
            data = os.pread(stream.fileno(), size, piece.offset)
        if len(data) < size:
            raise CheckpointUnreadable(self.file.path, why=f"it is cut short: it has no byte {piece.offset:,}")
        value = np.frombuffer(data, dtype_of(found.dtype))[0]
        return None if np.iscomplexobj(value) else _python(value.item())


def values(source: Source, value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Each value with its path: dicts by their keys, lists of what is not plain by numbers, all else whole.

    A tensor of one element is its number, another one a ``Tensor`` of the neutral form. A dict whose keys are no names
    (numbers, or with dots in them) is kept whole, because its keys could not be told from the path again.
    """
    whole = simplified(source, value)
    if isinstance(value, Mapping) and value and _are_names(value) and depth < _DEEPEST:
        for key, each in value.items():
            yield from values(source, each, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, (list, tuple)) and not is_plain(whole) and depth < _DEEPEST:
        for number, each in enumerate(value):
            yield from values(source, each, f"{path}.{number}" if path else str(number), depth + 1)
    elif isinstance(whole, TensorAt):
        yield path, source.tensor(path, whole)
    else:
        yield path, whole


def simplified(source: Source, value: Any, depth: int = 0) -> Any:
    """Dicts as dicts, lists as lists, tensors of one element as numbers; what is not plain stays as it is."""
    if isinstance(value, TensorAt):
        number = source.number(value)
        return value if number is None else number
    if depth > _DEEPEST:
        return value
    if isinstance(value, Mapping):
        return {key: simplified(source, each, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        items = [simplified(source, each, depth + 1) for each in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def is_plain(value: Any) -> bool:
    """Text, numbers, None, and lists and dicts of them."""
    if isinstance(value, Mapping):
        return all(isinstance(key, (str, int)) and is_plain(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return isinstance(value, _PLAIN)


def _are_names(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and key and "." not in key and not key.isdigit() for key in value)


def _python(value: Any) -> float | int:
    return value if isinstance(value, (int, float)) else float(value)
