"""The pickles inside torch's files, from anybody: what they describe is read, and nothing in them runs.

Three walls. Every opcode is looked at before one is carried out, so that a small file cannot grow into a large memory.
A name is never imported: the few that make tensors and containers are ours, every other one becomes an ``Opaque``,
which keeps what it is given and does nothing. And a name that no checkpoint needs (``os.system``) refuses the file,
because torch.load with ``weights_only=False``, and DeepSpeed's loader, would call it.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.facts.checkpoints.files.torch_names import DTYPE, LIBRARIES, STORAGES, is_refused
from holdfast.facts.checkpoints.files.unfolding import excess

#: A stream larger than this is no description of tensors; one of 100,000 tensors has some 20 MB.
MOST_BYTES = 1 << 29
MOST_OBJECTS = 1 << 24
_MOST_NAMES = 4096

# Opcodes without argument and with one of fixed length (pickletools names them). Those that look a class up by number
# (EXT*), that read from outside (PERSID, NEXT_BUFFER) or are of protocol 0 (INST, OBJ, GET) are not there.
_ALONE = re.escape(b"(0 12NR]}abdelstu)\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94Q".replace(b" ", b""))
_FIXED = re.compile(
    rb"(?:[%s]|[Khq\x80].|M..|J....|j....|G.{8}|\x95.{8}|r..[\x00-\x3f]\x00)*+" % _ALONE, re.DOTALL
)  # fmt: skip
#: Those with a length in front: SHORT_BINUNICODE BINUNICODE BINUNICODE8, bytes, old strings, bytearray, LONG1.
_SIZED = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x43: 1, 0x42: 4, 0x8E: 8, 0x55: 1, 0x54: 4, 0x96: 8, 0x8A: 1}
_GLOBAL, _STOP, _PUT = 0x63, 0x2E, 0x72
#: Bytes of those with a fixed length.
_LENGTHS = {0x4B: 2, 0x68: 2, 0x71: 2, 0x80: 2, 0x4D: 3, 0x4A: 5, 0x6A: 5, 0x72: 5, 0x47: 9, 0x95: 9}


class Refused(ValueError):
    """The stream names what no checkpoint needs; ``names`` are those."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(
            f"it names {', '.join(names)}, which no checkpoint needs and which would run when it is loaded"
        )
        self.names = names


class Unreadable(ValueError):
    """The stream is no pickle, is cut short, or does not fit together."""


class CutShort(Unreadable):
    """The stream ends before its pickle does."""

    def __init__(self) -> None:
        super().__init__("it ends in the middle")


class Names(dict[Any, Any]):
    """A dict of any kind; attributes that the pickle would set (``_metadata`` of a state_dict) are left out."""

    def __setstate__(self, state: object) -> None:
        """Take nothing."""


class Storage(msgspec.Struct, frozen=True, gc=False):
    """Numbers in a file: their dtype (``uint8`` for untyped ones), the key of the record, and how many there are."""

    dtype: str
    key: str
    numel: int


