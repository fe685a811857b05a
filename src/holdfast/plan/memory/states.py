"""Model states of a rank in bytes: parameters, fp32 copies, gradients and optimizer states.

Sharding among n data-parallel ranks: S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward
Training Trillion Parameter Models" (2019), §3 and figure 1. FSDP2 stores only the fp32 copy and
casts as it gathers (torch/distributed/fsdp/_fully_shard/_fsdp_param.py). Tensor parallelism divides
all but the norms, pipelines divide by layers (D. Narayanan et al., SC21, §2), expert parallelism
divides experts. Shares are averages: padding is not counted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from holdfast.plan.models import Transformer
from holdfast.plan.setup import (
    OffloadTarget,
    OptimizerKind,
    Precision,
    ShardingStrategy,
    TrainingSetup,
)

#: Numbers per fp32 scale: bitsandbytes, optim/optimizer.py, ``optimizer_update_8bit_blockwise``.
_QUANTIZATION_BLOCK = 256


class ParameterCounts(NamedTuple):
    """Parameters by how they are divided.

    Per layer: ``matrices`` with biases, ``experts``, ``norms``.

    ``factored_numbers``: rows plus columns of a layer's matrices. ``trained``: the share with
    gradients; ``adapters``: additional trained parameters per layer; ``frozen_bytes``: bytes per
    frozen weight of layer matrices (0: the compute dtype, as embedding and head in any case);
    ``extra``: other weights, always trained, on the first stage and on each tensor-parallel rank.
    """

    layers: int
    matrices: int
    experts: int
    norms: int
    factored_numbers: int
    embedding: int
    head: int
    last_norm: int
    tied: bool
    trained: float = 1.0
    adapters: int = 0
    frozen_bytes: float = 0.0
    extra: int = 0

    @property
    def layer(self) -> int:
        """Return the parameters of a layer without adapters."""
        return self.matrices + self.experts + self.norms


@lru_cache(maxsize=256)
def count_parameters(model: Transformer) -> ParameterCounts:
    """Count the parameters of a model, cached."""
    norms = model.norms_a_layer * model.norm_params
    inner = 3 if model.gated else 2
    experts = model.feed_forward_params if model.experts > 1 else 0
    queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    attention = 4 * model.hidden + 2 * (queries + keys)
    return ParameterCounts(
        layers=model.layers,
        matrices=model.layer_params - norms - experts,
        experts=experts,
        norms=norms,
        factored_numbers=attention + inner * (model.hidden + model.ffn) * model.experts,
        embedding=model.embedding_params,
        head=model.vocab * model.hidden,
        last_norm=model.norm_params,
        tied=model.tied,
    )


def layers_on_stage(layers: int, pipeline: int, stage: int) -> int:
    """Return the layers of a pipeline rank, over all its chunks.

    If layers cannot be divided evenly, embedding and head count as one each, as in torchtitan
    (torchtitan/distributed/pipeline_parallel.py).
    """
    if not layers % pipeline:
        return layers // pipeline
    per_stage, remainder = divmod(layers + 2, pipeline)
    return per_stage + (stage < remainder) - (stage == 0) - (stage == pipeline - 1)


class StageParameters(NamedTuple):
    """Parameters of one pipeline stage and tensor-parallel rank, before data-parallel sharding."""

    layers: int
    #: Per layer, without and with experts.
    dense_layer: float
    layer: float
    embedding: float
    head: float
    dense: float
    experts: float
    trained_dense: float
    trained_experts: float
    factored_numbers: float
    frozen_bytes: float

    @property
    def total(self) -> float:
        """Return all parameters."""
        return self.dense + self.experts


def stage_parameters(counts: ParameterCounts, setup: TrainingSetup, stage: int) -> StageParameters:
    """Return the parameters of this stage; of experts, those of one expert-parallel rank."""
    tensor, last = setup.tensor, setup.pipeline - 1
    layers = layers_on_stage(counts.layers, setup.pipeline, stage)
    dense_layer = counts.matrices / tensor + counts.norms
    adapters = counts.adapters / tensor
    experts_layer = counts.experts / (tensor * setup.expert)
    embedding = counts.embedding / tensor if stage == 0 else 0.0
    # A tied head is the embedding, but on another stage it is a copy of it.
    head = counts.head / tensor if stage == last and (not counts.tied or last) else 0.0
    norm = counts.last_norm if stage == last else 0
    extra = counts.extra if stage == 0 else 0
    frozen = layers * dense_layer + embedding + head + norm
    return StageParameters(
        layers=layers,
        dense_layer=dense_layer + adapters,
        layer=dense_layer + adapters + experts_layer,
        embedding=embedding,
        head=head,
        dense=frozen + layers * adapters + extra,
        experts=layers * experts_layer,
        trained_dense=frozen * counts.trained + layers * adapters + extra,
        trained_experts=layers * experts_layer * counts.trained,
        factored_numbers=layers * counts.factored_numbers / tensor * counts.trained,
        frozen_bytes=counts.frozen_bytes,
    )


class ModelStates(NamedTuple):
    """Bytes of one rank. ``host``: bytes in host memory for this rank."""

    parameters: float
    master: float
    gradients: float
    optimizer: float
    host: float

    @property
    def total(self) -> float:
        """Return the bytes on the GPU."""
        return self.parameters + self.master + self.gradients + self.optimizer


def model_states(stage: StageParameters, setup: TrainingSetup) -> ModelStates:
    """Return the model states of one rank.

    FSDP's fp32 copy counts as parameters: there is no other copy. With the optimizer on the host,
    gradients are moved there as they are computed (J. Ren et al., "ZeRO-Offload", 2021, §3); FSDP
    offloads all or nothing (``CPUOffloadPolicy``).
    """
    precision, strategy = setup.precision, setup.strategy
    dense_ranks = setup.shards
    expert_ranks = max(1, dense_ranks // setup.expert)
    trained = stage.trained_dense / dense_ranks + stage.trained_experts / expert_ranks
    all_trained = stage.trained_dense + stage.trained_experts
    all_parameters = stage.dense / dense_ranks + stage.experts / expert_ranks
    if strategy is ShardingStrategy.DDP:
        trained = all_trained
    frozen_bytes = _frozen_bytes_per_weight(stage, precision)
    if strategy in (ShardingStrategy.FSDP1, ShardingStrategy.FSDP2):
        parameters = (
            trained * (precision.master or precision.compute)
            + (all_parameters - trained) * frozen_bytes
        )
        master = 0.0
    else:
        parameter_share = (
            all_parameters / stage.total
            if strategy is ShardingStrategy.ZERO3 and stage.total
            else 1.0
        )
        parameters = parameter_share * (
            all_trained * precision.compute + (stage.total - all_trained) * frozen_bytes
        )
        master = trained * precision.master
    keeps_all_gradients = strategy in (ShardingStrategy.DDP, ShardingStrategy.ZERO1)
    gradients = (all_trained if keeps_all_gradients else trained) * precision.gradient
    optimizer = optimizer_bytes(stage, setup, trained / all_trained if all_trained else 0.0)
    return _move_to_host(ModelStates(parameters, master, gradients, optimizer, 0.0), setup)


def _frozen_bytes_per_weight(stage: StageParameters, precision: Precision) -> float:
    """Return the bytes per frozen weight: quantized layer matrices, embedding and head as computed.

    bitsandbytes replaces only ``nn.Linear``, and transformers excludes the head
    (quantizers/quantizers_utils.py, ``get_modules_to_not_convert``).
    """
    if not stage.frozen_bytes or not stage.total:
        return precision.compute
    ends = (stage.embedding + stage.head) / stage.total
    return stage.frozen_bytes * (1 - ends) + precision.compute * ends


def _move_to_host(states: ModelStates, setup: TrainingSetup) -> ModelStates:
    if setup.offload is OffloadTarget.NONE:
        return states
    if setup.offload is OffloadTarget.PARAMETERS or setup.strategy in (
        ShardingStrategy.FSDP1,
        ShardingStrategy.FSDP2,
    ):
        return ModelStates(0.0, 0.0, 0.0, 0.0, states.total)
    moved = states.master + states.gradients + states.optimizer
    return ModelStates(states.parameters, 0.0, 0.0, 0.0, moved)


def optimizer_bytes(stage: StageParameters, setup: TrainingSetup, share: float) -> float:
    """Return the optimizer states of ``share`` of the trained parameters.

    Adam stores two numbers per weight; in 8 bits, one byte each and a scale per block (T. Dettmers
    et al., 2022); Adafactor rows and columns of matrices (N. Shazeer and M. Stern, 2018, without
    momentum); Muon one number for layer matrices and Adam's two for the rest (torch/optim/_muon.py
    accepts only matrices).
    """
    count = (stage.trained_dense + stage.trained_experts) * share
    state = setup.precision.state
    match setup.optimizer:
        case OptimizerKind.SGD:
            return 0.0
        case OptimizerKind.MOMENTUM:
            return count * state
        case OptimizerKind.ADAMW:
            return 2 * count * state
        case OptimizerKind.ADAMW_8BIT:
            return 2 * count * (1 + 4 / _QUANTIZATION_BLOCK)
        case OptimizerKind.ADAFACTOR:
            return stage.factored_numbers * share * 4
    ends = (
        (stage.embedding + stage.head)
        * (stage.trained_dense / stage.dense if stage.dense else 0.0)
        * share
    )
    return (count + ends) * state
