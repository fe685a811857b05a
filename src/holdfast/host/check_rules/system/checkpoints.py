"""Judges whether a job that starts now can load the newest checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.findings import Finding, Level
from holdfast.host import checkpoint_folder_rules
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.checkpoints import CheckpointsResult


def judge(result: CheckpointsResult, _context: CheckContext) -> Iterator[Finding]:
    """Report what loading would skip.

    That contents were not verified is in the facts, not a finding each.
    """
    if result.folder is None:
        return
    by_sizes = not result.folder.unobserved
    for finding in checkpoint_folder_rules.judge_checkpoint_folder(result.folder):
        if finding.level is not Level.UNKNOWN or not by_sizes:
            yield finding
