"""Fingerprints the Python files of a folder for comparison, and reads the git commit.

Nothing is run, not even git. Too large a folder gets no fingerprint, because a partial one would
compare as different.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.host.processes import proc

MAX_FILES, MAX_BYTES, LIMIT_S = 5_000, 64 << 20, 0.5
#: Folders of third-party code or without source.
_SKIPPED = frozenset(
    {"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"}
)


class SourceFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """``folder``: top of the repository, or the requested folder.

    ``why_not``: why there is no fingerprint.
    """

    folder: str
    commit: str = ""
    fingerprint: str = ""
    files: int = 0
    why_not: str = ""


def fingerprint_source(folder: Path) -> SourceFingerprint:
    """Hash the repository that contains ``folder``, or the folder itself."""
    top = next((path for path in (folder, *folder.parents) if _exists(path / ".git")), folder)
    commit = _read_commit(top / ".git")
    deadline = time.monotonic() + LIMIT_S
    digest, count, size = hashlib.sha256(), 0, 0
    for path in _sources(top):
        count += 1
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        size += len(content)
        if count > MAX_FILES or size > MAX_BYTES or time.monotonic() > deadline:
            return SourceFingerprint(
                folder=str(top), commit=commit, why_not="too much code to hash"
            )
        digest.update(
            f"{path.relative_to(top)}\0{len(content)}\0".encode(errors="surrogateescape") + content
        )
    if not count:
        return SourceFingerprint(folder=str(top), commit=commit, why_not="no Python files")
    return SourceFingerprint(
        folder=str(top), commit=commit, fingerprint=digest.hexdigest()[:16], files=count
    )


def _sources(top: Path) -> Iterator[Path]:
    """Yield Python files in a fixed order, without hidden folders and virtual environments."""
    for parent, folders, files in os.walk(top):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and not _exists(Path(parent, name, "pyvenv.cfg"))
        )
        yield from (Path(parent, name) for name in sorted(files) if name.endswith(".py"))


def _exists(path: Path) -> bool:
    """Like Path.exists, which raises without permission."""
    return os.path.exists(path)  # noqa: PTH110


def _read_commit(git: Path) -> str:
    """Return HEAD of a repository (or of a worktree, whose .git is a file); empty if not known."""
    if git.is_file():
        line = proc.read_text(git)
        git = git.parent / line.partition(": ")[2].strip() if isinstance(line, str) else git
    head = proc.read_text(git / "HEAD")
    words = head.split() if isinstance(head, str) else []
    if len(words) != 2:
        return words[0][:40] if words else ""
    shared = proc.read_text(git / "commondir")
    top = git / shared.strip() if isinstance(shared, str) else git
    loose, packed = proc.read_text(top / words[1]), proc.read_text(top / "packed-refs", 8 << 20)
    if isinstance(loose, str):
        return loose.strip()[:40]
    rows = (line.split() for line in (packed.splitlines() if isinstance(packed, str) else ()))
    return next((row[0] for row in rows if row[1:] == [words[1]]), "")
