"""Find ranks that one script spawned, as ``torch.multiprocessing.spawn`` does, without a launcher.

Data-loader workers are spawned in the same way. Connections distinguish the two: every rank is
connected to another rank (through the rendezvous store or the backend), and workers never are; a
forked worker only inherits the connections of its rank. The script may itself run under torchrun.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.host.processes.namespaces import Endpoint, tcp_connections
from holdfast.host.processes.training_processes import ProcessTable, TrainingProcess

_SPAWN_COMMAND = "from multiprocessing.spawn import spawn_main"
_FORKSERVER_COMMAND = "from multiprocessing.forkserver import main"
#: Maximum children of one script that are checked.
_MAX_CHILDREN = 256

#: Local and remote endpoint.
_Connections = set[tuple[Endpoint, Endpoint]]


class SpawnedRanks(msgspec.Struct, frozen=True):
    """The ranks that ``parent`` spawned, in start order; ``port`` is the store's, 0 if unknown."""

    parent: TrainingProcess
    ranks: tuple[TrainingProcess, ...]
    port: int


def find_spawned_ranks(table: ProcessTable) -> Iterator[SpawnedRanks]:
    """Yield the groups of spawned ranks on this host."""
    by_parent: dict[int, list[int]] = defaultdict(list)
    for pid in table.python():
        parent = _script_process(table, pid)
        if (
            parent is not None
            and table.is_python(parent.pid)
            and _is_spawned(table.process(pid), parent)
        ):
            by_parent[parent.pid].append(pid)
    for parent_pid, pids in by_parent.items():
        parent = table.process(parent_pid)
        if len(pids) < 2:
            continue
        connections = {
            pid: tcp_connections(pid) for pid in pids[:_MAX_CHILDREN] if table.has_torch(pid)
        }
        ranks = table.in_order_of_starts(_connected_pids(connections))
        of_ranks = {pair for pid in ranks for pair in connections[pid]}
        if ranks and not tcp_connections(parent_pid) & of_ranks:
            processes = tuple(table.process(pid) for pid in ranks)
            yield SpawnedRanks(parent, processes, _store_port(connections, ranks))


def _script_process(table: ProcessTable, pid: int) -> TrainingProcess | None:
    """Return the process that ran the script: the parent, or the parent of its fork server."""
    above = table.ancestors(pid)
    parent = next(above, None)
    if parent is not None and _FORKSERVER_COMMAND in parent.command:
        return next(above, None)
    return parent


def _is_spawned(process: TrainingProcess, parent: TrainingProcess) -> bool:
    """Return whether multiprocessing started the child: by spawn, by a server, or by fork.

    A forked child has the parent's command line.
    """
    return (
        _SPAWN_COMMAND in process.command
        or _FORKSERVER_COMMAND in process.command
        or (bool(process.words) and process.words == parent.words)
    )


def _connected_pids(connections: Mapping[int, _Connections]) -> list[int]:
    """Return the processes that are connected to another one of them."""
    owner = {local: pid for pid, pairs in connections.items() for local, _ in pairs}
    connected = set()
    for pid, pairs in connections.items():
        for _, remote in pairs:
            other = owner.get(remote)
            if other is not None and other != pid:
                connected |= {pid, other}
    return sorted(connected)


def _store_port(connections: Mapping[int, _Connections], ranks: Sequence[int]) -> int:
    """Return the one port to which all ranks are connected, otherwise 0."""
    counts = Counter(
        port for pid in ranks for port in {remote.port for _, remote in connections[pid]}
    )
    shared = [port for port, count in counts.items() if count == len(ranks)]
    return shared[0] if len(shared) == 1 else 0
