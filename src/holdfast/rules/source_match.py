"""A running job's verdict, and what the source says of it.

The run sees where ranks parted, which may be long after the test that parted them: collectives are matched by their
number, so that the one too many of a rank is taken for the next one of the others. The source has the test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.facts.ranks import Group, RankState
from holdfast.findings import Fact, Finding, Subject, Verdict
from holdfast.report.ranksets import compress_ranks
from holdfast.rules.places import Source
from holdfast.rules.source_hints import DEATHS, Hint, Match, borne_out, died_of_others

#: Verdicts that say how ranks parted, and not always why.
_PARTED = frozenset(
    {
        "uneven-inputs", "rank-guarded-collective", "rank-skips-collective", "collective-order-inversion",
        "new-group-by-some-ranks", "mismatched-operation", "mismatched-shape", "mismatched-dtype",
        "collective-mismatch", "rank-exits-early", "network-fabric-fault",
    }
)  # fmt: skip
#: Kinds of partings in which somebody enters a collective too many; in the others somebody leaves one out.
_TOO_MANY = frozenset({"branch", "leaders", "except", "ranks"})
_MOST_FACTS = 8


def concerns(verdict: Verdict, ranks: Sequence[RankState]) -> bool:
    """Whether the source may tell more of what the verdict says."""
    root = verdict.root
    if root is None:
        return False
    state = next((state for state in ranks if state.rank == root.subject.rank), None)
    if root.cause not in DEATHS or state is None:
        return root.cause in _PARTED
    return died_of_others(state)


def refine(
    verdict: Verdict, ranks: Sequence[RankState], groups: Mapping[str, Group], source: Source, hints: Sequence[Hint]
) -> Verdict:
    """The verdict with the root that the source gives it; unchanged where no hint has been borne out by the run."""
    root = verdict.root
    if root is None or not concerns(verdict, ranks):
        return verdict
    match = borne_out(root, ranks, groups, source, hints)
    return verdict if match is None else _with(verdict, root, match, {state.rank: state for state in ranks})


def _with(verdict: Verdict, root: Finding, match: Match, ranks: Mapping[int, RankState]) -> Verdict:
    """The verdict with the hint's cause as its root; what the run saw stays as evidence."""
    hint = match.hint
    claim = hint.finding
    rank = root.subject.rank
    if claim.cause != root.cause and match.makers:
        rank = (match.makers if hint.kind in _TOO_MANY else match.others)[0]
    state = ranks.get(rank) if rank is not None else None
    file, line = hint.place.file, hint.place.line
    said = Fact(text=f"lint: {hint.rule} finds it here", origin=f"{file}:{line}")
    seen = Fact(text=root.message, origin="the run")
    evidence = (*match.facts, seen, said, *(replace(fact, text=f"lint: {fact.text}") for fact in claim.evidence))
    refined = replace(
        claim,
        level=root.level,
        message=_message(match, root),
        subject=Subject(rank=rank, host=(state.host or None) if state else root.subject.host, file=file, line=line),
        evidence=(*evidence[:_MOST_FACTS], *root.evidence)[: 2 * _MOST_FACTS],
        confidence=match.confidence,
    )
    follows = tuple(
        replace(each, code=claim.code, cause=claim.cause, remedies=claim.remedies[:1]) if each.code == root.code
        else each for each in verdict.consequences
    )  # fmt: skip
    return replace(
        verdict,
        root=refined,
        consequences=follows,
        suspects=tuple(each for each in verdict.suspects if each != root),
        ruled_out=tuple(each for each in verdict.ruled_out if each.cause != claim.cause),
    )


def _message(match: Match, root: Finding) -> str:
    """Lint's sentence, and what became of it here."""
    claim = match.hint.finding.message
    if not match.makers:
        return f"{claim}; in this run: {root.message}"
    makers, others = (f"rank{'s' * (len(each) > 1)} {compress_ranks(each)}" for each in (match.makers, match.others))
    if not match.sequence:
        return f"{claim}; in this run {makers} entered it, and {others} stood elsewhere"
    return f"{claim}; in this run {makers} entered it as #{match.sequence}, and {others} did not"
