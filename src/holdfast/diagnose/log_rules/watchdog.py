"""Timeouts of collectives: which ranks waited, how far each rank was, and which one was missing.

torch's watchdog prints the last enqueued and the last completed work of each process group. A rank
that had not enqueued the work in which the others waited is the one they waited for; often it logs
least.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import count

from holdfast.causes.performance.watchdog_timeout_straggler import WATCHDOG_TIMEOUT_STRAGGLER
from holdfast.causes.sync.collective_mismatch import COLLECTIVE_MISMATCH
from holdfast.causes.sync.collective_order_inversion import COLLECTIVE_ORDER_INVERSION
from holdfast.causes.sync.p2p_without_partner import P2P_WITHOUT_PARTNER
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.core.findings import Cause
from holdfast.core.rank_sets import describe_ranks
from holdfast.diagnose.log_rules.candidates import CauseCandidate, lines_of
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.rank_inference import find_absent_rank, ranks_with_files
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.log_rules.unequal_inputs import ranks_that_left
from holdfast.diagnose.logs import LoggedSignal

#: In these all ranks wait for the root, usually rank 0.
_ROOTED_OPERATIONS = frozenset({"BROADCAST", "SCATTER"})
_P2P_OPERATIONS = frozenset({"SEND", "RECV", "COALESCED", "RECVANYSOURCE"})
#: Operation and shapes in a fingerprint of torch, and the sequence number.
_KIND = re.compile(r"OpType=\w+|TensorShape=\[[\d, ]*\]")
_NUMBER = re.compile(r"SequenceNumber=(\d+)")
#: A timeout up to this work number is one of communicator setup or of the first step.
EARLY_WORK = 10
_MAX_LINES = 8


def is_early(signal: LoggedSignal) -> bool:
    """Return whether a timeout is in one of the first collectives, or without a number."""
    return int(signal.fields.get("seq", 0)) <= EARLY_WORK


def find_timeouts(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield what the timeouts of all ranks show together."""
    timeouts = [signal for signal in index.all("watchdog-timeout") if "seq" in signal.fields]
    yield from _compare_sizes(index)
    yield from _compare_fingerprints(index)
    yield from _find_missing_root(index)
    if timeouts:
        yield from _compare_operations(index)
        yield from _find_order_inversion(index)
        yield from _find_pending_p2p(index, timeouts)
        yield from _compare_work_numbers(timeouts)
        yield _find_missing_rank(index, timeouts)
        return
    unnumbered = index.all(
        "watchdog-timeout", "gloo-timeout", "watchdog-stuck", "socket-timeout", "barrier-reached"
    )
    if unnumbered:
        yield from _compare_operations(index)
        yield _find_rank_without_timeout(index, unnumbered)
    else:
        yield from _find_timed_out_peer(index)


def _candidate(
    cause: Cause,
    confidence: float,
    message: str,
    signals: Sequence[LoggedSignal],
    rank: int | None = None,
    tier: Tier = Tier.WAITING,
) -> CauseCandidate:
    lines = lines_of(signals, _MAX_LINES)
    return CauseCandidate(cause.name, tier, confidence, message, lines, rank)


