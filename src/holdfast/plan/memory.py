"""What a run needs of a GPU's memory, by part, and whether that fits: closed formulas, no GPU, no torch.

Parts are described where they are computed: :mod:`~holdfast.plan.states` (what is held), :mod:`~holdfast.plan.
activations`, :mod:`~holdfast.plan.peaks` (what comes and goes) and :mod:`~holdfast.plan.reserve` (the allocator's
share, which alone is fitted). ``benchmarks/plan_truth.py`` holds the sums against published figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from holdfast.errors import BadValue
from holdfast.plan import reserve
from holdfast.plan.activations import Layer, in_flight, layer
from holdfast.plan.models import Transformer
from holdfast.plan.peaks import Moment, Passing, moments
from holdfast.plan.setup import Setup
from holdfast.plan.states import Held, Sizes, held, owned, sizes


class Answer(StrEnum):
    """``TIGHT``: it does if the allocator gives back what it keeps, or if the estimate is off on the good side."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


_PARTS = (
    "parameters", "master", "gradients", "optimizer", "activations", "temporary", "logits", "gathered", "buffers",
    "reserve", "framework",
)  # fmt: skip


class Rank(msgspec.Struct, frozen=True):
    """Bytes of each rank of a pipeline stage, at the moment when it needs most.

    ``reserve``: what the allocator keeps beside tensors; ``framework``: what CUDA and NCCL take outside of it.
    ``host``: of the host's memory, for this rank; ``most_tensors`` at any moment, where the allocator would keep least.
    """

    stage: int
    moment: Moment
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
        """What ``torch.cuda.max_memory_allocated`` would show."""
        return (
            self.parameters + self.master + self.gradients + self.optimizer + self.activations + self.temporary
            + self.logits + self.gathered + self.buffers
        )  # fmt: skip

    @property
    def reserved(self) -> int:
        """What ``torch.cuda.max_memory_reserved`` would show."""
        return self.tensors + self.reserve

    @property
    def total(self) -> int:
        """What nvidia-smi would show."""
        return self.reserved + self.framework

    def rows(self) -> Iterator[tuple[str, int]]:
        """Name and bytes of each part of the GPU's memory, the largest first; their sum is the total."""
        parts = sorted(((name, getattr(self, name)) for name in _PARTS), key=lambda part: -part[1])
        return (part for part in parts if part[1])


class Footprint(msgspec.Struct, frozen=True):
    """What each stage needs. ``stages`` are the first, the second and the last: between the last two, needs only fall.

    ``memory``: bytes of a GPU, None where it was not said; ``error``: of the reserved bytes, either way, as a share.
    """

    stages: tuple[Rank, ...]
    memory: int | None = None
    error: float = reserve.ERROR

    @property
    def worst(self) -> Rank:
        """The stage that needs most."""
        return max(self.stages, key=lambda rank: rank.total)

    def table(self) -> list[tuple[str, tuple[int, ...]]]:
        """Each part by name, the largest first, with its bytes at each stage; the last row is the total."""
        order = [name for name, _ in self.worst.rows()]
        order += [name for each in self.stages for name, _ in each.rows() if name not in order]
        rows = [(name, tuple(getattr(each, name) for each in self.stages)) for name in dict.fromkeys(order)]
        return [*rows, ("total", tuple(each.total for each in self.stages))]

    @property
    def margin(self) -> int | None:
        """Bytes left, below 0 where there are too few."""
        return None if self.memory is None else self.memory - self.worst.total

    @property
    def answer(self) -> Answer | None:
        """Whether it fits; None where the GPU's memory was not said.

        Tensors are counted, so a run whose tensors alone need more does not fit; what the allocator keeps beside them
        is estimated, and given back in part when memory runs out (c10/cuda/CUDACachingAllocator.cpp,
        ``release_cached_blocks``).
        """
        if self.memory is None:
            return None
        worst = self.worst
        if max(rank.most_tensors + rank.framework for rank in self.stages) > self.memory:
            return Answer.DOES_NOT_FIT
        return Answer.FITS if worst.total + self.error * worst.reserved <= self.memory else Answer.TIGHT


def footprint(model: Transformer, setup: Setup, memory: int | None = None) -> Footprint:
    """What ``model`` needs on each rank, of whose GPUs each has ``memory`` bytes.

    Raises:
        BadValue: more pipeline stages than layers.
    """
    last = setup.pipeline - 1
    stages = (0,) if not last else (0, 1) if last == 1 else (0, 1, last)
    one = layer(model, setup)
    size = sizes(model)
    return Footprint(tuple(_rank(model, size, setup, stage, one) for stage in stages), memory)


def rank(model: Transformer, setup: Setup, stage: int = 0) -> Rank:
    """What each rank of this pipeline stage needs.

    Raises:
        BadValue: more pipeline stages than layers.
    """
    return _rank(model, sizes(model), setup, stage, layer(model, setup))


def _rank(model: Transformer, size: Sizes, setup: Setup, stage: int, one: Layer) -> Rank:
    if setup.pipeline * setup.chunks > size.layers:
        raise BadValue(
            f"a pipeline of {setup.pipeline * setup.chunks} pieces", why=f"{model.name} has {size.layers} layers"
        )
    own = owned(size, setup, stage)
    here = held(own, setup)
    flying = in_flight(setup, stage)
    passing = moments(model, setup, own, here, one, flying, last=stage == setup.pipeline - 1)
    return at_the_peak(stage, setup, here, passing)


def at_the_peak(stage: int, setup: Setup, here: Held, passing: Sequence[Passing]) -> Rank:
    """What is there at the moment that needs most."""
    factor = reserve.factor(setup)
    every = [moment.all for moment in passing]
    reserved = [tensors * factor + moment.stranded for tensors, moment in zip(every, passing, strict=True)]
    place = reserved.index(max(reserved))
    peak = passing[place]
    return Rank(
        stage=stage,
        moment=peak.moment,
        parameters=round(here.parameters),
        master=round(here.master),
        gradients=round(peak.gradients),
        optimizer=round(here.optimizer),
        activations=round(peak.activations),
        temporary=round(peak.temporary),
        logits=round(peak.logits),
        gathered=round(peak.gathered),
        buffers=round(peak.buffers),
        reserve=round(reserved[place] - every[place]),
        framework=reserve.framework(setup),
        host=round(here.host),
        most_tensors=round(here.all - here.gradients + max(every)),
    )
