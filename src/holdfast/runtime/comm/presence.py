"""One call of a group, and who is in it: ranks that have waited for a while write so into the job's store."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from holdfast.report.ranksets import say_ranks
from holdfast.runtime.comm.groups import GroupState

_OWN = str(Path(__file__).resolve().parents[2])


@dataclass(slots=True)
class Call:
    """One call, in the words of an error: ``all_reduce of 467,019,003 float32``. Times are of the monotonic clock.

    ``number`` counts the calls of the group, which all its ranks make in one order. ``say_at``: when the log says next
    that it waits.
    """

    words: str
    state: GroupState
    number: int
    limit_s: float
    until: float
    say_at: float
    #: Bytes that a rank gives, or gets if that is more; 0 where that tells nothing of the link.
    nbytes: int = 0
    announced: bool = False
    #: The user's line, once it was looked for; threads that ask the store cannot see it.
    place: str = ""

    @property
    def waited_s(self) -> float:
        """Seconds since it was begun."""
        return self.limit_s - (self.until - time.monotonic())

    @property
    def site(self) -> str:
        """The user's line that made the call."""
        self.place = self.place or site()
        return self.place

    def __str__(self) -> str:
        return f"{self.words} (call {self.number} in group {self.state.name!r})"

    def key(self, what: object) -> str:
        """A key of this call's own in the group's store."""
        return f"{self.number}/{what}"


def announce(call: Call) -> None:
    """Write down that this rank is in the call, what it calls, and where; once."""
    if not call.announced:
        call.state.store.set(call.key(dist.get_rank()), json.dumps({"words": call.words, "site": call.site}))
        call.announced = True


def missing(call: Call) -> tuple[int, ...]:
    """The members that have not written that they are in the call."""
    store = call.state.store
    return tuple(rank for rank in call.state.ranks if not store.check([call.key(rank)]))


def told(call: Call) -> dict[int, dict[str, str]]:
    """What the ranks have written: by rank, ``words`` and ``site``."""
    store = call.state.store
    here = [rank for rank in call.state.ranks if store.check([call.key(rank)])]
    return {rank: json.loads(store.get(call.key(rank))) for rank in here}


def say_missing(ranks: tuple[int, ...]) -> str:
    """``rank 3``; ``nobody`` where none is missing."""
    return say_ranks(ranks) if ranks else "nobody"


def site() -> str:
    """The line of the user's that made the call: the innermost frame outside of holdfast."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads the sources of all frames
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
