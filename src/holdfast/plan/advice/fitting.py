"""Changes that make a run fit, in the order of their cost, each with the bytes it saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from holdfast.plan.memory.estimate import MemoryEstimate, MemoryFit
from holdfast.plan.setup import (
    ActivationCheckpointing,
    LossKernel,
    OffloadTarget,
    OptimizerKind,
    ShardingStrategy,
    TrainingSetup,
)

MemoryModel = Callable[[TrainingSetup], MemoryEstimate]


class FittingChange(msgspec.Struct, frozen=True):
    """One change of a setup, or the last of several; ``setup`` and ``memory`` include all of them.

    ``saved``: bytes of the largest stage, below 0 if it needs more; ``cost``: the price of the
    change.
    """

    what: str
    cost: str
    setup: TrainingSetup
    memory: MemoryEstimate
    saved: int


class FittingChanges(msgspec.Struct, frozen=True):
    """``single``: changes that suffice alone; ``combined``: changes to apply one after the other.

    With the last one of ``combined`` the run fits, or all of them are not enough (see its
    ``memory.fit``).
    """

    single: tuple[FittingChange, ...]
    combined: tuple[FittingChange, ...]


def find_fitting_changes(memory_model: MemoryModel, setup: TrainingSetup) -> FittingChanges:
    """Return changes with which a run fits, the cheapest first.

    ``memory_model`` estimates a setup on a GPU of known memory: ``lambda setup:
    estimate_memory(model, setup, gpu_memory)``, or the same for submodels.
    """
    before = memory_model(setup)
    return FittingChanges(
        tuple(_single_changes(memory_model, setup, before)),
        _combine_changes(memory_model, before, setup),
    )


def iter_changes(memory_model: MemoryModel, setup: TrainingSetup) -> Iterator[FittingChange]:
    """Yield every single change, sufficient or not: cheapest kinds and mildest steps first."""
    before = memory_model(setup)
    for kind in _KINDS:
        for change, cost, changed in kind(setup):
            after = memory_model(changed)
            yield FittingChange(
                change, cost, changed, after, before.worst.total - after.worst.total
            )


def _combine_changes(
    memory_model: MemoryModel, before: MemoryEstimate, setup: TrainingSetup
) -> tuple[FittingChange, ...]:
    """Combine changes that save at least 5 % each, or else all that save anything."""
    changes = _accumulate_changes(memory_model, before, setup, 1 / 20)
    if changes and changes[-1].memory.fit is MemoryFit.FITS:
        return changes
    return _accumulate_changes(memory_model, before, setup, 0.0)


def _accumulate_changes(
    memory_model: MemoryModel, before: MemoryEstimate, setup: TrainingSetup, min_share: float
) -> tuple[FittingChange, ...]:
    """Try each kind from the setup that the previous changes led to."""
    changes: list[FittingChange] = []
    for kind in _KINDS:
        for change, cost, changed in kind(setup):
            after = memory_model(changed)
            saved = before.worst.total - after.worst.total
            relieves_host = before.exceeds_host and after.host < before.host
            if saved > min_share * before.worst.total or relieves_host:
                changes.append(FittingChange(change, cost, changed, after, saved))
                setup, before = changed, after
            if before.fit is MemoryFit.FITS:
                return tuple(changes)
    return tuple(changes)


def _single_changes(
    memory_model: MemoryModel, setup: TrainingSetup, before: MemoryEstimate
) -> Iterator[FittingChange]:
    """Yield the mildest sufficient change of each kind."""
    for kind in _KINDS:
        for change, cost, changed in kind(setup):
            after = memory_model(changed)
            if after.fit is MemoryFit.FITS:
                yield FittingChange(
                    change, cost, changed, after, before.worst.total - after.worst.total
                )
                break


# ---- kinds of change, the cheapest first; each yields its steps, the mildest first

_Candidate = tuple[str, str, TrainingSetup]


def _use_flash_attention(setup: TrainingSetup) -> Iterator[_Candidate]:
    if not setup.flash:
        yield "use flash attention", "none", _with(setup, flash=True)


def _chunk_loss(setup: TrainingSetup) -> Iterator[_Candidate]:
    if setup.loss is LossKernel.EAGER:
        yield ("chunk the loss computation", "negligible", _with(setup, loss=LossKernel.CHUNKED))


def _fuse_optimizer(setup: TrainingSetup) -> Iterator[_Candidate]:
    zero = setup.strategy in (
        ShardingStrategy.ZERO1,
        ShardingStrategy.ZERO2,
        ShardingStrategy.ZERO3,
    )
    if not (setup.fused_optimizer or zero) and setup.optimizer is OptimizerKind.ADAMW:
        yield "use a fused optimizer", "none", _with(setup, fused_optimizer=True)


def _shard_states(setup: TrainingSetup) -> Iterator[_Candidate]:
    if setup.shards > 1 and not setup.shards_parameters:
        yield (
            f"use FSDP2 instead of {setup.strategy}",
            "50% more communication",
            _with(setup, strategy=ShardingStrategy.FSDP2),
        )
    if setup.shards_parameters and not setup.reshard and setup.pipeline == 1:
        yield (
            "reshard parameters after forward",
            "50% more communication",
            _with(setup, reshard=True),
        )
    if setup.replicas > 1 and setup.shards_parameters:
        yield (
            "shard over all ranks, without replicas",
            "all-gathers over slower links",
            _with(setup, replicas=1),
        )


def _shrink_micro_batches(setup: TrainingSetup) -> Iterator[_Candidate]:
    """Also for pipelines, whose peak depends on the micro-batch, too."""
    size, accumulation = setup.micro_batch, setup.accumulation
    while size > 1 and size % 2 == 0:
        size, accumulation = size // 2, accumulation * 2
        yield (
            f"micro-batch {size}, accumulation {accumulation}",
            "smaller matrix products",
            _with(setup, micro_batch=size, accumulation=accumulation),
        )


def _checkpoint_activations(setup: TrainingSetup) -> Iterator[_Candidate]:
    if setup.recompute is ActivationCheckpointing.NONE and setup.flash:
        yield (
            "checkpoint activations of cheap operations",
            "about 10% slower",
            _with(setup, recompute=ActivationCheckpointing.OPERATIONS),
        )
    if setup.recompute is not ActivationCheckpointing.FULL:
        yield (
            "checkpoint activations of whole layers",
            "33% more computation",
            _with(setup, recompute=ActivationCheckpointing.FULL),
        )


def _quantize_optimizer(setup: TrainingSetup) -> Iterator[_Candidate]:
    if setup.optimizer is OptimizerKind.ADAMW:
        yield (
            "use 8-bit AdamW",
            "different optimizer numerics",
            _with(setup, optimizer=OptimizerKind.ADAMW_8BIT),
        )


def _add_tensor_parallelism(setup: TrainingSetup) -> Iterator[_Candidate]:
    """Keep the GPUs and the batch."""
    tensor, data, accumulation = setup.tensor, setup.data, setup.accumulation
    while tensor < 8 and data % 2 == 0 and (data // 2) % setup.replicas == 0:
        tensor, data, accumulation = 2 * tensor, data // 2, 2 * accumulation
        if data * setup.context % setup.expert:
            return
        yield (
            f"tensor parallelism {tensor}",
            "communication in each layer",
            _with(setup, tensor=tensor, data=data, accumulation=accumulation),
        )


def _offload_to_host(setup: TrainingSetup) -> Iterator[_Candidate]:
    fsdp = setup.strategy in (ShardingStrategy.FSDP1, ShardingStrategy.FSDP2)
    if setup.offload is OffloadTarget.NONE and fsdp:
        yield (
            "offload all states to the host",
            "all parameters over PCIe twice per micro-batch, and an optimizer step on the CPU",
            _with(setup, offload=OffloadTarget.PARAMETERS),
        )
        return
    if setup.offload is OffloadTarget.NONE:
        yield (
            "offload optimizer states to the host",
            "an optimizer step over PCIe and on the CPU",
            _with(setup, offload=OffloadTarget.OPTIMIZER),
        )
    if setup.offload is not OffloadTarget.PARAMETERS and setup.shards_parameters and not fsdp:
        yield (
            "also offload parameters to the host",
            "all parameters over PCIe twice per micro-batch",
            _with(setup, offload=OffloadTarget.PARAMETERS),
        )


def _add_gpus(setup: TrainingSetup) -> Iterator[_Candidate]:
    """Add GPUs if data-parallel ranks share states."""
    data = setup.data
    while setup.strategy is not ShardingStrategy.DDP and data < 64 * setup.data:
        data *= 2
        changed = _with(setup, data=data)
        yield (
            f"use {changed.world_size} GPUs",
            f"{changed.world_size // setup.world_size}x the GPUs",
            changed,
        )


def _with(setup: TrainingSetup, **changes: object) -> TrainingSetup:
    return msgspec.structs.replace(setup, **changes)


_KINDS: tuple[Callable[[TrainingSetup], Iterator[_Candidate]], ...] = (
    _use_flash_attention,
    _chunk_loss,
    _fuse_optimizer,
    _shard_states,
    _shrink_micro_batches,
    _checkpoint_activations,
    _quantize_optimizer,
    _add_tensor_parallelism,
    _offload_to_host,
    _add_gpus,
)
