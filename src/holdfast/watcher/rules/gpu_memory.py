"""Explains why GPU memory ran out, from the error alone, and what to change, the cheapest first.

Pure functions: from an :class:`~holdfast.watcher.oom_messages.OomMessage` and the purpose of the
request to a cause and remedies. Savings are stated only if the error or a snapshot has the number.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from holdfast.causes.memory.gpu_memory_fragmented import GPU_MEMORY_FRAGMENTED
from holdfast.causes.memory.gpu_memory_taken_by_others import GPU_MEMORY_TAKEN_BY_OTHERS
from holdfast.causes.memory.gpu_oom_all_ranks import GPU_OOM_ALL_RANKS
from holdfast.causes.memory.tensors_kept_over_steps import TENSORS_KEPT_OVER_STEPS
from holdfast.core.findings import Fact, Finding, Remedy, Safety
from holdfast.host.allocation_purpose import AllocationPurpose
from holdfast.report.evidence_summary import size_text
from holdfast.watcher.oom_messages import OomMessage, parse_oom_message

FRAGMENTED, TAKEN, KEPT, TOO_LARGE = (
    GPU_MEMORY_FRAGMENTED.name,
    GPU_MEMORY_TAKEN_BY_OTHERS.name,
    TENSORS_KEPT_OVER_STEPS.name,
    GPU_OOM_ALL_RANKS.name,
)
#: Every allocator has idle memory below this fraction of what torch reserved.
LEAST_IDLE = 1 / 20
#: Maximum memory of a process that only has a CUDA context on this GPU.
_CONTEXT_BYTES = 2 << 30
_EXPANDABLE_SEGMENTS = {
    "CUDA": "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "HIP": "export PYTORCH_HIP_ALLOC_CONF=expandable_segments:True",
    "NPU": "export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
}


class OomReason(msgspec.Struct, frozen=True, kw_only=True):
    """The cause by name, its confidence, a clause for the finding, and the parts of the memory."""

    cause: str
    confidence: float
    clause: str
    parts: tuple[tuple[str, int], ...] = ()
    remedies: tuple[Remedy, ...] = ()


def explain_oom(
    message: OomMessage, purpose: AllocationPurpose = AllocationPurpose.UNKNOWN
) -> OomReason:
    """Explain why the request failed; ``purpose`` is what the memory was for."""
    cause, confidence, clause = _cause(message)
    requested = free = ""
    if message.requested is not None:
        requested = f"{size_text(message.requested)} requested{_PURPOSES.get(purpose, '')}"
    if message.free is not None:
        free = f"{size_text(message.free)} free"
    return OomReason(
        cause=cause,
        confidence=confidence,
        clause=", ".join(part for part in (requested, free, clause) if part),
        parts=tuple(_parts(message)),
        remedies=tuple(_remedies(message, purpose, cause)),
    )


def add_oom_details(finding: Finding, text: str, kept_remedies: int = 0) -> Finding:
    """Add what the error's ``text`` says of the memory, and remedies.

    The first ``kept_remedies`` of the cause stay first.
    """
    message = parse_oom_message(text)
    if message is None or message.requested is None:
        return finding
    reason = explain_oom(message)
    parts = ", ".join(f"{size_text(nbytes)} {name}" for name, nbytes in reason.parts)
    rank = finding.subject.rank
    facts = (Fact(text=parts, origin=f"trace of rank {rank}", rank=rank),) if parts else ()
    return replace(
        finding,
        evidence=(*finding.evidence, *facts),
        remedies=(*finding.remedies[:kept_remedies], *reason.remedies),
    )


def _cause(message: OomMessage) -> tuple[str, float, str]:
    requested, free, idle = message.requested, message.free, message.idle
    held = (message.allocated or 0) + (idle or 0)
    if message.held_by_others > max(held, (message.capacity or 0) / 10):
        return TAKEN, 0.9, f"{size_text(message.held_by_others)} held by other processes"
    if _is_limited(message):
        return TOO_LARGE, 0.85, f"this process is limited to {size_text(message.allowed or 0)}"
    if requested is not None and free is not None and free >= requested:
        # Observed on XPU, and with drivers that cannot map more: the error does not say why.
        return TOO_LARGE, 0.5, "so free memory alone does not explain the failure"
    if (
        requested is not None
        and idle is not None
        and idle >= LEAST_IDLE * held
        and idle + (free or 0) >= requested
    ):
        return FRAGMENTED, 0.8, f"{size_text(idle)} reserved by torch, but not contiguous"
    tensors = f"{size_text(message.allocated)} in tensors" if message.allocated is not None else ""
    return TOO_LARGE, 0.85, tensors


def _is_limited(message: OomMessage) -> bool:
    return (
        message.allowed is not None
        and message.capacity is not None
        and message.allowed < message.capacity
    )


_PURPOSES = {
    AllocationPurpose.PARAMETERS: " for the model itself",
    AllocationPurpose.LOADED: " for data loaded from a file",
    AllocationPurpose.OPTIMIZER: " by the optimizer",
    AllocationPurpose.GRADIENTS: " for gradients",
    AllocationPurpose.ACTIVATIONS: " by forward",
    AllocationPurpose.LOSS: " by the loss",
    AllocationPurpose.GATHERED: " for gathered parameters",
    AllocationPurpose.BUCKETS: " for communication buckets",
    AllocationPurpose.BACKWARD: " by backward",
}


def _parts(message: OomMessage) -> Iterator[tuple[str, int]]:
    """Yield the parts of the GPU's memory that the error states, in bytes."""
    for name, nbytes in (
        ("tensors", message.allocated),
        ("reserved but idle", message.idle),
        ("this process outside torch", message.outside_torch),
        ("other processes", message.held_by_others or None),
        ("free", message.free),
    ):
        if nbytes is not None:
            yield name, nbytes


