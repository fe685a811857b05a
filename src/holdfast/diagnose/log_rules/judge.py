"""Derive a verdict from the facts in logs: every rule yields candidates, the likeliest is the root.

Candidates are ordered by tier (``core/log_signals.py``), then by confidence, then by time. If
nothing failed, ``root`` is None. What logs cannot show is in ``unseen``.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.causes import by_name
from holdfast.causes.gpu.gpu_fell_off_bus_xid_ecc import GPU_FELL_OFF_BUS_XID_ECC
from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.core.findings import Finding, Level, RuledOut, Subject, Verdict, make_finding
from holdfast.core.text import pluralize
from holdfast.diagnose.combined_verdict import QUESTION
from holdfast.diagnose.log_rules import (
    call_site_outliers,
    devices,
    direct_signals,
    exceptions,
    exits,
    listed_ranks,
    network,
    scheduler,
    silence,
    watchdog,
)
from holdfast.diagnose.log_rules.candidates import CauseCandidate, Rule
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.remedy_values import remedy_values
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.logs import LogFacts
from holdfast.watcher.rules.placeholders import fill_remedy

#: Signals of a job that runs, or has ended well.
_LIFE_SIGNALS = frozenset({"finished", "progress", "pace"})
MAX_SUSPECTS = 3
MAX_CONSEQUENCES = 6
#: Lines cited for a root cause or suspect.
MAX_CITED_LINES = 4
#: Signal -> cause that is ruled out without it, and the reason.
_RULED_OUT_WITHOUT = {
    "oom-killer": (HOST_OOM_KILLED, "no line of the kernel's OOM killer in these logs"),
    "xid": (GPU_FELL_OFF_BUS_XID_ECC, "no Xid and no uncorrectable memory error in these logs"),
}

RULES: tuple[Rule, ...] = (
    direct_signals.find_machine_faults,
    direct_signals.find_named_errors,
    direct_signals.find_crashes,
    devices.find_oom,
    devices.find_xids,
    devices.find_storage_faults,
    devices.find_nan,
    exceptions.find_exceptions,
    network.find_rendezvous_faults,
    network.find_unreachable_store,
    network.find_peer_faults,
    scheduler.find_terminations,
    scheduler.find_failed_tasks,
    listed_ranks.find_listed_ranks,
    watchdog.find_timeouts,
    call_site_outliers.find_outlier,
    silence.find_stalled_output,
    silence.find_slowdown,
    silence.find_p2p_hang,
    exits.find_failed_exits,
)


def judge(facts: LogFacts) -> Verdict:
    """Return the verdict; ``root`` is None if nothing failed, or no line shows what did."""
    index = LogIndex(facts)
    candidates = [one for rule in RULES for one in rule(index)]
    if all(one.tier is Tier.SILENCE for one in candidates):
        candidates += exceptions.find_unclaimed_exceptions(index)
    best = _best_of_each_cause(candidates)
    if not best:
        return Verdict(question=QUESTION, unseen=_unseen(index, None))
    root = _finding(best[0], index)
    later = [one for one in best[1:] if _is_consequence(one, best[0])]
    suspects = [_finding(one, index) for one in best[1:] if one not in later]
    found = {one.cause for one in best}
    suspects += [
        _alternative(root, name) for name in by_name(root.cause).alternatives if name not in found
    ]
    suspects = suspects[:MAX_SUSPECTS]
    claimed = {claim.cause for claim in (root, *suspects)}
    return Verdict(
        question=QUESTION,
        root=root,
        consequences=tuple(_consequence(one) for one in later[:MAX_CONSEQUENCES]),
        suspects=tuple(suspects),
        ruled_out=tuple(
            RuledOut(cause.name, why)
            for name, (cause, why) in _RULED_OUT_WITHOUT.items()
            if name not in index and cause.name not in claimed
        ),
        unseen=_unseen(index, root),
    )


def lacks_progress(facts: LogFacts) -> bool:
    """Return whether no line reports a step or an end: then no failure is no sign of success."""
    return not _LIFE_SIGNALS & {signal.name for signal in facts.signals}


def _best_of_each_cause(candidates: Iterable[CauseCandidate]) -> list[CauseCandidate]:
    """Return the best candidate of each cause, the likeliest root first."""
    best: dict[str, CauseCandidate] = {}
    for candidate in sorted(candidates, key=lambda one: one.order):
        best.setdefault(candidate.cause, candidate)
    return list(best.values())


def _is_consequence(later: CauseCandidate, root: CauseCandidate) -> bool:
    """Return whether a root cause of this tier makes other ranks log what ``later`` rests on."""
    return later.tier >= Tier.NETWORK and later.tier > root.tier


def _finding(one: CauseCandidate, index: LogIndex) -> Finding:
    file, line = (one.place.file, one.place.line) if one.place else (None, None)
    cause = by_name(one.cause)
    evidence = (*one.facts, *(line.as_fact() for line in one.lines[:MAX_CITED_LINES]))
    values = remedy_values(index, (fact.text for fact in evidence))
    return make_finding(
        cause,
        one.message,
        subject=Subject(rank=one.rank, host=one.host or None, file=file, line=line),
        evidence=evidence,
        remedies=tuple(fill_remedy(remedy, values) for remedy in one.remedies or cause.remedies),
        confidence=one.confidence,
    )


def _consequence(one: CauseCandidate) -> Finding:
    return make_finding(
        by_name(one.cause),
        f"then {one.message}",
        level=Level.NOTE,
        subject=Subject(rank=one.rank, host=one.host or None),
        evidence=tuple(line.as_fact() for line in one.lines[:1]),
    )


def _alternative(root: Finding, name: str) -> Finding:
    cause = by_name(name)
    summary = lower_first(cause.summary).rstrip(".")
    message = f"the same log lines are also printed in this case: {summary}"
    return make_finding(
        cause, message, level=Level.WARNING, subject=root.subject, confidence=root.confidence / 3
    )


def lower_first(sentence: str) -> str:
    """Return the sentence with a lower-case first letter, unless it begins with an acronym."""
    rest_of_word = sentence.split(maxsplit=1)[0][1:]
    is_acronym = rest_of_word != rest_of_word.lower()  # NCCL, GPUs, PyTorch
    return sentence if is_acronym else sentence[:1].lower() + sentence[1:]


def _unseen(index: LogIndex, root: Finding | None) -> tuple[str, ...]:
    facts, unseen = index.facts, []
    if facts.world_size and len(facts.ranks) < facts.world_size:
        missing = set(range(facts.world_size)) - facts.ranks.keys()
        unseen.append(f"no log lines from {len(missing)} of {pluralize(facts.world_size, 'rank')}")
    if root is None and lacks_progress(facts):
        unseen.append(
            "whether the job succeeded: no line reports a failure, a step, or the end of training"
        )
    return tuple(unseen)
