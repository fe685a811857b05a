"""Parses the pickles in torch files from untrusted sources without executing anything.

Three defenses: all opcodes are scanned before any is executed, so a small file cannot expand into a
large memory; names are never imported (the few that build tensors and containers are implemented
here, all others become an inert ``Opaque``); and a name that no checkpoint needs (``os.system``)
refuses the file, because torch.load with ``weights_only=False`` and DeepSpeed's loader would call
it.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.ckpt.files.expansion_limit import expansion_problem
from holdfast.ckpt.files.pickle_names import DTYPE, LIBRARIES, STORAGES, is_refused

#: Maximum pickle size; a description of 100,000 tensors has about 20 MB.
MAX_BYTES = 1 << 29
MAX_OBJECTS = 1 << 24
_MAX_NAMES = 4096
#: Opcodes that create a container from one byte, 50 to 100 bytes of memory each.
_CONTAINERS = (b"]", b"}", b"\x8f", b"\x85", b"\x86", b"\x87", b"t")
_MAX_CONTAINERS = 1 << 21

# Opcodes without argument or with one of fixed length (names: pickletools). Excluded: class
# lookup by number (EXT*), external data (PERSID, NEXT_BUFFER), protocol 0 (INST, OBJ, GET).
_NO_ARGUMENT = re.escape(
    b"(0 12NR]}abdelstu)\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94Q".replace(b" ", b"")
)
_FIXED = re.compile(
    rb"(?:[%s]|[Khq\x80].|M..|J....|j....|G.{8}|\x95.{8}|r..[\x00-\x3f]\x00)*+" % _NO_ARGUMENT,
    re.DOTALL,
)
#: Length-prefixed opcodes: *BINUNICODE*, bytes, old strings, bytearray, LONG1.
_SIZED = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x43: 1, 0x42: 4, 0x8E: 8, 0x55: 1, 0x54: 4, 0x96: 8, 0x8A: 1}
_GLOBAL, _STOP, _PUT = 0x63, 0x2E, 0x72
#: Total length of the fixed-length opcodes.
_LENGTHS = {
    0x4B: 2,
    0x68: 2,
    0x71: 2,
    0x80: 2,
    0x4D: 3,
    0x4A: 5,
    0x6A: 5,
    0x72: 5,
    0x47: 9,
    0x95: 9,
}


class GlobalRefused(ValueError):
    """The stream references names that no checkpoint needs; they are in ``names``."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(f"loading it would run {', '.join(names)}, which no checkpoint needs")
        self.names = names


class PickleUnreadable(ValueError):
    """The stream is not a pickle, is truncated, or is inconsistent."""


class TorchPickleTruncated(PickleUnreadable):
    """The stream ends before its pickle does."""

    def __init__(self) -> None:
        super().__init__("it is truncated")


class PlainDict(dict[Any, Any]):
    """A dict of any kind; attributes set by the pickle (``_metadata``) are dropped."""

    def __setstate__(self, state: object) -> None:
        """Ignore the state."""


class StorageRef(msgspec.Struct, frozen=True, gc=False):
    """Tensor data in a file: dtype (``uint8`` if untyped), record key, element count."""

    dtype: str
    key: str
    numel: int


class TensorRef(msgspec.Struct, frozen=True, gc=False):
    """A tensor as the pickle describes it: a view of a storage."""

    storage: StorageRef
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False


class PickledDtype(msgspec.Struct, frozen=True):
    """``torch.float32`` as a value."""

    name: str


class OpaqueObject:
    """An object of an unknown class: keeps its constructor arguments, state and items."""

    path = ""

    def __new__(cls, *args: Any, **named: Any) -> OpaqueObject:  # noqa: PYI034 - subclasses stay Opaque
        """Keep the arguments."""
        opaque_classes = object.__new__(cls)
        opaque_classes.__dict__.update(args=args, named=named, state=None, items=[])
        return opaque_classes

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        """Keep the state."""
        self.__dict__["state"] = state

    def append(self, item: object) -> None:
        """Keep the item."""
        self.__dict__["items"].append(item)

    def extend(self, items: Any) -> None:
        """Keep the items."""
        self.__dict__["items"].extend(items)

    def __setitem__(self, key: object, value: object) -> None:
        self.__dict__["items"].append((key, value))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{self.path}>"


