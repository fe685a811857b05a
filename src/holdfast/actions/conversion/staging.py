"""The folder in which a target comes to be, beside where it will stand: ``.converting-NAME/NAME`` and its journal.

The target gets its name by one rename, after every byte was synced and read back. What has no name yet is taken for a
checkpoint by nobody.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from holdfast.actions.conversion.journal import Journal, synced
from holdfast.errors import BadValue, CheckpointFailed, MissingFile, PlaceUnusable
from holdfast.report.evidence import size_text

PREFIX, REMOVING = ".converting-", ".removing-"
JOURNAL = "journal"
#: What a file takes besides its bytes.
_BLOCK = 4096


class Staging:
    """The staged folder of ``target``."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.parent / f"{PREFIX}{target.name}"
        self.path = self.folder / target.name
        self.journal = Journal(self.folder / JOURNAL, self.path)

    def open(self, identity: str) -> bool:
        """Begin anew, or go on with what is there of the same ``identity``; gives whether it does.

        Raises:
            PlaceUnusable: the folder cannot be made.
            CheckpointFailed: another process is writing this target.
        """
        try:
            self.folder.mkdir(exist_ok=True)
            goes_on = self.journal.open(identity)
            if not goes_on:
                remove(self.path)
        except OSError as error:
            raise PlaceUnusable(self.target.parent, why=(error.strerror or str(error)).lower(),
                                next_step="name a target in a folder that can be written") from error  # fmt: skip
        return goes_on

    def finish(self) -> None:
        """Give the target its name; one that is there already goes when the new one has it. Raises OSError."""
        for folder, _, _ in os.walk(self.path):
            synced(Path(folder))
        old = self.target.parent / f"{REMOVING}{self.target.name}-{uuid.uuid4().hex[:8]}"
        there = os.path.lexists(self.target)
        if there:
            self.target.rename(old)
        try:
            self.path.rename(self.target)
        except OSError:
            if there:
                old.rename(self.target)
            raise
        synced(self.target.parent)
        self.drop()
        if there:
            remove(old)

    def drop(self) -> None:
        """Remove the staged folder."""
        self.journal.close()
        remove(self.folder)

    def present(self) -> int:
        """Bytes that the staged files have on the disk already."""
        files = self.path.rglob("*") if self.path.is_dir() else (self.path,)
        total = 0
        for each in files:
            with suppress(OSError):
                total += each.stat().st_blocks * 512
        return total


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_target(target: Path, sources: tuple[Path, ...], *, overwrite: bool) -> None:
    """See that the target may be written, and that no source is touched by it.

    Raises:
        BadValue: it is there already, or is in the source, or the source in it.
        MissingFile: its folder is not there.
    """
    real = target.parent.resolve() / target.name
    if not target.parent.is_dir():
        raise MissingFile(target, why="its folder does not exist", next_step="make the folder first")
    for source in sources:
        found = source.resolve()
        if real == found or target.resolve() == found:
            raise BadValue("DST", why=f"{target} is the source", next_step="name another target")
        if found.is_dir() and found in real.parents:
            raise BadValue("DST", why=f"{target} is inside of the source", next_step="name a target outside of it")
        if real in found.parents:
            raise BadValue("DST", why=f"the source is inside of {target}", next_step="name another target")
    if os.path.lexists(target) and not overwrite:
        raise BadValue("DST", why=f"{target} is there already", next_step="name another target, or use --overwrite")


def check_space(staging: Staging, size: int, files: int) -> None:
    """See that so many bytes in so many files have room. Raises PlaceUnusable."""
    needed = size + files * _BLOCK - staging.present()
    about = os.statvfs(staging.folder)
    free = about.f_bavail * about.f_frsize
    if needed > free:
        raise PlaceUnusable(
            staging.target.parent, why=f"{size_text(needed)} have to be written there and {size_text(free)} are free",
            next_step="make room, or name a target on another disk; nothing was written",
        )  # fmt: skip


def cut_off(staging: Staging, error: OSError) -> CheckpointFailed:
    """What is said where writing failed."""
    return CheckpointFailed(
        f"the conversion to {staging.target}", why=(error.strerror or str(error)).lower(),
        next_step=f"the source is as it was; the same command goes on from what is in {staging.folder}",
    )  # fmt: skip
