"""What a program was judged to be, kept until something of it changes.

An entry is named by a hash of all that goes into the judgement: names and contents of the files, and holdfast itself.
It is JSON that is checked as it is read; what cannot be understood counts as not there.
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
from holdfast.facts.code.reading import File

_T = TypeVar("_T")
#: So many entries are kept; one of a large program has some hundred KiB.
_MOST_ENTRIES = 1024
_MOST_BYTES = 64 << 20
#: Whatever is changed below these may judge otherwise.
_OWN = (
    "facts/code", "facts/launch_files", "rules/code", "rules/causes", "actions/lint/judging.py", "findings.py",
    "report/lint.py", "variables.py", "variables.json",
)  # fmt: skip


def key(files: Iterable[File], *, strict: bool) -> str:
    """The name of the entry for these files."""
    digest = blake2b(digest_size=20)
    for part in (holdfast.__version__, sys.version, str(strict), *_own()):
        digest.update(part.encode() + b"\0")
    for file in files:
        digest.update(_head(file).encode(errors="surrogateescape"))
        digest.update(file.content)
    return digest.hexdigest()


def _head(file: File) -> str:
    return f"{file.path}\0{file.root}\0{file.name}\0{len(file.content)}\0"


@cache
def _own() -> Sequence[str]:
    """The files of holdfast that judge, by what changes when they do."""
    found: list[str] = []
    root = Path(__file__).parents[2]
    for name in _OWN:
        path = root / name
        for each in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            stat = each.stat()
            found.append(f"{each.name} {stat.st_size} {stat.st_mtime_ns}")
    return found


def load(folder: Path, name: str, kind: type[_T]) -> _T | None:
    """An entry; None where there is none that can be understood."""
    path = folder / f"{name}.json"
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        found = msgspec.json.decode(path.read_bytes(), type=kind)
        os.utime(path)  # what is used stays longest
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    return found


def save(folder: Path, name: str, entry: object) -> None:
    """Keep an entry, whole or not at all; where that cannot be, the next call takes longer."""
    with suppress(OSError, ValueError):  # a file's name need not be text
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / f"{name}.{os.urandom(4).hex()}.part"
        try:
            part.write_bytes(msgspec.json.encode(entry))
            part.replace(folder / f"{name}.json")
        finally:
            part.unlink(missing_ok=True)
        kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-_MOST_ENTRIES]:
            old.unlink(missing_ok=True)
