"""Parallel analysis by component gives the same result as serial analysis."""

import os
from concurrent import futures

import pytest

from holdfast.lint import analysis
from holdfast.lint.run import lint_paths

GUARDED = "import torch.distributed as dist\nfrom {other} import one\nif dist.get_rank() == 0:\n    dist.barrier()\n"


@pytest.fixture
def project(tmp_path):
    for at in range(9):
        (tmp_path / f"run_{at}.py").write_text(GUARDED.format(other=f"lib_{at}"))
        (tmp_path / f"lib_{at}.py").write_text("one = 1\n" * at)
        (tmp_path / f"quiet_{at}.py").write_text("def f(x):\n    return x\n" * at)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "quiet.ipynb").write_text("{}")
    return tmp_path


@pytest.fixture
def pools(monkeypatch):
    """Make any work parallel on three processors; ignore the threads of pytest."""
    monkeypatch.setattr(analysis, "_MIN_PARALLEL_COST", 0)
    monkeypatch.setattr(analysis, "_CHUNK_BYTES", 50)
    monkeypatch.setattr(analysis.os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(analysis.threading, "active_count", lambda: 1)
    pool_sizes = []
    pool = futures.ProcessPoolExecutor
    monkeypatch.setattr(
        futures,
        "ProcessPoolExecutor",
        lambda *arguments: pool_sizes.append(arguments[0]) or pool(*arguments),
    )
    return pool_sizes


def test_parallel_analysis_equals_serial(project, pools, monkeypatch):
    result = lint_paths([project])
    assert (len(result.findings), result.files, pools) == (9, 27, [3])
    assert [skipped_file.file.rpartition("/")[2] for skipped_file in result.skipped] == [
        "broken.py",
        "quiet.ipynb",
    ]
    monkeypatch.setattr(
        analysis.threading, "active_count", lambda: 2
    )  # a fork may inherit a held lock
    assert lint_paths([project]) == result
    assert pools == [3]


_OWN, _judged = os.getpid(), analysis._run_task


def killed_task(work):
    """A worker that the kernel kills for its memory use."""
    if os.getpid() != _OWN:
        os._exit(9)
    return _judged(work)


def test_a_killed_worker_falls_back_to_serial_analysis(project, pools, monkeypatch):
    monkeypatch.setattr(analysis, "_run_task", killed_task)
    assert len(lint_paths([project]).findings) == 9
    assert pools == [3]


def test_progress_is_reported_until_all_is_done(tmp_path, pools):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("import torch\n")
    seen = []
    lint_paths([tmp_path], on_progress=lambda *counts: seen.append(counts))
    files, done, total = seen[-1]
    assert (files, done) == (2, total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert pools


def test_an_error_in_the_linter_does_not_hide_the_other_programs(project, monkeypatch, tmp_path):
    judged = analysis._analyze_program

    def fails_in_one(work):
        if any(file.path.name == "run_4.py" for file in work.program.files):
            raise KeyError("an unforeseen program")
        return judged(work)

    monkeypatch.setattr(analysis, "_analyze_program", fails_in_one)
    cache = tmp_path / "cache"
    for _ in range(2):  # the failure is not kept
        result = lint_paths([project], cache=cache)
        (failed,) = [each for each in result.skipped if each.is_failure]
        assert failed.file.endswith("lib_4.py")
        assert "error in holdfast (KeyError: 'an unforeseen program')" in failed.why
        assert len(result.findings) == 8
    monkeypatch.setattr(analysis, "_analyze_program", judged)
    assert len(lint_paths([project], cache=cache).findings) == 9
    quiet = project / "quiet_1.py"
    monkeypatch.setattr(analysis, "_analyze_program", fails_in_one)
    result = lint_paths([quiet, project / "run_4.py", project / "run_3.py"])
    assert result.exit_status == 1
    with pytest.raises(KeyError):  # of one program, with the traceback to report
        lint_paths([project / "run_4.py"])
