"""Programs modelled on real reports: the bug is found on a marked line, the fix is clean.

The programs are in tests/faults/lint_cases.
"""

import io
import json
import tokenize
from pathlib import Path

import pytest

from benchmarks.lint_cases import fixed_files
from holdfast.lint.run import lint_paths

PROGRAMS = Path(__file__).parents[3] / "faults" / "lint_cases"
CASES = sorted(path.name for path in (PROGRAMS / "cases").iterdir())
NEGATIVES = sorted(path.name for path in (PROGRAMS / "negatives").glob("*.py"))


def without_comments(source):
    """Return a program without comments, with unchanged line numbers."""
    text = source.decode()
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return "\n".join(lines).encode()


def lint_without_comments(folder, files):
    """Return the findings in these files without comments, which could influence the linter."""
    bare = {path: without_comments(source) for path, source in files.items()}
    result = lint_paths(list(bare), unsaved=bare)
    assert not result.skipped
    return [
        (
            str(Path(claim.finding.subject.file).relative_to(folder)),
            claim.finding.subject.line,
            claim.rule,
        )
        for claim in result.findings
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_bug_is_found_and_the_fixed_version_is_clean(name):
    folder = PROGRAMS / "cases" / name
    case = json.loads((folder / "case.json").read_text())
    marked = {(entry["file"], entry["line"]) for entry in (*case["expect"], *case["related"])}
    bad = lint_without_comments(
        folder, {folder / file: (folder / file).read_bytes() for file in case["bad_files"]}
    )
    assert {(file, line) for file, line, _ in bad} & marked, bad
    assert lint_without_comments(folder, fixed_files(folder, case)) == []


@pytest.mark.parametrize("name", NEGATIVES)
def test_a_negative_has_no_findings(name):
    path = PROGRAMS / "negatives" / name
    assert lint_without_comments(path.parent, {path: path.read_bytes()}) == []
