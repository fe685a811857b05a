"""Causes and ranks named in the sealed half of the public logs, next to what the logs alone name.

``sealed_logs_DATE.tar.xz`` hold failures of public threads whose cause was confirmed there, and
healthy logs, as lines written anew by somebody who did not look at the rules. They are archives, so
that nobody reads them by accident: no rule is changed after a look at a case. docs/benchmarks.md
has the figures of first runs. Peers: torchrun's failure table, and the first line of ``grep -i
error``. They name no cause, so their ranks are compared.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.diagnose_corpus import CaseDiagnosis, print_accuracy, score_case

SEALED = sorted(Path(__file__).parent.glob("sealed_logs_*.tar.xz"))
_TABLE = re.compile(r"Root Cause \(first observed failure\)[\s\S]{0,300}?rank\s*:\s*(\d+)")
_ERROR = re.compile(r"(?i)^.*(?:error|exception|killed|fault).*$", re.MULTILINE)
_PREFIX = re.compile(r"(?i)\[(?:rank|default)?\s*(\d+)\]|rank[ =:]*(\d+)")


def rank_of_failure_table(log: str) -> int | None:
    """Return the rank under "Root Cause" in torchrun's failure table."""
    table = _TABLE.search(log)
    return int(table[1]) if table else None


def rank_of_first_error(log: str) -> int | None:
    """Return the rank that the first line with the word error, killed or fault mentions."""
    line = _ERROR.search(log)
    rank = _PREFIX.search(line[0]) if line else None
    return int(rank[1] or rank[2]) if rank else None


def _print_peer(
    title: str,
    name_rank: Callable[[str], int | None],
    folders: dict[str, Path],
    ranked: list[CaseDiagnosis],
) -> None:
    right = wrong = 0
    for case in ranked:
        logs = (path for path in sorted(folders[case.name].rglob("*")) if path.is_file())
        text = "\n".join(
            path.read_text(errors="replace") for path in logs if path.name != "case.json"
        )
        named = name_rank(text)
        right += named == case.rank
        wrong += named not in (case.rank, None)
    print(f"{title}: right rank {right} of {len(ranked)}, another rank {wrong}")


def main() -> None:
    """Diagnose the cases of every archive; print the accuracy and that of the peers."""
    for archive in SEALED:
        print(f"{archive.name}:")
        score_archive(archive)


def score_archive(path: Path) -> None:
    """Diagnose every case of one archive; print the accuracy and that of the peers."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
        folders = {
            case.parent.name: case.parent for case in sorted(Path(folder).glob("*/case.json"))
        }
        scores = [score_case(each) for each in folders.values()]
        print_accuracy(scores)
        ranked = [score for score in scores if score.rank is not None]
        _print_peer("torchrun's failure table", rank_of_failure_table, folders, ranked)
        _print_peer("first line with an error", rank_of_first_error, folders, ranked)


if __name__ == "__main__":
    main()
