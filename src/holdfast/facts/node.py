"""The ranks of one node, looked at from outside: cheaply all the time, closely when they are silent.

A :class:`Summary` is what one node says of its ranks; the leader combines those of all nodes into one table.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from holdfast import blackbox
from holdfast.errors import BoxUnreadable
from holdfast.facts import completion, processes, stacks
from holdfast.facts.boxes import Box, step_seconds
from holdfast.facts.dump_requests import DumpPlace, DumpRequests
from holdfast.facts.processes import Process
from holdfast.facts.ranks import Group, Life, RankState, Stack
from holdfast.facts.waiting import Waiting
from holdfast.findings import Fact, Finding, Unknown

#: Calls remembered a rank in a close look; fewer in a large job, so that the leader's table stays small.
RECENT_CALLS = 256
RECENT_CALLS_OF_ALL = 1 << 16
STACK_LIMIT_S = 1.5
BOOTSTRAP = "/holdfast/runtime/bootstrap.py"
STEPS_EVERY_S = 5.0
CHILDREN_EVERY_S = 1.0
#: A child that went this long before the rank fell silent may have to do with it; earlier ones were of another epoch.
CHILD_MARGIN_S = 5.0
#: A rank that advanced within this time is running: /proc need not be asked.
TRUSTED_S = 2.0


@dataclass(frozen=True)
class Worker:
    """A local rank: its process, where its box lies, and where its torch can be asked for a dump."""

    rank: int
    pid: int
    box: Path
    dumps: DumpPlace | None = None


class Summary(msgspec.Struct, frozen=True):
    """What is known of some ranks at one moment. ``silent_since`` is when any of them last advanced (Unix s).

    ``health`` is what the watchers found wrong with their hosts; of the whole job, only what other nodes told.
    ``agent`` tells the agent of this node from all others, also from one on a host of the same name.
    """

    ranks: tuple[RankState, ...]
    groups: dict[str, Group]
    world_size: int
    silent_since: float
    time: float
    facts: tuple[Fact, ...] = ()
    health: tuple[Finding, ...] = ()
    agent: str = ""


class Node:
    """The local ranks of one generation. ``window_s``: over how many seconds their waiting is measured, 0 for not."""

    def __init__(self, workers: Sequence[Worker], world_size: int, window_s: float = 0.0) -> None:
        self._waiting = Waiting(window_s)
        self._ranks = {worker.rank: _Rank(worker) for worker in workers}
        self._world_size = world_size
        self._recent = max(4, min(RECENT_CALLS, RECENT_CALLS_OF_ALL // max(world_size, 1)))

    def exits(self, codes: Mapping[int, int]) -> None:
        """Take note of exit codes that the agent saw (negative: ended by that signal)."""
        for rank, code in codes.items():
            if rank in self._ranks:
                self._ranks[rank].exit_code = code

    def warnings(self) -> list[tuple[int, str, str]]:
        """What ranks have warned of since the last call: rank, about what, and the sentence."""
        return [(number, *each) for number, rank in self._ranks.items() for each in rank.new_warnings()]

    def look(self) -> Summary:
        """The cheap look: boxes and process states, no stacks."""
        boxes = {number: rank.box for number, rank in self._ranks.items() if rank.box is not None}
        self._waiting.look(boxes, time.time())
        states = [rank.state() for rank in self._ranks.values()]
        return self._summary([replace(state, waits=self._waiting.of(state.rank)) for state in states])

    def look_closer(self, *, stacks: bool = True) -> Summary:
        """The close look: recent calls, and, unless told not to, one more stack sample a rank, bounded in time.

        With the samples, ranks whose backend does not say what is over are asked for a dump; a later look picks it up.
        """
        self._sample(stacks=stacks)
        return self._summary([rank.closer_state(self._recent) for rank in self._ranks.values()])

    def _sample(self, *, stacks: bool) -> None:
        living = [rank for rank in self._ranks.values() if rank.exit_code is None]
        for rank in living:
            rank.processes.append(processes.look(rank.worker.pid))
        if stacks:
            self.ask_for_dumps()
            wanted = {rank.worker.pid: Path(f"{rank.worker.box}.stacks") for rank in living}
            taken = _stacks(wanted)
            for rank in living:
                rank.samples.append(taken[rank.worker.pid])

    def ask_for_dumps(self) -> None:
        """Ask the living ranks for dumps where they may help; a later look picks them up."""
        for rank in self._ranks.values():
            if rank.exit_code is None:
                rank.ask_for_dump()

    def _summary(self, states: list[RankState]) -> Summary:
        groups, states = agree_on_groups([(state, self._ranks[state.rank].groups()) for state in states])
        facts = next((rank.facts() for rank in self._ranks.values() if rank.box is not None), ())
        newest = max((state.progress for state in states), default=time.time())
        return Summary(tuple(states), groups, self._world_size, newest, time.time(), facts)


def _stacks(wanted: Mapping[int, Path]) -> Mapping[int, Stack | Unknown]:
    taken = stacks.sample_many(wanted, timeout_s=STACK_LIMIT_S, fallback_signal=blackbox.STACK_SIGNAL)
    found: dict[int, Stack | Unknown] = {}
    for pid, threads in taken.items():
        found[pid] = threads if isinstance(threads, Unknown) else _without_launcher(stacks.main_thread(threads))
    return found


def _without_launcher(stack: Stack | Unknown) -> Stack | Unknown:
    """Cut off the outermost frames, which are our bootstrap's: the script begins above them."""
    if isinstance(stack, Unknown):
        return stack
    cut = next((at for at, frame in enumerate(stack.frames) if frame.file.endswith(BOOTSTRAP)), len(stack.frames))
    return replace(stack, frames=stack.frames[:cut] or stack.frames)


