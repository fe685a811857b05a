"""A mapped file has the same hash as a read one, and a file that cannot be mapped is read."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path

import pytest

from holdfast.core import checkpoint_manifest
from holdfast.training.checkpoint.storage.hashing import VerifiedFiles
from tests.unit.training.checkpoint.jobs import small_disk


@pytest.mark.parametrize("size", [0, 1, 4096, (16 << 20) - 1, 16 << 20, (32 << 20) + 4097])
def test_the_hash_equals_that_of_a_file_that_is_read(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(random.Random(size).randbytes(size))
    with VerifiedFiles() as verified:
        assert verified.hash_file(path) == checkpoint_manifest.hash_file(path)


def test_hashed_bytes_are_copied_from_the_mapping(tmp_path):
    path = tmp_path / "file"
    data = random.Random(1).randbytes(20_000)
    path.write_bytes(data)
    target = ctypes.create_string_buffer(9_000)
    with VerifiedFiles() as verified:
        assert not verified.copy(path, 5_001, ctypes.addressof(target), 9_000)
        verified.hash_file(path)
        assert verified.copy(path, 5_001, ctypes.addressof(target), 9_000)
        assert not verified.copy(path, 15_000, ctypes.addressof(target), 9_000)
    assert target.raw == data[5_001:14_001]
    assert not verified.copy(path, 0, ctypes.addressof(target), 1)


def test_files_in_memory_are_mapped(tmp_path):
    with small_disk(tmp_path / "memory", "1m") as folder, VerifiedFiles() as verified:
        path = folder / "file"
        path.write_bytes(b"x" * 5000)
        assert verified.hash_file(path) == checkpoint_manifest.hash_file(path)
        assert verified.copy(path, 0, ctypes.addressof(ctypes.create_string_buffer(9)), 9)


def test_a_kernel_file_is_read():
    path = Path("/proc/self/maps")
    with VerifiedFiles() as verified:
        assert len(verified.hash_file(path)) == 32
        assert not verified.copy(path, 0, ctypes.addressof(ctypes.create_string_buffer(1)), 1)


def test_a_missing_file_raises(tmp_path):
    with VerifiedFiles() as verified:
        with pytest.raises(FileNotFoundError):
            verified.hash_file(tmp_path / "absent")
        with pytest.raises(IsADirectoryError):
            verified.hash_file(tmp_path)
