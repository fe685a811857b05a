"""A compiled recorder that breaks collectives is rejected; the Python recorder is used."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from holdfast.core import native_extension
from holdfast.recorder import build, self_test
from tests.forked_programs import RunningProgram, call_forking
from tests.unit.recorder import other_sources

#: Makes the recorder compile the kernels for torch before 2.9, at the Autograd key.
AT_AUTOGRAD = ("#define HOLDFAST_AT_BACKEND (", "#define HOLDFAST_AT_BACKEND 0 && (")
#: A past bug: no kernel remains after an alias key, so every collective raises an error.
NO_KERNEL_AFTER_ALIAS_KEY = (
    "c10::after_autograd_keyset",
    "c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, K)",
)

#: A minimal recorder for self_test; installing it executes the Python statements at %s.
STUB = """
#include <Python.h>
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT const char* holdfast_install(...) { PyRun_SimpleString(%s); return nullptr; }
EXPORT unsigned long holdfast_begin(...) { return 0; }
"""
#: Statements for the stub, in a C string: all_reduce raises the error of a missing kernel.
WITHOUT_KERNEL = (
    r"import torch.distributed\ndef all_reduce(*_, **__): raise NotImplementedError('no kernel')"
    r"\ntorch.distributed.all_reduce = all_reduce"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),  # two tests compile the recorder
    pytest.mark.skipif(
        native_extension.find_compiler() is None,
        reason="no C++ compiler on this machine: nothing to test",
    ),
]


def patch(source: Path, *changes: tuple[str, str]) -> None:
    """Replace the first text of each pair by the second; the first must occur exactly once."""
    text = source.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    source.write_text(text)


@pytest.mark.parametrize(
    "recorder", ["stub", pytest.param("of torch before 2.9", marks=pytest.mark.matrix)]
)
def test_a_job_runs_although_the_compiled_recorder_breaks_collectives(
    tmp_path: Path, recorder: str
) -> None:
    sources = shutil.copytree(build.SOURCES, tmp_path / "native")
    source = sources / "recorder.cpp"
    if recorder == "stub":
        source.write_text(STUB.replace("%s", f'"{WITHOUT_KERNEL}"'))
    else:
        patch(source, AT_AUTOGRAD, NO_KERNEL_AFTER_ALIAS_KEY)
    script = tmp_path / "job.py"
    script.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\ntotal = torch.ones(1)\n"
        "dist.all_reduce(total)\nprint('total', total.item())\ndist.barrier()\ndist.destroy_process_group()\n"
    )
    command = ("run", "--standalone", "--recorder", "native", script)
    outputs = []
    for _ in range(2):
        done = RunningProgram(
            *(other_sources.__file__, sources, *command),
            folder=tmp_path,
            HOLDFAST_CACHE=str(tmp_path / "cache"),
        ).result(180)
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        assert "total 1.0" in output, output
        assert "recorder python" in output
        (line,) = [line for line in output.splitlines() if "self-test" in line]
        assert "NotImplementedError" in line
        assert "uses the Python recorder" in line
        outputs.append(output)
        script.write_text("print('total 1.0')")  # the launcher is what the second job tests
    assert ["Compiling the C++ recorder" in output for output in outputs] == [
        True,
        False,
    ]  # the self-test result is cached


@pytest.mark.matrix
def test_the_kernels_of_older_torch_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(build.SOURCES, tmp_path / "native")
    patch(tmp_path / "native" / "recorder.cpp", AT_AUTOGRAD)
    monkeypatch.setattr(build, "SOURCES", tmp_path / "native")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    log: list[str] = []
    assert build.ensure_built(log.append) is not None, log


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        pytest.param("pass", "RuntimeError: not recorded: all_gather, ", marks=pytest.mark.matrix),
        (
            "import torch.distributed as d; d.all_reduce = print",
            "RuntimeError: all_reduce returned [",
        ),
        ("import os; os.abort()", "ended by signal 6 (Aborted)"),
        pytest.param("import os; os._exit(3)", "exit status 3", marks=pytest.mark.matrix),
    ],
)
def test_broken_recorders_are_rejected(statements: str, why: str, tmp_path: Path) -> None:
    source = tmp_path / "stub.cpp"
    source.write_text(STUB.replace("%s", f'"{statements}"'))
    log: list[str] = []
    library = native_extension.build_extension(
        tmp_path / "stub.so", [f"-I{sysconfig.get_paths()['include']}", str(source)], log.append
    )
    assert library is not None, log
    failure = call_forking(self_test.run_self_test, library, limit_s=180)
    assert (failure or "passed").startswith(why)


def test_recorder_is_not_rejected_permanently_where_gloo_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collectives also fail without the recorder: it is not used, and tested again a day later."""
    shutil.copytree(build.SOURCES, tmp_path / "native")
    (tmp_path / "native" / "recorder.cpp").write_text("// nothing to load")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    sources = tmp_path / "native"
    library, log = call_forking(other_sources.build_where_gloo_fails, sources, limit_s=180)
    assert library is None
    assert "gloo also fails without it" in log[-1]
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {".failed", ".lock"}
