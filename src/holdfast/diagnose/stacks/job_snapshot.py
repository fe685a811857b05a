"""A job as its stacks show it: what each rank waits in, and which ranks advance."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.core.rank_table import ProcessState, RankState, ThreadStack
from holdfast.diagnose.stacks.wait_kinds import StackWait, find_wait
from holdfast.watcher.rules import roots, stall
from holdfast.watcher.rules.call_sites import SourceContexts
from holdfast.watcher.rules.stall import StallLimits

#: Confidence factor of claims from stacks: all ranks sampled, some missing, one sample only.
ALL_SAMPLED, SOME_SAMPLED, SAMPLED_ONCE = 0.95, 0.75, 0.7
#: A shorter stall may just be a long step, which lowers the confidence by this factor.
LONG_STALL_S, SHORT_STALL_FACTOR = 10.0, 0.75
#: Process states in which the kernel does not run a process.
FROZEN_STATES = (ProcessState.STOPPED, ProcessState.DISK)


@dataclass(frozen=True)
class JobSnapshot:
    """The rows to judge, what each rank waits in, and why slow ranks count as advancing.

    ``gone`` are ranks that had a process and have none; nothing is known about ``absent`` ranks.
    """

    ranks: Mapping[int, RankState]
    waits: Mapping[int, StackWait]
    advancing: Mapping[int, str]
    world_size: int
    source: SourceContexts
    gone: tuple[int, ...]
    absent: tuple[int, ...]

    @property
    def stopped(self) -> list[RankState]:
        """Ranks that are stopped (SIGSTOP or a debugger)."""
        return [state for state in self.ranks.values() if state.life == ProcessState.STOPPED]

    @property
    def stuck_outside(self) -> list[RankState]:
        """Ranks that neither wait for other ranks nor advance, the most severe first."""
        stuck = [
            state
            for state in self.ranks.values()
            if state.life == ProcessState.STOPPED
            or (
                (state.stacks or state.life == ProcessState.DISK)
                and state.rank not in self.waits
                and state.rank not in self.advancing
            )
        ]
        return sorted(stuck, key=lambda state: (roots.severity(state), state.rank))

    @property
    def all_sampled(self) -> bool:
        """Whether the stack of every rank of the job was sampled."""
        return not self.absent and len(self.sampled) == len(self.ranks)

    @property
    def confidence_factor(self) -> float:
        """How far a claim from these stacks is reliable."""
        if any(len(state.stacks) < 2 for state in self.sampled):
            return SAMPLED_ONCE
        factor = ALL_SAMPLED if self.all_sampled else SOME_SAMPLED
        stalled_s = max(
            (
                stall_time_s(state)
                for state in self.ranks.values()
                if state.rank not in self.advancing
            ),
            default=0.0,
        )
        return factor * SHORT_STALL_FACTOR if 0 < stalled_s < LONG_STALL_S else factor

    @property
    def sampled(self) -> list[RankState]:
        """Ranks whose stack could be read."""
        return [state for state in self.ranks.values() if state.stacks]


def build_snapshot(
    ranks: Sequence[RankState],
    threads: Mapping[int, Sequence[ThreadStack]],
    world_size: int,
    source: SourceContexts,
    gone: Sequence[int],
    running: Collection[int],
) -> JobSnapshot:
    """Return the snapshot of these rows.

    ``threads`` maps ranks to all stacks of the newest sample, the main thread's first; ``running``
    are ranks whose main thread was on a core in every sample.
    """
    rows = {state.rank: state for state in ranks}
    waits = {}
    for state in ranks:
        if state.stacks:
            main = state.stacks[-1]
            wait = find_wait((main, *threads.get(state.rank, (main,))[1:]), source)
            if wait is not None:
                waits[state.rank] = wait
    advancing = {
        state.rank: why for state in ranks if (why := _why_advancing(state, waits.get(state.rank)))
    }
    for rank in running:
        if rank not in waits:
            advancing.setdefault(rank, "it was running on a core in every sample")
    absent = tuple(rank for rank in range(world_size) if rank not in rows and rank not in gone)
    return JobSnapshot(rows, waits, advancing, world_size, source, tuple(gone), absent)


def _why_advancing(state: RankState, wait: StackWait | None) -> str | None:
    """Return why a rank counts as advancing; None if there is no sign of it."""
    if state.life == ProcessState.STOPPED:
        return None
    if any(not stall.same_stack(one, other) for one, other in pairwise(state.stacks)):
        return "its stack changes from one sample to the next"
    if wait is not None:  # a waiting rank may spin or poll, which is not progress
        return "it was woken up in the call that it waits in" if state.woke else None
    phase = stall.visible_phase_extension(state, StallLimits())
    return stall.describe_activity(state) or (
        phase.why if phase is not None and state.life != ProcessState.DISK else None
    )


def stall_time_s(state: RankState) -> float:
    """Return for how long, at least, a rank has been at one line: asleep, or seen there."""
    seen_s = state.stacks[-1].time - state.stacks[0].time if state.stacks else 0.0
    return max(state.asleep_s or 0.0, seen_s)
