"""Why GPU memory ran out, as far as the error alone tells, and what to change, in the order of what it costs.

Pure: a :class:`~holdfast.facts.shortages.Shortage` and what the frames say of the request, to a cause and remedies. No
number is made up: what saves how much is said where the error (or a snapshot) has that number, and not otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from holdfast.facts import shortages
from holdfast.facts.allocations import Use
from holdfast.facts.shortages import Shortage
from holdfast.findings import Fact, Finding, Remedy, Safety
from holdfast.report.evidence import size_text

FRAGMENTED, TAKEN, KEPT, TOO_LARGE = (
    "gpu-memory-fragmented", "gpu-memory-taken-by-others", "tensors-kept-over-steps", "gpu-oom-all-ranks",
)  # fmt: skip
#: Idle memory below this share of what torch reserved is what any allocator has.
LEAST_IDLE = 1 / 20
#: Processes with no more than this have a context there, and little else.
_CONTEXT = 2 << 30
_SETTING = {
    "CUDA": "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "HIP": "export PYTORCH_HIP_ALLOC_CONF=expandable_segments:True",
    "NPU": "export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
}


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """What is the matter: a cause by name, how sure, a clause for the finding, and what the memory was made of."""

    cause: str
    confidence: float
    clause: str
    parts: tuple[tuple[str, int], ...] = ()
    remedies: tuple[Remedy, ...] = ()


def why(short: Shortage, use: Use = Use.UNTOLD) -> Why:
    """Why the request failed; ``use`` is what it was for."""
    cause, confidence, clause = _cause(short)
    wanted = f"{size_text(short.wanted)} asked for{_PURPOSE.get(use, '')}" if short.wanted is not None else ""
    free = f"{size_text(short.free)} free" if short.free is not None else ""
    said = ", ".join(part for part in (wanted, free, clause) if part)
    return Why(
        cause=cause, confidence=confidence, clause=said, parts=tuple(_parts(short)),
        remedies=tuple(_advice(short, use, cause)),
    )  # fmt: skip


def advised(claim: Finding, text: str, own: int = 0) -> Finding:
    """The finding with what the error's ``text`` tells of the memory; ``own`` of the cause's remedies stay in front."""
    short = shortages.parse(text)
    if short is None or short.wanted is None:
        return claim
    found = why(short)
    made_of = ", ".join(f"{size_text(nbytes)} {name}" for name, nbytes in found.parts)
    fact = Fact(text=made_of, origin=f"box of rank {claim.subject.rank}", rank=claim.subject.rank)
    return replace(
        claim, evidence=(*claim.evidence, *([fact] if made_of else [])),
        remedies=(*claim.remedies[:own], *found.remedies),
    )  # fmt: skip


def _cause(short: Shortage) -> tuple[str, float, str]:
    wanted, free, idle = short.wanted, short.free, short.idle
    held = (short.allocated or 0) + (idle or 0)
    if short.held_by_others > max(held, (short.capacity or 0) / 10):
        return TAKEN, 0.9, f"{size_text(short.held_by_others)} held by other processes"
    if _limited(short):
        return TOO_LARGE, 0.85, f"this process is allowed {size_text(short.allowed or 0)}"
    if wanted is not None and free is not None and free >= wanted:
        # It has happened (XPU, drivers that cannot map more): the error does not say why.
        return TOO_LARGE, 0.5, "so that want of room alone does not explain it"
    if wanted is not None and idle is not None and idle >= LEAST_IDLE * held and idle + (free or 0) >= wanted:
        return FRAGMENTED, 0.8, f"{size_text(idle)} reserved by torch and not in one piece"
    return TOO_LARGE, 0.85, f"{size_text(short.allocated)} in tensors" if short.allocated is not None else ""


def _limited(short: Shortage) -> bool:
    return short.allowed is not None and short.capacity is not None and short.allowed < short.capacity


#: How the request is spoken of.
_PURPOSE = {
    Use.PARAMETERS: " for the model itself", Use.LOADED: " for what is loaded from a file",
    Use.OPTIMIZER: " by the optimizer", Use.GRADIENTS: " for gradients", Use.ACTIVATIONS: " by forward",
    Use.LOSS: " by the loss", Use.GATHERED: " for parameters that are gathered",
    Use.BUCKETS: " for buckets of communication", Use.BACKWARD: " by backward",
}  # fmt: skip


def _parts(short: Shortage) -> Iterator[tuple[str, int]]:
    """What the GPU's memory was made of, as the error tells; only parts that are told."""
    for name, nbytes in (
        ("tensors", short.allocated), ("reserved and idle", short.idle), ("this process besides torch", short.besides),
        ("other processes", short.held_by_others or None), ("free", short.free),
    ):  # fmt: skip
        if nbytes is not None:
            yield name, nbytes


# ---- what to change


