"""Files of Python, found, read and parsed; what cannot be is passed over, and said."""

from __future__ import annotations

import ast
import gc
import io
import os
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

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


def read(paths: Sequence[Path]) -> Sources:
    """All Python files of ``paths`` (files, and folders with all that is below), each once."""
    modules: dict[str, Module] = {}
    passed: list[PassedOver] = []
    lines = 0
    siblings: dict[Path, dict[str, str]] = {}
    with _without_collector():
        for path in _files(paths, passed):
            root, name = _name(path)
            key = name if name not in modules else f"{name}@{len(modules)}"
            module = _module(path, key, name, passed)
            if module is not None:
                modules[key] = module
                siblings.setdefault(root, {})[name] = key
                module.siblings = siblings[root]
                lines += len(module.lines)
    return Sources(modules, lines, tuple(passed))


@contextmanager
def _without_collector() -> Iterator[None]:
    """Trees of syntax are millions of objects that all stay: looking for garbage among them is most of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _files(paths: Iterable[Path], passed: list[PassedOver]) -> Iterator[Path]:
    seen: set[str] = set()
    for path in paths:
        if path.is_dir():
            found: Iterable[Path] = _below(path)
        elif path.exists():
            found = (path,)
        else:
            passed.append(PassedOver(str(path), "there is no such file"))
            continue
        for each in found:
            real = os.path.realpath(each)  # which, unlike Path.resolve, answers for links in a circle too
            if real not in seen:
                seen.add(real)
                yield each


def _below(folder: Path) -> Iterator[Path]:
    """Python files below a folder; links to folders are not followed, so that no circle of them is endless."""
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in _PASSED_FOLDERS)
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(at, name)


def _name(path: Path) -> tuple[Path, str]:
    """The folder from which a file is imported, and its module's name there."""
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.absolute().parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        parts.append(folder.name)
        folder = folder.parent
    return folder, ".".join(reversed(parts)) or path.stem


def _module(path: Path, key: str, name: str, passed: list[PassedOver]) -> Module | None:
    try:
        text = _text(path)
        with warnings.catch_warnings(action="ignore"):  # of the user's invalid escapes
            tree = ast.parse(text)
    except SyntaxError as error:
        passed.append(PassedOver(str(path), f"line {error.lineno or 0} is no Python 3: {error.msg}"))
    except (OSError, ValueError, LookupError) as error:
        passed.append(PassedOver(str(path), str(error)))
    except (RecursionError, MemoryError):
        passed.append(PassedOver(str(path), "it is nested too deeply"))
    else:
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        return Module(key, str(path), tree, package, lines=text.split("\n"))
    return None


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError("it is no file")
    content = path.read_bytes()
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has {len(content) >> 20} MiB, and more than {MOST_BYTES >> 20} are no program")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return io.StringIO(content.decode(encoding, errors="replace"), newline=None).read()
