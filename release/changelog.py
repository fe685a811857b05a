"""Move change log fragments into CHANGELOG.md, and print the notes of a release.

python -m release.changelog            move the fragments of changelog.d into [Unreleased]
python -m release.changelog 0.2.0      the same, and make it the section of version 0.2.0
python -m release.changelog --notes 0.2.0     print that section
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
FRAGMENTS = ROOT / "changelog.d"
HEADINGS = ("Added", "Changed", "Fixed", "Removed")
TOP = "## [Unreleased]\n"


def add_fragments(changelog: str, fragments: Mapping[str, str]) -> str:
    """Return the change log with each fragment (file name -> text) at the end of its heading.

    Raises:
        ValueError: a fragment's name has no known kind, or there is no section for it.
    """
    start, unreleased, older = split_sections(changelog)
    for name, text in sorted(fragments.items()):
        heading = name.removesuffix(".md").rpartition(".")[2].capitalize()
        if heading not in HEADINGS:
            message = f"{name}: must end in .{', .'.join(HEADINGS).lower()} and .md"
            raise ValueError(message)
        unreleased = _append(unreleased, heading, text.strip())
    return start + unreleased + older


def release(changelog: str, version: str, date: str) -> str:
    """Return the change log with the unreleased changes under a version; the top is empty then."""
    start, unreleased, older = split_sections(changelog)
    return f"{start}{TOP}\n## [{version}] - {date}\n{unreleased.removeprefix(TOP)}{older}"


def notes(changelog: str, version: str) -> str:
    """Return the text below a version's heading. Raises ValueError if there is none."""
    pattern = rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)"
    found = re.search(pattern, changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        message = f"CHANGELOG.md has no section [{version}]"
        raise ValueError(message)
    return found[1].strip() + "\n"


def split_sections(changelog: str) -> tuple[str, str, str]:
    """Return what precedes the unreleased section, that section, and what follows it."""
    start, top, rest = changelog.partition(TOP)
    if not top:
        message = f"CHANGELOG.md has no line {TOP.strip()!r}"
        raise ValueError(message)
    end = rest.find("\n## [") + 1 or len(rest)
    return start, top + rest[:end], rest[end:]


def _append(section: str, heading: str, text: str) -> str:
    """Return the section with the text at the end of a heading, which is added if it is missing."""
    line = f"### {heading}\n"
    if line not in section:
        return f"{section.rstrip()}\n\n{line}\n{text}\n\n"
    before, _, after = section.partition(line)
    end = after.find("\n### ") + 1 or len(after)
    return f"{before}{line}{after[:end].rstrip()}\n\n{text}\n\n{after[end:]}"


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    path = ROOT / "CHANGELOG.md"
    if arguments[:1] == ["--notes"]:
        print(notes(path.read_text(encoding="utf-8"), arguments[1]), end="")
        return
    files = [each for each in FRAGMENTS.glob("*.md") if each.name != "README.md"]
    texts = {each.name: each.read_text(encoding="utf-8") for each in files}
    changelog = add_fragments(path.read_text(encoding="utf-8"), texts)
    if arguments:
        changelog = release(changelog, arguments[0], f"{datetime.now(UTC):%Y-%m-%d}")
    path.write_text(changelog, encoding="utf-8")
    for each in files:
        each.unlink()
    print(f"{len(files)} fragments moved")


if __name__ == "__main__":
    main(sys.argv[1:])
