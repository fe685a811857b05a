"""Files of Python, found, read and parsed; what cannot be is passed over, and said."""

from __future__ import annotations

import ast
import gc
import io
import os
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import msgspec

from holdfast.facts.code import notebooks
from holdfast.facts.code.modules import Module

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

    modules: Mapping[str, Module]
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
    return parse(gather(paths, left_out, unsaved))


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


def parse(gathered: Gathered) -> Sources:
    """The modules of these files."""
    modules: dict[str, Module] = {}
    passed = list(gathered.passed)
    lines = 0
    siblings: dict[Path, dict[str, str]] = {}
    with without_collector():
        for file in gathered.files:
            name = file.name
            key = name if name not in modules else f"{name}@{len(modules)}"
            module = _module(file, key, passed)
            if module is not None:
                modules[key] = module
                siblings.setdefault(file.root, {})[name] = key
                module.siblings = siblings[file.root]
                lines += len(module.lines)
    return Sources(modules, lines, tuple(passed))


def listed(paths: Sequence[Path], left_out: Callable[[Path], bool] = _nothing) -> list[Path]:
    """The files that :func:`read` would read."""
    return list(_files(paths, [], left_out, {}))


@contextmanager
def without_collector() -> Iterator[None]:
    """Trees and what is known of values are millions of objects that stay: looking for garbage is half the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


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
        if path.is_dir():
            found: Iterable[Path] = _below(path, left_out, passed)
        elif path in unsaved or path.exists():
            found = (path,)
        else:
            passed.append(PassedOver(str(path), "there is no such file"))
            continue
        for each in found:
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
    path, name = file.path, file.name
    try:
        notebook = notebooks.parse(file.content, MOST_BYTES) if path.suffix == ".ipynb" else None
        text = notebook.text if notebook else _text(file.content)
        with warnings.catch_warnings(action="ignore"):  # of the user's invalid escapes
            tree = ast.parse(text)
    except SyntaxError as error:
        passed.append(PassedOver(str(path), f"line {error.lineno or 0} is no Python 3: {error.msg}"))
    except (ValueError, LookupError) as error:
        passed.append(PassedOver(str(path), str(error)))
    except (RecursionError, MemoryError):
        passed.append(PassedOver(str(path), "it is nested too deeply"))
    else:
        if notebook:
            passed += (PassedOver(f"{path}:cell {cell}", why) for cell, why in notebook.broken)
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        return Module(key, str(path), tree, package, lines=text.split("\n"), notebook=notebook)
    return None


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
