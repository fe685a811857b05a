"""The health of this host while a job runs: some checks, now and then, in a thread of the watcher.

A check that blocks holds up the next look and nothing else: the watcher reads the last look that came to its end. One
that did not come to its end leaves a process behind that nobody can end, and is made again ever more seldom.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.facts.checks import Place, Seen, chosen
from holdfast.facts.checks.gpu_health import GpuHealth
from holdfast.facts.checks.running import look
from holdfast.findings import Finding, Level, Unknown, Verdict
from holdfast.rules import health

#: The first look comes when the workers have imported what they import.
FIRST_S = 5.0
#: The same is told again after so long, if it is still (or again) so.
AGAIN_S = 3600.0
#: Findings that a verdict is given beside its own.
MOST_IN_A_VERDICT = 8


class Health:
    """Looks every ``every_s`` seconds from :meth:`start` on; never where that is 0."""

    def __init__(self, place: Place, every_s: float, names: Sequence[str] = health.WATCHED) -> None:
        self._place = place
        self._every_s = every_s
        self._checks = chosen(tuple(names))
        self._first: dict[str, Seen] = {}
        self._findings: tuple[Finding, ...] = ()
        self._last: dict[str, Seen] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        self._told: dict[tuple[str, object], float] = {}
        self._ended = threading.Event()
        self._looking = False
        self._thread = threading.Thread(target=self._run, name="holdfast-health", daemon=True)

    def start(self) -> None:
        """Begin; does nothing the second time."""
        if self._every_s > 0 and self._thread.ident is None:
            self._thread.start()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of the last look, errors first."""
        return self._findings

    def news(self) -> list[str]:
        """A sentence for each finding that was not told within the last hour."""
        now, sentences = time.monotonic(), []
        for claim in self._findings:
            key = (claim.cause, claim.subject)
            if now - self._told.get(key, -AGAIN_S) >= AGAIN_S:
                self._told[key] = now
                sentences.append(_sentence(claim))
        return sentences

    def beside(self, verdict: Verdict, others: Sequence[Finding] = ()) -> Verdict:
        """The verdict, with what is wrong with the hosts as suspects; nothing that it says by itself already."""
        said = {claim.cause for claim in (verdict.root, *verdict.consequences, *verdict.suspects) if claim is not None}
        fresh = [claim for claim in (*self._findings, *others) if claim.cause not in said][:MOST_IN_A_VERDICT]
        return replace(verdict, suspects=(*verdict.suspects, *fresh)) if fresh else verdict

    def close(self) -> bool:
        """Look no more; False where a look is under way, for which nobody should wait."""
        self._ended.set()
        return not self._looking

    def _run(self) -> None:
        pause_s = min(FIRST_S, self._every_s)
        while not self._ended.wait(pause_s):
            self._looking = True
            self.look()
            self._looking = False
            pause_s = self._every_s

    def look(self) -> None:
        """Look once, and judge what was seen last of each check."""
        begun = time.monotonic()
        due = [check for check in self._checks if self._pauses.get(check.name, (0.0, 0.0))[0] <= begun]
        for name, found in look(self._place, due).items():
            seen = found.seen
            if isinstance(seen, Seen):
                self._last[name] = seen
                self._first.setdefault(name, seen)
            if isinstance(seen, Unknown) or (isinstance(seen, GpuHealth) and seen.stuck):
                pause_s = min(2 * max(self._pauses.get(name, (0.0, 0.0))[1], self._every_s), AGAIN_S)
                self._pauses[name] = (time.monotonic() + pause_s, pause_s)
            else:
                self._pauses.pop(name, None)
        self._findings = health.judge(self._last, self._first, self._place, os.uname().nodename, time.time())


def _sentence(claim: Finding) -> str:
    mark = "" if claim.level is Level.WARNING else f" ({claim.level})"
    return f"health of {claim.subject.host}{mark}: {claim.message} ({claim.code} {claim.cause})"
