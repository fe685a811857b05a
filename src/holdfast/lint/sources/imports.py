"""Find imports by line without parsing; an import inside a string counts too."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: In a notebook's JSON, lines are quoted and line ends escaped.
_IMPORT = re.compile(
    rb"""^[ \t"]*(?:from[ \t]+(?P<home>\.*[\w.]*)[ \t]+import[ \t]*"""
    rb"""(?P<names>\([^)]*\)|[^\n#;\\]*)"""
    rb"""|import[ \t]+(?P<modules>[^\n#;\\(]+))""",
    re.MULTILINE,
)
_WORD = re.compile(rb"\w+")


def iter_imports(content: bytes) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each imported module as written (``..lib``), and the names imported from it."""
    for match in _IMPORT.finditer(content):
        if match["modules"] is None:
            yield _decode(match["home"]), tuple(map(_decode, _WORD.findall(match["names"])))
            continue
        for part in match["modules"].split(b","):
            words = part.split()
            if words:
                yield _decode(words[0]), ()


def _decode(word: bytes) -> str:
    return word.decode(errors="replace")
