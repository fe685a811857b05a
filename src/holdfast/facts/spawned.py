"""Ranks to which no launcher gave a number: processes that one script started, as ``torch.multiprocessing.spawn`` does.

Spawned are data-loader workers too. Ranks are told from them by their connections: every rank is connected to another
one (through the rendezvous' store, or the backend), which workers never are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import psutil

from holdfast.facts.training_processes import ProcessTable, Seen

_SPAWNED = "from multiprocessing.spawn import spawn_main"
_SERVED = "from multiprocessing.forkserver import main"
#: Children of one script that are looked at.
_MOST_CHILDREN = 256

End = tuple[str, int]


class Family(msgspec.Struct, frozen=True):
    """Ranks that ``parent`` started, in the order of their starts; ``port`` is the store's, 0 where not known."""

    parent: Seen
    ranks: tuple[Seen, ...]
    port: int


def families(table: ProcessTable) -> Iterator[Family]:
    """The families of ranks on this host."""
    by_parent: dict[int, list[int]] = defaultdict(list)
    for pid in table.python():
        parent = _script_above(table, pid)
        if parent is not None and table.is_python(parent.pid) and _is_spawned(table.seen(pid), parent):
            by_parent[parent.pid].append(pid)
    for parent_pid, pids in by_parent.items():
        parent = table.seen(parent_pid)
        if len(pids) < 2 or parent.variable("LOCAL_RANK"):  # that one is a rank itself, and these are its workers
            continue
        ends = {pid: _connections(pid) for pid in pids[:_MOST_CHILDREN] if table.has_torch(pid)}
        ranks = table.in_order_of_starts(_connected(ends))
        if ranks and not _connections(parent_pid) & {end for pid in ranks for end in ends[pid]}:
            yield Family(parent, tuple(table.seen(pid) for pid in ranks), _store(ends, ranks))


def _script_above(table: ProcessTable, pid: int) -> Seen | None:
    """The process that ran the script: the parent, or that of the server which forks for it."""
    above = table.ancestors(pid)
    parent = next(above, None)
    return next(above, None) if parent is not None and _SERVED in parent.command else parent


def _is_spawned(seen: Seen, parent: Seen) -> bool:
    """True for a child that multiprocessing started: by spawn, by a server, or by fork (the command line is kept)."""
    return _SPAWNED in seen.command or _SERVED in seen.command or (bool(seen.words) and seen.words == parent.words)


def _connections(pid: int) -> set[tuple[End, End]]:
    try:
        found = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return set()
    return {(tuple(each.laddr), tuple(each.raddr)) for each in found if each.raddr}


def _connected(ends: Mapping[int, set[tuple[End, End]]]) -> list[int]:
    """The processes that are connected to another one of these."""
    owner = {local: pid for pid, pairs in ends.items() for local, _ in pairs}
    found = set()
    for pid, pairs in ends.items():
        for _, remote in pairs:
            other = owner.get(remote)
            if other is not None and other != pid:
                found |= {pid, other}
    return sorted(found) if len(found) > 1 else []


def _store(ends: Mapping[int, set[tuple[End, End]]], ranks: Sequence[int]) -> int:
    """The port to which all ranks are connected."""
    counts = Counter(port for pid in ranks for port in {remote[1] for _, remote in ends[pid]})
    shared = [port for port, count in counts.items() if count == len(ranks)]
    return shared[0] if len(shared) == 1 else 0
