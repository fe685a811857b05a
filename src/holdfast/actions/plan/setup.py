"""The setup of a plan: degrees that were given, and for the rest what is fastest of what fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.actions.plan.wish import PRECISIONS, Run, Wish, run
from holdfast.errors import BadValue
from holdfast.plan.memory import Answer
from holdfast.plan.setup import Recompute, Schedule, Setup, Strategy

#: What is computed again, from the least to the most, where nothing is said.
AGAIN = (Recompute.NONE, Recompute.OPERATIONS, Recompute.FULL)
#: No larger micro-batch is tried where none is given.
_LARGEST = 64
#: Micro-batches of a pipeline's stage where no batch is given: its bubble is then a fifth.
_FILLING = 4


def chosen(wish: Wish) -> Run:
    """The fastest of those that fit; where none does, of those that may; where none of these either, the smallest.

    Raises:
        BadValue: degrees that do not multiply to the GPUs, or a batch that cannot be met exactly.
    """
    runs = [run(wish, setup) for setup in candidates(wish)]
    for answer in (Answer.FITS, Answer.TIGHT):
        if some := [each for each in runs if each.footprint.answer is answer]:
            return max(some, key=lambda each: each.step.tokens_per_s if each.step else 0.0)
    # of equals the last, which computes most again: then what else would make it fit is least
    return min(reversed(runs), key=lambda each: each.footprint.worst.total)


def candidates(wish: Wish) -> Iterator[Setup]:
    """Setups that meet what was given, each with another micro-batch or recomputation where these were not."""
    check(wish)
    data = data_ranks(wish)
    for micro, times in batches(wish, data):
        for again in (wish.recompute,) if wish.recompute is not None else AGAIN:
            yield setup_of(wish, data, micro, times, again)


def check(wish: Wish) -> None:
    """See that the model can be divided so: heads and experts are, whole, and a stage's pieces are of a pipeline.

    Raises:
        BadValue: it cannot.
    """
    model, degrees = wish.model.main, wish.degrees
    tensor, expert = degrees.get("tensor", 1), degrees.get("expert", 1)
    for count, what in ((model.heads, "heads"), (model.kv_heads, "heads of keys and values")):
        if count % tensor:
            fine = [each for each in range(1, min(count, tensor) + 1) if count % each == 0 and wish.gpus % each == 0]
            raise BadValue(f"--tensor {tensor}", why=f"it does not divide the {count} {what} of {model.name}",
                           next_step=f"take {' or '.join(map(str, fine[-2:]))}")  # fmt: skip
    if expert > 1 and (model.experts == 1 or model.experts % expert):
        why = f"{model.name} has {model.experts} experts" if model.experts > 1 else f"{model.name} has no experts"
        raise BadValue(f"--expert {expert}", why=why, next_step="take a degree that divides them, or none")
    if degrees.get("chunks", 1) > 1 and degrees.get("pipeline", 1) == 1:
        raise BadValue("--chunks", why="pieces are of pipeline stages, and there is no pipeline",
                       next_step="give --pipeline, too")  # fmt: skip


def setup_of(wish: Wish, data: int, micro: int, times: int, again: Recompute) -> Setup:
    """What was given, with these, and with what a module of the user's own says itself."""
    chunks = wish.degrees.get("chunks", 1)
    usual = Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B
    degrees: dict[str, Any] = dict(wish.degrees)
    made = Setup(
        strategy=wish.strategy or Strategy.FSDP2, data=data, micro_batch=micro, accumulation=times,
        sequence=wish.sequence, recompute=again, flash=wish.flash, compiled=wish.compiled,
        precision=PRECISIONS[wish.half], optimizer=wish.optimizer, offload=wish.offload, loss=wish.loss,
        schedule=wish.schedule or usual, fused_optimizer=wish.fused_optimizer, bucket_views=wish.bucket_views,
        reshard=wish.reshard, **degrees,
    )  # fmt: skip
    return wish.model.described.as_written(made) if wish.model.described is not None else made


def data_ranks(wish: Wish) -> int:
    """Ranks with batches of their own.

    Raises:
        BadValue: the other degrees do not divide the GPUs.
    """
    shared = wish.degrees.get("tensor", 1) * wish.degrees.get("pipeline", 1) * wish.degrees.get("context", 1)
    gpus = wish.gpus
    if shared < 1 or gpus % shared:
        near = max(1, gpus // shared) * shared if shared > 0 else gpus
        raise BadValue(f"{gpus} GPUs", why=f"tensor x pipeline x context is {shared}, which does not divide them",
                       next_step=f"take {near} or {near + shared} GPUs, or other degrees")  # fmt: skip
    return gpus // shared


def batches(wish: Wish, data: int) -> list[tuple[int, int]]:
    """Pairs of micro-batch and accumulation that give the batch that was asked for.

    Raises:
        BadValue: there are none.
    """
    stages = wish.degrees.get("pipeline", 1)
    if wish.batch is None:
        times = wish.accumulation or (_FILLING * stages if stages > 1 else 1)
        return [(wish.micro_batch or 1, times)]
    if wish.micro_batch and wish.accumulation:
        if (made := data * wish.micro_batch * wish.accumulation) != wish.batch:
            parts = f"{data} data-parallel ranks x {wish.micro_batch} x {wish.accumulation}"
            raise BadValue(f"--batch {wish.batch}", why=f"{parts} is {made}", next_step="leave one of the three out")
        return [(wish.micro_batch, wish.accumulation)]
    unit = data * (wish.micro_batch or wish.accumulation or 1)
    if wish.batch % unit:
        raise BadValue(f"--batch {wish.batch}", why=f"{data} ranks with equal shares make multiples of {unit}",
                       next_step=_closest(wish.batch, unit))  # fmt: skip
    mine = wish.batch // data
    if wish.micro_batch:
        return [(wish.micro_batch, mine // wish.micro_batch)]
    if wish.accumulation:
        return [(mine // wish.accumulation, wish.accumulation)]
    return [(micro, mine // micro) for micro in range(1, min(mine, _LARGEST) + 1) if mine % micro == 0]


def _closest(batch: int, unit: int) -> str:
    below = batch // unit * unit
    words = f"{below} or {below + unit}" if below else str(unit)
    return f"{words} can be met exactly; unequal shares meet {batch} (holdfast.HeterogeneousSampler)"
