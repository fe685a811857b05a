"""Print the audit of variables as plain lines, without rich: ``holdfast env`` must be fast."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from holdfast.core.findings import Finding, Level
from holdfast.core.text import ASCII_TWINS, one_line

_MARKS = {Level.ERROR: "✗", Level.WARNING: "⚠", Level.NOTE: "•", Level.UNKNOWN: "?"}
_COLOURS = {Level.ERROR: "31;1", Level.WARNING: "33", Level.NOTE: "36", Level.UNKNOWN: "35"}
_NARROW, _WIDE = 60, 120


def render_audit(
    findings: Sequence[Finding],
    unseen: Sequence[str],
    *,
    headline: str,
    file: TextIO,
    width: int | None = None,
    was_checked: bool = True,
) -> None:
    """Print one paragraph per finding, what was not checked, and a summary.

    ``was_checked``: False if nothing could be read, which is not a good result.
    """
    columns = width or min(max(shutil.get_terminal_size((100, 24)).columns, _NARROW), _WIDE)
    for finding in findings:
        _write_paragraph(
            file,
            _MARKS[finding.level],
            f"{_location(finding)}{finding.message}",
            columns,
            _COLOURS[finding.level],
        )
        command = next((remedy.command for remedy in finding.remedies if remedy.command), None)
        cause = f"{finding.code} {finding.cause}"
        file.write(
            _fit_encoding(f"    {cause}{f': {one_line(command)}' if command else ''}\n", file)
        )
    for why in unseen:
        _write_paragraph(file, "?", f"not checked: {why}", columns, _COLOURS[Level.UNKNOWN])
    counted = Counter(finding.level for finding in findings)
    counts = ", ".join(
        f"{counted[level]} {level}{'s' if counted[level] > 1 else ''}"
        for level in _MARKS
        if counted[level]
    )
    if counts and not counted[Level.ERROR]:
        counts = f"nothing that stops a job; {counts}"  # the exit status is 0
    nothing = "no problems found in what was checked" if unseen else "no problems found"
    if not was_checked:
        nothing = "nothing was checked"
    file.write(_fit_encoding(f"{headline}: {counts or nothing}\n", file))


def _location(finding: Finding) -> str:
    file, line = finding.subject.file, finding.subject.line
    return "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "


def _write_paragraph(file: TextIO, mark: str, text: str, columns: int, colour: str) -> None:
    shown = f"\x1b[{colour}m{mark}\x1b[0m" if file.isatty() else mark
    wrapped = textwrap.fill(
        one_line(text),
        columns - 2,
        break_long_words=False,
        break_on_hyphens=False,
        subsequent_indent="  ",
    )
    file.write(_fit_encoding(f"{shown} {wrapped}\n", file))


def _fit_encoding(text: str, file: TextIO) -> str:
    """Return ``text`` limited to the file's encoding."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII_TWINS).encode(encoding, "replace").decode(encoding)
    return text
