"""Generates pickles as torch.save does, without torch: protocol 2, tensors as storage references.

Neither torch nor DeepSpeed must be installed to reference their classes. Python's C pickler looks
every name up, so it is given stand-ins from a uniquely named module; protocol 2 writes a name as
text after one opcode, where it is replaced by the real name.
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
def stand_in_class(module: str, name: str) -> type:
    """Return the stand-in for a global name: a class, function or dtype of torch."""
    name_in_module = f"n{len(_NAMES)}"
    cls = type(name_in_module, (), {"__module__": _STAND_INS.__name__})
    setattr(_STAND_INS, name_in_module, cls)
    _NAMES[name_in_module.encode()] = f"{module}\n{name}\n".encode()
    return cls


def stand_in_instance(kind: type, state: Mapping[str, Any]) -> Any:
    """Return an object unpickled without __init__: ``cls.__new__(cls)``, then attributes."""
    created = kind()
    vars(created).update(state)
    return created


class ReducedCall(msgspec.Struct, frozen=True, eq=False):
    """A value created by calling a function or class when the pickle is loaded."""

    function: type
    arguments: tuple[Any, ...]
    #: Passed to the object's __setstate__, or merged into its __dict__.
    state: Any = None


class StorageReference(msgspec.Struct, frozen=True):
    """A reference to the record ``data/<key>``: ``numel`` elements of ``dtype``."""

    dtype: str
    key: str
    numel: int


_STORAGES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}


def dumps(value: Any) -> bytes:
    """Return the pickle of plain values, values of this module, and OrderedDict."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=_PROTOCOL).dump(value)
    return _WRITTEN.sub(lambda match: b"c" + _NAMES[match[1]], stream.getvalue())


def pickled_tensor(
    storage: StorageReference,
    shape: tuple[int, ...],
    offset: int = 0,
    *,
    requires_grad: bool = False,
) -> ReducedCall:
    """Return a row-major tensor of a storage, as torch does (torch/_tensor.py, _utils.py)."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    arguments: tuple[Any, ...] = (
        storage,
        offset,
        tuple(shape),
        tuple(reversed(strides)),
        requires_grad,
        OrderedDict(),
    )
    if storage.dtype in _STORAGES:
        return ReducedCall(stand_in_class("torch._utils", "_rebuild_tensor_v2"), arguments)
    return ReducedCall(
        stand_in_class("torch._utils", "_rebuild_tensor_v3"),
        (*arguments, stand_in_class("torch", storage.dtype)),
    )


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        """Write storages as persistent ids."""
        if type(value) is not StorageReference:
            return None
        # A dtype without a storage class is stored untyped, with its size in bytes.
        kind = _STORAGES.get(value.dtype)
        numel = value.numel if kind else value.numel * _UNTYPED_SIZES.get(value.dtype, 1)
        where = (
            stand_in_class("torch", kind)
            if kind
            else stand_in_class("torch.storage", "UntypedStorage")
        )
        return ("storage", where, value.key, "cpu", numel)

    def reducer_override(self, value: Any) -> Any:
        """Write a :class:`Call` as its result."""
        return (
            (value.function, value.arguments, value.state)
            if type(value) is ReducedCall
            else NotImplemented
        )


_UNTYPED_SIZES = {"uint16": 2, "uint32": 4, "uint64": 8}
