"""Refines the verdict about a running job by the linter's findings in its source.

The run shows where ranks diverged, which may be long after the branch that caused it: collectives
are matched by number, so that the extra collective of one rank is matched with the next one of the
others. The source contains the branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.sync.collective_incomplete import COLLECTIVE_INCOMPLETE
from holdfast.causes.sync.collective_mismatch import COLLECTIVE_MISMATCH
from holdfast.causes.sync.collective_order_inversion import COLLECTIVE_ORDER_INVERSION
from holdfast.causes.sync.mismatched_dtype import MISMATCHED_DTYPE
from holdfast.causes.sync.mismatched_operation import MISMATCHED_OPERATION
from holdfast.causes.sync.mismatched_shape import MISMATCHED_SHAPE
from holdfast.causes.sync.new_group_by_some_ranks import NEW_GROUP_BY_SOME_RANKS
from holdfast.causes.sync.rank_exits_early import RANK_EXITS_EARLY
from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.causes.sync.rank_skips_collective import RANK_SKIPS_COLLECTIVE
from holdfast.causes.sync.uneven_inputs import UNEVEN_INPUTS
from holdfast.core.findings import Fact, Finding, Subject, Verdict
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import ProcessGroupInfo, RankState
from holdfast.watcher.rules.call_sites import SourceContexts
from holdfast.watcher.rules.source_hints import (
    DEATHS,
    HintMatch,
    SourceHint,
    best_match,
    may_have_died_of_others,
)

#: Causes that state how ranks diverged, but not always why.
_DIVERGED = frozenset(
    {
        UNEVEN_INPUTS.name,
        RANK_GUARDED_COLLECTIVE.name,
        RANK_SKIPS_COLLECTIVE.name,
        COLLECTIVE_ORDER_INVERSION.name,
        NEW_GROUP_BY_SOME_RANKS.name,
        MISMATCHED_OPERATION.name,
        MISMATCHED_SHAPE.name,
        MISMATCHED_DTYPE.name,
        COLLECTIVE_MISMATCH.name,
        RANK_EXITS_EARLY.name,
        NETWORK_FABRIC_FAULT.name,
        COLLECTIVE_INCOMPLETE.name,
    }
)
#: Kinds of divergence with an extra collective on some ranks; the others have a missing one.
_EXTRA_COLLECTIVE = frozenset({"branch", "leaders", "except", "ranks"})
_MAX_FACTS = 8


def is_refinable(verdict: Verdict, ranks: Sequence[RankState]) -> bool:
    """Return whether the source may explain the verdict further."""
    root = verdict.root
    if root is None:
        return False
    state = next((state for state in ranks if state.rank == root.subject.rank), None)
    if root.cause not in DEATHS or state is None:
        return root.cause in _DIVERGED
    return may_have_died_of_others(state)


def refine(
    verdict: Verdict,
    ranks: Sequence[RankState],
    groups: Mapping[str, ProcessGroupInfo],
    source: SourceContexts,
    hints: Sequence[SourceHint],
) -> Verdict:
    """Replace the root by that of a hint; unchanged if the run confirms no hint."""
    root = verdict.root
    if root is None or not is_refinable(verdict, ranks):
        return verdict
    match = best_match(root, ranks, groups, source, hints)
    if match is None:
        return verdict
    finding = match.hint.finding
    if _is_direct(root, match.hint, ranks) and finding.cause != root.cause:
        explained = replace(root, evidence=(*root.evidence, *_lint_facts(match)))
        return replace(verdict, root=explained)
    refined = _refined_root(root, match, {state.rank: state for state in ranks})
    consequences = tuple(
        replace(entry, code=finding.code, cause=finding.cause, remedies=finding.remedies[:1])
        if entry.code == root.code
        else entry
        for entry in verdict.consequences
    )
    return replace(
        verdict,
        root=refined,
        consequences=consequences,
        suspects=tuple(entry for entry in verdict.suspects if entry != root),
        ruled_out=tuple(entry for entry in verdict.ruled_out if entry.cause != finding.cause),
    )


def _is_direct(root: Finding, hint: SourceHint, ranks: Sequence[RankState]) -> bool:
    """Return whether the run shows the cause itself.

    That is the line at which a rank left the script or, if the hint has the same line, a loop; or a
    call that was skipped although all ranks made it once per turn before: not once per iteration of
    an inner loop.
    """
    if root.cause == RANK_SKIPS_COLLECTIVE.name:
        return hint.kind == "loop"
    if root.cause == UNEVEN_INPUTS.name:
        return (hint.place.file, hint.place.line) == (root.subject.file, root.subject.line)
    state = next((state for state in ranks if state.rank == root.subject.rank), None)
    return (
        root.cause == RANK_EXITS_EARLY.name
        and state is not None
        and state.ended is not None
        and state.ended.place is not None
    )


def _lint_facts(match: HintMatch) -> tuple[Fact, ...]:
    """Return what the linter found about the source."""
    hint = match.hint
    return (
        Fact(
            text=f"lint: {hint.rule} reports this line: {hint.finding.message}",
            origin=f"{hint.place.file}:{hint.place.line}",
        ),
        *(replace(fact, text=f"lint: {fact.text}") for fact in hint.finding.evidence),
    )


def _refined_root(root: Finding, match: HintMatch, ranks: Mapping[int, RankState]) -> Finding:
    """Return the finding of the hint; what the run showed stays as evidence."""
    hint, finding, rank = match.hint, match.hint.finding, root.subject.rank
    if finding.cause != root.cause and match.makers:
        rank = (match.makers if hint.kind in _EXTRA_COLLECTIVE else match.others)[0]
    state = ranks.get(rank) if rank is not None else None
    file, line = hint.place.file, hint.place.line
    evidence = (
        *match.facts,
        Fact(text=root.message, origin="the run"),
        Fact(text=f"lint: {hint.rule} reports this line", origin=f"{file}:{line}"),
        *(replace(fact, text=f"lint: {fact.text}") for fact in finding.evidence),
    )
    return replace(
        finding,
        level=root.level,
        message=_message(match, root),
        subject=Subject(
            rank=rank,
            host=(state.host or None) if state else root.subject.host,
            file=file,
            line=line,
        ),
        evidence=(*evidence[:_MAX_FACTS], *root.evidence)[: 2 * _MAX_FACTS],
        confidence=match.confidence,
    )


def _message(match: HintMatch, root: Finding) -> str:
    """Return the linter's sentence, and what happened in this run."""
    sentence = match.hint.finding.message
    if not match.makers:
        if match.hint.finding.cause == root.cause:
            return f"{root.message}; {sentence}"
        return f"{sentence}; in this run: {root.message}"
    makers, others = describe_ranks(match.makers), describe_ranks(match.others)
    verb = "is" if len(match.others) == 1 else "are"
    if not match.sequence:
        return f"{sentence}; in this run {makers} entered it, and {others} {verb} elsewhere"
    return f"{sentence}; in this run {makers} entered it as #{match.sequence}, and {others} did not"
