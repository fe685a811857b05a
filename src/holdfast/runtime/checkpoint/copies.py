"""Copies finished checkpoints to other places, beside training: a thread a place, so that none waits for another.

A place that cannot be reached costs one line in the log, and is tried again, later and later; what comes meanwhile
takes the place of what has not been copied yet: the newest checkpoint is worth the most.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast import manifest, settings
from holdfast.errors import CheckpointUnreadable, HoldfastError, PlaceUnusable
from holdfast.report.text import duration, plural
from holdfast.runtime import recorder
from holdfast.runtime.checkpoint.neighbours import Memory
from holdfast.runtime.checkpoint.places import Folder, Place
from holdfast.runtime.checkpoint.retention import Keep, prune

#: After a failure; doubled from one to the next.
RETRY_S, RETRY_MOST_S = 5.0, 300.0
#: A copy that takes so long is spoken of once, as a thread inside of a dead mount says nothing.
SLOW_S = 900.0
_log = logging.getLogger("holdfast.checkpoint")


class Copies:
    """Copies of the checkpoints in ``root``, one lane for each of ``places``; ``keep`` says what stays in each."""

    def __init__(self, root: Folder, places: Sequence[Place], keep: Callable[[Place], Keep]) -> None:
        self._lanes = [_Lane(root, place, keep(place)) for place in places]

    @property
    def places(self) -> list[Place]:
        """Where the copies lie."""
        return [lane.place for lane in self._lanes]

    def busy(self) -> frozenset[int]:
        """Steps that are being copied, and must stay where they are."""
        return frozenset(lane.copying for lane in self._lanes if lane.copying is not None)

    def offer(self, step: int) -> None:
        """Have the checkpoint of a step copied everywhere. Returns at once."""
        for lane in self._lanes:
            lane.offer(step)

    def finish(self, limit_s: float) -> list[str]:
        """Copy what waits, for no longer than this; one sentence for each place that did not get all. Never raises."""
        until = time.monotonic() + limit_s
        for lane in self._lanes:
            lane.end()
        return [why for lane in self._lanes if (why := lane.join(until))]


class _Lane:
    """One place, what is to be copied there, and the thread that does it."""

    def __init__(self, root: Folder, place: Place, keep: Keep) -> None:
        self.place, self._root, self._keep = place, root, keep
        self._waiting: list[int] = []
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = self._told_slow = False
        self._pause_s = 0.0
        self._since = 0.0
        #: The step that is being copied now.
        self.copying: int | None = None
        #: Why the last attempt failed; empty where it did not.
        self.trouble = ""

    def offer(self, step: int) -> None:
        with self._news:
            self._waiting = [*(each for each in self._waiting if each != step), step]
            self._news.notify()
            self._mind_time()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"holdfast copy {self.place.name}", daemon=True)
                self._thread.start()

    def end(self) -> None:
        with self._news:
            self._ending = True
            self._news.notify()

    def join(self, until: float) -> str:
        if self._thread is None:
            return ""
        self._thread.join(max(until - time.monotonic(), 0.0))
        with self._news:
            left = {*self._waiting, *([] if self.copying is None else [self.copying])}
            left = {step for step in left if self._root.folder(step).exists()}
            if not left:
                return ""
            what = f"{plural(len(left), 'checkpoint')} (the newest of step {max(left)}) not copied to {self.place.name}"
            return f"{what}: {self.trouble}" if self.trouble else what

    def _work(self) -> None:
        while (step := self._next()) is not None:
            try:
                done = self._copy(step)
            except Exception as error:  # noqa: BLE001 - a place may do anything; training goes on
                done = self._failed(step, error)
            with self._news:
                self.copying = None
                if not done and step not in self._waiting:
                    self._waiting.insert(0, step)

    def _next(self) -> int | None:
        """The newest step that waits, once the pause after a failure is over; None at the end."""
        with self._news:
            due = time.monotonic() + self._pause_s
            while not self._waiting or time.monotonic() < due:
                if self._ending and (not self._waiting or self._pause_s):
                    return None  # at the end nothing is tried again
                left = due - time.monotonic()
                self._news.wait(left if self._waiting and left > 0 else None)
            self.copying, self._since, self._told_slow = self._waiting.pop(), time.monotonic(), False
            return self.copying

    def _copy(self, step: int) -> bool:
        source = self._root.folder(step)
        try:
            what = manifest.read(source)
        except CheckpointUnreadable:
            return True  # it was removed meanwhile, because newer ones stay
        try:
            self.place.put(source, what)
        except CheckpointUnreadable as error:
            _log.warning("the checkpoint of step %s is not copied to %s, because it is damaged: %s",
                         step, self.place.name, error)  # fmt: skip
            return True
        if self.trouble:
            _log.warning("%s takes copies of checkpoints again: step %s", self.place.name, step)
        self.trouble, self._pause_s = "", 0.0
        prune(self.place, self._keep)
        return True

    def _failed(self, step: int, error: Exception) -> bool:
        if not self._root.folder(step).exists():
            return True  # removed while it was read
        why = error.why if isinstance(error, PlaceUnusable) else str(error)
        if not isinstance(error, HoldfastError):
            why = f"{type(error).__name__}: {why}"
        self._pause_s = min(2 * self._pause_s, RETRY_MOST_S) or RETRY_S
        if not self.trouble:  # once an outage
            text = (f"step {step} could not be copied to {self.place.name}: {why}; training goes on, and it is tried "
                    f"again in {duration(self._pause_s)}")  # fmt: skip
            _log.warning("%s", text)
            recorder.warn(f"the copy of checkpoints to {self.place.name}", text)
        self.trouble = why or type(error).__name__
        return False

    def _mind_time(self) -> None:
        if self.copying is not None and not self._told_slow and time.monotonic() - self._since > SLOW_S:
            self._told_slow = True
            _log.warning("the copy of step %s to %s takes longer than %s", self.copying, self.place.name,
                         duration(SLOW_S))  # fmt: skip


def memory_of(box: Path | None) -> Memory | None:
    """The place in this host's memory that the run removes at its end; None without ``holdfast run``."""
    if box is None:
        return None
    node, nodes = (settings.text(name) for name in ("GROUP_RANK", "GROUP_WORLD_SIZE"))
    return Memory(box.parent / "checkpoints", int(node or 0), int(nodes or 1))
