"""List banned words: ``python tests/language.py`` exits with 1 if there are any (``make lint``).

Scans module-level names, parameters, fields, docstrings and string literals of ``src/holdfast``,
and the English pages under ``docs``. ``tests/language_allowlist.txt`` excuses words per file: ``path: word:
reason``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "holdfast"
ALLOWLIST = Path(__file__).with_name("language_allowlist.txt")

#: Banned word -> pattern of its forms in prose.
WORDS = {
    **{word: rf"{word}s?" for word in ("house", "room", "floor", "door", "wall", "stone", "thing")},
    **{word: word for word in ("told", "heard", "said", "whoever", "nobody", "ears", "calm")},
    "mend": r"mend(?:s|ed|ing)?",
    "blow": r"blows?",
    "purse": r"purses?",
    "scene": r"scenes?",
    "story": r"stor(?:y|ies)",
    "wish": r"wish(?:es|ed)?",
    "muster": r"musters?",
    "knock": r"knock(?:s|ed|ing)?",
    "time-out": r"time-outs?",
    "dead-lock": r"dead-lock(?:s|ed)?",
    "for ever": r"for ever",
}
#: Banned as identifiers only: "given" is a noun there and a participle in prose.
IDENTIFIER_WORDS = {**WORDS, "given": "given"}
#: Established terms that contain a banned word.
TERMS = re.compile(r"\bwall[- ](?:time|clock)s?\b", re.IGNORECASE)

_PROSE = {
    word: re.compile(rf"(?<![\w-])(?:{form})(?![\w-])", re.IGNORECASE)
    for word, form in WORDS.items()
}
_ANY = re.compile(rf"(?<![\w-])(?:{'|'.join(WORDS.values())})(?![\w-])", re.IGNORECASE)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Occurrence(NamedTuple):
    """A banned word in a file; ``package`` is the package, ``docs``, or ``.`` for the top level."""

    package: str
    path: str
    line: int
    word: str
    text: str


def read_allowlist() -> set[tuple[str, str]]:
    """Return the excused (path, word) pairs."""
    pairs = set()
    for line in ALLOWLIST.read_text().splitlines():
        if line and not line.startswith("#"):
            path, word, reason = (part.strip() for part in line.split(":", 2))
            assert reason, line
            pairs.add((path, word))
    return pairs


def find_in_prose(text: str) -> Iterator[str]:
    """Yield the banned words in a text, once per occurrence."""
    if not _ANY.search(text):
        return
    text = TERMS.sub("", text)
    for word, pattern in _PROSE.items():
        yield from [word] * len(pattern.findall(text))


@cache
def find_in_identifier(name: str) -> tuple[str, ...]:
    """Return the banned words among the parts of an identifier."""
    return tuple(
        word
        for part in _PARTS.findall(name)
        for word, form in IDENTIFIER_WORDS.items()
        if re.fullmatch(form, part.lower())
    )


def defined_names(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield module-level names, parameters and fields with their lines."""
    for scope in (node for node in nodes if isinstance(node, ast.Module | ast.ClassDef)):
        for node in scope.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, node.lineno
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (
                    (each.id, node.lineno) for each in targets if isinstance(each, ast.Name)
                )
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a Python file, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def scan_source(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, word and text of each occurrence in a Python file."""
    nodes = nodes_of(path)
    for name, line in defined_names(nodes):
        for word in find_in_identifier(name):
            yield line, word, name
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for word in find_in_prose(node.value):
                yield node.lineno, word, " ".join(node.value.split())[:80]


def scan_page(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, word and text of each occurrence in a page."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for word in find_in_prose(line):
            yield number, word, line.strip()[:80]


def occurrences() -> Iterator[Occurrence]:
    """Yield every occurrence that the allow-list does not excuse."""
    allowed = read_allowlist()
    files = [(path, scan_source) for path in sorted(SOURCES.rglob("*.py"))]
    pages = (path for path in (ROOT / "docs").rglob("*.md") if not path.name.endswith(".zh.md"))
    files += [(path, scan_page) for path in sorted(pages)]
    for path, scan in files:
        shown = path.relative_to(ROOT).as_posix()
        in_package = scan is scan_source and path.parent != SOURCES
        package = path.relative_to(SOURCES).parts[0] if in_package else "."
        for line, word, text in scan(path):
            if (shown, word) not in allowed:
                yield Occurrence("docs" if scan is scan_page else package, shown, line, word, text)


def count_per_package() -> Counter[str]:
    """Return the number of occurrences per package."""
    return Counter(each.package for each in occurrences())


if __name__ == "__main__":
    findings = list(occurrences())
    for each in findings:
        sys.stdout.write(f"{each.path}:{each.line}: {each.word}: {each.text}\n")
    sys.exit(bool(findings))
