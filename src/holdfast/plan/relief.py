"""What each change of a run that is out of memory would save and what speed it would cost, in the order to try them.

The models of memory and of time, asked for every change alone. Where an error tells how much was wanting, a change has
to save that, too: it was measured, and the model of memory is not.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.fitting import Change, Needs, each_change, what_would_fit
from holdfast.plan.memory import Answer, Footprint
from holdfast.plan.setup import Setup
from holdfast.plan.time import Step

#: Seconds of a setup's step, on as many GPUs as it has ranks.
Takes = Callable[[Setup], Step]
#: Of what a GPU needs: less is not worth a word.
_LEAST = 1 / 100
#: Speeds that differ by less are alike.
_ALIKE = 1 / 100
#: More GPUs than so many times those that are there are no advice.
_MOST_TIMES = 4


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One change, which saves so many bytes of a GPU; ``enough``: it is alone.

    ``lost``: the share of a GPU's tokens a second, below 0 where it gains, None where the time is not known.
    """

    change: Change
    saved: int
    lost: float | None
    enough: bool


class Relief(msgspec.Struct, frozen=True, kw_only=True):
    """The run as it is, the bytes that were wanting (None: nobody says), and what could be changed.

    ``together``: where nothing is enough alone, changes to be made one after the other.
    """

    needs: Footprint
    step: Step | None
    missing: int | None
    options: tuple[Option, ...]
    together: tuple[Change, ...] = ()


def relief(needs: Needs, takes: Takes, setup: Setup, missing: int | None = None) -> Relief:
    """Changes that save memory: first those that are enough alone, by the speed that they lose, then the others.

    ``needs`` and ``takes`` say what a setup needs and how long its step takes; ``missing``: how many bytes more the
    request that failed needed, as the error tells. That is the least: what would have been asked for next is not known.
    """
    before, took = needs(setup), _step(takes, setup)
    found = []
    for change in each_change(needs, setup):
        if change.saved < _LEAST * before.worst.total or change.setup.world_size > _MOST_TIMES * setup.world_size:
            continue
        enough = change.needs.answer is Answer.FITS and change.saved >= (missing or 0)
        after = _step(takes, change.setup)
        lost = 1 - after.tokens_per_s_per_gpu / took.tokens_per_s_per_gpu if took and after else None
        found.append(Option(change=change, saved=change.saved, lost=lost, enough=enough))
    options = tuple(sorted(found, key=_order))
    together = () if any(each.enough for each in options) else what_would_fit(needs, setup).together
    return Relief(needs=before, step=took, missing=missing, options=options, together=together)


def _order(option: Option) -> tuple[bool, int, float]:
    """Of those that lose alike, what saves most comes first; what costs nobody knows comes last."""
    lost = round(max(option.lost, 0.0) / _ALIKE) if option.lost is not None else 1 << 30
    return not option.enough, lost, -option.saved


def _step(takes: Takes, setup: Setup) -> Step | None:
    try:
        return takes(setup)
    except BadValue:
        return None
