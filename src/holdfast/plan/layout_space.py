"""Which layouts are tried: degrees of parallelism that a model, a batch and a cluster allow, and what else can vary.

Rules of the frameworks: heads are divided among tensor-parallel ranks whole (Megatron-LM, megatron/core/transformer/
transformer_config.py); 1F1B needs a micro-batch for each stage and interleaving a multiple of the stages (torch/
distributed/pipelining/schedules.py; megatron/core/pipeline_parallel/schedules.py); balanced context parallelism cuts a
sequence into twice as many pieces as ranks (torch's ``_HeadTailLoadBalancer``); DeepSpeed's pipelines stop at ZeRO-1
(deepspeed/runtime/pipe/engine.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.setup import Loss, Offload, Recompute, Schedule, Setup, Strategy

#: Tokens of a sequence on a context rank, below which nobody divides it further.
_LEAST_TOKENS = 2048
#: Pieces of a model on one pipeline rank.
_CHUNKS = (2, 4, 8)
#: Sequences in a micro-batch.
LARGEST_MICRO = 64
_MOST_SHAPES = 1 << 14
#: Strategies that can have parameters on the host.
_DIVIDING = (Strategy.FSDP2, Strategy.FSDP1, Strategy.ZERO3)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What may be tried, and how much of it is answered.

    ``tensor``, ``pipeline``, ``context`` and ``expert``: a degree that is given; 0: it is searched for. ``across``:
    tensor parallelism beyond a node; it is tried in any case, so that what it costs can be said. ``tight``: layouts
    count that fit only if the estimate of memory is not too low.
    ``uneven``: how many more layers the fullest pipeline stage may have than the average, as a share. ``error``: the
    model of time does not tell apart what is as close. ``most``: layouts that are answered.
    """

    strategies: tuple[Strategy, ...] = (
        Strategy.FSDP2, Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3, Strategy.DDP,
    )  # fmt: skip
    schedules: tuple[Schedule, ...] = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
    #: From the one that costs least time to the one that needs least memory.
    recomputes: tuple[Recompute, ...] = (
        Recompute.NONE, Recompute.SELECTIVE, Recompute.SECOND_LAYER, Recompute.OPERATIONS, Recompute.FULL,
    )  # fmt: skip
    tensor: int = 0
    pipeline: int = 0
    context: int = 0
    expert: int = 0
    across: bool = False
    tight: bool = False
    uneven: float = 0.1
    error: float = 0.05
    most: int = 3

    def __post_init__(self) -> None:
        for name in ("strategies", "schedules", "recomputes"):
            if not getattr(self, name):
                raise BadValue(f"the option {name}", why="there is none to try")
        for name in ("tensor", "pipeline", "context", "expert"):
            if getattr(self, name) < 0:
                raise BadValue(f"the degree {name}", why=f"{getattr(self, name)} is less than 0")
        if self.most < 1:
            raise BadValue("the number of layouts", why=f"{self.most} is less than 1")


class Shape(NamedTuple):
    """Degrees that multiply to the world size."""

    tensor: int
    pipeline: int
    context: int
    expert: int
    data: int


class Refused(NamedTuple):
    """A degree that cannot be, and why."""

    axis: str
    value: int
    why: str


def allowed(shape: Shape, cluster: Cluster, options: Options) -> bool:
    """Whether it may be answered; tensor parallelism over nodes is looked at in any case."""
    return options.across or bool(options.tensor) or shape.tensor <= cluster.per_node


def divisors(number: int, most: int) -> list[int]:
    """Of ``number``, in rising order, none above ``most``."""
    return [each for each in range(1, min(number, most) + 1) if number % each == 0]


