"""Do the workers reach all nodes, and is there memory on each?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.numa import Numa
from holdfast.findings import Finding, Level, Unknown, finding
from holdfast.rules.causes import by_name

#: A node has less than this share of its memory free, while another has more than half.
_FULL, _FREE = 0.05, 0.5


def judge(seen: Numa, place: Place) -> Iterator[Finding]:
    """Nothing where there is one node."""
    if isinstance(seen.nodes, Unknown):
        return
    computing = [node for node in seen.nodes if node.processors]
    if len(computing) < 2:
        return
    reached = seen.reached
    if reached and len(reached) < len(computing):
        several = (place.workers or 1) > 1
        which = ", ".join(str(node.number) for node in reached)
        yield _claim(
            seen,
            Level.WARNING if several else Level.NOTE,
            f"this process, and all that it starts, may run on NUMA node {which} alone of {len(computing)}"
            + (f": {place.workers} workers share it, and devices of the others are far" if several else ""),
            0.7,
        )
    full = [node for node in computing if node.total and node.free < _FULL * node.total]
    if full and any(node.free > _FREE * node.total for node in computing):
        yield _claim(
            seen,
            Level.NOTE,
            f"NUMA node {full[0].number} has {full[0].free / 2**30:.1f} GiB free and another more than half: ranks on "
            "it get memory from afar (page cache counts as used here)",
            0.4,
        )
    if seen.reclaim:
        yield _claim(
            seen,
            Level.WARNING,
            f"vm.zone_reclaim_mode is {seen.reclaim}: a node that is full stalls programs to "
            "free its own memory instead of using another's",
            0.6,
        )


def _claim(seen: Numa, level: Level, message: str, confidence: float) -> Finding:
    cause = by_name("memory-on-another-node")
    return finding(cause, message, level=level, evidence=seen.facts(), confidence=confidence)
