"""What else could be done so that a step takes less, and what each change would give and cost, by the model of time.

Whether a change fits into memory is not asked here: ``costs`` says where it needs more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.rates import USUAL, Conditions
from holdfast.plan.setup import Schedule, Setup, Strategy
from holdfast.plan.time import Step, step
from holdfast.plan.traffic import GATHERING

#: A change that gives less than this is not worth a word.
_LEAST_GAIN = 1.01
#: Times as large a bucket, and times as much accumulation.
_BUCKETS, _ACCUMULATION = 8, 4


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A change of setup or conditions. ``gain``: times the tokens a second; ``costs``: what it needs besides."""

    name: str
    costs: str
    gain: float
    setup: Setup
    conditions: Conditions
    step: Step


def remedies(
    model: Transformer, setup: Setup, cluster: Cluster, conditions: Conditions | None = None
) -> tuple[Remedy, ...]:
    """Every change that gives something, the best first."""
    given = conditions or USUAL
    before = step(model, setup, cluster, given).tokens_per_s
    found = []
    for name, costs, changed, under in _changes(model, setup, cluster, given):
        after = step(model, changed, cluster, under)
        gain = after.tokens_per_s / before
        if gain >= _LEAST_GAIN:
            found.append(Remedy(name=name, costs=costs, gain=gain, setup=changed, conditions=under, step=after))
    return tuple(sorted(found, key=lambda each: -each.gain))


_Change = tuple[str, str, Setup, Conditions]


def _changes(model: Transformer, setup: Setup, cluster: Cluster, given: Conditions) -> Iterator[_Change]:
    yield from _of_batch(setup, given)
    yield from _of_bytes(setup, given)
    yield from _of_layout(model, setup, cluster, given)
    yield from _of_order(setup, given)


def _with(setup: Setup, **more: Any) -> Setup:
    return msgspec.structs.replace(setup, **more)


def _of_batch(setup: Setup, given: Conditions) -> Iterator[_Change]:
    """More work between meetings."""
    longer = _with(setup, accumulation=setup.accumulation * _ACCUMULATION)
    yield f"{_ACCUMULATION} times as much accumulation", "a larger global batch", longer, given
    larger = _with(setup, micro_batch=setup.micro_batch * 2)
    yield "micro-batches twice as large", "memory for activations, and a larger global batch", larger, given
    if setup.accumulation % 2 == 0:
        same = _with(setup, micro_batch=setup.micro_batch * 2, accumulation=setup.accumulation // 2)
        yield "micro-batches twice as large, half as many", "memory for activations", same, given


def _of_bytes(setup: Setup, given: Conditions) -> Iterator[_Change]:
    """Less to send."""
    if setup.precision.reduced > 2:
        half = msgspec.structs.replace(setup.precision, reduced=2)
        yield "gradients reduced in bf16", "precision of their sum", _with(setup, precision=half), given
    if setup.precision.reduced > 1:
        eighth = msgspec.structs.replace(setup.precision, reduced=1)
        compressed = _with(setup, precision=eighth)
        yield "gradients reduced in 8 bits", "precision, and error feedback to keep", compressed, given
    if setup.strategy in GATHERING and setup.reshard and setup.pipeline == 1:
        yield "weights kept from forward to backward", "memory for all weights", _with(setup, reshard=False), given


def _of_layout(model: Transformer, setup: Setup, cluster: Cluster, given: Conditions) -> Iterator[_Change]:
    """Who shares what with whom."""
    room = max(1, cluster.per_node // setup.tensor)
    if setup.strategy in GATHERING and setup.shards > room and setup.context == 1 and setup.data % room == 0:
        hybrid = _with(setup, replicas=setup.data // room)
        memory = "memory for a node's share of the states"
        yield "shards within a node, replicas across (HSDP)", memory, hybrid, given
        if setup.precision.reduced > 2:
            half = msgspec.structs.replace(setup.precision, reduced=2)
            yield "HSDP, and gradients reduced in bf16", memory, _with(hybrid, precision=half), given
    if setup.strategy in GATHERING:
        zero1 = _with(setup, strategy=Strategy.ZERO1, replicas=1)
        yield "optimizer states alone divided (ZeRO-1)", "memory for all weights and gradients", zero1, given
    if setup.replicas == 1 and setup.expert == 1:
        for tensor in (2, 4, 8):
            times = tensor // setup.tensor
            fits = tensor <= cluster.per_node and model.kv_heads % tensor == 0 and tensor % setup.tensor == 0
            if times > 1 and fits and setup.data % times == 0:
                wider = _with(setup, tensor=tensor, data=setup.data // times, micro_batch=setup.micro_batch * times)
                yield f"tensor parallel over {tensor} GPUs of a node", "nothing of the global batch", wider, given


def _of_order(setup: Setup, given: Conditions) -> Iterator[_Change]:
    """What happens at the same time."""
    if not given.prefetch:
        yield "weights gathered ahead", "memory for another layer", setup, msgspec.structs.replace(given, prefetch=True)
    if setup.tensor > 1 and not given.tensor_overlap:
        overlapped = msgspec.structs.replace(given, tensor_overlap=True)
        yield "tensor parallel's calls beside its products", "asynchronous tensor parallelism", setup, overlapped
    if setup.strategy not in GATHERING:
        bigger = msgspec.structs.replace(given, bucket=given.bucket * _BUCKETS)
        yield f"buckets {_BUCKETS} times as large", "memory for buckets", setup, bigger
    if setup.pipeline > 1:
        if setup.schedule is not Schedule.ZERO_BUBBLE:
            filled = _with(setup, schedule=Schedule.ZERO_BUBBLE)
            yield "a schedule that fills bubbles", "memory, as weights' gradients are put off", filled, given
        chunks = setup.chunks * 2
        yield (f"{chunks} chunks of layers a stage, interleaved", "more sending between stages",
               _with(setup, schedule=Schedule.INTERLEAVED, chunks=chunks), given)  # fmt: skip
    if given.slowest > 1:
        yield "the slowest rank replaced", "a GPU", setup, msgspec.structs.replace(given, slowest=1.0)
    if given.loading_s:
        yield (
            "data loaded ahead",
            "processes and memory of the host",
            setup,
            msgspec.structs.replace(given, loading_s=0.0),
        )
