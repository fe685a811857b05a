"""Hash a checkpoint file from the page cache: half the time of reading it into memory first.

A mapped file that is truncated while it is read ends the process (SIGBUS), as with
``torch.load(mmap=True)``. Each window is therefore populated first by a call that fails cleanly on
disk errors, and only on file systems whose files do not change on a server.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import xxhash

from holdfast.core import checkpoint_manifest

_WINDOW_BYTES = 16 << 20
_MADV_POPULATE_READ = 22  # Linux 5.14; Python has no name for it
#: ext2 to ext4, xfs, btrfs, tmpfs, overlay, f2fs, zfs (statfs(2)).
_LOCAL_FILE_SYSTEMS = frozenset(
    {0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0xF2F52010, 0x2FC12FC1}
)
_STATFS_BYTES = 256  # sizeof(struct statfs) is 120 on Linux with 64 bits; f_type is its first word


def hash_cached_file(path: Path) -> str:
    """Return the xxh3 (128 bits, hex) of a file. Raises OSError."""
    return _hash_mapped(path) or checkpoint_manifest.hash_file(path)


def _hash_mapped(path: Path) -> str:
    """Hash by mapping; empty if the file should be read instead."""
    state = xxhash.xxh3_128()
    try:
        with path.open("rb", buffering=0) as stream:
            if not _is_local(stream.fileno()):
                return ""
            size = os.fstat(stream.fileno()).st_size
            with (
                mmap.mmap(stream.fileno(), size, prot=mmap.PROT_READ) as pages,
                memoryview(pages) as data,
            ):
                for begin in range(0, size, _WINDOW_BYTES):
                    window = min(_WINDOW_BYTES, size - begin)
                    pages.madvise(_MADV_POPULATE_READ, begin, window)
                    with data[begin : begin + window] as chunk:
                        state.update(chunk)
    except (OSError, ValueError):  # old kernel, empty file, disk error: reading reports which
        return ""
    return state.hexdigest()


def _is_local(handle: int) -> bool:
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).fstatfs(handle, buffer) != 0:
        return False
    return (
        int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], "little") in _LOCAL_FILE_SYSTEMS
    )
