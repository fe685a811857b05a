"""Programs modelled on real reports (tests/lint_cases): what hangs is found on a marked line, the mended is clean."""

import io
import json
import tokenize
from pathlib import Path

import pytest

from holdfast.actions.lint.linting import lint

PROGRAMS = Path(__file__).parents[2] / "lint_cases"
CASES = sorted(path.name for path in (PROGRAMS / "cases").iterdir())
NEGATIVES = sorted(path.name for path in (PROGRAMS / "negatives").glob("*.py"))


def without_comments(folder, tmp_path):
    """The same programs, their comments gone and their lines where they were."""
    for path in sorted(folder.rglob("*.py")):
        lines = path.read_text().split("\n")
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column].rstrip()
        copy = tmp_path / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("\n".join(lines))
    return tmp_path


def claims(folder, files):
    found = lint([folder / file for file in files])
    assert not found.passed
    return [(str(Path(claim.finding.subject.file).relative_to(folder)), claim.finding.subject.line, claim.rule)
            for claim in found.claims]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_hangs_is_found_and_what_was_mended_is_not(name, tmp_path):
    case = json.loads((PROGRAMS / "cases" / name / "case.json").read_text())
    folder = without_comments(PROGRAMS / "cases" / name, tmp_path)
    marked = {(each["file"], each["line"]) for each in (*case["expect"], *case["related"])}
    bad = claims(folder, case["bad_files"])
    assert {(file, line) for file, line, _ in bad} & marked, bad
    assert claims(folder, case["good_files"]) == []


@pytest.mark.parametrize("name", NEGATIVES)
def test_what_only_looks_like_it_is_not_found(name, tmp_path):
    assert claims(without_comments(PROGRAMS / "negatives", tmp_path), [name]) == []
