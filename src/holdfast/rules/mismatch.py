"""Which cause it is when ranks of one group did not make the same calls: the source around the two calls decides.

``if rank == 0:`` around the odd call, a loop that the odd rank has left, an exception swallowed inside that loop: each is
another bug with another remedy, although the communicator sees the same disagreement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.facts.ranks import Operation, Place, RankState
from holdfast.facts.source import Guard
from holdfast.findings import Fact, Finding, Subject, finding
from holdfast.report.ranksets import compress_ranks
from holdfast.rules.causes import by_name
from holdfast.rules.divergence import Divergence
from holdfast.rules.places import Source, is_after_loop_of, loop_swallows, own_guard, rank_guard
from holdfast.rules.waits import Wait

_BY_KIND = {"operation": "mismatched-operation", "dtype": "mismatched-dtype", "shape": "mismatched-shape",
            "arguments": "collective-mismatch"}


def explain(parted: Divergence, ranks: Mapping[int, RankState], source: Source) -> Finding:
    """The finding about ranks that parted."""
    ranks_of_odd, odd, usual = _sides(parted, ranks, source)
    who = ("rank " if len(ranks_of_odd) == 1 else "ranks ") + compress_ranks(ranks_of_odd)
    name, place, message, confidence = _cause(parted, odd, usual, who, source)
    if parted.tie and confidence < 0.8:
        message += " (a tie: as many ranks did the one as the other)"
    state = ranks.get(ranks_of_odd[0])
    subject = Subject(rank=ranks_of_odd[0], host=(state.host or None) if state else None,
                      file=place.file if place else None, line=place.line if place else None)  # fmt: skip
    return finding(by_name(name), message, subject=subject, evidence=_evidence(parted, ranks_of_odd, odd, usual),
                   confidence=confidence)  # fmt: skip


def explain_line(parted: Divergence, ranks: Mapping[int, RankState], source: Source) -> Finding | None:
    """The finding about ranks that made the same collective from different lines, where the source tells why."""
    odd_ranks, odd, _ = _sides(parted, ranks, source)
    told = parted.skipped is not None or _guard(odd, source) is not None
    return explain(parted, ranks, source) if told and not (parted.tie and len(odd_ranks) > 1) else None


def _sides(
    parted: Divergence, ranks: Mapping[int, RankState], source: Source
) -> tuple[tuple[int, ...], Operation, Operation]:
    """Who is odd, with one call of either side. A tie goes to the side whose call stands under a test of the rank."""
    odd, usual = parted.odd, parted.usual
    if not parted.tie or _guard(odd, source) or not _guard(usual, source):
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
    guard = _guard(odd, source)
    did, theirs = _said(odd), _said(usual)
    if guard is not None:
        through = f" (called at {_short(odd.caller)})" if odd.caller and own_guard(odd.site, source) is None else ""
        text = f"only {who} enters {did}{through}, under {guard.text!r}; the others are in {theirs}"
        return "rank-guarded-collective", odd.caller if through else odd.site, text, 0.95
    if parted.skipped is not None:
        left_out = parted.skipped
        return (
            "rank-skips-collective",
            left_out.site,
            f"{who} left out {_said(left_out)} and is one call behind since",
            0.85,
        )
    if is_after_loop_of(odd.site, usual.site, source):
        handler = loop_swallows(usual.site, source)
        if handler is not None:
            text = f"{who} made fewer calls than the others: an exception is swallowed at {_short(handler)}"
            return "rank-skips-collective", handler, text, 0.8
        return (
            "uneven-inputs",
            odd.site,
            f"{who} left the loop first and is in {did}; the others are still in {theirs}",
            0.9,
        )
    differs = {"arguments": f"{odd.reduce} to root {odd.tag} where the others say {usual.reduce} to root {usual.tag}",
               "dtype": f"{odd.dtype} where the others send {usual.dtype}",
               "shape": f"{_size(odd)} where the others send {_size(usual)}"}.get(parted.kind, f"the others make {theirs}")  # fmt: skip
    return _BY_KIND[parted.kind], odd.site, f"{who} makes {did}: {differs}", 0.9 if not parted.tie else 0.6


def _guard(call: Operation, source: Source) -> Guard | None:
    """The test of the rank under which a call was made: around its line, or around the line that called its function."""
    own = own_guard(call.site, source)
    if own is not None or call.caller is None:
        return own or rank_guard(call.site, source)
    return rank_guard(call.caller, source)


def _evidence(parted: Divergence, odd_ranks: Sequence[int], odd: Operation, usual: Operation) -> tuple[Fact, ...]:
    return (
        Fact(text=f"call #{parted.sequence} of group {parted.group!r}: {_said(odd)}, {odd.dtype} {list(odd.shape)}",
             origin=f"box of rank {odd_ranks[0]}", rank=odd_ranks[0], time=odd.entered),
        Fact(text=f"call #{parted.sequence} of group {parted.group!r}: {_said(usual)}, {usual.dtype} {list(usual.shape)}",
             origin="boxes of the other ranks", time=usual.entered),
    )  # fmt: skip


def new_group(wait: Wait, ranks: Mapping[int, RankState], source: Source) -> Finding:
    """The finding about a ``new_group`` that some ranks never call."""
    site = wait.operation.site
    guard = rank_guard(site, source)
    under = f", under {guard.text!r}" if guard else ""
    absent = compress_ranks(wait.awaited)
    message = f"ranks {compress_ranks(wait.waiters)} call new_group{_at(site)}{under}; rank(s) {absent} never do"
    blamed = wait.waiters[0] if len(wait.waiters) <= len(wait.awaited) else wait.awaited[0]  # the lesser side
    state = ranks.get(blamed)
    subject = Subject(rank=blamed, host=(state.host or None) if state else None,
                      file=site.file if site else None, line=site.line if site else None)  # fmt: skip
    fact = Fact(text=f"inside new_group{_at(site)}, waiting in the store", origin=f"box of rank {wait.waiters[0]}",
                rank=wait.waiters[0], time=wait.operation.entered)  # fmt: skip
    return finding(by_name("new-group-by-some-ranks"), message, subject=subject, evidence=(fact,), confidence=0.95)


def all_ranks(dead: Sequence[RankState]) -> Finding:
    """The finding about one exception that every rank raised."""
    raised = dead[0].raised
    place = raised.place if raised else None
    said = f"{raised.type}: {raised.text.splitlines()[0][:160] if raised.text else ''}" if raised else "an exception"
    subject = Subject(rank=dead[0].rank, file=place.file if place else None, line=place.line if place else None)
    facts = tuple(Fact(text=said, origin=f"box of rank {state.rank}", rank=state.rank) for state in dead[:4])
    return finding(by_name("python-exception-all-ranks"), f"all ranks raised {said}{_at(place)}", subject=subject,
                   evidence=facts, confidence=0.95)  # fmt: skip


def _said(call: Operation) -> str:
    return f"{call.name}{_at(call.site)}"


def _at(place: Place | None) -> str:
    return f" at {_short(place)}" if place else ""


def _short(place: Place) -> str:
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line}"


def _size(call: Operation) -> str:
    return f"{call.elements} elements {list(call.shape)}"
