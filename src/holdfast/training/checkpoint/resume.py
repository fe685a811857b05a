"""Which checkpoint a job resumes from: the newest valid one in any backend, the same on all ranks.

Rank 0 lists the shared backends (checkpoint folder, copies); each rank lists its host's memory. For
one step, memory comes first if all hosts together hold every file (``peer_assembly`` collects
them), then the folder, then the copies in order. The ranks share the work of verifying every byte
and of fetching remote files. Every skipped checkpoint is logged.
"""

from __future__ import annotations

import logging
import shutil
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.core import checkpoint_manifest
from holdfast.core.errors import CheckpointFailed, CheckpointUnreadable, StorageUnusable
from holdfast.core.text import format_duration
from holdfast.training.checkpoint import fresh_start
from holdfast.training.checkpoint.loading import verify_checkpoint
from holdfast.training.checkpoint.storage import peer_assembly, peer_memory
from holdfast.training.checkpoint.storage.backends import FolderBackend, StorageBackend
from holdfast.training.checkpoint.storage.hashing import VerifiedFiles
from holdfast.training.checkpoint.storage.peer_assembly import describe_error, run_on_all_ranks
from holdfast.training.checkpoint.storage.shard_files import assigned_files
from holdfast.training.checkpoint.store_agreement import StoreAgreement

#: Seconds after which a backend that has not listed its checkpoints is skipped.
LIST_LIMIT_S = 60.0
_MEMORY, _ROOT = -1, 0
_log = logging.getLogger("holdfast.checkpoint")


class CheckpointCandidate(msgspec.Struct, frozen=True):
    """One checkpoint in one backend: its step and its manifest's seal.

    ``backend`` is -1 for memory, 0 for the folder, 1… for the copies.
    """

    step: int
    seal: str
    backend: int


class HeldFiles(msgspec.Struct, frozen=True):
    """The files of one checkpoint that a host holds.

    ``seal`` is that of the full manifest, ``files`` its number of files, ``held`` the indices of
    the files present.
    """

    seal: str
    files: int
    held: tuple[int, ...]


class RankView(msgspec.Struct, frozen=True):
    """The checkpoints in the memory of one rank's host, by step, and whose memory it is."""

    memory: dict[int, HeldFiles]
    host_memory: str


class RankAssignment(msgspec.Struct, frozen=True):
    """Rank 0's answer to one rank: the candidates, best first, and its share of the work.

    The rank is ``index`` of ``count`` on host ``host`` of ``hosts``.
    """

    candidates: tuple[CheckpointCandidate, ...]
    index: int
    count: int
    host: int
    hosts: int


