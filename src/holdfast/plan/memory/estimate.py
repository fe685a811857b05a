"""Estimate a run's GPU memory by part, and whether it fits: closed formulas, no GPU, no torch.

The parts are documented where they are computed: :mod:`~holdfast.plan.memory.states` (model
states), :mod:`~holdfast.plan.memory.activations`, :mod:`~holdfast.plan.memory.peaks` (temporary
tensors) and :mod:`~holdfast.plan.memory.reserve` (the allocator's share, the only fitted part).
``benchmarks/plan_truth.py`` compares the totals with published figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.memory import reserve
from holdfast.plan.memory.activations import (
    LayerActivations,
    layer_activations,
    micro_batches_in_flight,
)
from holdfast.plan.memory.peaks import PeakMoment, TransientMemory, transient_memory
from holdfast.plan.memory.states import (
    ModelStates,
    ParameterCounts,
    count_parameters,
    model_states,
    stage_parameters,
)
from holdfast.plan.models import Transformer
from holdfast.plan.setup import TrainingSetup


class MemoryFit(StrEnum):
    """Whether a run fits.

    ``TIGHT``: it fits if the allocator frees its cache, or if the estimate is too high.
    """

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


_PARTS = tuple(
    """
    parameters master gradients optimizer activations temporary logits gathered buffers reserve
    framework
    """.split()
)


class RankMemory(msgspec.Struct, frozen=True):
    """Bytes of each rank of a pipeline stage at its peak.

    ``reserve``: cached by the allocator beside tensors; ``framework``: allocated by CUDA and NCCL.
    ``host``: host memory of this rank; ``most_tensors``: the largest sum of tensors at any moment,
    with the least cache.
    """

    stage: int
    moment: PeakMoment
    parameters: int
    master: int
    gradients: int
    optimizer: int
    activations: int
    temporary: int
    logits: int
    gathered: int
    buffers: int
    reserve: int
    framework: int
    host: int
    most_tensors: int

    @property
    def tensors(self) -> int:
        """Return what ``torch.cuda.max_memory_allocated`` would report."""
        return (
            self.parameters
            + self.master
            + self.gradients
            + self.optimizer
            + self.activations
            + self.temporary
            + self.logits
            + self.gathered
            + self.buffers
        )

    @property
    def reserved(self) -> int:
        """Return what ``torch.cuda.max_memory_reserved`` would report."""
        return self.tensors + self.reserve

    @property
    def total(self) -> int:
        """Return what nvidia-smi would report."""
        return self.reserved + self.framework

    def parts(self) -> Iterator[tuple[str, int]]:
        """Return name and bytes of each part, largest first; they sum to the total."""
        parts = sorted(((name, getattr(self, name)) for name in _PARTS), key=lambda part: -part[1])
        return (part for part in parts if part[1])


class MemoryEstimate(msgspec.Struct, frozen=True):
    """The memory of each stage: the first, the second and the last.

    Between the last two, it only falls. ``gpu_memory``: bytes of a GPU, None if unknown; ``error``:
    of the reserved bytes, either way, as a share; ``host_memory``: a rank's share of its host's
    memory in bytes, None if unknown.
    """

    stages: tuple[RankMemory, ...]
    gpu_memory: int | None = None
    error: float = reserve.RESERVED_ERROR
    host_memory: int | None = None

    @property
    def worst(self) -> RankMemory:
        """Return the stage that needs the most."""
        return max(self.stages, key=lambda rank: rank.total)

    @property
    def margin(self) -> int | None:
        """Return the bytes left, below 0 if there are too few."""
        return None if self.gpu_memory is None else self.gpu_memory - self.worst.total

    @property
    def host(self) -> int:
        """Return the bytes of offloaded states per rank, of the stage that needs the most."""
        return max(rank.host for rank in self.stages)

    @property
    def exceeds_host(self) -> bool:
        """Return whether the offloaded states exceed the host's memory."""
        return self.host_memory is not None and self.host > self.host_memory

    @property
    def need(self) -> str:
        """Return the memory needed of that available, in GiB; the host's if that is exceeded."""
        if self.exceeds_host and self.host_memory is not None:
            return f"{_gib(self.host)} of {_gib(self.host_memory)} GiB of host memory per rank"
        available = "" if self.gpu_memory is None else f" of {_gib(self.gpu_memory)}"
        return f"{_gib(self.worst.total)}{available} GiB"

    @property
    def fit(self) -> MemoryFit | None:
        """Return whether it fits; None if the GPU's memory is unknown.

        Tensors are counted, so a run whose tensors exceed the memory does not fit. The allocator's
        cache is estimated, and partly freed when memory runs out
        (c10/cuda/CUDACachingAllocator.cpp, ``release_cached_blocks``).
        """
        if self.gpu_memory is None:
            return None
        worst = self.worst
        needed = max(rank.most_tensors + rank.framework for rank in self.stages)
        if needed > self.gpu_memory or self.exceeds_host:
            return MemoryFit.DOES_NOT_FIT
        return (
            MemoryFit.FITS
            if worst.total + self.error * worst.reserved <= self.gpu_memory
            else MemoryFit.TIGHT
        )


