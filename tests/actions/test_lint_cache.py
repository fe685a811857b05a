"""What was judged is kept until something changes, and what is not understood of it counts as not there."""

import pytest

from holdfast.actions import lint
from holdfast.actions.lint_options import Options

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
    made = []
    judged = lint.judged
    monkeypatch.setattr(lint, "judged", lambda gathered, **more: made.append(1) or judged(gathered, **more))
    return made


def test_a_program_that_did_not_change_is_judged_once(project, tmp_path, runs):
    cache = tmp_path / "cache"
    first = lint.lint([project], cache=cache)
    assert (len(first.claims), first.excused, [each.file for each in first.passed]) == (1, 1, [str(project / "c.py")])
    assert lint.lint([project], cache=cache) == first
    assert not lint.lint([project], Options(ignore=("SYNC004",)), cache=cache).claims
    assert len(runs) == 1
    (project / "a.py").write_text("\n" + GUARDED)
    assert [each.finding.subject.line for each in lint.lint([project], cache=cache).claims] == [4]
    assert len(runs) == 2


def test_an_entry_that_is_none_is_passed_over(project, tmp_path, runs):
    cache = tmp_path / "cache"
    first = lint.lint([project], cache=cache)
    (entry,) = cache.iterdir()
    for content in (b"", b"{", b"[" * 100_000, b'{"claims": 1}', entry.read_bytes()[:-9], b"\xff\x00"):
        entry.write_bytes(content)
        assert lint.lint([project], cache=cache) == first
    assert len(runs) == 7


def test_a_folder_that_cannot_be_is_no_fault(project, tmp_path, runs):
    (tmp_path / "file").write_text("")
    assert lint.lint([project], cache=tmp_path / "file" / "cache").claims
    assert len(runs) == 1
