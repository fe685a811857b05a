"""Logs that still grow: judged again whenever something was added, as long as the caller likes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.actions.diagnose import Diagnosis, diagnose
from holdfast.errors import MissingFile
from holdfast.facts.evidence.gather import sizes
from holdfast.findings import Verdict

EVERY_S = 1.0
#: Reading again takes as long as reading; at most half of the time is spent on it.
REST = 1.0


@dataclass(frozen=True)
class Change:
    """What was found after something was added; ``is_news`` where the verdict is another one."""

    diagnosis: Diagnosis
    is_news: bool


def changes(paths: Sequence[str], first: Diagnosis) -> Iterator[Change]:
    """Judge again whenever a file under ``paths`` has changed since ``first``; never ends by itself."""
    known, last = sizes(paths), first
    while True:
        time.sleep(max(EVERY_S, REST * last.elapsed_s))
        now = sizes(paths)
        if now == known:
            continue
        known = now
        try:
            found = diagnose(paths)
        except MissingFile:
            continue  # renamed by whoever rotates it
        yield Change(found, _claim(found.verdict) != _claim(last.verdict))
        last = found


def _claim(verdict: Verdict) -> tuple[object, ...]:
    """What a person would call the verdict: cause, whom it is about, and the suspects where there is no root."""
    if verdict.root is None:
        return tuple(claim.cause for claim in verdict.suspects)
    return verdict.root.cause, verdict.root.subject
