"""Split files into programs: components of files that import each other.

Imports are found in the text, without parsing. A superfluous link costs only time and a missing one
loses findings, so a name links all files that it may mean. A component that mentions no collective
is not analyzed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import msgspec

from holdfast.lint import library
from holdfast.lint.sources.files import SourceFile
from holdfast.lint.sources.import_paths import ImportPaths
from holdfast.lint.sources.imports import iter_imports
from holdfast.lint.sources.modules import LIBRARIES
from holdfast.lint.sources.variable_names import unknown_variables

_VARIABLE_FAMILIES = re.compile(rb"""["'](?:TORCH|N[CL]|GLOO|PET_)[A-Z0-9_]{3,}["']""")
#: How these begin: to search for all of them takes a third of the time of the pattern.
_VARIABLE_PREFIXES = tuple(
    quote + prefix
    for quote in (b'"', b"'")
    for prefix in (b"TORCH", b"NC", b"NL", b"GLOO", b"PET_")
)
_VARIABLES_AS_KEYWORDS = re.compile(rb"update\([A-Z]")
#: Words that any finding requires: libraries, and methods unique to them.
_COLLECTIVE_WORDS = (
    b"torch", b"deepspeed", b"megatron", b"lightning", b"transformers", b"accelerate.",
    b"import accelerate", b"from accelerate", b"gather_for_metrics", b"wait_for_everyone",
    b"pad_across_processes", b"reduce_boolean_decision", b"save_16bit_model", b"save_fp16_model",
    b"full_tensor", b"horovod", b".barrier(", b"trlx", b"local_rank", b"import ignite",
    b"from ignite", b"import trl", b"from trl", b"from mmengine", b"import mmengine",
)  # fmt: skip
_RECEIVERS = tuple(f"{name}.".encode() for name in library.RECEIVER_NAMES)
_FRAMEWORK_CALL = re.compile(rf"\b(?:{'|'.join(library.RECEIVER_NAMES)})\.\w+\(".encode())


class ImportLink(msgspec.Struct, frozen=True):
    """Two files, by position, that belong to one program; ``imports``: the first imports the other.

    Otherwise they use the same unknown variable.
    """

    first: int
    second: int
    imports: bool = True


def connected_parts(members: Iterable[int], links: Iterable[ImportLink]) -> list[list[int]]:
    """Return the connected parts of these files, in the order of their first members."""
    leader = {at: at for at in members}

    def find(at: int) -> int:
        while leader[at] != at:
            leader[at] = leader[leader[at]]
            at = leader[at]
        return at

    for link in links:
        if link.first in leader and link.second in leader:
            low, high = sorted((find(link.first), find(link.second)))
            leader[high] = low
    parts: dict[int, list[int]] = defaultdict(list)
    for at in leader:
        parts[find(at)].append(at)
    return list(parts.values())


def mentions_collectives(files: Iterable[SourceFile]) -> bool:
    """Return True if these files mention anything a finding can start from."""
    files = list(files)
    if any(_contains(file.content, _COLLECTIVE_WORDS) for file in files):
        return True
    return any(
        (_contains(file.content, _RECEIVERS) and _FRAMEWORK_CALL.search(file.content))
        or _unknown_variables(file)
        for file in files
    )


def _contains(content: bytes, words: Iterable[bytes]) -> bool:
    return any(word in content for word in words)


def find_links(files: Sequence[SourceFile]) -> list[ImportLink]:
    """Return the pairs of files of which one imports the other, or that use an unknown variable."""
    index = _FileIndex(files)
    first_mention: dict[str, int] = {}
    links: dict[ImportLink, None] = {}
    for at, file in enumerate(files):
        root, folder = str(file.root), str(file.path.absolute().parent)
        for target in dict.fromkeys(_imported_names(file)):
            for other in index.lookup(target, file, root, folder):
                links[ImportLink(at, other)] = None
        for name in _unknown_variables(file):
            links[ImportLink(at, first_mention.setdefault(name, at), imports=False)] = None
    return [link for link in links if link.first != link.second]


def _unknown_variables(file: SourceFile) -> set[str]:
    content = file.content
    if (
        _contains(content, _VARIABLE_PREFIXES) and _VARIABLE_FAMILIES.search(content)
    ) or _VARIABLES_AS_KEYWORDS.search(content):
        return unknown_variables(file.content.decode(errors="replace"))
    return set()


class _FileIndex:
    """Find files by dotted name: by the whole name, else by a suffix."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._files = files
        self._by_name: Mapping[str, list[int]] = defaultdict(list)
        self._paths = ImportPaths([file.path for file in files])
        self._by_suffix: Mapping[str, list[int]] = defaultdict(list)
        for at, file in enumerate(files):
            self._by_name[file.name].append(at)
            parts = file.name.split(".")
            for start in range(1, len(parts)):
                self._by_suffix[".".join(parts[start:])].append(at)

    def lookup(self, target: str, asking: SourceFile, root: str, folder: str) -> Sequence[int]:
        """Return the files that a name may mean in the asking file, which is in this folder."""
        name = target
        while name:
            found = self._paths.find(name, root, folder)
            if found is not None:
                return (found,)
            if name in self._by_name:
                return self._nearest(self._by_name[name], asking)
            if name in self._by_suffix and name not in LIBRARIES:
                return self._nearest(self._by_suffix[name], asking)
            name = name.rpartition(".")[0]
        return ()

    def _nearest(self, candidates: Sequence[int], asking: SourceFile) -> Sequence[int]:
        """Return those of several files of a name that share most folders with the asking file."""
        if len(candidates) == 1:
            return candidates
        shared = [shared_folders(self._files[at].path, asking.path) for at in candidates]
        return [at for at, count in zip(candidates, shared, strict=True) if count == max(shared)]


def shared_folders(one: Path, other: Path) -> int:
    """Return the number of leading folders that two paths share."""
    pairs = zip(one.parts[:-1], other.parts[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _imported_names(file: SourceFile) -> Iterator[str]:
    """Yield the absolute names that a file imports: modules, and names that may be modules."""
    package = file.name if file.path.stem == "__init__" else file.name.rpartition(".")[0]
    for home, names in iter_imports(file.content):
        base = _absolute_name(home, package)
        if base is not None:
            yield base
            yield from (f"{base}.{name}".lstrip(".") for name in names)


def _absolute_name(home: str, package: str) -> str | None:
    name = home.lstrip(".")
    level = len(home) - len(name)
    if not level:
        return name
    parts = package.split(".") if package else []
    if level - 1 > len(parts):
        return None
    return ".".join([*parts[: len(parts) - (level - 1)], *([name] if name else [])])
