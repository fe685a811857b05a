"""Find the rank that lines are about: named by them or a launcher, or the only one missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.logs import LoggedSignal, LogLine

#: A number with more digits is not a rank.
MAX_RANK_DIGITS = 6
#: Logged by survivors about a peer, without its rank.
SURVIVOR_SIGNALS = frozenset(
    {"peer-closed", "store-lost", "connect-refused", "connect-timed-out", "no-route"}
)
#: Logged by a rank that was inside the collective.
WAITER_SIGNALS = ("peer-closed", "gloo-timeout", "watchdog-timeout", "store-lost")


def find_absent_rank(index: LogIndex, present: Collection[int | None]) -> int | None:
    """Return the only rank that is not in ``present``; None if several are missing, or unknown."""
    known = {rank for rank in present if rank is not None}
    if not known:
        return None
    size = index.world_size
    ranks = set(range(size)) if size and size > max(known) else index.facts.ranks.keys() | known
    missing = ranks - known
    if not missing and len(known) > 1:
        missing = set(range(max(known))) - known  # a gap in their numbers
    return min(missing) if len(missing) == 1 else None


def find_rank(index: LogIndex, signals: Sequence[LoggedSignal]) -> int | None:
    """Return the rank that ``signals`` are about; None if unknown.

    That is the rank they name, the rank that logged them, or the launcher's first failed rank. The
    lines of survivors are about another rank.
    """
    if signals[0].name in SURVIVOR_SIGNALS:
        return _find_lost_peer(index) if signals[0].name in WAITER_SIGNALS else None
    named = next((rank for one in signals if (rank := _named_rank(one)) is not None), None)
    if named is not None:
        return named
    ranks = {signal.line.rank for signal in signals if signal.line.rank is not None}
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
    return find_absent_rank(index, index.ranks(*WAITER_SIGNALS))


def _named_rank(signal: LoggedSignal) -> int | None:
    """Return the rank in the message itself."""
    text = str(signal.fields.get("rank", signal.fields.get("missing", ""))).split(",")[0].strip()
    return int(text) if text.isdigit() and len(text) <= MAX_RANK_DIGITS else None


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
    local = index.failed_local_rank
    if local is not None and not index.failed_ranks and len(index.facts.hosts) <= 1:
        return local  # the logs are of one node
    for one in index.all("slurm-task"):
        if tasks := task_numbers(str(one.fields["tasks"])):
            return tasks[0]
    devices = [int(signal.fields["device"]) for signal in signals if "device" in signal.fields]
    return devices[0] if devices and len(index.facts.hosts) == 1 else None


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
    ranked = [line for line in lines if line.rank is not None]
    if ranked and all(line.time is not None for line in ranked):
        return min(ranked, key=lambda line: (line.time or 0.0, line.number)).rank
    if len({line.source for line in ranked}) == 1:
        return min(ranked, key=lambda line: line.number).rank
    return min((line.rank for line in ranked if line.rank is not None), default=None)