class _Rank:
    """One local rank and what was seen of it so far."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.exit_code: int | None = None
        self.box: Box | None = None
        self.trouble = "its box is not there yet"
        self.processes: deque[Process | Unknown] = deque(maxlen=2)
        self.samples: deque[Stack | Unknown] = deque(maxlen=2)
        self._children = processes.ChildrenWatch(worker.pid)
        self._children_at = 0.0
        self._begun = time.time()
        self._memory = processes.memory_kills(worker.pid)
        self._steps_at = 0.0
        self._p99: float | None = None
        self._dumps = DumpRequests(worker.pid, worker.dumps) if worker.dumps is not None else None
        self._begun_calls = 0
        self._warned = 0

    def open(self) -> Box | None:
        """The box, once it can be opened."""
        if self.box is None and self.worker.box.exists():
            try:
                self.box = Box(self.worker.box)
            except BoxUnreadable as error:
                self.trouble = str(error)
        return self.box

    def groups(self) -> dict[str, Group]:
        """The process groups that this rank knows."""
        return self.box.read_notes().groups() if self.box is not None else {}

    def facts(self) -> tuple[Fact, ...]:
        """The facts that the box keeps."""
        notes = self.box.read_notes().facts if self.box is not None else []
        return tuple(msgspec.convert(fact, Fact, strict=False) for fact in notes)

    def new_warnings(self) -> list[tuple[str, str]]:
        """Those that were not given yet."""
        found = self.box.read_notes().warnings[self._warned :] if self.box is not None else []
        self._warned += len(found)
        return found

    def state(self) -> RankState:
        """What is known now, without looking closer."""
        box = self.open()
        self._remember_children()
        if box is None:
            return RankState(
                rank=self.worker.rank,
                pid=self.worker.pid,
                life=self._life(0.0),
                exit_code=self.exit_code,
                started=self._begun,
                progress=self._begun,
                unseen=(self.trouble,),
            )
        notes, step = box.read_notes(), box.step()
        progress = max(
            box.last_change(), step.since if step.counted else 0.0, notes.ended.time if notes.ended else 0.0,
            self._last_completion(box),
        )  # fmt: skip
        return RankState(
            rank=self.worker.rank,
            host=box.header.host,
            pid=self.worker.pid,
            life=self._life(progress),
            exit_code=self.exit_code,
            started=box.header.started,
            progress=progress,
            step=step.number if step.counted else None,
            counted=step.counted,
            saved=notes.saved,
            loaded=notes.loaded,
            preempted=notes.preempted,
            trouble=notes.troubles[-1] if notes.troubles else None,
            phase=step.phase or None,
            phase_budget_s=step.budget_s if step.phase else None,
            phase_since=step.phase_since if step.phase else 0.0,
            step_p99_s=self._step_p99(box),
            groups=box.progress(),
            pending=tuple(box.pending()),
            raised=notes.raised,
            ended=notes.ended,
        )

    def closer_state(self, calls: int) -> RankState:
        """All that is known, with the newest ``calls``, stacks and what passed between the last two looks."""
        if self._dumps is not None:
            self._dumps.read()
        state = self._settled(self.state())
        seen = [sample for sample in self.samples if isinstance(sample, Stack)]
        unseen = [sample.why for sample in list(self.samples)[-1:] if isinstance(sample, Unknown)]
        looks = [look for look in self.processes if isinstance(look, Process)]
        passed = processes.between(*looks) if len(looks) == 2 else None
        return replace(
            state,
            recent=tuple(self.box.recent(calls)) if self.box is not None else (),
            stacks=tuple(seen), unseen=(*state.unseen, *unseen),
            children=self._children.look(since=state.progress - CHILD_MARGIN_S),
            cpu_share=passed.cpu_share if passed else None, io_bytes=passed.io_bytes if passed else None,
            blocked_on=looks[-1].blocked_on if looks else None, out_of_memory=self._out_of_memory(),
        )  # fmt: skip

    def ask_for_dump(self) -> None:
        """Ask torch how far the device is, where the box has collectives of which it cannot tell."""
        box = self.open()
        if self._dumps is not None and box is not None and any(call.is_doubtful for call in box.pending()):
            self._forget_old_dumps(box, self._dumps)
            self._dumps.ask()

    def _settled(self, state: RankState) -> RankState:
        """``state``, with what torch's dump says of collectives whose completion the box does not know."""
        if self.box is None or not any(call.is_doubtful for call in state.pending):
            return state
        if self._dumps is None or self._dumps.dump is None:
            why = "its torch is not asked for dumps" if self._dumps is None else self._dumps.trouble
            tried = why and len(self.samples) == self.samples.maxlen  # the first look has only just asked
            return replace(state, unseen=(*state.unseen, f"completion on NCCL: {why}")) if tried else state
        return completion.settle(state, self._dumps.dump, self.box.collective)

    def _last_completion(self, box: Box) -> float:
        """When the device last completed a call, as far as a dump told that is not out of date."""
        if self._dumps is None:
            return 0.0
        self._forget_old_dumps(box, self._dumps)
        return completion.newest(self._dumps.dump, time.time()) if self._dumps.dump is not None else 0.0

    def _forget_old_dumps(self, box: Box, dumps: DumpRequests) -> None:
        """Dumps, and requests, from before the newest call say nothing any more."""
        begun = box.begun
        if begun != self._begun_calls:
            self._begun_calls = begun
            dumps.advanced()

    def _remember_children(self) -> None:
        """Now and then, so that a data-loader worker that died is known to have been there."""
        if self.exit_code is None and time.monotonic() - self._children_at > CHILDREN_EVERY_S:
            self._children_at = time.monotonic()
            self._children.look()

    def _life(self, advanced: float) -> Life:
        if self.exit_code is not None:
            return Life.DEAD
        if time.time() - advanced < TRUSTED_S:
            return Life.RUNNING  # it has just advanced; /proc need not be asked
        look = processes.look(self.worker.pid)
        return look.life if isinstance(look, Process) else Life.UNKNOWN

    def _out_of_memory(self) -> bool:
        return self.exit_code == -9 and processes.memory_killed(self.worker.pid, self._memory) is True

    def _step_p99(self, box: Box) -> float | None:
        if time.monotonic() - self._steps_at > STEPS_EVERY_S:
            self._steps_at = time.monotonic()
            durations = step_seconds(box.table())
            self._p99 = float(np.percentile(durations, 99)) if len(durations) else None
        return self._p99


