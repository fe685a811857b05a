"""Judges tensor values: NaN, infinities, all-zero weights, replicas that differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from holdfast.causes.checkpoint.checkpoint_copies_differ import CHECKPOINT_COPIES_DIFFER
from holdfast.causes.checkpoint.checkpoint_numbers_not_finite import CHECKPOINT_NUMBERS_NOT_FINITE
from holdfast.causes.checkpoint.checkpoint_weights_all_zero import CHECKPOINT_WEIGHTS_ALL_ZERO
from holdfast.ckpt.rules.completeness import (
    describe_tensor,
    full_path,
    list_names,
    survey_fact,
    survey_finding,
)
from holdfast.ckpt.verify.replicas import ReplicaPair
from holdfast.ckpt.verify.survey import CheckpointSurvey, Key
from holdfast.ckpt.verify.values import ValueCounts
from holdfast.ckpt.verify.zero_runs import ZeroRun
from holdfast.core.findings import Fact, Finding, Level, Unknown
from holdfast.core.text import pluralize

#: A smaller shard may be zero legitimately (padding, an embedding row never used).
_MIN_SHARD_ELEMENTS = 256
#: More huge values than this, and than a thousandth, are there on purpose (a mask).
_MAX_HUGE = 16
#: Flat parameters of FSDP1 contain whole parameters, of which biases start as zeros.
_FLAT = "_flat_param"
#: Buffers of BatchNorm, which can be large, but are not known as buffers in every format.
_STATISTICS = ("running_mean", "running_var")
_EMBEDDING = re.compile(r"embed|wte|wpe|tok|vocab|shared|position|head", re.IGNORECASE)


def judge_values(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Yield findings about the values that were read."""
    if not isinstance(survey.counts, Unknown):
        yield from _non_finite(survey, survey.counts)
        yield from _zero_weights(survey, survey.counts)
        yield from _huge_values(survey, survey.counts)
        yield from _zero_shards(survey)
        yield from _zero_pages(survey)
        yield from _zero_rows(survey)
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


def _zero_weights(survey: CheckpointSurvey, counts: Mapping[Key, ValueCounts]) -> Iterator[Finding]:
    weights = {
        key: counted
        for key, counted in counts.items()
        if key[0] == "model" and _is_float(survey, key)
    }
    zero = [key for key, counted in weights.items() if counted.all_zero]
    large = [
        key
        for key in zero
        if len(survey.contents.tensors[key[1]].shape) > 1 and weights[key].elements > 1
    ]
    facts = tuple(
        survey_fact(survey, f"{describe_tensor(key)}: {weights[key].elements:,} zeros")
        for key in large
    )
    if len(weights) > 1 and len(zero) == len(weights):
        message = f"every weight of {survey.contents.root} is all zeros"
        yield survey_finding(survey, CHECKPOINT_WEIGHTS_ALL_ZERO, message, facts)
    elif large:
        verb = "is" if len(large) == 1 else "are"
        message = f"{pluralize(len(large), 'weight')} of {survey.contents.root} {verb} all zeros: "
        message += list_names([describe_tensor(key) for key in large])
        yield _zeros_warning(survey, message, facts, 0.6)
    yield from _zero_scalars(
        survey, [key for key in zero if not survey.contents.tensors[key[1]].shape], weights
    )
    yield from _zero_moments(survey, counts)


def _zero_scalars(
    survey: CheckpointSurvey, zero: Sequence[Key], weights: Mapping[Key, ValueCounts]
) -> Iterator[Finding]:
    """Detect scalars zeroed by torch's consolidation of Hugging Face shards."""
    scalars = [key for key in weights if not survey.contents.tensors[key[1]].shape]
    if (
        zero
        and len(zero) == len(scalars)
        and survey.contents.format in ("safetensors", "huggingface")
    ):
        message = "every scalar tensor is 0.0, which is what torch's consolidation produces: "
        message += list_names([name for _, name in zero])
        facts = tuple(survey_fact(survey, f"{key[1]} is 0.0") for key in zero)
        yield _zeros_warning(survey, message, facts, 0.5)


