"""The layout of a plan where nothing was said of it: the best of all that fit, and why the others lost."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.actions.plan.setup import setup_of
from holdfast.actions.plan.wish import Run, Wish, run
from holdfast.plan.layout import Choice, layouts
from holdfast.plan.layout_space import Options
from holdfast.plan.setup import Recompute

#: Sequences a step for each GPU, where no batch is given.
_EACH = 4


def wanted(wish: Wish) -> bool:
    """Whether a layout is to be searched for: nothing is said of it, GPUs are alike, and the model is of one tower."""
    said = wish.degrees or wish.strategy or wish.micro_batch or wish.accumulation or wish.schedule
    return not said and len(wish.parts) == 1 and bool(wish.model.towers) and wish.model.plain


def batch(wish: Wish) -> int:
    """The one that was asked for, or a few sequences for each GPU."""
    return wish.batch or _EACH * wish.cluster.gpus


def searched(wish: Wish) -> tuple[Run, Choice]:
    """The best layout as a run; where none fits, the one that needs least.

    Raises:
        BadValue: no layout meets the batch exactly.
    """
    base = setup_of(wish, wish.cluster.gpus, 1, 1, wish.recompute or Recompute.NONE)
    base = replace(base, fused_optimizer=True, bucket_views=True)  # they cost nothing
    options = Options(recomputes=(wish.recompute,)) if wish.recompute is not None else Options()
    found = layouts(
        wish.model.main, wish.cluster, batch(wish), wish.sequence, base=base, options=options,
        conditions=wish.conditions,
    )  # fmt: skip
    if found.best:
        best = found.best[0]
        return Run(setup=best.setup, cluster=wish.cluster, footprint=best.needs, step=best.step), found
    if found.shortage is None:
        return run(wish, base), found
    return run(wish, found.shortage.setup), found
