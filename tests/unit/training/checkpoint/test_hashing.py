"""A mapped file has the same hash as a read one, and a file that cannot be mapped is read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast.core import checkpoint_manifest
from holdfast.training.checkpoint.storage import hashing
from tests.unit.training.checkpoint.jobs import small_disk


@pytest.mark.parametrize("size", [0, 1, 4096, (16 << 20) - 1, 16 << 20, (32 << 20) + 4097])
def test_the_hash_equals_that_of_a_file_that_is_read(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(random.Random(size).randbytes(size))
    assert hashing.hash_cached_file(path) == checkpoint_manifest.hash_file(path)
    assert hashing._hash_mapped(path) == (checkpoint_manifest.hash_file(path) if size else "")


def test_files_in_memory_are_mapped(tmp_path):
    with small_disk(tmp_path / "memory", "1m") as folder:
        (folder / "file").write_bytes(b"x" * 5000)
        assert hashing._hash_mapped(folder / "file") == checkpoint_manifest.hash_file(
            folder / "file"
        )


def test_a_kernel_file_is_read():
    path = Path("/proc/self/maps")
    assert hashing._hash_mapped(path) == ""
    assert len(hashing.hash_cached_file(path)) == 32


def test_a_missing_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        hashing.hash_cached_file(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        hashing.hash_cached_file(tmp_path)
