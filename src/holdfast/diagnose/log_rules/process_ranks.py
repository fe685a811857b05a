"""Which rank a process, a local rank or a GPU of a host is, learned from lines that name both.

NCCL's setup names process, GPU and rank; launchers print lists of ranks per host, the commands that
they started, and tables of failures; scripts print ``RANK=9 LOCAL_RANK=1``. Pids and local ranks
are numbers of one host: they are looked up under the host that a line names, else under its log.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from holdfast.diagnose.logs import LogFacts, LoggedSignal, LogLine

#: A process in a report about its end.
_PID = re.compile(r"\b(?:pid|PID|[Pp]rocess)[ =:]{1,2}(\d{2,8})\b|\[(\d{2,8})\]: segfault at")
_HOST_RANKS = re.compile(r"[\"']([^\"']{1,120})[\"']: ?\[([\d, ]{1,4000})\]")
#: Numbers of several processes of one scope, or of several ranks: not to be used.
_AMBIGUOUS = -1
#: Fewer hosts show nothing about the ranks of a host.
_MIN_HOSTS = 2

#: Signals that show which rank a process, a local rank or a GPU is.
_SHOWING_RANKS = frozenset(
    """
    nccl-rank rank-pair pid-rank process-started exit-code failed-rank failed-code own-ranks
    host-ranks
    """.split()
)

#: Host, or name of the log without one; and a pid, a local rank, or the bus number of a GPU.
Key = tuple[str, int]


class ProcessRanks:
    """Maps from pids, local ranks and GPUs to ranks."""

    def __init__(self, facts: LogFacts) -> None:
        self._facts = facts
        self._of_pid, self._of_local, self._of_bus = _NumberMap(), _NumberMap(), _NumberMap()
        self._local_of_pid = _NumberMap()
        self._lists = [one for one in facts.signals if one.name == "host-ranks"]
        tables: dict[str, int] = {}
        for one in facts.signals:
            if one.name in _SHOWING_RANKS:
                self._learn(one, tables)

    def _learn(self, one: LoggedSignal, tables: dict[str, int]) -> None:
        """Add what a line shows; ``tables`` has the last rank in each log's table of failures."""
        scope, fields = _scope(one.line), one.fields
        rank = int(fields.get("rank", _AMBIGUOUS))
        match one.name:
            case "nccl-rank":
                self._of_pid.add((scope, int(fields.get("pid", 0))), rank)
                self._of_bus.add((scope, int(str(fields.get("bus", "0")), 16)), rank)
            case "rank-pair":
                self._of_local.add((scope, int(fields["local"])), rank)
            case "pid-rank":
                self._of_pid.add((scope, int(fields["pid"])), rank)
            case "process-started" | "exit-code":
                self._local_of_pid.add((scope, int(fields["pid"])), int(fields["local_rank"]))
            case "failed-rank":
                tables[one.line.source] = rank
            case "failed-code" if one.line.source in tables:
                self._of_pid.add((scope, int(fields["pid"])), tables.pop(one.line.source))
            case _:
                self._learn_lists(one, scope)

    def _learn_lists(self, one: LoggedSignal, scope: str) -> None:
        if one.name == "own-ranks":
            self._add_list(scope, str(one.fields["ranks"]))
        elif one.name == "host-ranks":
            for host, ranks in _HOST_RANKS.findall(str(one.fields["mapping"])):
                self._add_list(host, ranks)

    def _add_list(self, scope: str, ranks: str) -> None:
        for local, rank in enumerate(re.findall(r"\d{1,6}", ranks)):
            self._of_local.add((scope, local), int(rank))

    def of_pid(self, line: LogLine) -> int | None:
        """Return the rank of the process that the line is about."""
        for first, second in _PID.findall(line.text):
            key = _scope(line), int(first or second)
            rank = self._of_pid.get(key, of_any_host=True)
            if (
                rank is None
                and (local := self._local_of_pid.get(key, of_any_host=True)) is not None
            ):
                rank = self.of_local(line, local)
            if rank is not None:
                return rank
        return None

    def of_local(self, line: LogLine, local: int) -> int | None:
        """Return the rank of a local rank on the host of ``line``."""
        return _of_host_or_only(self._of_local, line, local)

    def of_bus(self, line: LogLine, pci: str) -> int | None:
        """Return the rank of the GPU ``pci``, such as ``0000:3b:00``."""
        parts = pci.replace(".", ":").split(":")
        if not 2 <= len(parts) <= 4 or not all(
            re.fullmatch("[0-9a-fA-F]{1,8}", one) for one in parts
        ):
            return None
        domain, bus, device = (0, *(int(one, 16) for one in parts[-3:]))[-3:]
        number = (domain << 20) | (bus << 12) | (device << 4)
        return _of_host_or_only(self._of_bus, line, number)

    @cached_property
    def failed(self) -> int | None:
        """The rank whose command a launcher reports as failed, if it is the only one."""
        ranks = {
            self.of_local(one.line, int(one.fields["local_rank"]))
            for one in self._facts.signals
            if one.name in ("failed-command", "exit-code")
        }
        return ranks.pop() if len(ranks) == 1 else None

    @cached_property
    def host_count(self) -> int:
        """The number of hosts in launchers' lists."""
        return max(
            (len(_HOST_RANKS.findall(str(one.fields["mapping"]))) for one in self._lists), default=0
        )

    def of_host(self, host: str) -> int | None:
        """Return the only rank of a host, if every host has one."""
        return self._hosts.get(host)

    @cached_property
    def _hosts(self) -> dict[str, int]:
        named: dict[str, set[int]] = defaultdict(set)
        for line, rank in self._lines_with_ranks():
            if line.host:
                named[line.host].add(rank)
        ranks = sorted(rank for each in named.values() for rank in each)
        size = self._facts.world_size or max(self._stated_sizes(), default=len(ranks))
        whole = len(ranks) >= _MIN_HOSTS and ranks == list(range(size))
        is_one_each = whole and len(named) == len(ranks)
        return {host: min(each) for host, each in named.items()} if is_one_each else {}

    def _lines_with_ranks(self) -> Iterator[tuple[LogLine, int]]:
        for one in self._facts.signals:
            if one.name == "process-rank":
                yield one.line, int(one.fields["rank"])
            elif one.line.rank is not None:
                yield one.line, one.line.rank
        for trace in self._facts.tracebacks:
            if trace.line.rank is not None:
                yield trace.line, trace.line.rank

    def _stated_sizes(self) -> list[int]:
        sizes = (one for one in self._facts.signals if one.name == "world-size")
        return [int(size) for one in sizes for size in one.fields.values()]


