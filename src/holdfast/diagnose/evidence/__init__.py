"""Evidence intake: files, folders, archives and standard input, identified by content.

``file_types.py`` detects the kind of a file from its first bytes, ``gather.py`` lists the files,
``archives.py`` reads tar, zip and compressed files without extracting them to disk.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import BinaryIO

import msgspec


class EvidenceKind(StrEnum):
    """Kind of a file, detected from its content."""

    LOG = "log"
    DUMP = "flight-recorder dump"
    REDUCED = "reduced flight-recorder dump"
    SNAPSHOT = "GPU memory snapshot"
    TRACE = "holdfast trace"
    STACKS = "py-spy stack dump"
    REPORT = "holdfast report"
    HISTORY = "collective history file"
    UNKNOWN = "unknown"


class EvidenceFile(msgspec.Struct, frozen=True, eq=False):
    """One file, or one member of an archive.

    ``name`` is as the user would write it; members are ``logs.tgz!rank3/stderr.log``. ``size`` is
    in bytes, None if only reading reveals it (standard input, a compressed stream). ``open``
    returns the decompressed bytes, text as UTF-8; it may be called more than once (except on
    standard input). A stream that fails ends early, and ``read_errors`` then has the reason.
    ``path`` is set only if the bytes are those of a file on disk; ``content`` are all bytes of a
    small log, which need not be read again.
    """

    name: str
    kind: EvidenceKind
    size: int | None
    open: Callable[[], BinaryIO]
    read_errors: list[str] = []
    path: str = ""
    content: bytes | None = None


class SkippedEvidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that was not read, and the reason.

    ``lost``: it may have been evidence (it could not be opened, or is damaged).
    """

    name: str
    why: str
    lost: bool = False
