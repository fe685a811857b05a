"""What becomes of checkpoints once they are declared: copied, in the end removed, and found again.

One object a process knows all places: the folder of checkpoints, copies that all ranks share (rank 0 fills them), and
the memory of each host (the first rank of each host fills it), which survives the ranks and not the run.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from holdfast import manifest, settings
from holdfast.errors import BadValue, PlaceUnusable
from holdfast.manifest import Manifest
from holdfast.runtime import recorder
from holdfast.runtime.checkpoint import emergency, pieces
from holdfast.runtime.checkpoint.copies import Copies, memory_of
from holdfast.runtime.checkpoint.places import Folder, Place, place_of
from holdfast.runtime.checkpoint.resume import Search, set_aside
from holdfast.runtime.checkpoint.retention import Keep, prune
from holdfast.runtime.checkpoint.rounds import Round

MEMORY = "memory"
_log = logging.getLogger("holdfast.checkpoint")


class Keeper:
    """Keeps the checkpoints in ``root``, with ``copies`` in other places: folders, URLs, or ``"memory"``.

    Raises:
        BadValue: a place that cannot be, or is named twice.
        MissingExtra: a package that a URL needs is not installed.
    """

    def __init__(self, root: Path, copies: Sequence[str | os.PathLike[str]] = (), keep: Keep | None = None) -> None:
        if isinstance(copies, str):
            raise BadValue("copies", why=f"{copies!r} is one place", next_step=f"write it as copies=[{copies!r}]")
        self.root = Folder(root)
        self._keep = keep or Keep()
        self._keep.check()
        memory = memory_of(settings.path("HOLDFAST_BOX")) if MEMORY in copies else None
        if MEMORY in copies and memory is None and _is_first():
            _log.warning("no copies in memory: they belong to a run of `holdfast run`, which removes them at its end")
        self._shared = Copies(self.root, list(_places(self.root, copies)), lambda _: self._keep)
        self._memory = Copies(self.root, [memory] if memory else [], lambda _: Keep(last=1))
        self._reading: set[int] = set()
        self._pruning = threading.Lock()
        self._ended = False
        _at_end(self.finish)

    def declared(self, folder: Path, found: Manifest) -> None:
        """Have a new checkpoint copied, and remove what need not stay; returns at once. Called on every rank."""
        del folder
        emergency.expect(found.at - found.began)
        if _is_first_of_host():
            self._memory.offer(found.step)
        if _is_first():
            self._shared.offer(found.step)
            threading.Thread(target=self._prune, name="holdfast retention", daemon=True).start()

    def newest(self, around: Round, before: int | None = None) -> tuple[Path | None, tuple[str, ...]]:
        """The newest valid checkpoint over all places (of a step below ``before``), and what was passed over.

        This rank's folder; what lies afar was brought into the folder of checkpoints. With ``before``, no later search
        finds those from there on: they are set aside.

        Raises:
            CheckpointUnreadable: there are some, and all are damaged.
            CheckpointFailed: a rank did not come.
        """
        places = self._shared.places
        memory = next((place for place in self._memory.places if isinstance(place, Folder)), None)
        search = Search(self.root, places, memory, around, before)
        chosen = search.newest()
        if chosen is not None:
            found = manifest.read(chosen)
            emergency.expect(found.at - found.began)
        if before is not None:
            aside = [memory] if memory is not None and _is_first_of_host() else []
            for place in [*aside, *([self.root, *places] if _is_first() else [])]:
                with suppress(PlaceUnusable):
                    for sentence in set_aside(place, before):
                        _log.warning("%s", sentence)
            around.agree("set aside", b"")
        return chosen, tuple(search.skipped)

    @contextmanager
    def reading(self, step: int | None) -> Iterator[None]:
        """While the block runs, the checkpoint of this step stays."""
        self._reading = {step} if step is not None else set()
        try:
            yield
        finally:
            self._reading = set()
            for memory in self._memory.places if _is_first_of_host() else ():
                if isinstance(memory, Folder):
                    pieces.clear(memory)

    def finish(self, limit_s: float | None = None) -> None:
        """Copy what waits to be copied, within a limit (HOLDFAST_CHECKPOINT_S), and say what could not be."""
        if self._ended:
            return
        self._ended = True
        left_s = emergency.left_s()
        limit_s = settings.seconds("HOLDFAST_CHECKPOINT_S") if limit_s is None else limit_s
        limit_s = limit_s if left_s is None else min(limit_s, max(left_s - 2.0, 0.0))
        with recorder.phase("checkpoint", limit_s + 5.0):  # the script is over: who waits now is not stuck
            for sentence in self._shared.finish(limit_s):
                _log.warning("%s", sentence)
            with self._pruning:
                pass  # a removal that has begun

    def _prune(self) -> None:
        with self._pruning:
            busy = self._shared.busy() | self._memory.busy() | self._reading
            try:
                prune(self.root, self._keep, busy)
            except PlaceUnusable as error:
                _log.warning("%s", error)


def _places(root: Folder, copies: Iterable[str | os.PathLike[str]]) -> Iterator[Place]:
    known = {root.name}
    for each in copies:
        if each == MEMORY:
            continue
        place = place_of(each)
        if place.name in known:
            raise BadValue("copies", why=f"{place.name} is named twice, or is the folder of checkpoints itself")
        known.add(place.name)
        yield place


def _is_first() -> bool:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return not settings.read("RANK").value


def _is_first_of_host() -> bool:
    return not settings.read("LOCAL_RANK").value


def _at_end(call: Any) -> None:
    """Call when the script is over; atexit comes too late, as by then Python lets nobody hand work to threads."""
    register = getattr(threading, "_register_atexit", None)  # Python 3.9 to 3.14; concurrent.futures uses it
    if register is not None:
        register(call)
    else:
        import atexit  # noqa: PLC0415 - the fallback

        atexit.register(call)
