"""Replicate committed checkpoints to other backends, in one thread per backend.

An unreachable backend is logged once per outage and retried with exponential backoff. A newer
checkpoint is copied before older ones that are still pending.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast import recorder
from holdfast.core import checkpoint_manifest, settings
from holdfast.core.errors import CheckpointUnreadable, HoldfastError, StorageUnusable
from holdfast.core.text import format_duration, pluralize
from holdfast.training.checkpoint.storage.backends import FolderBackend, StorageBackend
from holdfast.training.checkpoint.storage.peer_memory import PeerMemory
from holdfast.training.checkpoint.storage.retention import RetentionPolicy, prune

#: Initial and maximum backoff after a failure, in seconds.
RETRY_S, RETRY_MAX_S = 5.0, 300.0
#: Seconds after which a slow copy is logged once; a dead mount reports nothing by itself.
SLOW_S = 900.0
_log = logging.getLogger("holdfast.checkpoint")


class Replicator:
    """Replicates the checkpoints in ``root`` to ``places``, one worker each."""

    def __init__(
        self,
        root: FolderBackend,
        backends: Sequence[StorageBackend],
        policy: Callable[[StorageBackend], RetentionPolicy],
    ) -> None:
        self._workers = [_ReplicationWorker(root, backend, policy(backend)) for backend in backends]

    @property
    def backends(self) -> list[StorageBackend]:
        """Return the backends."""
        return [worker.backend for worker in self._workers]

    def busy(self) -> frozenset[int]:
        """Return the steps being copied, which must not be deleted."""
        return frozenset(worker.copying for worker in self._workers if worker.copying is not None)

    def offer(self, step: int) -> None:
        """Queue the checkpoint of a step for all backends."""
        for worker in self._workers:
            worker.offer(step)

    def finish(self, limit_s: float) -> list[str]:
        """Copy pending checkpoints within the limit; return a message per incomplete backend."""
        deadline = time.monotonic() + limit_s
        for worker in self._workers:
            worker.stop()
        return [why for worker in self._workers if (why := worker.join(deadline))]


class _ReplicationWorker:
    """One backend, its queue of steps, and the thread that copies them."""

    def __init__(
        self, root: FolderBackend, backend: StorageBackend, policy: RetentionPolicy
    ) -> None:
        self.backend, self._root, self._policy = backend, root, policy
        self._waiting: list[int] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = self._slow_logged = False
        self._pause_s = 0.0
        self._since = 0.0
        #: The step being copied.
        self.copying: int | None = None
        #: Why the last attempt failed; empty after a success.
        self.last_error = ""

    def offer(self, step: int) -> None:
        with self._changed:
            self._waiting = [
                *(waiting_step for waiting_step in self._waiting if waiting_step != step),
                step,
            ]
            self._changed.notify()
            self._warn_if_slow()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"holdfast copy {self.backend.name}", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, deadline: float) -> str:
        if self._thread is None:
            return ""
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        with self._changed:
            unfinished = {*self._waiting, *([] if self.copying is None else [self.copying])}
            unfinished = {step for step in unfinished if self._root.folder(step).exists()}
            if not unfinished:
                return ""
            summary = (
                f"{pluralize(len(unfinished), 'checkpoint')} (the newest of step "
                f"{max(unfinished)}) not copied to {self.backend.name}"
            )
            return f"{summary}: {self.last_error}" if self.last_error else summary

    def _run(self) -> None:
        while (step := self._next()) is not None:
            try:
                is_done = self._copy(step)
            except Exception as error:  # noqa: BLE001 - no backend failure may stop training
                is_done = self._handle_failure(step, error)
            with self._changed:
                self.copying = None
                if not is_done and step not in self._waiting:
                    self._waiting.insert(0, step)

    def _next(self) -> int | None:
        """Return the newest pending step after the backoff; None at the end."""
        with self._changed:
            due = time.monotonic() + self._pause_s
            while not self._waiting or time.monotonic() < due:
                if self._stopping and (not self._waiting or self._pause_s):
                    return None  # no retries at the end
                unfinished = due - time.monotonic()
                self._changed.wait(unfinished if self._waiting and unfinished > 0 else None)
            self.copying, self._since, self._slow_logged = (
                self._waiting.pop(),
                time.monotonic(),
                False,
            )
            return self.copying

    def _copy(self, step: int) -> bool:
        source = self._root.folder(step)
        try:
            summary = checkpoint_manifest.read_manifest(source)
        except CheckpointUnreadable:
            return True  # pruned since it was queued
        try:
            self.backend.put(source, summary)
        except CheckpointUnreadable as error:
            _log.warning(
                "the checkpoint of step %s was not copied to %s, because it is damaged: %s",
                step,
                self.backend.name,
                error,
            )
            return True
        if self.last_error:
            _log.warning("%s accepts copies again: copied step %s", self.backend.name, step)
        self.last_error, self._pause_s = "", 0.0
        prune(self.backend, self._policy)
        return True

    def _handle_failure(self, step: int, error: Exception) -> bool:
        if not self._root.folder(step).exists():
            return True  # pruned while it was read
        why = error.why if isinstance(error, StorageUnusable) else str(error)
        if not isinstance(error, HoldfastError):
            why = f"{type(error).__name__}: {why}"
        self._pause_s = min(2 * self._pause_s, RETRY_MAX_S) or RETRY_S
        if not self.last_error:  # log once per outage
            text = (
                f"step {step} could not be copied to {self.backend.name}: {why}; training "
                "continues, "
                f"next attempt in {format_duration(self._pause_s)}"
            )
            _log.warning("%s", text)
            recorder.record_warning(f"replication to {self.backend.name}", text)
        self.last_error = why or type(error).__name__
        return False

    def _warn_if_slow(self) -> None:
        if (
            self.copying is not None
            and not self._slow_logged
            and time.monotonic() - self._since > SLOW_S
        ):
            self._slow_logged = True
            _log.warning(
                "copying step %s to %s has taken more than %s",
                self.copying,
                self.backend.name,
                format_duration(SLOW_S),
            )


def memory_backend(trace: Path | None) -> PeerMemory | None:
    """Return the host memory backend, deleted with the run; None without `holdfast run`."""
    if trace is None:
        return None
    node, nodes = (settings.read_text(name) for name in ("GROUP_RANK", "GROUP_WORLD_SIZE"))
    return PeerMemory(trace.parent / "checkpoints", int(node or 0), int(nodes or 1))
