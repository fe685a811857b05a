"""Tensor shapes and element types that differ between ranks."""

from __future__ import annotations

from holdfast.causes.sync.mismatched_shape import MISMATCHED_SHAPE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_cause


def _message(divergence: Divergence) -> str:
    about = "element type" if divergence.kind == "type" else "shape"
    return (
        f"the tensor passed to {divergence.text} may have a different {about} on each rank: "
        f"{describe_cause(divergence.sources)}"
    )


RULE = Rule(
    name="mismatched-args",
    cause=MISMATCHED_SHAPE,
    tier=RuleTier.DATA,
    what_it_does=(
        "Finds collectives whose tensor has a shape that differs between ranks, or an element "
        "type, if it is made from `1.0 if rank == 0 else 0`. Advice: broadcasts of what the root "
        "sizes by its data into a buffer of fixed size, tensors on the CPU that NCCL gets, and "
        "collectives without the one group that their function gets or their class creates. Also "
        "lists and output tensors with one part for each rank of the job in a group of fewer, or "
        "the reverse; gather_list and scatter_list on all ranks, or on none; outputs of "
        "all_gather_into_tensor and inputs of reduce_scatter_tensor of the size of the other "
        "tensor."
    ),
    known_misses=(
        "Shapes returned by libraries. In a broadcast, shapes that depend on nothing but the rank: "
        "usually the others pass a placeholder that fits."
    ),
    bad="""\
def collect(predictions):
    local = torch.zeros(dist.get_rank() + 1)
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local)  # found
    return parts
""",
    good="""\
def collect(predictions):
    local = torch.zeros(8)
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local)
    return parts
""",
    kinds=("shape", "type", "habit-argument"),
    message=_message,
)