def _advice(short: Shortage, use: Use, cause: str) -> Iterator[Remedy]:
    """The cheapest first; what is the cause's own comes before all else."""
    if cause == TAKEN or short.held_by_others > LEAST_IDLE * (short.capacity or 0):
        yield from _of_others(short)
    if cause == FRAGMENTED:
        yield expandable(short.idle or 0, short.device)
    if _limited(short):
        limit = f"{size_text(short.allowed or 0)} of {size_text(short.capacity or 0)}"
        said = f"Allow this process more than {limit} (torch.cuda.set_per_process_memory_fraction): it costs nothing."
        yield Remedy(text=said)
    if cause != TAKEN:
        yield from of_use(use, None)
        yield RECORD


def _of_others(short: Shortage) -> Iterator[Remedy]:
    few = ", ".join(str(each.pid) for each in short.others[:4]) + (", …" if len(short.others) > 4 else "")
    ranks = len(short.others) > 1 and all(each.bytes <= _CONTEXT for each in short.others)
    if ranks:
        yield Remedy(
            text=f'Set each rank\'s device before it touches CUDA, and load with map_location="cpu", if the processes '
            f"{few} are ranks of this job: up to {size_text(short.held_by_others)} less here, at no cost."
        )
    yield Remedy(
        text=f"End or move the processes {few}: {size_text(short.held_by_others)} less, at no cost. See what they are:",
        command="nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv",
    )


def expandable(idle: int, device: str = "CUDA") -> Remedy:
    """Segments that grow."""
    text = (
        f"Let the allocator's segments grow, so that gaps are joined: up to {size_text(idle)} can be used again, "
        "at no cost to speak of."
    )
    return Remedy(text=text, command=_SETTING.get(device), safety=Safety.DISRUPTIVE)


RECORD = Remedy(
    text="To learn what the rest is made of: torch.cuda.memory._record_memory_history(max_entries=100_000) before "
    "training, torch.cuda.memory._dump_snapshot('rank0.pickle') when it fails; then",
    command="holdfast diagnose rank0.pickle",
    safety=Safety.AUTOMATIC,
)  # fmt: skip


def of_use(use: Use, nbytes: int | None) -> Iterator[Remedy]:
    """What makes less of one use, of which there are ``nbytes`` where that is known."""
    for text, share, cost in _CHANGES.get(use, _CHANGES[Use.ACTIVATIONS]):
        saved = f": up to {size_text(share * nbytes)} less" if nbytes is not None and share else ""
        yield Remedy(text=f"{text}{saved}. It costs: {cost}.")


_HALF = (
    "Halve the micro-batch and accumulate twice as often", 1 / 2,
    "some speed, as matrix products are smaller; the batch stays the same",
)  # fmt: skip
#: For each use what to change, what share of its bytes that saves at most (0: not known), and what it costs; the
#: cheapest first. Recomputation keeps a layer's input, 2 of 34 bytes (V. Korthikanti et al., 2022); states in 8 bits
#: are a quarter of fp32 (T. Dettmers et al., 2022); of N shards each rank keeps one.
_CHANGES: dict[Use, tuple[tuple[str, float, str], ...]] = {
    Use.ACTIVATIONS: (
        ("Use flash attention (scaled_dot_product_attention) where scores are stored", 0, "nothing"),
        _HALF,
        ("Recompute layers in backward (torch.utils.checkpoint)", 16 / 17, "about a third more computation"),
    ),
    Use.LOSS: (
        ("Compute the loss in eight chunks, together with the head (Liger's fused linear cross-entropy)", 7 / 8,
         "nothing to speak of"),
        _HALF,
    ),
    Use.OPTIMIZER: (
        ("Take the optimizer's fused kernel (fused=True): its step needs no scratch", 0, "nothing"),
        ("Keep its states on shards (ZeRO-1, FSDP2): a half on 2 ranks, 7/8 on 8", 7 / 8, "communication of a step"),
        ("Take an optimizer with states in 8 bits", 3 / 4, "another optimizer: compare the loss"),
        ("Keep its states on the host (CPU offload)", 1, "a step over PCIe and on the CPU"),
    ),
    Use.PARAMETERS: (
        ("Shard the model before it has memory (meta device, then FSDP2 or ZeRO-3): a half on 2 ranks, 7/8 on 8", 7 / 8,
         "gathering parameters in forward and backward"),
        ("Keep frozen parts in bf16 where they are in fp32", 1 / 2, "precision of what is not trained"),
    ),
    Use.LOADED: (
        ('Load to the host first (map_location="cpu", mmap=True), and only this rank\'s share to the GPU', 1,
         "seconds at the start"),
    ),
    Use.GRADIENTS: (
        ("Drop them while forward runs: zero_grad(set_to_none=True)", 0, "nothing"),
        ("Shard them over the ranks (ZeRO-2, FSDP2): a half on 2 ranks, 7/8 on 8", 7 / 8, "more communication"),
    ),
    Use.GATHERED: (
        ("Shard each layer on its own (fully_shard on every block) and reshard after forward", 0,
         "gathering again in backward"),
    ),
    Use.BUCKETS: (
        ("Let gradients be views of DDP's buckets (gradient_as_bucket_view=True)", 0, "nothing"),
        ("Take smaller buckets (bucket_cap_mb, reduce_bucket_size)", 1 / 2, "more and smaller collectives"),
    ),
}  # fmt: skip
