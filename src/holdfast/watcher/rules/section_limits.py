"""Time limits of a job's sections, learned from silences that ended in progress. Pure functions.

A section is what a silent job is doing: setup, its first step, a step, a checkpoint, an evaluation.
The limit is the longest silence that ended in progress, times a factor: longer than the default if
a job needs that, shorter once a checkpoint or an evaluation was observed often enough. Limits set
by the user never change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import msgspec

from holdfast.core.rank_table import RankState
from holdfast.watcher.rules import stall
from holdfast.watcher.rules.stall import StallLimits

#: File in the history folder that stores the learned limits.
LIMITS_FILE = "sections/limits.json"
SETUP, FIRST_STEP, STEP, CHECKPOINT, EVALUATION, COMPUTING = (
    "setup",
    "first step",
    "step",
    "checkpoint",
    "evaluation",
    "computing",
)
#: NVIDIA's resiliency extension multiplies by 5 as well; between steps, the close observation
#: distinguishes slow from stuck.
FACTOR, STEP_FACTOR = 5.0, 2.0
#: The patience before a job is acted on, as a multiple of the longest pause that ended.
PAUSE_FACTOR = 3.0
#: Silences of a section before its limit may become shorter, and the shortest limits in seconds.
MIN_SILENCES = 3
SHORTEST_S: Mapping[str, float] = {CHECKPOINT: 60.0, EVALUATION: 120.0}
LONGEST_S = 4 * 3600.0
_LIMITS: Mapping[str, str] = {
    SETUP: "first_step_s",
    FIRST_STEP: "first_step_s",
    STEP: "stall_s",
    CHECKPOINT: "checkpoint_s",
    EVALUATION: "evaluation_s",
    COMPUTING: "busy_s",
}
_FACTORS: Mapping[str, float] = {STEP: STEP_FACTOR, COMPUTING: PAUSE_FACTOR}


class SectionSilence(msgspec.Struct, frozen=True):
    """Silences of one section that ended in progress: the longest in seconds, and their number."""

    longest_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    count: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0

    def add(self, seconds: float) -> SectionSilence:
        """Return the record with one more silence."""
        return SectionSilence(max(self.longest_s, seconds), self.count + 1)


def section(ranks: Sequence[RankState]) -> str | None:
    """Return the section of a silent job; None if it prepares its first step, compiles or such."""
    declared = {state.phase for state in ranks if state.phase}
    if declared:
        return _timed_section(declared)
    visible = {phase for state in ranks if (phase := stall.visible_phase(state)) is not None}
    if visible:
        return _timed_section(visible)
    if any(stall.describe_activity(state) for state in ranks):
        return None if all(stall.is_before_first_step(state) for state in ranks) else COMPUTING
    if all(stall.is_before_first_step(state) for state in ranks):
        return FIRST_STEP if any(state.groups for state in ranks) else SETUP
    return STEP


def _timed_section(phases: Collection[str]) -> str | None:
    return next((name for name in (CHECKPOINT, EVALUATION) if name in phases), None)


def learned_limits(
    limits: StallLimits, silences: Mapping[str, SectionSilence], fixed: Collection[str] = ()
) -> StallLimits:
    """Adjust the limits to the silences; those named in ``fixed`` (``checkpoint_s``) stay."""
    for name, silence in silences.items():
        field = _LIMITS.get(name)
        if field is None or field in fixed or not silence.count:
            continue
        current = getattr(limits, field)
        required = min(silence.longest_s * _FACTORS.get(name, FACTOR), LONGEST_S)
        if name == STEP and "act_after_s" not in fixed:
            pause_s = min(silence.longest_s * PAUSE_FACTOR, LONGEST_S)
            limits = replace(limits, act_after_s=max(limits.act_after_s, pause_s))
        if required > current:
            limits = replace(limits, **{field: required})
        elif name in SHORTEST_S and silence.count >= MIN_SILENCES:
            limits = replace(limits, **{field: min(current, max(required, SHORTEST_S[name]))})
    return limits
