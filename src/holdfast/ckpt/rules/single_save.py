"""Judges whether all files of a checkpoint belong to one save.

Where no file is damaged, modification times and optimizer steps are the only evidence. A save over
an older one that was interrupted leaves new shards among old ones. DCP writes its index last, so an
index older than the pause proves that the later save never finished. Other formats have no such
file; there the pause alone is a warning. Copying a folder creates pauses too, as long as copying
one file takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.causes.checkpoint.checkpoint_half_written import CHECKPOINT_HALF_WRITTEN
from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.rules.completeness import list_names, survey_fact, survey_finding
from holdfast.ckpt.verify.mixed_saves import WriteTimes
from holdfast.ckpt.verify.shard_counters import CounterDifference
from holdfast.ckpt.verify.survey import CheckpointSurvey
from holdfast.core.findings import Fact, Finding, Level, Unknown
from holdfast.core.text import format_duration, pluralize

#: Formats whose files all ranks write at once; other formats may write hours apart.
_PARALLEL_WRITES = frozenset(
    {
        CheckpointFormat.DCP,
        CheckpointFormat.MEGATRON,
        CheckpointFormat.FSDP1_LOCAL,
        CheckpointFormat.FSDP1_SHARDED,
        CheckpointFormat.ZERO1,
        CheckpointFormat.ZERO2,
        CheckpointFormat.ZERO3,
        CheckpointFormat.ACCELERATE,
        CheckpointFormat.FSDP2_SHARDED,
    }
)
_FLAT_STATES = frozenset({CheckpointFormat.ZERO1, CheckpointFormat.ZERO2, CheckpointFormat.ZERO3})
#: Fewer random states do not show which is the usual one; the groups if one of them is odd.
_MIN_RANDOM_STATES, _ALIKE_AND_ODD = 4, 2
#: A pause counts if it exceeds this, _TIMES the rest, and a slow disk's write time.
_PAUSE_S, _PAUSE_WITH_INDEX_S, _TIMES, _SLOW_BYTES_PER_S = 5.0, 0.5, 5.0, 20e6


def judge_single_save(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Yield findings that the checkpoint mixes several saves."""
    yield from _judge_counters(survey)
    yield from _judge_names(survey)
    yield from _judge_scales(survey)
    yield from _judge_random_states(survey)
    yield from _judge_equal_times(survey)
    if isinstance(survey.times, Unknown) or survey.contents.format not in _PARALLEL_WRITES:
        return
    pause = survey.times.pause_s
    min_pause_s = _PAUSE_WITH_INDEX_S if survey.times.old_index else _PAUSE_S
    significant = pause > max(
        min_pause_s, _TIMES * survey.times.lasted_s, survey.times.next_size / _SLOW_BYTES_PER_S
    )
    mixed_steps = len(survey.steps) > 1
    if significant:
        confidence = 0.95 if mixed_steps else 0.85 if survey.times.old_index else 0.6
        yield _mixed_saves_finding(
            survey,
            survey.times,
            confidence,
            Level.ERROR if mixed_steps or survey.times.old_index else Level.WARNING,
        )
    elif (
        mixed_steps
        and isinstance(survey.contents.step, int)
        and max(survey.steps) != survey.contents.step
    ):
        steps = ", ".join(
            f"{step:,} ({list_names(names)})" for step, names in sorted(survey.steps.items())
        )
        root = survey.contents.root
        message = f"the optimizer state in {root} has parameters at different steps: {steps}"
        yield _finding(survey, message, (survey_fact(survey, message),), 0.5, Level.WARNING)


