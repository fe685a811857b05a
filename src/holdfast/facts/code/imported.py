"""Which files a program is made of: those that it is known to run, and of the user's own what they import.

Imports are found by their lines, without parsing; the linter parses what is found. Nearest first, so that a limit cuts
off what is farthest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.facts.code.imports import imports
from holdfast.facts.user_code import is_own

#: Some 50,000 lines, of which the linter makes what it can in two or three seconds.
MOST_FILES, MOST_BYTES = 300, 2 << 20
#: So many names that one import asks for are looked for as files.
_MOST_NAMES = 64


def program(entries: Sequence[Path], before: float) -> list[Path]:
    """The ``entries``, and the user's own files that they import.

    A file that changed after ``before`` (Unix s), when the program had begun already, is left out: its lines are not
    those that run.
    """
    found: list[Path] = []
    roots: list[Path] = []
    waiting, seen, size = list(entries), set(entries), 0
    known: dict[Path, bool] = {}
    for path in entries:
        roots += [root for root in (path.parent, _root(path)) if root not in roots]
    while waiting and len(found) < MOST_FILES:
        path = waiting.pop(0)
        content = _content(path, before)
        if content is None:
            continue
        size += len(content)
        if size > MOST_BYTES:
            break
        found.append(path)
        for each in _imports(content, path, roots, known):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return found


def _content(path: Path, before: float) -> bytes | None:
    try:
        stat = path.stat()
        if stat.st_size > MOST_BYTES or stat.st_mtime > before or not path.is_file():
            return None
        return path.read_bytes()
    except OSError:
        return None


def _root(path: Path) -> Path:
    """The folder from which a file's package is imported."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def _imports(content: bytes, path: Path, roots: Sequence[Path], known: dict[Path, bool]) -> Iterator[Path]:
    for home, names in imports(content):
        name = home.lstrip(".")
        dots = len(home) - len(name)
        bases = [path.parents[dots - 1]] if 0 < dots <= len(path.parents) else [] if dots else roots
        yield from _files(name, bases, known)
        for each in names[:_MOST_NAMES]:
            yield from _files(f"{name}.{each}".lstrip("."), bases, known)


def _files(name: str, roots: Sequence[Path], known: dict[Path, bool]) -> Iterator[Path]:
    """The file of a module, and those of the packages that it is in; ``known`` are paths that were asked for before."""
    parts = [part for part in name.split(".") if part]
    for root in roots:
        stem = root
        for part in parts:
            file, stem = stem / f"{part}.py", stem / part
            for path in (stem / "__init__.py", file):
                if path not in known:
                    known[path] = path.is_file() and is_own(str(path))
                if known[path]:
                    yield path
            if stem not in known:
                known[stem] = stem.is_dir()
            if not known[stem]:
                break
