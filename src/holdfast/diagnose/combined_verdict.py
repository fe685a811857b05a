"""Merge the verdicts of several evidence sources into one.

Trace files and dumps show what every rank was doing, so they take precedence over logs. But a
missing or lost rank is usually the last effect of a failure: if a log shows an earlier cause (an
OOM kill, a GPU off the bus, an exception), that is the root cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.causes import by_name
from holdfast.core.findings import Finding, Level, RuledOut, Verdict

QUESTION = "Why did the job fail?"
MAX_SUSPECTS = 4
MAX_CONSEQUENCES = 12
MAX_FACTS = 8
#: A log's root cause below this confidence does not replace that of a rank table.
MIN_LOG_CONFIDENCE = 0.72

#: Families whose causes, found in a log, may be the earlier failure behind what a rank table shows.
_EARLIER_FAMILIES = ("GPU", "MEM", "DATA", "CKPT", "ENV", "CONF", "NUM")


def merge(tables: Sequence[Verdict], logs: Verdict | None) -> Verdict:
    """Merge the verdicts over rank tables, most reliable first, and the one over logs."""
    verdicts = [verdict for verdict in (*tables, logs) if verdict is not None]
    if len(verdicts) == 1:
        return verdicts[0]
    primary = _choose_primary(tables, logs)
    root = primary.root if primary else None
    others = [verdict for verdict in verdicts if verdict is not primary]
    for other in others:
        if root is not None and other.root is not None and _agree(root, other.root):
            root = _combine_evidence(root, other.root)
    suspects, consequences = _sort_claims(root, primary, others)
    return Verdict(
        question=primary.question if primary else QUESTION,
        root=root,
        consequences=consequences[:MAX_CONSEQUENCES],
        suspects=suspects[:MAX_SUSPECTS],
        ruled_out=_ruled_out(verdicts, root, suspects),
        unseen=tuple(dict.fromkeys(text for verdict in verdicts for text in verdict.unseen)),
    )


def _choose_primary(tables: Sequence[Verdict], logs: Verdict | None) -> Verdict | None:
    """Return the verdict whose root cause counts."""
    table = next((verdict for verdict in tables if _has_error(verdict)), None)
    table = table or next((verdict for verdict in tables if verdict.root is not None), None)
    if logs is None or logs.root is None:
        return table
    if table is None or table.root is None or (_has_error(logs) and not _has_error(table)):
        return logs
    # A kernel log covers the whole host; its OOM kill may be of another job.
    ruled_out = {out.cause for verdict in tables for out in verdict.ruled_out}
    if logs.root.cause in ruled_out or not by_name(table.root.cause).may_be_consequence:
        return table
    return logs if _may_precede(logs.root, table.root) else table


def _has_error(verdict: Verdict) -> bool:
    """Return whether the root cause is an error; other levels yield to an error."""
    return verdict.root is not None and verdict.root.level == Level.ERROR


def _may_precede(logged: Finding, table: Finding) -> bool:
    """Return whether the root cause in a log may explain the one in a rank table."""
    cause = by_name(logged.cause)
    if logged.confidence < MIN_LOG_CONFIDENCE or cause.echo_in_logs:
        return False
    if logged.cause == table.cause:
        return False  # the table has the rank and the line
    if table.cause.startswith("python-exception"):
        return logged.code.startswith(("GPU", "MEM"))
    return logged.code.startswith(_EARLIER_FAMILIES) or cause.may_start_failure


def _agree(one: Finding, other: Finding) -> bool:
    """Return whether two findings have the same cause and no different ranks."""
    ranks = {one.subject.rank, other.subject.rank} - {None}
    return one.cause == other.cause and len(ranks) < 2


def _combine_evidence(root: Finding, other: Finding) -> Finding:
    facts = tuple(dict.fromkeys((*root.evidence, *other.evidence)))[:MAX_FACTS]
    doubt = (1 - root.confidence) * (1 - other.confidence)
    return replace(root, evidence=facts, confidence=max(root.confidence, min(0.99, 1 - doubt)))


def _sort_claims(
    root: Finding | None, primary: Verdict | None, others: Sequence[Verdict]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return all suspects and consequences; roots of other verdicts may be consequences."""
    suspects = list(primary.suspects) if primary else []
    consequences = list(primary.consequences) if primary else []
    for other in others:
        for claim in filter(None, (other.root, *other.suspects)):
            if root is None:
                suspects.append(claim)
            elif not _agree(root, claim):
                cause = by_name(claim.cause)
                follows = claim is other.root and (cause.may_be_consequence or cause.echo_in_logs)
                (consequences if follows else suspects).append(claim)
        consequences += other.consequences if root is not None else ()
    notes = (replace(each, level=Level.NOTE) for each in _without_duplicates(consequences))
    return _without_duplicates(suspects), tuple(notes)


def _without_duplicates(claims: Sequence[Finding]) -> tuple[Finding, ...]:
    found: dict[tuple[str, int | None, str], Finding] = {}
    for claim in claims:
        key = (claim.cause, claim.subject.rank, "" if claim.level != Level.NOTE else claim.message)
        found.setdefault(key, claim)
    return tuple(found.values())


def _ruled_out(
    verdicts: Sequence[Verdict], root: Finding | None, suspects: Sequence[Finding]
) -> tuple[RuledOut, ...]:
    """Return what one source ruled out and no other claims."""
    claimed = {claim.cause for claim in (root, *suspects) if claim is not None}
    found: dict[str, RuledOut] = {}
    for verdict in verdicts:
        for out in verdict.ruled_out:
            if out.cause not in claimed:
                found.setdefault(out.cause, out)
    return tuple(found.values())
