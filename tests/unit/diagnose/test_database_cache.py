"""Compiled patterns are kept in the cache folder; a file that others could write is not loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.diagnose.logs import database_cache, search_engines

PATTERNS = tuple((f"p{number}", f"mark{number}x+", False) for number in range(20))
BLOCK = b"mark3xx\nnothing\nmark11x mark4x\n"


def forget() -> None:
    """Forget the databases of this process."""
    search_engines.compile_database.cache_clear()
    search_engines.load_database.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use an empty cache folder, and databases of no other test."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


def stored(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_is_stored_is_loaded_for_its_key_only(folder: Path) -> None:
    database_cache.store("all", b"key 1", b"\0database")
    assert database_cache.load("all", b"key 1") == b"\0database"
    assert stored(folder).stat().st_mode & 0o777 == 0o600
    assert database_cache.load("all", b"key 2") is None
    assert database_cache.load("other", b"key 1") is None


def test_a_file_that_others_can_read_or_write_is_not_loaded(folder: Path) -> None:
    database_cache.store("all", b"key", b"database")
    for mode in (0o640, 0o602, 0o4600):
        stored(folder).chmod(mode)
        assert database_cache.load("all", b"key") is None


def test_links_folders_and_pipes_are_not_loaded(folder: Path) -> None:
    database_cache.store("all", b"key", b"database")
    path = stored(folder)
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")
    assert database_cache.load("all", b"key") is None
    path.unlink()
    os.mkfifo(path, 0o600)
    assert database_cache.load("all", b"key") is None
    path.unlink()
    path.mkdir(0o600)
    assert database_cache.load("all", b"key") is None


def test_without_a_writable_folder_nothing_is_kept(folder: Path) -> None:
    folder.write_text("a file")
    database_cache.store("all", b"key", b"database")
    assert database_cache.load("all", b"key") is None


@pytest.mark.usefixtures("folder")
def test_a_loaded_database_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hyperscan")
    compiled = search_engines.compile_with_hyperscan(PATTERNS)
    assert compiled is not None
    found = list(compiled(BLOCK))
    assert found == [(0, 8, (3,)), (16, 31, (4, 11))]
    forget()
    monkeypatch.setattr(database_cache, "store", lambda *_: pytest.fail("compiled again"))
    loaded = search_engines.compile_with_hyperscan(PATTERNS)
    assert loaded is not None
    assert list(loaded(BLOCK)) == found


@pytest.mark.usefixtures("folder")
def test_a_table_is_ready_once_it_is_stored() -> None:
    pytest.importorskip("hyperscan")
    assert search_engines.compile_with_hyperscan(PATTERNS, only_stored=True) is None
    search_engines.compile_with_hyperscan(PATTERNS)
    forget()
    ready = search_engines.compile_with_hyperscan(PATTERNS, only_stored=True)
    assert ready is not None
    assert [rows for *_, rows in ready(BLOCK)] == [(3,), (4, 11)]


@pytest.mark.parametrize("keep", [0, 30, -1])
def test_a_damaged_database_is_compiled_again(folder: Path, keep: int) -> None:
    pytest.importorskip("hyperscan")
    search_engines.compile_with_hyperscan(PATTERNS)
    path = stored(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    forget()
    search = search_engines.compile_with_hyperscan(PATTERNS)
    assert search is not None
    assert [rows for *_, rows in search(BLOCK)] == [(3,), (4, 11)]
    assert stored(folder).read_bytes() == whole
