"""A start never waits for the compiler: it runs in the background, for later starts."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.core import native_extension
from holdfast.recorder import build, torch_extension
from holdfast.training import compiled_extensions, packing_extension
from holdfast.training.compiled_extensions import prepare_extensions

PREPARE = "from holdfast.training.compiled_extensions import prepare_extensions as p; print(p('auto', print))"
#: Copies libraries that were compiled before, and records how it was started.
COMPILER = """#!/bin/sh
for target; do :; done
ps -o ni=,ppid=,sid= -p $$ >> {log}
cat /proc/self/oom_score_adj >> {log}
case "$target" in *recorder-*) cp '{recorder}' "$target";; *) cp '{packing}' "$target";; esac
"""
LIMIT_S = 100


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch_extension, "PREBUILT", tmp_path / "prebuilt")
    return tmp_path / "cache"


def test_without_a_compiler_python_records_at_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    log: list[str] = []
    assert prepare_extensions("auto", log.append) is None
    (line,) = log
    assert line.startswith("no C++ compiler: install g++")
    assert line.endswith(build.FALLBACK)
    assert list(cache.iterdir()) == []


def test_without_a_writable_cache_python_records_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(torch_extension, "PREBUILT", tmp_path / "prebuilt")
    log: list[str] = []
    assert prepare_extensions("auto", log.append) is None
    (line,) = log
    assert "set HOLDFAST_CACHE to a writable folder" in line


def test_a_stored_refusal_starts_nothing(cache: Path) -> None:
    cache.mkdir()
    recorder = build.recorder_extension()
    recorder.cached.with_suffix(".refused").write_text("it crashes")
    log: list[str] = []
    assert prepare_extensions("auto", log.append) is None
    (line,) = log
    assert line.startswith("it crashes (delete ")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_packing_is_tested_by_its_module_also_when_compiled_from_the_command_line() -> None:
    name = packing_extension.__name__
    script = runpy.run_module(name, run_name="__other__")  # `python -m`: __name__ is "__main__"
    assert script["_test_command"](Path("x.so"))[1:] == ["-m", name, "x.so"]


def test_python_records_and_injects_faults_before_torch_2_9(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled_extensions, "torch_release", lambda: (2, 8))
    log: list[str] = []
    assert prepare_extensions("auto", log.append, faults=True) is None
    assert log == []


@pytest.mark.slow
@pytest.mark.timeout(400)  # compiles both where no cache has them
@pytest.mark.skipif(native_extension.find_compiler() is None, reason="no C++ compiler")
def test_the_background_build_survives_the_start_and_serves_the_next(tmp_path: Path) -> None:
    recorder, packing = build.ensure_built(print), packing_extension.ensure_built(print)
    compiler, log, cache = tmp_path / "compiler", tmp_path / "log", tmp_path / "cache"
    compiler.write_text(COMPILER.format(recorder=recorder, packing=packing, log=log))
    compiler.chmod(0o755)
    environment = os.environ | {"HOLDFAST_CACHE": str(cache), "CXX": str(compiler)}

    def start() -> list[str]:
        command = [sys.executable, "-c", PREPARE]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        return done.stdout.splitlines()

    message, library = start()
    assert library == "None"
    assert "in the background" in message
    assert message.endswith(build.FALLBACK)
    assert recorder is not None
    assert packing is not None
    until = time.monotonic() + LIMIT_S
    while not all((cache / library.name).exists() for library in (recorder, packing)):
        assert time.monotonic() < until, list(cache.iterdir())
        time.sleep(0.1)
    assert start() == [str(cache / recorder.name)]
    nice, parent, session, memory_score, *_ = log.read_text().split()
    assert (nice, memory_score) == ("19", "1000")
    assert parent != str(os.getpid())
    assert session != str(os.getsid(0))
