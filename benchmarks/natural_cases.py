"""Cases of `natural_faults`: a script with a ``# case:`` line, and the score of a verdict on it.

The first line of the script's docstring describes the fault. One comment line states the rest::

    # case: processes=4 ending=hang causes=rank-guarded-collective ranks=0 framework=ddp

``ending`` is ``hang``, ``crash`` or ``well``; ``causes`` has the best cause first, then others that
are accepted; ``ranks`` are accepted, ``-`` if no single rank is right. Optional: ``args`` (quoted,
if several) and ``limit_s``. The line to report ends with ``# GUILTY``, others that are accepted
with ``# ALSO``; without a mark no line is expected.
"""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 90.0
ENDINGS = ("hang", "crash", "well")
_START = "# case: "


class CaseInvalid(ValueError):
    """A script's ``# case:`` line is missing or incomplete."""


@dataclass(frozen=True)
class Case:
    """One program, and the expected verdict on it."""

    path: Path
    fault: str
    processes: int
    ending: str
    causes: tuple[str, ...]
    ranks: tuple[int, ...]
    framework: str
    lines: tuple[int, ...]  # the line to report first
    args: tuple[str, ...] = ()
    limit_s: float = LIMIT_S

    @property
    def name(self) -> str:
        """Return the name of the script."""
        return self.path.stem


def read_case(path: Path) -> Case:
    """Parse a script.

    Raises:
        CaseInvalid: The ``# case:`` line is missing or incomplete.
    """
    text = path.read_text(encoding="utf-8")
    starts = [line for line in text.splitlines() if line.startswith(_START)]
    if len(starts) != 1:
        raise CaseInvalid(f"{path}: expected one line {_START!r}, found {len(starts)}")
    fields = dict(word.partition("=")[::2] for word in shlex.split(starts[0][len(_START) :]))
    try:
        case = Case(
            path=path,
            fault=(ast.get_docstring(ast.parse(text)) or "").partition("\n")[0],
            processes=int(fields["processes"]),
            ending=fields["ending"],
            causes=_list(fields.get("causes", "-")),
            ranks=tuple(int(rank) for rank in _list(fields.get("ranks", "-"))),
            framework=fields["framework"],
            lines=(*_marked(text, "GUILTY"), *_marked(text, "ALSO")),
            args=tuple(shlex.split(fields.get("args", ""))),
            limit_s=float(fields.get("limit_s", LIMIT_S)),
        )
    except (KeyError, ValueError) as error:
        raise CaseInvalid(f"{path}: {starts[0]}: {error}") from error
    if case.ending not in ENDINGS or bool(case.causes) != (case.ending != "well") or not case.fault:
        raise CaseInvalid(f"{path}: ending, causes or docstring is missing or contradicts another")
    return case


def read_cases(folder: Path) -> list[Case]:
    """Parse all scripts of a folder."""
    return [read_case(path) for path in sorted(folder.glob("*.py"))]


def _list(text: str) -> tuple[str, ...]:
    return () if text == "-" else tuple(text.split(","))


def _marked(text: str, mark: str) -> list[int]:
    lines = text.splitlines()
    return [number for number, line in enumerate(lines, start=1) if line.endswith(f"# {mark}")]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What ``holdfast run`` reported on a case.

    ``cause``, ``rank`` and ``line`` are those of the verdict; ``*_right`` is None where the case
    expects none. ``accused``: a healthy job was ended, failed, or got a verdict; ``suspected``: a
    suspicion was printed.
    """

    case: str
    ending: str
    framework: str
    status: int | None  # None: still running at the limit
    seconds: float  # to the verdict
    message: str
    cause: str | None = None
    rank: int | None = None
    line: str | None = None
    cause_right: bool | None = None
    rank_right: bool | None = None
    line_right: bool | None = None
    accused: bool = False
    suspected: bool = False
    peer_rank: int | None = None
    peer_right: bool | None = None

    @property
    def right(self) -> bool:
        """Return True if nothing about the verdict is wrong."""
        if self.ending == "well":
            return not self.accused
        return False not in {self.cause_right, self.rank_right, self.line_right}


def score(
    case: Case, report: dict[str, Any], status: int | None, output: str, wall_s: float
) -> Outcome:
    """Compare a JSON report, empty if there is none, with what the case expects."""
    root = report.get("verdict", {}).get("root")
    incidents = report.get("incidents", [])
    detected_s = incidents[-1].get("detected_s") if incidents else None
    subject = root["subject"] if root else {}
    file, number = Path(subject.get("file") or "").name, subject.get("line")
    faulty = case.ending != "well"
    return Outcome(
        case=case.name,
        ending=case.ending,
        framework=case.framework,
        status=status,
        seconds=wall_s if detected_s is None else detected_s,
        message=root["message"] if root else "no verdict",
        cause=root["cause"] if root else None,
        rank=subject.get("rank"),
        line=f"{file}:{number}" if file else None,
        cause_right=bool(root) and root["cause"] in case.causes if faulty else None,
        rank_right=subject.get("rank") in case.ranks if case.ranks else None,
        line_right=file == case.path.name and number in case.lines if case.lines else None,
        accused=not faulty and _accuses(report, status),
        suspected="suspected hang:" in output,
    )


def _accuses(report: dict[str, Any], status: int | None) -> bool:
    """Return True if a healthy job failed, was ended, or got a verdict."""
    errors = [each for each in report.get("findings", []) if each["level"] == "error"]
    has_root = report.get("verdict", {}).get("root") is not None
    return status != 0 or has_root or bool(errors or report.get("incidents"))
