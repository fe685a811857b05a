"""PERF009 memory-on-another-node."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

MEMORY_ON_ANOTHER_NODE = Cause(
    code="PERF009",
    name="memory-on-another-node",
    summary="Processes run on one NUMA node of the host and use memory, or devices, of another.",
    what_happens="Each node has local memory; that of another node is reached over a slower, "
    "shared link. Without binding, ranks migrate between nodes; if all are bound to one node, the "
    "others idle. A node without free memory allocates on the next one.",
    shows_before="An affinity that covers one of several nodes for several ranks; a node with "
    "hardly any free memory next to one with much; vm.zone_reclaim_mode is not 0; automatic "
    "balancing that moves pages.",
    shows_during="Ranks differ in speed by their node; copies to GPUs run at a fraction of PCIe's "
    "rate.",
    shows_after="Throughput that changes from start to start, with the placement.",
    known_misses="Only the affinity that a rank would inherit is visible, not its binding once it "
    "runs.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        automatic("Show nodes, memory and devices.", "numactl --hardware; lscpu | grep -i numa"),
        disruptive(
            "Bind each rank to the node of its GPU; torchrun of torch 2.9 and later supports it.",
            "torchrun --numa-binding=node --nproc-per-node=8 SCRIPT",
        ),
    ),
    sources=(
        "Linux: Documentation/admin-guide/sysctl/vm.rst, zone_reclaim_mode",
        "torch: torch/numa/binding.py",
    ),
)
