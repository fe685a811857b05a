"""Streams that end at damaged input and report why, and limits on what they may unpack to."""

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

from holdfast.core.text import os_error_reason

CHUNK_BYTES = 1 << 20

#: Exceptions raised while reading damaged or hostile streams.
READ_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    NotImplementedError,
    RuntimeError,
    UnicodeError,
)


@dataclass(frozen=True)
class IntakeLimits:
    """Limits; an archive may unpack to max(``free_bytes``, ``ratio`` times its size)."""

    files: int = 1_000_000
    depth: int = 2
    free_bytes: int = 256 << 20
    ratio: int = 250
    spool_bytes: int = 2 << 30


class UnpackLimitExceeded(OSError):
    """An archive unpacks to more than its limit."""


@dataclass
class UnpackBudget:
    """Bytes that one archive may still unpack to, nested archives included."""

    left: int
    ratio: int

    def spend(self, size: int) -> None:
        """Subtract ``size`` bytes. Raises UnpackLimitExceeded if fewer are left."""
        self.left -= size
        if self.left < 0:
            raise UnpackLimitExceeded(
                f"unpacks to more than {self.ratio} times its size, as a decompression bomb does"
            )


def describe_read_error(error: BaseException) -> str:
    """Return the reason for a failed read in a few words."""
    if isinstance(error, UnpackLimitExceeded):
        return str(error)
    if isinstance(error, EOFError):
        return "truncated"
    if isinstance(error, OSError) and error.errno is not None:
        return os_error_reason(error)
    return f"damaged ({str(error)[:80] or type(error).__name__})"


class _ReadOnlyStream(io.RawIOBase):
    """A raw stream over ``inner``, which is closed with it; subclasses define ``_next_bytes``."""

    def __init__(self, inner: BinaryIO | None = None) -> None:
        super().__init__()
        self._inner = inner

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes, or all; without a copy, unlike that of RawIOBase."""
        return self.readall() if size < 0 else self._next_bytes(size)

    def readinto(self, buffer: object) -> int:
        """Read into ``buffer``; return the number of bytes, 0 at the end."""
        view = memoryview(cast(bytearray, buffer)).cast("B")
        data = self._next_bytes(len(view))
        view[: len(data)] = data
        return len(data)

    def _next_bytes(self, size: int) -> bytes:
        raise NotImplementedError

    def close(self) -> None:
        """Close this stream and the inner one."""
        if not self.closed and self._inner is not None:
            self._inner.close()
        super().close()


class FaultTolerantStream(_ReadOnlyStream):
    """Read ``inner`` until it ends or fails; pass the reason of a failure to ``report``."""

    def __init__(
        self, inner: BinaryIO, report: Callable[[str], None], budget: UnpackBudget | None = None
    ) -> None:
        super().__init__(inner)
        #: read1 returns what is available, so that an error does not lose the bytes before it.
        self._read = getattr(inner, "read1", inner.read)
        self._report = report
        self._budget = budget
        self._failed = False

    def _next_bytes(self, size: int) -> bytes:
        if self._failed:
            return b""
        try:
            data: bytes = self._read(size) or b""
            if self._budget is not None:
                self._budget.spend(len(data))
        except READ_ERRORS as error:
            self._failed = True
            self._report(f"only partly read: {describe_read_error(error)}")
            return b""
        return data


class CountingStream(_ReadOnlyStream):
    """Pass the number of bytes of each read of ``inner`` to ``add``."""

    def __init__(self, inner: BinaryIO, add: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._read, self._add = inner.read, add

    def _next_bytes(self, size: int) -> bytes:
        data = self._read(size) or b""
        self._add(len(data))
        return data


class PrefixedStream(_ReadOnlyStream):
    """Bytes that were already read, then the rest of their stream, which stays open."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        super().__init__()
        self._head = head
        self._rest = rest

    def _next_bytes(self, size: int) -> bytes:
        data, self._head = self._head[:size], self._head[size:]
        return data or self._rest.read(size) or b""


