"""What forward keeps for backward, in bytes, of one layer and of a pipeline stage.

Without a compiler or flash attention this is V. Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models" (2022), table 2, taken apart by tensor: sbh(34 + 5as/h) with dropout. Gated feed-forward parts keep
four inner tensors instead of two; flash attention keeps its output and a number a row instead of the scores (T. Dao
et al., 2022). What a compiler keeps was read off torch's min-cut partitioner (torch/_functorch/partitioners.py) for a
layer of Llama's form: all inputs of matrix products, but not what lies between them.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.plan.models import Transformer
from holdfast.plan.setup import Recompute, Schedule, Setup, Strategy

#: The inner part of backward also holds gradients: of two inner tensors and of two as wide as the model.
_INNER_GRADIENTS = 2
_OUTER_GRADIENTS = 2


class Inputs(NamedTuple):
    """Of which matrices the input is kept: those that are trained, or have an adapter, need theirs.

    ``attention``: queries, keys, values (from the first norm); ``inner``: into the feed-forward part (from the second);
    ``output``: back from it. What brings attention back has its input kept by attention itself.
    """

    attention: bool = True
    inner: bool = True
    output: bool = True


ALL_INPUTS = Inputs()


class Layer(NamedTuple):
    """Bytes of one layer and micro-batch on one rank.

    ``kept`` from forward to backward, ``other`` by the layers between (of ``Recompute.SECOND_LAYER``, where ``kept`` is
    that of layers that are not computed again); ``again``: more, while one that is computed again is, and its backward
    runs; ``alone``: all that one needs in its backward; ``boundary``: its input.
    """

    kept: float
    other: float
    again: float
    alone: float
    boundary: float

    def of(self, layers: int) -> float:
        """What so many keep."""
        return layers // 2 * self.other + (layers - layers // 2) * self.kept if self.other else layers * self.kept

    def temporary(self, layers: int) -> float:
        """What the backward of the last of so many needs beside what all keep."""
        return self.again if layers > 1 or not self.other else self.alone - self.kept


def local_tokens(setup: Setup) -> float:
    """Tokens of a micro-batch on one rank."""
    return setup.micro_batch * setup.sequence / setup.context


def layer(model: Transformer, setup: Setup, inputs: Inputs = ALL_INPUTS) -> Layer:
    """Bytes of one layer whose matrices need these inputs in backward."""
    tokens, tensor = local_tokens(setup), setup.tensor
    number = setup.precision.compute
    spread = tensor if setup.sequence_parallel else 1
    width = tokens * model.hidden
    inner, beside = _feed_forward(model, setup, tokens, inputs)
    attention = _attention(model, setup, tokens)
    masks = 2 * width if setup.dropout else 0.0
    unneeded = (2 - inputs.attention - inputs.inner) * number * width
    outer = (2 * number * width + 2 * _norm(model, setup) * width - unneeded + masks + beside) / spread
    # Whole in the place of its share.
    gathered = (2 * number * width - unneeded) * (1 - 1 / spread) if _keeps_gathered(setup) else 0.0
    whole = outer + gathered + (attention + inner) / tensor
    boundary = number * width / spread
    hidden_gradients = _OUTER_GRADIENTS * boundary
    inside = _INNER_GRADIENTS * number * tokens * model.ffn * model.active
    # When attention's backward runs, the inner tensors are gone.
    backward = hidden_gradients + max(inside, _ring(model, setup, tokens) - inner) / tensor
    match setup.recompute:
        case Recompute.NONE:
            return Layer(whole, 0.0, backward, whole + backward, boundary)
        case Recompute.FULL:
            return Layer(boundary, 0.0, whole + backward - boundary, whole + backward, boundary)
        case Recompute.SECOND_LAYER:
            return Layer(whole, boundary, whole + backward - boundary, whole + backward, boundary)
        case Recompute.SELECTIVE:
            scores = 0.0 if setup.flash else _scores(model, setup, tokens) / tensor
            return Layer(whole - scores, 0.0, backward + scores, whole + backward, boundary)
    kept = min(boundary + _operations(model, setup, tokens, spread), whole)
    return Layer(kept, 0.0, whole + backward - kept, whole + backward, boundary)


def _norm(model: Transformer, setup: Setup) -> int:
    """Bytes a norm keeps beside its input, for each number: its output, and copies in fp32 where not in one kernel.

    torch's ``rms_norm`` without a kernel of its own: the input and the scaled one in fp32, but not the input itself.
    """
    number = setup.precision.compute
    if setup.fused_norms or setup.compiled or model.norm_bias or number == 4:
        return number
    return 8


def _keeps_gathered(setup: Setup) -> bool:
    """With sequence parallelism, DTensor keeps the whole input of a sharded product; Megatron gathers it again.

    Korthikanti et al., §4.2.2; torch/distributed/tensor/parallel/style.py (``PrepareModuleInput``).
    """
    return setup.tensor > 1 and setup.sequence_parallel and setup.strategy in (Strategy.FSDP1, Strategy.FSDP2)


def _ring(model: Transformer, setup: Setup, tokens: float) -> float:
    """What attention's backward takes over a ring of context ranks: keys and values of all of them, gradients in fp32.

    torch/distributed/tensor/experimental/_context_parallel/_attention.py, ``_templated_ring_attention_backward``: the
    keys and values are gathered at once; of their gradients there are those here and those that come, and of queries.
    """
    if setup.context == 1:
        return 0.0
    width = tokens * model.heads * model.head_width
    return 2 * setup.precision.compute * width * (setup.context + 1) + 5 * 4 * width


def _scores(model: Transformer, setup: Setup, tokens: float) -> float:
    """Softmax's output, and with dropout its mask and its output: 2as and 5as a token at 2 bytes."""
    number = setup.precision.compute
    return tokens * model.heads * setup.sequence * (number + (1 + number) * setup.dropout)


