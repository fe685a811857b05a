"""What holdfast.loop raises on all ranks is a cause of its own, not any exception."""

from __future__ import annotations

import pytest

from holdfast.facts.ranks import Life, Place, Raised, RankState
from holdfast.rules import hang, mismatch


def dead(rank, kind, text):
    raised = Raised(kind, text, Place("/job/train.py", 30, "main"))
    return RankState(rank=rank, pid=100 + rank, life=Life.DEAD, raised=raised, exit_code=1)


@pytest.mark.parametrize(
    ("kind", "text", "cause"),
    [
        ("LossNotFinite", "the loss is not finite: step 7", "mixed-precision-nan"),
        ("LossSpike", "the loss jumped: steps 70 to 72", "loss-jumped"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "gpu-oom-all-ranks"),
        ("ValueError", "no", "python-exception-all-ranks"),
    ],
)
def test_what_all_ranks_raise_is_named(kind, text, cause):
    found = mismatch.all_ranks([dead(rank, kind, text) for rank in range(2)])
    assert found.cause == cause
    assert text in found.message
    assert (found.subject.file, found.subject.line) == ("/job/train.py", 30)


def test_a_rank_alone_is_judged_alike():
    verdict = hang.judge([dead(0, "LossNotFinite", "the loss is not finite: step 7")], {}, world_size=1)
    assert verdict.root is not None
    assert verdict.root.cause == "mixed-precision-nan"
