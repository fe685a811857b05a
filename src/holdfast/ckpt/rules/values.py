"""Judges tensor values: NaN, infinities, huge values, replicas that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.causes.checkpoint.checkpoint_copies_differ import CHECKPOINT_COPIES_DIFFER
from holdfast.causes.checkpoint.checkpoint_numbers_not_finite import CHECKPOINT_NUMBERS_NOT_FINITE
from holdfast.ckpt.rules.completeness import (
    describe_tensor,
    list_names,
    survey_fact,
    survey_finding,
)
from holdfast.ckpt.verify.replicas import ReplicaPair
from holdfast.ckpt.verify.survey import CheckpointSurvey, Key
from holdfast.ckpt.verify.values import ValueCounts
from holdfast.core.findings import Finding, Unknown
from holdfast.core.text import pluralize

#: More huge values than this, and than a thousandth, are there on purpose (a mask).
_MAX_HUGE = 16
#: Buffers of BatchNorm, which can be large, but are not known as buffers in every format.
_STATISTICS = ("running_mean", "running_var")


def judge_values(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Yield findings about the values that were read."""
    if not isinstance(survey.counts, Unknown):
        yield from _non_finite(survey, survey.counts)
        yield from _huge_values(survey, survey.counts)
    yield from _differing_replicas(survey)


def _non_finite(survey: CheckpointSurvey, counts: Mapping[Key, ValueCounts]) -> Iterator[Finding]:
    bad = {
        key: counted
        for key, counted in counts.items()
        if counted.nan or (counted.inf and not _is_mask(survey, key, counted))
    }
    if bad:
        facts = tuple(
            survey_fact(survey, f"{describe_tensor(key)}: {_describe_counts(counted)}")
            for key, counted in bad.items()
        )
        message = (
            f"{pluralize(len(bad), 'tensor')} of {survey.contents.root} with NaN or infinity: "
        )
        message += list_names(
            [
                f"{describe_tensor(key)} ({_describe_counts(counted)})"
                for key, counted in bad.items()
            ]
        )
        yield survey_finding(survey, CHECKPOINT_NUMBERS_NOT_FINITE, message, facts)


def _huge_values(survey: CheckpointSurvey, counts: Mapping[Key, ValueCounts]) -> Iterator[Finding]:
    """Detect a few values that no training produces, as a flipped exponent bit does."""
    bad = {
        key: counted
        for key, counted in counts.items()
        if 0 < counted.huge <= max(_MAX_HUGE, counted.elements // 1000)
        and counted.elements > 1
        and (counted.huge == 1 or 4 * counted.huge <= counted.elements)  # not a small mask
        and not (key[0] in ("model", "half") and key[1] in survey.contents.buffers)
        and not key[1].endswith(_STATISTICS)
    }
    if bad:
        named = [
            f"{describe_tensor(key)} ({counted.huge:,} of {counted.elements:,})"
            for key, counted in bad.items()
        ]
        message = f"{pluralize(len(bad), 'tensor')} of {survey.contents.root} with a few values "
        message += f"beyond 1e12 (fp16: 16,384): {list_names(named)}"
        facts = tuple(survey_fact(survey, text) for text in named)
        yield survey_finding(survey, CHECKPOINT_NUMBERS_NOT_FINITE, message, facts, confidence=0.8)


def _is_mask(survey: CheckpointSurvey, key: Key, counts: ValueCounts) -> bool:
    """Return whether infinities are expected: in buffers, and in tensors of only 0 and inf."""
    return key[0] in ("model", "half") and (not counts.other or key[1] in survey.contents.buffers)


def _describe_counts(counts: ValueCounts) -> str:
    parts = [
        f"{number:,} {word}"
        for number, word in ((counts.nan, "NaN"), (counts.inf, "infinite"))
        if number
    ]
    return f"{' and '.join(parts)} of {counts.elements:,}"


_MESSAGES = {
    "replica": "replicas of {names} differ",
    "half": "the model's copies of {names} differ from the optimizer's fp32 weights",
    "tie": "tied weights differ: {names}",
}


def _differing_replicas(survey: CheckpointSurvey) -> Iterator[Finding]:
    for kind, sentence in _MESSAGES.items():
        bad = [
            replica for replica in survey.copies if replica.kind == kind and _values_differ(replica)
        ]
        if bad:
            names = list_names(list(dict.fromkeys(replica.name for replica in bad)))
            number = sum(replica.kind == kind for replica in survey.copies)
            facts = tuple(
                survey_fact(
                    survey, _describe_replica(replica), replica.files[-1] if replica.files else ""
                )
                for replica in bad
            )
            message = f"{sentence.format(names=names)} "
            message += f"({len(bad):,} of {number:,} pairs in {survey.contents.root})"
            yield survey_finding(survey, CHECKPOINT_COPIES_DIFFER, message, facts)


def _values_differ(replica: ReplicaPair) -> bool:
    return not isinstance(replica.difference, Unknown) and replica.difference.differ > 0


def _describe_replica(replica: ReplicaPair) -> str:
    difference = replica.difference
    if isinstance(difference, Unknown):
        return difference.why
    other = f" and {replica.other}" if replica.other != replica.name else ""
    where = f" in {' and '.join(replica.files)}" if any(replica.files) else ""
    return (
        f"{replica.name}{other}{where}: {difference.differ:,} of {difference.elements:,} differ, "
        f"by at most {difference.max_abs:.3g}"
    )
