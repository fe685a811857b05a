"""The hash of a file of a checkpoint, read where the kernel keeps it: half the time of reading it into memory first.

A mapped file that is cut off while it is read ends the process (SIGBUS), as with ``torch.load(mmap=True)``. Each window
is brought in by a call that fails in order where the disk does, and only then read; and only on file systems whose
files do not change behind the kernel's back, as they do on a server's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import xxhash

from holdfast import manifest

_WINDOW_BYTES = 16 << 20
_MADV_POPULATE_READ = 22  # Linux 5.14; Python has no name for it
#: ext2 to ext4, xfs, btrfs, tmpfs, overlay, f2fs, zfs (statfs(2)).
_LOCAL = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0xF2F52010, 0x2FC12FC1})
_STATFS_BYTES = 256  # sizeof(struct statfs) is 120 on Linux with 64 bits; f_type is its first word


def hash_of(path: Path) -> str:
    """The xxh3 (128 bits, hex) of a file. Raises OSError."""
    return _mapped(path) or manifest.hash_of(path)


def _mapped(path: Path) -> str:
    """Empty where the file had better be read."""
    state = xxhash.xxh3_128()
    try:
        with path.open("rb", buffering=0) as stream:
            if not _is_local(stream.fileno()):
                return ""
            size = os.fstat(stream.fileno()).st_size
            with mmap.mmap(stream.fileno(), size, prot=mmap.PROT_READ) as pages, memoryview(pages) as data:
                for begin in range(0, size, _WINDOW_BYTES):
                    window = min(_WINDOW_BYTES, size - begin)
                    pages.madvise(_MADV_POPULATE_READ, begin, window)
                    with data[begin : begin + window] as part:
                        state.update(part)
    except (OSError, ValueError):  # an old kernel, an empty file, a disk that fails: reading says what it is
        return ""
    return state.hexdigest()


def _is_local(handle: int) -> bool:
    room = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).fstatfs(handle, room) != 0:
        return False
    return int.from_bytes(room.raw[: ctypes.sizeof(ctypes.c_long)], "little") in _LOCAL
