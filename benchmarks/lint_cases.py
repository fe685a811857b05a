"""Recall and precision of ``holdfast lint`` on labelled programs: ``python -m benchmarks.lint_cases [FOLDER] [-v]``.

FOLDER holds ``cases/*/case.json`` (a program with a bug, its mended version, the marked lines) and ``negatives`` (what
only looks like a bug); left out, it is the project's own tests/lint_cases, on which the linter was mended; those in
tests/lint_cases/unseen were written without a look at it. A case counts as found *exactly* where the line at
fault is named (``expect``), and *near* where that or another line of the same bug is (``related``: the guard, the
hidden collective, the source). Of a program without a bug, advice is not counted, but for that of a rule of the
case's own pattern: such programs were not written to be clean of it.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.actions.lint.judging import Claim
from holdfast.actions.lint.linting import lint
from holdfast.findings import Level

OWN = Path(__file__).parents[1] / "tests" / "lint_cases"
Line = tuple[str, int]


@dataclass(frozen=True)
class Said:
    """What a rule said, and of which file and line."""

    rule: str
    line: Line
    advice: bool


@dataclass(frozen=True)
class Score:
    """How one case was judged: what was said of its bug, and of its mended version."""

    name: str
    pattern: str
    across: bool
    expect: frozenset[Line]
    marked: frozenset[Line]
    bad: tuple[Said, ...]
    good: tuple[Said, ...]

    @property
    def exact(self) -> bool:
        """The line at fault is named."""
        return any(said.line in self.expect for said in self.bad)

    @property
    def near(self) -> bool:
        """A line of the bug is named."""
        return any(said.line in self.marked for said in self.bad)


def scored(folder: Path) -> Score:
    """One case, its two versions linted apart."""
    case: dict[str, Any] = json.loads((folder / "case.json").read_text())
    expect = frozenset((each["file"], each["line"]) for each in case["expect"])
    marked = expect | {(each["file"], each["line"]) for each in case["related"]}
    bad, good = (_said(folder, case[f"{version}_files"]) for version in ("bad", "good"))
    alarms = tuple(said for said in good if not said.advice or said.rule == case["pattern"])
    return Score(folder.name, case["pattern"], case["interprocedural"], expect, marked, bad, alarms)


def _said(folder: Path, files: Sequence[str]) -> tuple[Said, ...]:
    """What is said of these files, read as one program."""
    return tuple(_one(folder, claim) for claim in lint([folder / file for file in files]).claims)


def _innocent(path: Path) -> tuple[Said, ...]:
    """What is said of one that is right: a file, or a folder with a program of several."""
    files = [path] if path.is_file() else sorted(path.glob("*.py"))
    names = [file.relative_to(path.parent).as_posix() for file in files]
    return tuple(said for said in _said(path.parent, names) if not said.advice)


def _one(folder: Path, claim: Claim) -> Said:
    subject = claim.finding.subject
    file = Path(subject.file or "").relative_to(folder)
    return Said(claim.rule, (file.as_posix(), subject.line or 0), claim.finding.level is Level.NOTE)


def main(arguments: Sequence[str] = ()) -> int:
    """Judge every case and every negative, and print the shares."""
    folder = Path(next((word for word in arguments if not word.startswith("-")), OWN))
    if not (folder / "cases").is_dir():
        print(f"there is no folder {folder / 'cases'}: name one that has cases and negatives", file=sys.stderr)
        return 2
    began = time.process_time()
    scores = [scored(case.parent) for case in sorted((folder / "cases").glob("*/case.json"))]
    innocent = sorted(path for path in folder.glob("negatives/*") if path.is_dir() or path.suffix == ".py")
    negatives = {path.name: _innocent(path) for path in innocent}
    contested = _contested(folder)
    seconds = time.process_time() - began
    _recall(scores)
    flagged = [score.name for score in scores if score.good]
    print(f"mended versions flagged: {len(flagged)} of {len(scores)} {' '.join(flagged)}".rstrip())
    for word, wanted in (("negatives", False), ("contested negatives", True)):
        these = [name for name in negatives if (name in contested) is wanted]
        taken = [name for name in these if negatives[name]]
        print(f"{word} flagged: {len(taken)} of {len(these)} {' '.join(taken)}".rstrip())
    _precision(scores, [said for each in negatives.values() for said in each])
    if "-v" in arguments:
        _everything(scores, negatives)
    print(f"{2 * len(scores) + len(negatives)} programs in {seconds:.1f} s of CPU")
    return 0


def _contested(folder: Path) -> set[str]:
    """The negatives over which one may argue."""
    index = folder / "negatives" / "index.json"
    listed = json.loads(index.read_text()) if index.exists() else []
    return {each["file"] for each in listed if each.get("contested")}


def _recall(scores: Sequence[Score]) -> None:
    print(f"{'recall':32} cases  exact   near")
    _row("all", scores)
    _row("within one function", [score for score in scores if not score.across])
    _row("across functions", [score for score in scores if score.across])
    for pattern in sorted({score.pattern for score in scores}):
        _row(f"  {pattern}", [score for score in scores if score.pattern == pattern])
    missed = [score.name for score in scores if not score.near]
    print(f"missed: {' '.join(missed) or 'none'}")


def _row(name: str, scores: Sequence[Score]) -> None:
    exact, near = (_count(scores, test) for test in (lambda one: one.exact, lambda one: one.near))
    print(f"{name:32} {len(scores):5}  {exact:5}  {near:5}")


def _count(scores: Sequence[Score], test: Callable[[Score], bool]) -> int:
    return sum(test(score) for score in scores)


def _precision(scores: Sequence[Score], negatives: Sequence[Said]) -> None:
    """By rule: on a marked line, elsewhere in a program with a bug, and where there is none."""
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for score in scores:
        for said in score.bad:
            table[said.rule][0 if said.line in score.marked else 1] += 1
    for said in (*(each for score in scores for each in score.good), *negatives):
        table[said.rule][2] += 1
    print(f"{'precision by rule':32} marked  elsewhere  false")
    for rule, (marked, elsewhere, false) in sorted(table.items()):
        print(f"  {rule:30} {marked:6}  {elsewhere:9}  {false:5}  {marked / (marked + elsewhere + false):4.0%}")


def _everything(scores: Sequence[Score], negatives: dict[str, tuple[Said, ...]]) -> None:
    for score in scores:
        mark = "exact" if score.exact else "near" if score.near else "MISSED"
        print(f"{score.name:36} {mark:6} {_shown(score.bad)}  mended: {_shown(score.good)}")
    for name, said in negatives.items():
        print(f"{name:36} {_shown(said)}")


def _shown(all_said: Sequence[Said]) -> str:
    return ", ".join(f"{said.line[0]}:{said.line[1]} {said.rule}" for said in all_said) or "nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
