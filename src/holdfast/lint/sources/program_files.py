"""Collect the files of a program: its known files and the user's files they import.

Imports are found by line, without parsing. The search is breadth-first, so that a limit drops the
most distant files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.host.processes.user_code import is_user_file
from holdfast.lint.sources.imports import iter_imports

#: About 50,000 lines, which the linter analyzes in 2 to 3 s.
MAX_FILES, MAX_BYTES = 300, 2 << 20
#: Maximum number of names of one import to look up as files.
_MAX_NAMES = 64


def collect_program_files(entries: Sequence[Path], before: float) -> list[Path]:
    """Return the ``entries`` and the user's own files that they import.

    Files changed after ``before`` (Unix s), when the program had already started, are left out:
    their lines are not those that run.
    """
    files: list[Path] = []
    roots: list[Path] = []
    pending, visited, size = list(entries), set(entries), 0
    known: dict[Path, bool] = {}
    for path in entries:
        roots += [root for root in (path.parent, _import_root(path)) if root not in roots]
    while pending and len(files) < MAX_FILES:
        path = pending.pop(0)
        content = _read_content(path, before)
        if content is None:
            continue
        size += len(content)
        if size > MAX_BYTES:
            break
        files.append(path)
        for imported in _imported_files(content, path, roots, known):
            if imported not in visited:
                visited.add(imported)
                pending.append(imported)
    return files


def _read_content(path: Path, before: float) -> bytes | None:
    try:
        stat = path.stat()
        if stat.st_size > MAX_BYTES or stat.st_mtime > before or not path.is_file():
            return None
        return path.read_bytes()
    except OSError:
        return None


def _import_root(path: Path) -> Path:
    """Return the folder from which a file's package is imported."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def _imported_files(
    content: bytes, path: Path, roots: Sequence[Path], known: dict[Path, bool]
) -> Iterator[Path]:
    for home, names in iter_imports(content):
        name = home.lstrip(".")
        dots = len(home) - len(name)
        bases = [path.parents[dots - 1]] if 0 < dots <= len(path.parents) else [] if dots else roots
        yield from _module_files(name, bases, known)
        for imported_name in names[:_MAX_NAMES]:
            yield from _module_files(f"{name}.{imported_name}".lstrip("."), bases, known)


def _module_files(name: str, roots: Sequence[Path], known: dict[Path, bool]) -> Iterator[Path]:
    """Yield the file of a module and those of its packages; ``known`` caches path lookups."""
    parts = [part for part in name.split(".") if part]
    for root in roots:
        stem = root
        for part in parts:
            file, stem = stem / f"{part}.py", stem / part
            for path in (stem / "__init__.py", file):
                if path not in known:
                    known[path] = path.is_file() and is_user_file(str(path))
                if known[path]:
                    yield path
            if stem not in known:
                known[stem] = stem.is_dir()
            if not known[stem]:
                break