@dataclass
class CheckpointSearch:
    """One search by all ranks, for steps below ``before`` where it is set."""

    root: FolderBackend
    copies: Sequence[StorageBackend]
    memory: FolderBackend | None
    agreement: StoreAgreement
    before: int | None = None
    verified: VerifiedFiles = field(default_factory=VerifiedFiles)
    #: One sentence for each checkpoint and backend skipped (complete on rank 0).
    skipped: list[str] = field(default_factory=list)
    allow_fresh_start: bool = False
    _unreadable: dict[tuple[int, str], str] = field(default_factory=dict)

    def newest(self) -> Path | None:
        """Return this rank's folder with the newest valid checkpoint, fully verified; None if none.

        Raises:
            CheckpointUnreadable: checkpoints exist, and all are damaged.
            CheckpointFailed: a rank did not answer in time; or there is none, but some may exist.
        """
        own_view = RankView(
            self._in_memory(), f"{socket.gethostname()} {self.memory.path if self.memory else ''}"
        )
        answer = self.agreement.agree("list", msgspec.json.encode(own_view), self._assign)
        assignment = msgspec.json.decode(answer, type=RankAssignment)
        for candidate in assignment.candidates:
            backend = self._backend_of(candidate)
            try:
                return self._fetch_candidate(candidate, backend, assignment)
            except CheckpointUnreadable as error:
                self._skip(f"step {candidate.step} in {backend.name}: {error.why}")
        if assignment.candidates:
            what = (
                f"any of the {len(assignment.candidates)} checkpoints"
                if len(assignment.candidates) > 1
                else "the only one"
            )
            raise CheckpointUnreadable(
                self.root.path,
                why=f"{what} is damaged, the newest of step {assignment.candidates[0].step}",
                next_step="restore a copy, or move all of them away to start from scratch",
            )
        return None

    # ---- listing

    def _in_memory(self) -> dict[int, HeldFiles]:
        if self.memory is None:
            return {}
        held_by_step = {}
        for step in self.memory.steps():
            if self.before is None or step < self.before:
                try:
                    held_by_step[step] = _held_files(self.memory.folder(step))
                except CheckpointUnreadable as error:
                    self.skipped.append(f"step {step} in memory: {error.why}")
        return held_by_step

    def _assign(self, messages: list[bytes]) -> list[bytes]:
        """On rank 0: list the candidates, best first, and which ranks share a host's memory."""
        views = [msgspec.json.decode(encoded, type=RankView) for encoded in messages]
        held: dict[tuple[int, str, int], set[int]] = {}
        for each in views:
            for step, part in each.memory.items():
                held.setdefault((step, part.seal, part.files), set()).update(part.held)
        candidates = [
            CheckpointCandidate(step, seal, _MEMORY)
            for (step, seal, files), held_here in held.items()
            if len(held_here) == files
        ]
        for number, steps in enumerate(self._list_shared()):
            candidates += [CheckpointCandidate(step, seal, number) for step, seal in steps.items()]
        why = fresh_start.refusal(
            self.root.path, self.skipped, self.before, allowed=self.allow_fresh_start
        )
        if why is not None and not candidates:
            raise CheckpointFailed(self.agreement.subject, why=why, next_step="")
        candidates.sort(key=lambda each: (-each.step, each.backend))
        hosts = list(dict.fromkeys(each.host_memory for each in views))
        ranks_by_host = [
            [rank for rank, other in enumerate(views) if other.host_memory == each.host_memory]
            for each in views
        ]
        return [
            msgspec.json.encode(
                RankAssignment(
                    tuple(candidates),
                    ranks.index(rank),
                    len(ranks),
                    hosts.index(views[rank].host_memory),
                    len(hosts),
                )
            )
            for rank, ranks in enumerate(ranks_by_host)
        ]

    def _list_shared(self) -> list[dict[int, str]]:
        """List the folder and the copies in parallel, so that a hanging one delays none."""
        backends = [self.root, *self.copies]
        steps_by_backend: list[dict[int, str]] = [{} for _ in backends]
        problems: list[str] = [
            f"{backend.name}: no response within {format_duration(LIST_LIMIT_S)}"
            for backend in backends
        ]
        threads = []
        for number, backend in enumerate(backends):

            def list_backend(number: int = number, backend: StorageBackend = backend) -> None:
                try:
                    steps_by_backend[number], problems[number] = self._list_steps(backend), ""
                except Exception as error:  # noqa: BLE001 - a failing backend must not stop the others
                    problems[number] = f"{backend.name}: {describe_error(error)}"

            threads.append(
                threading.Thread(
                    target=list_backend, name=f"holdfast list {backend.name}", daemon=True
                )
            )
            threads[-1].start()
        for thread in threads:
            thread.join(LIST_LIMIT_S)
        for message in filter(None, problems):
            self._skip(message)
        return [dict(each) for each in steps_by_backend]

    def _list_steps(self, backend: StorageBackend) -> dict[int, str]:
        seals = {}
        for step in backend.steps():
            if self.before is not None and step >= self.before:
                continue
            try:
                seals[step] = backend.manifest(step).seal
            except CheckpointUnreadable as error:
                if isinstance(backend, FolderBackend):  # a committed folder had a manifest
                    seals[step], self._unreadable[step, backend.name] = "", error.why
                else:
                    self._skip(f"step {step} in {backend.name}: {error.why}")
        return seals

    # ---- fetching

    def _backend_of(self, candidate: CheckpointCandidate) -> StorageBackend:
        if candidate.backend == _MEMORY and self.memory is not None:
            return self.memory
        return self.root if candidate.backend <= _ROOT else self.copies[candidate.backend - 1]

    def _fetch_candidate(
        self, candidate: CheckpointCandidate, backend: StorageBackend, assignment: RankAssignment
    ) -> Path:
        if not candidate.seal:
            raise CheckpointUnreadable(
                backend.name, why=self._unreadable.get((candidate.step, backend.name))
            )
        if candidate.backend == _MEMORY and self.memory is not None:
            shards = peer_assembly.HeldShards(
                self.memory,
                candidate.step,
                candidate.seal,
                assignment.index,
                assignment.count,
                assignment.host,
            )
            return peer_assembly.assemble(shards, self.agreement, single_host=assignment.hosts == 1)
        if isinstance(backend, FolderBackend):
            folder = backend.folder(candidate.step)
            verify_checkpoint(folder, self.agreement, self.verified)
            return folder
        return self._fetch_remote(candidate, backend)

    def _fetch_remote(self, candidate: CheckpointCandidate, backend: StorageBackend) -> Path:
        """Fetch it into the checkpoint folder, each rank its share of the files."""
        name = self.agreement.agree("stage", b"", lambda _: self._stage(candidate.step))
        staged = self.root.path / name.decode()
        _log.info("fetching the checkpoint of step %s from %s", candidate.step, backend.name)

        def fetch() -> None:
            manifest = backend.manifest(candidate.step)
            for entry in assigned_files(manifest, self.agreement.rank, self.agreement.world).files:
                backend.fetch(manifest, entry, staged)

        try:
            run_on_all_ranks(fetch, self.agreement, self.root.path)
            self.agreement.agree("commit", b"", lambda _: self._commit(staged, candidate, backend))
        finally:
            if self.agreement.rank == 0:
                shutil.rmtree(staged, ignore_errors=True)
        return self.root.folder(candidate.step)

    def _stage(self, step: int) -> bytes:
        return self.root.create_staging_folder("fetch", step).name.encode()

    def _commit(
        self, staged: Path, candidate: CheckpointCandidate, backend: StorageBackend
    ) -> bytes:
        self.root.commit(staged, backend.manifest(candidate.step))
        return b""

    def _skip(self, message: str) -> None:
        self.skipped.append(message)
        if self.agreement.rank == 0:
            _log.warning("skipped: %s", message)


def quarantine_from(backend: StorageBackend, before: int) -> list[str]:
    """Quarantine a backend's checkpoints from step ``before`` on; one message each."""
    messages = []
    for step in backend.steps():
        if step >= before:
            try:
                backend.quarantine(step)
                messages.append(f"step {step} in {backend.name} was quarantined")
            except StorageUnusable as error:
                messages.append(
                    f"step {step} in {backend.name} could not be quarantined: {error.why}"
                )
    return messages


def _held_files(folder: Path) -> HeldFiles:
    """Return what a folder in memory holds. Raises CheckpointUnreadable."""
    manifest, held_here = (
        peer_memory.read_full_manifest(folder),
        {entry.path for entry in checkpoint_manifest.read_manifest(folder).files},
    )
    held = tuple(number for number, entry in enumerate(manifest.files) if entry.path in held_here)
    return HeldFiles(manifest.seal, len(manifest.files), held)
