"""Recall of ``holdfast lint`` on known bugs of public repositories, before and after their fix.

Usage: ``python -m benchmarks.lint_known_bugs FOLDER [HALF] [-v]``. FOLDER contains ``*/case.json``
with the ``files`` of a repository, the ranges of lines at which the bug may be reported
(``bug.accept``), its ``kind``, and whether a reader of the files can see it (``evident``); beside
it the folders ``broken`` and ``fixed`` hold the files before and after the fix. ``halves.json``
names the cases of each half: ``work`` was read, ``final`` is counted only. The sources belong to
their authors and are not part of this repository; ``lint_known_bugs.json`` lists repository, fix,
files and lines of all cases, from which ``git show`` of the fix and of its parent makes FOLDER.

A bug is found if a finding lies in such a range. A fixed version is flagged if a finding with the
same rule and the same text of the line remains.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.findings import Level
from holdfast.lint.options import LintOptions
from holdfast.lint.run import lint_paths


@dataclass(frozen=True)
class LocatedFinding:
    """A finding, with the text of its line."""

    rule: str
    level: Level
    file: str
    line: int
    text: str


@dataclass(frozen=True)
class KnownBug:
    """The findings at one bug, those elsewhere, and those that remain after its fix."""

    name: str
    kind: str
    evident: bool
    at_bug: tuple[LocatedFinding, ...]
    elsewhere: tuple[LocatedFinding, ...]
    remaining: tuple[LocatedFinding, ...]


def score_bug(folder: Path, options: LintOptions) -> KnownBug:
    """Lint the versions before and after the fix, each as one program."""
    case: dict[str, Any] = json.loads((folder / "case.json").read_text())
    broken = tuple(_lint(folder / "broken", options))
    accepted = [(file, range(first, last + 1)) for file, first, last in case["bug"]["accept"]]
    at_bug = tuple(
        each
        for each in broken
        if any(each.file == file and each.line in lines for file, lines in accepted)
    )
    keys = {(each.rule, each.file, each.text) for each in at_bug}
    fixed = _lint(folder / "fixed", options) if at_bug else ()
    return KnownBug(
        folder.name,
        case["kind"],
        case["evident"],
        at_bug,
        tuple(each for each in broken if each not in at_bug),
        tuple(each for each in fixed if (each.rule, each.file, each.text) in keys),
    )


def _lint(folder: Path, options: LintOptions) -> Iterable[LocatedFinding]:
    for reported in lint_paths([folder], options).findings:
        subject = reported.finding.subject
        file, line = Path(subject.file or ""), subject.line or 0
        text = file.read_text(errors="replace").splitlines()[line - 1].strip() if line else ""
        name = file.relative_to(folder).as_posix()
        yield LocatedFinding(reported.rule, reported.finding.level, name, line, text)


def main(arguments: Sequence[str] = ()) -> int:
    """Lint every case, with and without ``--strict``; print recall by kind."""
    words = [word for word in arguments if not word.startswith("-")]
    if not words or not Path(words[0]).is_dir():
        print("usage: python -m benchmarks.lint_known_bugs FOLDER [HALF] [-v]", file=sys.stderr)
        return 2
    folder = Path(words[0])
    names = sorted(case.parent.name for case in folder.glob("*/case.json"))
    if len(words) > 1:
        names = json.loads((folder / "halves.json").read_text())[words[1]]
    for title, options in (("default", LintOptions()), ("--strict", LintOptions(strict=True))):
        bugs = [score_bug(folder / name, options) for name in names]
        _print_table(title, bugs)
        if "-v" in arguments:
            _print_bugs(bugs)
    return 0


def _print_table(title: str, bugs: Sequence[KnownBug]) -> None:
    print(f"{title:34} bugs  found  fixed version flagged")
    evident = [bug for bug in bugs if bug.evident]
    groups = {"all": bugs, "evident in the files": evident}
    groups |= {f"  {kind}": [bug for bug in bugs if bug.kind == kind] for kind in _kinds(bugs)}
    for name, group in groups.items():
        found = sum(bool(bug.at_bug) for bug in group)
        print(f"{name:34} {len(group):4}  {found:5}  {sum(bool(bug.remaining) for bug in group):5}")
    by_level = dict.fromkeys(Level, 0)
    for bug in bugs:
        for each in bug.elsewhere:
            by_level[each.level] += 1
    counts = ", ".join(f"{count} {level}" for level, count in by_level.items() if count)
    print(f"findings at other lines, not judged: {counts or 'none'}")


def _kinds(bugs: Sequence[KnownBug]) -> list[str]:
    return sorted({bug.kind for bug in bugs})


def _print_bugs(bugs: Sequence[KnownBug]) -> None:
    for bug in bugs:
        mark = "found" if bug.at_bug else "MISSED"
        places = ", ".join(f"{each.file}:{each.line} {each.rule}" for each in bug.at_bug)
        rest = f"  fixed: {len(bug.remaining)}" if bug.remaining else ""
        print(f"{bug.name:8} {bug.kind:26} {mark:6} {places}{rest}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
