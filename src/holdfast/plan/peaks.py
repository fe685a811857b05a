"""What stands in memory for a while: logits, gathered parameters, buckets, at the moments when most is there at once.

A step has four moments that can be its peak: the loss (all activations and copies of the logits), the start of backward
(all activations, one layer computed again, its parameters gathered), its end (all gradients), and the optimizer's step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from holdfast.plan.activations import Layer, local_tokens
from holdfast.plan.models import Transformer
from holdfast.plan.setup import Loss, Offload, Setup, Strategy
from holdfast.plan.states import Held, Owned

#: Elements: reduce_bucket_size, stage3_max_live_parameters, stage3_prefetch_bucket_size and sub_group_size as DeepSpeed
#: sets them where nothing is said (deepspeed/runtime/zero/config.py).
ZERO_BUCKET = 500_000_000
ZERO_MAX_LIVE = 1_000_000_000
ZERO_PREFETCH = 50_000_000
ZERO_SUB_GROUP = 1_000_000_000
#: Parts in which a chunked loss goes through the tokens.
LOSS_CHUNKS = 8
_FSDP = (Strategy.FSDP1, Strategy.FSDP2)


class Moment(StrEnum):
    """When in a step."""

    LOSS = "loss"
    BACKWARD = "start of backward"
    END = "end of backward"
    STEP = "optimizer step"


class Passing(NamedTuple):
    """Bytes that are there at a moment beside what is held; ``stranded`` is freed, but in blocks that fit nothing."""

    moment: Moment
    gradients: float = 0.0
    activations: float = 0.0
    temporary: float = 0.0
    logits: float = 0.0
    gathered: float = 0.0
    buffers: float = 0.0
    stranded: float = 0.0

    @property
    def all(self) -> float:
        """Tensors alone."""
        return self.gradients + self.activations + self.temporary + self.logits + self.gathered + self.buffers


def logits(model: Transformer, setup: Setup) -> tuple[float, float]:
    """Bytes of all copies of the logits at the loss, and of those freed by then whose block nothing else fits.

    In fp32 op by op: log-probabilities, the gradient of the loss and that of the softmax (aten/src/ATen/native/
    LossNLL.cpp, SoftMax.cpp), after logits that were cast (freed). Divided by a vocabulary in DTensor, four such copies
    (torch/distributed/tensor/parallel/loss.py); Megatron's works in place (megatron/core/tensor_parallel/
    cross_entropy.py). A compiler keeps the logits and their gradient: what the min-cut partitioner saves.
    """
    number = setup.precision.compute
    count = local_tokens(setup) * model.vocab / setup.tensor
    match setup.loss:
        case Loss.FUSED:
            return count * number, 0.0
        case Loss.COMPILED:
            return 2 * count * number, 0.0
    copies = 3 * 4
    stranded = number
    if setup.tensor > 1:
        copies, stranded = (4 * 4, number) if setup.strategy in _FSDP else (number + 2 * 4, 0)
    parts = LOSS_CHUNKS if setup.loss is Loss.CHUNKED else 1
    return count * copies / parts, count * stranded / parts


def final_norm(model: Transformer, setup: Setup) -> float:
    """What the last norm keeps, and the head's input where DTensor gathers it."""
    width = local_tokens(setup) * model.hidden
    number = setup.precision.compute
    spread = setup.tensor if setup.sequence_parallel else 1
    fused = setup.fused_norms or model.norm_bias or number == 4
    kept = (2 * number if fused else 8 + number) * width / spread
    gathers = setup.tensor > 1 and setup.sequence_parallel and setup.strategy in _FSDP
    return kept + (number * width * (1 - 1 / spread) if gathers else 0.0)


def gathered(own: Owned, setup: Setup, *, at_loss: bool) -> float:
    """Bytes of parameters that are whole for a while.

    FSDP: the outermost module's (the embedding's) stay after forward; beside them the head's at the loss, two layers'
    in backward, one of which is fetched ahead (torch/distributed/fsdp/_fully_shard/_fsdp_state.py). ZeRO-3: up to
    ``stage3_max_live_parameters`` and what is fetched ahead.
    """
    number = setup.precision.compute
    if setup.strategy is Strategy.ZERO3:
        most = max(ZERO_MAX_LIVE, 2 * own.layer, own.embedding) + ZERO_PREFETCH
        return number * min(own.all, most if setup.reshard else own.all)
    if setup.strategy not in _FSDP or (
        setup.shards == 1 and setup.offload is Offload.NONE and not setup.precision.master
    ):
        return 0.0
    if not setup.reshard:
        return number * own.all
    layers = min(2, own.layers) * own.layer
    return number * min(own.all, own.embedding + (max(own.head, layers) if at_loss else layers))


