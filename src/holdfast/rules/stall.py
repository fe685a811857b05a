"""When silence is worth looking into, and when what is then seen is patience rather than a hang.

Stalled: no step, phase or collective of any rank advanced for longer than the stall limit, nor for ten times the p99
of recent steps, outside a phase's budget. Slow is not stuck: a root that burns CPU, moves data or changes its stack
between two samples is waited for, as is one inside a phase (said by the script, or plain from its stack) until that
phase's budget is spent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.facts.ranks import Life, Place, RankState, Stack

STEPS_OF_SILENCE = 10.0
BUSY_CPU_SHARE = 0.3
MOVING_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds of patience: without a phase, and for each phase that can be recognised."""

    stall_s: float = 5.0
    first_step_s: float = 60.0
    compile_s: float = 600.0
    checkpoint_s: float = 600.0
    evaluation_s: float = 1800.0
    alone_s: float = 1800.0
    grace_s: float = 30.0


@dataclass(frozen=True)
class Patience:
    """Why a silent rank is not yet called stuck, and for how many seconds of silence that holds."""

    why: str
    until_s: float


#: What a frame on the stack says of the phase: pattern over ``file:function``, name of the phase, its limit.
_PHASES = (
    (re.compile(r"/torch/(_inductor|_dynamo|_functorch)/|/triton/|/torch/utils/cpp_extension"),
     "compiling", "compile_s"),
    (re.compile(r"/torch/serialization\.py|/torch/distributed/checkpoint/|/safetensors/"),
     "checkpoint", "checkpoint_s"),
    (re.compile(r":(\w+_)?(save|load|write|read|restore|resume)_(checkpoint|state|pretrained|model)\w*$"),
     "checkpoint", "checkpoint_s"),
    (re.compile(r"/huggingface_hub/|/urllib/request\.py|/http/client\.py|/requests/|/urllib3/"),
     "download", "checkpoint_s"),
    (re.compile(r"/subprocess\.py:(wait|communicate|_wait|_communicate|run|call)$"),
     "another program", "checkpoint_s"),
    (re.compile(r":(\w+_)?(eval|evaluate|evaluation|validate|validation)(_\w+)?$"),
     "evaluation", "evaluation_s"),
)  # fmt: skip


def threshold_s(ranks: Sequence[RankState], limits: Limits) -> float:
    """Seconds of silence after which the job is looked into: the limit, or ten of the slowest rank's p99 steps.

    Ranks that have saved and leave, because a scheduler warned them, have the time that the scheduler gives.
    """
    if any(state.preempted is not None for state in ranks):
        return max(limits.stall_s, limits.grace_s)
    slowest = max((state.step_p99_s or 0.0 for state in ranks), default=0.0)
    return max(limits.stall_s, STEPS_OF_SILENCE * slowest)


def patience(root: RankState, limits: Limits, *, awaited: bool = True) -> Patience | None:
    """Why a silent rank may simply need longer; None where nothing speaks for it.

    ``awaited``: the others wait for it in a collective. A rank for which nobody waits may sleep for good reasons (a
    server, a last upload), and ending it would end sound work: it has more time. A rank in state D waits for a disk or
    a file system, as it does again and again while it saves to a slow one or loads from it.
    """
    if root.life not in (Life.RUNNING, Life.DISK):
        return None
    if root.phase and root.phase_budget_s:
        return Patience(f"it says it is in phase {root.phase!r}", root.phase_budget_s)
    busy = doing(root)
    if busy:
        return Patience(busy, float("inf"))
    phase = visible_phase(root, limits)
    if phase:
        return phase
    if root.step is None and root.step_p99_s is None:
        return Patience("it has not finished its first step", limits.first_step_s if awaited else limits.alone_s)
    return None if awaited else Patience("nobody waits for it in a collective", limits.alone_s)


def patience_with_all(ranks: Sequence[RankState], limits: Limits) -> Patience | None:
    """The same where no single rank is awaited: all are in one call, which a device may yet be at work for."""
    phases = [state for state in ranks if state.phase and state.phase_budget_s]
    if phases:
        longest = max(phases, key=lambda state: state.phase_budget_s or 0.0)
        return Patience(f"rank {longest.rank} says it is in phase {longest.phase!r}", longest.phase_budget_s or 0.0)
    if all(state.step is None and state.step_p99_s is None for state in ranks):
        return Patience("no rank has finished its first step", limits.first_step_s)
    return None


def visible_phase(root: RankState, limits: Limits) -> Patience | None:
    """A phase that takes long by nature (saving, compiling, evaluating), where the newest stack shows one."""
    found = _shown(root)
    if found is None:
        return None
    phase, limit, frame = found
    return Patience(f"its stack shows {phase} ({_short(frame)})", getattr(limits, limit))


def shown_phase(root: RankState) -> str | None:
    """The name of that phase."""
    found = _shown(root)
    return found[0] if found is not None else None


def _shown(root: RankState) -> tuple[str, str, Place] | None:
    """Phase, name of its limit, and the frame that shows it."""
    for stack in root.stacks[-1:]:
        for frame in stack.frames:
            for pattern, phase, limit in _PHASES:
                if pattern.search(f"{frame.file}:{frame.function}"):
                    return phase, limit, frame
    return None


def doing(root: RankState) -> str | None:
    """What a rank that is slow but alive does, in words; None where it shows no sign of advancing."""
    if root.cpu_share is not None and root.cpu_share >= BUSY_CPU_SHARE:
        return f"it is computing ({root.cpu_share:.0%} of a core)"
    if root.io_bytes is not None and root.io_bytes >= MOVING_BYTES:
        return f"it moves data ({root.io_bytes / 1e6:.1f} MB between two looks)"
    if len(root.stacks) > 1 and not same_stack(root.stacks[-2], root.stacks[-1]):
        return "its stack changes from one sample to the next"
    return None


def same_stack(one: Stack, other: Stack) -> bool:
    """True where two samples show the same frames at the same lines."""
    return one.frames == other.frames


def _short(place: Place) -> str:
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line} {place.function}"
