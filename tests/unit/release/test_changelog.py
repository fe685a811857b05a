"""Fragments get into the change log, a version gets a section, a release gets its notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from release.changelog import add_fragments, notes, release

LOG = """# Changes

## [Unreleased]

### Added

- One.

### Fixed

- Two.

## [0.1.0] - 2026-01-01

- First.
"""


def test_a_fragment_is_added_at_the_end_of_its_heading():
    log = add_fragments(LOG, {"a.added.md": "- New.\n", "b.removed.md": "- Gone.\n"})
    assert "- One.\n\n- New.\n\n### Fixed\n\n- Two.\n\n### Removed\n\n- Gone.\n\n## [0.1.0]" in log


def test_a_release_keeps_every_line_and_begins_an_empty_section():
    log = release(LOG, "0.2.0", "2026-02-03")
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-02-03\n\n### Added\n" in log
    assert notes(log, "0.2.0") == "### Added\n\n- One.\n\n### Fixed\n\n- Two.\n"
    assert notes(log, "0.1.0") == "- First.\n"


@pytest.mark.parametrize("name", ["a.md", "a.news.md"])
def test_a_fragment_of_no_known_kind_is_an_error(name):
    with pytest.raises(ValueError, match=name):
        add_fragments(LOG, {name: "- x"})


def test_the_notes_of_an_unknown_version_are_an_error():
    with pytest.raises(ValueError, match=r"\[9.9.9\]"):
        notes(LOG, "9.9.9")


def test_the_change_log_of_the_project_accepts_fragments():
    path = Path(__file__).parents[3] / "CHANGELOG.md"
    assert "\n\n- A line.\n" in add_fragments(path.read_text(), {"a.fixed.md": "- A line."})
