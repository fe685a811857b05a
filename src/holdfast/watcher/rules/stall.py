"""Decides when silence is examined, and when it gets more time instead of being called a hang.

Stalled: no step, phase or collective of any rank advanced for longer than the stall limit and ten
times the p99 of recent steps, outside the time limit of a phase. Slow is not stuck: a root that
uses CPU, transfers data or changes its stack between two samples gets more time, as does one inside
a phase (declared by the script or visible in its stack) until the limit of that phase. A suspicion
is reported before it is acted on: a rank that sleeps, retries or waits for I/O looks like a hang
and may still recover.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.causes import by_name
from holdfast.core.rank_table import ProcessState, RankState, SourceLine, ThreadStack

SILENT_STEPS = 10.0
BUSY_CPU_SHARE = 0.3
ACTIVE_IO_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class StallLimits:
    """Seconds of silence allowed: without a phase, and for each recognized phase."""

    stall_s: float = 5.0
    first_step_s: float = 60.0
    compile_s: float = 600.0
    checkpoint_s: float = 600.0
    evaluation_s: float = 1800.0
    alone_s: float = 1800.0
    grace_s: float = 30.0
    act_after_s: float = 60.0


@dataclass(frozen=True)
class TimeExtension:
    """Why a silent rank is not called stuck yet, and until how many seconds of silence."""

    why: str
    until_s: float


class _PhasePattern(NamedTuple):
    """A regular expression over ``file:function`` of a frame, the phase, and its limit's field."""

    pattern: re.Pattern[str]
    phase: str
    limit: str


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
        re.compile(r"/huggingface_hub/|/urllib/request\.py|/http/client\.py|/requests/|/urllib3/"),
        "download",
        "checkpoint_s",
    ),
    _PhasePattern(
        re.compile(r"/subprocess\.py:(wait|communicate|_wait|_communicate|run|call)$"),
        "another program",
        "checkpoint_s",
    ),
    _PhasePattern(
        re.compile(r":(\w+_)?(eval|evaluate|evaluation|validate|validation)(_\w+)?$"),
        "evaluation",
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


def act_after_s(cause: str, ranks: Sequence[RankState], limits: StallLimits) -> float:
    """Return the seconds of silence after which a job is ended or restarted for ``cause``.

    0 means at once. A job that a scheduler is about to end gets no more than the grace period,
    which :func:`threshold_s` includes.
    """
    if not by_name(cause).may_recover or any(state.preempted is not None for state in ranks):
        return 0.0
    return limits.act_after_s


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
    activity = describe_activity(root)
    if activity:
        return TimeExtension(activity, float("inf"))
    phase = visible_phase_extension(root, limits)
    if phase:
        return phase
    if is_before_first_step(root):
        limit_s = limits.first_step_s if is_awaited else limits.alone_s
        return TimeExtension("it has not finished its first step", limit_s)
    alone = TimeExtension("no rank waits for it in a collective", limits.alone_s)
    return None if is_awaited else alone


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
    """Return whether no step of the rank is known."""
    return state.step is None and state.step_p99_s is None


def visible_phase_extension(root: RankState, limits: StallLimits) -> TimeExtension | None:
    """Return the extension for a long phase (saving, compiling) that the newest stack shows."""
    match = _match_phase(root)
    if match is None:
        return None
    phase, frame = match
    why = f"its stack shows {phase.phase} ({frame.short} {frame.function})"
    return TimeExtension(why, getattr(limits, phase.limit))


def visible_phase(root: RankState) -> str | None:
    """Return the name of the phase that the newest stack shows."""
    match = _match_phase(root)
    return match[0].phase if match is not None else None


def _match_phase(root: RankState) -> tuple[_PhasePattern, SourceLine] | None:
    for stack in root.stacks[-1:]:
        for frame in stack.frames:
            for phase in _PHASES:
                if phase.pattern.search(f"{frame.file}:{frame.function}"):
                    return phase, frame
    return None


def describe_activity(root: RankState) -> str | None:
    """Return what a slow rank does; None if it shows no sign of progress."""
    if root.cpu_share is not None and root.cpu_share >= BUSY_CPU_SHARE:
        return f"it is computing ({root.cpu_share:.0%} of a core)"
    if root.io_bytes is not None and root.io_bytes >= ACTIVE_IO_BYTES:
        return f"it moves data ({root.io_bytes / 1e6:.1f} MB between two samples)"
    if len(root.stacks) > 1 and not same_stack(root.stacks[-2], root.stacks[-1]):
        return "its stack changes from one sample to the next"
    return None


def same_stack(one: ThreadStack, other: ThreadStack) -> bool:
    """Return whether two samples show the same frames at the same lines."""
    return one.frames == other.frames
