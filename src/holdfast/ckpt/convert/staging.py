"""The staging folder next to the target: ``.converting-NAME/NAME`` and its journal.

The target is published by one rename after every byte was synced and read back; until then no
reader takes it for a checkpoint.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from holdfast.ckpt.convert.journal import Journal, sync_path
from holdfast.core.errors import CheckpointFailed, InvalidValue, MissingFile, StorageUnusable
from holdfast.core.text import os_error_reason
from holdfast.report.evidence_summary import size_text

PREFIX, REMOVING = ".converting-", ".removing-"
JOURNAL = "journal"
#: Disk space per file besides its bytes.
_BLOCK = 4096


class Staging:
    """The staging folder of ``target``."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.parent / f"{PREFIX}{target.name}"
        self.path = self.folder / target.name
        self.journal = Journal(self.folder / JOURNAL, self.path)

    def open(self, identity: str) -> bool:
        """Start, or resume a conversion with the same ``identity``; return whether it resumes.

        Raises:
            StorageUnusable: the folder cannot be created.
            CheckpointFailed: another process is writing this target.
        """
        try:
            self.folder.mkdir(exist_ok=True)
            resumed = self.journal.open(identity)
            if not resumed:
                remove_staged(self.path)
        except OSError as error:
            raise StorageUnusable(
                self.target.parent,
                why=os_error_reason(error),
                next_step="specify a target in a writable folder",
            ) from error
        return resumed

    def finish(self) -> None:
        """Publish the target; an existing one is removed after the rename. Raises OSError."""
        for folder, _, _ in os.walk(self.path):
            sync_path(Path(folder))
        old = self.target.parent / f"{REMOVING}{self.target.name}-{uuid.uuid4().hex[:8]}"
        existed = os.path.lexists(self.target)
        if existed:
            self.target.rename(old)
        try:
            self.path.rename(self.target)
        except OSError:
            if existed:
                old.rename(self.target)
            raise
        sync_path(self.target.parent)
        self.discard()
        if existed:
            remove_staged(old)

    def discard(self) -> None:
        """Remove the staging folder."""
        self.journal.close()
        remove_staged(self.folder)

    def bytes_on_disk(self) -> int:
        """Return the bytes of staged files that are already on disk."""
        files = self.path.rglob("*") if self.path.is_dir() else (self.path,)
        total = 0
        for file in files:
            with suppress(OSError):
                total += file.stat().st_blocks * 512
        return total


def remove_staged(path: Path) -> None:
    """Remove a file or folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_target(target: Path, sources: tuple[Path, ...], *, overwrite: bool) -> None:
    """Check that the target may be written and does not touch a source.

    Raises:
        InvalidValue: it exists, or one of target and source contains the other.
        MissingFile: its parent folder does not exist.
    """
    target_path = Path(os.path.realpath(target.parent)) / target.name
    if not target.parent.is_dir():
        raise MissingFile(
            target, why="its folder does not exist", next_step="create the folder first"
        )
    for source in sources:
        source_path = Path(os.path.realpath(source))  # accepts a link to itself
        if target_path == source_path or Path(os.path.realpath(target)) == source_path:
            raise InvalidValue(
                "DST", why=f"{target} is the source", next_step="specify another target"
            )
        if source_path.is_dir() and source_path in target_path.parents:
            raise InvalidValue(
                "DST",
                why=f"{target} is inside the source",
                next_step="specify a target outside the source",
            )
        if target_path in source_path.parents:
            raise InvalidValue(
                "DST", why=f"the source is inside {target}", next_step="specify another target"
            )
    if os.path.lexists(target) and not overwrite:
        raise InvalidValue(
            "DST",
            why=f"{target} already exists",
            next_step="specify another target, or use --overwrite",
        )


def check_space(staging: Staging, size: int, files: int) -> None:
    """Check that ``size`` bytes in ``files`` files fit. Raises StorageUnusable."""
    needed = size + files * _BLOCK - staging.bytes_on_disk()
    about = os.statvfs(staging.folder)
    free = about.f_bavail * about.f_frsize
    if needed > free:
        raise StorageUnusable(
            staging.target.parent,
            why=f"{size_text(needed)} are needed, but only {size_text(free)} are free",
            next_step="free space, or use a target on another disk; nothing was written",
        )


def write_failure(staging: Staging, error: OSError) -> CheckpointFailed:
    """Return the error for a failed write."""
    return CheckpointFailed(
        f"the conversion to {staging.target}",
        why=os_error_reason(error),
        next_step=f"the source is unchanged; run the command again to resume from {staging.folder}",
    )
