"""Time-outs of collectives: who waited, how far each rank had come, and who was not there.

torch's watchdog prints of each group the last work that was enqueued and the last that completed. A rank that had not
enqueued what the others waited in is the one they waited for; it is often the one that says least.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from itertools import count

from holdfast.facts.logs import Line, Signal
from holdfast.report.ranksets import compress_ranks as ranks_text
from holdfast.rules.logs.absent import absent
from holdfast.rules.logs.heard import Candidate, Heard
from holdfast.rules.logs.meanings import Tier

#: In these all wait for the root, which is rank 0 nearly always.
_FROM_ROOT = frozenset({"BROADCAST", "SCATTER"})
#: What a fingerprint says of the call: its operation and shapes, or else its number.
_KIND = re.compile(r"OpType=\w+|TensorShape=\[[\d, ]*\]")
_NUMBER = re.compile(r"SequenceNumber=(\d+)")
#: A time-out this early is one of making the communicator or of the first step.
EARLY_WORK = 10


def waited(heard: Heard) -> Iterable[Candidate]:
    """What the time-outs tell, compared over ranks."""
    timeouts = [signal for signal in heard.all("watchdog-timeout") if "seq" in signal.fields]
    yield from _sizes(heard)
    yield from _fingerprints(heard)
    yield from _unique_id(heard)
    yield from _prepared(heard)
    if not timeouts:
        others = heard.all("watchdog-timeout", "gloo-timeout", "watchdog-stuck", "socket-timeout", "barrier-reached")
        if others:
            yield _unnumbered(heard, others)
        else:
            yield from _alone(heard)
        return
    yield from _mismatch(heard)
    yield from _apart(timeouts)
    yield from _missing(heard, timeouts)


def _prepared(heard: Heard) -> Iterable[Candidate]:
    """One rank prepared data, which took longer than the others' patience at the barrier."""
    work = heard.first("preparing") or heard.first("reading-bar")
    others = heard.all("watchdog-timeout", "socket-timeout", "store-key-timeout", "gloo-timeout")
    early = all(int(signal.fields.get("seq", 0)) <= EARLY_WORK for signal in others)
    if work is None or not others or not early or heard.after(work, "pace"):
        return
    message = "a rank was still preparing data when the others, which waited for it, ran out of time"
    rank = work.line.rank if work.line.rank is not None else 0  # it is the first that does such work, by custom
    yield Candidate("rank0-long-work-timeout", Tier.WAITING, 0.7, message, (work.line, *_lines(others)), rank)


def _mismatch(heard: Heard) -> Iterable[Candidate]:
    """One number, two operations or sizes: the ranks did different things; the minority is blamed."""
    works: dict[int, dict[tuple[str, int], set[int]]] = defaultdict(lambda: defaultdict(set))
    sized = [signal for signal in heard.all("watchdog-size") if "seq" in signal.fields]
    for signal in sized:
        if signal.line.rank is not None:
            kind = str(signal.fields["op"]), int(signal.fields["numel"])
            works[int(signal.fields["seq"])][kind].add(signal.line.rank)
    for number, kinds in works.items():
        if len(kinds) < 2:
            continue
        by_size = sorted(kinds, key=lambda kind: len(kinds[kind]))
        words = " and ".join(f"{op} of {numel} elements" for op, numel in (by_size[0], by_size[-1]))
        few = sorted(kinds[by_size[0]])
        tie = len(kinds[by_size[0]]) == len(kinds[by_size[-1]])
        message = f"at work {number} ranks {ranks_text(few)} and the others differ: {words}{' (a tie)' if tie else ''}"
        lines = _lines([signal for signal in sized if signal.fields["seq"] == number])
        yield Candidate("collective-mismatch", Tier.WAITING, 0.6 if tie else 0.85, message, lines, few[0])
        return


