"""Pickles as torch.save makes them, made without torch: protocol 2, tensors as references to storages.

Neither torch nor DeepSpeed has to be here for a file that names their classes. Python's pickler, the fast one in C,
looks each name up, so that it is given stand-ins from a module with a name that is in no other text; in protocol 2 a
name stands as text behind one opcode, and is exchanged for the right one in what was written.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

import msgspec

_PROTOCOL = 2
_STAND_INS = ModuleType(f"holdfast_stand_ins_{uuid.uuid4().hex}")
_WRITTEN = re.compile(rb"c%s\n(n\d+)\n" % _STAND_INS.__name__.encode())
_NAMES: dict[bytes, bytes] = {}
sys.modules[_STAND_INS.__name__] = _STAND_INS


@cache
def named(module: str, name: str) -> type:
    """What stands for a name in a module: a class, a function or a dtype of torch."""
    own = f"n{len(_NAMES)}"
    found = type(own, (), {"__module__": _STAND_INS.__name__})
    setattr(_STAND_INS, own, found)
    _NAMES[own.encode()] = f"{module}\n{name}\n".encode()
    return found


def instance(kind: type, state: Mapping[str, Any]) -> Any:
    """An object that is made without calling its __init__: ``cls.__new__(cls)``, then its attributes are set."""
    made = kind()
    vars(made).update(state)
    return made


class Call(msgspec.Struct, frozen=True, eq=False):
    """What is made by calling a function or class when the pickle is loaded."""

    function: type
    arguments: tuple[Any, ...]
    #: Handed to the object's __setstate__, or put into its __dict__.
    state: Any = None


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
    """The pickle of plain values, what is made here, and OrderedDict."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=_PROTOCOL).dump(value)
    return _WRITTEN.sub(lambda match: b"c" + _NAMES[match[1]], stream.getvalue())


def tensor(storage: StorageOf, shape: tuple[int, ...], offset: int = 0, *, requires_grad: bool = False) -> Call:
    """A row-major tensor of a storage, as torch itself describes one (torch/_tensor.py, _utils.py)."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    arguments: tuple[Any, ...] = (storage, offset, tuple(shape), tuple(reversed(strides)), requires_grad, OrderedDict())
    if storage.dtype in _STORAGES:
        return Call(named("torch._utils", "_rebuild_tensor_v2"), arguments)
    return Call(named("torch._utils", "_rebuild_tensor_v3"), (*arguments, named("torch", storage.dtype)))


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        """Storages stand outside of the pickle."""
        if type(value) is not StorageOf:
            return None
        # A dtype without a storage class of its own is kept untyped; its elements are counted in bytes then.
        kind = _STORAGES.get(value.dtype)
        numel = value.numel if kind else value.numel * _UNTYPED_SIZES.get(value.dtype, 1)
        where = named("torch", kind) if kind else named("torch.storage", "UntypedStorage")
        return ("storage", where, value.key, "cpu", numel)

    def reducer_override(self, value: Any) -> Any:
        """A call is written as what is made by it."""
        return (value.function, value.arguments, value.state) if type(value) is Call else NotImplemented


_UNTYPED_SIZES = {"uint16": 2, "uint32": 4, "uint64": 8}
