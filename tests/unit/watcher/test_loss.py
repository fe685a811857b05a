"""Exceptions of holdfast.loop on all ranks have their own causes."""

from __future__ import annotations

import pytest

from holdfast.core.rank_table import ProcessState, RaisedException, RankState, SourceLine
from holdfast.watcher.rules import hang
from holdfast.watcher.rules.common_exception import explain_common_exception


def dead(rank, kind, text):
    raised = RaisedException(kind, text, SourceLine("/job/train.py", 30, "main"))
    return RankState(rank=rank, pid=100 + rank, life=ProcessState.DEAD, raised=raised, exit_code=1)


@pytest.mark.parametrize(
    ("kind", "text", "cause"),
    [
        ("LossNotFinite", "the loss is not finite: step 7", "mixed-precision-nan"),
        ("LossSpike", "the loss jumped: steps 70 to 72", "loss-jumped"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "gpu-oom-all-ranks"),
        ("ValueError", "no", "python-exception-all-ranks"),
    ],
)
def test_a_common_exception_has_its_own_cause(kind, text, cause):
    found = explain_common_exception([dead(rank, kind, text) for rank in range(2)])
    assert found.cause == cause
    assert text in found.message
    assert (found.subject.file, found.subject.line) == ("/job/train.py", 30)


def test_an_exception_of_a_single_rank_job_has_the_same_cause():
    verdict = hang.judge_hang(
        [dead(0, "LossNotFinite", "the loss is not finite: step 7")], {}, world_size=1
    )
    assert verdict.root is not None
    assert verdict.root.cause == "mixed-precision-nan"
