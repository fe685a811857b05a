"""Temporary memory at the peaks of a step: logits, gathered parameters, gradient buckets.

A step has four moments that can be its peak: the loss (all activations and copies of the logits),
the start of backward (all activations, one recomputed layer, its gathered parameters), its end (all
gradients), and the optimizer step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from holdfast.plan.memory.activations import LayerActivations, local_tokens
from holdfast.plan.memory.states import ModelStates, StageParameters
from holdfast.plan.models import Transformer
from holdfast.plan.setup import LossKernel, OffloadTarget, ShardingStrategy, TrainingSetup

#: Elements: DeepSpeed's defaults of reduce_bucket_size, stage3_max_live_parameters,
#: stage3_prefetch_bucket_size and sub_group_size (deepspeed/runtime/zero/config.py).
ZERO_BUCKET = 500_000_000
ZERO_MAX_LIVE = 1_000_000_000
ZERO_PREFETCH = 50_000_000
ZERO_SUB_GROUP = 1_000_000_000
#: Number of chunks of a chunked loss.
LOSS_CHUNKS = 8
_FSDP = (ShardingStrategy.FSDP1, ShardingStrategy.FSDP2)


class PeakMoment(StrEnum):
    """Moments of a step that can be its peak."""

    LOSS = "loss"
    BACKWARD = "start of backward"
    END = "end of backward"
    STEP = "optimizer step"


class TransientMemory(NamedTuple):
    """Bytes at a moment beside the model states; ``stranded``: freed, but in unusable blocks."""

    moment: PeakMoment
    gradients: float = 0.0
    activations: float = 0.0
    temporary: float = 0.0
    logits: float = 0.0
    gathered: float = 0.0
    buffers: float = 0.0
    stranded: float = 0.0

    @property
    def total(self) -> float:
        """Return the bytes of tensors."""
        return (
            self.gradients
            + self.activations
            + self.temporary
            + self.logits
            + self.gathered
            + self.buffers
        )


def logits_bytes(model: Transformer, setup: TrainingSetup) -> tuple[float, float]:
    """Return the bytes of all copies of the logits at the loss, and of freed but unusable blocks.

    In fp32 op by op: log-probabilities, the gradient of the loss and that of the softmax
    (aten/src/ATen/native/LossNLL.cpp, SoftMax.cpp), after the cast logits (freed). With a
    vocabulary sharded by DTensor, four such copies (torch/distributed/tensor/parallel/loss.py);
    Megatron's loss works in place (megatron/core/tensor_parallel/cross_entropy.py). A compiler
    keeps the logits and their gradient, as the min-cut partitioner saves them.
    """
    dtype_bytes = setup.precision.compute
    count = local_tokens(setup) * model.vocab / setup.tensor
    match setup.loss:
        case LossKernel.FUSED:
            return count * dtype_bytes, 0.0
        case LossKernel.COMPILED:
            return 2 * count * dtype_bytes, 0.0
    copies = 3 * 4
    stranded = dtype_bytes
    if setup.tensor > 1:
        copies, stranded = (
            (4 * 4, dtype_bytes) if setup.strategy in _FSDP else (dtype_bytes + 2 * 4, 0)
        )
    chunks = LOSS_CHUNKS if setup.loss is LossKernel.CHUNKED else 1
    return count * copies / chunks, count * stranded / chunks


def final_norm_bytes(model: Transformer, setup: TrainingSetup) -> float:
    """Return what the last norm saves, and the head's input if DTensor gathers it."""
    width = local_tokens(setup) * model.hidden
    dtype_bytes = setup.precision.compute
    sequence_split = setup.tensor if setup.sequence_parallel else 1
    fused = setup.fused_norms or model.norm_bias or dtype_bytes == 4
    saved = (2 * dtype_bytes if fused else 8 + dtype_bytes) * width / sequence_split
    gathers = setup.tensor > 1 and setup.sequence_parallel and setup.strategy in _FSDP
    return saved + (dtype_bytes * width * (1 - 1 / sequence_split) if gathers else 0.0)


def gathered_bytes(stage: StageParameters, setup: TrainingSetup, *, at_loss: bool) -> float:
    """Return the bytes of temporarily gathered parameters.

    FSDP: the outermost module's (the embedding's) stay after forward; beside them the head's at the
    loss, two layers' in backward, one of them prefetched
    (torch/distributed/fsdp/_fully_shard/_fsdp_state.py). ZeRO-3: up to
    ``stage3_max_live_parameters`` and the prefetched ones.
    """
    dtype_bytes = setup.precision.compute
    if setup.strategy is ShardingStrategy.ZERO3:
        max_live = max(ZERO_MAX_LIVE, 2 * stage.layer, stage.embedding) + ZERO_PREFETCH
        return dtype_bytes * min(stage.total, max_live if setup.reshard else stage.total)
    if setup.strategy not in _FSDP or (
        setup.shards == 1 and setup.offload is OffloadTarget.NONE and not setup.precision.master
    ):
        return 0.0
    if not setup.reshard:
        return dtype_bytes * stage.total
    layer_params = min(2, stage.layers) * stage.layer
    return dtype_bytes * min(
        stage.total, stage.embedding + (max(stage.head, layer_params) if at_loss else layer_params)
    )


