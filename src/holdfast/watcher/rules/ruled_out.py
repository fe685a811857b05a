"""Lists the causes that the rank table contradicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.performance.straggler import STRAGGLER
from holdfast.causes.process.rank_killed import RANK_KILLED
from holdfast.causes.process.rank_stopped import RANK_STOPPED
from holdfast.causes.sync.collective_mismatch import COLLECTIVE_MISMATCH
from holdfast.causes.sync.collective_order_inversion import COLLECTIVE_ORDER_INVERSION
from holdfast.core.findings import RuledOut
from holdfast.core.rank_table import ProcessState, RankState
from holdfast.watcher.rules.stall import is_busy
from holdfast.watcher.rules.wait_for_graph import WaitGraph


def contradicted_causes(
    states: Sequence[RankState], world_size: int, graph: WaitGraph, *, diverged: bool
) -> Iterator[RuledOut]:
    """Yield the causes that contradict the state of the ranks."""
    lives = {state.life for state in states}
    if len(states) == world_size and not lives & {ProcessState.DEAD, ProcessState.UNKNOWN}:
        yield RuledOut(RANK_KILLED.name, f"all {len(states)} processes are alive")
    if states and not lives & {ProcessState.STOPPED, ProcessState.UNKNOWN}:
        yield RuledOut(RANK_STOPPED.name, "no process is stopped")
    if graph.waits and is_one_host(states, world_size):
        yield RuledOut(NETWORK_FABRIC_FAULT.name, f"all ranks run on {states[0].host}")
    compared = sum(bool(state.recent) for state in states)
    if not diverged and compared > 1:
        why = f"the recorded calls of {compared} ranks agree in operation, dtype and size"
        yield RuledOut(COLLECTIVE_MISMATCH.name, why)
    if graph.waits and not graph.cycle:
        yield RuledOut(COLLECTIVE_ORDER_INVERSION.name, "the wait-for graph has no cycle")
    if not any(state.out_of_memory for state in states):
        why = "no memory cgroup of these ranks counts an out-of-memory kill"
        yield RuledOut(HOST_OOM_KILLED.name, why)


def is_one_host(states: Iterable[RankState], world_size: int) -> bool:
    """Return whether all ranks of the job run on one host, as one node."""
    hosts = [(state.host, state.node) for state in states]
    return len(hosts) == world_size and len({*hosts}) == 1 and bool(hosts[0][0])


def contradicted_straggler(root: RankState | None) -> Iterator[RuledOut]:
    """Yield the straggler cause if the root did not advance between two stack samples."""
    if (
        root is not None
        and len(root.stacks) > 1
        and root.cpu_share is not None
        and not is_busy(root)
    ):
        why = f"two stacks of rank {root.rank} agree and it used {root.cpu_share:.0%} of a core"
        yield RuledOut(STRAGGLER.name, why)