def _gib(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.1f}"


def estimate_memory(
    model: Transformer,
    setup: TrainingSetup,
    gpu_memory: int | None = None,
    host_memory: int | None = None,
) -> MemoryEstimate:
    """Estimate the memory of ``model`` on each rank, on GPUs of ``gpu_memory`` bytes.

    ``host_memory``: bytes of host memory for each rank.

    Raises:
        InvalidValue: more pipeline stages than layers.
    """
    last = setup.pipeline - 1
    stages = (0,) if not last else (0, 1) if last == 1 else (0, 1, last)
    activations = layer_activations(model, setup)
    counts = count_parameters(model)
    return MemoryEstimate(
        tuple(_estimate_rank(model, counts, setup, stage, activations) for stage in stages),
        gpu_memory,
        host_memory=host_memory,
    )


def estimate_rank_memory(model: Transformer, setup: TrainingSetup, stage: int = 0) -> RankMemory:
    """Estimate the memory of each rank of this pipeline stage.

    Raises:
        InvalidValue: more pipeline stages than layers.
    """
    return _estimate_rank(
        model, count_parameters(model), setup, stage, layer_activations(model, setup)
    )


def _estimate_rank(
    model: Transformer,
    counts: ParameterCounts,
    setup: TrainingSetup,
    stage: int,
    activations: LayerActivations,
) -> RankMemory:
    if setup.pipeline * setup.chunks > counts.layers:
        raise InvalidValue(
            f"a pipeline of {setup.pipeline * setup.chunks} chunks",
            why=f"{model.name} has {counts.layers} layers",
        )
    parameters = stage_parameters(counts, setup, stage)
    states = model_states(parameters, setup)
    in_flight = micro_batches_in_flight(setup, stage)
    transient = transient_memory(
        model,
        setup,
        parameters,
        states,
        activations,
        in_flight,
        is_last=stage == setup.pipeline - 1,
    )
    return rank_memory_at_peak(stage, setup, states, transient)


def rank_memory_at_peak(
    stage: int, setup: TrainingSetup, states: ModelStates, transient: Sequence[TransientMemory]
) -> RankMemory:
    """Return the memory at the moment that needs the most."""
    factor = reserve.allocator_factor(setup)
    totals = [memory.total for memory in transient]
    reserved = [
        tensors * factor + memory.stranded
        for tensors, memory in zip(totals, transient, strict=True)
    ]
    peak_index = reserved.index(max(reserved))
    peak = transient[peak_index]
    return RankMemory(
        stage=stage,
        moment=peak.moment,
        parameters=round(states.parameters),
        master=round(states.master),
        gradients=round(peak.gradients),
        optimizer=round(states.optimizer),
        activations=round(peak.activations),
        temporary=round(peak.temporary),
        logits=round(peak.logits),
        gathered=round(peak.gathered),
        buffers=round(peak.buffers),
        reserve=round(reserved[peak_index] - totals[peak_index]),
        framework=reserve.framework_bytes(setup),
        host=round(states.host),
        most_tensors=round(states.total - states.gradients + max(totals)),
    )
