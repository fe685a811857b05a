"""Joint decisions of ranks through the job's store, without a communicator.

A decision is a key that is written once: ``compare_set`` accepts the first proposed value, and all
ranks, including late ones, read that one. So all ranks act alike, whatever failed before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed.distributed_c10d import Store

from holdfast.training.store_wait import wait_until

#: Longest pause between two polls of the store, in seconds.
_MAX_PAUSE_S = 0.25


@dataclass(frozen=True)
class DecisionTable:
    """``ranks`` send messages, and the first of them decides; any rank of the job may read.

    Each key is used once.
    """

    store: Store
    ranks: tuple[int, ...]
    rank: int

    def find_decision(self, key: str) -> str | None:
        """Return the decision; None while there is none."""
        return self.store.get(key).decode() if self.store.check([key]) else None

    def propose(self, key: str, value: str) -> str:
        """Propose ``value``, and return the decision: the value that was proposed first."""
        return str(self.store.compare_set(key, "", value).decode())

    def agree(
        self,
        key: str,
        message: str | None,
        decide: Callable[[dict[int, str]], str],
        deadline: float,
        grace_s: float,
    ) -> str:
        """Send this rank's ``message``, and return the decision over those of all ranks.

        The first rank decides once all messages have arrived, or at the deadline over those that
        have. If it does not do so within ``grace_s`` more seconds, another rank does.

        Args:
            key: names the decision.
            message: of this rank; None only reads.
            decide: returns the decision over the messages that arrived, by rank.
            deadline: when to stop waiting for messages, on the monotonic clock.
            grace_s: see above.

        Returns:
            The decision, equal on every rank.
        """
        if message is not None:
            self.store.set(_message_key(key, self.rank), message)
        decides = self.rank == self.ranks[0]
        keys = [_message_key(key, rank) for rank in self.ranks]
        decision: str | None = None

        def is_over() -> bool:
            nonlocal decision
            decision = self.find_decision(key)
            return decision is not None or (decides and self.store.check(keys))

        end = deadline if decides else deadline + grace_s
        wait_until(is_over, end - time.monotonic(), max_pause_s=_MAX_PAUSE_S)
        if decision is not None:
            return decision
        messages = {
            rank: self.store.get(name).decode()
            for rank, name in zip(self.ranks, keys, strict=True)
            if self.store.check([name])
        }
        return self.propose(key, decide(messages))


def _message_key(key: str, rank: int) -> str:
    return f"{key}/message/{rank}"
