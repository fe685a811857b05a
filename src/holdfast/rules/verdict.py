"""Several witnesses, one verdict: whose root is believed, what of the others follows from it, and what stays suspect.

Boxes and dumps know what every rank was in, so that they are asked before logs. But that a rank is missing, or that the
others lost it, is mostly the end of a story: what a log says of its beginning (the kernel killed it, a GPU fell off the
bus, an exception was raised) comes before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.findings import Finding, Level, RuledOut, Verdict

QUESTION = "What ended this job?"
MOST_SUSPECTS = 4
MOST_CONSEQUENCES = 12
MOST_FACTS = 8
#: A log's root below this is no more certain than what a table of ranks says.
SURE = 0.6

#: What tables of ranks say of the end of a story.
_ENDS = frozenset(
    {
        "rank-missing-collective", "peer-lost", "straggler", "network-fabric-fault", "stalled-outside-collectives",
        "exit-nonzero", "rank-killed", "segfault-in-worker", "rank-exits-early", "gpu-hw-fault",
        "watchdog-timeout-straggler", "signal-sigterm-preempted", "python-exception-on-one-rank",
        "python-exception-all-ranks",
    }
)  # fmt: skip
#: What logs say of what came before it: families of causes, and exceptions, which are in the family of processes.
_BEGINNING_FAMILIES = ("GPU", "MEM", "DATA", "CKPT", "ENV", "CONF", "NUM")
_BEGINNINGS = frozenset(
    {"python-exception-on-one-rank", "python-exception-all-ranks", "signal-sigterm-preempted", "host-oom-killed",
     "oom-on-one-rank-then-timeout", "unused-parameters-ddp", "ddp-param-ready-twice"}
)  # fmt: skip
#: What logs say when something else is the matter.
_ECHOES = frozenset({"peer-lost", "watchdog-timeout-straggler", "rank-missing-collective", "straggler", "store-wait"})


def merge(tables: Sequence[Verdict], logs: Verdict | None) -> Verdict:
    """One verdict over those of ``tables`` (of boxes and dumps, the best witness first) and that of the ``logs``."""
    witnesses = [verdict for verdict in (*tables, logs) if verdict is not None]
    if len(witnesses) == 1:
        return witnesses[0]
    believed = _believed(tables, logs)
    root = believed.root if believed else None
    others = [verdict for verdict in witnesses if verdict is not believed]
    for other in others:
        if root is not None and other.root is not None and _same(root, other.root):
            root = _joined(root, other.root)
    suspects, consequences = _placed(root, believed, others)
    return Verdict(
        question=believed.question if believed else QUESTION,
        root=root,
        consequences=consequences[:MOST_CONSEQUENCES],
        suspects=suspects[:MOST_SUSPECTS],
        ruled_out=_ruled_out(witnesses, root, suspects),
        unseen=tuple(dict.fromkeys(text for verdict in witnesses for text in verdict.unseen)),
    )


def _believed(tables: Sequence[Verdict], logs: Verdict | None) -> Verdict | None:
    """The verdict whose root is taken."""
    table = next((verdict for verdict in tables if _is_sure(verdict)), None)
    table = table or next((verdict for verdict in tables if verdict.root is not None), None)
    if logs is None or logs.root is None:
        return table
    if table is None or table.root is None or (_is_sure(logs) and not _is_sure(table)):
        return logs
    disproved = {out.cause for verdict in tables for out in verdict.ruled_out}  # a kernel's log is that of a whole host
    if logs.root.cause in disproved or table.root.cause not in _ENDS:
        return table
    return logs if _begins(logs.root, table.root) else table


def _is_sure(verdict: Verdict) -> bool:
    """True for a root that is an error: what is not known, or may be nothing, gives way to it."""
    return verdict.root is not None and verdict.root.level == Level.ERROR


def _begins(said: Finding, seen: Finding) -> bool:
    """True where what a log says may be why a table of ranks looks as it does."""
    if said.confidence < SURE or said.cause in _ECHOES:
        return False
    of_machine = said.code.startswith(_BEGINNING_FAMILIES)
    if said.cause == seen.cause:
        return False  # the table knows the rank and the line
    if seen.cause.startswith("python-exception"):
        return of_machine and said.code.startswith(("GPU", "MEM"))
    return of_machine or said.cause in _BEGINNINGS


def _same(one: Finding, other: Finding) -> bool:
    """True where two findings say the same, one of them perhaps without the rank."""
    ranks = {one.subject.rank, other.subject.rank} - {None}
    return one.cause == other.cause and len(ranks) < 2


def _joined(root: Finding, other: Finding) -> Finding:
    facts = tuple(dict.fromkeys((*root.evidence, *other.evidence)))[:MOST_FACTS]
    doubt = (1 - root.confidence) * (1 - other.confidence)
    return replace(root, evidence=facts, confidence=max(root.confidence, min(0.99, 1 - doubt)))


def _placed(
    root: Finding | None, believed: Verdict | None, others: Sequence[Verdict]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Suspects and consequences of all: what ends the story that the root begins follows from it."""
    suspects = list(believed.suspects) if believed else []
    consequences = list(believed.consequences) if believed else []
    for other in others:
        for claim in filter(None, (other.root, *other.suspects)):
            if root is None:
                suspects.append(claim)
            elif not _same(root, claim):
                follows = claim is other.root and claim.cause in _ENDS | _ECHOES
                (consequences if follows else suspects).append(claim)
        consequences += other.consequences if root is not None else ()
    return _distinct(suspects), tuple(replace(each, level=Level.NOTE) for each in _distinct(consequences))


def _distinct(claims: Sequence[Finding]) -> tuple[Finding, ...]:
    found: dict[tuple[str, int | None, str], Finding] = {}
    for claim in claims:
        key = (claim.cause, claim.subject.rank, "" if claim.level != Level.NOTE else claim.message)
        found.setdefault(key, claim)
    return tuple(found.values())


def _ruled_out(witnesses: Sequence[Verdict], root: Finding | None, suspects: Sequence[Finding]) -> tuple[RuledOut, ...]:
    """What a witness ruled out and no other claims."""
    claimed = {claim.cause for claim in (root, *suspects) if claim is not None}
    found: dict[str, RuledOut] = {}
    for verdict in witnesses:
        for out in verdict.ruled_out:
            if out.cause not in claimed:
                found.setdefault(out.cause, out)
    return tuple(found.values())
