"""Derive a verdict from the facts in logs: every rule yields candidates, the likeliest is the root.

Lines after the end of a rank and faults that training overcame are left out where others show the
root cause (``echoes.py``). Of the candidates the first is the root (``chronology.py``); where the
order is unknown, the one of the earliest tier. If nothing failed, ``root`` is None. What logs
cannot show is in ``unseen``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.causes import by_name
from holdfast.causes.gpu.gpu_fell_off_bus_xid_ecc import GPU_FELL_OFF_BUS_XID_ECC
from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.causes.process.signal_sigterm_preempted import SIGNAL_SIGTERM_PREEMPTED
from holdfast.core.findings import Finding, Level, RuledOut, Subject, Verdict, make_finding
from holdfast.core.text import pluralize
from holdfast.diagnose.combined_verdict import QUESTION
from holdfast.diagnose.log_rules import (
    call_site_outliers,
    damaged_files,
    devices,
    direct_signals,
    exceptions,
    exits,
    listed_ranks,
    long_work,
    nccl_warnings,
    network,
    scheduler,
    silence,
    silent_hosts,
    stated_values,
    unclassified,
    unequal_inputs,
    watchdog,
)
from holdfast.diagnose.log_rules.candidates import CauseCandidate, Rule
from holdfast.diagnose.log_rules.chronology import is_order_unknown, order_by_cause, precedes
from holdfast.diagnose.log_rules.clocks import AlignedLogs, align_clocks
from holdfast.diagnose.log_rules.confidence import Circumstances, adjust_confidence
from holdfast.diagnose.log_rules.echoes import (
    Position,
    echo_positions,
    is_survived,
    overcome_positions,
    without_lines,
)
from holdfast.diagnose.log_rules.file_ranks import attribute_ranks
from holdfast.diagnose.log_rules.log_index import FATAL, LogIndex, is_later
from holdfast.diagnose.log_rules.remedy_values import remedy_values
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.logs import LogFacts, LogLine
from holdfast.watcher.rules.placeholders import fill_remedy

#: Signals of a job that runs, or has ended well.
_LIFE_SIGNALS = frozenset({"finished", "progress", "pace", "tests-ok"})
MAX_SUSPECTS = 3
MAX_CONSEQUENCES = 6
#: A root cause of these tiers says that something failed before.
_ROOT_NOT_SEEN = frozenset({Tier.LOST, Tier.SILENCE})
#: Lines cited for a root cause or suspect.
MAX_CITED_LINES = 4
#: Signals of the kernel and drivers, the cause that is ruled out without them, and the reason.
_SHOWN_BY_KERNEL = (
    (("oom-killer",), HOST_OOM_KILLED, "the kernel's log was read, and has no OOM kill"),
    (
        ("xid", "gpu-lost"),
        GPU_FELL_OFF_BUS_XID_ECC,
        "the kernel's log was read, and has no Xid and no uncorrectable memory error",
    ),
)
#: What other ranks, or the kernel, would have logged decides about a root cause of these tiers.
_OF_OTHER_RANKS = frozenset({Tier.LOST, Tier.WAITING, Tier.SILENCE})
#: After the end of the training, processes end one after the other.
_OF_CONNECTIONS = frozenset({Tier.NETWORK, Tier.LOST, Tier.WAITING})
_KERNEL_MAY_EXPLAIN = frozenset({Tier.CRASH, Tier.LOST, Tier.SILENCE})

RULES: tuple[Rule, ...] = (
    direct_signals.find_machine_faults,
    direct_signals.find_named_errors,
    direct_signals.find_crashes,
    devices.find_oom,
    devices.find_xids,
    devices.find_storage_faults,
    devices.find_nan,
    damaged_files.find_damaged_files,
    damaged_files.find_file_in_download,
    exceptions.find_exceptions,
    network.find_rendezvous_faults,
    network.find_missing_pods,
    nccl_warnings.find_failed_part,
    network.find_unreachable_store,
    network.find_peer_faults,
    scheduler.find_terminations,
    scheduler.find_failed_tasks,
    listed_ranks.find_listed_ranks,
    watchdog.find_timeouts,
    long_work.find_long_work,
    unequal_inputs.find_uneven_inputs,
    unequal_inputs.find_early_end,
    unequal_inputs.find_decided_end,
    stated_values.find_different_versions,
    stated_values.find_different_arguments,
    stated_values.find_stale_store,
    call_site_outliers.find_outlier,
    silence.find_stalled_output,
    silence.find_slowdown,
    silence.find_p2p_hang,
    silent_hosts.find_stopped_measurement,
    exits.find_failed_exits,
)


def judge(facts: LogFacts) -> Verdict:
    """Return the verdict; ``root`` is None if nothing failed, or no line shows what did."""
    aligned = align_clocks(attribute_ranks(facts))
    index = LogIndex(exceptions.without_refusing_services(aligned.facts))
    found = _find_causes(index)
    if all(_is_harmless(index, one) for one in found.candidates):
        unknown = tuple(
            _finding(one, index, Circumstances(unnamed=True))
            for one in unclassified.find_error_at_end(index)
        )
        return Verdict(question=QUESTION, suspects=unknown, unseen=_unseen(index, None))
    first, *others = unclassified.explain_root(index, found.candidates)
    later = [one for one in others if _is_consequence(one, first)]
    rivals = [one for one in others if one not in later]
    suspects = [_finding(one, index, _circumstances(one, found, index)) for one in rivals]
    unsure = [one for one in others if is_order_unknown(first, one, aligned.unaligned)]
    known = _circumstances(first, found, index)._replace(order_unknown=bool(unsure))
    root = _finding(first, index, known)
    return Verdict(
        question=QUESTION,
        root=root,
        consequences=tuple(_consequence(one) for one in (*later, *found.echoes)[:MAX_CONSEQUENCES]),
        suspects=tuple(suspects[:MAX_SUSPECTS]),
        ruled_out=_ruled_out(index, {root.cause, *(one.cause for one in suspects)}),
        unseen=(*_unseen(index, first), *_unknown_order(first, unsure, aligned)),
    )


def _is_harmless(index: LogIndex, one: CauseCandidate) -> bool:
    """Return whether training went on after it, or was over: connections and helpers are ended."""
    is_over = one.tier in _OF_CONNECTIONS and not index.has_any(*FATAL, "exit-code", "rank-aborts")
    return is_survived(index, one.cause, one.lines) or (
        (is_over or (one.cause == SIGNAL_SIGTERM_PREEMPTED.name and _is_finished(index)))
        and _is_after_end(index, one.lines)
        and all(traceback.notice for traceback in index.facts.tracebacks)
    )


def _is_finished(index: LogIndex) -> bool:
    """Return whether no step follows the last report of the end of the training."""
    ends = index.finishes
    return bool(ends) and not index.after(ends[-1], "progress", "pace")


def _is_after_end(index: LogIndex, lines: Sequence[LogLine]) -> bool:
    """Return whether all lines follow a report of the end of the training, or of their rank."""
    ends = [one.line for one in index.finishes]
    exits = [
        one.line
        for one in index.facts.signals
        if one.name == "noise-destroy" and one.line.rank is not None
    ]
    return bool(lines) and all(
        any(is_later(line, end) for end in ends)
        or any(is_later(line, end) for end in exits if end.rank == line.rank)
        for line in lines
    )


class FoundCauses(NamedTuple):
    """The candidates, the root first, and those that rest on echoes.

    ``corroborated`` are causes that lines of several tiers show; ``late``: without echoes, and what
    training overcame, no line shows the root cause.
    """

    candidates: list[CauseCandidate]
    corroborated: frozenset[str]
    echoes: tuple[CauseCandidate, ...] = ()
    late: bool = False


def _find_causes(index: LogIndex) -> FoundCauses:
    """Return the candidates without echoes and what training overcame, if they show the root."""
    overcome = overcome_positions(index)
    late = echo_positions(index) | overcome
    for left_out in dict.fromkeys((late, overcome)):
        found = _candidates(LogIndex(without_lines(index.facts, left_out))) if left_out else None
        if found and found.candidates and found.candidates[0].tier not in _ROOT_NOT_SEEN:
            break
    else:
        found, left_out = _candidates(index), frozenset()
    known = {one.cause for one in found.candidates}
    echoes = (one for one in _candidates(index).candidates if one.cause not in known)
    return found._replace(
        echoes=tuple(one for one in echoes if not _rests_on(one, overcome)) if left_out else (),
        late=bool(found.candidates) and _rests_on(found.candidates[0], late),
    )


def _rests_on(one: CauseCandidate, positions: frozenset[Position]) -> bool:
    return any((line.source, line.number) in positions for line in one.lines)


def _candidates(index: LogIndex) -> FoundCauses:
    candidates = [one for rule in RULES for one in rule(index)]
    candidates = candidates or list(unclassified.find_reported_failure(index))
    if all(one.tier is Tier.SILENCE for one in candidates):
        candidates += exceptions.find_unclaimed_exceptions(index)
    elif all(one.tier in _ROOT_NOT_SEEN for one in candidates):
        candidates += exceptions.find_exceptions_before_steps(index)
    shown = {(one.cause, one.tier) for one in candidates}
    by_cause = Counter(cause for cause, _ in shown)
    several = frozenset(cause for cause, count in by_cause.items() if count > 1)
    return FoundCauses(order_by_cause(candidates), several)


def _circumstances(one: CauseCandidate, found: FoundCauses, index: LogIndex) -> Circumstances:
    ranks = {line.rank for line in one.lines if line.rank is not None}
    return Circumstances(
        unnamed=one.guess or one.tier is Tier.EXCEPTION,
        corroborated=one.cause in found.corroborated
        or (len(ranks) > 1 and one.tier not in _KERNEL_MAY_EXPLAIN),
        launcher_agrees=one.rank is not None and one.rank == index.first_failed,
        ranks_missing=one.tier in _OF_OTHER_RANKS and bool(_missing_ranks(index)),
        late=found.late,
    )


def lacks_progress(facts: LogFacts) -> bool:
    """Return whether no line reports a step or an end: then no failure is no sign of success."""
    return not _LIFE_SIGNALS & {signal.name for signal in facts.signals}


def _is_consequence(later: CauseCandidate, root: CauseCandidate) -> bool:
    """Return whether a root cause of this tier makes other ranks log what ``later`` rests on."""
    is_effect = later.tier >= Tier.NETWORK and later.tier > root.tier
    return (is_effect and not precedes(later, root)) or precedes(root, later)


def _finding(one: CauseCandidate, index: LogIndex, known: Circumstances) -> Finding:
    file, line = (one.place.file, one.place.line) if one.place else (None, None)
    cause = by_name(one.cause)
    cited = {(line.text.strip(), line.rank): line.as_fact() for line in reversed(one.lines)}
    evidence = (*one.facts, *[*reversed(cited.values())][:MAX_CITED_LINES])
    values = remedy_values(index, (fact.text for fact in evidence))
    return make_finding(
        cause,
        one.message,
        subject=Subject(rank=one.rank, host=one.host or None, file=file, line=line),
        evidence=evidence,
        remedies=tuple(fill_remedy(remedy, values) for remedy in one.remedies or cause.remedies),
        confidence=adjust_confidence(one.confidence, known),
    )


def _consequence(one: CauseCandidate) -> Finding:
    return make_finding(
        by_name(one.cause),
        f"then {one.message}",
        level=Level.NOTE,
        subject=Subject(rank=one.rank, host=one.host or None),
        evidence=tuple(line.as_fact() for line in one.lines[:1]),
    )


def _ruled_out(index: LogIndex, claimed: set[str]) -> tuple[RuledOut, ...]:
    """Return what the kernel's log would show, if it was read."""
    if "kernel-line" not in index:
        return ()
    return tuple(
        RuledOut(cause.name, why)
        for names, cause, why in _SHOWN_BY_KERNEL
        if not index.has_any(*names) and cause.name not in claimed
    )


