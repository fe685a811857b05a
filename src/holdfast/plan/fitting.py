"""What would make a run fit that does not: changes in the order of what they cost, each with the bytes it saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from holdfast.plan.memory import Answer, Footprint
from holdfast.plan.setup import Loss, Offload, Optimizer, Recompute, Setup, Strategy

Needs = Callable[[Setup], Footprint]


class Change(msgspec.Struct, frozen=True):
    """One change of a setup, or the last of several; ``setup`` and ``needs`` are with all of them.

    ``saved``: bytes of the stage that needs most, below 0 where it needs more; ``cost``: what is paid for it.
    """

    what: str
    cost: str
    setup: Setup
    needs: Footprint
    saved: int


class Ways(msgspec.Struct, frozen=True):
    """``alone``: changes each of which is enough; ``together``: changes to be made one after the other.

    The last one of ``together`` fits, or all of them are not enough (its ``needs.answer`` says).
    """

    alone: tuple[Change, ...]
    together: tuple[Change, ...]


def what_would_fit(needs: Needs, setup: Setup) -> Ways:
    """Changes with which a run fits, the cheapest first.

    ``needs`` says what a setup needs of a GPU of known memory: ``lambda setup: footprint(model, setup, memory)``,
    and of towers the same.
    """
    before = needs(setup)
    return Ways(tuple(_alone(needs, setup, before)), _together(needs, before, setup))


def each_change(needs: Needs, setup: Setup) -> Iterator[Change]:
    """Every change by itself, whether it is enough or not, the cheapest kind first and of a kind the mildest first."""
    before = needs(setup)
    for kind in _KINDS:
        for what, cost, run in kind(setup):
            after = needs(run)
            yield Change(what, cost, run, after, before.worst.total - after.worst.total)


def _together(needs: Needs, before: Footprint, setup: Setup) -> tuple[Change, ...]:
    """Those that save a twentieth, added up until it fits; where that is not enough, those that save anything."""
    large = _added(needs, before, setup, 1 / 20)
    if large and large[-1].needs.answer is Answer.FITS:
        return large
    return _added(needs, before, setup, 0.0)


def _added(needs: Needs, before: Footprint, setup: Setup, least: float) -> tuple[Change, ...]:
    """Each kind is asked for again from where the others have led."""
    made: list[Change] = []
    for kind in _KINDS:
        for what, cost, run in kind(setup):
            after = needs(run)
            saved = before.worst.total - after.worst.total
            if saved > least * before.worst.total:
                made.append(Change(what, cost, run, after, saved))
                setup, before = run, after
            if before.answer is Answer.FITS:
                return tuple(made)
    return tuple(made)


def _alone(needs: Needs, setup: Setup, before: Footprint) -> Iterator[Change]:
    """Of each kind the mildest that is enough."""
    for kind in _KINDS:
        for what, cost, run in kind(setup):
            after = needs(run)
            if after.answer is Answer.FITS:
                yield Change(what, cost, run, after, before.worst.total - after.worst.total)
                break


# ---- kinds of change, the cheapest first; each gives its steps, the mildest first

_Step = tuple[str, str, Setup]


def _attention(setup: Setup) -> Iterator[_Step]:
    if not setup.flash:
        yield "flash attention", "none", _with(setup, flash=True)


def _loss(setup: Setup) -> Iterator[_Step]:
    if setup.loss is Loss.EAGER:
        yield "compute the loss in chunks", "none to speak of", _with(setup, loss=Loss.CHUNKED)


def _kernel(setup: Setup) -> Iterator[_Step]:
    zero = setup.strategy in (Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3)
    if not (setup.fused_optimizer or zero) and setup.optimizer is Optimizer.ADAMW:
        yield "the optimizer's fused kernel", "none", _with(setup, fused_optimizer=True)


def _share(setup: Setup) -> Iterator[_Step]:
    if setup.shards > 1 and not setup.shards_parameters:
        yield "FSDP2 instead of " + setup.strategy, "half as much communication again", _with(
            setup, strategy=Strategy.FSDP2)  # fmt: skip
    if setup.shards_parameters and not setup.reshard and setup.pipeline == 1:
        yield "gather parameters again for backward", "half as much communication again", _with(setup, reshard=True)
    if setup.replicas > 1 and setup.shards_parameters:
        yield "shard over all ranks, without replicas", "gathering over slower links", _with(setup, replicas=1)


def _sequences(setup: Setup) -> Iterator[_Step]:
    """Of a pipeline, whose peak follows the micro-batch too."""
    size, times = setup.micro_batch, setup.accumulation
    while size > 1 and size % 2 == 0:
        size, times = size // 2, times * 2
        yield f"micro-batches of {size}, {times} of them a step", "smaller matrix products", _with(
            setup, micro_batch=size, accumulation=times)  # fmt: skip


def _again(setup: Setup) -> Iterator[_Step]:
    if setup.recompute is Recompute.NONE and setup.flash:
        yield "recompute cheap operations", "some 10 % of speed", _with(setup, recompute=Recompute.OPERATIONS)
    if setup.recompute is not Recompute.FULL:
        yield "recompute whole layers", "a third more computation", _with(setup, recompute=Recompute.FULL)


def _optimizer(setup: Setup) -> Iterator[_Step]:
    if setup.optimizer is Optimizer.ADAMW:
        yield "AdamW in 8 bits", "another optimizer", _with(setup, optimizer=Optimizer.ADAMW_8BIT)


def _tensor(setup: Setup) -> Iterator[_Step]:
    """The same GPUs and the same batch."""
    tensor, data, times = setup.tensor, setup.data, setup.accumulation
    while tensor < 8 and data % 2 == 0 and (data // 2) % setup.replicas == 0:
        tensor, data, times = 2 * tensor, data // 2, 2 * times
        if data * setup.context % setup.expert:
            return
        yield f"tensor parallelism of {tensor}", "communication in each layer", _with(
            setup, tensor=tensor, data=data, accumulation=times)  # fmt: skip


def _host(setup: Setup) -> Iterator[_Step]:
    fsdp = setup.strategy in (Strategy.FSDP1, Strategy.FSDP2)
    if setup.offload is Offload.NONE and fsdp:
        yield "all states on the host", "all parameters over PCIe, twice a micro-batch, and a step on the CPU", _with(
            setup, offload=Offload.PARAMETERS)  # fmt: skip
        return
    if setup.offload is Offload.NONE:
        yield "the optimizer's states on the host", "a step over PCIe and on the CPU", _with(
            setup, offload=Offload.OPTIMIZER)  # fmt: skip
    if setup.offload is not Offload.PARAMETERS and setup.shards_parameters and not fsdp:
        yield "parameters on the host too", "all parameters over PCIe, twice a micro-batch", _with(
            setup, offload=Offload.PARAMETERS)  # fmt: skip


def _ranks(setup: Setup) -> Iterator[_Step]:
    """Only where they share something."""
    data = setup.data
    while setup.strategy is not Strategy.DDP and data < 64 * setup.data:
        data *= 2
        run = _with(setup, data=data)
        yield f"{run.world_size} GPUs", f"{run.world_size // setup.world_size} times the GPUs", run


def _with(setup: Setup, **changes: object) -> Setup:
    return msgspec.structs.replace(setup, **changes)


_KINDS: tuple[Callable[[Setup], Iterator[_Step]], ...] = (
    _attention, _loss, _kernel, _share, _sequences, _again, _optimizer, _tensor, _host, _ranks,
)  # fmt: skip
