"""What a rule is: its name and tier, the cause, what it says, and a good and a bad example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import PurePath

import msgspec

from holdfast.facts.code.effects import Place
from holdfast.facts.code.partings import Parting
from holdfast.facts.code.values import Source
from holdfast.findings import Cause, Fact, Finding, Level, Subject, finding
from holdfast.report import lint as report
from holdfast.rules.code.edits import Edit


class Tier(StrEnum):
    """What comes of it."""

    SURE = "hangs"
    DATA = "hangs when data differ"
    FAULT = "hangs when something raises"
    LATE = "waits longer than the time-out"
    DRIFT = "values drift apart"
    ADVICE = "advice"
    UNSURE = "cannot be decided"


#: How a tier is shown.
LEVELS = {
    Tier.SURE: Level.ERROR, Tier.DATA: Level.WARNING, Tier.FAULT: Level.WARNING, Tier.LATE: Level.NOTE,
    Tier.DRIFT: Level.WARNING, Tier.ADVICE: Level.NOTE, Tier.UNSURE: Level.NOTE,
}  # fmt: skip
_HEAD = "import torch\nimport torch.distributed as dist\n\n"
_CONFIDENCE = {
    Tier.SURE: 0.9,
    Tier.DATA: 0.75,
    Tier.FAULT: 0.7,
    Tier.LATE: 0.6,
    Tier.DRIFT: 0.7,
    Tier.ADVICE: 0.6,
    Tier.UNSURE: 0.1,
}


def _as_it_is(_: Parting, _lines: Sequence[str]) -> Edit | None:
    return None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. ``wants`` says whether a parting is its own, ``says`` the sentence; the texts are headings of its page.

    ``bad`` has a comment ``# found`` on the line that the rule names; in ``good`` it finds nothing. Both are programs
    but for what :func:`program` adds. ``mends`` offers an edit of the file's lines that no right program can tell.
    """

    name: str
    cause: Cause
    tier: Tier
    what_it_does: str
    known_misses: str
    bad: str
    good: str
    wants: Callable[[Parting], bool]
    says: Callable[[Parting], str]
    mends: Callable[[Parting, Sequence[str]], Edit | None] = _as_it_is

    def finding(self, parting: Parting) -> Finding:
        """The claim about one parting."""
        place = parting.place
        return finding(
            self.cause,
            self.says(parting),
            level=LEVELS[self.tier],
            subject=Subject(file=place.file, line=place.line),
            evidence=evidence(parting),
            confidence=_CONFIDENCE[self.tier],
        )


def program(example: str) -> str:
    """An example as a program: with torch imported, after the modules of Python's own that it imports."""
    own, line, rest = "", "", example
    while rest.startswith("import "):
        line, _, rest = rest.partition("\n")
        own += line + "\n"
    rest = rest.lstrip("\n")
    gap = "\n" if rest.startswith(("def ", "class ", "@")) else ""
    return f"{own}\n{_HEAD}{gap}{rest}".lstrip("\n")


def evidence(parting: Parting) -> tuple[Fact, ...]:
    """The test, where its answer begins to differ, and the calls that lead to the collective."""
    facts = []
    if parting.guard != parting.place:
        facts.append(Fact(text=parting.text, origin=at(parting.guard)))
    facts += [_source(source) for source in parting.sources]
    calls = [each for each in parting.chain if each != parting.place]
    raised = parting.kind in ("swallowed", "exit") and parting.text.startswith("except")
    for number, place in enumerate(calls, 1):
        text = f"through a call in {place.function}"
        if number == len(calls) and parting.op is not None:
            text = "there it is raised" if raised else f"there it enters {parting.op.name}"
        facts.append(Fact(text=text, origin=at(place)))
    return tuple(facts)


def _source(source: Source) -> Fact:
    return Fact(text=f"{source.text} differs ({source.kind.value})", origin=report.at(source.file, source.line))


def at(place: Place) -> str:
    """A place as ``file:line``."""
    return report.at(place.file, place.line)


def short(place: Place) -> str:
    """A place within a sentence: the file's own name."""
    return report.at(PurePath(place.file).name, place.line)


def operation(parting: Parting) -> str:
    """The collective, and where it hides."""
    if parting.op is None:
        return "a collective"
    hidden = f" at {short(parting.op.place)}" if parting.op.place != parting.place else ""
    return f"{parting.op.name}{hidden}"


def why(sources: Sequence[Source]) -> str:
    """Why a value differs, in half a sentence."""
    if not sources:
        return "an exception need not come on all ranks"
    source = sources[0]
    return f"{source.text} is not the same on all ranks"
