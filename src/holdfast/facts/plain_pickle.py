"""Reads pickles that hold plain data and nothing else, from anybody: no pickle can run, import or build anything here.

Two walls. Every opcode of the stream is looked at before one is carried out, and only those that make numbers, texts,
lists, tuples and dicts are let through; what passes is read by an unpickler that resolves no name at all. The first
wall also bounds what a small file can be made to grow into: its objects are counted, and the numbers of the memo, which
the unpickler keeps in an array, stay small.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import re
from pathlib import Path
from typing import Any, NoReturn

from holdfast import compiled

#: Containers and texts in one stream. The widest takes 64 bytes or so.
MOST_OBJECTS = 1 << 21
#: Numbers of the memo, and bytes of an integer.
_MOST_MEMO = 1 << 21
_LONGEST_LONG = 9
SOURCE = Path(__file__).parent / "native" / "plain_pickle.cpp"

# Opcodes of fixed length that make no container and no text (pickletools names them): MARK NONE NEWTRUE NEWFALSE APPEND
# APPENDS SETITEM SETITEMS EMPTY_TUPLE MEMOIZE; then those with an argument. LONG1 has its length in front, and a number
# of the memo in LONG_BINPUT is below 2**21.
_LONG1 = b"|".join(rb"\x8a\x%02x.{%d}" % (size, size) for size in (8, *range(8), 9))
_PUT = rb"r..[\x00-\x1f]\x00"
_ALONE = rb"(N\x88\x89aesu)\x94"
_LONGER = rb"K.|[q\x80].|M..|J....|" + _LONG1 + rb"|G.{8}|\x95.{8}"
#: In the order of how often a dump has them; several references to frames follow each other.
_PLAIN = rb"(?:h.|j....j....j....j....|j....|%s" + _PUT + rb"|[%s]|%s)*+"
_FIXED = re.compile(_PLAIN % (b"", _ALONE, _LONGER), re.DOTALL)
#: The same with containers and with texts of less than 64 bytes, for a first run that counts nothing.
_SHORT_TEXT = b"|".join(re.escape(bytes([size])) + rb"\x00\x00\x00.{%d}" % size for size in range(64))
_COMMON = re.compile(
    _PLAIN % (rb"\]" + _PUT + b"|", _ALONE + rb"\]}t\x85\x86\x87", _LONGER + rb"|X(?:" + _SHORT_TEXT + rb")"), re.DOTALL
)
#: EMPTY_LIST, EMPTY_DICT, TUPLE, TUPLE1, TUPLE2, TUPLE3.
_CONTAINERS = frozenset(b"]}t\x85\x86\x87")
#: BINUNICODE, SHORT_BINUNICODE and BINUNICODE8, with how many bytes their length takes.
_TEXTS = {0x58: 4, 0x8C: 1, 0x8D: 8}
#: All of them, as bytes to look for.
_OBJECTS = [bytes([opcode]) for opcode in (*_CONTAINERS, *_TEXTS)]
#: Those of the fixed ones that have an argument, with its bytes.
_ARGUMENTS = {**dict.fromkeys(b"Khq\x80", 1), **dict.fromkeys(b"Jjr", 4), ord("M"): 2, ord("G"): 8, 0x95: 8}
_LONG1_OPCODE = 0x8A
_STOP = 0x2E
_PROTOCOL = b"\x80"


class Truncated(ValueError):
    """The stream ends before its last opcode: it is still being written, or was cut."""


class Refused(ValueError):
    """The stream is no pickle, or one that holds more than plain data."""


def looks_like_pickle(data: bytes) -> bool:
    """True where the stream begins as a binary pickle does."""
    return data[:1] == _PROTOCOL


def loads(data: bytes) -> Any:
    """What the pickle holds, made of dict, list, tuple, str, int, float, bool and None.

    Raises:
        Truncated: the stream ends too early.
        Refused: it has any other opcode, more objects than MOST_OBJECTS, or does not fit together.
    """
    if not wall.lets_through(data):
        look(data)
    try:
        return _Plain(_Whole(data)).load()
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
        raise Refused(f"it does not fit together ({type(error).__name__})") from error


class Wall:
    """The first wall, compiled: as soon as so many bytes have been looked at that compiling is worth its time."""

    def __init__(self, worth_compiling: int = 16 << 20) -> None:
        self._library: ctypes.CDLL | None = None
        self._ways = [(0, _load), (worth_compiling, _built)]
        self._seen = 0

    def lets_through(self, data: bytes) -> bool:
        """True where all is well; False where it is not, or where nothing is compiled."""
        self._seen += len(data)
        while self._library is None and self._ways and self._seen > self._ways[0][0]:
            self._library = self._ways.pop(0)[1]()
        if self._library is None:
            return False
        return bool(self._library.holdfast_is_plain(data, len(data), MOST_OBJECTS, _MOST_MEMO, _LONGEST_LONG))


def _built() -> ctypes.CDLL | None:
    arguments = ["-std=c++17", str(SOURCE)]
    return _load() if compiled.build(_place(), arguments, progress=lambda _: None) else None


def _load() -> ctypes.CDLL | None:
    """The compiled wall; None where there is none yet, or it cannot be loaded here."""
    try:
        library = ctypes.CDLL(str(_place()))
    except OSError:
        return None
    size, number = ctypes.c_size_t, ctypes.c_uint64
    library.holdfast_is_plain.argtypes = [ctypes.c_char_p, size, number, number, number]
    library.holdfast_is_plain.restype = ctypes.c_int
    return library


def _place() -> Path:
    return compiled.place("plain-pickle", [SOURCE])


wall = Wall()


def look(data: bytes) -> None:
    """The first wall in Python: all opcodes, without carrying one out. Raises Truncated or Refused."""
    at, objects = 0, 0
    # Where there are not even as many bytes that could make an object, those of the common opcodes need no count.
    few = len(data) <= MOST_OBJECTS or sum(map(data.count, _OBJECTS)) <= MOST_OBJECTS
    harmless = _COMMON if few else _FIXED
    while True:
        run = harmless.match(data, at)
        at = run.end() if run is not None else at
        if at >= len(data):
            raise Truncated("it ends in the middle")
        opcode = data[at]
        if opcode == _STOP:
            if at + 1 != len(data):
                raise Refused("something follows its end")
            return
        objects += 1
        if objects > MOST_OBJECTS:
            raise Refused(f"it holds more than {MOST_OBJECTS} objects")
        at = _beyond(data, at, opcode)


def _beyond(data: bytes, at: int, opcode: int) -> int:
    """Where the opcode at ``at``, a container or a text, ends."""
    if opcode in _CONTAINERS:
        return at + 1
    width = _TEXTS.get(opcode)
    if width is None:
        _complain(data, at, opcode)
    end = at + 1 + width
    length = int.from_bytes(data[at + 1 : end], "little")
    if end + length > len(data):
        raise Truncated("it ends in the middle of a text")
    return end + length


def _complain(data: bytes, at: int, opcode: int) -> NoReturn:
    """An opcode with an argument that is not all there was cut off; any other is none of plain data."""
    wanted = _ARGUMENTS.get(opcode, 0)
    if opcode == _LONG1_OPCODE:
        wanted = 1 + int.from_bytes(data[at + 1 : at + 2])
    if at + 1 + wanted > len(data):
        raise Truncated("it ends in the middle of a number")
    raise Refused(f"it holds more than plain data (opcode {opcode:#04x} at byte {at})")


class _Whole(io.BytesIO):
    """Bytes that the unpickler may look at without taking them: else it asks for each opcode alone."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._data = data

    def peek(self, size: int = 0) -> bytes:
        """All that is left, however little is asked for."""
        del size
        at = self.tell()
        return self._data[at:] if at else self._data


class _Plain(pickle.Unpickler):
    """The second wall: no name is resolved, no object is fetched from elsewhere."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse."""
        raise pickle.UnpicklingError(f"{module}.{name} is asked for")

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse."""
        raise pickle.UnpicklingError(f"the object {pid!r} is asked for")
