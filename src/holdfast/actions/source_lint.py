"""The source of a job that went wrong, linted in a process of its own, for the verdict to be held against.

``python -m holdfast.actions.source_lint`` reads an :class:`Order` (JSON) on stdin and answers with hints on stdout. It
is started when a job falls silent or dies, so that a healthy one pays nothing; it may take a few seconds and no more,
and whatever goes wrong with it leaves the verdict as it is.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast import settings
from holdfast.facts.code import effects, imported, reading
from holdfast.facts.code.partings import Parting
from holdfast.facts.code.programs import Program
from holdfast.facts.ranks import Place, RankState
from holdfast.facts.user_code import is_own
from holdfast.findings import Finding
from holdfast.rules.code.catalogue import RULES, judge
from holdfast.rules.code.rule import Rule, Tier
from holdfast.rules.source_hints import Hint

#: From the first suspicion; with the default patience of 5 s the verdict is said within 10 s all the same.
LIMIT_S = 4.0
#: And where nobody's job waits for the answer.
PATIENT_S = 10.0
MOST_MEMORY = 2 << 30
#: Advice hangs nothing, and what cannot be decided explains nothing; but what is read too early ends a rank.
_TIERS = frozenset({Tier.SURE, Tier.DATA, Tier.FAULT})
_KINDS = frozenset({"file"})


class Order(msgspec.Struct, frozen=True):
    """The files that ranks were seen in, when the job began (Unix s), and how long the answer may take."""

    files: tuple[str, ...]
    before: float
    limit_s: float = LIMIT_S


class SourceLint:
    """Lints a job's source in the background, once, for ``limit_s`` at most."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._done = threading.Event()
        self._hints: tuple[Hint, ...] = ()
        self._until = 0.0

    @property
    def is_under_way(self) -> bool:
        """True while an answer may still come."""
        return self._process is not None and not self._done.is_set() and time.monotonic() < self._until

    def begin(self, ranks: Sequence[RankState]) -> None:
        """Start, unless that was done before, or nobody wants it."""
        if self._process is not None or settings.text("HOLDFAST_LINT") == "off":
            return
        begun = [state.started for state in ranks if state.started]
        files = tuple(file for file in dict.fromkeys(_files(ranks)) if Path(file).is_file())
        if not files:
            return
        order = msgspec.json.encode(Order(files, min(begun, default=time.time()), self._limit_s))
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast.actions.source_lint"],  # -P: nothing of the job's is imported
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self._until = time.monotonic() + self._limit_s
            threading.Thread(target=self._read, args=(self._process, order), daemon=True).start()

    def hints(self, wait_s: float = 0.0) -> tuple[Hint, ...]:
        """What was found; nothing where that is not known within ``wait_s``."""
        if self._process is not None:
            self._done.wait(wait_s)
        return self._hints if self._done.is_set() else ()

    def _read(self, process: subprocess.Popen[bytes], order: bytes) -> None:
        try:
            answer, _ = process.communicate(order, timeout=self._limit_s)
            self._hints = msgspec.json.decode(answer, type=tuple[Hint, ...])
        except (subprocess.TimeoutExpired, msgspec.DecodeError, OSError, ValueError):
            process.kill()
            process.communicate()
        finally:
            self._done.set()


def _files(ranks: Iterable[RankState]) -> Iterator[str]:
    """The user's files in which ranks are, made calls, or raised."""
    for state in ranks:
        for stack in state.stacks[-1:]:
            yield from (frame.file for frame in stack.frames if is_own(frame.file))
        for call in (*state.pending, *state.recent):
            yield from (place.file for place in (call.site, call.caller) if place is not None and is_own(place.file))
        for told in (state.raised, state.ended):
            if told is not None and told.place is not None and is_own(told.place.file):
                yield told.place.file


def look(order: Order) -> list[Hint]:
    """What the linter finds in the program of these files that may part ranks."""
    files = imported.program([Path(file) for file in order.files], order.before)
    sources = reading.read(files)
    partings = Program(sources.modules, strict=False).look()
    return [_hint(*each) for each in judge(partings) if each[0].tier in _TIERS or each[1].kind in _KINDS]


def _hint(rule: Rule, parting: Parting, claim: Finding) -> Hint:
    op = parting.op
    leads = op is not None and bool(parting.chain) and parting.chain[-1] == op.place
    return Hint(
        finding=claim,
        rule=rule.name,
        kind=parting.kind,
        gravity=RULES.index(rule),
        place=_place(parting.place),
        guard=_place(parting.guard),
        call=_place(op.place) if op is not None else None,
        creates=op is not None and op.kind == "creation",
        path=tuple(_place(each) for each in parting.chain) if leads else (),
    )


def _place(place: effects.Place) -> Place:
    return Place(place.file, place.line, place.function)


def main() -> None:
    """Lint within the limits: after the job and the watcher, so much memory, so much time."""
    os.nice(5)  # not less: ranks that poll would leave it nothing
    gc.disable()  # millions of objects that stay
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    for what, most in ((resource.RLIMIT_CPU, int(order.limit_s) + 1), (resource.RLIMIT_AS, MOST_MEMORY)):
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))
    hints = look(order)
    sys.stdout.buffer.write(msgspec.json.encode(hints))


if __name__ == "__main__":
    main()
