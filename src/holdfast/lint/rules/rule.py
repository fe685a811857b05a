"""The structure of a rule: name, tier, cause, message, and a bad and a good example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import PurePath

import msgspec

from holdfast.core.findings import Cause, Fact, Finding, Level, Subject, make_finding
from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import TaintKind, TaintSource
from holdfast.lint.rules.edits import Edit
from holdfast.report import source_findings as report


class RuleTier(StrEnum):
    """The effect of the problem."""

    SURE = "hangs"
    DATA = "hangs when data differ"
    FAULT = "hangs when an exception is raised"
    LATE = "waits longer than the timeout"
    DRIFT = "values diverge"
    ADVICE = "advice"
    UNSURE = "undecided"


#: The level of each tier's findings.
TIER_LEVELS = {
    RuleTier.SURE: Level.ERROR, RuleTier.DATA: Level.WARNING, RuleTier.FAULT: Level.WARNING,
    RuleTier.LATE: Level.NOTE, RuleTier.DRIFT: Level.WARNING, RuleTier.ADVICE: Level.NOTE,
    RuleTier.UNSURE: Level.NOTE,
}  # fmt: skip
_EXAMPLE_HEADER = "import torch\nimport torch.distributed as dist\n\n"
_CONFIDENCE = {
    RuleTier.SURE: 0.9, RuleTier.DATA: 0.75, RuleTier.FAULT: 0.7, RuleTier.LATE: 0.6,
    RuleTier.DRIFT: 0.7, RuleTier.ADVICE: 0.6, RuleTier.UNSURE: 0.1,
}  # fmt: skip


#: Prefix of the kinds of divergences that names reveal, and that state their own message.
HABIT = "habit-"


def _match_all(_: Divergence) -> bool:
    return True


def _no_fix(_: Divergence, _lines: Sequence[str]) -> Edit | None:
    return None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. It applies to divergences of its ``kinds`` for which ``matches`` returns True.

    ``bad`` has a comment ``# found`` on the line that the rule reports; ``good`` has no finding.
    Both become programs with :func:`example_program`. ``what_it_does`` and ``known_misses`` fill
    the rule's page. ``fix`` offers an edit after which a correct program behaves the same.
    """

    name: str
    cause: Cause
    tier: RuleTier
    what_it_does: str
    known_misses: str
    bad: str
    good: str
    kinds: tuple[str, ...]
    message: Callable[[Divergence], str]
    matches: Callable[[Divergence], bool] = _match_all
    fix: Callable[[Divergence, Sequence[str]], Edit | None] = _no_fix

    def finding(self, divergence: Divergence) -> Finding:
        """Return the finding for a divergence: a note if it rests on a name alone.

        And a warning if the model need not be sharded, if a called function enters the collective
        only under a test of unknown answer, or if the test is of something that was
        derived from the rank in another file, such as a setting: it may be the same on all ranks.
        """
        location, sources = divergence.location, divergence.sources
        tier = self.tier
        names_only = bool(sources) and all(source.by_name for source in sources)
        named = names_only and (tier is RuleTier.SURE or sources[0].kind is TaintKind.NAMED)
        if divergence.by_name or named:
            tier = RuleTier.ADVICE
        elif tier is RuleTier.SURE and (
            _need_not_be_sharded(divergence) or _is_derived(divergence) or divergence.conditional
        ):
            tier = RuleTier.DATA
        return make_finding(
            self.cause,
            divergence.detail if divergence.kind.startswith(HABIT) else self.message(divergence),
            level=TIER_LEVELS[tier],
            subject=Subject(file=location.file, line=location.line),
            evidence=divergence_evidence(divergence),
            confidence=_CONFIDENCE[tier],
        )


def _is_derived(divergence: Divergence) -> bool:
    selected = bool(divergence.sources) and all(
        source.kind is TaintKind.OWN for source in divergence.sources
    )
    if selected and not divergence.names_rank and divergence.kind in ("branch", "exit"):
        return True  # such as a setting in the rank's own checkpoint
    return (
        divergence.kind in ("branch", "exit")
        and not divergence.names_rank
        and all(source.file != divergence.guard.file for source in divergence.sources)
    )


def _need_not_be_sharded(divergence: Divergence) -> bool:
    op = divergence.op
    return op is not None and op.kind == "sharded" and op.may_not_wait


def example_program(example: str) -> str:
    """Return an example as a program with torch imported, after its imports of standard modules."""
    imports, line, rest = "", "", example
    while rest.startswith("import "):
        line, _, rest = rest.partition("\n")
        imports += line + "\n"
    rest = rest.lstrip("\n")
    gap = "\n" if rest.startswith(("def ", "class ", "@")) else ""
    return f"{imports}\n{_EXAMPLE_HEADER}{gap}{rest}".lstrip("\n")


def divergence_evidence(divergence: Divergence) -> tuple[Fact, ...]:
    """Return the test, the sources of its taint, and the calls that lead to the collective."""
    # report.source_excerpts recognizes these texts
    facts = []
    if divergence.guard != divergence.location:
        facts.append(Fact(text=divergence.text, origin=format_location(divergence.guard)))
    facts += [_source_fact(source) for source in divergence.sources]
    calls = [call_site for call_site in divergence.call_chain if call_site != divergence.location]
    raised = divergence.kind in ("swallowed", "exit") and divergence.text.startswith("except")
    for number, location in enumerate(calls, 1):
        text = f"through a call in {location.function}"
        if number == len(calls) and divergence.op is not None:
            text = "there it is raised" if raised else f"there it enters {divergence.op.name}"
        facts.append(Fact(text=text, origin=format_location(location)))
    return tuple(facts)


def _source_fact(source: TaintSource) -> Fact:
    return Fact(
        text=f"{source.text} differs ({source.kind.value})",
        origin=report.format_location(source.file, source.line),
    )


def format_location(location: SourceLine) -> str:
    """Return a location as ``file:line``."""
    return report.format_location(location.file, location.line)


def short_location(location: SourceLine) -> str:
    """Return a location for a sentence: the file's base name and the line."""
    return report.format_location(PurePath(location.file).name, location.line)


def describe_operation(divergence: Divergence) -> str:
    """Return the collective's name, with its location if it differs from the reported line."""
    if divergence.op is None:
        return "a collective"
    hidden = (
        f" at {short_location(divergence.op.location)}"
        if divergence.op.location != divergence.location
        else ""
    )
    return f"{divergence.op.name}{hidden}"


def describe_cause(sources: Sequence[TaintSource]) -> str:
    """Return why a value differs between ranks, as a clause."""
    if not sources:
        return "an exception may occur on some ranks only"
    source = sources[0]
    return f"{source.text} differs between ranks"
