"""The audit of variables as plain lines, without rich: ``holdfast env`` has to answer at once, also in a loop."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from holdfast.findings import Finding, Level
from holdfast.report.text import ASCII_TWINS, one_line

_MARKS = {Level.ERROR: "✗", Level.WARNING: "⚠", Level.NOTE: "•", Level.UNKNOWN: "?"}
_COLOURS = {Level.ERROR: "31;1", Level.WARNING: "33", Level.NOTE: "36", Level.UNKNOWN: "35"}
_NARROW, _WIDE = 60, 120


def render_audit(
    findings: Sequence[Finding], unseen: Sequence[str], *, headline: str, file: TextIO, width: int | None = None
) -> None:
    """Print a paragraph a finding with its place and command, what could not be seen, and the headline."""
    columns = width or min(max(shutil.get_terminal_size((100, 24)).columns, _NARROW), _WIDE)
    for claim in findings:
        _say(file, _MARKS[claim.level], f"{_place(claim)}{claim.message}", columns, _COLOURS[claim.level])
        command = next((remedy.command for remedy in claim.remedies if remedy.command), None)
        own = f"{claim.code} {claim.cause}"
        file.write(_plain(f"    {own}{f': {one_line(command)}' if command else ''}\n", file))
    for why in unseen:
        _say(file, "?", f"not seen: {why}", columns, _COLOURS[Level.UNKNOWN])
    counted = Counter(claim.level for claim in findings)
    told = ", ".join(
        f"{counted[level]} {level}{'s' if counted[level] > 1 else ''}" for level in _MARKS if counted[level]
    )
    if told and not counted[Level.ERROR]:
        told = f"nothing would stop a job; {told}"  # and so the exit status is 0
    file.write(_plain(f"{headline}: {told or 'nothing wrong was found'}\n", file))


def _place(claim: Finding) -> str:
    file, line = claim.subject.file, claim.subject.line
    return "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "


def _say(file: TextIO, mark: str, text: str, columns: int, colour: str) -> None:
    shown = f"\x1b[{colour}m{mark}\x1b[0m" if file.isatty() else mark
    wrapped = textwrap.fill(one_line(text), columns - 2, break_long_words=False, break_on_hyphens=False,
                            subsequent_indent="  ")  # fmt: skip
    file.write(_plain(f"{shown} {wrapped}\n", file))


def _plain(text: str, file: TextIO) -> str:
    """``text`` as the file's encoding can hold it."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII_TWINS).encode(encoding, "replace").decode(encoding)
    return text
