"""PERF012 tensor-parallel-across-nodes."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

TENSOR_PARALLEL_ACROSS_NODES = Cause(
    code="PERF012",
    name="tensor-parallel-across-nodes",
    summary="Ranks that share each layer's matrices are on several nodes and communicate over the "
    "network.",
    what_happens="Tensor parallelism reduces activations several times in each layer, with no "
    "computation meanwhile. Within a node this uses NVLink; between nodes a network that is 10 to "
    "30 times as slow.",
    shows_before="A tensor-parallel degree above the number of GPUs in a node, or ranks ordered "
    "so that a tensor group spans nodes.",
    shows_during="GPUs wait in all-reduce or reduce-scatter in every layer; utilization is low "
    "and even.",
    shows_after="Throughput far below that of the same job with tensor parallelism inside the "
    "node.",
    known_misses="Racks whose NVLink connects many nodes (GB200 NVL72) count as one node here.",
    evidence_sources=(EvidenceSource.PLAN,),
    remedies=(
        by_hand(
            "Limit the tensor-parallel degree to the GPUs of a node, and use pipeline "
            "stages, FSDP, or both between nodes."
        ),
        by_hand(
            "Order ranks so that those of a tensor group are adjacent: the innermost "
            "dimension of the mesh."
        ),
    ),
    sources=(
        (
            "D. Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters "
            "(SC21), takeaway 1"
        ),
    ),
)
