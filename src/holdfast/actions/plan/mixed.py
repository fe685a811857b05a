"""A plan for GPUs of several kinds: each gets as much of the batch as it can take in the time of the others."""

from __future__ import annotations

import msgspec

from holdfast.actions.plan.setup import AGAIN, setup_of
from holdfast.actions.plan.wish import Run, Wish, needs
from holdfast.errors import BadValue
from holdfast.plan.batches import Allotment
from holdfast.plan.memory import Answer
from holdfast.plan.mixed import allotment
from holdfast.plan.setup import Recompute, Setup


def runs(wish: Wish) -> tuple[tuple[Run, ...], Allotment | None]:
    """One run for each kind, with its largest micro-batch, and who computes what; None where nothing is sure to fit.

    Raises:
        BadValue: no batch is given or it cannot be met, ranks that share a sequence, or towers.
    """
    if wish.batch is None:
        raise BadValue("a cluster of several kinds of GPU", why="no --batch is given that could be dealt out",
                       next_step="give the global batch, such as --batch 64")  # fmt: skip
    if not wish.model.plain:
        raise BadValue(f"{wish.model.name} on GPUs of several kinds", why="speeds of towers and adapters on each are "
                       "not known here", next_step="measure them with holdfast.probe_speed")  # fmt: skip
    if wish.micro_batch or wish.accumulation:
        raise BadValue("--micro-batch and --accumulation", why="GPUs of several kinds get theirs by their speed",
                       next_step="give --batch alone")  # fmt: skip
    world = wish.gpus
    least = setup_of(wish, world, 1, 1, wish.recompute or AGAIN[-1])
    alone = tuple(
        Run(setup=least, cluster=part, footprint=needs(wish.model, least, part), step=None) for part in wish.parts
    )
    if any(each.footprint.answer is not Answer.FITS for each in alone):
        return alone, None
    setup, dealt = _best(wish)
    found = []
    for part in wish.parts:
        share = next(each for each in dealt.shares if each.kind == part.gpu.name)
        mine = msgspec.structs.replace(
            setup, data=world, micro_batch=max(share.micro_batches), accumulation=len(share.micro_batches)
        )
        found.append(Run(setup=mine, cluster=part, footprint=needs(wish.model, mine, part), step=None))
    return tuple(found), dealt


def _best(wish: Wish) -> tuple[Setup, Allotment]:
    """Of the ways to recompute the one with the shortest step."""
    world, batch = wish.gpus, wish.batch or 0
    refused: BadValue | None = None
    best: tuple[Setup, Allotment] | None = None
    for again in (wish.recompute,) if wish.recompute is not None else AGAIN:
        setup = setup_of(wish, world, 1, 1, again or Recompute.NONE)
        try:
            dealt = allotment(wish.model.main, setup, wish.parts, batch, wish.conditions)
        except BadValue as error:
            refused = error
            continue
        if best is None or dealt.step_s < best[1].step_s:
            best = setup, dealt
    if best is None:
        raise refused or BadValue("the batch", why="nobody can take it")
    return best