def _attention(model: Transformer, setup: Setup, tokens: float) -> float:
    """Queries, keys, values, what comes out; keys and values are repeated for each head before most kernels."""
    number = setup.precision.compute
    kept = 4 * number * tokens * model.heads * model.head_width
    if setup.flash:
        return kept + 4 * tokens * model.heads  # the log of each row's sum, in fp32
    return kept + _scores(model, setup, tokens)


def _feed_forward(model: Transformer, setup: Setup, tokens: float, inputs: Inputs) -> tuple[float, float]:
    """Bytes of inner tensors, and of those as wide as the model that experts need besides.

    Experts get ``active`` copies of a token, keep their inputs and outputs, and the router its scores in fp32 twice.
    """
    number = setup.precision.compute
    tensors = ((3 if setup.compiled else 4) if model.gated else 2) - (not inputs.output)
    one = tensors * number * tokens
    if model.experts == 1:
        return one * model.ffn, 0.0
    copies = model.active * setup.capacity
    inner = one * (copies * model.ffn + model.shared_ffn)
    beside = tokens * (2 * copies * number * model.hidden + 8 * model.experts)
    return inner, beside


def _operations(model: Transformer, setup: Setup, tokens: float, spread: int) -> float:
    """Every second product is kept, and attention: torchtitan/distributed/activation_checkpoint.py.

    Of a gated layer's seven products these are queries, values, the first and the last of the feed-forward part, of six
    the first and third of attention and the first after it. A compiler drops the last one, which nothing needs again.
    """
    number = setup.precision.compute
    queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    output = queries * number + 4 * model.heads if setup.flash else 0
    copies = model.active * (setup.capacity if model.experts > 1 else 1)
    inner = number * (queries + keys + copies * model.ffn + model.shared_ffn) + output
    last = number * model.hidden * copies if model.gated and not setup.compiled else 0
    return tokens * (inner / setup.tensor + last / spread)


def in_flight(setup: Setup, stage: int) -> float:
    """Micro-batches whose activations a stage keeps at most, chunks as parts of one.

    GPipe: all; 1F1B: as many as there are stages from here on (D. Narayanan et al., SC21, §2.2.1); interleaved: those
    of the warm-up and one (Megatron-LM, megatron/core/pipeline_parallel/schedules.py), which at the first stage is
    1 + (p - 1) / (p v) times as much (Korthikanti et al., §4.2.3); zero-bubble: as 1F1B's first stage, on all (P. Qi et
    al., "Zero Bubble Pipeline Parallelism", 2023, ZB-H1).
    """
    stages, most = setup.pipeline, setup.accumulation
    if stages == 1:
        return 1
    match setup.schedule:
        case Schedule.GPIPE:
            return most
        case Schedule.ONE_F_ONE_B:
            return min(most, stages - stage)
        case Schedule.ZERO_BUBBLE:
            return min(most, stages)
    chunks = setup.chunks
    return min(most, (2 * (stages - stage - 1) + (chunks - 1) * stages + 1) / chunks)
