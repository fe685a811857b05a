"""Compute time of a rank: forward, backward and recomputation of a micro-batch, optimizer step."""

from __future__ import annotations

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.gpus import Gpu, GpuDtype
from holdfast.plan.models import Transformer
from holdfast.plan.setup import (
    ActivationCheckpointing,
    LossKernel,
    OffloadTarget,
    OptimizerKind,
    ShardingStrategy,
    TrainingSetup,
)
from holdfast.plan.step_time.rates import Conditions, Rates, attention_efficiency
from holdfast.plan.step_time.traffic import (
    GATHERING_STRATEGIES,
    layer_counts,
    max_stage_layers,
    params_per_rank,
)


class MicroBatchTime(msgspec.Struct, frozen=True, gc=False):
    """Seconds of a micro-batch: forward, backward and recomputation.

    ``recompute_share``: the recomputed share of forward's operations.
    """

    forward: float
    backward: float
    recompute: float
    recompute_share: float


def matmul_dtype(setup: TrainingSetup, gpu: Gpu, conditions: Conditions) -> GpuDtype:
    """Return the dtype of the layers' matrix products.

    Raises:
        InvalidValue: the GPU has no hardware support for it.
    """
    if conditions.float8:
        dtype = GpuDtype.FP8
    elif setup.precision.compute >= 4:
        dtype = GpuDtype.TF32 if gpu.tf32 else GpuDtype.FP32
    else:
        dtype = gpu.half_dtype
    if not gpu.peak(dtype):
        raise InvalidValue(f"{dtype} on {gpu.name}", why="no hardware support")
    return dtype


def micro_batch_time(
    model: Transformer, setup: TrainingSetup, gpu: Gpu, conditions: Conditions
) -> MicroBatchTime:
    """Return the time of a micro-batch on the fullest stage."""
    rates, tensor = conditions.rates, setup.tensor
    tokens = setup.micro_batch * setup.sequence / setup.context
    dtype = matmul_dtype(setup, gpu, conditions)
    half_dtype = gpu.half_dtype if setup.precision.compute < 4 else dtype
    share = rates.matrix * gpu.matrix_share
    rate = gpu.peak(dtype) * share * (rates.float8 if conditions.float8 else 1.0)
    small = rates.small / gpu.bandwidth * (1 / tokens + 1 / model.hidden)
    memory_rate = gpu.bandwidth * rates.memory
    inner_small = rates.small / gpu.bandwidth * tensor / model.ffn
    matrices = 2 * tokens * layer_counts(model).active / tensor * (1 / rate + small + inner_small)
    attention_s = _attention_time(model, setup, gpu, conditions, tokens, half_dtype)
    moved_s = _bytes_moved(model, setup, rates, tokens) / memory_rate
    host_s = rates.layer_s * (rates.compiled if setup.compiled else 1.0)
    forward = max(matrices + attention_s + moved_s, host_s)
    backward = max(2 * matrices + 2.5 * attention_s + 2 * moved_s, 2 * host_s)
    recompute, recompute_share = _recompute_time(setup, matrices, attention_s, moved_s, rates)
    head = (
        2
        * tokens
        * model.vocab
        * model.hidden
        / tensor
        * (1 / (gpu.peak(half_dtype) * share) + small)
    )
    loss_share = rates.compiled if setup.compiled or setup.loss is LossKernel.COMPILED else 1.0
    loss = rates.logit_bytes * loss_share * tokens * model.vocab / tensor / memory_rate
    layers = max_stage_layers(model, setup)
    if setup.pipeline == 1:
        return MicroBatchTime(
            layers * forward + head + loss / 3,
            layers * backward + 2 * head + loss * 2 / 3,
            layers * recompute,
            recompute_share,
        )
    # the last stage has the head, and then fewer layers
    layer = forward + backward + recompute
    with_head = model.layers / setup.pipeline * layer + (3 * head + loss) / setup.pipeline
    scale = layers * max(1.0, with_head / (layers * layer))
    return MicroBatchTime(forward * scale, backward * scale, recompute * scale, recompute_share)


def _attention_time(
    model: Transformer,
    setup: TrainingSetup,
    gpu: Gpu,
    conditions: Conditions,
    tokens: float,
    half_dtype: GpuDtype,
) -> float:
    """Return the forward time of a layer's scores, softmax and values."""
    rates, heads = conditions.rates, model.heads / setup.tensor
    flops = 4 * tokens * setup.sequence * heads * model.head_width
    if setup.flash:
        if not conditions.balanced:  # the last rank has all blocks but one unmasked
            flops *= (2 * setup.context - 1) / setup.context
        return (
            flops
            / 2
            / (
                gpu.peak(half_dtype)
                * gpu.matrix_share
                * attention_efficiency(conditions.kernel, gpu.capability[0])
            )
        )
    products = flops / (gpu.peak(half_dtype) * gpu.matrix_share * 0.5)
    return products + tokens * setup.sequence * heads * rates.score_bytes / (
        gpu.bandwidth * rates.memory
    )