def bucket_bytes(stage: StageParameters, setup: TrainingSetup) -> float:
    """Return the bytes that gradient reduction needs beside the gradients during backward.

    FSDP2: a layer's unsharded gradients and the input of its reduce-scatter
    (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py); FSDP1 reduces its flat gradient in
    place. ZeRO: the bucket, twice, as one is filled while the previous one is reduced. DDP: buckets
    are a copy of all gradients unless these are views of them
    (torch/csrc/distributed/c10d/reducer.cpp).
    """
    precision = setup.precision
    trained = stage.trained_dense + stage.trained_experts
    share = trained / stage.total if stage.total else 0.0
    unit = max(stage.layer if stage.layers else 0.0, stage.embedding, stage.head) * share
    match setup.strategy:
        case ShardingStrategy.DDP:
            return (
                0.0
                if setup.bucket_views or setup.data * setup.context == 1
                else trained * precision.gradient
            )
        case ShardingStrategy.FSDP1:
            return unit * max(precision.reduced, precision.compute)
        case ShardingStrategy.FSDP2:
            return unit * (precision.compute + precision.reduced)
    return 2 * min(trained, ZERO_BUCKET) * precision.compute


def unsharded_gradient_bytes(own: StageParameters, setup: TrainingSetup) -> float:
    """Return the unsharded gradients that FSDP keeps in a pipeline over all micro-batches.

    Only the last micro-batch's backward reduces them (torch/distributed/pipelining/stage.py,
    ``backward_maybe_with_nosync``); until then they are in the reduce dtype.
    """
    if setup.strategy in _FSDP and setup.pipeline > 1 and setup.accumulation > 1:
        return (own.trained_dense + own.trained_experts) * setup.precision.reduced
    return 0.0


def transient_memory(
    model: Transformer,
    setup: TrainingSetup,
    stage: StageParameters,
    states: ModelStates,
    activations: LayerActivations,
    in_flight: float,
    *,
    is_last: bool,
) -> tuple[TransientMemory, ...]:
    """Return the four moments of a stage with activations of ``in_flight`` micro-batches."""
    saved, backward_extra = (
        in_flight * activations.total_saved(stage.layers),
        activations.backward_extra(stage.layers),
    )
    unsharded = unsharded_gradient_bytes(stage, setup)
    resident_gradients = (
        states.gradients if setup.accumulation > 1 or _uses_bucket_views(setup) else 0.0
    )
    stranded_gradients = (
        states.gradients - resident_gradients
        if _has_small_gradient_shards(model, setup, activations)
        else 0.0
    )
    bucket_size = bucket_bytes(stage, setup)
    persistent_buckets = bucket_size if setup.strategy not in _FSDP else 0.0
    pipeline_buffers = 2 * activations.layer_input if setup.pipeline > 1 else 0.0
    gathered = gathered_bytes(stage, setup, at_loss=False)
    moments = [
        TransientMemory(
            PeakMoment.BACKWARD,
            resident_gradients + unsharded,
            saved,
            backward_extra,
            0.0,
            gathered,
            bucket_size + pipeline_buffers,
            stranded_gradients,
        ),
        TransientMemory(
            PeakMoment.END,
            states.gradients + unsharded,
            activations.saved,
            activations.backward_peak - activations.saved,
            0.0,
            gathered,
            bucket_size + pipeline_buffers,
        ),
        TransientMemory(
            PeakMoment.STEP,
            states.gradients,
            temporary=_optimizer_step_bytes(states, setup),
            buffers=persistent_buckets,
        ),
    ]
    if is_last:
        logits, freed_logits = logits_bytes(model, setup)
        gathered_at_loss = gathered_bytes(stage, setup, at_loss=True)
        saved_at_loss = saved + final_norm_bytes(model, setup)
        moments.append(
            TransientMemory(
                PeakMoment.LOSS,
                resident_gradients + unsharded,
                saved_at_loss,
                0.0,
                logits,
                gathered_at_loss,
                persistent_buckets + pipeline_buffers,
                stranded_gradients + freed_logits,
            )
        )
    return tuple(moments)


def _uses_bucket_views(setup: TrainingSetup) -> bool:
    """Return whether gradients are views of DDP's buckets, which exist from the start.

    torch/csrc/distributed/c10d/reducer.cpp.
    """
    return (
        setup.strategy is ShardingStrategy.DDP
        and setup.bucket_views
        and setup.data * setup.context > 1
    )


def _has_small_gradient_shards(
    model: Transformer, setup: TrainingSetup, layer: LayerActivations
) -> bool:
    """Return whether gradient shards are too small for activations to reuse their blocks."""
    if setup.shards == 1 or setup.strategy in (ShardingStrategy.DDP, ShardingStrategy.ZERO1):
        return False
    matrix = model.hidden * model.ffn / (setup.tensor * setup.shards) * setup.precision.gradient
    return matrix < layer.layer_input


def _optimizer_step_bytes(states: ModelStates, setup: TrainingSetup) -> float:
    """Return the temporaries of the optimizer step.

    ZeRO copies its share of gradients to fp32, ZeRO-3 a part of it at a time; foreach kernels
    allocate one number per weight (torch/optim/adamw.py).
    """
    precision = setup.precision
    if setup.strategy is ShardingStrategy.ZERO3:
        return min(states.master, ZERO_SUB_GROUP * precision.master)
    if setup.strategy in (ShardingStrategy.ZERO1, ShardingStrategy.ZERO2):
        return states.master
    if setup.fused_optimizer or not precision.gradient:
        return 0.0
    return states.gradients / precision.gradient * precision.state
