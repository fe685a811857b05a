"""Accuracy of the rules over logs on a folder of labelled cases: ``python -m benchmarks.diagnose_corpus FOLDER [-v]``.

Each case is a folder with ``case.json`` (``label``, ``also_acceptable``, ``primary_rank``) and its logs. Printed are
the share of cases whose first cause is the label or an accepted one (top-1) and the strict share, the share where it
is among the root and the suspects (top-3), the share of right ranks, and false alarms on healthy logs.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from holdfast.facts.evidence import Kind, Piece
from holdfast.facts.logs import reader
from holdfast.rules.logs.judge import judge

HEALTHY = "no-failure"


@dataclass(frozen=True)
class Score:
    """How one case was judged."""

    name: str
    label: str
    accepted: tuple[str, ...]
    named: tuple[str, ...]
    rank: int | None
    named_rank: int | None

    @property
    def right(self) -> bool:
        """The first cause is the label or accepted in its place."""
        return self.named[0] in self.accepted


def judged(folder: Path) -> Score:
    """The verdict over the logs of one case."""
    case = json.loads((folder / "case.json").read_text())
    logs = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "case.json")
    pieces = [Piece(str(path.relative_to(folder)), Kind.LOG, path.stat().st_size, _opener(path)) for path in logs]
    verdict = judge(reader.read(pieces))
    causes = [one.cause for one in (verdict.root, *verdict.suspects) if one is not None] or [HEALTHY]
    accepted = tuple(name.replace("_", "-") for name in (case["label"], *case["also_acceptable"]))
    rank = verdict.root.subject.rank if verdict.root else None
    return Score(folder.name, accepted[0], accepted, tuple(causes), case["primary_rank"], rank)


def _opener(path: Path):  # noqa: ANN202 - a closure over one path
    return lambda: path.open("rb")


def main(arguments: list[str]) -> int:
    """Judge every case and print the shares."""
    if not arguments or not Path(arguments[0]).is_dir():
        print("name the folder of labelled cases: python -m benchmarks.diagnose_corpus FOLDER", file=sys.stderr)
        return 2
    began = time.process_time()
    scores = [judged(case.parent) for case in sorted(Path(arguments[0]).glob("*/case.json"))]
    seconds = time.process_time() - began
    ill = [score for score in scores if score.label != HEALTHY]
    ranked = [score for score in scores if score.rank is not None]
    alarms = [score.name for score in scores if score.label == HEALTHY and score.named[0] != HEALTHY]
    for score in scores:
        if not score.right or "-v" in arguments:
            mark = "right" if score.right else "WRONG"
            said = f"said {', '.join(score.named[:3])}  rank {score.named_rank}"
            print(f"{score.name:12} {mark}  {score.label:30} {said}")
    for score in ranked:
        if score.named_rank != score.rank:
            print(f"{score.name:12} rank {score.rank}, said {score.named_rank}  ({score.label})")
    strict = _share(scores, lambda one: one.named[0] == one.label)
    print(f"top-1 {_share(scores, lambda one: one.right)}, the very label {strict}")
    print(f"top-3 {_share(scores, lambda one: bool(set(one.named[:3]) & set(one.accepted)))}")
    print(f"right rank {_share(ranked, lambda one: one.named_rank == one.rank)}")
    print(f"false alarms on {len(scores) - len(ill)} healthy logs: {len(alarms)} {alarms or ''}")
    confused = Counter((score.label, score.named[0]) for score in scores if not score.right)
    for (label, said), count in confused.most_common():
        print(f"  {label} taken for {said}: {count}")
    print(f"{len(scores)} cases in {seconds:.2f} s of CPU")
    return 0


def _share(scores, test) -> str:  # noqa: ANN001 - a predicate over scores
    good = sum(test(score) for score in scores)
    return f"{good}/{len(scores)} = {good / max(len(scores), 1):.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
