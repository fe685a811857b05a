"""Activations saved for backward, in bytes, of one layer and of a pipeline stage.

Without a compiler or flash attention this is V. Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models" (2022), table 2, by tensor: sbh(34 + 5as/h) with dropout.
Gated feed-forward parts save four inner tensors instead of two; flash attention saves its output
and one number per row instead of the scores (T. Dao et al., 2022). What a compiler saves was read
from torch's min-cut partitioner (torch/_functorch/partitioners.py) for a Llama layer: all inputs of
matrix products, but nothing between them.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.plan.models import Transformer
from holdfast.plan.setup import (
    ActivationCheckpointing,
    PipelineSchedule,
    ShardingStrategy,
    TrainingSetup,
)

#: Backward of the inner part also stores gradients: of two inner tensors and of two of hidden size.
_INNER_GRADIENTS = 2
_OUTER_GRADIENTS = 2


class SavedInputs(NamedTuple):
    """The matrices whose inputs are saved: trained or adapted ones need them in backward.

    ``attention``: queries, keys, values (after the first norm); ``inner``: into the feed-forward
    part (after the second norm); ``output``: out of it. Attention itself saves the input of its
    output matrix.
    """

    attention: bool = True
    inner: bool = True
    output: bool = True


ALL_SAVED_INPUTS = SavedInputs()


class LayerActivations(NamedTuple):
    """Bytes of one layer and micro-batch on one rank.

    ``saved`` from forward to backward; ``saved_if_checkpointed``: by checkpointed layers (only
    ``SECOND_LAYER``, where ``saved`` is that of the other layers); ``recomputed``: additional bytes
    while a checkpointed layer is recomputed and its backward runs; ``backward_peak``: all that a
    layer needs in its backward; ``layer_input``: its input.
    """

    saved: float
    saved_if_checkpointed: float
    recomputed: float
    backward_peak: float
    layer_input: float

    def total_saved(self, layers: int) -> float:
        """Return what ``layers`` layers save."""
        return (
            layers // 2 * self.saved_if_checkpointed + (layers - layers // 2) * self.saved
            if self.saved_if_checkpointed
            else layers * self.saved
        )

    def backward_extra(self, layers: int) -> float:
        """Return what the backward of the last layer needs beside the saved activations."""
        return (
            self.recomputed
            if layers > 1 or not self.saved_if_checkpointed
            else self.backward_peak - self.saved
        )


def local_tokens(setup: TrainingSetup) -> float:
    """Return the tokens of a micro-batch on one rank."""
    return setup.micro_batch * setup.sequence / setup.context


def layer_activations(
    model: Transformer, setup: TrainingSetup, inputs: SavedInputs = ALL_SAVED_INPUTS
) -> LayerActivations:
    """Return the bytes of one layer whose matrices need these inputs in backward."""
    tokens, tensor = local_tokens(setup), setup.tensor
    dtype_bytes = setup.precision.compute
    sequence_split = tensor if setup.sequence_parallel else 1
    width = tokens * model.hidden
    inner_bytes, expert_bytes = _feed_forward_bytes(model, setup, tokens, inputs)
    attention_bytes = _attention_bytes(model, setup, tokens)
    mask_bytes = 2 * width if setup.dropout else 0.0
    unneeded_bytes = (2 - inputs.attention - inputs.inner) * dtype_bytes * width
    outer_bytes = (
        2 * dtype_bytes * width
        + 2 * _norm_bytes(model, setup) * width
        - unneeded_bytes
        + mask_bytes
        + expert_bytes
    ) / sequence_split
    # The gathered input instead of its shard.
    gathered_bytes = (
        (2 * dtype_bytes * width - unneeded_bytes) * (1 - 1 / sequence_split)
        if _saves_gathered_input(setup)
        else 0.0
    )
    total = outer_bytes + gathered_bytes + (attention_bytes + inner_bytes) / tensor
    layer_input = dtype_bytes * width / sequence_split
    hidden_gradients = _OUTER_GRADIENTS * layer_input
    inner_gradients = _INNER_GRADIENTS * dtype_bytes * tokens * model.ffn * model.active
    # When attention's backward runs, the inner tensors are freed.
    backward = (
        hidden_gradients
        + max(inner_gradients, _ring_attention_bytes(model, setup, tokens) - inner_bytes) / tensor
    )
    match setup.recompute:
        case ActivationCheckpointing.NONE:
            return LayerActivations(total, 0.0, backward, total + backward, layer_input)
        case ActivationCheckpointing.FULL:
            return LayerActivations(
                layer_input, 0.0, total + backward - layer_input, total + backward, layer_input
            )
        case ActivationCheckpointing.SECOND_LAYER:
            return LayerActivations(
                total, layer_input, total + backward - layer_input, total + backward, layer_input
            )
        case ActivationCheckpointing.SELECTIVE:
            score_bytes = 0.0 if setup.flash else _score_bytes(model, setup, tokens) / tensor
            return LayerActivations(
                total - score_bytes, 0.0, backward + score_bytes, total + backward, layer_input
            )
    saved = min(
        layer_input + _selected_operation_bytes(model, setup, tokens, sequence_split), total
    )
    return LayerActivations(saved, 0.0, total + backward - saved, total + backward, layer_input)


def _norm_bytes(model: Transformer, setup: TrainingSetup) -> int:
    """Return the bytes per number that a norm saves beside its input.

    These are its output and, unfused, fp32 copies: torch's ``rms_norm`` without a fused kernel
    saves the input and the scaled input in fp32, but not the input itself.
    """
    dtype_bytes = setup.precision.compute
    if setup.fused_norms or setup.compiled or model.norm_bias or dtype_bytes == 4:
        return dtype_bytes
    return 8


def _saves_gathered_input(setup: TrainingSetup) -> bool:
    """Return whether the gathered input of a tensor-parallel product is saved.

    With sequence parallelism, DTensor saves it, Megatron gathers it again: Korthikanti et al.,
    §4.2.2; torch/distributed/tensor/parallel/style.py (``PrepareModuleInput``).
    """
    return (
        setup.tensor > 1
        and setup.sequence_parallel
        and setup.strategy in (ShardingStrategy.FSDP1, ShardingStrategy.FSDP2)
    )


def _ring_attention_bytes(model: Transformer, setup: TrainingSetup, tokens: float) -> float:
    """Return what attention's backward allocates over a ring of context ranks.

    These are keys and values of all ranks, and gradients in fp32:
    torch/distributed/tensor/experimental/_context_parallel/_attention.py,
    ``_templated_ring_attention_backward``. Keys and values are gathered at once; of their gradients
    there are the local and the incoming ones, and those of queries.
    """
    if setup.context == 1:
        return 0.0
    width = tokens * model.heads * model.head_width
    return 2 * setup.precision.compute * width * (setup.context + 1) + 5 * 4 * width


def _score_bytes(model: Transformer, setup: TrainingSetup, tokens: float) -> float:
    """Return the bytes of the softmax output and, with dropout, of mask and output.

    At 2 bytes per number: 2as and 5as per token.
    """
    dtype_bytes = setup.precision.compute
    return tokens * model.heads * setup.sequence * (dtype_bytes + (1 + dtype_bytes) * setup.dropout)


def _attention_bytes(model: Transformer, setup: TrainingSetup, tokens: float) -> float:
    """Return the bytes of queries, keys, values and output.

    Most kernels repeat keys and values for each head.
    """
    dtype_bytes = setup.precision.compute
    saved = 4 * dtype_bytes * tokens * model.heads * model.head_width
    if setup.flash:
        return saved + 4 * tokens * model.heads  # log-sum-exp of each row, in fp32
    return saved + _score_bytes(model, setup, tokens)


def _feed_forward_bytes(
    model: Transformer, setup: TrainingSetup, tokens: float, inputs: SavedInputs
) -> tuple[float, float]:
    """Return the bytes of inner tensors, and of additional tensors of hidden size for experts.

    Experts receive ``active`` copies of a token and save inputs and outputs; the router saves its
    scores in fp32 twice.
    """
    dtype_bytes = setup.precision.compute
    tensors = ((3 if setup.compiled else 4) if model.gated else 2) - (not inputs.output)
    bytes_per_width = tensors * dtype_bytes * tokens
    if model.experts == 1:
        return bytes_per_width * model.ffn, 0.0
    copies = model.active * setup.capacity
    inner_bytes = bytes_per_width * (copies * model.ffn + model.shared_ffn)
    expert_bytes = tokens * (2 * copies * dtype_bytes * model.hidden + 8 * model.experts)
    return inner_bytes, expert_bytes


def _selected_operation_bytes(
    model: Transformer, setup: TrainingSetup, tokens: float, sequence_split: int
) -> float:
    """Return the bytes of attention and every second product (torchtitan's "selective op").

    torchtitan/distributed/activation_checkpoint.py. Of a gated layer's seven products these are
    queries, values, the first and the last of the feed-forward part; of six the first and third of
    attention and the first after it. A compiler drops the last one, which is not needed again.
    """
    dtype_bytes = setup.precision.compute
    queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    output = queries * dtype_bytes + 4 * model.heads if setup.flash else 0
    copies = model.active * (setup.capacity if model.experts > 1 else 1)
    inner_bytes = dtype_bytes * (queries + keys + copies * model.ffn + model.shared_ffn) + output
    last_bytes = dtype_bytes * model.hidden * copies if model.gated and not setup.compiled else 0
    return tokens * (inner_bytes / setup.tensor + last_bytes / sequence_split)


def micro_batches_in_flight(setup: TrainingSetup, stage: int) -> float:
    """Return the most micro-batches whose activations a stage stores, chunks as fractions.

    GPipe: all. 1F1B: the number of stages from here on (D. Narayanan et al., SC21, §2.2.1).
    Interleaved: those of the warm-up and one (Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py), at the first stage 1 + (p - 1) / (p v) times as
    much (Korthikanti et al., §4.2.3). Zero-bubble: 1F1B's first stage on all stages (P. Qi et al.,
    "Zero Bubble Pipeline Parallelism", 2023, ZB-H1).
    """
    stages, micro_batches = setup.pipeline, setup.accumulation
    if stages == 1:
        return 1
    match setup.schedule:
        case PipelineSchedule.GPIPE:
            return micro_batches
        case PipelineSchedule.ONE_F_ONE_B:
            return min(micro_batches, stages - stage)
        case PipelineSchedule.ZERO_BUBBLE:
            return min(micro_batches, stages)
    chunks = setup.chunks
    return min(micro_batches, (2 * (stages - stage - 1) + (chunks - 1) * stages + 1) / chunks)
