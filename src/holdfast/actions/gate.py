"""The gate before each start: a host on which the job would fail for certain does not take part."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Thread

import msgspec

from holdfast.facts.checks import Place, Seen, chosen
from holdfast.facts.checks.running import look
from holdfast.findings import Finding
from holdfast.rules import gate

#: All checks together; what is late is unknown, and lets the host in.
LIMIT_S = 4.0
#: What keeps a host out has to be so twice, so long apart: processes that end let go of memory and devices.
AGAIN_S = 1.0


class Passing(msgspec.Struct, frozen=True):
    """Why the host is kept out (empty: it is not), and how long the looks took in seconds."""

    refused: tuple[Finding, ...]
    elapsed_s: float


class Gate:
    """Remembers how this host was when the job began."""

    def __init__(self, place: Place, pause: Callable[[float], None] = time.sleep) -> None:
        self._place = msgspec.structs.replace(place, within_s=LIMIT_S)
        self._pause = pause
        self._first: dict[str, Seen] = {}
        self._early: Thread | None = None
        self._found: tuple[Finding, ...] = ()
        self._host = os.uname().nodename

    def begin(self) -> None:
        """Look already now, while workers are being ended; :meth:`look` takes what comes of it."""
        self._early = Thread(target=self._look, name="holdfast gate", daemon=True)
        self._early.start()

    def look(self) -> Passing:
        """Look, and once more where the host would be kept out. The first look is what later ones are held against."""
        begun = time.monotonic()
        early, self._early = self._early, None
        if early is None:
            self._look()
        else:
            early.join(LIMIT_S + AGAIN_S)
        refused = self._found
        if refused:
            self._pause(AGAIN_S)
            self._look()
            still = {(claim.cause, claim.subject) for claim in self._found}
            refused = tuple(claim for claim in refused if (claim.cause, claim.subject) in still)
        return Passing(refused, round(time.monotonic() - begun, 3))

    def _look(self) -> None:
        self._found = ()
        seen = {name: found.seen for name, found in look(self._place, chosen(gate.ASKED)).items()}
        now = {name: each for name, each in seen.items() if isinstance(each, Seen)}
        first = dict(self._first)
        for name, each in now.items():
            self._first.setdefault(name, each)
        self._found = gate.unfit(now, first, self._place, self._host)