class Utf8Stream(_ReadOnlyStream):
    """Text in ``encoding``, as UTF-8."""

    def __init__(self, inner: BinaryIO, encoding: str) -> None:
        super().__init__(inner)
        self._read = inner.read
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._ready = b""
        self._at_end = False

    def _next_bytes(self, size: int) -> bytes:
        while not self._ready and not self._at_end:
            data = self._read(CHUNK_BYTES)
            self._at_end = not data
            self._ready = self._decoder.decode(data, final=self._at_end).encode(errors="replace")
        data, self._ready = self._ready[:size], self._ready[size:]
        return data


class FileSlice(_ReadOnlyStream):
    """Part of an open file, read by offset; the file's own position does not move."""

    def __init__(self, file: BinaryIO | _AnonymousFile, begin: int, size: int) -> None:
        super().__init__()
        self._file = file  # the reference keeps it open
        self._begin, self._size, self._at = begin, size, 0

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to ``offset``; return the new position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, offset + base)
        return self._at

    def _next_bytes(self, size: int) -> bytes:
        size = max(0, min(size, self._size - self._at))
        data = os.pread(self._file.fileno(), size, self._begin + self._at)
        self._at += len(data)
        return data


class BoundedStream:
    """The next ``size`` bytes of a stream, or all.

    Closing it closes the stream and ``underlying``, the file below it.
    """

    def __init__(
        self, inner: ReadableStream, size: int | None = None, *, underlying: BinaryIO | None = None
    ) -> None:
        self._inner, self._left, self._underlying = inner, size, underlying
        #: read1 returns what is available, so that an error does not lose the bytes before it.
        self._read = getattr(inner, "read1", inner.read)

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes. Raises EOFError if the stream ends too early."""
        if self._left is None:
            return self._read(size) or b""
        wanted = self._left if size < 0 else min(size, self._left)
        data: bytes = (self._read(wanted) if wanted else b"") or b""
        self._left -= len(data)
        if wanted and not data:
            raise EOFError("the file ends first")
        return data

    def close(self) -> None:
        """Close the stream and the file below it."""
        self._inner.close()
        if self._underlying is not None:
            self._underlying.close()

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class ReadableStream(Protocol):
    """A stream with ``read`` and ``close``."""

    def read(self, size: int, /) -> bytes | None:
        """Return up to ``size`` bytes."""
        ...

    def close(self) -> None:
        """Close the stream."""
        ...


class _AnonymousFile:
    """A temporary file without a name, closed with the last reference to it."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._descriptor = os.dup(file.fileno())

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


@dataclass
class SpoolFile:
    """One temporary file of at most ``max_bytes`` for evidence that is read out of order."""

    max_bytes: int
    _file: _AnonymousFile | None = field(default=None, repr=False)
    _end: int = 0

    def add(self, stream: BinaryIO) -> tuple[Callable[[], BinaryIO], int]:
        """Copy ``stream``; return a function that opens the copy, and its size in bytes.

        Raises:
            UnpackLimitExceeded: the file would exceed ``max_bytes``.
        """
        if self._file is None:
            self._file = _AnonymousFile()
        file, begin = self._file, self._end
        at = begin
        while data := stream.read(CHUNK_BYTES):
            if at + len(data) > self.max_bytes:
                raise UnpackLimitExceeded("too large to buffer while reading; unpack it first")
            os.pwrite(file.fileno(), data, at)
            at += len(data)
        self._end, size = at, at - begin
        return lambda: buffered(FileSlice(file, begin, size)), size


def buffered(raw: io.RawIOBase, size: int | None = None) -> BinaryIO:
    """Return ``raw`` with a buffer of at most 1 MiB, smaller if it has ``size`` bytes."""
    buffer_bytes = CHUNK_BYTES if size is None else max(4096, min(size, CHUNK_BYTES))
    return cast(BinaryIO, io.BufferedReader(raw, buffer_bytes))
