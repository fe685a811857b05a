"""Time limits of a job's sections, learned from how long each was silent and went on all the same. Pure.

A section is what the job is in while it is silent: setting up, its first step, a step, a checkpoint, an evaluation. The
longest silence that ended well, times a factor, is the limit: longer than the default where a job needs that, shorter
where a checkpoint or an evaluation was seen often enough. What the user has set is never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import msgspec

from holdfast.facts.ranks import RankState
from holdfast.rules import stall
from holdfast.rules.stall import Limits

SETUP, FIRST_STEP, STEP, CHECKPOINT, EVALUATION = "setup", "first step", "step", "checkpoint", "evaluation"
#: NVIDIA's resiliency extension multiplies by 5 as well; between steps the close look tells slow from stuck.
FACTOR, STEP_FACTOR = 5.0, 2.0
#: So many silences of a section, before its limit may become shorter, and how short at least, in seconds.
OFTEN = 3
LEAST_S: Mapping[str, float] = {CHECKPOINT: 60.0, EVALUATION: 120.0}
MOST_S = 4 * 3600.0
_LIMITS: Mapping[str, str] = {
    SETUP: "first_step_s", FIRST_STEP: "first_step_s", STEP: "stall_s", CHECKPOINT: "checkpoint_s",
    EVALUATION: "evaluation_s",
}  # fmt: skip


class Silence(msgspec.Struct, frozen=True):
    """Of one section: the longest silence in seconds that ended well, and how many there were."""

    longest_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    count: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0

    def and_one(self, seconds: float) -> Silence:
        """The same with one more."""
        return Silence(max(self.longest_s, seconds), self.count + 1)


def section(ranks: Sequence[RankState]) -> str | None:
    """What a silent job is in; None where it is at work, compiles, or is in a phase of another name."""
    said = {state.phase for state in ranks if state.phase}
    if said:
        return next((name for name in (CHECKPOINT, EVALUATION) if name in said), None)
    shown = {phase for state in ranks if (phase := stall.shown_phase(state)) is not None}
    if shown:
        return next((name for name in (CHECKPOINT, EVALUATION) if name in shown), None)
    if any(stall.doing(state) for state in ranks):
        return None
    if all(state.step is None and state.step_p99_s is None for state in ranks):
        return FIRST_STEP if any(state.groups for state in ranks) else SETUP
    return STEP


def learned(limits: Limits, silences: Mapping[str, Silence], fixed: Collection[str] = ()) -> Limits:
    """The limits with what was seen; those named in ``fixed`` (``checkpoint_s``) stay as they are."""
    for name, silence in silences.items():
        field = _LIMITS.get(name)
        if field is None or field in fixed or not silence.count:
            continue
        now = getattr(limits, field)
        wanted = min(silence.longest_s * (STEP_FACTOR if name == STEP else FACTOR), MOST_S)
        if wanted > now:
            limits = replace(limits, **{field: wanted})
        elif name in LEAST_S and silence.count >= OFTEN:
            limits = replace(limits, **{field: min(now, max(wanted, LEAST_S[name]))})
    return limits