class LoadedPickle(msgspec.Struct, frozen=True):
    """The parsed value. ``foreign``: classes from libraries unusual in checkpoints."""

    value: Any
    foreign: tuple[str, ...] = ()


def loads(data: bytes, more: Mapping[str, Callable[..., Any]] | None = None) -> LoadedPickle:
    """Parse a pickle, with ``TensorRef`` for tensors; ``more`` maps further names to constructors.

    Raises:
        Refused: it references names that no checkpoint needs.
        Unreadable: it is not a pickle, is truncated, or too large.
    """
    return load(io.BytesIO(data), more)


def load(
    stream: io.BufferedIOBase | io.BytesIO, more: Mapping[str, Callable[..., Any]] | None = None
) -> LoadedPickle:
    """Parse the next pickle of a stream; see :func:`loads`."""
    at = stream.tell()
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise PickleUnreadable(f"the pickle is larger than {MAX_BYTES >> 20} MiB")
    end = scan_opcodes(data)
    stream.seek(at + end)
    unpickler = _Unpickler(io.BytesIO(data[:end]), more or {})
    try:
        value = unpickler.load()
    except GlobalRefused:
        raise
    except Exception as error:  # a malformed pickle can raise anything
        if unpickler.refused:
            raise GlobalRefused(tuple(unpickler.refused)) from error
        raise PickleUnreadable(f"it is inconsistent ({type(error).__name__})") from error
    if unpickler.refused:
        raise GlobalRefused(tuple(dict.fromkeys(unpickler.refused)))
    if why := expansion_problem(value, TensorRef):
        raise PickleUnreadable(why)
    return LoadedPickle(value, tuple(unpickler.foreign))


def scan_opcodes(data: bytes) -> int:
    """Check all opcodes without executing any; return the end offset. Raises Unreadable."""
    at, objects, containers = 0, 0, 0
    many = _count_containers(data, 0, len(data)) > _MAX_CONTAINERS  # strings included
    while True:
        run = _FIXED.match(data, at)
        if run is not None:
            containers += _count_containers(data, at, run.end()) if many else 0
            at = run.end()
        if containers > _MAX_CONTAINERS:
            raise PickleUnreadable(f"it contains more than {_MAX_CONTAINERS} containers")
        if at >= len(data):
            raise TorchPickleTruncated
        opcode = data[at]
        if opcode == _STOP:
            return at + 1
        objects += 1
        if objects > MAX_OBJECTS:
            raise PickleUnreadable(f"it contains more than {MAX_OBJECTS} objects")
        at = _opcode_end(data, at, opcode)
        if at > len(data):
            raise TorchPickleTruncated


def _count_containers(data: bytes, start: int, stop: int) -> int:
    return sum(data.count(opcode, start, stop) for opcode in _CONTAINERS)


def _opcode_end(data: bytes, at: int, opcode: int) -> int:
    """Return the end of the opcode at ``at``."""
    if opcode in _SIZED:
        width = _SIZED[opcode]
        return at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
    if opcode == _GLOBAL:
        first = data.find(b"\n", at, at + 1024)
        second = data.find(b"\n", first + 1, first + 1024) if first > 0 else -1
        if second > 0:
            return second + 1
        if len(data) - at < 2 * 1024:
            raise TorchPickleTruncated
    if len(data) - at < _LENGTHS.get(opcode, 0):
        raise TorchPickleTruncated
    raise PickleUnreadable(f"it contains the opcode {bytes([opcode])!r}, which torch never writes")


