"""Judge a job by its flight-recorder dumps, with the wait-for graph that live jobs are judged by.

Dumps are written one after the other and do not show one moment. Therefore calls that a peer's dump
proves to be over are removed first, and sends are matched with receives. The rules then look for a
divergence, a wait cycle, ranks that others wait for and that do not wait, and devices that no
longer report what their peers have completed. If all ranks are in the same call, no rank is blamed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.causes.gpu.gpu_hw_fault import GPU_HW_FAULT
from holdfast.causes.performance.straggler import STRAGGLER
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.sync.collective_mismatch import COLLECTIVE_MISMATCH
from holdfast.causes.sync.collective_order_inversion import COLLECTIVE_ORDER_INVERSION
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.core.findings import (
    Cause,
    Fact,
    Finding,
    Level,
    RuledOut,
    Subject,
    Verdict,
    make_finding,
)
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import RecordedCall
from holdfast.diagnose.dumps.call_comparison import find_malformed_call
from holdfast.diagnose.dumps.dump_analysis import DumpAnalysis, analyze_dumps, find_held_roots
from holdfast.diagnose.dumps.dump_set import DumpTable
from holdfast.watcher.rules import hang, hang_case, mismatch, wait_for_graph
from holdfast.watcher.rules.consequences import list_consequences
from holdfast.watcher.rules.wait_for_graph import WaitEdges

#: Fewer calls that all peers have completed and one dump has open are due to when it was written.
MIN_UNREPORTED_CALLS = 3
#: A call in which all members are for this long, while ranks advance elsewhere, is stuck.
STUCK_S = 30.0
#: Maximum findings of a verdict.
MAX_FINDINGS = 16
_TRACE_ORIGIN = re.compile(r"\b(?:box|trace)(e?s)? of\b")


def judge(table: DumpTable) -> Verdict:
    """Return the verdict over these dumps; ``root`` is None if nothing is wrong in them."""
    analysis = analyze_dumps(table)
    rules = (_divergence, _wait_cycle, _roots, _silent_devices, _stuck_in_one_call)
    findings = _one_per_rank([finding for rule in rules for finding in rule(analysis)])
    root = findings[0] if findings else None
    verdict = Verdict(
        question=hang.QUESTION,
        root=root,
        consequences=list_consequences(analysis.case, root) if root else (),
        suspects=tuple(findings[1:MAX_FINDINGS]),
        ruled_out=_ruled_out(analysis, root) if root else (),
        unseen=(*table.unseen, *_unseen(analysis, findings[MAX_FINDINGS:])),
    )
    return _with_file_names(verdict, table.files)


def _one_per_rank(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without all but the first, most specific one on each rank."""
    kept: list[Finding] = []
    ranks: set[int | None] = set()
    for finding in findings:
        if finding.subject.rank is None or finding.subject.rank not in ranks:
            kept.append(finding)
        ranks.add(finding.subject.rank)
    return kept


# ---- rules, the most reliable first ------------------------------------------------------------


def _divergence(analysis: DumpAnalysis) -> list[Finding]:
    if analysis.divergence is None:
        malformed = find_malformed_call(analysis.table)
        return [malformed] if malformed is not None else []
    finding = mismatch.explain_mismatch(analysis.divergence, analysis.case.ranks, {})
    if analysis.divergence.tie:  # either side may be right: name the line, but no rank
        finding = replace(finding, subject=replace(finding.subject, rank=None))
    return [finding]


def _wait_cycle(analysis: DumpAnalysis) -> list[Finding]:
    return hang.wait_cycle(analysis.case) if analysis.divergence is None else []


def _roots(analysis: DumpAnalysis) -> list[Finding]:
    """Return ranks that others wait for and that do not wait; those without a dump come last."""
    case = analysis.case
    if analysis.divergence is not None or case.graph.cycle:
        return []
    held = find_held_roots(analysis)
    known = [rank for rank in case.graph.roots if rank in case.ranks and rank not in held]
    known.sort(
        key=lambda rank: (
            rank not in analysis.matched.unreported,
            -len(analysis.awaited[rank]),
            rank,
        )
    )
    absent = [rank for rank in case.graph.roots if rank not in case.ranks]
    return [
        *(_missing_rank(analysis, rank) for rank in known),
        *(_rank_without_dump(analysis, rank) for rank in absent),
    ]


