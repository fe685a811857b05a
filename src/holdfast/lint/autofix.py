"""Apply the fixes that rules offer, atomically; encoding and line endings are preserved."""

from __future__ import annotations

import difflib
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.core.atomic_files import write_atomic
from holdfast.core.errors import MissingFile
from holdfast.lint.analysis import RuleFinding
from holdfast.lint.rules.edits import Edit, parse_lines

#: A line with its line ending; unlike ``str.splitlines``, a form feed ends no line.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class FileChange(msgspec.Struct, frozen=True):
    """A file before and after its fixes, and the number of edits."""

    file: str
    before: bytes
    after: bytes
    encoding: str
    edits: int

    def diff(self) -> Iterator[str]:
        """Yield the lines of a unified diff."""
        before, after = (
            [line.rstrip("\r\n") for line in _LINE.findall(text.decode(self.encoding))]
            for text in (self.before, self.after)
        )
        yield from difflib.unified_diff(before, after, self.file, self.file, lineterm="")

    def write(self) -> None:
        """Write the file and preserve its mode bits.

        Raises:
          MissingFile: it is read-only or has changed since it was linted; it is left unmodified.
        """
        path = Path(self.file)
        if path.read_bytes() != self.before:
            raise MissingFile(
                path, why="the file changed since it was linted", next_step="lint it again"
            )
        mode = path.stat().st_mode & 0o7777
        if not mode & 0o222:
            raise MissingFile(
                path, why="the file is read-only", next_step="make it writable, or use --diff"
            )
        write_atomic(path, self.after)
        path.chmod(mode)


def available_fixes(findings: Iterable[RuleFinding]) -> Iterator[FileChange]:
    """Yield the file changes for all findings that offer a fix."""
    return iter_changes(
        (reported.finding.subject.file or "", reported.edit)
        for reported in findings
        if reported.edit is not None
    )


def iter_changes(edits: Iterable[tuple[str, Edit]]) -> Iterator[FileChange]:
    """Yield the resulting change of each file: one edit a line, and only if the result parses."""
    by_file: dict[str, dict[int, Edit]] = defaultdict(dict)
    for file, edit in edits:
        by_file[file].setdefault(edit.line, edit)
    for file, chosen in by_file.items():
        change = _change(file, [chosen[line] for line in sorted(chosen, reverse=True)])
        if change is not None:
            yield change


def _change(file: str, edits: Sequence[Edit]) -> FileChange | None:
    try:
        content = Path(file).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        lines = _LINE.findall(content.decode(encoding))
        edit_count = sum(_apply_edit(lines, edit) for edit in edits)
        after = "".join(lines).encode(encoding)
    except (OSError, ValueError, SyntaxError, LookupError):
        return None
    text = io.StringIO("".join(lines), newline=None).read()
    if not edit_count or parse_lines(text.split("\n")) is None:
        return None
    return FileChange(file, content, after, encoding, edit_count)


def _apply_edit(lines: list[str], edit: Edit) -> bool:
    """Apply one edit if the line is unchanged since it was linted."""
    at = edit.line - 1
    if at >= len(lines) or lines[at].rstrip("\r\n") != edit.original:
        return False
    end = lines[at][len(edit.original) :] or "\n"
    if edit.is_insertion:
        lines.insert(at, edit.replacement + end)
    else:
        lines[at] = edit.replacement + lines[at][len(edit.original) :]
    return True
