"""What a rank sends and receives in a step, call by call, of a model in a setup.

Volumes are those of S. Rajbhandari et al., "ZeRO" (2019), §7 (ZeRO-1 and 2 move as much as DDP, ZeRO-3 half as much
again), of V. Korthikanti et al., "Reducing Activation Recomputation" (2022), §4 (tensor parallelism: an all-reduce, or
a reduce-scatter and an all-gather of the same bytes, after attention and after the feed-forward part), and of H. Liu et
al., "Ring Attention" (2023). With gradient accumulation FSDP, ZeRO-2 and ZeRO-3 talk at every micro-batch; DDP under
``no_sync`` and ZeRO-1 at the last one alone.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import msgspec

from holdfast.plan.communication import Collective, share
from holdfast.plan.models import Transformer
from holdfast.plan.setup import Recompute, Setup, Strategy

#: Strategies that keep a share of the weights alone, and gather them when they are needed.
GATHERING = (Strategy.FSDP1, Strategy.FSDP2, Strategy.ZERO3)
#: Of forward's calls, those that are made again. By operations, attention and results of reductions are kept, and of
#: tensor parallelism's calls gathering is repeated (torchtitan, distributed/activation_checkpoint.py).
_AGAIN = {Recompute.FULL: 1.0, Recompute.SECOND_LAYER: 0.5}
_AGAIN_TENSOR = {**_AGAIN, Recompute.OPERATIONS: 0.5}
#: Activations are sent in 16 bits.
_ACTIVATION = 2


class Part(StrEnum):
    """What a call is for."""

    GATHER = "gathering weights"
    REDUCE = "reducing gradients"
    REPLICAS = "reducing gradients over replicas"
    TENSOR = "tensor parallel"
    CONTEXT = "keys and values of other context ranks"
    EXPERT = "tokens to experts and back"
    PIPELINE = "pipeline"


class Call(msgspec.Struct, frozen=True, gc=False):
    """Alike calls: ``nbytes`` each, over ``ranks`` that are ``stride`` apart.

    ``forward`` and ``backward`` of them in each micro-batch, ``once`` at the end of a step.
    """

    part: Part
    collective: Collective
    nbytes: float
    ranks: int
    stride: int
    forward: float = 0.0
    backward: float = 0.0
    once: float = 0.0

    def sent(self, accumulation: int) -> float:
        """Bytes that one rank sends in a step."""
        calls = (self.forward + self.backward) * accumulation + self.once
        return calls * self.nbytes * share(self.collective, self.ranks)


def stage_layers(model: Transformer, setup: Setup) -> int:
    """Of the fullest pipeline stage."""
    return -(-model.layers // setup.pipeline)


class Counts(msgspec.Struct, frozen=True):
    """Parameters of a model, counted once: of a layer and of all its experts, those of a layer that meet a token."""

    layer: int
    experts: int
    active: int
    embedding: int
    head: int


@lru_cache(maxsize=64)
def counts(model: Transformer) -> Counts:
    """Of a model; kept, as a search asks ten thousands of times."""
    experts = model.experts * model.expert_params if model.experts > 1 else 0
    idle = experts // model.experts * (model.experts - model.active)
    active = model.attention_params + model.feed_forward_params - idle
    return Counts(model.layer_params, experts, active, model.embedding_params, model.head_params)


def shared_params(model: Transformer, setup: Setup) -> tuple[float, float]:
    """Parameters of a layer, and of embedding and head on a stage that has them, as one tensor-parallel rank has them.

    Experts are divided by ``expert``, too.
    """
    of = counts(model)
    layer = of.layer - of.experts * (1 - 1 / setup.expert)
    ends = of.embedding + of.head if setup.pipeline == 1 else max(of.embedding, of.head)
    return layer / setup.tensor, ends / setup.tensor


def traffic(model: Transformer, setup: Setup, bucket: float = 25 * 2**20) -> list[Call]:
    """All calls of a rank on the fullest stage. ``bucket``: bytes that DDP and ZeRO-1 and 2 reduce at once."""
    calls = _of_data(model, setup, bucket)
    layers = stage_layers(model, setup)
    tokens = setup.micro_batch * setup.sequence // setup.context
    activation = float(tokens * model.hidden * _ACTIVATION)
    again = _AGAIN.get(setup.recompute, 0.0)
    if setup.tensor > 1:
        repeated = _AGAIN_TENSOR.get(setup.recompute, 0.0)
        calls.append(Call(Part.TENSOR, Collective.ALL_REDUCE, activation, setup.tensor, 1,
                          forward=2.0 * layers, backward=(2 + 2 * repeated) * layers))  # fmt: skip
    if setup.context > 1:
        keys = 2.0 * tokens * model.kv_heads * model.head_width * _ACTIVATION / setup.tensor
        steps = float(setup.context - 1) * layers
        calls.append(Call(Part.CONTEXT, Collective.SEND, keys, setup.context, setup.tensor,
                          forward=steps, backward=(2 + again) * steps))  # fmt: skip
    if setup.expert > 1:
        routed = activation * model.active / setup.tensor
        calls.append(Call(Part.EXPERT, Collective.ALL_TO_ALL, routed, setup.expert, setup.tensor,
                          forward=2.0 * layers, backward=(2 + 2 * again) * layers))  # fmt: skip
    if setup.pipeline > 1:
        split = setup.tensor if setup.sequence_parallel else 1
        calls.append(Call(Part.PIPELINE, Collective.SEND, activation / split, setup.pipeline,
                          setup.world_size // setup.pipeline, forward=float(setup.chunks),
                          backward=float(setup.chunks)))  # fmt: skip
    return calls


def _of_data(model: Transformer, setup: Setup, bucket: float) -> list[Call]:
    """Weights and gradients."""
    layers = stage_layers(model, setup)
    layer, ends = shared_params(model, setup)
    precision, stride = setup.precision, setup.tensor
    calls: list[Call] = []
    if setup.strategy in GATHERING:
        for params, count in ((layer, layers), (ends, 1)):
            calls += _of_shards(setup, params, float(count))
        return calls
    ranks, total = setup.data * setup.context, layer * layers + ends
    reduced = total * precision.reduced
    size = min(bucket, reduced)
    if setup.strategy is Strategy.DDP:
        return [Call(Part.REDUCE, Collective.ALL_REDUCE, size, ranks, stride, once=reduced / size)]
    at_each = setup.strategy is Strategy.ZERO2
    weights = total * precision.compute
    return [
        Call(Part.REDUCE, Collective.REDUCE_SCATTER, size, ranks, stride,
             backward=reduced / size if at_each else 0.0, once=0.0 if at_each else reduced / size),
        Call(Part.GATHER, Collective.ALL_GATHER, min(bucket, weights), ranks, stride,
             once=weights / min(bucket, weights)),
    ]  # fmt: skip


def _of_shards(setup: Setup, params: float, count: float) -> list[Call]:
    """Of ``count`` units of so many parameters that are gathered when they are needed.

    A pipeline reduces once, after its last micro-batch, and gathers once where weights stay after forward
    (torch.distributed.pipelining.stage, for FSDP).
    """
    stride, ranks, precision = setup.tensor, setup.shards, setup.precision
    piped = setup.pipeline > 1
    at_each, at_end = (0.0, count) if piped else (count, 0.0)
    kept = piped and not setup.reshard
    calls = [
        Call(Part.GATHER, Collective.ALL_GATHER, params * precision.compute, ranks, stride,
             forward=0.0 if kept else count, backward=count if setup.reshard else 0.0, once=count if kept else 0.0),
        Call(Part.REDUCE, Collective.REDUCE_SCATTER, params * precision.reduced, ranks, stride,
             backward=at_each, once=at_end),
    ]  # fmt: skip
    if setup.replicas > 1:
        mine = params * precision.reduced / ranks
        calls.append(Call(Part.REPLICAS, Collective.ALL_REDUCE, mine, setup.replicas, stride * ranks,
                          backward=at_each, once=at_end))  # fmt: skip
    return calls


def volume(model: Transformer, setup: Setup) -> dict[Part, float]:
    """Bytes that a rank sends in a step, by what they are for."""
    sums: dict[Part, float] = {}
    for call in traffic(model, setup):
        sums[call.part] = sums.get(call.part, 0.0) + call.sent(setup.accumulation)
    return sums