# ---- remedies


def _remedies(message: OomMessage, purpose: AllocationPurpose, cause: str) -> Iterator[Remedy]:
    """Yield the remedies specific to the cause, then the general ones, the cheapest first."""
    if cause == TAKEN or message.held_by_others > LEAST_IDLE * (message.capacity or 0):
        yield from _free_other_processes(message)
    if cause == FRAGMENTED:
        yield suggest_expandable_segments(message.idle or 0, message.device)
    if _is_limited(message):
        limit = f"{size_text(message.allowed or 0)} of {size_text(message.capacity or 0)}"
        yield Remedy(
            text=f"Raise this process's limit of {limit} "
            "(torch.cuda.set_per_process_memory_fraction). Cost: none."
        )
    if cause != TAKEN:
        yield from suggest_savings(purpose, None)
        yield RECORD_SNAPSHOT


def _free_other_processes(message: OomMessage) -> Iterator[Remedy]:
    others, size = message.others, size_text(message.held_by_others)
    pids = ", ".join(str(process.pid) for process in others[:4])
    pids += ", …" if len(others) > 4 else ""
    if len(others) > 1 and all(process.bytes <= _CONTEXT_BYTES for process in others):
        yield Remedy(
            text="Set each rank's device before its first CUDA call, and load with "
            f'map_location="cpu", if the processes {pids} are ranks of this job: saves up to '
            f"{size}. Cost: none."
        )
    yield Remedy(
        text=f"End or move the processes {pids}: saves {size}. Cost: none. List them:",
        command="nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory "
        "--format=csv",
    )


def suggest_expandable_segments(idle: int, device: str = "CUDA") -> Remedy:
    """Return the remedy against fragmentation of ``idle`` bytes."""
    return Remedy(
        text="Let the allocator's segments grow, so that gaps can be merged: makes up to "
        f"{size_text(idle)} usable again. Cost: negligible.",
        command=_EXPANDABLE_SEGMENTS.get(device),
        safety=Safety.DISRUPTIVE,
    )


RECORD_SNAPSHOT = Remedy(
    text="To find out what uses the rest: call "
    "torch.cuda.memory._record_memory_history(max_entries=100_000) before training and "
    "torch.cuda.memory._dump_snapshot('rank0.pickle') on failure, then run",
    command="holdfast diagnose rank0.pickle",
    safety=Safety.AUTOMATIC,
)


