"""Judges whether every file exists and is intact, and whether shards cover each tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.causes.checkpoint.checkpoint_corrupt import CHECKPOINT_CORRUPT
from holdfast.causes.checkpoint.checkpoint_half_written import CHECKPOINT_HALF_WRITTEN
from holdfast.causes.checkpoint.checkpoint_runs_code import CHECKPOINT_RUNS_CODE
from holdfast.causes.checkpoint.checkpoint_tensor_incomplete import CHECKPOINT_TENSOR_INCOMPLETE
from holdfast.ckpt.contents import FileProblem
from holdfast.ckpt.verify.survey import CheckpointSurvey, Key
from holdfast.core.findings import Cause, Fact, Finding, Level, Subject, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.text import pluralize

_MAX_NAMES = 3
_KIND_TEXT = {"missing": "missing", "truncated": "truncated", "unreadable": "unreadable"}


def judge_completeness(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Yield a finding for missing, truncated, changed or incomplete data."""
    problems = survey.contents.problems
    for kind, text in _KIND_TEXT.items():
        if matching := [problem for problem in problems if problem.kind == kind]:
            yield _problems_finding(survey, matching, text)
    if mixed := [problem for problem in problems if problem.kind == "mixed"]:
        yield _mixed_saves_finding(survey, mixed)
    yield from (
        refused_pickle(survey.contents.root, problem.file, problem.names, problem.why)
        for problem in problems
        if problem.kind == "refused"
    )
    yield from (
        _inconclusive_finding(survey, problem)
        for problem in problems
        if problem.kind not in {*_KIND_TEXT, "mixed", "refused"}
    )
    yield from _unreadable_files(survey, {problem.file for problem in problems})
    yield from _changed_bytes(survey)
    yield from _incomplete_tensors(survey)
    if not survey.tensors and not problems:
        message = f"{survey.contents.root} contains no tensors; nothing to verify"
        yield survey_finding(survey, CHECKPOINT_CORRUPT, message, level=Level.UNKNOWN)


def refused_pickle(root: str, file: str, names: Sequence[str], why: str = "") -> Finding:
    """Return the finding that loading the checkpoint would run code."""
    named = ", ".join(names[:_MAX_NAMES]) or why
    where = f"{root}/{file}" if file else root
    facts = tuple(Fact(text=f"the pickle references {name}", origin=where) for name in names)
    message = f"loading {where} would run {named}; holdfast did not run it"
    return make_finding(CHECKPOINT_RUNS_CODE, message, subject=Subject(file=where), evidence=facts)


def unreadable_checkpoint(path: str, why: str) -> Finding:
    """Return the finding that a checkpoint of a known format cannot be read."""
    message = f"{path} cannot be read: {why}"
    evidence = (Fact(text=why, origin=path),)
    return make_finding(CHECKPOINT_CORRUPT, message, subject=Subject(file=path), evidence=evidence)


def describe_tensor(key: Key) -> str:
    """Return ``exp_avg of w``; for a model weight only its name."""
    return key[1] if key[0] == "model" else f"{'copy' if key[0] == 'half' else key[0]} of {key[1]}"


def list_names(names: Sequence[str]) -> str:
    """Return the first names and how many more there are."""
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def full_path(survey: CheckpointSurvey, file: str) -> str:
    """Return the path of a file of the checkpoint; '' is the checkpoint itself."""
    return f"{survey.contents.root}/{file}" if file else survey.contents.root


def survey_fact(
    survey: CheckpointSurvey, text: str, file: str = "", rank: int | None = None
) -> Fact:
    """Return a fact about a file of the checkpoint, or about all of it."""
    return Fact(text=text, origin=full_path(survey, file), rank=rank)


def survey_finding(
    survey: CheckpointSurvey,
    cause: Cause,
    message: str,
    facts: tuple[Fact, ...] = (),
    *,
    level: Level = Level.ERROR,
    rank: int | None = None,
    confidence: float = 1.0,
) -> Finding:
    """Return a finding about the checkpoint."""
    subject = Subject(file=survey.contents.root, rank=rank)
    return make_finding(
        cause, message, level=level, subject=subject, evidence=facts, confidence=confidence
    )


