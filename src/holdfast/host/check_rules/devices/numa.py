"""Judges whether the workers can use all NUMA nodes, and whether each has free memory."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.performance.memory_on_another_node import MEMORY_ON_ANOTHER_NODE
from holdfast.core.findings import Finding, Level, Unknown, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.devices.numa import NumaResult

#: A node is full below this share of free memory, if another one has more than the second share.
_FULL_BELOW, _FREE_ABOVE = 0.05, 0.5


def judge(result: NumaResult, context: CheckContext) -> Iterator[Finding]:
    """Report nothing on a host with one node."""
    if isinstance(result.nodes, Unknown):
        return
    nodes = [node for node in result.nodes if node.processors]
    if len(nodes) < 2:
        return
    usable = result.usable_nodes
    if usable and len(usable) < len(nodes):
        several = (context.workers or 1) > 1
        numbers = ", ".join(str(node.number) for node in usable)
        effect = (
            f": {context.workers} workers share it, and devices of other nodes are remote"
            if several
            else ""
        )
        yield _numa_finding(
            result,
            Level.WARNING if several else Level.NOTE,
            f"this process and its children can only run on NUMA node {numbers} of {len(nodes)} "
            f"nodes{effect}",
            0.7,
        )
    full = [node for node in nodes if node.total and node.free < _FULL_BELOW * node.total]
    if full and any(node.free > _FREE_ABOVE * node.total for node in nodes):
        yield _numa_finding(
            result,
            Level.NOTE,
            f"NUMA node {full[0].number} has only {full[0].free / 2**30:.1f} GiB free while "
            f"another has more than "
            "half free: ranks on it get remote memory (page cache counts as used here)",
            0.4,
        )
    if result.reclaim:
        yield _numa_finding(
            result,
            Level.WARNING,
            f"vm.zone_reclaim_mode is {result.reclaim}: a full node stalls programs to reclaim its "
            "own memory instead of using another node's",
            0.6,
        )


def _numa_finding(result: NumaResult, level: Level, message: str, confidence: float) -> Finding:
    return make_finding(
        MEMORY_ON_ANOTHER_NODE, message, level=level, evidence=result.facts(), confidence=confidence
    )
