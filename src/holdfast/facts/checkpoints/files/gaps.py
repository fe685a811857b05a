"""What a file that cannot be read leaves in the contents of a checkpoint."""

from __future__ import annotations

import zipfile

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Gap
from holdfast.facts.checkpoints.files.torch_pickle import CutShort, Refused


def gap_of(
    error: CheckpointUnreadable, file: str, rank: int | None = None, *, what: str = "", beside: bool = False
) -> Gap:
    """The gap that ``file`` is, of ``rank`` where its name says so; ``what`` in it could not be read.

    ``beside`` says that no weights are in that file.
    """
    cause, why = error.__cause__, f"{what}: {error.why}" if what else error.why
    if isinstance(cause, Refused):
        return Gap(kind="refused", file=file, why=why, rank=rank, names=cause.names, beside=beside)
    short = isinstance(cause, (zipfile.BadZipFile, EOFError, CutShort)) or "cut short" in error.why
    return Gap(kind="truncated" if short else "unreadable", file=file, why=why, rank=rank, beside=beside)
