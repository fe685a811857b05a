"""A mapped file has the same hash as one that is read, and whatever cannot be mapped is read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast import manifest
from holdfast.runtime.checkpoint import hashing
from tests.runtime.checkpoint.jobs import small_disk


@pytest.mark.parametrize("size", [0, 1, 4096, (16 << 20) - 1, 16 << 20, (32 << 20) + 4097])
def test_it_is_the_same_as_of_a_file_that_is_read(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(random.Random(size).randbytes(size))
    assert hashing.hash_of(path) == manifest.hash_of(path)
    assert hashing._mapped(path) == (manifest.hash_of(path) if size else "")


def test_memory_is_mapped_as_well(tmp_path):
    with small_disk(tmp_path / "memory", "1m") as folder:
        (folder / "file").write_bytes(b"x" * 5000)
        assert hashing._mapped(folder / "file") == manifest.hash_of(folder / "file")


def test_a_file_of_the_kernel_is_read():
    path = Path("/proc/self/maps")
    assert hashing._mapped(path) == ""
    assert len(hashing.hash_of(path)) == 32


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        hashing.hash_of(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        hashing.hash_of(tmp_path)
