"""Makes the edits that rules offer: files are written whole, in their own encoding and with their own ends of lines."""

from __future__ import annotations

import difflib
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.actions.lint.judging import Claim
from holdfast.errors import MissingFile
from holdfast.rules.code.edits import Edit, tree_of

#: A line with its end, as Python counts lines: a form feed ends none.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class Change(msgspec.Struct, frozen=True):
    """A file as it is and as it would be, and how many edits lie between."""

    file: str
    before: bytes
    after: bytes
    encoding: str
    edits: int

    def diff(self) -> Iterator[str]:
        """The lines of a unified diff."""
        before, after = (
            [line.rstrip("\r\n") for line in _LINE.findall(text.decode(self.encoding))]
            for text in (self.before, self.after)
        )
        yield from difflib.unified_diff(before, after, self.file, self.file, lineterm="")

    def make(self) -> None:
        """Write the file, with the modes that it has.

        Raises:
            MissingFile: it cannot be written, or is another one by now; it is as it was.
        """
        from holdfast.report.files import write_whole  # noqa: PLC0415 - of no use where nothing is written

        path = Path(self.file)
        if path.read_bytes() != self.before:
            raise MissingFile(path, why="it was changed meanwhile", next_step="lint it again")
        mode = path.stat().st_mode & 0o7777
        if not mode & 0o222:
            raise MissingFile(path, why="it is read-only", next_step="make it writable, or use --diff")
        write_whole(path, self.after)
        path.chmod(mode)


def offered(claims: Iterable[Claim]) -> Iterator[Change]:
    """What the edits that claims offer come to."""
    return changes((claim.finding.subject.file or "", claim.edit) for claim in claims if claim.edit is not None)


def changes(edits: Iterable[tuple[str, Edit]]) -> Iterator[Change]:
    """What the edits, each with its file, come to: of two on a line the first, and none that leaves no program."""
    by_file: dict[str, dict[int, Edit]] = defaultdict(dict)
    for file, edit in edits:
        by_file[file].setdefault(edit.line, edit)
    for file, chosen in by_file.items():
        change = _change(file, [chosen[line] for line in sorted(chosen, reverse=True)])
        if change is not None:
            yield change


def _change(file: str, edits: Sequence[Edit]) -> Change | None:
    try:
        content = Path(file).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        lines = _LINE.findall(content.decode(encoding))
        made = sum(_edited(lines, edit) for edit in edits)
        after = "".join(lines).encode(encoding)
    except (OSError, ValueError, SyntaxError, LookupError):
        return None
    text = io.StringIO("".join(lines), newline=None).read()
    if not made or tree_of(text.split("\n")) is None:
        return None
    return Change(file, content, after, encoding, made)


def _edited(lines: list[str], edit: Edit) -> bool:
    """Make one edit, where the line is still the one that it was made for."""
    at = edit.line - 1
    if at >= len(lines) or lines[at].rstrip("\r\n") != edit.was:
        return False
    end = lines[at][len(edit.was) :] or "\n"
    if edit.inserts:
        lines.insert(at, edit.text + end)
    else:
        lines[at] = edit.text + lines[at][len(edit.was) :]
    return True