def _zero_moments(survey: CheckpointSurvey, counts: Mapping[Key, ValueCounts]) -> Iterator[Finding]:
    """Detect an optimizer that counted steps without receiving gradients."""
    moments = [
        counts for key, counts in counts.items() if key[0] == "exp_avg_sq" and counts.elements
    ]
    if (
        len(moments) > 1
        and all(counts.all_zero for counts in moments)
        and any(step > 1 for step in survey.steps)
    ):
        root, steps = survey.contents.root, max(survey.steps)
        message = f"the optimizer of {root} is at step {steps:,}, but all its moments are 0"
        facts = (survey_fact(survey, f"exp_avg_sq of {len(moments):,} parameters is all zeros"),)
        yield _zeros_warning(survey, message, facts, 0.7)


def _zero_shards(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Detect an all-zero shard of one rank or file in a tensor that is not all zeros."""
    shards = [
        zero
        for zero in survey.empty
        if zero.key[0] in ("model", "half")
        and zero.shard.numel >= _MIN_SHARD_ELEMENTS
        and len(_shape(survey, zero.key)) > 1
    ]
    if shards:
        files = list(dict.fromkeys(zero.shard.file for zero in shards))
        names = list(dict.fromkeys(describe_tensor(zero.key) for zero in shards))
        message = f"the shard of {list_names(names)} in {list_names(files)} is all zeros, "
        facts = tuple(
            survey_fact(
                survey,
                f"{describe_tensor(zero.key)}: {zero.shard.numel:,} zeros "
                f"from {list(zero.shard.start)} on",
                zero.shard.file,
            )
            for zero in shards
        )
        message += "the rest of the tensor is not"
        yield _zeros_warning(survey, message, facts, 0.8)


def _zero_pages(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Detect pages of zeros inside tensors, which a file system or disk lost."""
    runs: dict[Key, list[ZeroRun]] = {}
    for run in survey.zero_runs:
        runs.setdefault(run.key, []).append(run)
    lost = [
        run for key, several in runs.items() if not key[1].endswith(_FLAT) for run in _lost(several)
    ]
    if lost:
        names = list(dict.fromkeys(describe_tensor(run.key) for run in lost))
        files = list(dict.fromkeys(full_path(survey, run.file) for run in lost))
        message = f"pages of zeros inside {list_names(names)} ({list_names(files)}): "
        message += "zeros from one page boundary of the file to another, not whole rows"
        # A matching checksum shows that the writer stored the zeros.
        proven = not any(run.file in survey.bare for run in lost)
        cause, level = CHECKPOINT_WEIGHTS_ALL_ZERO, Level.WARNING if proven else Level.ERROR
        facts = tuple(_run_fact(survey, run) for run in lost)
        yield survey_finding(survey, cause, message, facts, level=level, confidence=0.8)


def _lost(runs: Sequence[ZeroRun]) -> Sequence[ZeroRun]:
    """Return the runs that are lost pages; a mask or pruned weight has many others."""
    lost = [run for run in runs if run.whole_pages and not run.whole_rows]
    return lost if 2 * len(lost) >= len(runs) else ()


def _zero_rows(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Detect rows of zeros; embeddings have them on purpose (padding, unused tokens)."""
    rows = [
        run
        for run in survey.zero_runs
        if run.whole_rows and run.key[0] == "model" and not _EMBEDDING.search(run.key[1])
    ]
    if rows:
        names = list(dict.fromkeys(describe_tensor(run.key) for run in rows))
        message = f"rows of zeros in {list_names(names)} of {survey.contents.root}"
        yield _zeros_warning(survey, message, tuple(_run_fact(survey, run) for run in rows), 0.5)


def _run_fact(survey: CheckpointSurvey, run: ZeroRun) -> Fact:
    text = f"{describe_tensor(run.key)}: zeros from byte {run.start:,} to {run.stop:,}"
    return survey_fact(survey, text, run.file)


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


def _is_float(survey: CheckpointSurvey, key: Key) -> bool:
    return (
        "float" in survey.contents.tensors[key[1]].dtype and key[1] not in survey.contents.buffers
    )


def _shape(survey: CheckpointSurvey, key: Key) -> tuple[int, ...]:
    tensors = survey.contents.tensors if key[0] == "model" else survey.contents.halves
    return tensors[key[1]].shape


def _zeros_warning(
    survey: CheckpointSurvey, message: str, facts: tuple[Fact, ...], confidence: float
) -> Finding:
    cause, level = CHECKPOINT_WEIGHTS_ALL_ZERO, Level.WARNING
    return survey_finding(survey, cause, message, facts, level=level, confidence=confidence)
