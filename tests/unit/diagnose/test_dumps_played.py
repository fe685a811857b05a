"""Simulated jobs, healthy or with a rank that stops, and the verdicts over their dumps.

Ranks execute the calls of one program (collectives of three kinds of groups, sends and receives).
Each device executes its calls in order, and a call only when all members have reached it. Hosts run
ahead, ring buffers are short, and the last completions may not be recorded yet.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from holdfast.core.findings import Level, Verdict
from holdfast.diagnose.dumps import rules
from tests.unit.diagnose.many_dumps import Groups, Recorder, table

TENSOR = 2


@dataclass(frozen=True)
class ProgramCall:
    """One call; ``ranks`` are its members, the sender before the receiver."""

    group: str
    ranks: tuple[int, ...]
    is_transfer: bool = False


class SimulatedJob:
    """A random job; ``stops`` is the rank that stops making calls at some time, or None."""

    def __init__(self, seed: int, *, fault: bool, unrecorded: int = 0) -> None:
        self.random = random.Random(seed)
        self.size = self.random.choice((4, 6, 8))
        self.groups = self._groups()
        self.program = self._program()
        self.calls_by_rank = {
            rank: [call for call in self.program if rank in call.ranks] for rank in range(self.size)
        }
        self.stops = self.random.randrange(self.size) if fault else None
        self.limit = {rank: len(calls) for rank, calls in self.calls_by_rank.items()}
        if self.stops is not None:
            self.limit[self.stops] = self.random.randint(3, self.limit[self.stops] - 1)
        self.done = self._simulate()
        self.unrecorded = unrecorded

    def _groups(self) -> Groups:
        lanes = [range(first, first + TENSOR) for first in range(0, self.size, TENSOR)]
        stages = [range(first, self.size, TENSOR) for first in range(TENSOR)]
        parts = [("tensor", each) for each in lanes] + [("pipeline", each) for each in stages]
        return {
            "0": ("default_pg", range(self.size)),
            **{str(at): each for at, each in enumerate(parts, 1)},
        }

    def _program(self) -> list[ProgramCall]:
        calls: list[ProgramCall] = []
        for _ in range(self.random.randint(30, 120)):
            kind = self.random.choice(("default_pg", "tensor", "pipeline", "transfer"))
            names = [name for name, (each, _) in self.groups.items() if each == kind]
            if kind == "transfer":
                name = self.random.choice(
                    [name for name, (each, _) in self.groups.items() if each == "pipeline"]
                )
                pair = list(self.groups[name][1])[
                    (at := self.random.randrange(self.size // TENSOR - 1)) : at + 2
                ]
                self.random.shuffle(pair)
                calls.append(ProgramCall(name, tuple(pair), is_transfer=True))
            calls += [ProgramCall(name, tuple(self.groups[name][1])) for name in names]
        return calls

    def _simulate(self) -> dict[int, int]:
        """Return how many of its calls each device has executed when no call can proceed."""
        done = dict.fromkeys(range(self.size), 0)
        for call in self.program:
            if all(self._is_next(call, rank, done[rank]) for rank in call.ranks):
                for rank in call.ranks:
                    done[rank] += 1
        return done

    def _is_next(self, call: ProgramCall, rank: int, done: int) -> bool:
        return done < self.limit[rank] and self.calls_by_rank[rank][done] is call

    def judge_dumps(self, ring: int) -> Verdict:
        """Return the verdict over the dumps of all ranks, with ring buffers of ``ring`` calls."""
        recorders = [self._recorder(rank) for rank in range(self.size)]
        return rules.judge(table(self.random.sample(recorders, len(recorders)), ring))

    def _recorder(self, rank: int) -> Recorder:
        recorder = Recorder(rank, self.groups)
        recorded = self.done[rank] - self.random.randint(0, self.unrecorded)
        entered = min(self.limit[rank], self.done[rank] + 1 + self.random.randint(0, 15))
        for at, call in enumerate(
            self.calls_by_rank[rank][: self.limit[rank] if rank == self.stops else entered]
        ):
            state = "completed" if at < recorded else "scheduled"
            if call.is_transfer:
                members: Sequence[int] = list(self.groups[call.group][1])
                sends = call.ranks[0] == rank
                peer = members.index(call.ranks[sends])
                recorder.transfer("send" if sends else "recv", peer, call.group, state=state)
            else:
                recorder.call("all_reduce", call.group, state=state, line=40 + at % 7)
        return recorder


def named_ranks(verdict: Verdict) -> set[int | None]:
    """Return the ranks in root and suspects."""
    claims = [verdict.root, *verdict.suspects] if verdict.root is not None else []
    return {claim.subject.rank for claim in claims}


RINGS = pytest.mark.parametrize("ring", [40, 60, 2000])


@RINGS
@pytest.mark.parametrize("seed", range(40))
def test_only_the_stopped_rank_is_named(seed: int, ring: int) -> None:
    job = SimulatedJob(seed, fault=True)
    assert named_ranks(job.judge_dumps(ring)) == {job.stops}


@RINGS
@pytest.mark.parametrize("seed", range(40))
def test_completed_job_names_no_rank(seed: int, ring: int) -> None:
    root = SimulatedJob(seed, fault=False, unrecorded=3).judge_dumps(ring).root
    assert root is None or (root.level, root.subject.rank) == (Level.UNKNOWN, None)
