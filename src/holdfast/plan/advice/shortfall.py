"""Explain efficiency measured at two sizes: "from 8 to 32 GPUs it fell from 90 % to 60 %".

A step of c seconds of compute at efficiency e has c (1/e - 1) exposed seconds. The smaller size
shows what is lost at any size, the larger one what scaling adds. Bisection finds the share of the
network's rate with which the time model loses as much; all else follows from the model with that
share.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.advice.remedies import SpeedRemedy, find_speed_remedies
from holdfast.plan.advice.scaling import ScalingMode, explain_slowdown, resize_setup
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.setup import TrainingSetup
from holdfast.plan.step_time.estimate import StepTime, estimate_step_time
from holdfast.plan.step_time.rates import DEFAULT_CONDITIONS, Conditions

#: Least plausible share of the network's rate.
_MIN_SHARE = 1e-3
#: Efficiencies this close are considered equal.
_TOLERANCE = 0.01
_BISECTION_STEPS = 60


class MeasuredThroughput(msgspec.Struct, frozen=True):
    """Efficiency measured with this many GPUs, above 0 and at most 1."""

    gpus: int
    efficiency: float


class Shortfall(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of two measurements.

    ``exposed``: exposed seconds per second of compute at either size. ``expected``: efficiency at
    the larger size with the network's nominal rate, given that at the smaller one;
    ``outside_share``: the effective share of that rate, None if no share explains it.
    ``bandwidth``: the same in bytes per second and GPU. ``conditions`` and ``step`` are those of
    the larger size with it.
    """

    exposed: tuple[float, float]
    expected: float
    outside_share: float | None
    bandwidth: float | None
    reason: str
    conditions: Conditions
    step: StepTime
    remedies: tuple[SpeedRemedy, ...]


def explain_shortfall(
    model: Transformer,
    setup: TrainingSetup,
    cluster: Cluster,
    measured: tuple[MeasuredThroughput, MeasuredThroughput],
    mode: ScalingMode = ScalingMode.WEAK,
    conditions: Conditions | None = None,
) -> Shortfall:
    """Explain why efficiency fell between two sizes, and what each remedy gives at the larger one.

    Raises:
        InvalidValue: equal or impossible sizes, or an invalid efficiency.
    """
    small, large = sorted(measured, key=lambda point: point.gpus)
    for point in measured:
        if not 0 < point.efficiency <= 1:
            raise InvalidValue(
                f"an efficiency of {point.efficiency:g}", why="must be above 0 and at most 1"
            )
    if small.gpus == large.gpus:
        raise InvalidValue("the two measurements", why=f"both are for {small.gpus} GPUs")
    base_conditions = conditions or DEFAULT_CONDITIONS
    sizes = [
        (cluster.resized(point.gpus), resize_setup(setup, point.gpus, mode))
        for point in (small, large)
    ]

    def ratio(share: float) -> float:
        """Return the throughput per GPU at the larger size relative to the smaller one."""
        effective = msgspec.structs.replace(base_conditions, outside_share=share)
        rates = [
            estimate_step_time(model, point, sized_cluster, effective).tokens_per_s_per_gpu
            for sized_cluster, point in sizes
        ]
        return rates[1] / rates[0]

    measured_ratio, nominal_ratio = (
        large.efficiency / small.efficiency,
        ratio(base_conditions.outside_share),
    )
    share = _find_network_share(ratio, measured_ratio, nominal_ratio, base_conditions.outside_share)
    effective = (
        base_conditions
        if share is None
        else msgspec.structs.replace(base_conditions, outside_share=share)
    )
    steps = [
        estimate_step_time(model, point, sized_cluster, effective) for sized_cluster, point in sizes
    ]
    explanation = explain_slowdown(model, (*sizes[0], steps[0]), (*sizes[1], steps[1]), effective)
    return Shortfall(
        exposed=(1 / small.efficiency - 1, 1 / large.efficiency - 1),
        expected=small.efficiency * nominal_ratio,
        outside_share=share,
        bandwidth=None if share is None else share * cluster.links.inter_node,
        reason=explanation,
        conditions=effective,
        step=steps[1],
        remedies=find_speed_remedies(model, sizes[1][1], sizes[1][0], effective),
    )


def _find_network_share(
    ratio: Callable[[float], float], measured_ratio: float, nominal_ratio: float, max_share: float
) -> float | None:
    """Return the share of the network's rate that explains the loss, or None."""
    if abs(measured_ratio - nominal_ratio) <= _TOLERANCE:
        return max_share
    low, high = _MIN_SHARE, max_share
    if not ratio(low) <= measured_ratio <= nominal_ratio:
        return None
    for _ in range(_BISECTION_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if ratio(middle) < measured_ratio else (low, middle)
    return high
