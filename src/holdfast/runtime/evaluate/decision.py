"""What ranks tell each other of their share of an evaluation, and what follows from it for all of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import nan
from typing import TypeVar

import msgspec
from msgspec.structs import replace

Kind = TypeVar("Kind", bound=msgspec.Struct)


class Tally(msgspec.Struct, frozen=True):
    """Sums over the samples of one dataset: those that one rank has seen, or all ranks.

    ``expected`` is the number of samples in this share, ``whole`` that of the dataset over all ranks; None where nobody
    can know. ``sums`` holds sum and count of each metric.
    """

    seen: int = 0
    expected: int | None = None
    whole: int | None = None
    complete: bool = False
    sums: dict[str, tuple[float, float]] = {}

    @property
    def coverage(self) -> float:
        """The share of samples that was seen, from 0 to 1; NaN where their number is not known."""
        if self.complete:
            return 1.0
        if self.expected is None:
            return nan
        return min(self.seen / self.expected, 1.0) if self.expected else 0.0


class Outcome(msgspec.Struct, frozen=True):
    """How one rank fared in one try. ``lost``: its group for evaluation is not used any more."""

    tallies: dict[str, Tally] = {}
    trouble: str = ""
    lost: bool = False


class Decision(msgspec.Struct, frozen=True):
    """What all ranks do: try again, or take these tallies, after so many ``attempts``.

    ``absent`` are the ranks that were not heard in time, ``troubles`` what went wrong in this try and those before.
    """

    tallies: dict[str, Tally]
    again: bool = False
    troubles: dict[int, str] = {}
    absent: tuple[int, ...] = ()
    lost: bool = False
    attempts: int = 1


def encode(value: msgspec.Struct) -> str:
    """As text; unlike msgspec's own JSON, NaN and infinities stay what they are."""
    return json.dumps(msgspec.to_builtins(value, str_keys=True))


def decode(text: str, kind: type[Kind]) -> Kind:
    """The reverse of :func:`encode`."""
    return msgspec.convert(json.loads(text), kind, strict=False)


def weigh(outcomes: Mapping[int, Outcome], ranks: Iterable[int], *, may_retry: bool) -> Decision:
    """What follows from the outcomes of those of ``ranks`` that were heard.

    A rank that was not heard is not waited for in another try: its time is over by then.
    """
    ranks = tuple(ranks)
    absent = tuple(rank for rank in ranks if rank not in outcomes)
    names = dict.fromkeys(name for outcome in outcomes.values() for name in outcome.tallies)
    tallies = {
        name: _add([outcome.tallies.get(name, Tally()) for outcome in outcomes.values()], len(ranks)) for name in names
    }
    return Decision(
        tallies,
        again=may_retry and not absent and not all(tally.complete for tally in tallies.values()),
        troubles={rank: outcome.trouble for rank, outcome in outcomes.items() if outcome.trouble},
        absent=absent,
        lost=bool(absent) or any(outcome.lost for outcome in outcomes.values()),
    )


def _add(tallies: list[Tally], size: int) -> Tally:
    """One tally of those of the ranks that were heard; the others' shares are taken to be as large as theirs."""
    sums: dict[str, tuple[float, float]] = {}
    for tally in tallies:
        for name, (total, count) in tally.sums.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + total, before[1] + count
    return Tally(
        seen=sum(tally.seen for tally in tallies),
        expected=_expected(tallies, size),
        complete=len(tallies) == size and all(tally.complete for tally in tallies),
        sums=sums,
    )


def _expected(tallies: list[Tally], size: int) -> int | None:
    wholes = [tally.whole for tally in tallies if tally.whole is not None]
    if wholes:
        return max(wholes)
    shares = [tally.expected for tally in tallies]
    known = [share for share in shares if share is not None]
    if not known or len(known) < len(shares):
        return None
    return sum(known) if len(known) == size else round(sum(known) * size / len(known))


def as_complete_as(decision: Decision, outcome: Outcome) -> Outcome:
    """The outcome of this rank, in which a dataset is complete only where it is so on all ranks."""
    tallies = {
        name: replace(tally, complete=tally.complete and decision.tallies[name].complete)
        for name, tally in outcome.tallies.items()
    }
    return replace(outcome, tallies=tallies)
