"""Split a component into programs: its packages, scripts that share no imports, and tests.

Scripts that use one package are separate programs: what one of them assigns to the package's
classes, or passes to its functions, is not true for the others. A package that several of them use
is analyzed alone, so that its findings do not depend on how many scripts and tests are linted
with it. Each group of connected scripts is analyzed with those files of the package that it
imports, nearest first; without them if these are too many and no rank can diverge in the scripts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.lint.sources.components import ImportLink, connected_parts, find_links
from holdfast.lint.sources.distributed_words import DistributedWords
from holdfast.lint.sources.files import SourceFile
from holdfast.lint.sources.modules import LIBRARIES

_TEST_FOLDERS = frozenset({"test", "tests", "unit_tests"})
#: Bytes of imported files that each group may have at least; all groups together get half as many
#: bytes as there are in the component.
_MIN_IMPORTED_BYTES = 1 << 17
#: Folder above and name of a top-level package; both are empty for a script.
Package = tuple[str, str]


class ProgramFiles(msgspec.Struct, frozen=True):
    """The files of one program; ``owned`` are those that no other program of the component owns.

    ``reports_all``: findings in other files count too, as none of the program's files is missing.
    """

    files: tuple[SourceFile, ...]
    owned: frozenset[str]
    reports_all: bool = True

    @property
    def owned_files(self) -> tuple[SourceFile, ...]:
        """Return the program's own files."""
        return tuple(file for file in self.files if str(file.path) in self.owned)


def whole_program(files: Iterable[SourceFile]) -> ProgramFiles:
    """Return a program that owns all of its files."""
    members = tuple(files)
    return ProgramFiles(members, frozenset(str(file.path) for file in members))


def split_programs(files: Sequence[SourceFile]) -> list[ProgramFiles]:
    """Return the programs of these files, in the order of their first files."""
    links = find_links(files)
    programs: list[ProgramFiles] = []
    for part in connected_parts(range(len(files)), links):
        programs += (
            _split_component(files, part, links)
            if len(part) > 1
            else [whole_program(files[at] for at in part)]
        )
    return programs


def _split_component(
    files: Sequence[SourceFile], part: Sequence[int], links: Sequence[ImportLink]
) -> list[ProgramFiles]:
    """Return the packages of a component as one program, and each group of scripts and tests."""
    imported = _imports_of(part, links)
    tests = find_tests(files, part)
    core = _closure(_used_packages(files, part, imported, tests), imported)
    scripts = connected_parts((at for at in part if at not in core | tests), links)
    if len(scripts) < 2 or not core:  # one program and its tests
        core = _closure(core.union(*scripts), imported)
        scripts = []
    outer_tests = sorted(tests - core)
    groups = [*scripts, *([outer_tests] if outer_tests else [])]
    programs = [
        whole_program(files[at] for at in members)
        for members in connected_parts(sorted(core), links)
    ]
    return [*programs, *_with_imports(files, groups, imported, tests)]


def _imports_of(part: Iterable[int], links: Iterable[ImportLink]) -> Mapping[int, list[int]]:
    """Return what each file imports; files with the same unknown variable import each other."""
    imported: dict[int, list[int]] = {at: [] for at in part}
    for link in links:
        if link.first in imported:
            imported[link.first].append(link.second)
            if not link.imports:
                imported[link.second].append(link.first)
    return imported


def _used_packages(
    files: Sequence[SourceFile],
    part: Sequence[int],
    imported: Mapping[int, Sequence[int]],
    tests: Collection[int],
) -> set[int]:
    """Return the files of packages that files outside of the package import."""
    packages = {at: _package(files[at]) for at in part}
    used = {
        packages[target]
        for at, targets in imported.items()
        for target in targets
        if packages[target] != packages[at] and target not in tests
    } - {("", "")}
    return {at for at in packages if packages[at] in used and at not in tests}


def _package(file: SourceFile) -> Package:
    """Return the root and name of the top-level package of a file; empty for a script."""
    top, dot, _ = file.name.partition(".")
    is_package = bool(dot) or file.path.stem == "__init__"
    return (str(file.root), top) if is_package else ("", "")


def find_tests(files: Sequence[SourceFile], part: Sequence[int]) -> set[int]:
    """Return the tests outside of packages; none if there are only tests.

    Folders above all files do not count, as they are not the program's.
    """
    parts = [files[at].path.absolute().parts for at in part]
    above = _common_length(parts)
    tests = set()
    for at, names in zip(part, parts, strict=True):
        *folders, _ = names[above:]
        stem = files[at].path.stem
        named = stem.startswith("test_") or stem.endswith("_test") or stem == "conftest"
        package = _package(files[at])[1]
        if (named or _TEST_FOLDERS & set(folders)) and package in ("", *_TEST_FOLDERS):
            tests.add(at)
    return tests if len(tests) < len(part) else set()


def _common_length(paths: Sequence[tuple[str, ...]]) -> int:
    """Return the number of leading folders that all paths share."""
    first, last = min(paths), max(paths)
    count = 0
    while count < min(len(first), len(last)) - 1 and first[count] == last[count]:
        count += 1
    return count


def _closure(start: Iterable[int], imported: Mapping[int, Sequence[int]]) -> set[int]:
    reached = set(start)
    pending = list(reached)
    while pending:
        for at in imported.get(pending.pop(), ()):
            if at not in reached:
                reached.add(at)
                pending.append(at)
    return reached


def _with_imports(
    files: Sequence[SourceFile],
    groups: Sequence[Sequence[int]],
    imported: Mapping[int, Sequence[int]],
    tests: Collection[int],
) -> Iterable[ProgramFiles]:
    """Yield each group with the files that it imports.

    A group that cannot get all of them gets none if there is no finding in it to expect: findings
    in the imported files do not count, and hundreds of such scripts may import one package.
    """
    words = DistributedWords()
    total = sum(len(files[at].content) for at in imported)
    share = total // (2 * max(len(groups), 1))
    for group in groups:
        found, complete = _nearest_imports(files, group, imported, max(share, _MIN_IMPORTED_BYTES))
        owned = whole_program(files[at] for at in group)
        if not complete and not words.may_diverge(owned.files, (files[at] for at in found)):
            found = []
        yield ProgramFiles(
            (*owned.files, *(files[at] for at in found)),
            owned.owned,
            reports_all=complete and not set(group) <= set(tests),
        )


def _nearest_imports(
    files: Sequence[SourceFile],
    group: Sequence[int],
    imported: Mapping[int, Sequence[int]],
    budget: int,
) -> tuple[list[int], bool]:
    """Return the files that a group imports, breadth-first, and whether these are all.

    Files of a library that the linter models are left out: its models are more exact.
    """
    found: list[int] = []
    visited = set(group)
    pending = list(group)
    complete = True
    while pending:
        for at in imported.get(pending.pop(0), ()):
            if at in visited:
                continue
            visited.add(at)
            budget -= len(files[at].content)
            if budget < 0 or files[at].name.partition(".")[0] in LIBRARIES:
                complete = False
                continue
            found.append(at)
            pending.append(at)
    return found, complete