class _Unpickler(pickle.Unpickler):
    """Resolves names to classes of this module, and persistent ids to ``StorageRef``."""

    def __init__(self, stream: io.BytesIO, more: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(stream)
        self.more = more
        self.refused: list[str] = []
        self.foreign: dict[str, None] = {}
        self.opaque_classes: dict[str, type[OpaqueObject]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return a known constructor or an ``Opaque``; record refused and foreign names."""
        path = f"{module}.{name}"
        constructor = self.more.get(path) or _CLASSES.get(path)
        if constructor is not None:
            return constructor
        if module == "torch" and DTYPE.match(name):
            return PickledDtype(name)
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return _StorageClass(STORAGES.get(name, "uint8"))
        if path not in self.opaque_classes:
            if len(self.opaque_classes) > _MAX_NAMES:
                raise PickleUnreadable(f"it references more than {_MAX_NAMES} classes")
            if is_refused(module, name):
                self.refused.append(path)
            elif module.partition(".")[0] not in LIBRARIES:
                self.foreign[path] = None
            self.opaque_classes[path] = type("Opaque", (OpaqueObject,), {"path": path})
        return self.opaque_classes[path]

    def persistent_load(self, pid: Any) -> Any:
        """Resolve ``('storage', class, key, location, numel)``, torch.save's tensor data.

        Before torch 1.6, classes of modules occur too: ``('module', class, file, source)``.
        """
        if pid[0] == "module":
            return pid[1]
        kind, key, numel = pid[1], pid[2], pid[4]
        if pid[0] != "storage" or not isinstance(kind, _StorageClass) or not isinstance(numel, int):
            raise PickleUnreadable("it contains a persistent id that is not a storage")
        return StorageRef(kind.dtype, str(key), numel)


class _StorageClass(msgspec.Struct, frozen=True):
    dtype: str


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any, dtype: str = ""
) -> TensorRef:
    """Stand in for ``torch._utils._rebuild_tensor_v2``."""
    sizes, steps = tuple(shape), tuple(strides)
    if not (
        isinstance(storage, StorageRef)
        and all(isinstance(n, int) and n >= 0 for n in (offset, *sizes, *steps))
    ):
        raise PickleUnreadable("it describes an invalid tensor")
    if len(sizes) != len(steps):
        raise PickleUnreadable("it describes an invalid tensor")
    return TensorRef(
        storage, dtype or storage.dtype, offset, sizes, steps, bool(rest[:1] == (True,))
    )


def _rebuild_tensor_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, _hooks: Any, dtype: Any, *_: Any
) -> Any:
    return _rebuild_tensor(storage, offset, shape, strides, grad, dtype=dtype.name)


def _rebuild_parameter(data: Any, *rest: Any) -> Any:
    return (
        msgspec.structs.replace(data, requires_grad=rest[:1] != (False,))
        if isinstance(data, TensorRef)
        else data
    )


class _TypedTensor(OpaqueObject):
    """Stands in for ``_rebuild_from_type_v2``: tensor subclasses or attributes (``ds_id``)."""

    path = "torch._tensor._rebuild_from_type_v2"

    def __new__(cls, *args: Any, **named: Any) -> Any:
        """Return the plain tensor if torch's own functions build it."""
        if (
            len(args) == 4
            and args[0] in (_rebuild_tensor, _rebuild_tensor_v3, _rebuild_parameter)
            and isinstance(args[2], tuple)
        ):
            return args[0](*args[2])
        return OpaqueObject.__new__(cls, *args, **named)


def _default_dict(_factory: Any = None, *args: Any) -> PlainDict:
    return PlainDict(*args)


def _torch_size(sizes: Any = ()) -> tuple[int, ...]:
    return tuple(sizes)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Stand in for ``_codecs.encode``, which protocol 2 uses for bytes."""
    return str(text).encode("latin1" if encoding == "latin1" else "utf-8")


_CLASSES: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": PlainDict,
    "collections.Counter": PlainDict,
    "collections.defaultdict": _default_dict,
    "torch.Size": _torch_size,
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._tensor._rebuild_from_type_v2": _TypedTensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch.nn.parameter.Parameter": _rebuild_parameter,
    "torch.serialization._get_layout": str,
    "torch.device": lambda *parts: ":".join(map(str, parts)),
    "_codecs.encode": _encode,
    **{f"{module}.{kind.__name__}": kind for module in ("builtins", "__builtin__") for kind in (
        set, frozenset, complex, list, dict, tuple, int, float, bool, str,
    )},
}  # fmt: skip
