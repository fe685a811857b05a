"""Precision of ``holdfast lint`` on public repositories, by judgements of a person.

Usage: ``python -m benchmarks.lint_repos LIST JUDGEMENTS [--unjudged FILE] [--strict]``. LIST is a
CSV with the columns ``repo,path,commit``: a name, a git repository on this machine, and what to
check out. JUDGEMENTS is a CSV with ``repo,file,line,rule,judgement,why``; a judgement is ``true``
(the ranks hang, differ or lose data in a run that a user may start), ``plausible`` (not without
knowledge of the callers) or ``false``. The column ``counted`` of both names the date and the linter
of a count. Prints the judgements by level and rule, and false findings
per 20,000 lines; ``--unjudged`` writes the findings without a judgement in the same format.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from holdfast.core.findings import Level
from holdfast.lint.options import LintOptions
from holdfast.lint.run import LintResult, lint_paths

JUDGEMENTS = ("true", "plausible", "false")
LINES = 20_000


class FindingKey(NamedTuple):
    """What identifies a finding in the file of judgements."""

    repo: str
    file: str
    line: str
    rule: str


class JudgedFinding(NamedTuple):
    """A finding and its judgement; empty if there is none."""

    key: FindingKey
    level: Level
    message: str
    judgement: str


def lint_commit(repository: Path, commit: str, options: LintOptions, folder: Path) -> LintResult:
    """Lint all Python files of a commit as one program, below ``folder``."""
    command = ["git", "-C", str(repository), "archive", commit, ":(glob)**/*.py"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as archive,
        tarfile.open(fileobj=cast(BinaryIO, archive.stdout), mode="r|") as members,
    ):
        members.extractall(folder, filter="data")
    if archive.returncode:
        raise SystemExit(f"git archive of {commit} in {repository} failed")
    return lint_paths([folder], options)


def judge(
    repo: str, result: LintResult, folder: Path, judged: Mapping[FindingKey, str]
) -> Iterable[JudgedFinding]:
    """Yield the findings in one repository with their judgements."""
    for reported in result.findings:
        finding = reported.finding
        file = Path(finding.subject.file or "").relative_to(folder).as_posix()
        key = FindingKey(repo, file, str(finding.subject.line), reported.rule)
        yield JudgedFinding(key, finding.level, finding.message, judged.get(key, ""))


def main(arguments: Sequence[str] = ()) -> int:
    """Lint each repository of the list, and print the judgements of its findings."""
    words = [word for word in arguments if not word.startswith("--")]
    unjudged = words.pop() if "--unjudged" in arguments else None
    if len(words) != 2:
        print(__doc__.split("Usage: ")[1].split(". ")[0], file=sys.stderr)
        return 2
    listed, judged_file = words
    with Path(judged_file).open(newline="") as file:
        judged = {
            FindingKey(row["repo"], row["file"], row["line"], row["rule"]): row["judgement"]
            for row in csv.DictReader(file)
        }
    findings: list[JudgedFinding] = []
    options, lines, start = LintOptions(strict="--strict" in arguments), 0, _cpu_s()
    with Path(listed).open(newline="") as file:
        for row in csv.DictReader(file):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                result = lint_commit(Path(row["path"]), row["commit"], options, folder)
                found = list(judge(row["repo"], result, folder, judged))
            findings += found
            lines += result.lines
            print(f"{row['repo']:40} {result.lines:8} lines  {len(found):4} findings", flush=True)
    print(f"{lines} lines, {_cpu_s() - start:.0f} s of CPU")
    _print_judgements(findings, lines)
    if unjudged is not None:
        _write(Path(unjudged), [each for each in findings if not each.judgement])
    return 0


def _cpu_s() -> float:
    """Return the CPU time of this process and of its ended children."""
    return sum(os.times()[:4])


def _print_judgements(findings: Sequence[JudgedFinding], lines: int) -> None:
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for each in findings:
        for group in (f"level {each.level}", f"  {each.key.rule}"):
            groups[group][each.judgement] += 1
    print(f"{'':34} {'  '.join(JUDGEMENTS)}  unjudged  true or plausible")
    for group, counts in sorted(groups.items(), reverse=True):
        numbers = "  ".join(f"{counts[name]:{len(name)}}" for name in JUDGEMENTS)
        total = sum(counts[name] for name in JUDGEMENTS)
        share = f"{1 - counts['false'] / total:17.0%}" if total else ""
        print(f"{group:34} {numbers}  {counts['']:8}  {share}")
    false = sum(each.judgement == "false" for each in findings)
    per_lines = false / lines * LINES if lines else 0.0
    print(f"false findings: {false}, {per_lines:.2f} per {LINES:,} lines")


def _write(path: Path, findings: Sequence[JudgedFinding]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*FindingKey._fields, "judgement", "why"])
        writer.writerows([*each.key, "", f"{each.level}: {each.message}"] for each in findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
