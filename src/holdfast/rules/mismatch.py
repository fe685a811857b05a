"""Which cause it is when ranks of one group did not make the same calls: the source around the two calls decides.

``if rank == 0:`` around the odd call, a loop that the odd rank has left, an exception swallowed inside that loop: each
is another bug with another remedy, although the communicator sees the same disagreement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.facts.ranks import Operation, Place, RankState
from holdfast.findings import Fact, Finding, Subject, finding
from holdfast.report.ranksets import compress_ranks
from holdfast.rules.causes import by_name
from holdfast.rules.divergence import ROOTED, Divergence
from holdfast.rules.places import Source, is_after_loop_of, loop_swallows, rank_guard
from holdfast.rules.roots import of_all_ranks
from holdfast.rules.shortage import advised
from holdfast.rules.waits import Wait

_BY_KIND = {
    "operation": "mismatched-operation",
    "dtype": "mismatched-dtype",
    "shape": "mismatched-shape",
    "arguments": "collective-mismatch",
    "line": "collective-mismatch",
}


def explain(parted: Divergence, ranks: Mapping[int, RankState], source: Source) -> Finding:
    """The finding about ranks that parted."""
    ranks_of_odd, odd, usual = _sides(parted, ranks, source)
    who = ("rank " if len(ranks_of_odd) == 1 else "ranks ") + compress_ranks(ranks_of_odd)
    name, place, message, confidence = _cause(parted, odd, usual, who, source)
    if parted.tie and confidence < 0.8:
        message += " (a tie: as many ranks did the one as the other)"
    subject = _subject(ranks_of_odd[0], ranks, place)
    evidence = _evidence(parted, ranks_of_odd, odd, usual)
    return finding(by_name(name), message, subject=subject, evidence=evidence, confidence=confidence)


def _subject(rank: int, ranks: Mapping[int, RankState], place: Place | None) -> Subject:
    state = ranks.get(rank)
    host = (state.host or None) if state else None
    return Subject(rank=rank, host=host, file=place.file if place else None, line=place.line if place else None)


def explain_line(parted: Divergence, ranks: Mapping[int, RankState], source: Source) -> Finding | None:
    """The finding about ranks that made the same collective from different lines, where the source tells why."""
    odd_ranks, odd, usual = _sides(parted, ranks, source)
    told = parted.skipped is not None or rank_guard(odd, usual, source) is not None
    return explain(parted, ranks, source) if told and not (parted.tie and len(odd_ranks) > 1) else None


def _sides(
    parted: Divergence, ranks: Mapping[int, RankState], source: Source
) -> tuple[tuple[int, ...], Operation, Operation]:
    """Who is odd, with one call of either side.

    A tie goes to the side whose call stands under a test of the rank, or else behind the loop that the other is in.
    """
    odd, usual = parted.odd, parted.usual
    told = rank_guard(odd, usual, source) or is_after_loop_of(odd, usual, source)
    told_of_others = rank_guard(usual, odd, source) or is_after_loop_of(usual, odd, source)
    if not parted.tie or told or not told_of_others:
        return parted.minority, odd, usual
    others = tuple(
        rank
        for rank, state in sorted(ranks.items())
        if rank not in parted.minority and any(call.group == parted.group for call in (*state.recent, *state.pending))
    )
    return others, usual, odd


def _cause(
    parted: Divergence, odd: Operation, usual: Operation, who: str, source: Source
) -> tuple[str, Place | None, str, float]:
    """Name of the cause, the line to show, the sentence, the confidence."""
    guarded = rank_guard(odd, usual, source)
    did, theirs = _said(odd), _said(usual)
    if guarded is not None:
        guard, place = guarded
        through = f", called at {_short(place)}," if place != odd.site else ""
        text = f"only {who} enters {did}{through} under {guard.text!r}; the others are in {theirs}"
        return "rank-guarded-collective", place, text, 0.95
    if parted.skipped is not None:
        text = f"{who} left out {_said(parted.skipped)} and is one call behind since"
        return "rank-skips-collective", parted.skipped.site, text, 0.85
    if is_after_loop_of(odd, usual, source):
        handler = loop_swallows(usual, source)
        if handler is not None:
            text = f"{who} made fewer calls than the others: an exception is swallowed at {_short(handler)}"
            return "rank-skips-collective", handler, text, 0.8
        text = f"{who} left the loop first and is in {did}; the others are still in {theirs}"
        return "uneven-inputs", odd.site, text, 0.9
    text = f"{who} makes {did}: {_difference(parted.kind, odd, usual)}"
    return _BY_KIND[parted.kind], odd.site, text, 0.6 if parted.tie else 0.9


def _difference(kind: str, odd: Operation, usual: Operation) -> str:
    if kind == "arguments":
        return f"{_arguments(odd)} where the others say {_arguments(usual)}"
    if kind == "dtype":
        return f"{odd.dtype} where the others send {usual.dtype}"
    if kind == "shape":
        return f"{_size(odd)} where the others send {_size(usual)}"
    return f"the others make {_said(usual)}"


def _arguments(call: Operation) -> str:
    root = f"root {call.tag}" if call.name in ROOTED else ""
    return ", ".join(part for part in (call.reduce, root) if part) or "nothing more"


def _evidence(parted: Divergence, odd_ranks: Sequence[int], odd: Operation, usual: Operation) -> tuple[Fact, ...]:
    which = f"call #{parted.sequence} of group {parted.group!r}"
    mine = f"{which}: {_said(odd)}, {odd.dtype} {list(odd.shape)}"
    theirs = f"{which}: {_said(usual)}, {usual.dtype} {list(usual.shape)}"
    return (
        Fact(text=mine, origin=f"box of rank {odd_ranks[0]}", rank=odd_ranks[0], time=odd.entered),
        Fact(text=theirs, origin="boxes of the other ranks", time=usual.entered),
    )


def new_group(wait: Wait, ranks: Mapping[int, RankState], source: Source) -> Finding:
    """The finding about a ``new_group`` that some ranks never call."""
    site = wait.operation.site
    guarded = rank_guard(wait.operation, None, source)
    under = f", under {guarded[0].text!r}" if guarded else ""
    absent = compress_ranks(wait.awaited)
    message = f"ranks {compress_ranks(wait.waiters)} call new_group{_at(site)}{under}; rank(s) {absent} never do"
    blamed = wait.waiters[0] if len(wait.waiters) <= len(wait.awaited) else wait.awaited[0]  # the lesser side
    subject = _subject(blamed, ranks, site)
    seen, first = f"inside new_group{_at(site)}, waiting in the store", wait.waiters[0]
    fact = Fact(text=seen, origin=f"box of rank {first}", rank=first, time=wait.operation.entered)
    return finding(by_name("new-group-by-some-ranks"), message, subject=subject, evidence=(fact,), confidence=0.95)


def all_ranks(dead: Sequence[RankState]) -> Finding:
    """The finding about one exception that every rank raised."""
    raised = dead[0].raised
    place = raised.place if raised else None
    said = f"{raised.type}: {raised.text.splitlines()[0][:160] if raised.text else ''}" if raised else "an exception"
    subject = Subject(rank=dead[0].rank, file=place.file if place else None, line=place.line if place else None)
    facts = tuple(Fact(text=said, origin=f"box of rank {state.rank}", rank=state.rank) for state in dead[:4])
    message = f"all ranks raised {said}{_at(place)}"
    claim = finding(by_name(of_all_ranks(raised)), message, subject=subject, evidence=facts, confidence=0.95)
    return advised(claim, raised.text) if raised else claim


def _said(call: Operation) -> str:
    return f"{call.name}{_at(call.site)}"


def _at(place: Place | None) -> str:
    return f" at {_short(place)}" if place else ""


def _short(place: Place) -> str:
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line}"


def _size(call: Operation) -> str:
    return f"{call.elements} elements {list(call.shape)}"