def _silent_devices(analysis: DumpAnalysis) -> list[Finding]:
    """Return ranks that wait too, but whose device stopped reporting before that."""
    if not analysis.case.graph.waits:
        return []
    return [
        _silent_device(analysis, rank, "")
        for rank, calls in analysis.matched.unreported.items()
        if len(calls) >= MIN_UNREPORTED_CALLS
    ]


def _stuck_in_one_call(analysis: DumpAnalysis) -> list[Finding]:
    """Return a finding without a rank if all members are in a call that does not complete."""
    case, complete = analysis.case, analysis.complete
    if case.graph.waits or analysis.divergence is not None or not complete:
        return []
    calls = " and ".join(hang_case.call_text(wait.operation, case.groups) for wait in complete[:2])
    if any(case.groups[wait.operation.group].ranks is None for wait in complete):
        return [_unknown_members(analysis, calls)]
    findings = hang.stuck_transport(_with_waits(analysis, complete))
    if not findings:
        return []
    message, level = findings[0].message, Level.ERROR
    if len({wait.operation.group for wait in complete}) > 1:
        message = (
            f"every member has entered {calls}, in the same order, and none of the calls "
            "completes: no rank is to blame; either the network is down, or the two communicators "
            "block each other on the device"
        )
    if analysis.complete_for_s < STUCK_S:
        level = Level.UNKNOWN
        message += (
            "; or the dumps were written while the call was in progress: "
            "they contain nothing after its start"
        )
    return [replace(findings[0], message=message, level=level)]


def _unknown_members(analysis: DumpAnalysis, calls: str) -> Finding:
    """Return a finding on ranks in a call of a group whose members no dump contains."""
    complete = analysis.complete
    first = complete[0]
    waiting = "; ".join(
        f"{describe_ranks(wait.waiters)} in {_describe_call(analysis, wait.operation)}"
        for wait in complete[:4]
    )
    message = (
        f"no completion of {calls} ({waiting}); "
        "the dumps do not contain the members of the group, so the missing rank is unknown"
    )
    cause = RANK_MISSING_COLLECTIVE
    if len(complete) > 1:
        cause = COLLECTIVE_ORDER_INVERSION
        message += ". Ranks are in different groups, which indicates a wait cycle"
    fact = Fact(
        text=f"in {_describe_call(analysis, first.operation)}",
        origin=_dump_origin(analysis, first.waiters[0]),
        rank=first.waiters[0],
    )
    return make_finding(cause, message, level=Level.UNKNOWN, evidence=(fact,), confidence=0.3)


def _with_waits(analysis: DumpAnalysis, waits: tuple[WaitEdges, ...]) -> hang_case.HangCase:
    """Return the case with these waits, in which no member is missing."""
    case, graph = analysis.case, wait_for_graph.build_graph(waits)
    return hang_case.HangCase(
        case.ranks, case.groups, case.world_size, case.source, graph, analysis.divergence
    )


# ---- findings on one rank ----------------------------------------------------------------------


def _missing_rank(analysis: DumpAnalysis, rank: int) -> Finding:
    """Return the finding on a rank that did not enter the call that the others are in."""
    wait = analysis.awaited[rank][0]
    awaited = _describe_call(analysis, wait.operation)
    if len(analysis.matched.unreported.get(rank, ())) >= MIN_UNREPORTED_CALLS:
        return _silent_device(analysis, rank, f"; it has not entered {awaited}")
    last = analysis.last_call(rank)
    progress = (
        f": its last known call is {_describe_call(analysis, last)}"
        if last
        else _describe_progress(analysis, rank, wait)
    )
    behind = analysis.matched.behind.get(rank)
    if behind is not None:
        group, own, others = behind
        message = (
            f"rank {rank} is {others - own + 1} calls behind in group {group!r}: the others have "
            f"completed #{others} and are blocked in {awaited}{progress}"
        )
        return _rank_finding(analysis, STRAGGLER, rank, message, last, 0.6)
    message = f"rank {rank} never entered {awaited}{progress}"
    return _rank_finding(analysis, RANK_MISSING_COLLECTIVE, rank, message, last, 0.85)


def _describe_progress(analysis: DumpAnalysis, rank: int, wait: WaitEdges) -> str:
    """Describe the progress of a rank whose dump contains no call."""
    progress = analysis.case.ranks[rank].groups.get(wait.operation.group)
    if progress is None or wait.operation.is_point_to_point:
        return "; its dump contains no call"
    return f": its last call there is #{progress.entered}, and none of its calls is open"