def _judge_counters(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Yield a finding if files of ranks have different step counters or scheduler states."""
    certain = _certain_differences(survey)
    for difference in (certain or survey.counters)[:1]:
        values = "; ".join(
            f"{value} in {list_names(files)}" for value, files in difference.files.items()
        )
        verb = "are" if certain else "may be"
        message = f"the files of {survey.contents.root} {verb} of different saves: "
        message += f"{difference.path} is {values}"
        facts = tuple(
            survey_fact(survey, f"{difference.path} = {value}", files[0])
            for value, files in difference.files.items()
        )
        level = Level.ERROR if certain else Level.UNKNOWN
        yield _finding(survey, message, facts, 0.95 if certain else 0.5, level)


def _certain_differences(survey: CheckpointSurvey) -> list[CounterDifference]:
    flat = survey.contents.format in _FLAT_STATES  # one state for all parameters of a group
    return [each for each in survey.counters if flat or each.certain]


def _judge_names(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Yield a finding if files of ranks have changed places, or nothing can tell."""
    root = survey.contents.root
    if survey.misplaced:
        file, name = next(iter(survey.misplaced.items()))
        message = f"{list_names(list(survey.misplaced))} of {root} changed places with other files "
        message += f"of the checkpoint: {file} was written as {name}"
        facts = tuple(
            survey_fact(survey, f"written as {name}", file)
            for file, name in survey.misplaced.items()
        )
        yield _finding(survey, message, facts, 0.95, Level.ERROR)
    compared = {file for pair in survey.copies for file in pair.files}
    unknown = [file for file in survey.unnamed if file not in compared | {*survey.misplaced}]
    if len(unknown) > 1 and not isinstance(survey.times, Unknown):
        message = f"{pluralize(len(unknown), 'file')} of {root} do not record under which name "
        message += "they were written: nothing can tell whether ranks' files were swapped"
        yield _finding(survey, message, (survey_fact(survey, message),), 0.5, Level.UNKNOWN)


def _judge_scales(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Yield a finding if the values of one file have another magnitude than all others'."""
    if _certain_differences(survey) or not survey.scales:
        return
    # The odd file has the largest ratio to the rest; of two files, both differ equally.
    odd = max(survey.scales, key=lambda each: abs(math.log(each.ratio)))
    what = "weights" if odd.section == "model" else odd.section
    text = f"{what} of {odd.file} are {odd.ratio:.3g} times as large as the other files' parts "
    text += f"of the same {odd.tensors:,} tensors (median)"
    message = f"the files of {survey.contents.root} are of different saves: {text}"
    yield _finding(survey, message, (survey_fact(survey, text, odd.file),), 0.7, Level.ERROR)


def _judge_random_states(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Yield a finding if one rank's random state is another's, or the only different one."""
    groups = survey.random_states
    files = sum(map(len, groups))
    if files < _MIN_RANDOM_STATES:
        return
    root = survey.contents.root
    if len(groups) == files - 1:
        message = f"{' and '.join(groups[0])} of {root} have equal random states, all other ranks "
        message += "different ones: one is a copy, or both drew equally often from one seed"
        facts = tuple(survey_fact(survey, "the same random states", file) for file in groups[0])
        yield _finding(survey, message, facts, 0.4, Level.NOTE)
        return
    (odd, *others) = groups[-1]  # rank 0 often draws more than the others
    if len(groups) == _ALIKE_AND_ODD and not others and odd != min(map(min, groups)):
        message = f"all ranks of {root} but that of {odd} have equal random states: it is of "
        message += "another save, or its rank drew more random numbers"
        yield _finding(
            survey, message, (survey_fact(survey, "other states", odd),), 0.4, Level.NOTE
        )


def _judge_equal_times(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Yield a finding if neither times nor contents tell that the files are of one save."""
    times = survey.times
    if isinstance(times, Unknown) or times.pause_s or times.lasted_s:
        return
    equal = {
        file
        for pair in survey.copies
        if isinstance(pair.difference, Unknown) or not pair.difference.differ
        for file in pair.files
    }
    if left := [
        file for file in (*times.before, *times.after) if file not in survey.counted | equal
    ]:
        root = survey.contents.root
        message = f"all files of {root} have equal times, and {list_names(left)} no step counter "
        message += "in common with others: nothing can tell whether they are of one save"
        yield _finding(survey, message, (survey_fact(survey, message),), 0.5, Level.UNKNOWN)


def _mixed_saves_finding(
    survey: CheckpointSurvey, times: WriteTimes, confidence: float, level: Level
) -> Finding:
    verb = "was" if len(times.after) == 1 else "were"
    message = f"{list_names(times.after)} of {survey.contents.root} {verb} written "
    message += f"{format_duration(times.pause_s)} after {list_names(times.before)}: "
    message += "files of two saves, the later one unfinished"
    facts = [
        survey_fact(survey, f"last written at {times.began:.1f} (Unix time)", times.before[-1]),
        survey_fact(survey, f"written from {times.resumed:.1f} on", times.after[0]),
    ]
    if times.old_index:
        facts.append(
            survey_fact(
                survey, "written last in this format, but older than those files", times.index
            )
        )
    if len(survey.steps) > 1:
        facts.append(
            survey_fact(survey, f"optimizer steps {', '.join(map(str, sorted(survey.steps)))}")
        )
    return _finding(survey, message, tuple(facts), confidence, level)


def _finding(
    survey: CheckpointSurvey, message: str, facts: tuple[Fact, ...], confidence: float, level: Level
) -> Finding:
    cause = CHECKPOINT_HALF_WRITTEN
    return survey_finding(survey, cause, message, facts, level=level, confidence=confidence)
