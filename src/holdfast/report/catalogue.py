"""Shows what is known of causes, for the terminal and as pages of the documentation: one text, the same headings.

The texts themselves stand in the catalogue; this file only lays them out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TextIO

from holdfast.findings import Cause, Remedy
from holdfast.report.document import Document, Row, Section

#: Field of a cause -> its heading, in the order in which an entry is read.
HEADINGS: Mapping[str, str] = {
    "what_happens": "What happens",
    "shows_before": "How it shows before",
    "shows_during": "How it shows during",
    "shows_after": "How it shows after",
    "known_misses": "Known misses",
}
#: The same on a terminal, where the label stands in a narrow column.
_LABELS = ("what happens", "shows before", "shows during", "shows after", "known misses")
_SAFETY_TITLE = "How safe that is"
_ISSUE = re.compile(r"^([\w.-]+/[\w.-]+)#(\d+)$")
_CODE_SPAN = re.compile(r"(`[^`]*`)")


def draw_entry(cause: Cause, about: str, file: TextIO, width: int | None = None) -> None:
    """Print the whole entry of ``cause``; ``about`` is what its family is about. Colours on a terminal alone."""
    from holdfast.report.sheet import draw  # noqa: PLC0415 - rich costs 60 ms, and only who prints shall pay it

    headline = f"{cause.code} {cause.name} ({about})"
    draw(Document("", headline, "note", tuple(_spaced(_sections(cause)))), file, width)


def draw_list(causes: Sequence[Cause], families: Mapping[str, str], file: TextIO, width: int | None = None) -> None:
    """Print all ``causes`` by family: laid out on a terminal, one line for each cause (for grep) everywhere else."""
    if not file.isatty():
        longest = max(len(cause.name) for cause in causes)
        file.writelines(f"{cause.code:<8}{cause.name:<{longest}}  {cause.summary}\n" for cause in causes)
        return
    from holdfast.report.sheet import draw  # noqa: PLC0415 - as above

    sections = [
        Section(family, tuple(_listed(cause) for cause in causes if cause.family == family)) for family in families
    ]
    draw(Document("", f"{len(causes)} causes of failure", "note", tuple(_spaced(sections))), file, width)


def pages(causes: Sequence[Cause], families: Mapping[str, str], note: str) -> dict[str, Callable[[], str]]:
    """File name -> what writes that page in Markdown: ``index.md`` and one for each cause. ``note`` is put on top."""
    written: dict[str, Callable[[], str]] = {"index.md": partial(_index, causes, families, note)}
    names = frozenset(cause.name for cause in causes)
    for cause in causes:
        written[f"{cause.name}.md"] = partial(_page, cause, families[cause.family], names, note)
    return written


# ---- the terminal --------------------------------------------------------------------------------------------------


def _sections(cause: Cause) -> Iterable[Section]:
    yield Section("in short", (Row(cause.summary, style="strong"),))
    for field, label in zip(HEADINGS, _LABELS, strict=True):
        yield Section(label, (Row(getattr(cause, field)),))
    yield Section(
        "remedy", tuple(row for number, remedy in enumerate(cause.remedies, 1) for row in _rows(number, remedy))
    )
    if cause.sources:
        yield Section("sources", (Row(", ".join(cause.sources), style="plain"),))


def _rows(number: int, remedy: Remedy) -> Iterable[Row]:
    yield Row(remedy.text, mark=f"{number}.", aside=str(remedy.safety))
    if remedy.command:
        yield Row(remedy.command, style="command")


def _spaced(sections: Iterable[Section]) -> Iterable[Section]:
    """The sections with a blank line between two of them."""
    for number, section in enumerate(sections):
        if number:
            yield Section("", (Row(""),))
        yield section


def _listed(cause: Cause) -> Row:
    return Row(f"{cause.name}: {cause.summary}", mark=cause.code)


# ---- the documentation ---------------------------------------------------------------------------------------------


def _index(causes: Sequence[Cause], families: Mapping[str, str], note: str) -> str:
    parts = [
        "# Causes of failure\n",
        note,
        "What holdfast knows of each kind of failure, under the same headings: what happens, how it shows before,",
        "during and after, what is known to be missed, what to do and how safe that is. `holdfast explain CODE` prints",
        "one.\n",
    ]
    for family, about in families.items():
        rows = [_index_row(cause) for cause in causes if cause.family == family]
        parts += [f"## {family}: {about}\n", "| code | name | in short |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(parts).rstrip() + "\n"


def _index_row(cause: Cause) -> str:
    return f"| {cause.code} | [{cause.name}]({cause.name}.md) | {_prose(cause.summary, frozenset())} |"


def _page(cause: Cause, about: str, names: frozenset[str], note: str) -> str:
    others = names - {cause.name}
    parts = [
        f"# {cause.name}\n",
        note,
        f"**{cause.code}** · [{about}](index.md)\n",
        _prose(cause.summary, others) + "\n",
    ]
    for field, heading in HEADINGS.items():
        parts += [f"## {heading}\n", _prose(getattr(cause, field), others) + "\n"]
    parts += ["## What to do\n", *(_remedy(number, remedy, others) for number, remedy in enumerate(cause.remedies, 1))]
    if cause.sources:
        parts += ["## Sources\n", *(f"- {_source(source)}" for source in cause.sources)]
    return "\n".join(parts).rstrip() + "\n"


def _remedy(number: int, remedy: Remedy, names: frozenset[str]) -> str:
    text = f"{number}. {_prose(remedy.text, names)}\n\n"
    if remedy.command:
        text += f"    ```sh\n    {remedy.command}\n    ```\n\n"
    return text + f"    {_SAFETY_TITLE}: **{remedy.safety}**.\n"


def _source(source: str) -> str:
    found = _ISSUE.match(source)
    return f"[{source}](https://github.com/{found[1]}/issues/{found[2]})" if found else _prose(source, frozenset())


def _prose(text: str, names: frozenset[str]) -> str:
    """``text`` for Markdown: nothing in it is mark-up by accident, and the names of other causes become links."""
    pieces = _CODE_SPAN.split(text)
    return "".join(piece if piece.startswith("`") else _linked(_escaped(piece), names) for piece in pieces)


def _escaped(text: str) -> str:
    for character, shown in (("&", "&amp;"), ("<", "&lt;"), ("*", r"\*"), ("|", r"\|"), ("[", r"\[")):
        text = text.replace(character, shown)
    return text


def _linked(text: str, names: frozenset[str]) -> str:
    # "straggler" alone is a word of the language as well, so that only names of several words become links.
    known = sorted((name for name in names if "-" in name), key=len, reverse=True)
    if not known:
        return text
    pattern = rf"(?<![\w-])({'|'.join(map(re.escape, known))})(?![\w-])"
    return re.sub(pattern, r"[\1](\1.md)", text)