def _apart(timeouts: list[Signal]) -> Iterable[Candidate]:
    """Ranks that stood in different works of one group: each call of the few met another of the others."""
    groups = {(one.line.rank, one.fields["seq"]): one.fields["group"] for one in timeouts if "group" in one.fields}
    stood: dict[int, Signal] = {}
    for one in sorted(timeouts, key=lambda one: int(one.fields["seq"])):
        if one.line.rank is not None:
            stood.setdefault(one.line.rank, one)
    by_number: dict[int, list[int]] = defaultdict(list)
    for rank, one in stood.items():
        by_number[int(one.fields["seq"])].append(rank)
    told = {groups.get((rank, one.fields["seq"])) for rank, one in stood.items()} - {None}
    if len(by_number) < 2 or len(told) > 1:
        return
    few, many = (sorted(by_number, key=lambda number: (len(by_number[number]), number))[at] for at in (0, -1))
    odd = min(by_number[few])
    message = (
        f"ranks {ranks_text(sorted(by_number[few]))} stood in work {few} of a group and ranks "
        f"{ranks_text(sorted(by_number[many]))} in work {many}: they did not make the same calls"
    )
    lines = (stood[odd].line, *(stood[rank].line for rank in by_number[many]))
    yield Candidate("rank-missing-collective", Tier.WAITING, 0.6, message, lines[:8], odd)


def _alone(heard: Heard) -> Iterable[Candidate]:
    """All that is left is what ranks heard: another ran out of time, in a collective that they had not begun."""
    told = heard.all("dump-signal")
    if not told:
        return
    origin = Counter(int(signal.fields["origin"]) for signal in told).most_common(1)[0][0]
    hearers = [rank for rank in heard.facts.ranks.values() if rank.rank in heard.ranks("dump-signal") - {origin}]
    if hearers and all(rank.enqueued == rank.completed for rank in hearers):
        message = f"rank {origin} ran out of time in a collective, and the others had not begun another"
        yield Candidate("rank-missing-collective", Tier.WAITING, 0.5, message, _lines(told), origin)
        return
    message = f"rank {origin} was the first to run out of time in a collective; of the others only that is told"
    yield Candidate("watchdog-timeout-straggler", Tier.WAITING, 0.4, message, _lines(told), origin)


def _missing(heard: Heard, timeouts: list[Signal]) -> Iterable[Candidate]:
    """Who had not enqueued what the others waited in."""
    number = Counter(int(signal.fields["seq"]) for signal in timeouts).most_common(1)[0][0]
    inside = {signal.line.rank for signal in timeouts if signal.fields["seq"] == number} - {None}
    groups = {str(one.fields["group"]) for one in timeouts if one.fields["seq"] == number and "group" in one.fields}
    behind = sorted(
        rank.rank for rank in heard.facts.ranks.values()
        if rank.rank not in inside
        and any(enqueued < number for group, enqueued in rank.enqueued.items() if not groups or group in groups)
    )  # fmt: skip
    lines = _lines(timeouts)
    call = next(
        (str(one.fields["op"]) for one in timeouts if one.fields["seq"] == number and "op" in one.fields), "work"
    )
    if behind:
        message = f"ranks {ranks_text(behind)} never enqueued work {number} ({call}), in which the others timed out"
        yield Candidate("rank-missing-collective", Tier.WAITING, 0.8, message, lines, behind[0])
        return
    missed = absent(heard, inside)
    if call in _FROM_ROOT and 0 not in inside:
        message = (
            f"ranks {ranks_text(_known(inside))} waited in work {number} ({call}) for its root, which did not come"
        )
        yield Candidate("rank-missing-collective", Tier.WAITING, 0.5, message, lines, 0)
        return
    who = f"ranks {ranks_text(_known(inside))} timed out in work {number} ({call})"
    first = next((signal.line.rank for signal in timeouts), None)
    if missed is None and (number <= EARLY_WORK or (len(inside) > 1 and not heard.facts.ranks.keys() - inside)):
        message = f"{who}; nobody was seen elsewhere: one of them was too slow, or the link stood still"
        yield Candidate("watchdog-timeout-straggler", Tier.WAITING, 0.45, message, lines, first)
        return
    if missed is None:
        missed = min(heard.facts.ranks.keys() - inside, default=None)
    if missed is None and len(inside) == 1:
        missed = _first_but(inside)
        message = f"{who}, and no other rank wrote a line: rank {missed} is the first of those that did not come to it"
        yield Candidate("rank-missing-collective", Tier.WAITING, 0.45, message, lines, missed)
        return
    message = f"{who}; {'the others' if missed is None else f'rank {missed}'} did not come to it"
    yield Candidate("rank-missing-collective", Tier.WAITING, 0.5, message, lines, missed)


