"""One save, from the staged folder to the declared checkpoint; in the caller's thread or beside it."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from holdfast import settings
from holdfast.errors import HoldfastError
from holdfast.manifest import Entry, Manifest, name_of
from holdfast.runtime.checkpoint import commit, engines
from holdfast.runtime.checkpoint.plan import Plan
from holdfast.runtime.checkpoint.rounds import Round, as_failure
from holdfast.runtime.checkpoint.storage import write_bytes, write_index, write_pieces

#: A new folder may take this long to be seen on another host (NFS keeps what it knows of a folder for some seconds).
_SEEN_S = 10.0


@dataclass
class Work:
    """What is to be written; ``piece`` gives the data of one piece of the plan. A ``failure`` is told to all ranks."""

    root: Path
    step: int
    values: dict[str, Any]
    around: Round
    clear: bool = False
    plan: Plan | None = None
    own: bytes = b""
    piece: Callable[[Any], Any] = field(default=lambda _: None)
    failure: HoldfastError | None = None
    engines: Mapping[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    #: Set once this rank has written its part, or failed to: from then on it waits for others.
    own_done: threading.Event = field(default_factory=threading.Event)
    _folder: Path | None = None

    def carry_out(self) -> tuple[Path, Manifest]:
        """Write everything; the checkpoint and its manifest once it is declared.

        Raises:
            CheckpointFailed: on every rank; nothing of it is left then, where the disk lets it be removed.
        """
        try:
            staged = self.around.agree("begin", self.failure or b"", self._begin)
            folder = self.root / staged.decode()
            written = self._written(folder)
            self.own_done.set()
            found = self.around.agree("written", written, self._declared)
        except BaseException:
            if self._folder is not None:
                commit.discard(self._folder)
            raise
        whole = msgspec.json.decode(found, type=Manifest)
        return self.root / name_of(self.step), whole

    def _begin(self, _: list[bytes]) -> bytes:
        if self.clear:
            for left in commit.leftovers(self.root):
                commit.discard(left)
        self._folder = commit.stage(self.root, self.step)
        return self._folder.name.encode()

    def _written(self, folder: Path) -> bytes | HoldfastError:
        """Write this rank's files; what rank 0 needs to know of them, or why it could not be."""
        try:
            return pickle.dumps(self._write(folder))
        except Exception as error:  # noqa: BLE001 - all ranks are told
            return as_failure(self.around.subject, error)

    def _write(self, folder: Path) -> tuple[list[Entry], list[Any]]:
        until = time.monotonic() + _SEEN_S
        while not folder.is_dir() and time.monotonic() < until:
            time.sleep(0.05)
        rank = self.around.rank
        entries: list[Entry] = []
        results: list[Any] = []
        if self.plan is not None and self.plan.items:
            entries, results = write_pieces(folder, rank, self.plan.items, self.piece)
        entries += engines.save(self.engines, folder, rank, self.around.world)
        entries.append(write_bytes(folder / name_of_rank(rank), self.own))
        return entries, results

    def _declared(self, given: list[bytes]) -> bytes:
        parts = [pickle.loads(each) for each in given]  # noqa: S301 - of this job's own ranks
        assert self._folder is not None and self.plan is not None and self.plan.index is not None  # noqa: S101, PT018
        index = write_index(self._folder, self.plan.index, [results for _, results in parts])
        found = Manifest(
            step=self.step,
            began=self.began,
            at=time.time(),
            ranks=self.around.world,
            run=_run(),
            generation=_generation(),
            torch=str(torch.__version__),
            files=(*(entry for entries, _ in parts for entry in entries), index),
            values=self.values,
        )
        commit.declare(self._folder, found)
        self._folder = None
        return msgspec.json.encode(found)


def name_of_rank(rank: int) -> str:
    """The name of the file that holds what a rank alone has."""
    return f"rank-{rank:05d}.state"


def _run() -> str:
    box = settings.path("HOLDFAST_BOX")
    return box.parent.name if box else ""


def _generation() -> int:
    return int(settings.text("TORCHELASTIC_RESTART_COUNT") or 0)
