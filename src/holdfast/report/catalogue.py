"""Lay out the catalogue of causes, for the terminal and as pages of the documentation.

Both print the same texts under the same headings; the texts are in the files of the catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TextIO

from holdfast.causes.translations import LANGUAGES, Translate, translate_to, translator
from holdfast.core.findings import Cause, Remedy
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.sheet import draw_document

#: Field of a cause -> its heading, in the order of an entry.
HEADINGS: Mapping[str, str] = {
    "what_happens": "What happens",
    "shows_before": "Warning signs",
    "shows_during": "Live symptoms",
    "shows_after": "In the logs",
    "known_misses": "Known blind spots",
}
#: The same for the narrow label column of a terminal.
_LABELS = ("what happens", "warnings", "symptoms", "in the logs", "blind spots")
_MOST_EXAMPLES = 3
_INDEX_HEAD = """Every kind of failure that holdfast can name: what happens, warning signs, live
symptoms, what the logs contain, known blind spots, and what to do. `holdfast explain CODE` prints
one."""
SIMILAR = "The same lines may also be printed in the case of"
_ISSUE = re.compile(r"^([\w.-]+/[\w.-]+)#(\d+)$")
_CODE_SPAN = re.compile(r"(`[^`]*`)")


def draw_entry(cause: Cause, about: str, file: TextIO, width: int | None = None) -> None:
    """Print the entry of ``cause``, in colours on a terminal; ``about`` describes its family."""
    translate = translator(getattr(file, "encoding", None))
    headline = f"{cause.code} {cause.name} ({translate(about)})"
    draw_document(
        ReportDocument("", headline, "note", tuple(_spaced(_sections(cause)))), file, width
    )


def draw_list(
    causes: Sequence[Cause], families: Mapping[str, str], file: TextIO, width: int | None = None
) -> None:
    """Print ``causes``: by family on a terminal, otherwise one line for each cause (for grep)."""
    translate = translator(getattr(file, "encoding", None))
    if not file.isatty():
        longest = max(len(cause.name) for cause in causes)
        file.writelines(
            f"{cause.code:<8}{cause.name:<{longest}}  {translate(cause.summary)}\n"
            for cause in causes
        )
        return
    sections = [
        ReportSection(
            family,
            tuple(_listed(cause, translate) for cause in causes if cause.family == family),
        )
        for family in families
    ]
    draw_document(
        ReportDocument("", f"{len(causes)} causes of failure", "note", tuple(_spaced(sections))),
        file,
        width,
    )


def pages(
    causes: Sequence[Cause], families: Mapping[str, str], note: str
) -> dict[str, Callable[[], str]]:
    """Return the writers of the Markdown pages by file name: ``index.md`` and one for each cause.

    Each page begins with its title and ``note``. Translated pages are named ``index.zh.md``.
    """
    writers: dict[str, Callable[[], str]] = {}
    names = frozenset(cause.name for cause in causes)
    for language in LANGUAGES:
        end = ".md" if language == "en" else f".{language}.md"
        translate = translate_to(language)
        writers[f"index{end}"] = partial(_index, causes, families, note, translate)
        for cause in causes:
            about = families[cause.family]
            writers[f"{cause.name}{end}"] = partial(_page, cause, about, names, note, translate)
    return writers


# ---- the terminal ------------------------------------------------------------------------------


def _sections(cause: Cause) -> Iterable[ReportSection]:
    yield ReportSection("in short", (ReportRow(cause.summary, style="strong"),))
    for field, label in zip(HEADINGS, _LABELS, strict=True):
        yield ReportSection(label, (ReportRow(getattr(cause, field)),))
    if cause.evidence_sources:
        yield ReportSection("shown by", (ReportRow(", ".join(cause.evidence_sources)),))
    if lines := _example_lines(cause):
        yield ReportSection("log lines", tuple(ReportRow(line, style="plain") for line in lines))
    if cause.alternatives:
        names = ", ".join(cause.alternatives)
        yield ReportSection("similar", (ReportRow(f"{SIMILAR}: {names}."),))
    yield ReportSection(
        "remedy",
        tuple(
            row for number, remedy in enumerate(cause.remedies, 1) for row in _rows(number, remedy)
        ),
    )
    if cause.sources:
        yield ReportSection("sources", (ReportRow(", ".join(cause.sources), style="plain"),))


def _rows(number: int, remedy: Remedy) -> Iterable[ReportRow]:
    yield ReportRow(remedy.text, mark=f"{number}.", aside=remedy.safety.risk)
    if remedy.command:
        yield ReportRow(remedy.command, style="command")


def _spaced(sections: Iterable[ReportSection]) -> Iterable[ReportSection]:
    """Yield the sections with a blank line between two of them."""
    for number, section in enumerate(sections):
        if number:
            yield ReportSection("", (ReportRow(""),))
        yield section


def _listed(cause: Cause, translate: Translate) -> ReportRow:
    return ReportRow(f"{cause.name}: {translate(cause.summary)}", mark=cause.code)


# ---- the documentation -------------------------------------------------------------------------


def _index(
    causes: Sequence[Cause], families: Mapping[str, str], note: str, translate: Translate
) -> str:
    parts = [f"# {translate('Causes of failure')}\n", note, f"{translate(_INDEX_HEAD)}\n"]
    for family, about in families.items():
        rows = [_index_row(cause, translate) for cause in causes if cause.family == family]
        parts += [
            f"## {family}: {translate(about)}\n",
            f"| {' | '.join(translate(heading) for heading in ('code', 'name', 'in short'))} |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    return "\n".join(parts).rstrip() + "\n"


def _index_row(cause: Cause, translate: Translate) -> str:
    summary = _prose(translate(cause.summary), frozenset())
    return f"| {cause.code} | [{cause.name}]({cause.name}.md) | {summary} |"


def _page(cause: Cause, about: str, names: frozenset[str], note: str, translate: Translate) -> str:
    others = names - {cause.name}
    parts = [
        f"# {cause.code}: {_prose(translate(cause.summary).rstrip('.。'), frozenset())}\n",
        note,
        f"`{cause.name}` · [{translate(about)}](index.md)\n",
        f"{translate('Shown by')}: {', '.join(cause.evidence_sources)}.\n",
    ]
    for field, heading in HEADINGS.items():
        parts += [
            f"## {translate(heading)}\n",
            _prose(translate(getattr(cause, field)), others) + "\n",
        ]
        if field == "shows_after" and (lines := _example_lines(cause)):
            parts += [f"{translate('Example lines')}:\n", "```text", *lines, "```\n"]
        if field == "shows_after" and cause.alternatives:
            similar = f"{translate(SIMILAR)}: {', '.join(cause.alternatives)}."
            parts.append(_prose(similar, others) + "\n")
    parts += [
        f"## {translate('What to do')}\n",
        *(
            _remedy(number, remedy, others, translate)
            for number, remedy in enumerate(cause.remedies, 1)
        ),
    ]
    if cause.sources:
        sources = (f"- {_source(source)}" for source in cause.sources)
        parts += [f"## {translate('Sources')}\n", *sources]
    return "\n".join(parts).rstrip() + "\n"


def _example_lines(cause: Cause) -> list[str]:
    """Return one example of each log signal, the most reliable first, without lines that repeat."""
    signals = sorted(cause.signals, key=lambda signal: (signal.tier, -signal.confidence))
    lines = [line for signal in signals for line in "".join(signal.examples[:1]).splitlines()]
    return list(dict.fromkeys(lines))[:_MOST_EXAMPLES]


def _remedy(number: int, remedy: Remedy, names: frozenset[str], translate: Translate) -> str:
    text = f"{number}. {_prose(translate(remedy.text), names)}\n\n"
    if remedy.command:
        text += f"    ```sh\n    {remedy.command}\n    ```\n\n"
    return text + f"    {translate('Risk')}: **{translate(remedy.safety.risk)}**\n"


def _source(source: str) -> str:
    issue = _ISSUE.match(source)
    return (
        f"[{source}](https://github.com/{issue[1]}/issues/{issue[2]})"
        if issue
        else _prose(source, frozenset())
    )


def _prose(text: str, names: frozenset[str]) -> str:
    """Return ``text`` as Markdown: escaped, and with the names of other causes as links."""
    pieces = _CODE_SPAN.split(text)
    return "".join(
        piece if piece.startswith("`") else _linked(_escaped(piece), names) for piece in pieces
    )


def _escaped(text: str) -> str:
    for character, escaped in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        ("*", r"\*"),
        ("|", r"\|"),
        ("[", r"\["),
    ):
        text = text.replace(character, escaped)
    return text


def _linked(text: str, names: frozenset[str]) -> str:
    # "straggler" is an ordinary word too, so only names of several words become links.
    known = sorted((name for name in names if "-" in name), key=len, reverse=True)
    if not known:
        return text
    pattern = rf"(?<![\w-])({'|'.join(map(re.escape, known))})(?![\w-])"
    return re.sub(pattern, r"[\1](\1.md)", text)
