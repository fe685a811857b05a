"""The table of docs/compatibility.md is updated row by row."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from release import versions
from release.environments import Version, parse_version


def test_versions_are_parsed() -> None:
    assert parse_version("2.6.0@3.12") == Version("2.6.0", "3.12")
    assert parse_version("2.6.0").python == ".".join(map(str, sys.version_info[:2]))


def test_rows_are_replaced_and_inserted_in_order(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shutil.copyfile(versions.PAGE, page)
    before = page.read_text()
    rows = [
        f"| {torch} | 3.11 | new | rank 2, line 1 | yes, yes | 1 passed | 2026-11-27 |"
        for torch in ("2.99.0", "2.9.1", "2.10.0")
    ]
    for row in (*rows, rows[1].replace("new", "newest")):
        versions.write_row(page, row)
    text = page.read_text()
    table = [line for line in text.splitlines() if line.startswith("| 2.")]
    places = [table.index(row) for row in (rows[1].replace("new", "newest"), rows[2], rows[0])]
    assert places == sorted(places)
    assert rows[1] not in table
    prose = [line for line in text.splitlines() if not line.startswith("| ")]
    assert prose == [line for line in before.splitlines() if not line.startswith("| ")]


def test_the_files_of_tests_exist() -> None:
    """Otherwise pytest runs none of the others, either."""
    assert [test for test in versions.TESTS if not (versions.ROOT / test).exists()] == []
