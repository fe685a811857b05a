"""Streams that bad input cannot break: they end where they cannot go on and say why. What they unpack is bounded."""

from __future__ import annotations

import codecs
import io
import lzma
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol, Self, cast

CHUNK_BYTES = 1 << 20

#: What reading damaged or hostile streams raises.
FAULTS = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError,
          NotImplementedError, RuntimeError, UnicodeError)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """How much is looked at. An archive may unpack to ``free_bytes``, or ``ratio`` times its own size, in all."""

    files: int = 1_000_000
    depth: int = 2
    free_bytes: int = 256 << 20
    ratio: int = 250
    spool_bytes: int = 2 << 30


class TooMuch(OSError):
    """An archive unpacks to more than it may."""


@dataclass
class Budget:
    """How many bytes one archive may still unpack to, with all that lies in it."""

    left: int
    ratio: int

    def spend(self, size: int) -> None:
        """Take ``size`` bytes off. Raises TooMuch where there are none left."""
        self.left -= size
        if self.left < 0:
            raise TooMuch(f"it unpacks to more than {self.ratio} times its size, as a decompression bomb does")


def reason(fault: BaseException) -> str:
    """A fault in a few words."""
    if isinstance(fault, TooMuch):
        return str(fault)
    if isinstance(fault, EOFError):
        return "it is cut short"
    if isinstance(fault, OSError) and fault.errno is not None:
        return (fault.strerror or str(fault)).lower()
    return f"it is damaged ({str(fault)[:80] or type(fault).__name__})"


class Forgiving(io.RawIOBase):
    """Reads ``inner`` to its end or to where it breaks, which goes to ``complain``; counts what it reads."""

    def __init__(self, inner: BinaryIO, complain: Callable[[str], None], budget: Budget | None = None) -> None:
        super().__init__()
        self._inner = inner
        #: As much as there is, where that can be asked for: a fault then loses nothing that came before it.
        self._read = getattr(inner, "read1", inner.read)
        self._complain = complain
        self._budget = budget
        self._over = False

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: object) -> int:
        """As of any raw stream; 0 at the end and at a fault."""
        view = memoryview(cast(bytearray, buffer)).cast("B")
        if self._over:
            return 0
        try:
            data: bytes = self._read(len(view)) or b""
            if self._budget is not None:
                self._budget.spend(len(data))
        except FAULTS as fault:
            self._over = True
            self._complain(f"read up to where it breaks: {reason(fault)}")
            return 0
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the inner stream too."""
        if not self.closed:
            self._inner.close()
        super().close()


class Chained(io.RawIOBase):
    """The first bytes, which were looked at, and then the rest of the stream."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        super().__init__()
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: object) -> int:
        """As of any raw stream."""
        view = memoryview(cast(bytearray, buffer)).cast("B")
        data, self._head = self._head[: len(view)], self._head[len(view) :]
        data = data or self._rest.read(len(view)) or b""
        view[: len(data)] = data
        return len(data)


class Recoded(io.RawIOBase):
    """Text of another encoding, as UTF-8."""

    def __init__(self, inner: BinaryIO, encoding: str) -> None:
        super().__init__()
        self._inner = inner
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._ready = b""
        self._over = False

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: object) -> int:
        """As of any raw stream."""
        view = memoryview(cast(bytearray, buffer)).cast("B")
        while not self._ready and not self._over:
            data = self._inner.read(CHUNK_BYTES)
            self._over = not data
            self._ready = self._decoder.decode(data, final=self._over).encode(errors="replace")
        size = min(len(view), len(self._ready))
        view[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def close(self) -> None:
        """Close the inner stream too."""
        if not self.closed:
            self._inner.close()
        super().close()


class Slice(io.RawIOBase):
    """A stretch of an open file, read by place; the file's own position is left alone."""

    def __init__(self, file: HasFileno, begin: int, size: int) -> None:
        super().__init__()
        self._file = file  # kept open by whoever holds a slice of it
        self._begin, self._size, self._at = begin, size, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of any raw stream."""
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: object) -> int:
        """As of any raw stream."""
        view = memoryview(cast(bytearray, buffer)).cast("B")
        size = max(0, min(len(view), self._size - self._at))
        data = os.pread(self._file.fileno(), size, self._begin + self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


class Stretch:
    """The next ``size`` bytes of a stream, or all, in order; closing it closes the stream and the file ``under`` it."""

    def __init__(self, inner: Readable, size: int | None = None, *, under: BinaryIO | None = None) -> None:
        self._inner, self._left, self._under = inner, size, under
        #: As much as there is, where that can be asked for: a fault then loses nothing that came before it.
        self._read = getattr(inner, "read1", inner.read)

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes. Raises EOFError where the stream ends before the stretch does."""
        if self._left is None:
            return self._read(size) or b""
        wanted = self._left if size < 0 else min(size, self._left)
        data: bytes = (self._read(wanted) if wanted else b"") or b""
        self._left -= len(data)
        if wanted and not data:
            raise EOFError("the file ends first")
        return data

    def close(self) -> None:
        """Close the stream, and the file under it."""
        self._inner.close()
        if self._under is not None:
            self._under.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class Readable(Protocol):
    """What can be read and closed."""

    def read(self, size: int, /) -> bytes | None:
        """At most ``size`` bytes."""
        ...

    def close(self) -> None:
        """Closed."""
        ...


class HasFileno(Protocol):
    """An open file, or what stands for one."""

    def fileno(self) -> int:
        """Its descriptor."""
        ...


class _Nameless:
    """A temporary file without a name, closed when nobody refers to it any more."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._descriptor = os.dup(file.fileno())

    def fileno(self) -> int:
        """Its descriptor."""
        return self._descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


@dataclass
class Spool:
    """One bounded temporary file, without a name, for what has to be read out of order."""

    room: int
    _file: _Nameless | None = field(default=None, repr=False)
    _end: int = 0

    def add(self, stream: BinaryIO) -> tuple[Callable[[], BinaryIO], int]:
        """Keep all of ``stream``; how to open it again, and its size. Raises TooMuch where the room ends."""
        if self._file is None:
            self._file = _Nameless()
        file, begin = self._file, self._end
        at = begin
        while data := stream.read(CHUNK_BYTES):
            if at + len(data) > self.room:
                raise TooMuch("it is too large to be kept aside while it is read; unpack it first")
            os.pwrite(file.fileno(), data, at)
            at += len(data)
        self._end, size = at, at - begin
        return lambda: buffered(Slice(file, begin, size)), size


def buffered(raw: io.RawIOBase, size: int | None = None) -> BinaryIO:
    """``raw`` with a buffer, no larger than what there is of ``size`` bytes to read."""
    return cast(BinaryIO, io.BufferedReader(raw, CHUNK_BYTES if size is None else max(4096, min(size, CHUNK_BYTES))))