def _problems_finding(
    survey: CheckpointSurvey, problems: Sequence[FileProblem], what: str
) -> Finding:
    """Return one finding for all missing (or truncated) files and the ranks that wrote them."""
    latest = survey.latest
    verb = "is" if len(problems) == 1 else "are"
    message = f"{pluralize(len(problems), 'file')} of {survey.contents.root} {verb} {what}: "
    message += f"{list_names([problem.file for problem in problems])}{_writer_ranks(problems)}"
    if latest is not None:
        message += f"; {latest.file} still points to this checkpoint"
        message += f"; {latest.complete_tag} is complete" if latest.complete_tag else ""
    interrupted = latest is not None and what == "missing"
    cause = CHECKPOINT_HALF_WRITTEN if interrupted else CHECKPOINT_CORRUPT
    return _files_finding(survey, cause, message, problems)


def _mixed_saves_finding(survey: CheckpointSurvey, problems: Sequence[FileProblem]) -> Finding:
    message = f"{survey.contents.root} mixes files of different saves: "
    message += f"{problems[0].why}{_writer_ranks(problems)}"
    return _files_finding(survey, CHECKPOINT_HALF_WRITTEN, message, problems)


def _inconclusive_finding(survey: CheckpointSurvey, problem: FileProblem) -> Finding:
    """Return the finding for complete files that do not say what they contain."""
    message = f"{full_path(survey, problem.file)} cannot be verified: {problem.why}"
    cause = CHECKPOINT_TENSOR_INCOMPLETE
    return survey_finding(survey, cause, message, level=Level.UNKNOWN, rank=problem.rank)


def _unreadable_files(survey: CheckpointSurvey, reported: set[str]) -> Iterator[Finding]:
    broken = {file: why for file, why in survey.broken.items() if file not in reported}
    if broken:
        files = list(broken)
        message = f"{pluralize(len(files), 'file')} of {survey.contents.root} cannot be read: "
        message += f"{list_names(files)}: "
        facts = tuple(survey_fact(survey, why, file) for file, why in broken.items())
        yield survey_finding(survey, CHECKPOINT_CORRUPT, message + broken[files[0]], facts)


def _changed_bytes(survey: CheckpointSurvey) -> Iterator[Finding]:
    if survey.wrong:
        keys = list(
            dict.fromkeys(
                describe_tensor(key) for mismatch in survey.wrong for key in mismatch.tensors
            )
        )
        files = list(dict.fromkeys(mismatch.file for mismatch in survey.wrong))
        paths = [full_path(survey, file) for file in files]
        message = f"data was modified after it was written: {list_names(paths)}"
        message += (
            f": {list_names(keys)}"
            if keys
            else f": {list_names([mismatch.record for mismatch in survey.wrong])}"
        )
        what = "CRC32 of {} does not match the stored checksum"
        facts = tuple(
            survey_fact(survey, what.format(mismatch.record), mismatch.file)
            for mismatch in survey.wrong
        )
        yield survey_finding(survey, CHECKPOINT_CORRUPT, message, facts)


def _incomplete_tensors(survey: CheckpointSurvey) -> Iterator[Finding]:
    bad = {
        key: coverage
        for key, coverage in survey.covers.items()
        if coverage.missing or coverage.outside
    }
    if bad:
        facts = tuple(
            survey_fact(
                survey,
                f"{describe_tensor(key)}: {coverage.missing:,} elements missing, "
                f"{pluralize(len(coverage.outside), 'shard')} out of bounds",
            )
            for key, coverage in bad.items()
        )
        names = [describe_tensor(key) for key in bad]
        message = f"the shards do not cover {pluralize(len(bad), 'tensor')}: {list_names(names)}"
        yield survey_finding(survey, CHECKPOINT_TENSOR_INCOMPLETE, message, facts)
    if unchecked := [
        describe_tensor(key) for key, coverage in survey.covers.items() if not coverage.judged
    ]:
        message = f"shard coverage was not checked for {list_names(unchecked)}"
        yield survey_finding(survey, CHECKPOINT_TENSOR_INCOMPLETE, message, level=Level.UNKNOWN)


def _files_finding(
    survey: CheckpointSurvey, cause: Cause, message: str, problems: Sequence[FileProblem]
) -> Finding:
    facts = tuple(
        survey_fact(survey, f"{problem.kind}: {problem.why}", problem.file, problem.rank)
        for problem in problems
    )
    rank = problems[0].rank if len(problems) == 1 else None
    return survey_finding(survey, cause, message, facts, rank=rank)


def _writer_ranks(problems: Sequence[FileProblem]) -> str:
    ranks = sorted({problem.rank for problem in problems if problem.rank is not None})
    return f" (written by {describe_ranks(ranks)})" if ranks else ""
