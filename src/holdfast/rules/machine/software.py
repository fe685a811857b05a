"""Is it certain which version of a package a rank will import?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.software import Software
from holdfast.findings import Finding, Level, finding
from holdfast.rules.causes import by_name

#: Packages through which ranks talk, or on whose version their numbers depend: another version is not just untidy.
_GRAVE = frozenset({"torch", "numpy", "triton", "deepspeed", "accelerate", "transformers", "lightning"})


def judge(seen: Software, _place: Place) -> Iterator[Finding]:
    """One finding for all that are there twice: a warning where one of them matters to a job, else a note."""
    if not seen.twice:
        return
    grave = [each for each in seen.twice if each.name in _GRAVE or each.name.startswith("nvidia_")]
    first = (grave or seen.twice)[0]
    others = len(seen.twice) - 1
    yield finding(
        by_name("package-installed-twice"),
        f"{first.name} is on the path as {' and as '.join(first.versions)}, of which {first.versions[0]} is imported "
        "here" + (f"; {others} other packages are there twice too" if others else ""),
        level=Level.WARNING if grave else Level.NOTE,
        evidence=seen.facts(),
        confidence=0.6,
    )