def suggest_savings(purpose: AllocationPurpose, nbytes: int | None) -> Iterator[Remedy]:
    """Yield changes that reduce memory of one purpose, ``nbytes`` in all if known."""
    for text, share, cost in _SAVINGS.get(purpose, _SAVINGS[AllocationPurpose.ACTIVATIONS]):
        saved = f": saves up to {size_text(share * nbytes)}" if nbytes is not None and share else ""
        yield Remedy(text=f"{text}{saved}. Cost: {cost}.")


_HALVE_MICRO_BATCH = (
    "Halve the micro-batch size and double the gradient-accumulation steps",
    1 / 2,
    "some speed, because matrix products are smaller; the batch size stays the same",
)
#: Per purpose: the change, the maximum fraction of its bytes saved (0: unknown), and its cost; the
#: cheapest first. Recomputation keeps the input of a layer, 2 of 34 bytes (V. Korthikanti et al.,
#: 2022); 8-bit states are a quarter of fp32 (T. Dettmers et al., 2022); each rank keeps 1 of N
#: shards.
_SAVINGS: dict[AllocationPurpose, tuple[tuple[str, float, str], ...]] = {
    AllocationPurpose.ACTIVATIONS: (
        (
            "Use flash attention (scaled_dot_product_attention) if attention scores are stored",
            0,
            "none",
        ),
        _HALVE_MICRO_BATCH,
        (
            "Recompute layers in backward (torch.utils.checkpoint)",
            16 / 17,
            "about a third more computation",
        ),
    ),
    AllocationPurpose.LOSS: (
        (
            (
                "Compute the loss in eight chunks, fused with the head (Liger's fused linear "
                "cross-entropy)"
            ),
            7 / 8,
            "negligible",
        ),
        _HALVE_MICRO_BATCH,
    ),
    AllocationPurpose.OPTIMIZER: (
        ("Use the fused optimizer (fused=True): its step allocates no temporaries", 0, "none"),
        (
            "Shard the optimizer states (ZeRO-1, FSDP2): 1/2 on 2 ranks, 7/8 on 8",
            7 / 8,
            "communication in each step",
        ),
        ("Use an optimizer with 8-bit states", 3 / 4, "another optimizer: compare the loss"),
        ("Offload the optimizer states to the host", 1, "each step runs over PCIe and on the CPU"),
    ),
    AllocationPurpose.PARAMETERS: (
        (
            (
                "Shard the model before it is allocated (meta device, then FSDP2 or ZeRO-3): "
                "1/2 on 2 ranks, 7/8 on 8"
            ),
            7 / 8,
            "gathering parameters in forward and backward",
        ),
        (
            "Store frozen parameters in bf16 if they are in fp32",
            1 / 2,
            "precision of frozen parameters",
        ),
    ),
    AllocationPurpose.LOADED: (
        (
            (
                'Load to the host first (map_location="cpu", mmap=True), and only this rank\'s '
                "shard to the GPU"
            ),
            1,
            "seconds at startup",
        ),
    ),
    AllocationPurpose.GRADIENTS: (
        ("Free gradients before forward: zero_grad(set_to_none=True)", 0, "none"),
        (
            "Shard gradients over the ranks (ZeRO-2, FSDP2): 1/2 on 2 ranks, 7/8 on 8",
            7 / 8,
            "more communication",
        ),
    ),
    AllocationPurpose.GATHERED: (
        (
            "Shard each layer separately (fully_shard on every block) and reshard after forward",
            0,
            "gathering again in backward",
        ),
    ),
    AllocationPurpose.BUCKETS: (
        ("Make gradients views of DDP's buckets (gradient_as_bucket_view=True)", 0, "none"),
        (
            "Use smaller buckets (bucket_cap_mb, reduce_bucket_size)",
            1 / 2,
            "more and smaller collectives",
        ),
    ),
}
