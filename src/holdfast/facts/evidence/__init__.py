"""Evidence as people hand it over: files, folders, archives, standard input. It looks for what is there, by content.

``kinds.py`` tells what a file is from its first bytes, ``gather.py`` finds the files, ``archives.py`` looks into tar,
zip and compressed files without unpacking them to disk and without following links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import BinaryIO

import msgspec


class Kind(StrEnum):
    """What a file is, told from its content."""

    LOG = "log"
    DUMP = "flight-recorder dump"
    REDUCED = "reduced flight-recorder dumps"
    SNAPSHOT = "snapshot of GPU memory"
    BOX = "holdfast box"
    STACKS = "py-spy stacks"
    REPORT = "holdfast report"
    HISTORY = "history of collectives"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Piece:
    """One file, or one member of an archive.

    ``name`` is as the user would write it; members are ``logs.tgz!rank3/stderr.log``. ``size`` is in bytes, None where
    only reading tells (standard input, a compressed stream). ``open`` gives the decompressed bytes, text as UTF-8, and
    may be called more than once (except on standard input). A stream that cannot be read to its end simply ends;
    ``troubles`` then says why, once it was read. ``path`` is that of a file whose bytes are given as they lie there,
    and empty for all that is unpacked or recoded.
    """

    name: str
    kind: Kind
    size: int | None
    open: Callable[[], BinaryIO]
    troubles: list[str] = field(default_factory=list, compare=False)
    path: str = ""


class Ignored(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that was not read, and why, in one sentence.

    ``lost`` is True where it may have been evidence: it could not be opened, or is damaged.
    """

    name: str
    why: str
    lost: bool = False