def _unique_id(heard: Heard) -> Iterable[Candidate]:
    """To make a communicator all ask the store for what its root puts there."""
    asked = heard.all("unique-id")
    if asked:
        origin = int(asked[0].fields["origin"])
        message = f"ranks wanted to make a communicator, and rank {origin}, which begins that, did not come to it"
        yield Candidate("rank-missing-collective", Tier.WAITING, 0.5, message, _lines(asked), origin)


def _unnumbered(heard: Heard, waits: list[Signal]) -> Candidate:
    """Time-outs without the work's number, as gloo's: who did not time out was not there."""
    # Whose connection was closed in a collective was there, too.
    missed = absent(heard, {signal.line.rank for signal in waits} | heard.ranks("peer-closed"))
    if missed is None and len(alone := heard.ranks("watchdog-timeout")) == 1 and alone == heard.facts.ranks.keys():
        missed = _first_but(alone)
    if missed is None and heard.ranks("peer-closed") - {signal.line.rank for signal in waits}:
        message = "ranks waited in collectives that do not belong together until one of them gave up"
        return Candidate("rank-missing-collective", Tier.WAITING, 0.4, message, _lines(waits))
    if missed is None:
        message = "a collective timed out, and nothing tells which rank was not there"
        return Candidate("watchdog-timeout-straggler", Tier.WAITING, 0.35, message, _lines(waits))
    message = f"all but rank {missed} timed out waiting in a collective"
    return Candidate("rank-missing-collective", Tier.WAITING, 0.45, message, _lines(waits), missed)


def _first_but(ranks: Collection[int | None]) -> int:
    """The lowest rank that is none of ``ranks``: it is there, whatever the size of the job."""
    return next(rank for rank in count() if rank not in ranks)


def _known(ranks: set[int | None]) -> list[int]:
    return sorted(rank for rank in ranks if rank is not None)


def _sizes(heard: Heard) -> Iterable[Candidate]:
    """Ranks that tell of different sizes before a crash."""
    told = {
        int(signal.fields["rank"]): (int(signal.fields["elements"]), signal) for signal in heard.all("rank-elements")
    }
    counts = Counter(elements for elements, _ in told.values())
    if len(counts) < 2 or not any(
        name in heard for name in ("segfault", "watchdog-timeout", "aborted", "nccl-truncated")
    ):
        return
    fewest = min(counts.values())
    odd = max(rank for rank, (elements, _) in told.items() if counts[elements] == fewest)
    message = f"ranks made tensors of different sizes: rank {odd} one of {told[odd][0]} elements"
    yield Candidate("collective-mismatch", Tier.EXCEPTION, 0.6, message, _lines([one for _, one in told.values()]), odd)


def _fingerprints(heard: Heard) -> Iterable[Candidate]:
    """Reads torch's own comparison under ``TORCH_DISTRIBUTED_DEBUG=DETAIL``: each line compares two ranks."""
    calls = {
        int(signal.fields["rank"]): str(signal.fields["kind"]).split("but Rank", 1)[0]
        for signal in heard.all("fingerprint")
    }
    kinds = {rank: tuple(_KIND.findall(call)) for rank, call in calls.items()}
    alike = Counter(kinds.values())
    if len(alike) < 2:
        return
    few = min(alike.values())
    odd = (
        min(rank for rank, kind in kinds.items() if alike[kind] == few) if few < max(alike.values()) else _behind(calls)
    )
    message = f"rank {odd} made another collective than the others: {', '.join(kinds[odd])}"
    lines = _lines([signal for signal in heard.all("fingerprint") if signal.fields["rank"] == odd])
    yield Candidate("collective-mismatch", Tier.NAMED, 0.95, message, lines, odd)


def _behind(calls: dict[int, str]) -> int:
    """The rank with the fewest calls, or else the one that was told of first: it is who compared."""
    numbers = {rank: int(found[1]) for rank, call in calls.items() if (found := _NUMBER.search(call))}
    return min(numbers or calls, key=lambda rank: numbers.get(rank, 0))


def _lines(signals: list[Signal]) -> tuple[Line, ...]:
    return tuple(signal.line for signal in signals[:8])