def _scope(line: LogLine) -> str:
    return line.host or line.source


def _of_host_or_only(ranks: _NumberMap, line: LogLine, number: int) -> int | None:
    """Return the rank of a number that each host has: of the line's host, or of the only one."""
    only = not line.host and ranks.has_one_host
    return ranks.get((_scope(line), number), of_any_host=only)


class _NumberMap:
    """Ranks by host and number."""

    def __init__(self) -> None:
        self._ranks: dict[Key, int] = {}
        self._by_number: dict[int, set[int]] = defaultdict(set)

    def add(self, key: Key, rank: int) -> None:
        """Add a rank; two ranks of one key make it ambiguous."""
        self._ranks[key] = rank if self._ranks.get(key, rank) == rank else _AMBIGUOUS
        self._by_number[key[1]].add(rank)

    def get(self, key: Key, *, of_any_host: bool) -> int | None:
        """Return the rank of a key; None if unknown or ambiguous.

        ``of_any_host``: without the key's host, a number that is that of one rank only.
        """
        known = self._by_number.get(key[1], set()) if of_any_host else set[int]()
        rank = self._ranks.get(key, next(iter(known)) if len(known) == 1 else _AMBIGUOUS)
        return None if rank == _AMBIGUOUS else rank

    @property
    def has_one_host(self) -> bool:
        """Return whether all numbers are of one host."""
        return len({scope for scope, _ in self._ranks}) == 1
