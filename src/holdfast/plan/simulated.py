"""A step that was run on tensors without memory, in the same words as the formulas, and the two next to each other."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.plan.described import Described
from holdfast.plan.memory import Footprint, Rank, at_the_peak
from holdfast.plan.peaks import Moment, Passing
from holdfast.plan.setup import Setup
from holdfast.plan.states import Held

#: Of the larger of two: they are said to differ where they differ by more.
DIFFER = 0.10


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of the real module on fake tensors showed. The footprint is of one rank: all are alike.

    ``depths``: layers of the runs from which ``layers`` were extrapolated, one and the same where none were left out.
    ``peaks``: bytes of tensors at each moment. ``torch``: the version. ``notes``: what is not as in the setup, a
    sentence each.
    """

    footprint: Footprint
    model: Described
    layers: int
    depths: tuple[int, ...]
    peaks: dict[str, int]
    torch: str
    took_s: float
    notes: tuple[str, ...] = ()


class Difference(msgspec.Struct, frozen=True):
    """Bytes of one part by the formulas and as it was simulated."""

    part: str
    formula: int
    simulated: int


#: What the formulas tell apart and a tracker does not, together.
_TOGETHER: Mapping[str, tuple[str, ...]] = {
    "parameters": ("parameters", "master", "gathered"),
    "gradients": ("gradients", "buffers"),
    "optimizer": ("optimizer",),
    "activations": ("activations", "temporary", "logits"),
}


def differences(formula: Rank, simulated: Rank, share: float = DIFFER) -> tuple[Difference, ...]:
    """Which parts differ where the sums of tensors do by more than ``share``; the largest difference first.

    None where the sums agree: parts are counted at a peak, and two peaks of one height may be made of other things.
    """
    if abs(formula.tensors - simulated.tensors) <= share * max(formula.tensors, simulated.tensors):
        return ()
    sums = [
        Difference(part, *(sum(getattr(rank, name) for name in names) for rank in (formula, simulated)))
        for part, names in _TOGETHER.items()
    ]
    most = share * max(formula.tensors, simulated.tensors)
    found = sorted(sums, key=lambda each: -abs(each.formula - each.simulated))
    return tuple(each for place, each in enumerate(found) if not place or abs(each.formula - each.simulated) > most)


def seen(here: Held, passing: Mapping[Moment, Passing], setup: Setup, memory: int | None) -> Footprint:
    """The answer for what was seen, with the share that the allocator keeps beside it."""
    return Footprint((at_the_peak(0, setup, here, list(passing.values())),), memory)