def _missing_ranks(index: LogIndex) -> set[int]:
    return set(range(index.facts.world_size or 0)) - index.facts.ranks.keys()


def _unseen(index: LogIndex, root: CauseCandidate | None) -> tuple[str, ...]:
    facts, unseen = index.facts, []
    if missing := _missing_ranks(index):
        size = pluralize(facts.world_size or 0, "rank")
        unseen.append(f"no log lines from {len(missing)} of {size}")
    if root is None or root.tier in _OF_OTHER_RANKS:
        silent = sorted(silent_hosts.launcher_only_logs(index))
        unseen += [f"{source}: it has only lines of its launcher" for source in silent]
    if root is None and lacks_progress(facts):
        unseen.append(
            "whether the job succeeded: no line reports a failure, a step, or the end of training"
        )
    if root is not None and root.guess:
        unseen.append("why: no line states a reason; Python exits with 1 after an exception")
    if root is not None and root.tier in _KERNEL_MAY_EXPLAIN and "kernel-line" not in index:
        unseen.append("the kernel's log: it would show an OOM kill or a fault of a GPU")
    return tuple(unseen)


def _unknown_order(
    root: CauseCandidate, unsure: Sequence[CauseCandidate], aligned: AlignedLogs
) -> Iterator[str]:
    """Yield that the clocks of the logs in question could not be aligned."""
    for one in unsure[:1]:
        if aligned.unaligned & {line.source for each in (root, one) for line in each.lines}:
            yield (
                f"whether {one.cause} came before: the clocks of the logs cannot be aligned, "
                "because they share no step and no line of a launcher"
            )
