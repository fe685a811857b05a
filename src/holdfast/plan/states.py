"""What a rank holds from step to step: parameters, their fp32 copies, gradients and what the optimizer keeps, in bytes.

Who shares what among n data-parallel ranks: S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models" (2019), §3 and figure 1; FSDP2 keeps the fp32 copy alone and casts as it gathers (torch/distributed/
fsdp/_fully_shard/_fsdp_param.py). Tensor parallelism divides all but the norms, pipelines divide by layers
(D. Narayanan et al., SC21, §2), expert parallelism divides experts. Shares are averages: what a framework pads is not
counted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from holdfast.plan.models import Transformer
from holdfast.plan.setup import Offload, Optimizer, Precision, Setup, Strategy

#: Numbers that share a scale in fp32: bitsandbytes, optim/optimizer.py, ``optimizer_update_8bit_blockwise``.
_BLOCK = 256


class Sizes(NamedTuple):
    """Parameters by how they are divided. Those of a layer: ``matrices`` with biases, ``experts``, ``norms``.

    ``edges``: rows and columns of a layer's matrices, in sum. ``trained`` is the share that has gradients, ``adapters``
    what is trained besides in each layer, ``frozen`` bytes a weight of layers' matrices that are not trained (0: as
    computed in, as embedding and head are in any case); ``beside``: other weights, always trained, at the first
    stage and on each tensor-parallel rank.
    """

    layers: int
    matrices: int
    experts: int
    norms: int
    edges: int
    embedding: int
    head: int
    last_norm: int
    tied: bool
    trained: float = 1.0
    adapters: int = 0
    frozen: float = 0.0
    beside: int = 0

    @property
    def layer(self) -> int:
        """All of a layer, without adapters."""
        return self.matrices + self.experts + self.norms


@lru_cache(maxsize=256)
def sizes(model: Transformer) -> Sizes:
    """Counted once for each model."""
    norms = model.norms_a_layer * model.norm_params
    inner = 3 if model.gated else 2
    experts = model.feed_forward_params if model.experts > 1 else 0
    queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    attention = 4 * model.hidden + 2 * (queries + keys)
    return Sizes(
        layers=model.layers,
        matrices=model.layer_params - norms - experts,
        experts=experts,
        norms=norms,
        edges=attention + inner * (model.hidden + model.ffn) * model.experts,
        embedding=model.embedding_params,
        head=model.vocab * model.hidden,
        last_norm=model.norm_params,
        tied=model.tied,
    )


def stage_layers(layers: int, pipeline: int, stage: int) -> int:
    """How many layers a rank of the pipeline has, over all its chunks.

    Where they cannot be dealt out evenly, embedding and head count as one each, as torchtitan does
    (torchtitan/distributed/pipeline_parallel.py).
    """
    if not layers % pipeline:
        return layers // pipeline
    each, more = divmod(layers + 2, pipeline)
    return each + (stage < more) - (stage == 0) - (stage == pipeline - 1)


class Owned(NamedTuple):
    """Parameters of one pipeline stage and tensor-parallel rank, before data-parallel ranks share them."""

    layers: int
    #: A layer's, without and with experts.
    dense_layer: float
    layer: float
    embedding: float
    head: float
    dense: float
    experts: float
    trained_dense: float
    trained_experts: float
    edges: float
    frozen: float

    @property
    def all(self) -> float:
        """Of them."""
        return self.dense + self.experts


def owned(size: Sizes, setup: Setup, stage: int) -> Owned:
    """What of the model stands on this stage; of experts, those of one expert-parallel rank."""
    tensor, last = setup.tensor, setup.pipeline - 1
    layers = stage_layers(size.layers, setup.pipeline, stage)
    dense_layer = size.matrices / tensor + size.norms
    adapters = size.adapters / tensor
    experts_layer = size.experts / (tensor * setup.expert)
    embedding = size.embedding / tensor if stage == 0 else 0.0
    # A tied head is the embedding, but on another stage it is a copy of it.
    head = size.head / tensor if stage == last and (not size.tied or last) else 0.0
    norm = size.last_norm if stage == last else 0
    beside = size.beside if stage == 0 else 0
    frozen = layers * dense_layer + embedding + head + norm
    return Owned(
        layers=layers,
        dense_layer=dense_layer + adapters,
        layer=dense_layer + adapters + experts_layer,
        embedding=embedding,
        head=head,
        dense=frozen + layers * adapters + beside,
        experts=layers * experts_layer,
        trained_dense=frozen * size.trained + layers * adapters + beside,
        trained_experts=layers * experts_layer * size.trained,
        edges=layers * size.edges / tensor * size.trained,
        frozen=size.frozen,
    )


class Held(NamedTuple):
    """Bytes of one rank. ``host``: those that stand in the host's memory, of this rank alone."""

    parameters: float
    master: float
    gradients: float
    optimizer: float
    host: float

    @property
    def all(self) -> float:
        """On the GPU."""
        return self.parameters + self.master + self.gradients + self.optimizer


