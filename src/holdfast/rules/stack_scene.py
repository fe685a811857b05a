"""A job as stacks show it: what each rank waits in, who advances, who is elsewhere, and how far that can be trusted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.facts.ranks import Life, RankState, Stack
from holdfast.rules import roots, stall
from holdfast.rules.places import Source
from holdfast.rules.stack_waits import Wait, find
from holdfast.rules.stall import Limits

#: By how much less is believed what stacks alone say: with all ranks in view, with some missing, and where a rank was
#: looked at but once.
ALL_SEEN, SOME_SEEN, SEEN_ONCE = 0.95, 0.75, 0.7
#: A job that stands still for less may just be in a long step, and less is believed.
LONG_S, NOT_FOR_LONG = 10.0, 0.75


@dataclass(frozen=True)
class Scene:
    """What is judged: the rows, what each rank waits in, and those that are slow but alive, with the reason.

    ``gone`` are ranks that had a process and have none; ``absent`` are those of which nothing is known.
    """

    ranks: Mapping[int, RankState]
    waits: Mapping[int, Wait]
    alive: Mapping[int, str]
    world_size: int
    source: Source
    gone: tuple[int, ...]
    absent: tuple[int, ...]

    @property
    def stopped(self) -> list[RankState]:
        """Ranks that the kernel does not let run."""
        return [state for state in self.ranks.values() if state.life == Life.STOPPED]

    @property
    def elsewhere(self) -> list[RankState]:
        """Ranks that wait for nobody and do not advance, the most suspicious first."""
        states = [state for state in self.ranks.values() if state.stacks or state.life in (Life.STOPPED, Life.DISK)]
        still = [
            state
            for state in states
            if state.life == Life.STOPPED or (state.rank not in self.waits and state.rank not in self.alive)
        ]
        return sorted(still, key=lambda state: (roots.severity(state), state.rank))

    @property
    def trust(self) -> float:
        """How far a claim from stacks goes."""
        if any(len(state.stacks) < 2 for state in self.sampled):
            return SEEN_ONCE
        seen = ALL_SEEN if not self.absent and len(self.sampled) == len(self.ranks) else SOME_SEEN
        return seen * NOT_FOR_LONG if 0 < self.still_s < LONG_S else seen

    @property
    def still_s(self) -> float:
        """For how long a rank of those that do not advance stands where it is, for sure; 0 where no time is known."""
        return max((still_s(state) for state in self.ranks.values() if state.rank not in self.alive), default=0.0)

    @property
    def sampled(self) -> list[RankState]:
        """Ranks whose stack could be read."""
        return [state for state in self.ranks.values() if state.stacks]


def compose(
    ranks: Sequence[RankState],
    threads: Mapping[int, Sequence[Stack]],
    world_size: int,
    source: Source,
    gone: Sequence[int],
    running: Collection[int],
) -> Scene:
    """The scene of these rows; ``threads`` are all stacks of the newest sample by rank, the main thread's first."""
    rows = {state.rank: state for state in ranks}
    main = {state.rank: state.stacks[-1] for state in ranks if state.stacks}
    waits = {
        rank: wait
        for rank, stack in main.items()
        if (wait := find((stack, *threads.get(rank, (stack,))[1:]), source)) is not None
    }
    alive = {state.rank: why for state in ranks if (why := _alive(state, waits.get(state.rank)))}
    alive |= {rank: "it ran on a core whenever it was looked at" for rank in running if rank not in waits | alive}
    absent = tuple(rank for rank in range(world_size) if rank not in rows and rank not in gone)
    return Scene(rows, waits, alive, world_size, source, tuple(gone), absent)


def _alive(state: RankState, wait: Wait | None) -> str | None:
    """Why a rank that shows the same line may nevertheless be advancing; None where nothing speaks for it."""
    if state.life == Life.STOPPED:
        return None
    if any(not stall.same_stack(one, other) for one, other in pairwise(state.stacks)):
        return "its stack changes from one sample to the next"
    if wait is not None:  # who waits may spin or poll, and that is no progress
        return "it was woken up in what it waited in" if state.woke else None
    phase = stall.visible_phase(state, Limits())
    return stall.doing(state) or (phase.why if phase is not None and state.life != Life.DISK else None)


def still_s(state: RankState) -> float:
    """For how long a rank stands where it is, for sure: as long as it has slept, or was seen there."""
    seen = state.stacks[-1].time - state.stacks[0].time if state.stacks else 0.0
    return max(state.asleep_s or 0.0, seen)
