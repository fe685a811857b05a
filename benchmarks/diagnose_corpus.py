"""Accuracy of the log rules on labelled logs.

Usage: ``python -m benchmarks.diagnose_corpus FOLDER… [-v]``. Each case is a folder with
``case.json`` (``label``, ``also_acceptable``, ``primary_rank``) and its logs. Printed are the cases
whose root cause is acceptable (top-1) or exactly the label, those whose root or first two other
possible causes are acceptable (top-3), the right ranks, the false alarms on healthy logs, and a
reliability table: of the findings of each confidence, how many are right.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.causes.process.unclassified_failure import UNCLASSIFIED_FAILURE
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.diagnose.log_rules.judge import judge
from holdfast.diagnose.logs import reader

HEALTHY = "no-failure"
#: Labels of failures that the catalogue lacks.
UNCLASSIFIED = "unclassified"


@dataclass(frozen=True)
class CaseDiagnosis:
    """The label and the diagnosis of one case."""

    name: str
    label: str
    accepted: tuple[str, ...]
    named: tuple[str, ...]
    rank: int | None
    named_rank: int | None
    confidence: float = 0.0

    @property
    def right(self) -> bool:
        """Return whether the root cause is the label or an acceptable one."""
        return self.named[0] in self.accepted


def score_case(folder: Path) -> CaseDiagnosis:
    """Diagnose the logs of one case."""
    case = json.loads((folder / "case.json").read_text())
    logs = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "case.json")
    evidence = [
        EvidenceFile(
            str(path.relative_to(folder)),
            EvidenceKind.LOG,
            path.stat().st_size,
            partial(path.open, "rb"),
        )
        for path in logs
    ]
    verdict = judge(reader.read_logs(evidence))
    causes = [one.cause for one in (verdict.root, *verdict.suspects) if one is not None] or [
        HEALTHY
    ]
    accepted = tuple(
        UNCLASSIFIED_FAILURE.name if name == UNCLASSIFIED else name.replace("_", "-")
        for name in (case["label"], *case["also_acceptable"])
    )
    rank = verdict.root.subject.rank if verdict.root else None
    confidence = verdict.root.confidence if verdict.root else 0.0
    return CaseDiagnosis(
        folder.name, accepted[0], accepted, tuple(causes), case["primary_rank"], rank, confidence
    )


def main(arguments: list[str]) -> int:
    """Diagnose every case and print the accuracy."""
    folders = [Path(argument) for argument in arguments if argument != "-v"]
    if not folders or not all(folder.is_dir() for folder in folders):
        print("usage: python -m benchmarks.diagnose_corpus FOLDER… [-v]", file=sys.stderr)
        return 2
    began = time.process_time()
    cases = [case for folder in folders for case in sorted(folder.glob("*/case.json"))]
    scores = [score_case(case.parent) for case in cases]
    seconds = time.process_time() - began
    for score in scores:
        if not score.right or "-v" in arguments:
            mark = "right" if score.right else "WRONG"
            found = f"found {', '.join(score.named[:3])}  rank {score.named_rank}"
            print(f"{score.name:12} {mark}  {score.label:30} {found}")
    for score in scores:
        if score.rank not in (None, score.named_rank):
            print(f"{score.name:12} rank {score.rank}, found {score.named_rank}  ({score.label})")
    print_accuracy(scores)
    confused = Counter((score.label, score.named[0]) for score in scores if not score.right)
    for (label, found), count in confused.most_common():
        print(f"  {label} diagnosed as {found}: {count}")
    print(f"{len(scores)} cases in {seconds:.2f} s of CPU")
    return 0


def print_accuracy(scores: Sequence[CaseDiagnosis]) -> None:
    """Print the shares of right causes and ranks, the false alarms, and the reliability table."""
    ranked = [score for score in scores if score.rank is not None]
    healthy = [score for score in scores if score.label == HEALTHY]
    failed = [score for score in scores if score.label != HEALTHY]
    strict = _share(scores, lambda one: one.named[0] == one.label)
    print(f"top-1 {_share(scores, lambda one: one.right)}, exact label {strict}")
    print(f"top-1 of the failures {_share(failed, lambda one: one.right)}")
    print(f"top-3 {_share(scores, lambda one: bool(set(one.named[:3]) & set(one.accepted)))}")
    print(f"right rank {_share(ranked, lambda one: one.named_rank == one.rank)}")
    alarms = sum(score.named[0] != HEALTHY for score in healthy)
    print(f"false alarms on {len(healthy)} healthy logs: {alarms}")
    print_reliability(scores)


def print_reliability(scores: Sequence[CaseDiagnosis]) -> None:
    """Print how many findings of each confidence are right."""
    print("confidence   findings   mean   right")
    for least in range(0, 100, 10):
        most = least + 10 if least < 90 else 101
        inside = [
            one for one in scores if one.confidence and least <= round(100 * one.confidence) < most
        ]
        if inside:
            mean = sum(one.confidence for one in inside) / len(inside)
            right = sum(one.right for one in inside) / len(inside)
            print(f"{least:3}-{least + 10:3} %  {len(inside):9}  {mean:5.0%}  {right:6.0%}")


def _share(scores, test) -> str:  # noqa: ANN001 - a predicate over scores
    good = sum(test(score) for score in scores)
    return f"{good}/{len(scores)} = {good / max(len(scores), 1):.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
