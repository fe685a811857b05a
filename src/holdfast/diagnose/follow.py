"""Diagnose growing evidence again whenever something was added.

Of logs, only what was added is read (``logs/growing_logs.py``); archives, traces and dumps are read
as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.core.errors import MissingFile
from holdfast.core.findings import Verdict
from holdfast.diagnose.evidence.gather import file_states
from holdfast.diagnose.evidence_set import ProgressCallback
from holdfast.diagnose.logs.growing_logs import GrowingLogs
from holdfast.diagnose.pipeline import DiagnosisResult, diagnose

#: Shortest pause between two checks in seconds; a check that takes longer is followed by a pause as
#: long, so that at most half of the time is spent on checks.
INTERVAL_S = 0.5


@dataclass(frozen=True)
class DiagnosisUpdate:
    """The result after evidence was added; ``is_new_verdict``: it differs from the previous one."""

    result: DiagnosisResult
    is_new_verdict: bool


class EvidenceFollower:
    """Diagnoses the evidence under ``paths``, and again whenever a file changes."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._logs = GrowingLogs()
        self._states: dict[str, tuple[int, int]] = {}

    def diagnose(self, on_progress: ProgressCallback | None = None) -> DiagnosisResult:
        """Diagnose the current evidence. Raises MissingFile if there is none."""
        self._states = file_states(self._paths)  # first, so that later writes count as changes
        return diagnose(self._paths, on_progress=on_progress, read=self._logs.read)

    def updates(self, previous: DiagnosisResult) -> Iterator[DiagnosisUpdate]:
        """Yield a result whenever evidence was added, without end."""
        pause_s = INTERVAL_S
        while True:
            time.sleep(max(INTERVAL_S, pause_s))
            begin = time.monotonic()
            if self._logs.has_partial_line or file_states(self._paths) != self._states:
                try:
                    result = self.diagnose()
                except MissingFile:
                    continue  # being rotated
                is_new = _summarize(result.verdict) != _summarize(previous.verdict)
                yield DiagnosisUpdate(result, is_new)
                previous = result
            pause_s = time.monotonic() - begin


def _summarize(verdict: Verdict) -> tuple[object, ...]:
    """Return cause and subject of the root, or the causes of the suspects."""
    if verdict.root is None:
        return tuple(claim.cause for claim in verdict.suspects)
    return verdict.root.cause, verdict.root.subject
