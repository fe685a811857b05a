"""Made-up jobs played to their end or to a rank that stops: dumps of what their devices would have come to.

Ranks work off the calls of one program (collectives of three kinds of groups, and sends and receives), each device in
order and a call only when all its members have come to it. Hosts run ahead, rings are short, and the last completions
are not noticed yet.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from holdfast.findings import Level, Verdict
from holdfast.rules import dumps as rules
from tests.facts.many_dumps import Groups, Recorder, table

TENSOR = 2


@dataclass(frozen=True)
class Call:
    """One call of the program; ``ranks`` are its members, a sender before its receiver."""

    group: str
    ranks: tuple[int, ...]
    is_transfer: bool = False


class Job:
    """A job made up from ``seed``; ``stops`` is the rank that makes no further call at some time, or None."""

    def __init__(self, seed: int, *, fault: bool, unnoticed: int = 0) -> None:
        self.random = random.Random(seed)
        self.size = self.random.choice((4, 6, 8))
        self.groups = self._groups()
        self.program = self._program()
        self.mine = {rank: [call for call in self.program if rank in call.ranks] for rank in range(self.size)}
        self.stops = self.random.randrange(self.size) if fault else None
        self.limit = {rank: len(calls) for rank, calls in self.mine.items()}
        if self.stops is not None:
            self.limit[self.stops] = self.random.randint(3, self.limit[self.stops] - 1)
        self.done = self._play()
        self.unnoticed = unnoticed

    def _groups(self) -> Groups:
        lanes = [range(first, first + TENSOR) for first in range(0, self.size, TENSOR)]
        stages = [range(first, self.size, TENSOR) for first in range(TENSOR)]
        parts = [("tensor", each) for each in lanes] + [("pipeline", each) for each in stages]
        return {"0": ("default_pg", range(self.size)), **{str(at): each for at, each in enumerate(parts, 1)}}

    def _program(self) -> list[Call]:
        calls: list[Call] = []
        for _ in range(self.random.randint(30, 120)):
            kind = self.random.choice(("default_pg", "tensor", "pipeline", "transfer"))
            names = [name for name, (each, _) in self.groups.items() if each == kind]
            if kind == "transfer":
                name = self.random.choice([name for name, (each, _) in self.groups.items() if each == "pipeline"])
                pair = list(self.groups[name][1])[(at := self.random.randrange(self.size // TENSOR - 1)) : at + 2]
                self.random.shuffle(pair)
                calls.append(Call(name, tuple(pair), is_transfer=True))
            calls += [Call(name, tuple(self.groups[name][1])) for name in names]
        return calls

    def _play(self) -> dict[int, int]:
        """How many of its calls each device has worked off when nothing moves any more."""
        done = dict.fromkeys(range(self.size), 0)
        for call in self.program:
            if all(self._is_next(call, rank, done[rank]) for rank in call.ranks):
                for rank in call.ranks:
                    done[rank] += 1
        return done

    def _is_next(self, call: Call, rank: int, done: int) -> bool:
        return done < self.limit[rank] and self.mine[rank][done] is call

    def dumps(self, ring: int) -> Verdict:
        """The verdict over the dumps of all ranks, each of the last ``ring`` calls."""
        recorders = [self._recorder(rank) for rank in range(self.size)]
        return rules.judge(table(self.random.sample(recorders, len(recorders)), ring))

    def _recorder(self, rank: int) -> Recorder:
        recorder = Recorder(rank, self.groups)
        noticed = self.done[rank] - self.random.randint(0, self.unnoticed)
        entered = min(self.limit[rank], self.done[rank] + 1 + self.random.randint(0, 15))
        for at, call in enumerate(self.mine[rank][: self.limit[rank] if rank == self.stops else entered]):
            state = "completed" if at < noticed else "scheduled"
            if call.is_transfer:
                members: Sequence[int] = list(self.groups[call.group][1])
                sends = call.ranks[0] == rank
                peer = members.index(call.ranks[sends])
                recorder.transfer("send" if sends else "recv", peer, call.group, state=state)
            else:
                recorder.call("all_reduce", call.group, state=state, line=40 + at % 7)
        return recorder


def named(verdict: Verdict) -> set[int | None]:
    """All whom the verdict accuses."""
    claims = [verdict.root, *verdict.suspects] if verdict.root is not None else []
    return {claim.subject.rank for claim in claims}


RINGS = pytest.mark.parametrize("ring", [40, 60, 2000])


@RINGS
@pytest.mark.parametrize("seed", range(40))
def test_the_rank_that_stops_is_named_and_nobody_else(seed: int, ring: int) -> None:
    job = Job(seed, fault=True)
    assert named(job.dumps(ring)) == {job.stops}


@RINGS
@pytest.mark.parametrize("seed", range(40))
def test_of_a_job_that_ran_to_its_end_nobody_is_named(seed: int, ring: int) -> None:
    root = Job(seed, fault=False, unnoticed=3).dumps(ring).root
    assert root is None or (root.level, root.subject.rank) == (Level.UNKNOWN, None)
