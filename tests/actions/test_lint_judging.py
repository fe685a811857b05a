"""What is judged in parts and by several processes is what one judges alone."""

import os
from concurrent import futures

import pytest

from holdfast.actions.lint import judging
from holdfast.actions.lint.linting import lint

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
    """Much work, and three processors; pytest has threads, which sleep."""
    monkeypatch.setattr(judging, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr(judging, "_PIECE", 50)
    monkeypatch.setattr(judging.os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(judging.threading, "active_count", lambda: 1)
    made = []
    pool = futures.ProcessPoolExecutor
    monkeypatch.setattr(futures, "ProcessPoolExecutor", lambda *given: made.append(given[0]) or pool(*given))
    return made


def test_several_processes_find_what_one_finds(project, pools, monkeypatch):
    found = lint([project])
    assert (len(found.claims), found.files, pools) == (9, 27, [3])
    assert [each.file.rpartition("/")[2] for each in found.passed] == ["broken.py", "quiet.ipynb"]
    monkeypatch.setattr(judging.threading, "active_count", lambda: 2)  # a fork may inherit a lock nobody opens
    assert lint([project]) == found
    assert pools == [3]


_OWN, _judged = os.getpid(), judging._judged


def dying(work):
    """A process that the kernel ends for its memory."""
    if os.getpid() != _OWN:
        os._exit(9)
    return _judged(work)


def test_what_a_process_that_is_killed_leaves_is_done_without(project, pools, monkeypatch):
    monkeypatch.setattr(judging, "_judged", dying)
    assert len(lint([project]).claims) == 9
    assert pools == [3]
