"""Implements ``holdfast ckpt verify``: read the checkpoint, survey it, judge the survey."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.causes.checkpoint.checkpoint_of_newer_version import CHECKPOINT_OF_NEWER_VERSION
from holdfast.ckpt import seal
from holdfast.ckpt.files.torch_pickle import GlobalRefused
from holdfast.ckpt.formats import registry
from holdfast.ckpt.rules import completeness
from holdfast.ckpt.rules import verify as rules
from holdfast.ckpt.verify.survey import CheckpointSurvey, survey_checkpoint
from holdfast.core import checkpoint_manifest
from holdfast.core.errors import CheckpointUnreadable, CheckpointVersion, MissingFile
from holdfast.core.exit_status import status_of_findings
from holdfast.core.findings import Finding, Level, Subject, Unknown, Verdict, make_finding
from holdfast.host import checkpoint_folder
from holdfast.host import checkpoint_folder_rules as kept_rules

ProgressCallback = Callable[[int, str], None]


class VerificationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings and the verdict. ``survey`` is None if nothing could be read."""

    findings: tuple[Finding, ...]
    verdict: Verdict
    survey: CheckpointSurvey | None
    elapsed_s: float

    @property
    def exit_status(self) -> int:
        """Return 0 (no problem), 1 (an error was found) or 3 (inconclusive)."""
        unknown = any(finding.level is Level.UNKNOWN for finding in self.findings)
        unknown = unknown or (self.survey is not None and bool(rules.unproven_files(self.survey)))
        return status_of_findings(self.findings, inconclusive=unknown)


def verify_checkpoint(
    path: Path, *, quick: bool = False, on_progress: ProgressCallback | None = None
) -> VerificationReport:
    """Verify the checkpoint at ``path``, or every checkpoint in a holdfast folder.

    With ``quick``, no tensor is read and no checksum compared. ``on_progress`` receives the number
    of bytes just read and the file they belong to.

    Raises:
        MissingFile: ``path`` does not exist.
        CheckpointUnreadable: the format is not recognized.
    """
    started = time.monotonic()
    if not path.exists():
        raise MissingFile(path)
    findings = list(_judge_holdfast_folder(path, contents=not quick))
    damaged = {finding.subject.file for finding in findings}
    survey: CheckpointSurvey | None = None
    try:
        root = registry.locate_checkpoint(path).path
    except CheckpointUnreadable:
        if not findings:
            raise
    else:
        if not _is_own(path):
            findings += _judge_seal(root, contents=not quick)
            damaged = {finding.subject.file for finding in findings}
        result = _survey_or_finding(path, on_progress, numbers=not quick)
        if isinstance(result, Finding):
            findings += [] if damaged else [result]
        else:
            survey = _add_manifest_hashes(result) if not quick and not findings else result
            findings += (
                rules.judge_checkpoint(survey) if survey.contents.root not in damaged else ()
            )
    verdict = rules.build_verdict(findings, survey)
    return VerificationReport(
        findings=tuple(findings),
        verdict=verdict,
        survey=survey,
        elapsed_s=round(time.monotonic() - started, 3),
    )


def _judge_holdfast_folder(path: Path, *, contents: bool) -> Iterator[Finding]:
    """Check holdfast's own hashes of every checkpoint in the folder."""
    if _is_own(path):
        folder = checkpoint_folder.CheckpointFolder(
            str(path.parent), (checkpoint_folder.inspect_checkpoint(path, contents=contents),)
        )
    elif path.is_dir():
        folder = checkpoint_folder.inspect_folder(path, contents=contents)
    else:
        return
    yield from (
        finding
        for finding in kept_rules.judge_checkpoint_folder(folder)
        if contents or finding.level is not Level.UNKNOWN
    )


def _is_own(path: Path) -> bool:
    """Return whether the path is one checkpoint with holdfast's manifest or folder name."""
    return (
        checkpoint_manifest.step_of_folder(path) is not None
        or (path / checkpoint_manifest.FILE).is_file()
    )


def _judge_seal(root: Path, *, contents: bool) -> tuple[Finding, ...]:
    """Compare a foreign checkpoint with the manifest of ``ckpt seal``, if it has one."""
    try:
        manifest = seal.read_seal(root)
    except CheckpointUnreadable as error:
        return (completeness.unreadable_checkpoint(str(seal.manifest_path(root)), error.why),)
    if manifest is None:
        return ()
    inspected = checkpoint_folder.InspectedCheckpoint(
        path=str(root),
        step=manifest.step,
        found=manifest,
        damages=tuple(seal.find_damage(root, manifest, contents=contents)),
    )
    folder = checkpoint_folder.CheckpointFolder(str(root.parent), (inspected,))
    return kept_rules.judge_checkpoint_folder(folder)


def _add_manifest_hashes(survey: CheckpointSurvey) -> CheckpointSurvey:
    """Count manifest hashes as checksums; called only if all of them match."""
    try:
        manifest = seal.read_seal(Path(survey.contents.root))
    except CheckpointUnreadable:
        return survey
    if manifest is None:
        return survey
    return msgspec.structs.replace(
        survey,
        bare=(),
        sums=survey.sums + len(manifest.files),
        times=Unknown("the manifest covers all files"),
    )


def _survey_or_finding(
    path: Path, on_progress: ProgressCallback | None, *, numbers: bool
) -> CheckpointSurvey | Finding:
    """Return the survey, or the finding that explains why nothing could be read."""
    try:
        return survey_checkpoint(
            registry.read_checkpoint(path), numbers=numbers, on_progress=on_progress
        )
    except CheckpointVersion as error:
        cause = CHECKPOINT_OF_NEWER_VERSION
        return make_finding(
            cause, f"{path} cannot be read: {error.why}", subject=Subject(file=str(path))
        )
    except CheckpointUnreadable as error:
        if isinstance(error.__cause__, GlobalRefused):
            return completeness.refused_pickle(error.subject, "", error.__cause__.names)
        return completeness.unreadable_checkpoint(error.subject, error.why)