def _compare_operations(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield two operations or sizes under one work number; the minority is blamed."""
    works: dict[int, dict[tuple[str, int], set[int]]] = defaultdict(lambda: defaultdict(set))
    sized = [
        signal
        for signal in index.all("watchdog-size")
        if signal.fields["op"] not in _P2P_OPERATIONS
    ]
    if any("seq" in signal.fields for signal in sized):
        sized = [signal for signal in sized if "seq" in signal.fields]
    if len(set(_groups_of(index).values())) > 1:
        return  # works of two groups
    for signal in sized:
        if signal.line.rank is not None:
            numel = signal.fields.get("numel", signal.fields.get("length", 0))
            kind = str(signal.fields["op"]), int(numel)
            works[int(signal.fields.get("seq", 0))][kind].add(signal.line.rank)
    for number, kinds in works.items():
        if len(kinds) < 2:
            continue
        few, *_, many = sorted(kinds, key=lambda kind: len(kinds[kind]))
        tie = len(kinds[few]) == len(kinds[many])
        left = ranks_that_left(index).keys()
        is_waiting = _is_barrier(few) and not _is_barrier(many)
        if tie and not kinds[few] & left and (is_waiting or kinds[many] & left):
            few, many = many, few
        calls = " and ".join(
            f"{op} of {numel:,} elements" if numel else op for op, numel in (few, many)
        )
        work = f"for work #{number}" if number else "at last"
        message = (
            f"{describe_ranks(kinds[few])} and the other ranks made different calls {work}: "
            f"{calls}{' (equally many ranks)' if tie else ''}"
        )
        signals = [signal for signal in sized if signal.fields.get("seq", 0) == number]
        confidence = 0.6 if tie else 0.85
        yield _candidate(COLLECTIVE_MISMATCH, confidence, message, signals, min(kinds[few]))
        return


def _is_barrier(kind: tuple[str, int]) -> bool:
    """Return whether an operation and its size are those of a barrier, in which ranks wait."""
    operation, elements = kind
    return operation == "BARRIER" or (operation == "ALLREDUCE" and elements == 1)


def _groups_of(index: LogIndex) -> dict[int, str]:
    """Return the process group in which each rank timed out first, as far as it is logged."""
    groups: dict[int, str] = {}
    for one in index.all("watchdog-timeout"):
        if one.line.rank is not None and "group" in one.fields:
            groups.setdefault(one.line.rank, str(one.fields["group"]))
    return groups


def _find_order_inversion(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield that all ranks waited, but in groups of different kinds: none of them was missing."""
    groups, timeouts = _groups_of(index), index.all("watchdog-timeout")
    by_kind: dict[str, list[int]] = defaultdict(list)
    for rank, group in groups.items():
        by_kind[group.partition("(")[2] or group].append(rank)
    if len(by_kind) < 2 or groups.keys() < set(range(max(groups) + 1)) | index.facts.ranks.keys():
        return
    where = ", ".join(
        f"{describe_ranks(ranks)} in {kind.rstrip(')')}" for kind, ranks in sorted(by_kind.items())
    )
    message = f"all ranks waited, in collectives of different process groups: {where}"
    yield _candidate(COLLECTIVE_ORDER_INVERSION, 0.65, message, timeouts)


def _find_pending_p2p(
    index: LogIndex, timeouts: Sequence[LoggedSignal]
) -> Iterable[CauseCandidate]:
    """Yield sends and receives in which ranks waited for partners, if nothing else was pending."""
    operations = {str(one.fields["op"]) for one in timeouts if "op" in one.fields}
    if operations and operations <= _P2P_OPERATIONS:
        inside = describe_ranks(index.ranks("watchdog-timeout"))
        message = f"{inside or 'a rank'} waited in a send or receive without a partner"
        yield _candidate(P2P_WITHOUT_PARTNER, 0.6, message, timeouts)


def _compare_work_numbers(timeouts: Sequence[LoggedSignal]) -> Iterable[CauseCandidate]:
    """Yield ranks that timed out in different works of one group: their calls are shifted."""
    first: dict[int, LoggedSignal] = {}
    for one in sorted(timeouts, key=lambda one: int(one.fields["seq"])):
        if one.line.rank is not None:
            first.setdefault(one.line.rank, one)
    by_number: dict[int, list[int]] = defaultdict(list)
    for rank, one in first.items():
        by_number[int(one.fields["seq"])].append(rank)
    positions = {(rank, one.fields["seq"]) for rank, one in first.items()}
    groups = {
        (one.line.rank, one.fields["seq"]): one.fields["group"]
        for one in timeouts
        if "group" in one.fields and (one.line.rank, one.fields["seq"]) in positions
    }
    if len(by_number) < 2 or len(set(groups.values())) > 1:
        return
    few, *_, many = sorted(by_number, key=lambda number: (len(by_number[number]), number))
    odd = min(by_number[few])
    message = (
        f"{describe_ranks(by_number[few])} waited in work #{few} of a process group, "
        f"{describe_ranks(by_number[many])} in work #{many}: they did not make the same calls"
    )
    signals = [first[odd], *(first[rank] for rank in by_number[many])]
    yield _candidate(RANK_MISSING_COLLECTIVE, 0.6, message, signals, odd)


def _find_timed_out_peer(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield the rank whose timeout other ranks report, without a line of its own."""
    reports = index.all("dump-signal")
    if not reports:
        return
    origin = Counter(int(signal.fields["origin"]) for signal in reports).most_common(1)[0][0]
    reporting = index.ranks("dump-signal") - {origin}
    others = [rank for rank in index.facts.ranks.values() if rank.rank in reporting]
    if others and all(rank.enqueued == rank.completed for rank in others):
        message = f"rank {origin} timed out in a collective that the other ranks had not entered"
        yield _candidate(RANK_MISSING_COLLECTIVE, 0.5, message, reports, origin)
        return
    message = (
        f"rank {origin} was the first to time out in a collective; the logs do not show which "
        "ranks were missing"
    )
    yield _candidate(WATCHDOG_TIMEOUT_STRAGGLER, 0.4, message, reports, origin)


def _find_missing_rank(index: LogIndex, timeouts: Sequence[LoggedSignal]) -> CauseCandidate:
    """Return the rank that had not enqueued the work in which most others timed out."""
    number = Counter(int(signal.fields["seq"]) for signal in timeouts).most_common(1)[0][0]
    same = [signal for signal in timeouts if signal.fields["seq"] == number]
    inside = {signal.line.rank for signal in same} - {None}
    call = next((str(one.fields["op"]) for one in same if "op" in one.fields), "")
    work = f"{call} #{number}" if call else f"work #{number}"
    behind = _ranks_behind(index, same, number, inside)
    if behind:
        message = (
            f"{describe_ranks(behind)} never enqueued {work}, in which the other ranks timed out"
        )
        return _candidate(RANK_MISSING_COLLECTIVE, 0.8, message, timeouts, behind[0])
    waiting = describe_ranks(rank for rank in inside if rank is not None) if inside else "a rank"
    ended = "timed out" if any(_is_timeout(one) for one in same) else "failed"
    if call in _ROOTED_OPERATIONS and 0 not in inside:
        message = f"{waiting} waited in {work} for its root, rank 0"
        return _candidate(RANK_MISSING_COLLECTIVE, 0.5, message, timeouts, 0)
    absent = find_absent_rank(index, inside)
    others = index.facts.ranks.keys() - inside
    if absent is None and (number <= EARLY_WORK or (len(inside) > 1 and not others)):
        message = (
            f"{waiting} {ended} in {work}; no rank was seen elsewhere, so a rank was too slow or "
            "the network stalled"
        )
        return _candidate(WATCHDOG_TIMEOUT_STRAGGLER, 0.45, message, timeouts)
    if absent is None and len(inside) == 1 and not others:
        # The launcher's own output contains the lines of all its ranks, a rank's file does not.
        is_whole = "exit-code" in index and not ranks_with_files(index)
        rank = _lowest_other_rank(inside) if is_whole else None
        guess = f" (rank {rank} is a guess)" if rank is not None else ""
        message = (
            f"{waiting} {ended} in {work}; the logs have no line of another rank, so the missing "
            f"rank cannot be identified{guess}"
        )
        return _candidate(RANK_MISSING_COLLECTIVE, 0.45, message, timeouts, rank)
    missing = "the other ranks" if absent is None else f"rank {absent}"
    message = f"{waiting} {ended} in {work}; {missing} did not enter it"
    return _candidate(RANK_MISSING_COLLECTIVE, 0.5, message, timeouts, absent)


def _is_timeout(signal: LoggedSignal) -> bool:
    """Return whether the line says so: some report ``either an error or timeout``."""
    return "either an error or timeout" not in signal.line.text


def _ranks_behind(
    index: LogIndex, timeouts: Sequence[LoggedSignal], number: int, inside: Collection[int | None]
) -> list[int]:
    """Return the ranks whose last enqueued work of the group is before ``number``."""
    groups = {str(one.fields["group"]) for one in timeouts if "group" in one.fields}
    return sorted(
        rank.rank
        for rank in index.facts.ranks.values()
        if rank.rank not in inside
        and any(
            enqueued < number
            for group, enqueued in rank.enqueued.items()
            if not groups or group in groups
        )
    )


def _find_missing_root(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield the rank whose NCCL unique ID the others requested from the store in vain."""
    requests = index.all("unique-id")
    if requests:
        origin = int(requests[0].fields["origin"])
        message = (
            f"ranks requested the NCCL unique ID of rank {origin} to create a communicator, and "
            f"rank {origin} did not provide it"
        )
        yield _candidate(RANK_MISSING_COLLECTIVE, 0.5, message, requests, origin)


def _find_rank_without_timeout(index: LogIndex, waits: Sequence[LoggedSignal]) -> CauseCandidate:
    """Return the rank that did not time out, for timeouts without work numbers, such as gloo's."""
    timed_out = {signal.line.rank for signal in waits}
    closed = index.ranks("peer-closed")  # these were in the collective, too
    absent = find_absent_rank(index, timed_out | closed)
    if absent is not None:
        message = f"all ranks but rank {absent} timed out in a collective"
        return _candidate(RANK_MISSING_COLLECTIVE, 0.45, message, waits, absent)
    if closed - timed_out:
        message = "ranks waited in different collectives until one of them timed out"
        return _candidate(RANK_MISSING_COLLECTIVE, 0.4, message, waits)
    message = "a collective timed out; the logs do not show which rank was missing"
    return _candidate(WATCHDOG_TIMEOUT_STRAGGLER, 0.35, message, waits)


def _lowest_other_rank(ranks: Collection[int | None]) -> int:
    """Return the lowest rank that is not in ``ranks``: it exists in a job of any size."""
    return next(rank for rank in count() if rank not in ranks)


def _compare_sizes(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield ranks that log different tensor sizes before a crash or timeout."""
    sizes = {
        int(signal.fields["rank"]): (int(signal.fields["elements"]), signal)
        for signal in index.all("rank-elements")
    }
    counts = Counter(elements for elements, _ in sizes.values())
    if len(counts) < 2 or not index.has_any(
        "segfault", "watchdog-timeout", "aborted", "nccl-truncated"
    ):
        return
    fewest = min(counts.values())
    odd = max(rank for rank, (elements, _) in sizes.items() if counts[elements] == fewest)
    message = (
        f"ranks have tensors of different sizes: that of rank {odd} has {sizes[odd][0]:,} elements"
    )
    signals = [signal for _, signal in sizes.values()]
    yield _candidate(COLLECTIVE_MISMATCH, 0.6, message, signals, odd, Tier.EXCEPTION)


def _compare_fingerprints(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a mismatch from TORCH_DISTRIBUTED_DEBUG=DETAIL, where each line compares two ranks."""
    signals = index.all("fingerprint")
    calls = {
        int(signal.fields["rank"]): str(signal.fields["kind"]).split("but Rank", 1)[0]
        for signal in signals
    }
    kinds = {rank: tuple(_KIND.findall(call)) for rank, call in calls.items()}
    counts = Counter(kinds.values())
    if len(counts) < 2:
        return
    odd = _rank_with_fewest_calls(calls)
    fewest = min(counts.values())
    if fewest < max(counts.values()):
        odd = min(rank for rank, kind in kinds.items() if counts[kind] == fewest)
    message = f"rank {odd} made another collective call than the others: {', '.join(kinds[odd])}"
    own = [signal for signal in signals if signal.fields["rank"] == odd]
    yield _candidate(COLLECTIVE_MISMATCH, 0.95, message, own, odd, Tier.NAMED)


def _rank_with_fewest_calls(calls: dict[int, str]) -> int:
    """Return the rank with the lowest sequence number, or else the first, which compared."""
    numbers = {
        rank: int(found[1]) for rank, call in calls.items() if (found := _NUMBER.search(call))
    }
    return min(numbers or calls, key=lambda rank: numbers.get(rank, 0))