def buckets(own: Owned, setup: Setup) -> float:
    """Bytes that reducing gradients takes beside the gradients themselves, while backward runs.

    FSDP2: a layer's whole gradients and the input of its reduce-scatter (torch/distributed/fsdp/_fully_shard/
    _fsdp_collectives.py); FSDP1 reduces its flat gradient where it stands. ZeRO: the bucket (twice, as it is filled
    while the one before is on its way). DDP: buckets are a copy of all gradients unless these are views of them
    (torch/csrc/distributed/c10d/reducer.cpp).
    """
    form = setup.precision
    trained = own.trained_dense + own.trained_experts
    share = trained / own.all if own.all else 0.0
    unit = max(own.layer if own.layers else 0.0, own.embedding, own.head) * share
    match setup.strategy:
        case Strategy.DDP:
            return 0.0 if setup.bucket_views or setup.data * setup.context == 1 else trained * form.gradient
        case Strategy.FSDP1:
            return unit * max(form.reduced, form.compute)
        case Strategy.FSDP2:
            return unit * (form.compute + form.reduced)
    return 2 * min(trained, ZERO_BUCKET) * form.compute


def accumulated(own: Owned, setup: Setup) -> float:
    """Bytes of whole gradients that FSDP keeps in a pipeline from the first micro-batch to the last.

    Only the last one's backward reduces them (torch/distributed/pipelining/stage.py, ``backward_maybe_with_nosync``),
    and until then they are in the dtype that is reduced.
    """
    if setup.strategy in _FSDP and setup.pipeline > 1 and setup.accumulation > 1:
        return (own.trained_dense + own.trained_experts) * setup.precision.reduced
    return 0.0


def moments(
    model: Transformer, setup: Setup, own: Owned, here: Held, layer: Layer, flying: float, *, last: bool
) -> tuple[Passing, ...]:
    """The four moments of a stage that has ``flying`` micro-batches' activations."""
    kept, again = flying * layer.of(own.layers), layer.temporary(own.layers)
    whole = accumulated(own, setup)
    resident = here.gradients if setup.accumulation > 1 or _bucket_views(setup) else 0.0
    stranded = here.gradients - resident if _small_gradients(model, setup, layer) else 0.0
    bucket = buckets(own, setup)
    persistent = bucket if setup.strategy not in _FSDP else 0.0
    pipes = 2 * layer.boundary if setup.pipeline > 1 else 0.0
    backward = gathered(own, setup, at_loss=False)
    found = [
        Passing(Moment.BACKWARD, resident + whole, kept, again, 0.0, backward, bucket + pipes, stranded),
        Passing(
            Moment.END, here.gradients + whole, layer.kept, layer.alone - layer.kept, 0.0, backward, bucket + pipes
        ),
        Passing(Moment.STEP, here.gradients, temporary=_step(here, setup), buffers=persistent),
    ]
    if last:
        copies, freed = logits(model, setup)
        whole_head = gathered(own, setup, at_loss=True)
        final = kept + final_norm(model, setup)
        found.append(Passing(Moment.LOSS, resident + whole, final, 0.0, copies, whole_head, persistent + pipes,
                             stranded + freed))  # fmt: skip
    return tuple(found)


def _bucket_views(setup: Setup) -> bool:
    """Gradients stand in DDP's buckets, which are there from the start (torch/csrc/distributed/c10d/reducer.cpp)."""
    return setup.strategy is Strategy.DDP and setup.bucket_views and setup.data * setup.context > 1


def _small_gradients(model: Transformer, setup: Setup, layer: Layer) -> bool:
    """Shards of gradients are smaller than activations, which then cannot use the blocks that they leave."""
    if setup.shards == 1 or setup.strategy in (Strategy.DDP, Strategy.ZERO1):
        return False
    matrix = model.hidden * model.ffn / (setup.tensor * setup.shards) * setup.precision.gradient
    return matrix < layer.boundary


def _step(here: Held, setup: Setup) -> float:
    """ZeRO copies its share of gradients to fp32, ZeRO-3 a part of it at a time; others make one number a weight.

    The latter: foreach kernels (torch/optim/adamw.py).
    """
    form = setup.precision
    if setup.strategy is Strategy.ZERO3:
        return min(here.master, ZERO_SUB_GROUP * form.master)
    if setup.strategy in (Strategy.ZERO1, Strategy.ZERO2):
        return here.master
    if setup.fused_optimizer or not form.gradient:
        return 0.0
    return here.gradients / form.gradient * form.state
