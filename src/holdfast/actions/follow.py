"""Evidence that still grows: judged again whenever something was added, as long as the caller likes.

Of logs, only what was added is read again (``facts.logs.growing``); archives, boxes and dumps are read as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.actions.diagnose import Diagnosis, diagnose
from holdfast.actions.heap import Watch
from holdfast.errors import MissingFile
from holdfast.facts.evidence.gather import sizes
from holdfast.facts.logs.growing import GrowingLogs
from holdfast.findings import Verdict

EVERY_S = 0.5
#: At most half of the time is spent on looking again.
REST = 1.0


@dataclass(frozen=True)
class Change:
    """What was found after something was added; ``is_news`` where the verdict is another one."""

    diagnosis: Diagnosis
    is_news: bool


class Follower:
    """Judges what is under ``paths`` once, and then again whenever a file has changed."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._logs = GrowingLogs()
        self._sizes: dict[str, tuple[int, int]] = {}

    def look(self, watch: Watch | None = None) -> Diagnosis:
        """Judge what is there now. Raises MissingFile where nothing is."""
        self._sizes = sizes(self._paths)  # before anything is read: what is written meanwhile counts as a change
        return diagnose(self._paths, watch=watch, read_logs=self._logs.read)

    def changes(self, first: Diagnosis) -> Iterator[Change]:
        """What every later look finds that has something to look at; never ends by itself."""
        last, rest_s = first, EVERY_S
        while True:
            time.sleep(max(EVERY_S, rest_s))
            begun = time.monotonic()
            if self._logs.waits or sizes(self._paths) != self._sizes:
                try:
                    found = self.look()
                except MissingFile:
                    continue  # renamed by whoever rotates it
                yield Change(found, _claim(found.verdict) != _claim(last.verdict))
                last = found
            rest_s = REST * (time.monotonic() - begun)


def _claim(verdict: Verdict) -> tuple[object, ...]:
    """What a person would call the verdict: cause, whom it is about, and the suspects where there is no root."""
    if verdict.root is None:
        return tuple(claim.cause for claim in verdict.suspects)
    return verdict.root.cause, verdict.root.subject
