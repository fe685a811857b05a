"""The table at which ranks decide: a part of the job's store, of which no communicator is part.

A decision is a key that is written once: ``compare_set`` takes the first value that is proposed, and everybody, also
who comes late, reads that one. So all ranks act alike, whatever failed on the way to the decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed.distributed_c10d import Store

#: Between two looks: short at first, so that ranks that come together do not wait for each other's sleep.
_SHORTEST_S, _LONGEST_S = 0.001, 0.25


@dataclass(frozen=True)
class Table:
    """``ranks`` take part, the first of them counts the voices; any rank of the job may listen. Keys are used once."""

    store: Store
    ranks: tuple[int, ...]
    rank: int

    def decision(self, key: str) -> str | None:
        """What was decided; None while nothing is."""
        return self.store.get(key).decode() if self.store.check([key]) else None

    def decide(self, key: str, value: str) -> str:
        """Propose ``value``, and hear what is decided, which is what was proposed first."""
        return str(self.store.compare_set(key, "", value).decode())

    def settle(
        self, key: str, voice: str | None, count: Callable[[dict[int, str]], str], until: float, patience_s: float
    ) -> str:
        """Give one's ``voice`` (None: only listen), and hear what all of them come to.

        The first rank counts when all have spoken, or at ``until`` (monotonic clock) those who have. Where that rank
        does not do it within ``patience_s`` more, another does.

        Args:
            key: of this decision.
            voice: what this rank has to say.
            count: makes the decision of the voices that were heard, by rank.
            until: until when is waited for voices.
            patience_s: see above.

        Returns:
            The decision, the same on every rank.
        """
        if voice is not None:
            self.store.set(_of(key, self.rank), voice)
        counts = self.rank == self.ranks[0]
        end = until if counts else until + patience_s
        keys = [_of(key, rank) for rank in self.ranks]
        pause = _SHORTEST_S
        while True:
            decided = self.decision(key)
            if decided is not None:
                return decided
            left = end - time.monotonic()
            if left <= 0 or (counts and self.store.check(keys)):
                return self.decide(key, count(self._heard(key)))
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_S)

    def _heard(self, key: str) -> dict[int, str]:
        keys = {rank: _of(key, rank) for rank in self.ranks}
        return {rank: self.store.get(name).decode() for rank, name in keys.items() if self.store.check([name])}


def _of(key: str, rank: int) -> str:
    return f"{key}/voice/{rank}"
