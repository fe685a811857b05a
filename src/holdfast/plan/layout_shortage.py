"""What is said where there is no layout: batches that can be met, what would make it fit, how many GPUs would."""

from __future__ import annotations

import msgspec

from holdfast.errors import BadValue
from holdfast.plan import layout_space as space
from holdfast.plan.fitting import Ways, what_would_fit
from holdfast.plan.layout_search import Question, Seen, fits_at_all
from holdfast.plan.memory import Footprint, footprint
from holdfast.plan.setup import Schedule, Setup

#: So many times the GPUs are asked for at most.
_MOST_TIMES = 1024


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing fits: the layout that needs least, changes that would make it fit, and GPUs with which one does.

    ``gpus``: of the same kind, 2 or 3 times as many, 4 or 6 and so on; None where not even a thousand times as many are
    enough, or they could not meet the batch.
    """

    setup: Setup
    needs: Footprint
    ways: Ways
    gpus: int | None


def shortage(question: Question, seen: Seen) -> Shortage:
    """Of a search that found nothing."""
    least = seen.least["all", None]
    ways = what_would_fit(lambda run: footprint(question.model, run, question.memory), least.setup)
    return Shortage(setup=least.setup, needs=least.needs, ways=ways, gpus=_enough(question))


def _enough(question: Question) -> int | None:
    """GPUs with which something fits, from twice as many on."""
    gpus = question.cluster.gpus
    for times in sorted(step << power for step in (2, 3) for power in range(10)):
        try:
            if fits_at_all(question._replace(cluster=question.cluster.resized(gpus * times))):
                return gpus * times
        except BadValue:  # more than there are anywhere
            return None
    return None


def exact_batch(question: Question) -> None:
    """Refuse a batch that no layout meets exactly.

    Raises:
        BadValue: no degrees divide it; the nearest ones that can be met are offered.
    """
    found, refused = space.shapes(question.model, question.cluster, question.base.sequence, question.options)
    model, options = question.model, question.options
    may = [each for each in found if question.allows(each) and question.sharings(each)]
    shapes = [each for each in may if any(space.orders(model, each, each.pipeline, options))]
    if not shapes:
        said = [f"{each.axis} {each.value}: {each.why}" for each in refused if getattr(options, each.axis)]
        why = said[0] if said else f"{model.name} cannot be divided so over {question.cluster}"
        raise BadValue("the layout that is asked for", why=why)
    if any(question.orders(shape) for shape in shapes):
        return
    batch = question.global_batch
    interleaved = set(options.schedules) == {Schedule.INTERLEAVED}
    units = [(each.data * (each.pipeline if interleaved else 1), each.data * each.pipeline) for each in shapes]
    below = max((batch // unit * unit for unit, least in units if least <= batch), default=0)
    above = min(max(-(-batch // unit) * unit, least) for unit, least in units)
    raise BadValue(
        f"a batch of {batch} sequences", why=f"no layout of {model.name} on {question.cluster} meets it exactly",
        next_step=f"take {below} or {above}" if below else f"take {above}",
    )  # fmt: skip
