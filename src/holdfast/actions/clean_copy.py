"""Writes a file without its secrets, and reads what was written until nothing is found in it any more.

What is read again is proved to be readable: a box, a dump, a document of JSON, text.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from holdfast.actions.evidence_files import MOST_DOCUMENT_BYTES, Excerpt, Found, opened
from holdfast.actions.redact import Redactor
from holdfast.actions.redact_records import box, document, dump, plain
from holdfast.facts.boxes import Box
from holdfast.facts.evidence import Kind

#: A file in which secrets are found after so many rounds is not given away.
MOST_ROUNDS = 3
#: Of a page: a tag, or what a browser does not show.
_TAG = re.compile(r"(<(?:style|script)\b.*?</(?:style|script)>|<[^>]*>)", re.DOTALL | re.IGNORECASE)


def cleaned(found: Found, excerpt: Excerpt, redactor: Redactor) -> Iterator[bytes]:
    """What is taken of the file, without secrets.

    Raises:
        BoxUnreadable, DumpUnreadable: secrets cannot be looked for in it.
    """
    if found.kind is Kind.BOX:
        return iter([box(excerpt.whole(), found.name, redactor)])
    if found.kind is Kind.DUMP:
        return iter([dump(excerpt.whole(), found.name, redactor)])
    if excerpt.size > MOST_DOCUMENT_BYTES:
        return _texts(excerpt, redactor)
    if found.is_document:
        return iter([document(excerpt.text(), redactor)])
    if found.is_page:
        return iter([_page(excerpt.text(), redactor)])
    return _texts(excerpt, redactor)


def write(blocks: Iterable[bytes], target: Path, found: Found, fresh: Callable[[], Redactor]) -> Counter[str]:
    """Write ``blocks``, the clean content of ``found``, and clean it again until nothing is left to clean.

    Gives how often which kind was found in what had been written; ``target`` is not there where some would remain.

    Raises:
        BoxUnreadable, DumpUnreadable: what was written cannot be read.
    """
    _put(blocks, target)
    if found.kind is Kind.BOX:
        Box(target).read_notes()  # by its own reader, too
    written = replace(found, path=target, encoding="utf-8", unpack=None)
    seen: Counter[str] = Counter()
    for _ in range(MOST_ROUNDS):
        redactor, again = fresh(), target.with_name(target.name + ".again")
        with opened(written) as excerpt:
            _put(cleaned(written, excerpt, redactor), again)
        if not redactor.counts:
            again.unlink()
            return seen
        seen += redactor.counts
        again.replace(target)
    target.unlink()
    return seen


def _put(blocks: Iterable[bytes], target: Path) -> None:
    with target.open("xb") as file:
        file.writelines(blocks)


def _texts(excerpt: Excerpt, redactor: Redactor) -> Iterator[bytes]:
    for number, part in enumerate(excerpt.parts()):
        if number:
            yield b"\n<left out: %d bytes>\n" % excerpt.left_out
        yield from redactor.stream(part, begins_inside=number > 0)


def _page(data: bytes, redactor: Redactor) -> bytes:
    """A page: what a reader sees is cleaned as the lines of a text, and stays as it is where it is clean."""
    parts = _TAG.split(data.decode("utf-8", "surrogateescape"))
    places = [place for place in range(0, len(parts), 2) if parts[place].strip()]
    seen = [html.unescape(parts[place]) for place in places]
    for place, before, after in zip(places, seen, plain(seen, redactor), strict=True):
        if before != after:
            parts[place] = html.escape(after)
    parts[1::2] = [redactor.text(part) for part in parts[1::2]]
    return "".join(parts).encode("utf-8", "surrogateescape")