def _bytes_moved(model: Transformer, setup: TrainingSetup, rates: Rates, tokens: float) -> float:
    """Return the bytes that a layer's norms, residuals, activations and casts move in forward."""
    split = setup.tensor if setup.sequence_parallel else 1
    inner = (
        rates.inner_passes * model.ffn * model.active * (1.5 if model.gated else 1.0) / setup.tensor
    )
    if model.experts > 1:  # copied per expert, sorted by expert, sorted back, and summed
        inner += (6 * model.active + 2) * model.hidden / split
    if setup.compiled:
        return 2 * tokens * rates.compiled * (rates.hidden_passes * model.hidden / split + inner)
    passes = rates.hidden_passes
    if not (setup.fused_norms or model.norm_bias):
        passes += rates.norm_passes * model.norms_a_layer
    rotary = 0.0 if model.positions else rates.rotary_passes * model.hidden / setup.tensor
    return 2 * tokens * (passes * model.hidden / split + rotary + inner)


def _recompute_time(
    setup: TrainingSetup, matrices: float, attention_s: float, moved_s: float, rates: Rates
) -> tuple[float, float]:
    """Return the seconds of recomputing a layer, and the share of forward's operations."""
    if setup.recompute is ActivationCheckpointing.FULL:
        return rates.again * (matrices + attention_s + moved_s), 1.0
    if setup.recompute is ActivationCheckpointing.SECOND_LAYER:
        return rates.again * (matrices + attention_s + moved_s) / 2, 0.5
    if setup.recompute is ActivationCheckpointing.OPERATIONS:
        return matrices / 2 + moved_s, 0.5
    if setup.recompute is ActivationCheckpointing.SELECTIVE:
        return attention_s, 0.0
    return 0.0, 0.0


#: Host memory bandwidth in bytes per second for one GPU's share of the cores.
_HOST_BANDWIDTH = 20e9
#: Numbers per weight that an optimizer stores.
_OPTIMIZER_STATES = {
    OptimizerKind.SGD: 0.0,
    OptimizerKind.MOMENTUM: 1.0,
    OptimizerKind.ADAFACTOR: 0.1,
    OptimizerKind.MUON: 1.0,
}


def optimizer_step_time(
    model: Transformer, setup: TrainingSetup, gpu: Gpu, conditions: Conditions
) -> float:
    """Return the seconds of the optimizer step: all states are read and written."""
    params, precision = _optimized_params(model, setup), setup.precision
    state = 1.0 if setup.optimizer is OptimizerKind.ADAMW_8BIT else precision.state
    states = _OPTIMIZER_STATES.get(setup.optimizer, 2.0) * state
    nbytes = params * (
        precision.gradient + 2 * precision.master + 2 * states + 2 * precision.compute
    )
    if setup.offload is OffloadTarget.NONE:
        return conditions.rates.optimizer * nbytes / (gpu.bandwidth * conditions.rates.memory)
    return nbytes / _HOST_BANDWIDTH + host_transfer_time(model, setup, gpu)


def host_transfer_time(model: Transformer, setup: TrainingSetup, gpu: Gpu) -> float:
    """Return the seconds that offloaded states take over PCIe in one step, none overlapped.

    Gradients go to the host and weights back once per step; offloaded parameters also go to the GPU
    for each micro-batch, twice if they are gathered again for backward. FSDP copies its fp32
    weights and casts them there (torch/distributed/fsdp/_fully_shard/_fsdp_param.py,
    ``all_gather_inputs``).
    """
    if setup.offload is OffloadTarget.NONE:
        return 0.0
    precision = setup.precision
    nbytes = float(precision.gradient + precision.compute)
    if setup.offload is OffloadTarget.PARAMETERS:
        fsdp = setup.strategy is not ShardingStrategy.ZERO3
        stored = precision.master if fsdp and precision.master else precision.compute
        nbytes = precision.gradient + stored * setup.accumulation * (1 + setup.reshard)
    return _optimized_params(model, setup) * nbytes / gpu.pcie


def _optimized_params(model: Transformer, setup: TrainingSetup) -> float:
    """Return the weights of the fullest stage whose optimizer states a rank has."""
    layer, ends = params_per_rank(model, setup)
    return (layer * max_stage_layers(model, setup) + ends) / _optimizer_ranks(setup)


def _optimizer_ranks(setup: TrainingSetup) -> int:
    """Return the ranks that share the optimizer states."""
    if setup.strategy is ShardingStrategy.DDP:
        return 1
    return setup.shards if setup.strategy in GATHERING_STRATEGIES else setup.data * setup.context
