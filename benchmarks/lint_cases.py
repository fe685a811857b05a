"""Recall and precision of ``holdfast lint`` on labelled programs.

Usage: ``python -m benchmarks.lint_cases [FOLDER] [-v]``. FOLDER contains ``cases/*/case.json`` (the
marked lines of a program with a bug) and ``negatives`` (correct programs that look like bugs). The
fixed version of a program is stored as ``bad.patch``, a unified diff against the buggy one, or as
whole files. The default is tests/faults/lint_cases, on which the linter was improved; the programs
in its folder ``unseen`` were written without knowledge of the linter. A case is found *exactly* if
the line at fault is reported (``expect``), and *near* if that or another line of the same bug is
(``related``: the guard, the hidden collective, the source). In programs without a bug, advice
counts only if its rule is the case's own pattern, as they were not written to be free of advice.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.unified_patches import PatchMismatch, apply_hunks, split_patch
from holdfast.core.findings import Level
from holdfast.lint.analysis import RuleFinding
from holdfast.lint.run import lint_paths

OWN = Path(__file__).parents[1] / "tests" / "faults" / "lint_cases"
Line = tuple[str, int]


@dataclass(frozen=True)
class ReportedLine:
    """The rule, file and line of a finding, and whether it is only advice."""

    rule: str
    line: Line
    advice: bool


@dataclass(frozen=True)
class CaseScore:
    """The findings in the buggy and the fixed version of one case."""

    name: str
    pattern: str
    across: bool
    expect: frozenset[Line]
    marked: frozenset[Line]
    bad: tuple[ReportedLine, ...]
    good: tuple[ReportedLine, ...]

    @property
    def exact(self) -> bool:
        """Return True if the line at fault is reported."""
        return any(reported.line in self.expect for reported in self.bad)

    @property
    def near(self) -> bool:
        """Return True if any line of the bug is reported."""
        return any(reported.line in self.marked for reported in self.bad)


def score_case(folder: Path) -> CaseScore:
    """Lint both versions of a case separately."""
    case: dict[str, Any] = json.loads((folder / "case.json").read_text())
    expect = frozenset((entry["file"], entry["line"]) for entry in case["expect"])
    marked = expect | {(entry["file"], entry["line"]) for entry in case["related"]}
    bad = _lint_files(folder, [folder / file for file in case["bad_files"]])
    fixed = fixed_files(folder, case)
    alarms = tuple(
        reported
        for reported in _lint_files(folder, list(fixed), fixed)
        if not reported.advice or reported.rule == case["pattern"]
    )
    return CaseScore(
        folder.name, case["pattern"], case["interprocedural"], expect, marked, bad, alarms
    )


def fixed_files(folder: Path, case: Mapping[str, Any]) -> dict[Path, bytes]:
    """Return the content of the fixed version's files, which need not exist, by path.

    Raises:
        PatchMismatch: ``bad.patch`` does not match the buggy version.
    """
    patch = folder / "bad.patch"
    if not patch.exists():
        return {folder / file: (folder / file).read_bytes() for file in case["good_files"]}
    changes = split_patch(patch.read_text())
    fixed = {}
    for old, new in zip(case["bad_files"], case["good_files"], strict=True):
        hunks = changes.pop((old, new), [])
        fixed[folder / new] = apply_hunks((folder / old).read_text(), hunks).encode()
    if changes:
        raise PatchMismatch(f"{patch} changes files that are not in case.json: {[*changes]}")
    return fixed


def _lint_files(
    folder: Path, paths: Sequence[Path], unsaved: Mapping[Path, bytes] = MappingProxyType({})
) -> tuple[ReportedLine, ...]:
    """Lint these files as one program."""
    claims = lint_paths(paths, unsaved=unsaved).findings
    return tuple(_reported_line(folder, finding) for finding in claims)


def _lint_negative(path: Path) -> tuple[ReportedLine, ...]:
    """Lint a correct program, a file or a folder of files; ignore advice."""
    files = [path] if path.is_file() else sorted(path.glob("*.py"))
    return tuple(reported for reported in _lint_files(path.parent, files) if not reported.advice)


def _reported_line(folder: Path, result: RuleFinding) -> ReportedLine:
    subject = result.finding.subject
    file = Path(subject.file or "").relative_to(folder)
    advice = result.finding.level is Level.NOTE
    return ReportedLine(result.rule, (file.as_posix(), subject.line or 0), advice)


def main(arguments: Sequence[str] = ()) -> int:
    """Lint every case and every negative, and print recall and precision."""
    folder = Path(next((word for word in arguments if not word.startswith("-")), OWN))
    if not (folder / "cases").is_dir():
        print(f"{folder / 'cases'}: no such folder", file=sys.stderr)
        return 2
    start = time.process_time()
    scores = [score_case(case.parent) for case in sorted((folder / "cases").glob("*/case.json"))]
    programs = sorted(
        path for path in folder.glob("negatives/*") if path.is_dir() or path.suffix == ".py"
    )
    negatives = {path.name: _lint_negative(path) for path in programs}
    contested = _contested(folder)
    seconds = time.process_time() - start
    _print_recall(scores)
    flagged = [score.name for score in scores if score.good]
    print(f"fixed versions flagged: {len(flagged)} of {len(scores)} {' '.join(flagged)}".rstrip())
    for label, is_contested in (("negatives", False), ("contested negatives", True)):
        names = [name for name in negatives if (name in contested) is is_contested]
        flagged = [name for name in names if negatives[name]]
        print(f"{label} flagged: {len(flagged)} of {len(names)} {' '.join(flagged)}".rstrip())
    _print_precision(scores, [line for lines in negatives.values() for line in lines])
    if "-v" in arguments:
        _print_cases(scores, negatives)
    print(f"{2 * len(scores) + len(negatives)} programs in {seconds:.1f} s of CPU")
    return 0


def _contested(folder: Path) -> set[str]:
    """Return the names of negatives whose correctness is debatable."""
    index = folder / "negatives" / "index.json"
    entries = json.loads(index.read_text()) if index.exists() else []
    return {entry["file"] for entry in entries if entry.get("contested")}


def _print_recall(scores: Sequence[CaseScore]) -> None:
    print(f"{'recall':32} cases  exact   near")
    _print_row("all", scores)
    _print_row("within one function", [score for score in scores if not score.across])
    _print_row("across functions", [score for score in scores if score.across])
    for pattern in sorted({score.pattern for score in scores}):
        _print_row(f"  {pattern}", [score for score in scores if score.pattern == pattern])
    missed = [score.name for score in scores if not score.near]
    print(f"missed: {' '.join(missed) or 'none'}")


def _print_row(name: str, scores: Sequence[CaseScore]) -> None:
    exact, near = (
        _count(scores, test) for test in (lambda score: score.exact, lambda score: score.near)
    )
    print(f"{name:32} {len(scores):5}  {exact:5}  {near:5}")


def _count(scores: Sequence[CaseScore], test: Callable[[CaseScore], bool]) -> int:
    return sum(test(score) for score in scores)


def _print_precision(scores: Sequence[CaseScore], negatives: Sequence[ReportedLine]) -> None:
    """Print findings by rule: on a marked line, elsewhere in a buggy program, in a correct one."""
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for score in scores:
        for reported in score.bad:
            table[reported.rule][0 if reported.line in score.marked else 1] += 1
    for reported in (*(line for score in scores for line in score.good), *negatives):
        table[reported.rule][2] += 1
    print(f"{'precision by rule':32} marked  elsewhere  false")
    for rule, (marked, elsewhere, false) in sorted(table.items()):
        precision = marked / (marked + elsewhere + false)
        print(f"  {rule:30} {marked:6}  {elsewhere:9}  {false:5}  {precision:4.0%}")


def _print_cases(
    scores: Sequence[CaseScore], negatives: dict[str, tuple[ReportedLine, ...]]
) -> None:
    for score in scores:
        mark = "exact" if score.exact else "near" if score.near else "MISSED"
        print(f"{score.name:36} {mark:6} {_format(score.bad)}  fixed: {_format(score.good)}")
    for name, lines in negatives.items():
        print(f"{name:36} {_format(lines)}")


def _format(lines: Sequence[ReportedLine]) -> str:
    return (
        ", ".join(f"{reported.line[0]}:{reported.line[1]} {reported.rule}" for reported in lines)
        or "nothing"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
