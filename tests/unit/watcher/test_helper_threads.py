"""A thread at work for which the main thread waits: a late background save is no hang."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules.helper_threads import thread_at_work
from holdfast.watcher.rules.stall import StallLimits
from holdfast.watcher.stall_detector import StallDetector
from tests.unit.watcher.rank_tables import TRAIN, call, history, row, world

WAIT = SourceLine("/usr/lib/python3.11/threading.py", 327, "wait")
RESULT = SourceLine("/usr/lib/python3.11/concurrent/futures/_base.py", 451, "result")
IDLE = SourceLine("/usr/lib/python3.11/concurrent/futures/thread.py", 81, "_worker")
WRITES = SourceLine("/job/saver.py", 32, "_write")

MAIN = ThreadStack((WAIT, RESULT, TRAIN))
SAVER = ThreadStack((WRITES, IDLE), "checkpoint_0")


@pytest.mark.parametrize(
    ("threads", "found"),
    [
        ((MAIN, SAVER), SAVER),
        ((MAIN, ThreadStack((IDLE,), "idle")), None),
        ((MAIN, ThreadStack((WAIT, RESULT, WRITES, IDLE), "checkpoint_0")), None),  # a deadlock
        ((MAIN, ThreadStack((WAIT, RESULT, WRITES), "waits"), SAVER), SAVER),
        ((ThreadStack((TRAIN,)), SAVER), None),  # the main thread waits for something else
        ((), None),
    ],
)
def test_only_a_thread_that_waits_for_none_is_at_work(threads, found):
    assert thread_at_work(threads) is found


def awaited(helper, silent_s):
    """Return the outcome for a rank that waits for a thread, while two wait for the rank."""
    waiting = [row(rank, *history(30), call(31)) for rank in (0, 2)]
    late = replace(row(1, *history(30), stacks=(MAIN, MAIN), cpu_share=0.0), helper=helper)
    table = JobSummary((waiting[0], late, waiting[1]), world(3), 3, silent_since=0.0, time=silent_s)
    return StallDetector(StallLimits()).judge_silence(table, silent_s)


def test_a_rank_that_waits_for_a_thread_at_work_is_suspected_late():
    assert awaited(None, 7.0).root.subject.rank == 1
    early = awaited(SAVER, 12.0)
    assert (early.verdict, early.suspicion) == (None, None)
    late = awaited(SAVER, 31.0)
    assert "waiting for its thread 'checkpoint_0' at saver.py:32" in late.suspicion
    assert "left as it is until 60 s because it waits for its thread" in late.suspicion
    assert awaited(SAVER, 61.0).root.subject.rank == 1