def held(own: Owned, setup: Setup) -> Held:
    """The states of one rank.

    Of FSDP's parameters the fp32 copy is counted as parameters: there is no other. With the optimizer on the host,
    gradients go there as they come (J. Ren et al., "ZeRO-Offload", 2021, §3); FSDP takes all or nothing
    (``CPUOffloadPolicy``).
    """
    form, strategy = setup.precision, setup.strategy
    dense_ranks = setup.shards
    expert_ranks = max(1, dense_ranks // setup.expert)
    trained = own.trained_dense / dense_ranks + own.trained_experts / expert_ranks
    trained_whole = own.trained_dense + own.trained_experts
    everything = own.dense / dense_ranks + own.experts / expert_ranks
    if strategy is Strategy.DDP:
        trained = trained_whole
    frozen = _frozen(own, form)
    if strategy in (Strategy.FSDP1, Strategy.FSDP2):
        parameters = trained * (form.master or form.compute) + (everything - trained) * frozen
        master = 0.0
    else:
        share = everything / own.all if strategy is Strategy.ZERO3 and own.all else 1.0
        parameters = share * (trained_whole * form.compute + (own.all - trained_whole) * frozen)
        master = trained * form.master
    alone = strategy in (Strategy.DDP, Strategy.ZERO1)
    gradients = (trained_whole if alone else trained) * form.gradient
    optimizer = optimizer_bytes(own, setup, trained / trained_whole if trained_whole else 0.0)
    return _on_the_host(Held(parameters, master, gradients, optimizer, 0.0), setup)


def _frozen(own: Owned, form: Precision) -> float:
    """Bytes a weight that is not trained: of layers' matrices in few bits, of embedding and head as computed in.

    bitsandbytes takes the place of ``nn.Linear`` alone, and transformers leaves the head out, too
    (quantizers/quantizers_utils.py, ``get_modules_to_not_convert``).
    """
    if not own.frozen or not own.all:
        return form.compute
    ends = (own.embedding + own.head) / own.all
    return own.frozen * (1 - ends) + form.compute * ends


def _on_the_host(here: Held, setup: Setup) -> Held:
    if setup.offload is Offload.NONE:
        return here
    if setup.offload is Offload.PARAMETERS or setup.strategy in (Strategy.FSDP1, Strategy.FSDP2):
        return Held(0.0, 0.0, 0.0, 0.0, here.all)
    gone = here.master + here.gradients + here.optimizer
    return Held(here.parameters, 0.0, 0.0, 0.0, gone)


def optimizer_bytes(own: Owned, setup: Setup, share: float) -> float:
    """What the optimizer keeps for ``share`` of what is trained.

    Adam keeps two numbers a weight; in 8 bits, one byte each and a scale for a block of them (T. Dettmers et al.,
    2022); Adafactor rows and columns of matrices (N. Shazeer and M. Stern, 2018, without momentum); Muon one number for
    matrices of layers and Adam's two for the rest (torch/optim/_muon.py takes matrices alone).
    """
    count = (own.trained_dense + own.trained_experts) * share
    state = setup.precision.state
    match setup.optimizer:
        case Optimizer.SGD:
            return 0.0
        case Optimizer.MOMENTUM:
            return count * state
        case Optimizer.ADAMW:
            return 2 * count * state
        case Optimizer.ADAMW_8BIT:
            return 2 * count * (1 + 4 / _BLOCK)
        case Optimizer.ADAFACTOR:
            return own.edges * share * 4
    ends = (own.embedding + own.head) * (own.trained_dense / own.dense if own.dense else 0.0) * share
    return (count + ends) * state
