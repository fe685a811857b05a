"""A job seen from outside in two looks a second apart: stacks of all threads, what the processes use and wait for.

Where they show ranks that stand still, and the kernel does not say that one of them has slept for long, a third look
some seconds later tells a long step from a hang.

Nothing is changed in the job: stacks are read by py-spy without stopping the process, and a signal is sent only to
ranks of ``holdfast run``, whose recorder answers it. Boxes and torch's flight recorder are read where they are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast import blackbox
from holdfast.facts import processes, stacks, stillness
from holdfast.facts.jobs import Job, JobRank
from holdfast.facts.node import BOOTSTRAP, Node, Worker
from holdfast.facts.processes import Process
from holdfast.facts.ranks import Group, Life, Place, RankState, Stack
from holdfast.findings import Unknown

BETWEEN_S = 1.0
#: A rank that has slept for so long makes a third look needless; without one, it comes so much later.
LONG_ASLEEP_S = 10.0
LAST_LOOK_S = 4.0
#: Who sleeps for so long at a time does not poll: when it runs, there was a reason.
_NO_POLLING_S = 0.25
_CLOCK_SLACK_S = 0.1
STACK_LIMIT_S = 1.5

#: The stacks of all threads of one process at one moment, the main thread first.
Threads = tuple[Stack, ...]


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """What two looks at the ranks of a job on one host showed (or those of several hosts, put together).

    ``threads`` has the newest stacks of each rank that could be sampled, by rank. ``boxes`` says that the ranks have
    boxes, so that ``ranks`` and ``groups`` know their collectives; ``silent_since`` is when any of them last advanced
    (Unix s, 0: not known). ``gone`` are ranks that were started on this host alone and have no process any more.
    """

    ranks: tuple[RankState, ...]
    threads: dict[int, Threads]
    groups: dict[str, Group] = {}
    world_size: int
    boxes: bool = False
    silent_since: float = 0.0
    time: float
    gone: tuple[int, ...] = ()
    unseen: tuple[str, ...] = ()


def take(job: Job, between_s: float = BETWEEN_S, last_look_s: float = LAST_LOOK_S) -> Samples:
    """Look at the ranks of ``job`` twice, or a third time where it is not clear that they stand still."""
    node = _node(job)
    looks = [_look(job)]
    if node is not None:
        node.ask_for_dumps()
        node.look_closer(stacks=False)
    _wait(looks[-1], between_s)
    looks.append(_look(job))
    if node is None and _is_unclear(job, looks):
        _wait(looks[-1], last_look_s)
        looks.append(_look(job))
    summary = node.look_closer(stacks=False) if node is not None else None
    recorded = {state.rank: state for state in summary.ranks} if summary is not None else {}
    states = tuple(_state(rank, job, looks, recorded.get(rank.rank)) for rank in job.ranks)
    newest = looks[-1].stacks
    threads = {rank.rank: found for rank in job.ranks if isinstance(found := newest[rank.pid], tuple)}
    return Samples(
        ranks=states,
        threads=threads,
        groups=summary.groups if summary is not None else {},
        world_size=job.world_size,
        boxes=summary is not None,
        silent_since=summary.silent_since if summary is not None else 0.0,
        time=time.time(),
        gone=_gone(job),
        unseen=job.unseen,
    )


def _wait(look: _Look, seconds: float) -> None:
    time.sleep(max(0.0, look.taken_s + seconds - time.monotonic()))


def _is_unclear(job: Job, looks: Sequence[_Look]) -> bool:
    """True where ranks stand still, none of them is stopped, and none is known to have slept for long."""
    last = [seen for seen in looks[-1].processes.values() if isinstance(seen, Process)]
    if any(seen.life in (Life.STOPPED, Life.DISK) for seen in last):
        return False
    if any(slept >= LONG_ASLEEP_S for slept in looks[-1].asleep_s.values()):
        return False
    mains = ([_main_of(look, rank.pid) for look in looks] for rank in job.ranks)
    return any(stands[0] is not None and all(each == stands[0] for each in stands) for stands in mains)


def _main_of(look: _Look, pid: int) -> tuple[Place, ...] | None:
    threads = look.stacks[pid]
    main = stacks.main_thread(threads) if isinstance(threads, tuple) else None
    return main.frames if isinstance(main, Stack) else None


def _gone(job: Job) -> tuple[int, ...]:
    """Ranks without a process, of a job of which all ranks were started on this host."""
    here = {rank.rank for rank in job.ranks}
    return tuple(rank for rank in range(job.world_size) if rank not in here) if job.local_size == job.world_size else ()


def _node(job: Job) -> Node | None:
    """The reader of the boxes, where every rank has one."""
    if not all(rank.box and Path(rank.box).is_file() for rank in job.ranks):
        return None
    workers = [Worker(rank.rank, rank.pid, Path(rank.box), rank.dumps) for rank in job.ranks]
    return Node(workers, job.world_size)


class _Look(msgspec.Struct, frozen=True):
    """One look at all ranks, by process; ``taken_s`` is monotonic."""

    taken_s: float
    processes: Mapping[int, Process | Unknown]
    stacks: Mapping[int, Threads | Unknown]
    asleep_s: Mapping[int, float]


def _look(job: Job) -> _Look:
    taken_s = time.monotonic()
    seen = {rank.pid: processes.look(rank.pid, rank.start_ticks) for rank in job.ranks}
    slept = {rank.pid: stillness.asleep_s(rank.pid) for rank in job.ranks}
    wanted = {rank.pid: Path(f"{rank.box}.stacks") if rank.box else None for rank in job.ranks}
    sampled = stacks.sample_many(wanted, timeout_s=STACK_LIMIT_S, fallback_signal=blackbox.STACK_SIGNAL)
    return _Look(
        taken_s,
        seen,
        {pid: _without_launcher(found) for pid, found in sampled.items()},
        {pid: seconds for pid, seconds in slept.items() if isinstance(seconds, float)},
    )


def _without_launcher(threads: Threads | Unknown) -> Threads | Unknown:
    """Cut off the outermost frames of our bootstrap and of runpy: the script begins above them."""
    if isinstance(threads, Unknown):
        return threads
    return tuple(replace(stack, frames=_script_frames(stack)) for stack in threads)


def _script_frames(stack: Stack) -> tuple[Place, ...]:
    cut = next((at for at, frame in enumerate(stack.frames) if frame.file.endswith(BOOTSTRAP)), len(stack.frames))
    return stack.frames[:cut] or stack.frames


def _state(rank: JobRank, job: Job, looks: Sequence[_Look], recorded: RankState | None) -> RankState:
    """The row of one rank; what a box recorded is kept, and what was seen from outside is put on top."""
    seen = [process for look in looks if isinstance(process := look.processes[rank.pid], Process)]
    passed = processes.between(seen[0], seen[-1]) if len(seen) > 1 else None
    samples = [look.stacks[rank.pid] for look in looks]
    mains = [main for found in samples if isinstance(found, tuple) and isinstance(main := _main(found), Stack)]
    unseen = [samples[-1].why] if isinstance(samples[-1], Unknown) else []
    state = recorded or RankState(rank=rank.rank, host=job.host, pid=rank.pid)
    return replace(
        state,
        host=state.host or job.host,
        life=seen[-1].life if seen else Life.UNKNOWN,
        stacks=tuple(mains),
        cpu_share=passed.cpu_share if passed else None,
        asleep_s=looks[-1].asleep_s.get(rank.pid),
        woke=any(_woke(rank.pid, *pair) for pair in pairwise(looks)),
        io_bytes=passed.io_bytes if passed else None,
        blocked_on=seen[-1].blocked_on if seen else None,
        children=processes.children(rank.pid),
        unseen=(*state.unseen, *unseen),
    )


def _woke(pid: int, before: _Look, after: _Look) -> bool:
    """True where the main thread slept at the first look, for too long to be polling, and ran before the second."""
    first, second = before.asleep_s.get(pid), after.asleep_s.get(pid)
    if first is None or second is None or first < _NO_POLLING_S:
        return False
    return second < after.taken_s - before.taken_s - _CLOCK_SLACK_S


def _main(threads: Threads) -> Stack | Unknown:
    return stacks.main_thread(threads)


def combine(parts: Sequence[Samples]) -> Samples:
    """The samples of a job's hosts as one; of a rank that two hosts report, the first counts."""
    ranks = {state.rank: state for part in reversed(parts) for state in part.ranks}
    return Samples(
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        threads={rank: threads for part in reversed(parts) for rank, threads in part.threads.items()},
        groups={name: group for part in reversed(parts) for name, group in part.groups.items()},
        world_size=max(part.world_size for part in parts),
        boxes=all(part.boxes for part in parts),
        silent_since=max(part.silent_since for part in parts),
        time=max(part.time for part in parts),
        gone=tuple(rank for rank in dict.fromkeys(rank for part in parts for rank in part.gone) if rank not in ranks),
        unseen=tuple(dict.fromkeys(text for part in parts for text in part.unseen)),
    )
