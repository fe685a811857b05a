"""The confidence of findings from logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.log_rules.confidence import LEAST, MOST, Circumstances, adjust_confidence
from tests.unit.diagnose.test_log_rules import raises, verdict

bases = st.floats(0.01, 0.99)
NONE = Circumstances()


@given(bases, bases)
def test_a_surer_line_makes_a_surer_finding(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert LEAST <= adjust_confidence(less, NONE) <= adjust_confidence(more, NONE) <= MOST


@pytest.mark.parametrize("field", Circumstances._fields)
@given(base=bases)
def test_each_circumstance_has_one_direction(field: str, base: float) -> None:
    changed = adjust_confidence(base, NONE._replace(**{field: True}))
    if field in ("corroborated", "launcher_agrees"):
        assert changed >= adjust_confidence(base, NONE)
    else:
        assert changed <= adjust_confidence(base, NONE)


def test_the_launcher_and_other_ranks_confirm_an_exception() -> None:
    alone = verdict(raises(1, "KeyError: 'x'")).root
    listed = verdict(
        raises(1, "KeyError: 'x'")
        + "Root Cause (first observed failure):\n[0]:\n  time      : 2026-02-03_04:05:06\n"
        + "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 82)\n"
    ).root
    on_all = verdict("".join(raises(rank, "KeyError: 'x'") for rank in range(4))).root
    assert alone is not None
    assert listed is not None
    assert on_all is not None
    assert alone.confidence < min(listed.confidence, on_all.confidence)


def test_logs_whose_clocks_cannot_be_aligned_are_named() -> None:
    """Two faults of which each can have caused the other."""
    step = "2026-02-03 04:0{minute}:0{number},000 [rank{rank}]: step {number} loss 2.5\n"
    faults = (
        "2026-02-03 04:09:06,000 [rank0]: OSError: [Errno 24] Too many open files\n",
        "2026-02-03 04:09:01,000 [rank1]: ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister\n",
    )
    apart = verdict(*faults)
    logs = [
        "".join(step.format(minute=5, number=number, rank=rank) for number in range(4)) + fault
        for rank, fault in enumerate(faults)
    ]
    aligned = verdict(*logs)
    assert apart.root is not None
    assert aligned.root is not None
    assert apart.root.confidence < aligned.root.confidence
    assert any("clocks" in text for text in apart.unseen)
    assert not any("clocks" in text for text in aligned.unseen)
