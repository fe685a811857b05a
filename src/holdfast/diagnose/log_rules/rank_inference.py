"""Find the rank that lines are about: named by them or a launcher, or the only one missing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.logs import LoggedSignal, LogLine
from holdfast.diagnose.logs.file_names import rank_in_name
from holdfast.diagnose.logs.rank_forms import rank_in_message

#: A number with more digits is not a rank.
MAX_RANK_DIGITS = 6
#: Logged by survivors about a peer, without its rank.
SURVIVOR_SIGNALS = frozenset(
    {"peer-closed", "store-lost", "connect-refused", "connect-timed-out", "no-route"}
)
#: Logged by a rank that was inside the collective.
WAITER_SIGNALS = ("peer-closed", "gloo-timeout", "watchdog-timeout", "store-lost")
#: Reports of a rank that waited for others in the store: its own rank is not the missing one.
STORE_WAITS = frozenset({"rendezvous-timeout", "store-key-timeout"})
#: A numbered host of a set, such as ``trainer-worker-3``, alone and as a lost peer.
_HOST_NUMBER = re.compile(r"^[\w.-]*-(\d{1,6})(?:\.[\w.-]*)?$")
_LOST_HOST = re.compile(r"remote peer [A-Za-z][\w-]*-(\d{1,6})(?:\.[\w.-]+)?<")
_LOCAL_RANK = re.compile(r"\blocal[_ -]rank[\s=:]{1,3}(\d{1,6})\b", re.IGNORECASE)


def rank_of_line(line: LogLine) -> int | None:
    """Return the rank that logged the line: from its prefix or file, or else from its message."""
    return line.rank if line.rank is not None else rank_in_message(line.text)


def find_absent_rank(index: LogIndex, present: Collection[int | None]) -> int | None:
    """Return the only rank that is not in ``present``; None if several are missing, or unknown.

    A rank that logs nothing counts as missing only if it is known to exist, and its file would be
    among the given ones: by the world size, unless a single rank's file was given; by a gap in the
    numbers, unless ranks have files of their own.
    """
    known = {rank for rank in present if rank is not None}
    if not known:
        return None
    size = index.world_size
    files = ranks_with_files(index)
    ranks = index.facts.ranks.keys() | known
    if size and size > max(known) and len(files) != 1:
        ranks = set(range(size))
    missing = ranks - known
    if not missing and len(known) > 1 and not files:
        missing = set(range(max(known))) - known
    return min(missing) if len(missing) == 1 else None


def ranks_with_files(index: LogIndex) -> set[int]:
    """Return the ranks whose last line is in a file that is named after the rank."""
    entries = index.facts.ranks.values()
    named = {one.rank: rank_in_name(one.last.source) for one in entries if one.last is not None}
    return {rank for rank, name in named.items() if rank == name}


def find_rank(index: LogIndex, signals: Sequence[LoggedSignal]) -> int | None:
    """Return the rank that ``signals`` are about; None if unknown.

    That is the rank they name, the rank that logged them, or the launcher's first failed rank. The
    lines of survivors are about another rank.
    """
    if signals[0].name in SURVIVOR_SIGNALS:
        return _find_lost_peer(index) if signals[0].name in WAITER_SIGNALS else None
    if signals[0].name in STORE_WAITS:
        return find_absent_rank(index, {rank_of_line(one.line) for one in signals})
    named = next((rank for one in signals if (rank := _named_rank(one)) is not None), None)
    if named is not None:
        return named
    ranks = {rank for signal in signals if (rank := rank_of_line(signal.line)) is not None}
    first = index.first_failed_of(ranks)
    if first is not None and (not ranks or first in ranks or len(index.failed_ranks) > 1):
        return first
    if ranks:
        return first_reporting_rank(signal.line for signal in signals)
    return rank_from_launchers(index, signals)


def _find_lost_peer(index: LogIndex) -> int | None:
    """Return the peer that survivors name as the origin of a request, or the only missing one."""
    requests = index.all("unique-id", "barrier-reached")
    origin = next((one.fields["origin"] for one in requests if "origin" in one.fields), None)
    if origin is not None:
        return int(origin)
    numbered = _rank_of_lost_host(index)
    return find_absent_rank(index, index.ranks(*WAITER_SIGNALS)) if numbered is None else numbered


def _rank_of_lost_host(index: LogIndex) -> int | None:
    """Return the number of the lost host, if those of the survivors are their ranks."""
    reports = [one for one in index.all("peer-closed") if one.line.host]
    lost = {int(found[1]) for one in reports if (found := _LOST_HOST.search(one.line.text))}
    is_rank = all(_HOST_NUMBER.sub(r"\1", one.line.host) == str(one.line.rank) for one in reports)
    ranks = index.ranks("peer-closed")
    return lost.pop() if len(lost) == 1 and is_rank and lost.isdisjoint(ranks) else None


def _named_rank(signal: LoggedSignal) -> int | None:
    """Return the rank in the message itself."""
    return next(iter(listed_ranks(signal)), None)


def listed_ranks(signal: LoggedSignal) -> list[int]:
    """Return the ranks in the message's field ``rank``, or in its list ``missing``."""
    words = str(signal.fields.get("rank", signal.fields.get("missing", ""))).split(",")
    ranks = (word.strip() for word in words)
    return [int(rank) for rank in ranks if rank.isdigit() and len(rank) <= MAX_RANK_DIGITS]


