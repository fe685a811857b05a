"""Pickles as torch.save makes them, made without torch: protocol 2, tensors as references to storages.

Python's own pickler writes them. It is the one in Python, whose ``save_global`` can be told not to look a name up:
neither torch nor DeepSpeed has to be here for a file that names their classes.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

_PROTOCOL = 2


class Global(msgspec.Struct, frozen=True):
    """A name in a module: a class, a function or a dtype of torch."""

    module: str
    name: str


class Call(msgspec.Struct, frozen=True, eq=False):
    """What is made by calling a function or class when the pickle is loaded."""

    function: Global
    arguments: tuple[Any, ...]
    #: Handed to the object's __setstate__, or put into its __dict__.
    state: Any = None


class Object(msgspec.Struct, frozen=True, eq=False):
    """An object that is made without calling its __init__: ``cls.__new__(cls)``, then its attributes are set."""

    kind: Global
    state: Mapping[str, Any]


class StorageOf(msgspec.Struct, frozen=True):
    """A reference to the record ``data/<key>`` of the archive: ``numel`` elements of ``dtype``."""

    dtype: str
    key: str
    numel: int


_STORAGES = {
    "float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage",
    "int64": "LongStorage", "int32": "IntStorage", "int16": "ShortStorage", "int8": "CharStorage",
    "uint8": "ByteStorage", "bool": "BoolStorage", "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}  # fmt: skip


def dumps(value: Any) -> bytes:
    """The pickle of plain values, the classes above, and OrderedDict."""
    stream = io.BytesIO()
    _Pickler(stream).dump(value)
    return stream.getvalue()


def tensor(storage: StorageOf, shape: tuple[int, ...], offset: int = 0, *, requires_grad: bool = False) -> Call:
    """A row-major tensor of a storage, as torch itself describes one (torch/_tensor.py, _utils.py)."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    arguments: tuple[Any, ...] = (storage, offset, tuple(shape), tuple(reversed(strides)), requires_grad, OrderedDict())
    if storage.dtype in _STORAGES:
        return Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments)
    return Call(Global("torch._utils", "_rebuild_tensor_v3"), (*arguments, Global("torch", storage.dtype)))


_Base: Any = pickle._Pickler  # noqa: SLF001 - the one in Python, whose parts can be overridden


class _Pickler(_Base):  # type: ignore[misc]
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=_PROTOCOL)

    def persistent_id(self, value: Any) -> Any:
        """Storages stand outside of the pickle."""
        if not isinstance(value, StorageOf):
            return None
        # A dtype without a storage class of its own is kept untyped; its elements are counted in bytes then.
        kind = _STORAGES.get(value.dtype)
        numel = value.numel if kind else value.numel * _UNTYPED_SIZES.get(value.dtype, 1)
        where = Global("torch", kind) if kind else Global("torch.storage", "UntypedStorage")
        return ("storage", where, value.key, "cpu", numel)

    def save(self, value: Any, save_persistent_id: bool = True) -> None:  # noqa: FBT001, FBT002 - as the base has it
        """Ours are written by hand, the rest as Python does."""
        if isinstance(value, Global):
            known = self.memo.get(id(value))
            if known is None:
                self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
            else:
                self.write(self.get(known[0]))
        elif isinstance(value, Call):
            self.save(value.function)
            self.save(value.arguments)
            self.write(pickle.REDUCE)
            self._set(value.state)
        elif isinstance(value, Object):
            self.save(value.kind)
            self.save(())
            self.write(pickle.NEWOBJ)
            self._set(dict(value.state))
        else:
            super().save(value, save_persistent_id)

    def _set(self, state: Any) -> None:
        if state is not None:
            self.save(state)
            self.write(pickle.BUILD)


_UNTYPED_SIZES = {"uint16": 2, "uint32": 4, "uint64": 8}
