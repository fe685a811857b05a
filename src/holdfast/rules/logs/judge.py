"""From what logs say to a verdict: every rule offers candidates, the one nearest to the root wins.

Candidates are ordered by tier (``meanings.py``), then by confidence, then by time. Where nothing failed, ``root`` is
None. What a log cannot show (the line where a silent rank sits) is said in ``unseen``.
"""

from __future__ import annotations

from holdfast.facts.logs import Line, LogFacts
from holdfast.findings import Fact, Finding, Level, RuledOut, Subject, Verdict, finding
from holdfast.rules.causes import by_name
from holdfast.rules.logs import devices, elsewhere, exceptions, exits, network, outside, plain, silence, watchdog
from holdfast.rules.logs.heard import Candidate, Heard, Rule
from holdfast.rules.logs.meanings import ALSO, Tier

QUESTION = "What ended this job?"
#: Signals of a job that runs, or has ended as it should.
_LIFE = frozenset({"finished", "progress", "pace"})
MOST_SUSPECTS = 3
MOST_CONSEQUENCES = 6

RULES: tuple[Rule, ...] = (
    plain.machine, plain.named, plain.crashed, devices.memory, devices.xid, devices.storage, devices.numbers,
    exceptions.raised, network.rendezvous, network.unreached, network.peers, outside.ended, outside.tasks,
    watchdog.waited, elsewhere.stood, silence.stood_still, silence.slowed, silence.stuck_between_gpus, exits.ended,
)  # fmt: skip


def judge(facts: LogFacts) -> Verdict:
    """The verdict over a heap of logs. ``root`` is None where nothing failed, or nothing tells what did."""
    heard = Heard(facts)
    candidates = sorted((one for rule in RULES for one in rule(heard)), key=lambda one: one.order)
    best = _distinct(candidates)
    root = _finding(best[0]) if best else None
    others = [_finding(one) for one in best[1:] if not _follows(one, best[0])]
    if root is not None:
        others += [_also(root, name) for name in ALSO.get(root.cause, ()) if name not in {one.cause for one in best}]
    return Verdict(
        question=QUESTION,
        root=root,
        consequences=tuple(_consequence(one) for one in best[1:] if _follows(one, best[0]))[:MOST_CONSEQUENCES],
        suspects=tuple(others[:MOST_SUSPECTS]),
        ruled_out=_ruled_out(heard, root),
        unseen=_unseen(heard, root),
    )


def is_mute(facts: LogFacts) -> bool:
    """True where no line tells of steps or of an end: that nothing failed is then no sign that it went well."""
    return not _LIFE & {signal.name for signal in facts.signals}


def _distinct(candidates: list[Candidate]) -> list[Candidate]:
    """The best candidate of each cause."""
    seen: dict[str, Candidate] = {}
    for candidate in candidates:
        seen.setdefault(candidate.cause, candidate)
    return list(seen.values())


def _follows(later: Candidate, root: Candidate) -> bool:
    """True where ``later`` is what a root of this kind makes others say."""
    return later.tier >= Tier.NETWORK and later.tier > root.tier


def _finding(one: Candidate) -> Finding:
    file, line = (one.place.file, one.place.line) if one.place else (None, None)
    subject = Subject(rank=one.rank, host=one.host or None, file=file, line=line)
    evidence = (*one.facts, *(_fact(line) for line in one.lines[:4]))
    return finding(
        by_name(one.cause), one.message, subject=subject, evidence=evidence, remedies=one.remedies,
        confidence=one.confidence,
    )  # fmt: skip


def _consequence(one: Candidate) -> Finding:
    subject = Subject(rank=one.rank, host=one.host or None)
    evidence = tuple(_fact(line) for line in one.lines[:1])
    return finding(by_name(one.cause), f"then {one.message}", level=Level.NOTE, subject=subject, evidence=evidence)


def _also(root: Finding, name: str) -> Finding:
    cause = by_name(name)
    message = f"the same lines are printed where {cause.summary[0].lower()}{cause.summary[1:].rstrip('.')}"
    return finding(cause, message, level=Level.WARNING, subject=root.subject, confidence=root.confidence / 3)


def _fact(line: Line) -> Fact:
    return Fact(
        text=line.text.strip()[:300], origin=f"{line.source}:{line.number}", rank=line.rank, host=line.host or None,
        time=line.time,
    )  # fmt: skip


def _ruled_out(heard: Heard, root: Finding | None) -> tuple[RuledOut, ...]:
    if root is None:
        return ()
    found = []
    for name, cause, what in (
        ("oom-killer", "host-oom-killed", "no line of the kernel's out-of-memory killer"),
        ("xid", "gpu-fell-off-bus-xid-ecc", "no Xid and no uncorrectable memory error is in these logs"),
    ):
        if name not in heard and cause != root.cause:
            found.append(RuledOut(cause, what))
    return tuple(found)


def _unseen(heard: Heard, root: Finding | None) -> tuple[str, ...]:
    facts, found = heard.facts, list(heard.facts.unseen)
    if facts.world_size and len(facts.ranks) < facts.world_size:
        missing = set(range(facts.world_size)) - facts.ranks.keys()
        found.append(f"no line of {len(missing)} of {facts.world_size} ranks")
    if root is None and is_mute(facts):
        found.append("no line tells of a failure, and none of steps or of an end: nothing says that the job went well")
    return tuple(found)
