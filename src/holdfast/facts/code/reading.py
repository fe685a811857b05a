"""Files of Python, found, read and parsed; what cannot be is passed over, and said."""

from __future__ import annotations

import ast
import io
import os
import stat
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from symtable import symtable
from types import MappingProxyType
from typing import TypeVar

import msgspec

from holdfast.facts.code import notebooks
from holdfast.facts.code.modules import Module

_T = TypeVar("_T")
#: More is no program that somebody wrote.
MOST_BYTES = 4 << 20
_PASSED_FOLDERS = frozenset(
    {"__pycache__", "node_modules", "site-packages", "dist-packages", "venv", "env", "build", "dist", "_build"}
)


class PassedOver(msgspec.Struct, frozen=True):
    """A file that was not linted, and why."""

    file: str
    why: str


class Sources(msgspec.Struct, frozen=True):
    """The modules of a program by name, how many lines they have, and what was passed over."""

    modules: dict[str, Module]
    lines: int
    passed: tuple[PassedOver, ...]

    def take_apart(self) -> None:
        """Free the modules when nobody needs them any more; the collector would look through all trees for that."""
        for module in self.modules.values():
            module.take_apart()
        self.modules.clear()


class Checked(msgspec.Struct, frozen=True):
    """How many files are Python, with how many lines, and what was passed over."""

    files: int
    lines: int
    passed: tuple[PassedOver, ...]


class File(msgspec.Struct, frozen=True):
    """A file that is not parsed yet: the folder that it is imported from, its name there, and what stands in it."""

    path: Path
    root: Path
    name: str
    content: bytes


class Gathered(msgspec.Struct, frozen=True):
    """The files of a program, and what was passed over."""

    files: tuple[File, ...]
    passed: tuple[PassedOver, ...]


def _nothing(_: Path) -> bool:
    return False


def read(
    paths: Sequence[Path],
    left_out: Callable[[Path], bool] = _nothing,
    unsaved: Mapping[Path, bytes] = MappingProxyType({}),
) -> Sources:
    """All Python files and notebooks of ``paths``, gathered and parsed."""
    gathered = gather(paths, left_out, unsaved)
    sources = parse(gathered.files)
    return Sources(sources.modules, sources.lines, (*gathered.passed, *sources.passed))


def gather(
    paths: Sequence[Path],
    left_out: Callable[[Path], bool] = _nothing,
    unsaved: Mapping[Path, bytes] = MappingProxyType({}),
) -> Gathered:
    """All Python files and notebooks of ``paths`` (files, and folders with all that is below), each once.

    Files and folders that are ``left_out`` are not read; ``unsaved`` is what an editor holds of a file, which need not
    be there.
    """
    passed: list[PassedOver] = []
    files: list[File] = []
    packages: dict[Path, bool] = {}
    for path in _files(paths, passed, left_out, unsaved):
        try:
            content = unsaved.get(path)
            content = _sized(path, _content(path) if content is None else content)
        except OSError as error:
            passed.append(PassedOver(str(path), (error.strerror or str(error)).lower()))
        except ValueError as error:
            passed.append(PassedOver(str(path), str(error)))
        else:
            files.append(File(path, *_name(path, packages), content))
    return Gathered(tuple(files), tuple(passed))


def parse(files: Iterable[File]) -> Sources:
    """The modules of these files."""
    modules: dict[str, Module] = {}
    passed: list[PassedOver] = []
    lines = 0
    siblings: dict[Path, dict[str, str]] = {}
    for file in files:
        name = file.name
        key = name if name not in modules else f"{name}@{len(modules)}"
        module = _module(file, key, passed)
        if module is not None:
            modules[key] = module
            siblings.setdefault(file.root, {})[name] = key
            module.siblings = siblings[file.root]
            lines += len(module.lines)
    return Sources(modules, lines, tuple(passed))


def check(files: Iterable[File]) -> Checked:
    """Whether these files are Python, and no more: what :func:`parse` makes of them costs twice the time."""
    passed: list[PassedOver] = []
    texts = [found[0] for file in files if (found := _understood(file, passed, _is_python)) is not None]
    return Checked(len(texts), sum(text.count("\n") + 1 for text in texts), tuple(passed))


def listed(paths: Sequence[Path], left_out: Callable[[Path], bool] = _nothing) -> list[Path]:
    """The files that :func:`read` would read."""
    return list(_files(paths, [], left_out, {}))


