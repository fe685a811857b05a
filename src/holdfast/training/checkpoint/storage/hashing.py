"""Hash a checkpoint file from the page cache, and copy its tensors from there once it is verified.

A mapped file that is truncated while it is read ends the process (SIGBUS), as with
``torch.load(mmap=True)``. Each window is therefore populated first by a call that fails cleanly on
disk errors, and only on file systems whose files do not change on a server.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import xxhash

from holdfast.core import checkpoint_manifest

_WINDOW_BYTES = 16 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_MADV_POPULATE_READ = 22  # Linux 5.14; Python has no name for it
#: ext2 to ext4, xfs, btrfs, tmpfs, overlay, f2fs, zfs (statfs(2)).
_LOCAL_FILE_SYSTEMS = frozenset(
    {0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0xF2F52010, 0x2FC12FC1}
)
_STATFS_BYTES = 256  # sizeof(struct statfs) is 120 on Linux with 64 bits; f_type is its first word


class VerifiedFiles:
    """Hashes files by mapping them, and keeps the mappings to copy tensors from them.

    Copying from a mapping takes half the time of reading the file again. Threads may share it.
    """

    def __init__(self) -> None:
        self._files: dict[Path, _MappedFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.pages.close()
        self._files.clear()

    def hash_file(self, path: Path) -> str:
        """Return the xxh3 (128 bits, hex) of a file. Raises OSError."""
        try:
            file = _map_file(path)
            state = xxhash.xxh3_128()
            with memoryview(file.pages) as data:
                for begin in range(0, len(data), _WINDOW_BYTES):
                    with data[begin : begin + _WINDOW_BYTES] as chunk:
                        file.populate(begin, len(chunk))
                        state.update(chunk)
        except (OSError, ValueError):  # old kernel, empty file, disk error: reading reports which
            return checkpoint_manifest.hash_file(path)
        self._files[path] = file
        return state.hexdigest()

    def copy(self, path: Path, offset: int, target: int, size: int) -> bool:
        """Copy bytes of a hashed file to an address; False: it is not mapped. Raises OSError."""
        file = self._files.get(path)
        if file is None or offset + size > len(file.pages):
            return False
        file.populate(offset, size)
        ctypes.memmove(target, file.address + offset, size)
        return True


class _MappedFile(msgspec.Struct, frozen=True):
    """A mapping, and the address of its first byte."""

    pages: mmap.mmap
    address: int

    def populate(self, offset: int, size: int) -> None:
        """Map these bytes, from the disk if needed; other threads run. Raises OSError."""
        first = offset % mmap.PAGESIZE
        start = ctypes.c_void_p(self.address + offset - first)
        if _libc.madvise(start, ctypes.c_size_t(size + first), _MADV_POPULATE_READ) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _map_file(path: Path) -> _MappedFile:
    """Map a file of a local file system. Raises OSError, ValueError: it should be read instead."""
    with path.open("rb", buffering=0) as stream:
        if not _is_local(stream.fileno()):
            message = "not a local file"
            raise ValueError(message)
        pages = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    return _MappedFile(pages, int(np.frombuffer(pages, np.uint8).ctypes.data))


def _is_local(handle: int) -> bool:
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(handle, buffer) != 0:
        return False
    return (
        int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], "little") in _LOCAL_FILE_SYSTEMS
    )
