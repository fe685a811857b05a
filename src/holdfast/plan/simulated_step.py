"""A step run on fake tensors, in the terms of the formulas, and the difference of both."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.plan.memory.estimate import MemoryEstimate, RankMemory, rank_memory_at_peak
from holdfast.plan.memory.peaks import PeakMoment, TransientMemory
from holdfast.plan.memory.states import ModelStates
from holdfast.plan.model_counts import ModuleSummary
from holdfast.plan.setup import TrainingSetup

#: Estimates differ if they are further apart, as a share of the larger one.
DIFFERENCE_THRESHOLD = 0.10


class SimulatedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run of the real module on fake tensors.

    All ranks are alike; one is described.

    ``depths``: layers of the runs from which ``layers`` were extrapolated, all equal if nothing was
    omitted. ``peaks``: bytes of tensors at each moment. ``torch``: the version. ``notes``:
    deviations from the setup, a sentence each.
    """

    memory: MemoryEstimate
    model: ModuleSummary
    layers: int
    depths: tuple[int, ...]
    peaks: dict[str, int]
    torch: str
    duration_s: float
    notes: tuple[str, ...] = ()


class Difference(msgspec.Struct, frozen=True):
    """Bytes of one part by the formulas and by the simulation."""

    part: str
    formula: int
    simulated: int


#: Parts that the formulas separate and the tracker does not.
_COMPARED_PARTS: Mapping[str, tuple[str, ...]] = {
    "parameters": ("parameters", "master", "gathered"),
    "gradients": ("gradients", "buffers"),
    "optimizer": ("optimizer",),
    "activations": ("activations", "temporary", "logits"),
}


def find_differences(
    formula: RankMemory, simulated: RankMemory, share: float = DIFFERENCE_THRESHOLD
) -> tuple[Difference, ...]:
    """Return the parts that differ if total tensors differ by more than ``share``, largest first.

    Empty if the totals agree: two peaks of equal height may consist of different parts.
    """
    if abs(formula.tensors - simulated.tensors) <= share * max(formula.tensors, simulated.tensors):
        return ()
    sums = [
        Difference(
            part, *(sum(getattr(rank, name) for name in names) for rank in (formula, simulated))
        )
        for part, names in _COMPARED_PARTS.items()
    ]
    threshold = share * max(formula.tensors, simulated.tensors)
    ordered = sorted(sums, key=lambda difference: -abs(difference.formula - difference.simulated))
    return tuple(
        difference
        for index, difference in enumerate(ordered)
        if not index or abs(difference.formula - difference.simulated) > threshold
    )


def memory_from_peaks(
    states: ModelStates,
    transient: Mapping[PeakMoment, TransientMemory],
    setup: TrainingSetup,
    gpu_memory: int | None,
) -> MemoryEstimate:
    """Return the memory estimate of the recorded peaks, plus the allocator's share."""
    return MemoryEstimate(
        (rank_memory_at_peak(0, setup, states, list(transient.values())),), gpu_memory
    )
