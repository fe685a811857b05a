"""Converts read errors of a checkpoint file into reported problems."""

from __future__ import annotations

import zipfile

from holdfast.ckpt.contents import FileProblem
from holdfast.ckpt.files.torch_pickle import GlobalRefused, TorchPickleTruncated
from holdfast.core.errors import CheckpointUnreadable


def problem_of(
    error: CheckpointUnreadable,
    file: str,
    rank: int | None = None,
    *,
    what: str = "",
    beside: bool = False,
) -> FileProblem:
    """Return the problem for ``file``; ``what`` names the part that could not be read.

    ``rank`` wrote the file, if its name says so; ``beside``: the file holds no weights.
    """
    cause, why = error.__cause__, f"{what}: {error.why}" if what else error.why
    if isinstance(cause, GlobalRefused):
        return FileProblem(
            kind="refused", file=file, why=why, rank=rank, names=cause.names, beside=beside
        )
    truncated = (
        isinstance(cause, (zipfile.BadZipFile, EOFError, TorchPickleTruncated))
        or "truncated" in error.why
    )
    return FileProblem(
        kind="truncated" if truncated else "unreadable",
        file=file,
        why=why,
        rank=rank,
        beside=beside,
    )
