"""Combine the outcomes of all ranks' shares of an evaluation into one decision. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import nan
from typing import TypeVar

import msgspec
from msgspec.structs import replace

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class DatasetTally(msgspec.Struct, frozen=True):
    """Sums over the samples of one dataset, as one rank has seen them, or all ranks.

    ``expected`` is the number of samples in this share, ``whole`` that of the dataset over all
    ranks; None if unknown. ``sums`` holds sum and count of each metric.
    """

    seen: int = 0
    expected: int | None = None
    whole: int | None = None
    complete: bool = False
    sums: dict[str, tuple[float, float]] = {}

    @property
    def coverage(self) -> float:
        """Return the share of samples seen, from 0 to 1; NaN if their number is unknown."""
        if self.complete:
            return 1.0
        if self.expected is None:
            return nan
        return min(self.seen / self.expected, 1.0) if self.expected else 0.0


class RankOutcome(msgspec.Struct, frozen=True):
    """Outcome of one attempt on one rank; ``group_lost``: its evaluation group is broken."""

    tallies: dict[str, DatasetTally] = {}
    error: str = ""
    group_lost: bool = False


class EvaluationDecision(msgspec.Struct, frozen=True):
    """What all ranks do: retry, or use these tallies, after ``attempts`` attempts.

    ``missing`` are the ranks that did not report in time, ``errors`` those of this and earlier
    attempts.
    """

    tallies: dict[str, DatasetTally]
    retry: bool = False
    errors: dict[int, str] = {}
    missing: tuple[int, ...] = ()
    group_lost: bool = False
    attempts: int = 1


def encode(value: msgspec.Struct) -> str:
    """Encode as JSON; unlike with msgspec's own, NaN and infinities are preserved."""
    return json.dumps(msgspec.to_builtins(value, str_keys=True))


def decode(text: str, kind: type[_Struct]) -> _Struct:
    """Decode what :func:`encode` returned."""
    return msgspec.convert(json.loads(text), kind, strict=False)


def combine_outcomes(
    outcomes: Mapping[int, RankOutcome], ranks: Iterable[int], *, may_retry: bool
) -> EvaluationDecision:
    """Return the decision over the outcomes of those of ``ranks`` that reported.

    A missing rank gets no further attempt: its budget is exhausted by then.
    """
    ranks = tuple(ranks)
    missing = tuple(rank for rank in ranks if rank not in outcomes)
    names = dict.fromkeys(name for outcome in outcomes.values() for name in outcome.tallies)
    tallies = {}
    for name in names:
        shares = [outcome.tallies.get(name, DatasetTally()) for outcome in outcomes.values()]
        tallies[name] = _add_shares(shares, len(ranks))
    is_complete = all(tally.complete for tally in tallies.values())
    return EvaluationDecision(
        tallies,
        retry=may_retry and not missing and not is_complete,
        errors={rank: outcome.error for rank, outcome in outcomes.items() if outcome.error},
        missing=missing,
        group_lost=bool(missing) or any(outcome.group_lost for outcome in outcomes.values()),
    )


def _add_shares(shares: list[DatasetTally], size: int) -> DatasetTally:
    """Add the shares of the ranks that reported; missing ones are assumed to be as large."""
    sums: dict[str, tuple[float, float]] = {}
    for share in shares:
        for name, (total, count) in share.sums.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + total, before[1] + count
    return DatasetTally(
        seen=sum(share.seen for share in shares),
        expected=_expected_samples(shares, size),
        complete=len(shares) == size and all(share.complete for share in shares),
        sums=sums,
    )


def _expected_samples(shares: list[DatasetTally], size: int) -> int | None:
    wholes = [share.whole for share in shares if share.whole is not None]
    if wholes:
        return max(wholes)
    known = [share.expected for share in shares if share.expected is not None]
    if not known or len(known) < len(shares):
        return None
    return sum(known) if len(known) == size else round(sum(known) * size / len(known))


def limit_completeness(decision: EvaluationDecision, outcome: RankOutcome) -> RankOutcome:
    """Return this rank's outcome, with a dataset complete only if it is on all ranks."""
    tallies = {
        name: replace(tally, complete=tally.complete and decision.tallies[name].complete)
        for name, tally in outcome.tallies.items()
    }
    return replace(outcome, tallies=tallies)
