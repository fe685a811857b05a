"""Decides when silence is examined, and when it gets more time instead of being called a hang.

Stalled: no step, phase or collective of any rank advanced for longer than the stall limit and ten
times the p99 of recent steps, outside the time limit of a phase. Slow is not stuck: a root that
uses CPU, transfers data or changes its stack between two samples gets :data:`BUSY_FACTOR` times as
long, since an endless loop does that, too; one inside a phase (declared by the script or visible in
its stack) gets the limit of that phase. One that waits for the network or for another program gets
no more time than a sleeping one, counted from the last byte. A suspicion is reported before it is
acted on: a rank that sleeps, retries or waits for I/O looks like a hang and may still recover.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.causes import by_name
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.process.rank_stopped import RANK_STOPPED
from holdfast.core.rank_table import ProcessState, RankState, SourceLine, ThreadStack
from holdfast.watcher.rules.helper_threads import user_line

SILENT_STEPS = 10.0
BUSY_CPU_SHARE = 0.3
ACTIVE_IO_BYTES = 1 << 16
#: Seconds without a report after which a node is gone; it sends one twice a second.
NODE_SILENT_S = 8.0
#: The patience with a rank that computes, as a multiple of that with an idle one.
BUSY_FACTOR = 5.0
#: Completed collectives after which a rank without known steps is beyond its setup.
SETUP_CALLS = 20


@dataclass(frozen=True, kw_only=True)
class StallLimits:
    """Seconds of silence allowed: without a phase, and for each recognized phase.

    ``busy_s`` is the patience with a rank that computes, if longer than the default one.
    """

    stall_s: float = 5.0
    first_step_s: float = 60.0
    compile_s: float = 600.0
    checkpoint_s: float = 600.0
    evaluation_s: float = 1800.0
    alone_s: float = 1800.0
    grace_s: float = 30.0
    act_after_s: float = 60.0
    busy_s: float = 0.0

    @property
    def busy_patience_s(self) -> float:
        """The patience with a rank that computes while others wait for it."""
        return max(BUSY_FACTOR * self.act_after_s, self.busy_s)


@dataclass(frozen=True)
class TimeExtension:
    """Why a silent rank is not called stuck yet, and until how many seconds of silence."""

    why: str
    until_s: float


class _PhasePattern(NamedTuple):
    """A regular expression over ``file:function`` of a frame, the phase, and its limit's field.

    Without a limit, the rank waits for something outside of the job, which may never answer.
    """

    pattern: re.Pattern[str]
    phase: str
    limit: str


DOWNLOAD, ANOTHER_PROGRAM = "a reply over the network", "another program"
EVALUATION = "evaluation"
_PHASES = (
    _PhasePattern(
        re.compile(r"/torch/(_inductor|_dynamo|_functorch)/|/triton/|/torch/utils/cpp_extension"),
        "compiling",
        "compile_s",
    ),
    _PhasePattern(
        re.compile(r"/torch/serialization\.py|/torch/distributed/checkpoint/|/safetensors/"),
        "checkpoint",
        "checkpoint_s",
    ),
    _PhasePattern(
        re.compile(
            r":(\w+_)?(save|load|write|read|restore|resume)_(checkpoint|state|pretrained|model)\w*$"
        ),
        "checkpoint",
        "checkpoint_s",
    ),
    _PhasePattern(
        re.compile(
            r"/huggingface_hub/|/urllib/request\.py|/http/client\.py|/requests/|/urllib3/|/httpx/"
            r"|/aiohttp/|/botocore/"
        ),
        DOWNLOAD,
        "",
    ),
    _PhasePattern(
        re.compile(r"/subprocess\.py:(wait|communicate|_wait|_communicate|run|call)$"),
        ANOTHER_PROGRAM,
        "",
    ),
    _PhasePattern(
        re.compile(r":(\w+_)?(eval|evaluate|evaluation|validate|validation)(_\w+)?$"),
        EVALUATION,
        "evaluation_s",
    ),
)


def threshold_s(ranks: Sequence[RankState], limits: StallLimits) -> float:
    """Return the seconds of silence after which a job is examined.

    That is the stall limit, or ten times the p99 step of the slowest rank. Ranks that have saved
    and exit after a scheduler's warning get the scheduler's grace period.
    """
    if any(state.preempted is not None for state in ranks):
        return max(limits.stall_s, limits.grace_s)
    slowest = max((state.step_p99_s or 0.0 for state in ranks), default=0.0)
    return max(limits.stall_s, SILENT_STEPS * slowest)


def act_after_s(
    cause: str, ranks: Sequence[RankState], limits: StallLimits, *, may_restart: bool = True
) -> float:
    """Return the seconds of silence after which a job is ended or restarted for ``cause``.

    0 means at once. A job that a scheduler is about to end gets no more than the grace period,
    which :func:`threshold_s` includes. A node that stopped reporting is gone. A stopped rank is
    replaced at once, but it may be resumed: a job that would end without a restart gets the same
    patience as for a rank that sleeps.
    """
    may_recover = by_name(cause).may_recover or (cause == RANK_STOPPED.name and not may_restart)
    if (
        not may_recover
        or any(state.preempted is not None for state in ranks)
        or (cause == PEER_LOST.name and any(is_node_silent(state) for state in ranks))
    ):
        return 0.0
    return limits.act_after_s


def is_node_late(state: RankState) -> bool:
    """Return whether the node of the rank did not report lately, but may only be slow."""
    return 0 < state.node_silent_s < NODE_SILENT_S and state.exit_code is None


def is_node_silent(state: RankState) -> bool:
    """Return whether the whole node of the rank stopped reporting, which no pause explains."""
    return state.node_silent_s >= NODE_SILENT_S and state.exit_code is None


def extension(
    root: RankState, limits: StallLimits, *, is_awaited: bool = True
) -> TimeExtension | None:
    """Return why a silent rank may need more time; None without a reason.

    ``is_awaited``: others wait for it in a collective. A rank that no other waits for may sleep for
    good reasons (a server, a last upload), so it gets more time. A rank in state D waits for a disk
    or file system, which is normal while it saves or loads.
    """
    if root.life not in (ProcessState.RUNNING, ProcessState.DISK):
        return None
    if root.phase and root.phase_budget_s:
        return TimeExtension(f"it declared the phase {root.phase!r}", root.phase_budget_s)
    if is_awaited and waits_outside(root):
        until_s = max(root.active - root.progress, 0.0) + limits.act_after_s
        return TimeExtension(f"it waits for {visible_phase(root)}", until_s)
    activity, shown = describe_activity(root), visible_phase_extension(root, limits)
    if activity:
        return TimeExtension(activity, _busy_until_s(root, limits, shown, is_awaited=is_awaited))
    return (
        shown
        or _helper_extension(root, limits, is_awaited=is_awaited)
        or _idle_extension(root, limits, is_awaited=is_awaited)
    )


def _helper_extension(
    root: RankState, limits: StallLimits, *, is_awaited: bool
) -> TimeExtension | None:
    """Return the extension for a thread at work for which the main thread waits: a late save."""
    helper = root.helper
    if helper is None or not is_awaited:
        return None
    line = user_line(helper)
    limit_s = max(limits.act_after_s, limits.first_step_s if is_before_first_step(root) else 0.0)
    at = f" at {line.short}" if line is not None else ""
    return TimeExtension(f"it waits for its thread {helper.thread!r}{at}", limit_s)


def _idle_extension(
    root: RankState, limits: StallLimits, *, is_awaited: bool
) -> TimeExtension | None:
    if is_before_first_step(root):
        limit_s = limits.first_step_s if is_awaited else limits.alone_s
        return TimeExtension("it has not finished its first step", limit_s)
    alone = TimeExtension("no rank waits for it in a collective", limits.alone_s)
    return None if is_awaited else alone


def waits_outside(root: RankState) -> bool:
    """Return whether the newest stack shows a wait for the network or for another program."""
    match = _match_phase(root)
    return match is not None and not match[0].limit


def _busy_until_s(
    root: RankState, limits: StallLimits, shown: TimeExtension | None, *, is_awaited: bool
) -> float:
    """Return the seconds of silence allowed to a rank that computes.

    Unlimited if no rank waits for it. Preparing data before the first step takes long.
    """
    if not is_awaited:
        return float("inf")
    first_s = limits.alone_s if is_before_first_step(root) else 0.0
    return max(limits.busy_patience_s, first_s, shown.until_s if shown else 0.0)


def extension_for_all(ranks: Sequence[RankState], limits: StallLimits) -> TimeExtension | None:
    """Like :func:`extension` if all ranks are in one call, which a device may still compute."""
    phases = [state for state in ranks if state.phase and state.phase_budget_s]
    if phases:
        longest = max(phases, key=lambda state: state.phase_budget_s or 0.0)
        return TimeExtension(
            f"rank {longest.rank} declared the phase {longest.phase!r}",
            longest.phase_budget_s or 0.0,
        )
    if all(is_before_first_step(state) for state in ranks):
        return TimeExtension("no rank has finished its first step", limits.first_step_s)
    return None


def is_before_first_step(state: RankState) -> bool:
    """Return whether no step of the rank is known, and it made only the collectives of a setup."""
    completed = sum(progress.completed for progress in state.groups.values())
    return state.step is None and state.step_p99_s is None and completed < SETUP_CALLS


def visible_phase_extension(root: RankState, limits: StallLimits) -> TimeExtension | None:
    """Return the extension for a long phase (saving, compiling) that the newest stack shows."""
    match = _match_phase(root)
    if match is None or not match[0].limit:
        return None
    phase, frame = match
    why = f"its stack shows {phase.phase} ({frame.short} {frame.function})"
    return TimeExtension(why, getattr(limits, phase.limit))


def visible_phase(root: RankState) -> str | None:
    """Return the name of the phase that the newest stack shows."""
    match = _match_phase(root)
    return match[0].phase if match is not None else None


def _match_phase(root: RankState) -> tuple[_PhasePattern, SourceLine] | None:
    for stack in (*root.stacks[-1:], *((root.helper,) if root.helper is not None else ())):
        for frame in stack.frames:
            for phase in _PHASES:
                if phase.pattern.search(f"{frame.file}:{frame.function}"):
                    return phase, frame
    return None


def is_busy(state: RankState) -> bool:
    """Return whether the rank computes; on a busy machine it may only wait for a processor."""
    return (state.cpu_share or 0.0) >= BUSY_CPU_SHARE or state.runnable


def describe_activity(root: RankState) -> str | None:
    """Return what a slow rank does; None if it shows no sign of progress."""
    if is_busy(root):
        return f"it is computing ({root.cpu_share or 0:.0%} of a core)"
    if root.io_bytes is not None and root.io_bytes >= ACTIVE_IO_BYTES:
        return f"it moves data ({root.io_bytes / 1e6:.1f} MB between two samples)"
    if root.children_cpu_share is not None and root.children_cpu_share >= BUSY_CPU_SHARE:
        return f"its child processes compute ({root.children_cpu_share:.0%} of a core)"
    if len(root.stacks) > 1 and not same_stack(root.stacks[-2], root.stacks[-1]):
        return "its stack changes from one sample to the next"
    return None


def same_stack(one: ThreadStack, other: ThreadStack) -> bool:
    """Return whether two samples show the same frames at the same lines."""
    return one.frames == other.frames
