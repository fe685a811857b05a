"""One folder, one job: ``.owner.json`` names the job that saves into a checkpoint folder.

Two jobs in one folder would delete each other's checkpoints. Rank 0 of a job owns the folder from
its first save or resume until it exits, and renews the file. A dead owner is replaced: on the same
host its process no longer exists; from another host, the file is not renewed within the lease.
Neither needs equal clocks.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core.atomic_files import write_atomic
from holdfast.core.documents import read_bounded
from holdfast.core.errors import CheckpointFailed, HoldfastError
from holdfast.training.checkpoint.job_identity import host_name, job_name, start_ticks
from holdfast.training.checkpoint.store_agreement import StoreAgreement

_log = logging.getLogger("holdfast.checkpoint")
FILE = ".owner.json"
#: Seconds between renewals, and without one after which an owner on another host is dead.
RENEW_S, LEASE_S = 5.0, 20.0
_POLL_S, _MAX_BYTES = 0.25, 1 << 16


class CheckpointOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file; ``started``: the process's start time in clock ticks."""

    schema: str = "holdfast/checkpoint-owner/1"
    job: str
    host: str
    pid: int
    started: int
    since: float
    renewals: int = 0

    @property
    def is_gone(self) -> bool | None:
        """Return whether the owner is dead; None if it runs on another host."""
        if self.host != host_name():
            return None
        return start_ticks(self.pid) != self.started

    def describe(self) -> str:
        """Return the owner in words."""
        job = f"run {self.job}, " if self.job else ""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{job}pid {self.pid} on {self.host.partition(' ')[0]}, since {since}"


class FolderLease:
    """This process's ownership of one folder."""

    def __init__(self, root: Path) -> None:
        self.path = root / FILE
        self._owner: CheckpointOwner | None = None
        self._lost = ""
        self._released = threading.Event()

    def claim(self) -> None:
        """Become the owner; no effect if this process is the owner.

        Raises:
            CheckpointFailed: another job owns the folder.
            OSError: the folder is not writable.
        """
        if self._lost:
            raise _refuse(self.path, self._lost)
        if self._owner is not None and self.path.exists():
            return
        own = _this_process()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while not self._create(own):
            other = self._read()
            if other is not None and not self._is_ours(other):
                self._check_dead(other)
                same_job = bool(own.job) and other.job == own.job  # its earlier generation
                _log.log(
                    logging.DEBUG if same_job else logging.WARNING,
                    "%s: took over from %s, which is dead",
                    self.path.parent,
                    other.describe(),
                )
            self._remove(other)
        first, self._owner = self._owner is None, own
        if first:
            threading.Thread(target=self._renew, name="holdfast owner", daemon=True).start()

    def release(self) -> None:
        """Remove the file if this process owns the folder."""
        self._released.set()
        if self._owner is not None and self._owner.pid == os.getpid():
            found = self._read()
            if found is not None and self._is_ours(found):
                with suppress(OSError):
                    self.path.unlink()
            self._owner = None

    def _is_ours(self, other: CheckpointOwner) -> bool:
        """Return whether another generation of this job, or this process, wrote the file."""
        own = _this_process()
        if other.host == own.host:
            return (other.pid, other.started) == (own.pid, own.started)
        return bool(own.job) and other.job == own.job

    def _check_dead(self, other: CheckpointOwner) -> None:
        """Raise CheckpointFailed if the owner is alive; waits up to the lease for other hosts."""
        if other.is_gone:
            return
        deadline = time.monotonic() + (0.0 if other.is_gone is False else LEASE_S)
        while time.monotonic() < deadline:
            if self._read() != other:
                break
            time.sleep(_POLL_S)
        else:
            if other.is_gone is None:
                return
        raise _refuse(self.path, other.describe())

    def _create(self, own: CheckpointOwner) -> bool:
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "wb") as stream:
            stream.write(msgspec.json.encode(own))
        return True

    def _read(self) -> CheckpointOwner | None:
        """Return the owner; None: no file, or none that is complete within a second."""
        deadline = time.monotonic() + 1.0
        while True:
            try:
                data = read_bounded(self.path, _MAX_BYTES)
                return msgspec.json.decode(data, type=CheckpointOwner)
            except FileNotFoundError:
                return None
            except msgspec.DecodeError:  # being written
                if time.monotonic() > deadline:
                    return None
            time.sleep(0.01)

    def _remove(self, expected: CheckpointOwner | None) -> None:
        """Remove the file of a dead owner, but not one that another process wrote meanwhile."""
        aside = self.path.with_name(f"{FILE}-{secrets.token_hex(4)}")
        with suppress(FileNotFoundError):
            self.path.rename(aside)
            taken = FolderLease(aside.parent)
            taken.path = aside
            if expected is not None and taken._read() != expected:
                with suppress(OSError):
                    os.link(aside, self.path)
            aside.unlink()

    def _renew(self) -> None:
        while not self._released.wait(RENEW_S):
            owner, found = self._owner, self._read()
            if owner is None or not self.path.parent.is_dir():
                continue
            if found is not None and not self._is_ours(found):
                self._lost = found.describe()
                _log.error("%s", _refuse(self.path, self._lost))
                return
            self._owner = msgspec.structs.replace(owner, renewals=owner.renewals + 1)
            with suppress(OSError, HoldfastError):  # the next renewal may succeed
                write_atomic(self.path, msgspec.json.encode(self._owner))


_leases: dict[Path, FolderLease] = {}
_lock = threading.Lock()


def claim_folder(root: Path) -> None:
    """Make this process the owner of a checkpoint folder; call it on rank 0.

    Raises:
        CheckpointFailed: another job owns the folder.
        OSError: the folder is not writable.
    """
    with _lock:
        _leases.setdefault(root, FolderLease(root)).claim()


def claim_on_all_ranks(root: Path, agreement: StoreAgreement) -> None:
    """Make this job the owner of a checkpoint folder; call it on all ranks.

    Raises:
        CheckpointFailed: another job owns the folder, or it is not writable; on all ranks.
    """

    def claim_on_rank_zero(_: list[bytes]) -> bytes:
        claim_folder(root)
        return b""

    agreement.agree("claim", b"", claim_on_rank_zero)


def release_folder(root: Path) -> None:
    """Give the folder up; no effect if this process does not own it."""
    with _lock:
        lease = _leases.pop(root, None)
    if lease is not None:
        lease.release()


def _this_process() -> CheckpointOwner:
    return CheckpointOwner(
        job=job_name(),
        host=host_name(),
        pid=os.getpid(),
        started=start_ticks(os.getpid()) or 0,
        since=time.time(),
    )


def _refuse(path: Path, owner: str) -> CheckpointFailed:
    why = f"the folder belongs to another job ({owner}); two jobs would delete each other's files"
    next_step = f"use another folder, or stop that job; if it is dead, delete {path}"
    return CheckpointFailed(f"saving into {path.parent}", why=why, next_step=next_step)
