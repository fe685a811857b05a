"""Cache of analysis results, valid until the program or holdfast changes.

The name of an entry is a hash of the names and contents of all files and of holdfast itself.
Entries are JSON, validated on load; an invalid entry counts as missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec

import holdfast
from holdfast.lint.sources.files import SourceFile

_T = TypeVar("_T")
#: Maximum number of entries; an entry for a large program takes a few hundred KiB.
_MAX_ENTRIES = 1024
_MAX_BYTES = 64 << 20
#: Parts of holdfast whose change may change results.
_ANALYSIS_SOURCES = (
    "lint", "host/launch_files", "host/variable_rules", "host/variable_sources.py", "causes",
    "core/findings.py", "report/source_findings.py", "core/variable_table.py",
    "core/variables.json", "lint/library_summaries.json",
)  # fmt: skip


def cache_key(
    files: Iterable[SourceFile], *, strict: bool, owned: int = 0, reports_all: bool = True
) -> str:
    """Return the name of the cache entry for these files.

    ``owned`` and ``reports_all``: how many of the first files the program owns, and whether it
    reports findings in others (:class:`~holdfast.lint.sources.separate_programs.ProgramFiles`).
    """
    digest = blake2b(digest_size=20)
    kind = f"{strict} {owned} {reports_all}"
    for part in (holdfast.__version__, sys.version, kind, *_analysis_fingerprint()):
        digest.update(part.encode() + b"\0")
    for file in files:
        digest.update(_file_header(file).encode(errors="surrogateescape"))
        digest.update(file.content)
    return digest.hexdigest()


def _file_header(file: SourceFile) -> str:
    return f"{file.path}\0{file.root}\0{file.name}\0{len(file.content)}\0"


@cache
def _analysis_fingerprint() -> Sequence[str]:
    """Return the size and modification time of each file of holdfast that affects results."""
    fingerprints: list[str] = []
    root = Path(__file__).parents[1]
    for name in _ANALYSIS_SOURCES:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            stat = file.stat()
            fingerprints.append(f"{file.name} {stat.st_size} {stat.st_mtime_ns}")
    return fingerprints


def load_entry(folder: Path, name: str, kind: type[_T]) -> _T | None:
    """Return an entry; None if it is missing or invalid."""
    path = folder / f"{name}.json"
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        entry = msgspec.json.decode(path.read_bytes(), type=kind)
        os.utime(path)  # keep recently used entries longest
    except (OSError, ValueError, RecursionError):  # msgspec raises ValueErrors
        return None
    return entry


def save_entry(folder: Path, name: str, entry: object) -> None:
    """Write an entry atomically; a failure is ignored, as it only costs time."""
    with suppress(OSError, ValueError):  # a file name may not be valid text
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / f"{name}.{os.urandom(4).hex()}.part"
        try:
            part.write_bytes(msgspec.json.encode(entry))
            part.replace(folder / f"{name}.json")
        finally:
            part.unlink(missing_ok=True)
        entries = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for old in entries[:-_MAX_ENTRIES]:
            old.unlink(missing_ok=True)
