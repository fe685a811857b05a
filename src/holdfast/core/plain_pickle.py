"""Load pickles of plain data from untrusted sources; nothing is imported, built or executed.

Two defenses. First, every opcode of the stream is checked before any is executed: only opcodes that
build numbers, texts, lists, tuples and dicts pass. This check also bounds memory: it counts
objects, and limits the memo indices, because the unpickler keeps the memo in an array. Second, the
stream is read by an unpickler that resolves no names.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import re
from pathlib import Path
from typing import Any, NoReturn

from holdfast.core import native_extension

#: Maximum number of containers and texts in one stream; each takes up to about 64 bytes.
MAX_OBJECTS = 1 << 21
#: Maximum memo index, and maximum bytes of an integer.
_MAX_MEMO = 1 << 21
_MAX_INTEGER_BYTES = 9
SOURCE = Path(__file__).parent / "native" / "plain_pickle.cpp"

# Opcodes of fixed length that build no container and no text (names as in pickletools): MARK NONE
# NEWTRUE NEWFALSE APPEND APPENDS SETITEM SETITEMS EMPTY_TUPLE MEMOIZE; then those with an argument.
# LONG1 starts with its length; the memo index of LONG_BINPUT is below 2**21.
_LONG1 = b"|".join(rb"\x8a\x%02x.{%d}" % (size, size) for size in (8, *range(8), 9))
_PUT = rb"r..[\x00-\x1f]\x00"
_NO_ARGUMENT = rb"(N\x88\x89aesu)\x94"
_WITH_ARGUMENT = rb"K.|[q\x80].|M..|J....|" + _LONG1 + rb"|G.{8}|\x95.{8}"
#: Ordered by frequency in dumps; several references to frames follow each other.
_PLAIN = rb"(?:h.|j....j....j....j....|j....|%s" + _PUT + rb"|[%s]|%s)*+"
_FIXED = re.compile(_PLAIN % (b"", _NO_ARGUMENT, _WITH_ARGUMENT), re.DOTALL)
#: The same plus containers and texts shorter than 64 bytes, for a first pass that counts nothing.
#: nothing.
_SHORT_TEXT = b"|".join(
    re.escape(bytes([size])) + rb"\x00\x00\x00.{%d}" % size for size in range(64)
)
_COMMON = re.compile(
    _PLAIN
    % (
        rb"\]" + _PUT + b"|",
        _NO_ARGUMENT + rb"\]}t\x85\x86\x87",
        _WITH_ARGUMENT + rb"|X(?:" + _SHORT_TEXT + rb")",
    ),
    re.DOTALL,
)
#: EMPTY_LIST, EMPTY_DICT, TUPLE, TUPLE1, TUPLE2, TUPLE3.
_CONTAINERS = frozenset(b"]}t\x85\x86\x87")
#: BINUNICODE, SHORT_BINUNICODE and BINUNICODE8, with the size of their length field in bytes.
_TEXTS = {0x58: 4, 0x8C: 1, 0x8D: 8}
#: All of them, as byte strings to count.
_OBJECTS = [bytes([opcode]) for opcode in (*_CONTAINERS, *_TEXTS)]
#: Fixed-length opcodes with an argument, and its size in bytes.
_ARGUMENTS = {
    **dict.fromkeys(b"Khq\x80", 1),
    **dict.fromkeys(b"Jjr", 4),
    ord("M"): 2,
    ord("G"): 8,
    0x95: 8,
}
_LONG1_OPCODE = 0x8A
_STOP = 0x2E
_PROTOCOL = b"\x80"


class PickleTruncated(ValueError):
    """The stream ends before its last opcode: still being written, or truncated."""


class PickleRefused(ValueError):
    """The stream is not a pickle, or holds more than plain data."""


def looks_like_pickle(data: bytes) -> bool:
    """Return whether the stream starts like a binary pickle."""
    return data[:1] == _PROTOCOL


def load_plain_pickle(data: bytes) -> Any:
    """Load the pickle: dict, list, tuple, str, int, float, bool and None only.

    Raises:
        PickleTruncated: the stream ends too early.
        PickleRefused: it has another opcode, more than MAX_OBJECTS objects, or is inconsistent.
    """
    if not native_check.accepts(data):
        check_opcodes(data)
    try:
        return _PlainUnpickler(_PeekableBytes(data)).load()
    except (
        pickle.UnpicklingError,
        TypeError,
        ValueError,
        OverflowError,
        LookupError,
        AttributeError,
        EOFError,
        MemoryError,
    ) as error:
        raise PickleRefused(f"it is inconsistent ({type(error).__name__})") from error


class NativeOpcodeCheck:
    """The opcode check in C++, compiled once enough bytes were checked to be worth it."""

    def __init__(self, worth_compiling: int = 16 << 20) -> None:
        self._library: ctypes.CDLL | None = None
        self._loaders = [(0, _load_library), (worth_compiling, _build_library)]
        self._checked_bytes = 0

    def accepts(self, data: bytes) -> bool:
        """Return True if the stream passes; False if it does not, or nothing is compiled."""
        self._checked_bytes += len(data)
        while self._library is None and self._loaders and self._checked_bytes > self._loaders[0][0]:
            self._library = self._loaders.pop(0)[1]()
        if self._library is None:
            return False
        return bool(
            self._library.holdfast_is_plain(
                data, len(data), MAX_OBJECTS, _MAX_MEMO, _MAX_INTEGER_BYTES
            )
        )


def _build_library() -> ctypes.CDLL | None:
    arguments = ["-std=c++17", str(SOURCE)]
    return (
        _load_library()
        if native_extension.build_extension(_library_path(), arguments, progress=lambda _: None)
        else None
    )


def _load_library() -> ctypes.CDLL | None:
    """Load the compiled check; None if it does not exist or cannot be loaded."""
    try:
        library = ctypes.CDLL(str(_library_path()))
    except OSError:
        return None
    size, number = ctypes.c_size_t, ctypes.c_uint64
    library.holdfast_is_plain.argtypes = [ctypes.c_char_p, size, number, number, number]
    library.holdfast_is_plain.restype = ctypes.c_int
    return library


def _library_path() -> Path:
    return native_extension.extension_path("plain-pickle", [SOURCE])


native_check = NativeOpcodeCheck()


def check_opcodes(data: bytes) -> None:
    """Check all opcodes in Python without executing them.

    Raises PickleTruncated or PickleRefused.
    """
    at, objects = 0, 0
    # If there are too few candidate bytes for MAX_OBJECTS objects, common opcodes need no count.
    few = len(data) <= MAX_OBJECTS or sum(map(data.count, _OBJECTS)) <= MAX_OBJECTS
    uncounted = _COMMON if few else _FIXED
    while True:
        run = uncounted.match(data, at)
        at = run.end() if run is not None else at
        if at >= len(data):
            raise PickleTruncated("it ends in the middle of an opcode")
        opcode = data[at]
        if opcode == _STOP:
            if at + 1 != len(data):
                raise PickleRefused("data follows its end")
            return
        objects += 1
        if objects > MAX_OBJECTS:
            raise PickleRefused(f"it holds more than {MAX_OBJECTS} objects")
        at = _end_of_object(data, at, opcode)


def _end_of_object(data: bytes, at: int, opcode: int) -> int:
    """Return where the opcode at ``at``, a container or a text, ends."""
    if opcode in _CONTAINERS:
        return at + 1
    width = _TEXTS.get(opcode)
    if width is None:
        _reject(data, at, opcode)
    end = at + 1 + width
    length = int.from_bytes(data[at + 1 : end], "little")
    if end + length > len(data):
        raise PickleTruncated("it ends in the middle of a text")
    return end + length


def _reject(data: bytes, at: int, opcode: int) -> NoReturn:
    """Raise PickleTruncated if the opcode's argument is incomplete, else PickleRefused."""
    argument_bytes = _ARGUMENTS.get(opcode, 0)
    if opcode == _LONG1_OPCODE:
        argument_bytes = 1 + int.from_bytes(data[at + 1 : at + 2])
    if at + 1 + argument_bytes > len(data):
        raise PickleTruncated("it ends in the middle of a number")
    raise PickleRefused(f"it holds more than plain data (opcode {opcode:#04x} at byte {at})")


class _PeekableBytes(io.BytesIO):
    """Bytes with ``peek``, without which the unpickler reads each opcode separately."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._data = data

    def peek(self, size: int = 0) -> bytes:
        """Return all remaining bytes, whatever the size."""
        del size
        at = self.tell()
        return self._data[at:] if at else self._data


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that resolves no names and no persistent objects."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse."""
        raise pickle.UnpicklingError(f"{module}.{name} is referenced")

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse."""
        raise pickle.UnpicklingError(f"the object {pid!r} is referenced")