def shapes(
    model: Transformer, cluster: Cluster, sequence: int, options: Options
) -> tuple[list[Shape], list[Refused]]:  # fmt: skip
    """All that the model and the cluster allow, and degrees that they do not.

    Raises:
        BadValue: they are too many to be tried.
    """
    refused: list[Refused] = []
    tensors = _tensors(model, cluster, options, refused)
    pipelines = _pipelines(model, cluster, options, refused)
    contexts = _contexts(cluster, sequence, options, refused)
    experts = _experts(model, cluster, options, refused)
    count = len(tensors) * len(pipelines) * len(contexts) * len(experts)
    if count > _MOST_SHAPES:
        raise BadValue(f"{model.name} on {cluster}", why=f"it has {count:,} layouts", next_step="give a degree or two")
    found = []
    for tensor in tensors:
        for pipeline in pipelines:
            if cluster.gpus % (tensor * pipeline):
                continue
            rest = cluster.gpus // (tensor * pipeline)
            found += [
                Shape(tensor, pipeline, context, expert, rest // context)
                for context in contexts if rest % context == 0
                for expert in experts if rest % expert == 0
            ]  # fmt: skip
    return found, refused


def _tensors(model: Transformer, cluster: Cluster, options: Options, refused: list[Refused]) -> list[int]:
    """Divisors of a node, and two nodes, which are tried to be compared with."""
    found = []
    wanted = [options.tensor] if options.tensor else divisors(cluster.per_node, cluster.per_node)
    if cluster.nodes > 1 and cluster.per_node > 1 and not options.tensor:
        wanted.append(2 * cluster.per_node)
    for tensor in _of_gpus("tensor", wanted, cluster, refused):
        undivided = [
            f"{count} {what}"
            for count, what in (
                (model.heads, "heads"),
                (model.kv_heads, "heads of keys and values"),
                (model.ffn, "inner rows"),
            )
            if count % tensor
        ]
        if undivided:
            refused.append(Refused("tensor", tensor, f"it does not divide {' or '.join(undivided)}"))
        else:
            found.append(tensor)
    return found


def _pipelines(model: Transformer, cluster: Cluster, options: Options, refused: list[Refused]) -> list[int]:
    found = []
    wanted = [options.pipeline] if options.pipeline else divisors(cluster.gpus, model.layers)
    for pipeline in _of_gpus("pipeline", wanted, cluster, refused):
        more = imbalance(model, pipeline, 1)
        if more <= options.uneven or (options.pipeline and pipeline <= model.layers):
            found.append(pipeline)
        else:
            why = f"{model.layers} layers leave the fullest stage {more:.0%} more than the average"
            refused.append(Refused("pipeline", pipeline, why))
    return found


def _contexts(cluster: Cluster, sequence: int, options: Options, refused: list[Refused]) -> list[int]:
    wanted = [options.context] if options.context else divisors(cluster.gpus, max(1, sequence // _LEAST_TOKENS))
    found = []
    for context in _of_gpus("context", wanted, cluster, refused):
        if context == 1 or sequence % (2 * context) == 0:
            found.append(context)
        else:
            refused.append(Refused("context", context, f"{2 * context} pieces of {sequence} tokens are not equal"))
    return found


def _experts(model: Transformer, cluster: Cluster, options: Options, refused: list[Refused]) -> list[int]:
    if options.expert and model.experts % options.expert:
        refused.append(Refused("expert", options.expert, f"it does not divide {model.experts} experts"))
        return []
    return [options.expert] if options.expert else divisors(model.experts, cluster.gpus)


def _of_gpus(axis: str, wanted: Sequence[int], cluster: Cluster, refused: list[Refused]) -> list[int]:
    """Those that divide the GPUs."""
    found = [each for each in wanted if cluster.gpus % each == 0]
    refused += [Refused(axis, each, f"it does not divide {cluster.gpus} GPUs") for each in wanted if each not in found]
    return found


def imbalance(model: Transformer, pipeline: int, chunks: int) -> float:
    """How many more layers than the average the fullest stage has, as a share."""
    return -(-model.layers // (pipeline * chunks)) * chunks * pipeline / model.layers - 1


# ---- what varies within a shape


class Sharing(NamedTuple):
    """What data-parallel ranks keep."""

    strategy: Strategy
    replicas: int
    reshard: bool


def sharings(shape: Shape, cluster: Cluster, options: Options, base: Setup) -> Iterator[Sharing]:
    """Strategies that go with a shape, the plainest first where they are as fast."""
    shards = shape.data * shape.context
    strategies = [each for each in options.strategies if base.offload is not Offload.PARAMETERS or each in _DIVIDING]
    if shards == 1:  # nobody to share with
        yield from (Sharing(each, 1, reshard=each is Strategy.ZERO3) for each in strategies[:1])
        return
    plain = shape.pipeline == 1 and shape.context == 1
    for strategy in strategies:
        if strategy in (Strategy.FSDP2, Strategy.FSDP1):
            for replicas in _replicas(shape, cluster):
                if (shards // replicas) % shape.expert == 0:
                    yield Sharing(strategy, replicas, reshard=True)
                    yield Sharing(strategy, replicas, reshard=False)
        elif strategy in (Strategy.DDP, Strategy.ZERO1) or (plain and shape.tensor == 1 and shape.expert == 1):
            yield Sharing(strategy, 1, reshard=True)


def _replicas(shape: Shape, cluster: Cluster) -> list[int]:
    """One copy over all, over a node, and over four times as many nodes each time."""
    found = [1]
    size = max(1, cluster.per_node // (shape.tensor * shape.context))
    while size < shape.data:
        if size > 1 and shape.data % size == 0:
            found.append(shape.data // size)
        size *= 4
    return found


def orders(model: Transformer, shape: Shape, mine: int, options: Options) -> Iterator[tuple[Schedule, int]]:
    """Schedules, and chunks of a stage, with which ``mine`` sequences can go through the pipeline."""
    if shape.pipeline == 1:
        yield Schedule.ONE_F_ONE_B, 1
        return
    for schedule in options.schedules:
        if schedule is not Schedule.INTERLEAVED:
            yield schedule, 1
        elif mine % shape.pipeline == 0:
            for chunks in _CHUNKS:
                fine = shape.pipeline * chunks <= model.layers
                if fine and imbalance(model, shape.pipeline, chunks) <= options.uneven:
                    yield schedule, chunks


def micro_batches(shape: Shape, schedule: Schedule, mine: int) -> Iterator[tuple[int, int]]:
    """Sequences in a micro-batch and how many of these a step has, from the smallest; exactly ``mine`` together."""
    whole = shape.pipeline if schedule is Schedule.INTERLEAVED else 1
    for size in divisors(mine, LARGEST_MICRO):
        times = mine // size
        if times >= shape.pipeline and times % whole == 0:
            yield size, times


def setup(
    base: Setup, shape: Shape, sharing: Sharing, order: tuple[Schedule, int], micro: tuple[int, int],
    saving: tuple[Loss, Recompute],
) -> Setup:  # fmt: skip
    """All of it as one setup; what a search does not vary is as in ``base``."""
    changed: dict[str, Any] = {
        "strategy": sharing.strategy, "replicas": sharing.replicas, "reshard": sharing.reshard, "data": shape.data,
        "tensor": shape.tensor, "pipeline": shape.pipeline, "context": shape.context, "expert": shape.expert,
        "schedule": order[0], "chunks": order[1], "micro_batch": micro[0], "accumulation": micro[1],
        "loss": saving[0], "recompute": saving[1],
    }  # fmt: skip
    return msgspec.structs.replace(base, **changed)
