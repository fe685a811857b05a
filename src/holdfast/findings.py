"""The five words that every part of holdfast speaks: Fact, Cause, Finding, Remedy, Verdict.

    Fact ──cited by──▶ Finding ──of──▶ Cause ──advises──▶ Remedy
                          └──ordered into──▶ Verdict

All are frozen; this module imports the standard library and msgspec only. The JSON of a finding and of a verdict
(:func:`finding_to_json`, :func:`verdict_to_json`) is the same in every command and is relied on outside this project.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

SCHEMA = "holdfast/1"


class Level(StrEnum):
    """How much a finding matters. ``UNKNOWN`` says that the rule could not judge; it is never read as fine."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


class Safety(StrEnum):
    """What taking a remedy costs: nothing, the running job, or a person's attention."""

    AUTOMATIC = "automatic"
    DISRUPTIVE = "disruptive"
    BY_HAND = "by hand"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Whom or what a claim is about; fields that do not apply are None. ``rank`` is the global rank."""

    rank: int | None = None
    host: str | None = None
    gpu: int | None = None
    link: str | None = None
    file: str | None = None
    line: int | None = None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A value with its receipt: what was seen, where it was read, of whom, and when (Unix time in seconds)."""

    text: str
    origin: str
    rank: int | None = None
    host: str | None = None
    time: float | None = None


class Unknown(msgspec.Struct, frozen=True):
    """Stands where a fact could not be had, and says why. A rule that meets it answers *unknown*, never *fine*."""

    why: str


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do, the exact command or change where there is one, and what doing it costs."""

    text: str
    command: str | None = None
    safety: Safety = Safety.BY_HAND


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What we know about one kind of failure, written once.

    ``code`` is stable (``SYNC002``), ``name`` names the fault, not the fix (``rank-missing-collective``). The texts are
    the fixed headings under which ``holdfast explain``, the documentation and the reports show it.
    """

    code: str
    name: str
    summary: str
    what_happens: str
    shows_before: str
    shows_during: str
    shows_after: str
    known_misses: str
    remedies: tuple[Remedy, ...]
    sources: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The letters of the code: ``SYNC`` of ``SYNC002``."""
        return self.code.rstrip("0123456789")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's claim: a cause, its level, its subject, one sentence, the facts cited, and 0 < confidence <= 1."""

    code: str
    cause: str
    level: Level
    message: str
    subject: Subject = Subject()
    evidence: tuple[Fact, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    confidence: float = 1.0


class RuledOut(msgspec.Struct, frozen=True):
    """A cause that was considered and dropped, and the observation that speaks against it."""

    cause: str
    why: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question. ``root`` is None where nothing failed; ``unseen`` lists what could not be seen."""

    question: str
    root: Finding | None = None
    consequences: tuple[Finding, ...] = ()
    suspects: tuple[Finding, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    unseen: tuple[str, ...] = ()


def finding(
    cause: Cause,
    message: str,
    *,
    level: Level = Level.ERROR,
    subject: Subject | None = None,
    evidence: tuple[Fact, ...] = (),
    remedies: tuple[Remedy, ...] = (),
    confidence: float = 1.0,
) -> Finding:
    """Claim ``cause``; without ``remedies`` of its own the finding carries those of the cause."""
    return Finding(
        code=cause.code,
        cause=cause.name,
        level=level,
        message=message,
        subject=subject or Subject(),
        evidence=evidence,
        remedies=remedies or cause.remedies,
        confidence=confidence,
    )


def finding_to_json(claim: Finding) -> dict[str, Any]:
    """The finding as plain data, in the shape that is the same everywhere."""
    data: dict[str, Any] = msgspec.to_builtins(claim)
    return data


def verdict_to_json(verdict: Verdict | None) -> dict[str, Any] | None:
    """The verdict as plain data; None stays None."""
    data: dict[str, Any] | None = msgspec.to_builtins(verdict)
    return data
