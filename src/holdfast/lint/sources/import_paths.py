"""Find the file that an import means, by the folders in which Python would search.

These are the folder above the top-level package, or that of the script; then the folders above it,
as a repository's top folder is often in PYTHONPATH, even if only a part of it is linted; and at
last the folders from a file in a package upwards, as it may be started as a script. Folders need no
``__init__.py``. A dotted name that none of these has means the only file whose path ends with it,
such as one below ``src``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.lint.sources.modules import LIBRARIES


class ImportPaths:
    """Finds files by the name of a module, and the root and folder of the importing file."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._positions: dict[str, int] = {}
        self._found: dict[tuple[str, str, str], int | None] = {}
        self._ends: dict[str, list[str]] = {}
        for at, file in enumerate(files):
            path = file.absolute()
            module = path.parent if path.stem == "__init__" else path.with_suffix("")
            self._positions.setdefault(str(module), at)
            self._ends.setdefault("/".join(module.parts[-2:]), []).append(str(module))

    def find(self, name: str, root: str, folder: str) -> int | None:
        """Return the position of the file of exactly this module; None if there is none."""
        key = (root, folder, name)
        if key not in self._found:
            tail = name.replace(".", "/")
            places = (f"{place}/{tail}" for place in self._places(name, root, folder))
            found = next((place for place in places if place in self._positions), None)
            if found is None:
                found = self._only_end(name, tail)
            self._found[key] = None if found is None else self._positions[found]
        return self._found[key]

    def _only_end(self, name: str, tail: str) -> str | None:
        """Return the only module whose path ends with a dotted name."""
        if name.partition(".")[0] in LIBRARIES:
            return None
        ends = self._ends.get("/".join(tail.split("/")[-2:]), []) if "/" in tail else []
        found = {place for place in ends if place.endswith(f"/{tail}")}
        return found.pop() if len(found) == 1 else None

    def _places(self, name: str, root: str, folder: str) -> Iterator[str]:
        yield root
        if name.partition(".")[0] in LIBRARIES:
            return
        above = root
        while above:
            above = above.rpartition("/")[0]
            yield above
        while len(folder) > len(root):
            yield folder
            folder = folder.rpartition("/")[0]


class ImportResolver:
    """Finds the keys of the modules that one file imports, by the names that it uses for them."""

    def __init__(self, paths: ImportPaths, root: Path, file: Path, keys: Mapping[int, str]) -> None:
        self._paths, self._keys = paths, keys
        self._root, self._folder = str(root), str(file.absolute().parent)
        self._found: dict[str, str | None] = {}

    def __call__(self, name: str) -> str | None:
        """Return the key of a module; None for one outside of the program."""
        if name not in self._found:
            at = self._paths.find(name, self._root, self._folder)
            self._found[name] = None if at is None else self._keys.get(at)
        return self._found[name]
