"""What lies behind measured efficiency at two sizes: "from 8 to 32 GPUs it fell from 90 % to 60 %".

Efficiency e of a step of c seconds of computing has c (1/e - 1) seconds that nothing hides. Of two sizes the smaller
one says what is lost at any size, and the larger one what is added by it: the share of the network that the model of
time needs to lose as much is found by bisection, and with it everything else can be asked.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.rates import USUAL, Conditions
from holdfast.plan.remedies import Remedy, remedies
from holdfast.plan.scaling import Growth, reason, resized
from holdfast.plan.setup import Setup
from holdfast.plan.time import Step, step

#: The least share of the network's rate that is believed.
_LEAST_SHARE = 1e-3
#: Efficiencies so near to each other are alike.
_NEAR = 0.01
_ROUNDS = 60


class Measured(msgspec.Struct, frozen=True):
    """Efficiency, more than 0 and at most 1, that somebody measured with so many GPUs."""

    gpus: int
    efficiency: float


class Shortfall(msgspec.Struct, frozen=True, kw_only=True):
    """What the two sizes say.

    ``exposed``: seconds that nothing hides for each second of computing, at either size. ``expected``: efficiency at
    the larger size, by that at the smaller one, if the network were as tabled; ``outside_share``: of its rate what is
    left, None where no share explains it. ``bandwidth``: that in bytes a second and GPU. ``conditions`` and ``step``
    are those of the larger size with it.
    """

    exposed: tuple[float, float]
    expected: float
    outside_share: float | None
    bandwidth: float | None
    reason: str
    conditions: Conditions
    step: Step
    remedies: tuple[Remedy, ...]


def shortfall(
    model: Transformer, setup: Setup, cluster: Cluster, measured: tuple[Measured, Measured],
    growth: Growth = Growth.WEAK, conditions: Conditions | None = None,
) -> Shortfall:  # fmt: skip
    """Why efficiency fell between two sizes of ``cluster``, and what each remedy would give at the larger one.

    Raises:
        BadValue: the sizes are alike or cannot be had, or an efficiency is none.
    """
    small, large = sorted(measured, key=lambda each: each.gpus)
    for each in measured:
        if not 0 < each.efficiency <= 1:
            raise BadValue(f"an efficiency of {each.efficiency:g}", why="it has to be more than 0 and at most 1")
    if small.gpus == large.gpus:
        raise BadValue("the two measurements", why=f"both are of {small.gpus} GPUs")
    given = conditions or USUAL
    places = [(cluster.resized(each.gpus), resized(setup, each.gpus, growth)) for each in (small, large)]

    def ratio(share: float) -> float:
        """Of throughput per GPU at the larger size to that at the smaller one."""
        under = msgspec.structs.replace(given, outside_share=share)
        rates = [step(model, each, there, under).tokens_per_s_per_gpu for there, each in places]
        return rates[1] / rates[0]

    wanted, tabled = large.efficiency / small.efficiency, ratio(given.outside_share)
    share = _share(ratio, wanted, tabled, given.outside_share)
    under = given if share is None else msgspec.structs.replace(given, outside_share=share)
    steps = [step(model, each, there, under) for there, each in places]
    why = reason(model, (*places[0], steps[0]), (*places[1], steps[1]), under)
    return Shortfall(
        exposed=(1 / small.efficiency - 1, 1 / large.efficiency - 1), expected=small.efficiency * tabled,
        outside_share=share, bandwidth=None if share is None else share * cluster.links.outside,
        reason=why, conditions=under, step=steps[1], remedies=remedies(model, places[1][1], places[1][0], under),
    )  # fmt: skip


def _share(ratio: Callable[[float], float], wanted: float, tabled: float, most: float) -> float | None:
    """The share of the network with which so much is lost; None where even the least loses less, or all of it more."""
    if abs(wanted - tabled) <= _NEAR:
        return most
    low, high = _LEAST_SHARE, most
    if not ratio(low) <= wanted <= tabled:
        return None
    for _ in range(_ROUNDS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if ratio(middle) < wanted else (low, middle)
    return high