def agree_on_groups(seen: Sequence[tuple[RankState, Mapping[str, Group]]]) -> tuple[dict[str, Group], list[RankState]]:
    """One table of groups over ranks. A name that two ranks give to different members is told apart by them.

    That happens after ``new_group`` was called by some ranks only: from then on their counters, and names, differ.
    """
    kinds: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for _, groups in seen:
        for name, group in groups.items():
            if group.ranks is not None:
                kinds[name].add(group.ranks)
    doubtful = {name for name, members in kinds.items() if len(members) > 1}
    table: dict[str, Group] = {}
    states = []
    for state, groups in seen:
        renamed = {name: f"{name} of {groups[name].ranks}" for name in doubtful if name in groups}
        for name, group in groups.items():
            key = renamed.get(name, name)
            if key not in table or table[key].ranks is None:
                table[key] = replace(group, name=key)
        states.append(_rename(state, renamed) if renamed else state)
    return table, states


def _rename(state: RankState, names: Mapping[str, str]) -> RankState:
    return replace(
        state,
        groups={names.get(name, name): progress for name, progress in state.groups.items()},
        pending=tuple(replace(call, group=names.get(call.group, call.group)) for call in state.pending),
        recent=tuple(replace(call, group=names.get(call.group, call.group)) for call in state.recent),
    )


def _last_seen(state: RankState, late_s: float) -> RankState:
    """A rank whose node fell silent: nobody knows any more whether it lives."""
    life = Life.UNKNOWN if state.life == Life.RUNNING else state.life
    return replace(state, life=life, unseen=(*state.unseen, f"its node last reported {late_s:.0f} s ago"))


def combine(summaries: Sequence[Summary], now: float, oldest_s: float) -> Summary:
    """The table of the whole job from its nodes' summaries; ranks of a node that fell silent are marked unseen."""
    states: list[RankState] = []
    groups: dict[str, Group] = {}
    for summary in summaries:
        late = now - summary.time
        states += [_last_seen(state, late) if late > oldest_s else state for state in summary.ranks]
        groups |= {
            name: group for name, group in summary.groups.items() if name not in groups or groups[name].ranks is None
        }
    first = summaries[0]
    newest = max(summary.silent_since for summary in summaries)
    states.sort(key=lambda state: state.rank)
    health = tuple(claim for summary in summaries for claim in summary.health)
    return Summary(tuple(states), groups, first.world_size, newest, now, first.facts, health)
