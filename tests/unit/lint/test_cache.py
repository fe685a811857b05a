"""Results are cached until something changes; invalid entries count as missing."""

import pytest

from holdfast.lint import analysis
from holdfast.lint import run as lint_run
from holdfast.lint.options import LintOptions

GUARDED = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.py").write_text(GUARDED)
    (folder / "b.py").write_text(GUARDED.replace("barrier()", "barrier()  # noqa"))
    (folder / "c.py").write_text("print 'two'\n")
    return folder


@pytest.fixture
def runs(monkeypatch):
    task_sizes = []
    run = analysis._run_tasks
    monkeypatch.setattr(
        analysis,
        "_run_tasks",
        lambda work, on_progress: (
            task_sizes.append([len(task.program.files) for task in work]) or run(work, on_progress)
        ),
    )
    return task_sizes


def test_an_unchanged_program_is_analyzed_once(project, tmp_path, runs):
    cache = tmp_path / "cache"
    first = lint_run.lint_paths([project], cache=cache)
    assert (
        len(first.findings),
        first.suppressed,
        [skipped_file.file for skipped_file in first.skipped],
    ) == (
        1,
        1,
        [str(project / "c.py")],
    )
    assert lint_run.lint_paths([project], cache=cache) == first
    assert not lint_run.lint_paths(
        [project], LintOptions(ignore=("SYNC004",)), cache=cache
    ).findings
    assert len(runs) == 1
    (project / "a.py").write_text("\n" + GUARDED)
    assert [
        finding.finding.subject.line
        for finding in lint_run.lint_paths([project], cache=cache).findings
    ] == [4]
    assert len(runs) == 2


def test_an_invalid_entry_is_ignored(project, tmp_path, runs):
    cache = tmp_path / "cache"
    first = lint_run.lint_paths([project], cache=cache)
    (entry,) = cache.iterdir()
    for content in (
        b"",
        b"{",
        b"[" * 100_000,
        b'{"claims": 1}',
        entry.read_bytes()[:-9],
        b"\xff\x00",
    ):
        entry.write_bytes(content)
        assert lint_run.lint_paths([project], cache=cache) == first
    assert len(runs) == 7


def test_an_unusable_cache_folder_is_ignored(project, tmp_path, runs):
    (tmp_path / "file").write_text("")
    assert lint_run.lint_paths([project], cache=tmp_path / "file" / "cache").findings
    assert len(runs) == 1


def test_a_change_reanalyzes_only_its_component(project, tmp_path, runs):
    """Large components have their own cache entries; small ones are as fast to analyze again."""
    cache = tmp_path / "cache"
    (project / "a.py").write_text(GUARDED + "seen = 1\n" * 20_000)
    (project / "beside.py").write_text("from a import seen\nimport torch\n")
    first = lint_run.lint_paths([project], cache=cache)
    (project / "b.py").write_text("\n" + (project / "b.py").read_text())
    second = lint_run.lint_paths([project], cache=cache)
    assert (second.findings, second.lines) == (first.findings, first.lines + 1)
    assert runs == [[2, 1, 1], [1, 1]]
    (project / "beside.py").write_text("from a import seen\nimport torch as t\n")
    lint_run.lint_paths([project], cache=cache)
    assert runs[-1] == [2, 1, 1]
