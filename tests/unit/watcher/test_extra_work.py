"""Regular extra work of a rank, such as logging, is distinguished from a slow rank."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from holdfast.core.rank_table import ExtraWork, ProcessState, RankState, WaitSlice
from holdfast.watcher.extra_work import add_phases, measure_extra_work
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules import straggler
from holdfast.watcher.straggler_watch import ExtraWorkWatch
from holdfast.watcher.wait_times import SLICES, WaitTimes

RANDOM = np.random.default_rng(0)


def calls(pauses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return begins and ends of calls of 20 ms after each pause."""
    ends = np.cumsum(pauses + 0.02)
    return ends - 0.02, ends


def usual(count: int = 400) -> np.ndarray:
    return 0.1 * RANDOM.lognormal(0.0, 0.1, count)


def test_a_pause_in_every_twentieth_call_is_extra_work() -> None:
    pauses = usual()
    pauses[::20] += 0.6
    work = measure_extra_work(*calls(pauses))
    assert work.share == pytest.approx(0.6 * 20 / calls(pauses)[1][-1], rel=0.15)
    assert work.every_s == pytest.approx(3.0, rel=0.1)
    assert not work.in_phases


def test_irregular_and_rare_pauses_and_slow_steps_are_not() -> None:
    irregular, rare, slow = usual(), usual(), usual()
    irregular[[3, 5, 70, 71, 200, 390]] += 0.6
    rare[[100, 200, 300]] += 2.0
    slow[100:200] *= 3
    for pauses in (irregular, rare, slow, usual(), usual(8)):
        assert measure_extra_work(*calls(pauses)) == ExtraWork()


def test_phases_count_if_they_take_longer() -> None:
    times = WaitTimes(6.0)
    for at in range(12):
        times.sample_phase(3, in_phase=at % 4 == 0)
    assert times.extra_work(3) == ExtraWork(0.25, 0.0, in_phases=True)
    assert times.extra_work(4) == ExtraWork()
    assert add_phases(ExtraWork(0.3, 2.0), 0.2) == ExtraWork(0.3, 2.0)


def ranks(*rank_0: ExtraWork, loader: float = 0.0) -> list[RankState]:
    """Return nine ranks of which rank 0 waits least."""
    states = [
        RankState(
            rank=rank,
            host=f"node{rank}",
            life=ProcessState.RUNNING,
            waits=tuple(WaitSlice(at, 0.4 if rank else 0.1, 5) for at in range(SLICES)),
        )
        for rank in range(9)
    ]
    work = rank_0[0] if rank_0 else ExtraWork()
    return [replace(states[0], extra_work=work, loader_share=loader), *states[1:]]


def is_accused(states: list[RankState]) -> bool:
    return straggler.judge(states, len(states)) is not None


def test_extra_work_that_explains_the_waits_is_a_note_and_no_slow_rank() -> None:
    states = ranks(ExtraWork(0.28, 3.0))
    assert is_accused(ranks())
    assert not is_accused(states)
    note = straggler.find_extra_work(states)
    assert note is not None
    assert str(note.level) == "note"
    assert note.message.startswith("rank 0 does extra work every 3.0 s, 28% of the time, and the")
    assert straggler.find_extra_work(ranks(ExtraWork(0.1, 3.0))) is None
    phases = straggler.find_extra_work(ranks(ExtraWork(0.2, 0.0, in_phases=True)))
    assert phases is not None
    assert "extra work in phases" in phases.message


def test_a_slow_rank_that_also_logs_and_one_with_a_slow_loader_are_slow() -> None:
    assert is_accused(ranks(ExtraWork(0.1, 3.0)))
    assert is_accused(ranks(ExtraWork(0.28, 3.0), loader=0.28))
    assert straggler.find_extra_work(ranks(ExtraWork(0.28, 3.0), loader=0.28)) is None
    assert straggler.find_extra_work([]) is None


def test_a_rank_is_noted_once() -> None:
    watch = ExtraWorkWatch(60.0)
    table = JobSummary(tuple(ranks(ExtraWork(0.28, 3.0))), {}, 9, 1000.0, 1000.0)
    assert watch.judge(table) is not None
    assert watch.judge(replace(table, time=2000.0)) is None
    assert ExtraWorkWatch(0.0).judge(table) is None
