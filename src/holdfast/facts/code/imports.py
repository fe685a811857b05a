"""What a file imports, by its lines, without parsing: an import that is written in a string counts too."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: In a notebook's JSON a line stands in quotes, and its end is written out.
_IMPORT = re.compile(
    rb"""^[ \t"]*(?:from[ \t]+(?P<home>\.*[\w.]*)[ \t]+import[ \t]*(?P<names>\([^)]*\)|[^\n#;\\]*)"""
    rb"""|import[ \t]+(?P<modules>[^\n#;\\(]+))""",
    re.MULTILINE,
)
_WORD = re.compile(rb"\w+")


def imports(content: bytes) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each module that is imported, as it is written (``..lib``), and the names that are asked of it."""
    for found in _IMPORT.finditer(content):
        if found["modules"] is None:
            yield _text(found["home"]), tuple(map(_text, _WORD.findall(found["names"])))
            continue
        for each in found["modules"].split(b","):
            words = each.split()
            if words:
                yield _text(words[0]), ()


def _text(word: bytes) -> str:
    return word.decode(errors="replace")
