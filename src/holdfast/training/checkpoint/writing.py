"""One save, from the staging folder to the committed checkpoint."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from holdfast.core import settings
from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry, folder_name
from holdfast.core.errors import HoldfastError
from holdfast.training.checkpoint import deepspeed_engines, folder_owner
from holdfast.training.checkpoint.full_disk import name_full_disk
from holdfast.training.checkpoint.job_identity import run_name
from holdfast.training.checkpoint.storage import commit
from holdfast.training.checkpoint.storage.shard_files import write_bytes, write_index, write_shards
from holdfast.training.checkpoint.store_agreement import (
    Decide,
    StoreAgreement,
    to_checkpoint_failed,
)
from holdfast.training.checkpoint.write_plan import ShardPlan

#: NFS clients may see a new folder only after this many seconds.
_FOLDER_VISIBLE_S = 10.0


@dataclass
class SaveTask:
    """One checkpoint to write.

    ``read_item`` returns the data of one planned item. A ``failure`` is reported to all ranks.
    """

    root: Path
    step: int
    values: dict[str, Any]
    agreement: StoreAgreement
    remove_leftovers: bool = False
    plan: ShardPlan | None = None
    rank_state: bytes = b""
    read_item: Callable[[Any], Any] = field(default=lambda _: None)
    failure: HoldfastError | None = None
    engines: Mapping[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    #: Set once this rank has written its files, or failed: from then on it waits for others.
    own_files_written: threading.Event = field(default_factory=threading.Event)
    _folder: Path | None = None

    def run(self) -> tuple[Path, Manifest]:
        """Write and commit the checkpoint; return its folder and manifest.

        Raises:
            CheckpointFailed: on every rank; the staging folder is removed if the disk allows it.
        """
        try:
            staged = self.agreement.agree(
                "begin", self.failure or b"", self._naming_disk(self._create_staging)
            )
            folder = self.root / staged.decode()
            written = self._write_caught(folder)
            self.own_files_written.set()
            committed = self.agreement.agree("written", written, self._naming_disk(self._commit))
        except BaseException:
            if self._folder is not None:
                commit.discard(self._folder)
            raise
        manifest = msgspec.json.decode(committed, type=Manifest)
        return self.root / folder_name(self.step), manifest

    def _naming_disk(self, decide: Decide) -> Decide:
        def decide_or_name_disk(messages: list[bytes]) -> bytes | Sequence[bytes]:
            try:
                return decide(messages)
            except Exception as error:  # reported to all ranks
                raise name_full_disk(self.agreement.subject, self.root, error) from error

        return decide_or_name_disk

    def _create_staging(self, _: list[bytes]) -> bytes:
        folder_owner.claim_folder(self.root)
        if self.remove_leftovers:
            for leftover in commit.find_leftovers(self.root):
                commit.discard(leftover)
        self._folder = commit.create_staging_folder(self.root, self.step)
        return self._folder.name.encode()

    def _write_caught(self, folder: Path) -> bytes | HoldfastError:
        """Write this rank's files; return what rank 0 needs for the manifest, or the failure."""
        try:
            return pickle.dumps(self._write(folder))
        except Exception as error:  # noqa: BLE001 - reported to all ranks
            subject = self.agreement.subject
            return to_checkpoint_failed(subject, name_full_disk(subject, self.root, error))

    def _write(self, folder: Path) -> tuple[list[ManifestEntry], list[Any]]:
        deadline = time.monotonic() + _FOLDER_VISIBLE_S
        while not folder.is_dir() and time.monotonic() < deadline:
            time.sleep(0.05)
        rank = self.agreement.rank
        entries: list[ManifestEntry] = []
        results: list[Any] = []
        if self.plan is not None and self.plan.items:
            entries, results = write_shards(folder, rank, self.plan.items, self.read_item)
        entries += deepspeed_engines.save_engines(self.engines, folder, rank, self.agreement.world)
        entries.append(write_bytes(folder / rank_state_name(rank), self.rank_state))
        return entries, results

    def _commit(self, messages: list[bytes]) -> bytes:
        rank_results = [pickle.loads(each) for each in messages]  # noqa: S301 - from ranks of this job
        assert self._folder is not None and self.plan is not None and self.plan.index is not None  # noqa: S101, PT018
        index = write_index(self._folder, self.plan.index, [results for _, results in rank_results])
        manifest = Manifest(
            step=self.step,
            began=self.began,
            at=time.time(),
            ranks=self.agreement.world,
            run=run_name(),
            generation=_generation(),
            torch=str(torch.__version__),
            files=(*(entry for entries, _ in rank_results for entry in entries), index),
            values=self.values,
        )
        commit.commit_checkpoint(self._folder, manifest)
        self._folder = None
        return msgspec.json.encode(manifest)


def rank_state_name(rank: int) -> str:
    """Return the file name of a rank's own state."""
    return f"rank-{rank:05d}.state"


def _generation() -> int:
    return int(settings.read_text("TORCHELASTIC_RESTART_COUNT") or 0)
