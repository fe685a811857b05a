"""Find, read and parse Python files and notebooks; report those that are skipped."""

from __future__ import annotations

import ast
import io
import os
import re
import stat
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from symtable import symtable
from types import MappingProxyType
from typing import TypeVar

import msgspec

from holdfast.core.text import os_error_reason
from holdfast.lint.sources import notebooks
from holdfast.lint.sources.import_paths import ImportPaths, ImportResolver
from holdfast.lint.sources.modules import Module

_T = TypeVar("_T")
#: A larger file is generated code or data.
MAX_BYTES = 4 << 20
#: Maximum number of folders without ``__init__.py`` between a file, or a package, and its package.
_MAX_PLAIN_FOLDERS = 2
_RELATIVE_IMPORT = re.compile(rb"^[ \t]*from[ \t]+(\.+)", re.MULTILINE)
_SKIPPED_FOLDERS = frozenset({
    "__pycache__", "node_modules", "site-packages", "dist-packages", "venv", "env", "build", "dist",
    "_build",
})  # fmt: skip


class SkippedSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that was not linted, the reason, and the line (from 1) of a syntax error.

    ``is_failure``: the linter failed, so that nothing is known of the file.
    """

    file: str
    why: str
    line: int | None = None
    is_failure: bool = False

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: skipped: {self.why}"


class ParsedSources(msgspec.Struct, frozen=True):
    """The modules of a program by name, their number of lines, and skipped files."""

    modules: dict[str, Module]
    lines: int
    skipped: tuple[SkippedSource, ...]

    def release(self) -> None:
        """Release the modules; without it the garbage collector would traverse all syntax trees."""
        for module in self.modules.values():
            module.release()
        self.modules.clear()


class SyntaxCheck(msgspec.Struct, frozen=True):
    """The number of valid Python files and lines, and skipped files."""

    files: int
    lines: int
    skipped: tuple[SkippedSource, ...]


class SourceFile(msgspec.Struct, frozen=True):
    """A file before parsing: the folder it is imported from, its module name, and content."""

    path: Path
    root: Path
    name: str
    content: bytes


class GatheredFiles(msgspec.Struct, frozen=True):
    """The files of a program, and skipped files."""

    files: tuple[SourceFile, ...]
    skipped: tuple[SkippedSource, ...]


def _exclude_nothing(_: Path) -> bool:
    return False


def read_sources(
    paths: Sequence[Path],
    is_excluded: Callable[[Path], bool] = _exclude_nothing,
    unsaved: Mapping[Path, bytes] = MappingProxyType({}),
) -> ParsedSources:
    """Gather and parse all Python files and notebooks of ``paths``."""
    gathered = gather_files(paths, is_excluded, unsaved)
    sources = parse_files(gathered.files)
    return ParsedSources(sources.modules, sources.lines, (*gathered.skipped, *sources.skipped))


def gather_files(
    paths: Sequence[Path],
    is_excluded: Callable[[Path], bool] = _exclude_nothing,
    unsaved: Mapping[Path, bytes] = MappingProxyType({}),
    on_read: Callable[[int, int, str], None] | None = None,
) -> GatheredFiles:
    """Return all Python files and notebooks of ``paths``, folders included, each once.

    ``is_excluded`` selects files and folders to leave out; ``unsaved`` holds an editor's buffers of
    files, which need not exist; ``on_read`` gets the number of files and bytes so far, and the
    current file.
    """
    size = 0
    skipped: list[SkippedSource] = []
    files: list[SourceFile] = []
    roots: dict[Path, Path] = {}
    for path in _iter_files(paths, skipped, is_excluded, unsaved):
        try:
            content = unsaved.get(path)
            content = _check_size(path, _read_content(path) if content is None else content)
        except OSError as error:
            skipped.append(SkippedSource(str(path), os_error_reason(error)))
        except ValueError as error:
            skipped.append(SkippedSource(str(path), str(error)))
        else:
            files.append(SourceFile(path, *_module_name(path, roots, content), content))
            size += len(content)
            if on_read is not None:
                on_read(len(files), size, str(path))
    return GatheredFiles(tuple(files), tuple(skipped))


def parse_files(files: Iterable[SourceFile]) -> ParsedSources:
    """Parse these files."""
    modules: dict[str, Module] = {}
    skipped: list[SkippedSource] = []
    lines = 0
    files = tuple(files)
    paths = ImportPaths([file.path for file in files])
    keys: dict[int, str] = {}
    for at, file in enumerate(files):
        name = file.name
        key = name if name not in modules else f"{name}@{len(modules)}"
        module = _parse_module(file, key, skipped)
        if module is not None:
            modules[key] = module
            keys[at] = key
            module.find_imported = ImportResolver(paths, file.root, file.path, keys)
            lines += len(module.lines)
    return ParsedSources(modules, lines, tuple(skipped))


def check_syntax(files: Iterable[SourceFile]) -> SyntaxCheck:
    """Check the syntax of these files, at half the cost of :func:`parse_files`."""
    skipped: list[SkippedSource] = []
    texts = [
        parsed[0]
        for file in files
        if (parsed := _parse_file(file, skipped, _check_python)) is not None
    ]
    return SyntaxCheck(len(texts), sum(text.count("\n") + 1 for text in texts), tuple(skipped))


def list_files(
    paths: Sequence[Path], is_excluded: Callable[[Path], bool] = _exclude_nothing
) -> list[Path]:
    """Return the files that :func:`read_sources` would read."""
    return list(_iter_files(paths, [], is_excluded, {}))


def _iter_files(
    paths: Iterable[Path],
    skipped: list[SkippedSource],
    is_excluded: Callable[[Path], bool],
    unsaved: Mapping[Path, bytes],
) -> Iterator[Path]:
    visited: set[str] = set()
    for path in paths:
        if is_excluded(path):
            skipped.append(SkippedSource(str(path), "excluded"))
            continue
        try:
            folder = path not in unsaved and stat.S_ISDIR(path.stat().st_mode)
        except FileNotFoundError:
            skipped.append(SkippedSource(str(path), "no such file"))
            continue
        except OSError as error:  # an inaccessible parent folder, or a link to itself
            skipped.append(SkippedSource(str(path), os_error_reason(error)))
            continue
        for candidate in _files_in_folder(path, is_excluded, skipped) if folder else (path,):
            real = os.path.realpath(candidate)  # unlike Path.resolve, handles link cycles
            if real not in visited:
                visited.add(real)
                yield candidate


def _files_in_folder(
    folder: Path, is_excluded: Callable[[Path], bool], skipped: list[SkippedSource]
) -> Iterator[Path]:
    """Yield Python files below a folder; folder links may be cyclic and are not followed."""

    def closed(error: OSError) -> None:
        skipped.append(SkippedSource(str(error.filename), os_error_reason(error)))

    for at, folders, names in os.walk(folder, onerror=closed):
        folders[:] = sorted(
            folder_name
            for folder_name in folders
            if not folder_name.startswith(".")
            and folder_name not in _SKIPPED_FOLDERS
            and not is_excluded(Path(at, folder_name))
        )
        for name in sorted(names):
            if name.endswith((".py", ".ipynb")) and not is_excluded(Path(at, name)):
                yield Path(at, name)


def _module_name(path: Path, roots: dict[Path, Path], content: bytes = b"") -> tuple[Path, str]:
    """Return the folder a file is imported from and its module name; ``roots`` is a cache.

    Relative imports show packages without ``__init__.py``: ``from ..lib`` needs one folder above.
    """
    last = () if path.stem == "__init__" else (path.stem,)
    folder = path.absolute().parent
    root = roots.get(folder)
    if root is None:
        root = roots[folder] = _import_root(folder)
    dots = max((len(found) for found in _RELATIVE_IMPORT.findall(content)), default=0)
    if 1 < dots <= len(folder.parents):
        root = min(root, folder.parents[dots - 2], key=lambda candidate: len(candidate.parts))
    folders = folder.relative_to(root).parts
    return root, ".".join((*folders, *last)) or path.stem


def _import_root(folder: Path) -> Path:
    """Return the folder above the outermost package.

    One or two folders in it may have no ``__init__.py``.
    """
    root, above = folder, 0
    for candidate in (folder, *folder.parents):
        is_package = (candidate / "__init__.py").is_file()
        root, above = (candidate.parent, 0) if is_package else (root, above + 1)
        if above > _MAX_PLAIN_FOLDERS:
            break
    return root


def _parse_module(file: SourceFile, key: str, skipped: list[SkippedSource]) -> Module | None:
    parsed = _parse_file(file, skipped, ast.parse)
    if parsed is None:
        return None
    text, notebook, tree = parsed
    package = file.name if file.path.stem == "__init__" else file.name.rpartition(".")[0]
    return Module(key, str(file.path), tree, package, text=text, notebook=notebook)


def _parse_file(
    file: SourceFile, skipped: list[SkippedSource], parser: Callable[[str], _T]
) -> tuple[str, notebooks.Notebook | None, _T] | None:
    """Return a file's text, notebook and parser result; None if it is skipped."""
    path = file.path
    try:
        notebook = (
            notebooks.parse_notebook(file.content, MAX_BYTES) if path.suffix == ".ipynb" else None
        )
        text = notebook.text if notebook else _decode(file.content)
        with warnings.catch_warnings(action="ignore"):  # of the user's invalid escapes
            result = parser(text)
    except SyntaxError as error:
        skipped.append(SkippedSource(str(path), f"SyntaxError: {error.msg}", error.lineno or None))
    except (ValueError, LookupError) as error:
        skipped.append(SkippedSource(str(path), str(error)))
    except (RecursionError, MemoryError):
        skipped.append(SkippedSource(str(path), "nested too deeply"))
    else:
        if notebook:
            skipped += (SkippedSource(f"{path}:cell {cell}", why) for cell, why in notebook.broken)
        return text, notebook, result
    return None


def _check_python(text: str) -> None:
    try:
        symtable(text, "", "exec")
    except RecursionError:  # symtable has a lower limit than the parser
        ast.parse(text)


def _read_content(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError("not a regular file")
    with path.open("rb") as file:
        return file.read(notebooks.MOST_BYTES + 1)


def _check_size(path: Path, content: bytes) -> bytes:
    most = notebooks.MOST_BYTES if path.suffix == ".ipynb" else MAX_BYTES
    if len(content) > most:
        raise ValueError(f"larger than {most >> 20} MiB")
    return content


def _decode(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("UTF-16 encoding, which Python does not support")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return io.StringIO(content.decode(encoding, errors="replace"), newline=None).read()
