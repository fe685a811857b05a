"""Combines all findings about one checkpoint into a verdict: root cause, then consequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.causes.checkpoint.checkpoint_copies_differ import CHECKPOINT_COPIES_DIFFER
from holdfast.causes.checkpoint.checkpoint_corrupt import CHECKPOINT_CORRUPT
from holdfast.causes.checkpoint.checkpoint_half_written import CHECKPOINT_HALF_WRITTEN
from holdfast.causes.checkpoint.checkpoint_numbers_not_finite import CHECKPOINT_NUMBERS_NOT_FINITE
from holdfast.causes.checkpoint.checkpoint_of_newer_version import CHECKPOINT_OF_NEWER_VERSION
from holdfast.causes.checkpoint.checkpoint_runs_code import CHECKPOINT_RUNS_CODE
from holdfast.causes.checkpoint.checkpoint_tensor_incomplete import CHECKPOINT_TENSOR_INCOMPLETE
from holdfast.causes.checkpoint.checkpoint_unfinished import CHECKPOINT_UNFINISHED
from holdfast.causes.checkpoint.checkpoint_weights_all_zero import CHECKPOINT_WEIGHTS_ALL_ZERO
from holdfast.ckpt.rules import completeness, single_save, values, zeros
from holdfast.ckpt.verify.survey import CheckpointSurvey, all_tensors
from holdfast.core.findings import Finding, Level, RuledOut, Unknown, Verdict
from holdfast.core.text import pluralize

QUESTION = "Is this checkpoint complete, intact and from a single save?"
#: Of several errors, the first in this order is the root.
_ORDER = (
    CHECKPOINT_RUNS_CODE.name,
    CHECKPOINT_OF_NEWER_VERSION.name,
    CHECKPOINT_HALF_WRITTEN.name,
    CHECKPOINT_CORRUPT.name,
    CHECKPOINT_TENSOR_INCOMPLETE.name,
    CHECKPOINT_COPIES_DIFFER.name,
    CHECKPOINT_NUMBERS_NOT_FINITE.name,
    CHECKPOINT_WEIGHTS_ALL_ZERO.name,
    CHECKPOINT_UNFINISHED.name,
)
#: Causes that can be a mere consequence of missing, changed or mixed files.
_FOLLOWS = {
    CHECKPOINT_TENSOR_INCOMPLETE.name: {CHECKPOINT_CORRUPT.name, CHECKPOINT_HALF_WRITTEN.name},
    CHECKPOINT_COPIES_DIFFER.name: {CHECKPOINT_CORRUPT.name, CHECKPOINT_HALF_WRITTEN.name},
    CHECKPOINT_NUMBERS_NOT_FINITE.name: {CHECKPOINT_CORRUPT.name},
    CHECKPOINT_WEIGHTS_ALL_ZERO.name: {CHECKPOINT_CORRUPT.name},
    CHECKPOINT_CORRUPT.name: {CHECKPOINT_HALF_WRITTEN.name},
}
#: Causes ruled out if there is no finding; only valid if every value was read.
_CHECKED = {
    CHECKPOINT_CORRUPT.name: "every file exists with its full size; {sums} match",
    CHECKPOINT_TENSOR_INCOMPLETE.name: "the shards of {tensors} cover their shapes",
    CHECKPOINT_NUMBERS_NOT_FINITE.name: "all values of {tensors} were checked",
}


def judge_checkpoint(survey: CheckpointSurvey) -> tuple[Finding, ...]:
    """Return every finding about one checkpoint, most severe first."""
    findings = [
        *completeness.judge_completeness(survey),
        *single_save.judge_single_save(survey),
        *values.judge_values(survey),
        *zeros.judge_zeros(survey),
    ]
    return tuple(sorted(findings, key=_severity))


def build_verdict(findings: Sequence[Finding], survey: CheckpointSurvey | None = None) -> Verdict:
    """Return the verdict; ``survey`` is None if nothing could be read."""
    errors = [
        finding for finding in sorted(findings, key=_severity) if finding.level is Level.ERROR
    ]
    root = errors[0] if errors else None
    follows = [
        finding
        for finding in errors[1:]
        if root is not None and root.cause in _FOLLOWS.get(finding.cause, ())
    ]
    suspects = [finding for finding in findings if finding is not root and finding not in follows]
    return Verdict(
        question=QUESTION,
        root=root,
        consequences=tuple(replace(finding, level=Level.NOTE) for finding in follows),
        suspects=tuple(finding for finding in suspects if finding.level is not Level.UNKNOWN),
        ruled_out=tuple(_ruled_out(findings, survey)) if survey is not None else (),
        unseen=tuple(
            [finding.message for finding in findings if finding.level is Level.UNKNOWN]
            + list_unchecked(survey)
        ),
    )


def unproven_files(survey: CheckpointSurvey) -> tuple[str, ...]:
    """Return the files with tensors of which nothing can tell whether a byte changed."""
    if isinstance(survey.counts, Unknown):  # --quick, which says so
        return ()
    tensors = {shard.file for _, tensor in all_tensors(survey.contents) for shard in tensor.shards}
    return tuple(file for file in survey.bare if file in tensors)


def list_unchecked(survey: CheckpointSurvey | None) -> list[str]:
    """Return one clause for each aspect that was not checked."""
    if survey is None:
        return []
    if isinstance(survey.counts, Unknown):
        return [f"tensor values and checksums: {survey.counts.why}"]
    unchecked = []
    if survey.bare:
        format_ = survey.contents.format
        unchecked.append(
            f"whether bytes changed in {pluralize(len(survey.bare), 'file')} "
            f"without checksums ({format_}); `holdfast ckpt seal` records hashes"
        )
    if unknown := [pair for pair in survey.copies if isinstance(pair.difference, Unknown)]:
        unchecked.append(f"whether {pluralize(len(unknown), 'pair')} of replicas are equal")
    return unchecked


def _ruled_out(findings: Sequence[Finding], survey: CheckpointSurvey) -> Iterator[RuledOut]:
    claimed = {finding.cause for finding in findings}
    for cause, why in _CHECKED.items():
        if cause not in claimed and not isinstance(survey.counts, Unknown):
            text = why.format(
                sums=pluralize(survey.sums, "checksum"), tensors=pluralize(survey.tensors, "tensor")
            )
            yield RuledOut(cause, text)


def _severity(finding: Finding) -> tuple[bool, int]:
    position = _ORDER.index(finding.cause) if finding.cause in _ORDER else len(_ORDER)
    return finding.level is not Level.ERROR, position
