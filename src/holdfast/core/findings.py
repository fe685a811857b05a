"""The five shared types of holdfast: Fact, Cause, Finding, Remedy, Verdict.

    Fact ──cited by──▶ Finding ──of──▶ Cause ──advises──▶ Remedy
                          └──ordered into──▶ Verdict

All are frozen; this module imports the standard library, msgspec and parts of a Cause only.
:func:`finding_to_json` and :func:`verdict_to_json` give the same JSON in every command; scripts
outside this project rely on it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.log_signals import LogSignal
from holdfast.core.treatments import Treatment

SCHEMA = "holdfast/1"


class Level(StrEnum):
    """Severity of a finding. ``UNKNOWN``: the rule could not decide; it is never treated as OK."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


class Safety(StrEnum):
    """Cost of applying a remedy: none, a restart of the running job, or manual work."""

    AUTOMATIC = "automatic"
    DISRUPTIVE = "disruptive"
    BY_HAND = "by hand"

    @property
    def risk(self) -> str:
        """What applying the remedy risks, in the words of reports and pages."""
        return _RISKS[self]


_RISKS = {Safety.AUTOMATIC: "safe", Safety.DISRUPTIVE: "restarts the job", Safety.BY_HAND: "manual"}


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a finding is about; fields that do not apply are None. ``rank`` is the global rank."""

    rank: int | None = None
    host: str | None = None
    gpu: int | None = None
    link: str | None = None
    file: str | None = None
    line: int | None = None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """An observed value: text, where it was read, rank and host, and Unix time in seconds."""

    text: str
    origin: str
    rank: int | None = None
    host: str | None = None
    time: float | None = None


class Unknown(msgspec.Struct, frozen=True):
    """A fact that could not be determined, and why. Rules answer *unknown* for it, never *OK*."""

    why: str


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """One action: a sentence, the exact command or change if any, and its safety."""

    text: str
    command: str | None = None
    safety: Safety = Safety.BY_HAND


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """All knowledge about one kind of failure, in one file of the catalogue.

    ``code`` is stable (``SYNC002``), ``name`` names the fault, not the fix
    (``rank-missing-collective``). ``holdfast explain``, the documentation and the reports show
    the texts under fixed headings. Rules and the recovery policy read the other fields:

    - ``evidence_sources``: the kinds of evidence that can show it.
    - ``signals``: the log lines that point to this cause.
    - ``log_examples``: logs whose verdict names this cause for other reasons than its signals.
    - ``alternatives``: names of causes that the same log lines may stand for, the likelier first;
      its entry names them, a verdict only if they have a line of their own.
    - ``may_be_consequence``: a rank table may show it because of an earlier failure that only a
      log records.
    - ``echo_in_logs``: in a log, ranks report it after another failure; it is never the first one.
    - ``may_start_failure``: in a log it may be that earlier failure: its line is the root if a
      rank's ``may_be_consequence`` error follows it. Always so in the families GPU, MEM, DATA,
      CKPT, ENV, CONF and NUM.
    - ``may_recover``: a hang with this cause may end by itself, so it is reported at once and
      acted on later.
    - ``treatment``: the recovery policy (``core/treatments.py``). None: suspect the host after a
      hang, otherwise restart.
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
    evidence_sources: tuple[EvidenceSource, ...] = ()
    signals: tuple[LogSignal, ...] = ()
    log_examples: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    may_be_consequence: bool = False
    echo_in_logs: bool = False
    may_start_failure: bool = False
    may_recover: bool = False
    treatment: Treatment | None = None

    @property
    def family(self) -> str:
        """Return the letters of the code: ``SYNC`` for ``SYNC002``."""
        return self.code.rstrip("0123456789")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's conclusion with its evidence; 0 < confidence <= 1."""

    code: str
    cause: str
    level: Level
    message: str
    subject: Subject = Subject()
    evidence: tuple[Fact, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    confidence: float = 1.0


class RuledOut(msgspec.Struct, frozen=True):
    """A cause that was considered and rejected, and the observation that contradicts it."""

    cause: str
    why: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question. ``root`` is None where nothing failed.

    ``unseen`` lists what could not be observed.
    """

    question: str
    root: Finding | None = None
    consequences: tuple[Finding, ...] = ()
    suspects: tuple[Finding, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    unseen: tuple[str, ...] = ()


def make_finding(
    cause: Cause,
    message: str,
    *,
    level: Level = Level.ERROR,
    subject: Subject | None = None,
    evidence: tuple[Fact, ...] = (),
    remedies: tuple[Remedy, ...] = (),
    confidence: float = 1.0,
) -> Finding:
    """Create a finding of ``cause``; ``remedies`` default to those of the cause."""
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


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Return the finding as plain data, in the JSON shape that all commands share."""
    data: dict[str, Any] = msgspec.to_builtins(finding)
    return data


def verdict_to_json(verdict: Verdict | None) -> dict[str, Any] | None:
    """Return the verdict as plain data; None stays None."""
    data: dict[str, Any] | None = msgspec.to_builtins(verdict)
    return data
