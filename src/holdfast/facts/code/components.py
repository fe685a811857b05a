"""Which files make one program: those that import each other. What others say of a name or a group cannot matter.

By the words of the text, unparsed. A link too many costs time alone, and one too few would lose what is found across
it, so that a name links all files that it may mean. A component in which no word speaks of collectives is not run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.facts.code import library
from holdfast.facts.code.environments import odd_names
from holdfast.facts.code.imports import imports
from holdfast.facts.code.modules import LIBRARIES
from holdfast.facts.code.reading import File

_FAMILIES = re.compile(rb"""["'](?:TORCH|N[CL]|GLOO|PET_)[A-Z0-9_]{3,}["']|update\([A-Z]""")
#: Words of all that a finding can begin with: libraries, and what is theirs whoever imported it.
_LOUD = (
    b"torch", b"deepspeed", b"megatron", b"lightning", b"transformers", b"accelerate.", b"import accelerate",
    b"from accelerate", b"gather_for_metrics", b"wait_for_everyone",
    b"pad_across_processes", b"reduce_boolean_decision", b"save_16bit_model", b"save_fp16_model", b"full_tensor",
)  # fmt: skip
_NAMED = re.compile(rf"\b(?:{'|'.join(library.NAMED)})\.\w+\(".encode())


def components(files: Sequence[File]) -> list[list[File]]:
    """The files, parted by who imports whom; in the order of their first ones."""
    leader = list(range(len(files)))

    def find(at: int) -> int:
        while leader[at] != at:
            leader[at] = leader[leader[at]]
            at = leader[at]
        return at

    for one, other in _links(files):
        a, b = sorted((find(one), find(other)))
        leader[b] = a
    parts: dict[int, list[File]] = defaultdict(list)
    for at, file in enumerate(files):
        parts[find(at)].append(file)
    return list(parts.values())


def is_loud(files: Iterable[File]) -> bool:
    """Something in these files speaks of what a finding can begin with."""
    files = list(files)
    if any(word in file.content for file in files for word in _LOUD):
        return True
    return any(_NAMED.search(file.content) or _odd_names(file) for file in files)


def _links(files: Sequence[File]) -> Iterator[tuple[int, int]]:
    """Pairs of files that import each other, or set and read a variable that nobody else knows."""
    meant = _Meant(files)
    speaking: dict[str, int] = {}
    for at, file in enumerate(files):
        for target in set(_targets(file)):
            yield from ((at, other) for other in meant.by(target, file))
        for name in _odd_names(file):
            yield at, speaking.setdefault(name, at)


def _odd_names(file: File) -> set[str]:
    return odd_names(file.content.decode(errors="replace")) if _FAMILIES.search(file.content) else set()


class _Meant:
    """The files that a dotted name may mean: by the whole name, else by the end of one."""

    def __init__(self, files: Sequence[File]) -> None:
        self._whole: Mapping[str, list[int]] = defaultdict(list)
        self._beside: dict[tuple[str, str], int] = {}
        self._ends: Mapping[str, list[int]] = defaultdict(list)
        for at, file in enumerate(files):
            self._whole[file.name].append(at)
            self._beside[str(file.root), file.name] = at
            parts = file.name.split(".")
            for start in range(1, len(parts)):
                self._ends[".".join(parts[start:])].append(at)

    def by(self, target: str, asking: File) -> Sequence[int]:
        """The files that this may mean in that one."""
        name, root = target, str(asking.root)
        while name:
            beside = self._beside.get((root, name))
            if beside is not None:
                return (beside,)
            if name in self._whole:
                return self._whole[name]
            if name in self._ends and name not in LIBRARIES:
                return self._ends[name]
            name = name.rpartition(".")[0]
        return ()


def _targets(file: File) -> Iterator[str]:
    """What a file imports, by absolute names: modules, and what may be a module in one."""
    package = file.name if file.path.stem == "__init__" else file.name.rpartition(".")[0]
    for home, names in imports(file.content):
        base = _absolute(home, package)
        if base is not None:
            yield base
            yield from (f"{base}.{name}".lstrip(".") for name in names)


def _absolute(home: str, package: str) -> str | None:
    name = home.lstrip(".")
    level = len(home) - len(name)
    if not level:
        return name
    parts = package.split(".") if package else []
    if level - 1 > len(parts):
        return None
    return ".".join([*parts[: len(parts) - (level - 1)], *([name] if name else [])])
