"""Apply unified diffs to texts in memory, strictly: a hunk must match the text at its line."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HUNK = re.compile(r"@@ -(?P<start>\d+)(?:,(?P<length>\d+))? \+\d+(?:,(?P<new_length>\d+))? @@")


class PatchMismatch(ValueError):
    """A patch is malformed or does not match the text that it should change."""


def split_patch(patch: str) -> dict[tuple[str, str], list[str]]:
    """Return the lines of the hunks of each changed file, by its old and its new name."""
    files: dict[tuple[str, str], list[str]] = {}
    for section in re.split(r"^(?=--- )", patch, flags=re.MULTILINE)[1:]:
        old, new, *hunks = section.splitlines()
        if not new.startswith("+++ "):
            raise PatchMismatch(f"expected '+++ NAME' after '{old}', found '{new}'")
        files[old[4:], new[4:]] = hunks
    if not files:
        raise PatchMismatch("contains no '--- NAME' line")
    return files


def apply_hunks(text: str, hunks: list[str]) -> str:
    """Return ``text`` changed by the hunks of one file; both end with a newline.

    Raises:
        PatchMismatch: a hunk is malformed, out of order, or its old lines differ from the text.
    """
    lines = text.splitlines()
    result: list[str] = []
    position = 0
    for start, old, new in _parse_hunks(hunks):
        if start < position or lines[start : start + len(old)] != old:
            raise PatchMismatch(f"the hunk at line {start + 1} does not match the text")
        result += lines[position:start] + new
        position = start + len(old)
    return "\n".join(result + lines[position:]) + "\n"


def _parse_hunks(rows: list[str]) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield the first line (from 0), the old lines and the new lines of each hunk."""
    position = 0
    while position < len(rows):
        header = _HUNK.match(rows[position])
        if header is None:
            raise PatchMismatch(f"expected a hunk header, found '{rows[position]}'")
        lengths = [int(header[name] or 1) for name in ("length", "new_length")]
        old: list[str] = []
        new: list[str] = []
        while [len(old), len(new)] != lengths:
            position += 1
            row = rows[position] if position < len(rows) else ""
            if row[:1] not in (" ", "-", "+") or len(old) > lengths[0] or len(new) > lengths[1]:
                raise PatchMismatch(f"the hunk '{header[0]}' has another number of lines")
            if row[0] != "+":
                old.append(row[1:])
            if row[0] != "-":
                new.append(row[1:])
        position += 1
        # the line number of an empty range is that of the line before it
        yield int(header["start"]) - bool(lengths[0]), old, new
