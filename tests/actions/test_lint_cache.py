"""What was judged is kept until something changes, and what is not understood of it counts as not there."""

import pytest

from holdfast.actions.lint import judging, linting
from holdfast.actions.lint.options import Options

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
    run = judging._run
    monkeypatch.setattr(judging, "_run", lambda work: made.append([len(each.files) for each in work]) or run(work))
    return made


def test_a_program_that_did_not_change_is_judged_once(project, tmp_path, runs):
    cache = tmp_path / "cache"
    first = linting.lint([project], cache=cache)
    assert (len(first.claims), first.excused, [each.file for each in first.passed]) == (1, 1, [str(project / "c.py")])
    assert linting.lint([project], cache=cache) == first
    assert not linting.lint([project], Options(ignore=("SYNC004",)), cache=cache).claims
    assert len(runs) == 1
    (project / "a.py").write_text("\n" + GUARDED)
    assert [each.finding.subject.line for each in linting.lint([project], cache=cache).claims] == [4]
    assert len(runs) == 2


def test_an_entry_that_is_none_is_passed_over(project, tmp_path, runs):
    cache = tmp_path / "cache"
    first = linting.lint([project], cache=cache)
    (entry,) = cache.iterdir()
    for content in (b"", b"{", b"[" * 100_000, b'{"claims": 1}', entry.read_bytes()[:-9], b"\xff\x00"):
        entry.write_bytes(content)
        assert linting.lint([project], cache=cache) == first
    assert len(runs) == 7


def test_a_folder_that_cannot_be_is_no_fault(project, tmp_path, runs):
    (tmp_path / "file").write_text("")
    assert linting.lint([project], cache=tmp_path / "file" / "cache").claims
    assert len(runs) == 1


def test_one_change_has_only_its_own_component_judged_again(project, tmp_path, runs):
    """Large components are kept by themselves; small ones are judged again as fast as they would be found."""
    cache = tmp_path / "cache"
    (project / "a.py").write_text(GUARDED + "seen = 1\n" * 20_000)
    (project / "beside.py").write_text("from a import seen\nimport torch\n")
    first = linting.lint([project], cache=cache)
    (project / "b.py").write_text("\n" + (project / "b.py").read_text())
    second = linting.lint([project], cache=cache)
    assert (second.claims, second.lines) == (first.claims, first.lines + 1)
    assert runs == [[2, 1, 1], [1, 1]]
    (project / "beside.py").write_text("from a import seen\nimport torch as t\n")
    linting.lint([project], cache=cache)
    assert runs[-1] == [2, 1, 1]
