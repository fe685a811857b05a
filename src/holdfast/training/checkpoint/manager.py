"""Replicates, prunes and finds committed checkpoints.

Each process has one manager for all backends: the checkpoint folder, the shared copies (filled by
rank 0), and the memory of each host (filled by its first rank), which outlives the ranks but not
the run.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast import recorder
from holdfast.core import checkpoint_manifest, settings
from holdfast.core.checkpoint_manifest import Manifest
from holdfast.core.errors import InvalidValue, StorageUnusable
from holdfast.training.checkpoint import emergency, folder_owner, fresh_start
from holdfast.training.checkpoint.resume import CheckpointSearch, quarantine_from
from holdfast.training.checkpoint.storage import peer_assembly
from holdfast.training.checkpoint.storage.backends import (
    FolderBackend,
    StorageBackend,
    open_backend,
)
from holdfast.training.checkpoint.storage.hashing import VerifiedFiles
from holdfast.training.checkpoint.storage.replication import Replicator, memory_backend
from holdfast.training.checkpoint.storage.retention import RetentionPolicy, prune
from holdfast.training.checkpoint.store_agreement import StoreAgreement
from holdfast.training.process_rank import is_rank_zero
from holdfast.training.script_end import call_at_script_end

MEMORY = "memory"
_log = logging.getLogger("holdfast.checkpoint")


class CheckpointManager:
    """Manage the checkpoints in ``root`` and their ``copies``: folders, URLs, or ``"memory"``.

    Raises:
        InvalidValue: a copy location is invalid or listed twice.
        MissingExtra: a package that a URL needs is not installed.
    """

    def __init__(
        self,
        root: Path,
        copies: Sequence[str | os.PathLike[str]] = (),
        policy: RetentionPolicy | None = None,
        *,
        allow_fresh_start: bool = False,
    ) -> None:
        if isinstance(copies, str):
            raise InvalidValue(
                "copies",
                why=f"{copies!r} is a string, not a list",
                next_step=f"write it as copies=[{copies!r}]",
            )
        self.root = FolderBackend(root)
        self._policy = policy or RetentionPolicy()
        self._policy.check()
        memory = memory_backend(settings.read_path("HOLDFAST_TRACE")) if MEMORY in copies else None
        if MEMORY in copies and memory is None and is_rank_zero():
            _log.warning("copies=['memory'] has no effect: it requires `holdfast run`")
        self._shared = Replicator(
            self.root, list(_copy_backends(self.root, copies)), lambda _: self._policy
        )
        self._memory = Replicator(
            self.root, [memory] if memory else [], lambda _: RetentionPolicy(last=1)
        )
        self._allow_fresh_start = allow_fresh_start
        self._reading: set[int] = set()
        self._pruning = threading.Lock()
        self._finished = False
        call_at_script_end(self.finish)

    def on_commit(self, folder: Path, manifest: Manifest) -> None:
        """Replicate a new checkpoint and prune old ones, in threads; called on every rank."""
        del folder
        if is_rank_zero():
            fresh_start.record_checkpoint(self.root.path, manifest)
        emergency.record_save_duration(manifest.at - manifest.began)
        if _is_local_rank_zero():
            self._memory.offer(manifest.step)
        if is_rank_zero():
            self._shared.offer(manifest.step)
            threading.Thread(target=self._prune, name="holdfast retention", daemon=True).start()

    def newest(
        self,
        agreement: StoreAgreement,
        before: int | None = None,
        verified: VerifiedFiles | None = None,
    ) -> tuple[Path | None, tuple[str, ...]]:
        """Return this rank's folder with the newest valid checkpoint, and why others were skipped.

        Searches all backends, for steps below ``before`` where it is set. A checkpoint found
        elsewhere is first fetched into the checkpoint folder. With ``before``, checkpoints from
        that step on are quarantined, so that no later search finds them.

        Raises:
            CheckpointUnreadable: checkpoints exist, and all are damaged.
            CheckpointFailed: a rank did not answer in time; or there is none, but checkpoints may
                exist, and a fresh start is not allowed.
        """
        backends = self._shared.backends
        memory = next(
            (backend for backend in self._memory.backends if isinstance(backend, FolderBackend)),
            None,
        )
        allowed = (
            self._allow_fresh_start
            or settings.read_setting("HOLDFAST_ALLOW_FRESH_START").value == "on"
        )
        search = CheckpointSearch(
            self.root,
            backends,
            memory,
            agreement,
            before,
            verified or VerifiedFiles(),
            allow_fresh_start=allowed,
        )
        chosen = search.newest()
        if chosen is not None:
            manifest = checkpoint_manifest.read_manifest(chosen)
            emergency.record_save_duration(manifest.at - manifest.began)
        if before is not None:
            local = [memory] if memory is not None and _is_local_rank_zero() else []
            for backend in [*local, *([self.root, *backends] if is_rank_zero() else [])]:
                with suppress(StorageUnusable):
                    for message in quarantine_from(backend, before):
                        _log.warning("%s", message)
            agreement.agree("quarantine", b"")
        return chosen, tuple(search.skipped)

    def claim(self, agreement: StoreAgreement) -> None:
        """Make this job the owner of the checkpoint folder, on all ranks.

        Raises:
            CheckpointFailed: another job owns it, or it is not writable.
        """
        folder_owner.claim_on_all_ranks(self.root.path, agreement)

    @contextmanager
    def reading(self, step: int | None) -> Iterator[None]:
        """Protect the checkpoint of this step from pruning while the block runs."""
        self._reading = {step} if step is not None else set()
        try:
            yield
        finally:
            self._reading = set()
            for memory in self._memory.backends if _is_local_rank_zero() else ():
                if isinstance(memory, FolderBackend):
                    peer_assembly.remove_assembled(memory)

    def finish(self, limit_s: float | None = None) -> None:
        """Finish pending copies within a limit (HOLDFAST_CHECKPOINT_S); log what was not copied."""
        if self._finished:
            return
        self._finished = True
        left_s = emergency.remaining_grace_s()
        limit_s = settings.read_seconds("HOLDFAST_CHECKPOINT_S") if limit_s is None else limit_s
        limit_s = limit_s if left_s is None else min(limit_s, max(left_s - 2.0, 0.0))
        # The script is over: a rank that waits now is not stuck.
        with recorder.phase("checkpoint", limit_s + 5.0):
            for message in self._shared.finish(limit_s):
                _log.warning("%s", message)
            with self._pruning:
                pass  # wait for a pruning thread in progress
        folder_owner.release_folder(self.root.path)

    def _prune(self) -> None:
        with self._pruning:
            busy = self._shared.busy() | self._memory.busy() | self._reading
            try:
                prune(self.root, self._policy, busy)
            except StorageUnusable as error:
                _log.warning("%s", error)


def _copy_backends(
    root: FolderBackend, copies: Iterable[str | os.PathLike[str]]
) -> Iterator[StorageBackend]:
    seen_names = {root.name}
    for location in copies:
        if location == MEMORY:
            continue
        backend = open_backend(location)
        if backend.name in seen_names:
            raise InvalidValue(
                "copies", why=f"{backend.name} is listed twice, or is the checkpoint folder itself"
            )
        seen_names.add(backend.name)
        yield backend


def _is_local_rank_zero() -> bool:
    return not settings.read_setting("LOCAL_RANK").value
