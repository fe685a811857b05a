"""Show the source lines that a finding cites: condition, divergence, and collective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.core.findings import Finding

#: Separates a location from its source line.
GUTTER = (" | ", "dim")
_DIFFERS = " differs ("
_ENTERS = "there it enters "
#: Facts about the path from the condition to the finding begin with one of these.
_PATH_FACTS = ("through ", "there ")
_MAX_CODE_CHARACTERS = 160


def excerpt_rows(
    claim: Finding, location: str, source: Mapping[str, str], colour: str
) -> Iterator[list[tuple[str, str]]]:
    """Yield rows of (text, style): each cited source line with a marked caption below it.

    ``source`` maps locations to source lines; a fact without a source line is shown as text.
    """
    facts = [(fact.origin, fact.text, *_split_caption(fact.text)) for fact in claim.evidence]
    if location in source and all(fact.origin != location for fact in claim.evidence):
        before = sum(not fact.text.startswith(_PATH_FACTS) for fact in claim.evidence)
        facts.insert(before, (location, "", "", "here"))
    columns = max((len(origin) for origin, *_ in facts), default=0)
    for origin, text, code, caption in facts:
        line = source.get(origin, "").strip()
        if not line:
            yield [(f"    {origin}", "cyan"), (": ", "dim"), (text, "")]
            continue
        line = line[:_MAX_CODE_CHARACTERS]
        begin = line.find(code) if code else -1
        begin, length = (begin, len(code)) if begin >= 0 else (0, len(line))
        yield [(f"    {origin:<{columns}}", "cyan"), GUTTER, (line, "")]
        yield [
            (" " * (4 + columns), ""),
            GUTTER,
            (" " * begin + "^" * length, colour),
            (f" {caption}", colour),
        ]


def _split_caption(text: str) -> tuple[str, str]:
    """Return the code that a fact quotes, and the caption to show below it."""
    if text.startswith(_ENTERS):
        return text.removeprefix(_ENTERS), text
    code, differs, kind = text.rpartition(_DIFFERS)
    if differs:
        return code, f"{differs}{kind}".strip()
    if text.startswith(_PATH_FACTS):
        return "", text
    return text, "caught here" if text.startswith("except") else "condition"
