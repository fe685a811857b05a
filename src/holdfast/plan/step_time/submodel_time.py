"""Step time of a model of several submodels, some frozen or with adapters.

Frozen parts need no weight gradients, a third of the products; if nothing before them is trained
either, no backward at all. Forward is unchanged, and FSDP gathers frozen weights, too. An adapter's
products are small, but its input is read once more, and its output, as wide as that of the adapted
matrix, is written, read again and added.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.setup import ActivationCheckpointing, TrainingSetup
from holdfast.plan.step_time.estimate import (
    StepCosts,
    StepTime,
    communication_time,
    total_step_time,
)
from holdfast.plan.step_time.rates import DEFAULT_CONDITIONS, Conditions
from holdfast.plan.step_time.traffic import CollectiveCalls, TrafficKind, list_calls
from holdfast.plan.step_time.work import MicroBatchTime, micro_batch_time, optimizer_step_time
from holdfast.plan.submodels import Submodel, pipeline_unsupported


def estimate_submodels_step_time(
    submodels: Sequence[Submodel],
    setup: TrainingSetup,
    cluster: Cluster,
    conditions: Conditions | None = None,
) -> StepTime:
    """Estimate the time of an optimizer step; tokens are the last submodel's.

    Raises:
        InvalidValue: no submodels, a pipeline, another number of GPUs, or an unsupported dtype.
    """
    conditions = conditions or DEFAULT_CONDITIONS
    if not submodels:
        raise InvalidValue("a model without submodels", why="at least one is required")
    if setup.pipeline > 1:
        raise pipeline_unsupported(setup)
    if setup.world_size != cluster.gpus:
        raise InvalidValue(
            f"the setup for {cluster}", why=f"it needs {setup.world_size} GPUs, not {cluster.gpus}"
        )
    costs = StepCosts(
        compute=0.0,
        exposed={},
        hidden={},
        bubble=0.0,
        optimizer=0.0,
        model_flops=0.0,
        executed_flops=0.0,
    )
    has_backward = False
    for submodel in submodels:
        submodel_setup = msgspec.structs.replace(setup, sequence=submodel.tokens or setup.sequence)
        has_backward = has_backward or submodel.has_gradients
        full_time = micro_batch_time(submodel.model, submodel_setup, cluster.gpu, conditions)
        time = _add_adapter_time(
            submodel,
            _submodel_time(submodel, full_time, has_backward=has_backward),
            submodel_setup,
            cluster,
            conditions,
        )
        costs.compute += (time.forward + time.backward + time.recompute) * setup.accumulation
        calls = _submodel_calls(
            submodel,
            list_calls(submodel.model, submodel_setup, conditions.bucket),
            has_backward=has_backward,
        )
        for sums, added in zip(
            (costs.exposed, costs.hidden),
            communication_time(
                calls, submodel.model.layers, submodel_setup, cluster, conditions, time
            ),
            strict=True,
        ):
            for kind, seconds in added.items():
                sums[kind] = sums.get(kind, 0.0) + seconds
        costs.optimizer += optimizer_step_time(
            submodel.model, submodel_setup, cluster.gpu, conditions
        ) * _trained_share(submodel)
        forward_flops = (
            submodel.model.flops_per_token(submodel_setup.sequence, causal=setup.flash)
            * submodel_setup.tokens_per_step
            / 3
        )
        costs.model_flops += forward_flops * (1 + has_backward + submodel.trained)
        costs.executed_flops += forward_flops * (
            1 + has_backward + submodel.trained + has_backward * time.recompute_share
        )
        has_backward = has_backward or submodel.projector > 0
    return total_step_time(costs, setup, cluster, conditions)


def _submodel_time(
    submodel: Submodel, full_time: MicroBatchTime, *, has_backward: bool
) -> MicroBatchTime:
    """Return the compute time of a submodel, without the backward or weight gradients it skips.

    ``has_backward``: gradients pass through it.
    """
    if not has_backward:
        return MicroBatchTime(full_time.forward, 0.0, 0.0, 0.0)
    return (
        full_time
        if submodel.trained
        else MicroBatchTime(
            full_time.forward,
            full_time.backward / 2,
            full_time.recompute,
            full_time.recompute_share,
        )
    )


def _add_adapter_time(
    submodel: Submodel,
    time: MicroBatchTime,
    setup: TrainingSetup,
    cluster: Cluster,
    conditions: Conditions,
) -> MicroBatchTime:
    """Add the adapters' time: passes over memory, 2 bytes per number, twice as many in backward."""
    if submodel.lora is None:
        return time
    numbers_per_token = (
        sum(
            input_width + 4 * output_width
            for input_width, output_width in submodel.lora.matrix_shapes(submodel.model)
        )
        / setup.tensor
    )
    tokens = setup.micro_batch * setup.sequence / setup.context
    seconds = (
        submodel.model.layers
        * tokens
        * 2
        * numbers_per_token
        / (cluster.gpu.bandwidth * conditions.rates.memory)
    )
    recompute = seconds if setup.recompute is ActivationCheckpointing.FULL else 0.0
    return MicroBatchTime(
        time.forward + seconds,
        time.backward + 2 * seconds,
        time.recompute + recompute,
        time.recompute_share,
    )


def _submodel_calls(
    submodel: Submodel, calls: Sequence[CollectiveCalls], *, has_backward: bool
) -> list[CollectiveCalls]:
    """Return its collective calls; gradients of adapters are too few to count."""
    used_calls = [
        call
        for call in calls
        if submodel.trained or call.kind not in (TrafficKind.REDUCE, TrafficKind.REPLICAS)
    ]
    return (
        used_calls
        if has_backward
        else [msgspec.structs.replace(call, backward=0.0) for call in used_calls]
    )


def _trained_share(submodel: Submodel) -> float:
    """Return the share of its weights with optimizer states."""
    if submodel.trained:
        return 1.0
    return (
        submodel.lora.params(submodel.model) * submodel.model.layers / submodel.model.params
        if submodel.lora
        else 0.0
    )
