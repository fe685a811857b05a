"""PERF009 memory-on-another-node."""

from __future__ import annotations

from holdfast.core.findings import Cause, Remedy, Safety

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
    remedies=(
        Remedy(
            text="Show nodes, memory and devices.",
            command="numactl --hardware; lscpu | grep -i numa",
            safety=Safety.AUTOMATIC,
        ),
        Remedy(
            text="Bind each rank to the node of its GPU; torchrun of torch 2.9 and later supports "
            "it.",
            command="torchrun --numa-binding=node --nproc-per-node=8 SCRIPT",
            safety=Safety.DISRUPTIVE,
        ),
    ),
    sources=(
        "Linux: Documentation/admin-guide/sysctl/vm.rst, zone_reclaim_mode",
        "torch: torch/numa/binding.py",
    ),
)
