"""Extensions come from the cache, from the wheel or from the compiler, and are tested before use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core import native_extension
from holdfast.recorder import torch_extension
from holdfast.recorder.torch_extension import TorchExtension

needs_compiler = pytest.mark.skipif(
    native_extension.find_compiler() is None, reason="no C++ compiler on this machine"
)


class Recorder:
    """A self-test that fails for libraries in ``broken`` and stores which were tested."""

    def __init__(self) -> None:
        self.tested: list[Path] = []
        self.broken: set[Path] = set()

    def __call__(self, library: Path) -> str | None:
        self.tested.append(library)
        return "it crashed" if library in self.broken else None


@pytest.fixture
def self_test() -> Recorder:
    return Recorder()


@pytest.fixture
def extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, self_test: Recorder
) -> TorchExtension:
    """Return an extension whose source compiles in a moment, with its own cache and wheel."""
    (tmp_path / "native").mkdir()
    source = tmp_path / "native" / "stub.cpp"
    source.write_text("int answer() { return 42; }\n")
    (tmp_path / "prebuilt").mkdir()
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch_extension, "PREBUILT", tmp_path / "prebuilt")
    return TorchExtension("stub", "stub", "using Python", source, self_test)


def test_the_prebuilt_extension_is_tested_once(
    extension: TorchExtension, self_test: Recorder
) -> None:
    extension.prebuilt.write_bytes(b"library")
    log: list[str] = []
    assert extension.find(log.append) == extension.cached
    assert extension.find(log.append) == extension.cached
    assert extension.cached.read_bytes() == b"library"
    assert self_test.tested == [extension.prebuilt]
    assert log == []


@needs_compiler
def test_a_prebuilt_extension_that_fails_is_replaced_by_a_compiled_one(
    extension: TorchExtension, self_test: Recorder
) -> None:
    extension.cached.parent.mkdir()
    extension.prebuilt.write_bytes(b"library")
    self_test.broken = {extension.prebuilt}
    log: list[str] = []
    assert extension.find(log.append) is None
    assert log == ["the prebuilt stub fails its self-test (it crashed)"]
    assert extension.find(log.append) is None
    assert len(log) == len(self_test.tested) == 1
    assert extension.ensure_built(log.append) == extension.cached
    assert extension.cached.read_bytes()[:4] == b"\x7fELF"


def test_without_a_writable_cache_the_prebuilt_extension_is_used_in_place(
    extension: TorchExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = extension.source
    monkeypatch.setenv("HOLDFAST_CACHE", str(file / "cache"))
    assert not native_extension.is_writable(file / "cache")
    extension.prebuilt.write_bytes(b"library")
    log: list[str] = []
    assert extension.find(log.append) == extension.prebuilt
    assert log == []


@needs_compiler
def test_a_failed_compilation_is_repeated_after_a_day(extension: TorchExtension) -> None:
    extension.source.write_text("not C++")
    logs: list[list[str]] = [[], [], []]
    for log in logs[:2]:
        assert extension.ensure_built(log.append) is None
    assert [len(log) for log in logs[:2]] == [2, 1]  # the second attempt compiled nothing
    assert "compilation failed" in logs[1][0]
    assert logs[1][0].endswith("; using Python")
    (failed,) = extension.cached.parent.glob("*.failed")
    long_ago = time.time() - torch_extension.RETRY_AFTER_S
    os.utime(failed, (long_ago, long_ago))
    extension.ensure_built(logs[2].append)
    assert "Compiling" in logs[2][0]


@needs_compiler
def test_an_extension_that_cannot_be_tested_is_not_compiled_at_each_start(
    extension: TorchExtension,
) -> None:
    tested: list[Path] = []

    def fail(library: Path) -> str | None:
        tested.append(library)
        raise OSError("gloo also fails without it")

    untestable = replace(extension, self_test=fail)
    logs: list[list[str]] = [[], []]
    for log in logs:
        assert untestable.ensure_built(log.append) is None
    assert len(tested) == 1
    assert "cannot compile and test the stub (gloo also fails without it)" in logs[1][0]
    extension.prebuilt.write_bytes(b"library")
    assert untestable.find(logs[1].append) is None
    assert len(tested) == 1


def test_without_a_compiler_nothing_is_stored(
    extension: TorchExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    log: list[str] = []
    assert extension.ensure_built(log.append) is None
    assert log == ["no C++ compiler found; using Python"]
    assert extension.refusal is None


def test_one_process_builds_at_a_time_and_removes_what_killed_ones_left(tmp_path: Path) -> None:
    target = tmp_path / "stub.so"
    left = tmp_path / "stub.build-killed"
    left.mkdir()
    with native_extension.build_folder(target) as first:
        assert not left.exists()
        in_child(lambda: wait_in_vain(target))
        assert native_extension.is_being_built(target)
        assert first.exists()
    assert not native_extension.is_being_built(target)
    in_child(lambda: wait_in_vain(target), expected=1)


def wait_in_vain(target: Path) -> None:
    """Exit with status 0 if another process holds the lock, else 1."""
    with target.with_suffix(".lock").open("w") as file:
        os._exit(native_extension._lock(file.fileno(), 0.2))


def in_child(call: Callable[[], None], expected: int = 0) -> None:
    child = os.fork()
    if child == 0:
        call()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == expected
