"""Lines of code below a finding: the test, where its answer begins to differ, the line at fault, the way to the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.findings import Finding

#: Between a place and its line of code.
GUTTER = (" | ", "dim")
_DIFFERS = " differs ("
_ENTERS = "there it enters "
_LONGEST = 160


def of(claim: Finding, place: str, source: Mapping[str, str], colour: str) -> Iterator[list[tuple[str, str]]]:
    """Rows of (text, style): each line of code with what is said of it below, marked; without code what is said."""
    said = [(fact.origin, fact.text, *_marked(fact.text)) for fact in claim.evidence]
    if place in source and all(fact.origin != place for fact in claim.evidence):
        before = sum(1 for fact in claim.evidence if not fact.text.startswith(("there ", "through ")))
        said.insert(before, (place, "", "", "here"))
    widest = max((len(origin) for origin, *_ in said), default=0)
    for origin, whole, mark, text in said:
        code = source.get(origin, "").strip()
        if not code:
            yield [(f"    {origin}", "cyan"), (": ", "dim"), (whole, "")]
            continue
        at, length = _where(code[:_LONGEST], mark)
        yield [(f"    {origin:<{widest}}", "cyan"), GUTTER, (code[:_LONGEST], "")]
        yield [(" " * (4 + widest), ""), GUTTER, (" " * at + "^" * length, colour), (f" {text}", colour)]


def _marked(text: str) -> tuple[str, str]:
    """Of what is said the words that stand in the code, and the rest."""
    if text.startswith(_ENTERS):
        return text.removeprefix(_ENTERS), text
    what, differs, kind = text.rpartition(_DIFFERS)
    if differs:
        return what, f"{differs}{kind}".strip()
    if text.startswith(("through ", "there ")):
        return "", text
    return text, "catches it" if text.startswith("except") else "the test"


def _where(code: str, mark: str) -> tuple[int, int]:
    """From which column on, and how many columns, the words fill; all of the code where they are not in it."""
    at = code.find(mark) if mark else -1
    return (at, len(mark)) if at >= 0 else (0, len(code))