def _silent_device(analysis: DumpAnalysis, rank: int, detail: str) -> Finding:
    calls = analysis.matched.unreported[rank]
    message = (
        f"the device of rank {rank} stopped reporting at {_describe_call(analysis, calls[0])}: "
        f"{len(calls)} calls that its peers have completed are open in its dump{detail}"
    )
    return _rank_finding(analysis, GPU_HW_FAULT, rank, message, calls[0], 0.6)


def _rank_without_dump(analysis: DumpAnalysis, rank: int) -> Finding:
    awaited = _describe_call(analysis, analysis.awaited[rank][0].operation)
    message = (
        f"rank {rank} has no dump, and the others wait for it in {awaited}: "
        "it died, or could not write one"
    )
    return _rank_finding(analysis, PEER_LOST, rank, message, None, 0.6)


def _rank_finding(
    analysis: DumpAnalysis,
    cause: Cause,
    rank: int,
    message: str,
    last: RecordedCall | None,
    confidence: float,
) -> Finding:
    facts = []
    if last is not None:
        text = f"last known call: {_describe_call(analysis, last)}"
        facts.append(Fact(text=text, origin=_dump_origin(analysis, rank), rank=rank))
    for wait in analysis.awaited.get(rank, ())[:1]:
        waiter = wait.waiters[0]
        text = f"in {_describe_call(analysis, wait.operation)}, entered and not completed"
        origin, entered = _dump_origin(analysis, waiter), wait.operation.entered
        facts.append(Fact(text=text, origin=origin, rank=waiter, time=entered))
    site = last.site if last else None
    subject = Subject(rank=rank, file=site.file if site else None, line=site.line if site else None)
    return make_finding(
        cause, message, subject=subject, evidence=tuple(facts), confidence=confidence
    )


def _describe_call(analysis: DumpAnalysis, call: RecordedCall) -> str:
    return hang_case.call_text(call, analysis.case.groups) + hang_case.line_text(call)


def _dump_origin(analysis: DumpAnalysis, rank: int) -> str:
    return analysis.table.files.get(rank, f"dump of rank {rank}")


# ---- the rest of the verdict -------------------------------------------------------------------


def _ruled_out(analysis: DumpAnalysis, root: Finding) -> tuple[RuledOut, ...]:
    ruled_out = []
    ranks = len(analysis.table.ranks)
    if analysis.divergence is None and ranks > 1:
        why = f"the calls in the dumps of {ranks} ranks agree in operation, dtype and size"
        ruled_out.append(RuledOut(COLLECTIVE_MISMATCH.name, why))
    if analysis.case.graph.waits and not analysis.case.graph.cycle:
        why = "the wait-for graph has no cycle"
        ruled_out.append(RuledOut(COLLECTIVE_ORDER_INVERSION.name, why))
    return tuple(item for item in ruled_out if item.cause != root.cause)


def _unseen(analysis: DumpAnalysis, omitted: Sequence[Finding]) -> list[str]:
    """Return what limits the confidence of the verdict, and which ranks it omits."""
    unseen = []
    ranks = {finding.subject.rank for finding in omitted if finding.subject.rank is not None}
    if ranks:
        unseen.append(f"{describe_ranks(ranks)}: awaited too, and not listed one by one")
    late = analysis.matched.late
    if late:
        unseen.append(
            f"{describe_ranks(late)}: calls that peers completed are still open in the dump"
        )
    if analysis.table.ranks and not any(call.site for call in analysis.table.calls):
        unseen.append(
            "source lines: the dumps have no stacks (JSON, or TORCH_INCLUDE_STACK_TRACE=0)"
        )
    return unseen


def _with_file_names(verdict: Verdict, files: Mapping[int, str]) -> Verdict:
    """Name the dump files as origin in findings of the shared rules, which cite trace files."""

    def renamed(finding: Finding) -> Finding:
        facts = tuple(replace(fact, origin=_file_origin(fact, files)) for fact in finding.evidence)
        return replace(finding, evidence=facts)

    return replace(
        verdict,
        root=renamed(verdict.root) if verdict.root else None,
        consequences=tuple(map(renamed, verdict.consequences)),
        suspects=tuple(map(renamed, verdict.suspects)),
    )


def _file_origin(fact: Fact, files: Mapping[int, str]) -> str:
    if fact.rank is not None and fact.rank in files and _TRACE_ORIGIN.match(fact.origin):
        return files[fact.rank]
    return _TRACE_ORIGIN.sub(lambda match: f"dump{'s' if match[1] else ''} of", fact.origin)