class TensorAt(msgspec.Struct, frozen=True, gc=False):
    """A tensor as the pickle describes it: a storage, and which of its elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False


class Dtype(msgspec.Struct, frozen=True):
    """``torch.float32`` as a value."""

    name: str


class Opaque:
    """An object of a class that is not looked into: what made it (``args``), was set on it, was put into it."""

    path = ""

    def __new__(cls, *args: Any, **named: Any) -> Opaque:  # noqa: PYI034 - each class is one of these
        """Keep what it is given."""
        made = object.__new__(cls)
        made.__dict__.update(args=args, named=named, state=None, items=[])
        return made

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        """Keep it."""
        self.__dict__["state"] = state

    def append(self, item: object) -> None:
        """Keep it."""
        self.__dict__["items"].append(item)

    def extend(self, items: Any) -> None:
        """Keep them."""
        self.__dict__["items"].extend(items)

    def __setitem__(self, key: object, value: object) -> None:
        self.__dict__["items"].append((key, value))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{self.path}>"


class Loaded(msgspec.Struct, frozen=True):
    """What a stream holds. ``foreign`` are the classes in it that are of no library that checkpoints are made with."""

    value: Any
    foreign: tuple[str, ...] = ()


def loads(data: bytes, more: Mapping[str, Callable[..., Any]] | None = None) -> Loaded:
    """What the pickle describes, with ``TensorAt`` for tensors; ``more`` makes the objects of further names.

    Raises:
        Refused: it names what no checkpoint needs.
        Unreadable: it is none, cut short, or too large.
    """
    return load(io.BytesIO(data), more)


def load(stream: io.BufferedIOBase | io.BytesIO, more: Mapping[str, Callable[..., Any]] | None = None) -> Loaded:
    """The next pickle of a stream that holds several, or one; see :func:`loads`."""
    at = stream.tell()
    data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Unreadable(f"its description has more than {MOST_BYTES >> 20} MiB")
    end = look(data)
    stream.seek(at + end)
    unpickler = _Unpickler(io.BytesIO(data[:end]), more or {})
    try:
        value = unpickler.load()
    except Refused:
        raise
    except Exception as error:  # a pickle may fail in any way
        if unpickler.refused:
            raise Refused(tuple(unpickler.refused)) from error
        raise Unreadable(f"it does not fit together ({type(error).__name__})") from error
    if unpickler.refused:
        raise Refused(tuple(dict.fromkeys(unpickler.refused)))
    if why := excess(value):
        raise Unreadable(why)
    return Loaded(value, tuple(unpickler.foreign))


def look(data: bytes) -> int:
    """The first wall: all opcodes without carrying one out; gives where the stream ends. Raises Unreadable."""
    at, objects = 0, 0
    while True:
        run = _FIXED.match(data, at)
        at = run.end() if run is not None else at
        if at >= len(data):
            raise CutShort
        opcode = data[at]
        if opcode == _STOP:
            return at + 1
        objects += 1
        if objects > MOST_OBJECTS:
            raise Unreadable(f"it holds more than {MOST_OBJECTS} objects")
        at = _beyond(data, at, opcode)
        if at > len(data):
            raise CutShort


def _beyond(data: bytes, at: int, opcode: int) -> int:
    """Where the opcode at ``at`` ends."""
    if opcode in _SIZED:
        width = _SIZED[opcode]
        return at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
    if opcode == _GLOBAL:
        first = data.find(b"\n", at, at + 1024)
        second = data.find(b"\n", first + 1, first + 1024) if first > 0 else -1
        if second > 0:
            return second + 1
        if len(data) - at < 2 * 1024:
            raise CutShort
    if len(data) - at < _LENGTHS.get(opcode, 0):
        raise CutShort
    raise Unreadable(f"it has the opcode {bytes([opcode])!r}, which torch does not write")


class _Unpickler(pickle.Unpickler):
    """Resolves names to our own classes alone, and persistent ids to ``Storage``."""

    def __init__(self, stream: io.BytesIO, more: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(stream)
        self.more = more
        self.refused: list[str] = []
        self.foreign: dict[str, None] = {}
        self.made: dict[str, type[Opaque]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Ours, or an ``Opaque``; what is no class of a known kind is noted down and refused at the end."""
        path = f"{module}.{name}"
        ours = self.more.get(path) or _OURS.get(path)
        if ours is not None:
            return ours
        if module == "torch" and DTYPE.match(name):
            return Dtype(name)
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return _StorageKind(STORAGES.get(name, "uint8"))
        if path not in self.made:
            if len(self.made) > _MOST_NAMES:
                raise Unreadable(f"it names more than {_MOST_NAMES} classes")
            if is_refused(module, name):
                self.refused.append(path)
            elif module.partition(".")[0] not in LIBRARIES:
                self.foreign[path] = None
            self.made[path] = type("Opaque", (Opaque,), {"path": path})
        return self.made[path]

    def persistent_load(self, pid: Any) -> Any:
        """``('storage', kind, key, location, numel)``: torch.save's way to leave the numbers out of the pickle.

        Before torch 1.6 the classes of modules stand there, too: ``('module', class, file, source)``.
        """
        if pid[0] == "module":
            return pid[1]
        kind, key, numel = pid[1], pid[2], pid[4]
        if pid[0] != "storage" or not isinstance(kind, _StorageKind) or not isinstance(numel, int):
            raise Unreadable("it has a reference that is no storage")
        return Storage(kind.dtype, str(key), numel)


class _StorageKind(msgspec.Struct, frozen=True):
    dtype: str


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any, dtype: str = "") -> TensorAt:
    """``torch._utils._rebuild_tensor_v2``."""
    sizes, steps = tuple(shape), tuple(strides)
    if not (isinstance(storage, Storage) and all(isinstance(n, int) and n >= 0 for n in (offset, *sizes, *steps))):
        raise Unreadable("it describes a tensor that cannot be")
    if len(sizes) != len(steps):
        raise Unreadable("it describes a tensor that cannot be")
    return TensorAt(storage, dtype or storage.dtype, offset, sizes, steps, bool(rest[:1] == (True,)))


def _tensor_v3(storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, _hooks: Any, dtype: Any, *_: Any) -> Any:
    return _tensor(storage, offset, shape, strides, grad, dtype=dtype.name)


def _parameter(data: Any, *rest: Any) -> Any:
    return msgspec.structs.replace(data, requires_grad=rest[:1] != (False,)) if isinstance(data, TensorAt) else data


class _Typed(Opaque):
    """``torch._tensor._rebuild_from_type_v2``: a tensor of a subclass, or one with attributes (``ds_id``)."""

    path = "torch._tensor._rebuild_from_type_v2"

    def __new__(cls, *args: Any, **named: Any) -> Any:
        """The tensor without its attributes, where it is one that torch's own functions make."""
        if len(args) == 4 and args[0] in (_tensor, _tensor_v3, _parameter) and isinstance(args[2], tuple):
            return args[0](*args[2])
        return Opaque.__new__(cls, *args, **named)


def _default(_factory: Any = None, *args: Any) -> Names:
    return Names(*args)


def _size(sizes: Any = ()) -> tuple[int, ...]:
    return tuple(sizes)


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """``_codecs.encode``, which protocol 2 has for bytes."""
    return str(text).encode("latin1" if encoding == "latin1" else "utf-8")


_OURS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": Names,
    "collections.Counter": Names,
    "collections.defaultdict": _default,
    "torch.Size": _size,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._tensor._rebuild_from_type_v2": _Typed,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
    "torch.serialization._get_layout": str,
    "torch.device": lambda *place: ":".join(map(str, place)),
    "_codecs.encode": _encoded,
    **{f"{module}.{kind.__name__}": kind for module in ("builtins", "__builtin__") for kind in (
        set, frozenset, complex, list, dict, tuple, int, float, bool, str,
    )},
}  # fmt: skip
