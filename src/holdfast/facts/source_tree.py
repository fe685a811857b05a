"""A fingerprint of the source in a folder, which is equal on hosts where all Python files are equal; and git's commit.

Nothing is run, git neither. What is too large to be read in passing has no fingerprint, as half of one would compare
as different.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.facts import proc

MOST_FILES, MOST_BYTES, LIMIT_S = 5_000, 64 << 20, 0.5
#: Folders that hold other people's code, or none.
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """``folder`` is the repository's, or the one that was asked for. ``why_not`` stands for a fingerprint."""

    folder: str
    commit: str = ""
    fingerprint: str = ""
    files: int = 0
    why_not: str = ""


def code(folder: Path) -> Code:
    """Look at the repository around ``folder``, or at the folder itself."""
    top = next((each for each in (folder, *folder.parents) if _there(each / ".git")), folder)
    commit = _commit(top / ".git")
    until = time.monotonic() + LIMIT_S
    whole, count, size = hashlib.sha256(), 0, 0
    for path in _sources(top):
        count += 1
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        size += len(content)
        if count > MOST_FILES or size > MOST_BYTES or time.monotonic() > until:
            return Code(folder=str(top), commit=commit, why_not="there is too much to be read in passing")
        whole.update(f"{path.relative_to(top)}\0{len(content)}\0".encode(errors="surrogateescape") + content)
    if not count:
        return Code(folder=str(top), commit=commit, why_not="no Python files are here")
    return Code(folder=str(top), commit=commit, fingerprint=whole.hexdigest()[:16], files=count)


def _sources(top: Path) -> Iterator[Path]:
    """Python files in an order that is the same everywhere; hidden folders and environments are left out."""
    for here, folders, files in os.walk(top):
        folders[:] = sorted(
            name for name in folders
            if not name.startswith(".") and name not in _SKIPPED and not _there(Path(here, name, "pyvenv.cfg"))
        )  # fmt: skip
        yield from (Path(here, name) for name in sorted(files) if name.endswith(".py"))


def _there(path: Path) -> bool:
    """As Path.exists, which raises where this user may not look."""
    return os.path.exists(path)  # noqa: PTH110


def _commit(git: Path) -> str:
    """HEAD of a repository (or of a work tree, whose .git is a file); empty where it cannot be told."""
    if git.is_file():
        line = proc.text(git)
        git = git.parent / line.partition(": ")[2].strip() if isinstance(line, str) else git
    head = proc.text(git / "HEAD")
    words = head.split() if isinstance(head, str) else []
    if len(words) != 2:
        return words[0][:40] if words else ""
    shared = proc.text(git / "commondir")
    top = git / shared.strip() if isinstance(shared, str) else git
    loose, packed = proc.text(top / words[1]), proc.text(top / "packed-refs", 8 << 20)
    if isinstance(loose, str):
        return loose.strip()[:40]
    rows = (line.split() for line in (packed.splitlines() if isinstance(packed, str) else ()))
    return next((row[0] for row in rows if row[1:] == [words[1]]), "")