def rank_from_launchers(index: LogIndex, signals: Sequence[LoggedSignal] = ()) -> int | None:
    """Return the rank that launchers report, or that ``signals`` leave; None if ambiguous."""
    for one in index.all("mpi-process", "mpi-signal", "failed-rank-json", "worker-failed"):
        if (rank := one.fields.get("rank", one.fields.get("snippet"))) is not None:
            return int(rank)
    if len(index.failed_ranks) == 1:
        return next(iter(index.failed_ranks))
    absent = find_absent_rank(index, index.ranks(*WAITER_SIGNALS))
    if absent is not None:
        return absent
    if (local := _failed_process(index, signals)) is not None:
        return local
    for one in index.all("slurm-task"):
        if tasks := task_numbers(str(one.fields["tasks"])):
            return tasks[0]
    devices = [int(signal.fields["device"]) for signal in signals if "device" in signal.fields]
    return devices[0] if devices and index.facts.hosts and index.is_of_one_node else None


def _failed_process(index: LogIndex, signals: Sequence[LoggedSignal]) -> int | None:
    """Return the rank of the failed local rank: on one node, it is the rank."""
    if (failed := index.processes.failed) is not None:
        return failed
    if not index.is_of_one_node:
        return None
    if index.failed_local_rank is not None and not index.failed_ranks:
        return index.failed_local_rank
    named = {int(rank) for one in signals for rank in _LOCAL_RANK.findall(one.line.text)}
    return named.pop() if len(named) == 1 else None


def task_numbers(tasks: str) -> list[int]:
    """Return the task numbers of Slurm's ``[0-3,7]``; of a range, its two ends."""
    numbers = tasks.strip("[]").replace("-", ",").split(",")
    return [
        int(number) for number in numbers if number.isdigit() and len(number) <= MAX_RANK_DIGITS
    ]


def first_reporting_rank(lines: Iterable[LogLine]) -> int | None:
    """Return the rank of the first line: by time, or by number within one log.

    Without times, lines of several logs have no order; the lowest rank is returned.
    """
    ranked = [(rank, line) for line in lines if (rank := rank_of_line(line)) is not None]
    if ranked and all(line.time is not None for _, line in ranked):
        return min(ranked, key=lambda one: (one[1].time or 0.0, one[1].number))[0]
    if len({line.source for _, line in ranked}) == 1:
        return min(ranked, key=lambda one: one[1].number)[0]
    return min((rank for rank, _ in ranked), default=None)