def _files(
    paths: Iterable[Path],
    passed: list[PassedOver],
    left_out: Callable[[Path], bool],
    unsaved: Mapping[Path, bytes],
) -> Iterator[Path]:
    seen: set[str] = set()
    for path in paths:
        if left_out(path):
            passed.append(PassedOver(str(path), "it is excluded"))
            continue
        try:
            folder = path not in unsaved and stat.S_ISDIR(path.stat().st_mode)
        except FileNotFoundError:
            passed.append(PassedOver(str(path), "there is no such file"))
            continue
        except OSError as error:  # it lies in a folder that is closed to us, or is a link to itself
            passed.append(PassedOver(str(path), (error.strerror or str(error)).lower()))
            continue
        for each in _below(path, left_out, passed) if folder else (path,):
            real = os.path.realpath(each)  # which, unlike Path.resolve, answers for links in a circle too
            if real not in seen:
                seen.add(real)
                yield each


def _below(folder: Path, left_out: Callable[[Path], bool], passed: list[PassedOver]) -> Iterator[Path]:
    """Python files below a folder; links to folders are not followed, so that no circle of them is endless."""

    def closed(error: OSError) -> None:
        passed.append(PassedOver(str(error.filename), (error.strerror or str(error)).lower()))

    for at, folders, names in os.walk(folder, onerror=closed):
        folders[:] = sorted(
            each
            for each in folders
            if not each.startswith(".") and each not in _PASSED_FOLDERS and not left_out(Path(at, each))
        )
        for name in sorted(names):
            if name.endswith((".py", ".ipynb")) and not left_out(Path(at, name)):
                yield Path(at, name)


def _name(path: Path, packages: dict[Path, bool]) -> tuple[Path, str]:
    """The folder from which a file is imported, and its module's name there; ``packages`` are folders asked before."""
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.absolute().parent
    while folder != folder.parent:
        if folder not in packages:
            packages[folder] = (folder / "__init__.py").is_file()
        if not packages[folder]:
            break
        parts.append(folder.name)
        folder = folder.parent
    return folder, ".".join(reversed(parts)) or path.stem


def _module(file: File, key: str, passed: list[PassedOver]) -> Module | None:
    found = _understood(file, passed, ast.parse)
    if found is None:
        return None
    text, notebook, tree = found
    package = file.name if file.path.stem == "__init__" else file.name.rpartition(".")[0]
    return Module(key, str(file.path), tree, package, text=text, notebook=notebook)


def _understood(
    file: File, passed: list[PassedOver], parser: Callable[[str], _T]
) -> tuple[str, notebooks.Notebook | None, _T] | None:
    """The text of a file, the notebook that it is, and what the parser makes of it; None where it is passed over."""
    path = file.path
    try:
        notebook = notebooks.parse(file.content, MOST_BYTES) if path.suffix == ".ipynb" else None
        text = notebook.text if notebook else _text(file.content)
        with warnings.catch_warnings(action="ignore"):  # of the user's invalid escapes
            made = parser(text)
    except SyntaxError as error:
        passed.append(
            PassedOver(str(path), f"{f'line {error.lineno}' if error.lineno else 'it'} is no Python 3: {error.msg}")
        )
    except (ValueError, LookupError) as error:
        passed.append(PassedOver(str(path), str(error)))
    except (RecursionError, MemoryError):
        passed.append(PassedOver(str(path), "it is nested too deeply"))
    else:
        if notebook:
            passed += (PassedOver(f"{path}:cell {cell}", why) for cell, why in notebook.broken)
        return text, notebook, made
    return None


def _is_python(text: str) -> None:
    try:
        symtable(text, "", "exec")
    except RecursionError:  # it gives up sooner than the parser
        ast.parse(text)


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError("it is no file")
    with path.open("rb") as file:
        return file.read(notebooks.MOST_BYTES + 1)


def _sized(path: Path, content: bytes) -> bytes:
    most = notebooks.MOST_BYTES if path.suffix == ".ipynb" else MOST_BYTES
    if len(content) > most:
        raise ValueError(f"it has more than {most >> 20} MiB, which is no program")
    return content


def _text(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it is in UTF-16, which Python does not read")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return io.StringIO(content.decode(encoding, errors="replace"), newline=None).read()
