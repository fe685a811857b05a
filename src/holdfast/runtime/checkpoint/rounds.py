"""How ranks agree on one save or load: in the job's store, within a limit, and all of them alike.

No process group is used. A collective in the background would stand in every rank's record beside those of training,
and one that a dead rank never joins would break its group; a key that nobody sets costs the save alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast.errors import CheckpointFailed, HoldfastError
from holdfast.report.ranksets import say_ranks
from holdfast.report.text import duration
from holdfast.runtime import recorder, surviving
from holdfast.runtime.comm.groups import epoch, generation, job_store

#: Between two looks at the store.
_SHORTEST_S, _LONGEST_S = 0.001, 0.05
#: A process whose script is over waits for others this long at most: they may be gone for good.
_AT_THE_END_S = 60.0
_GOOD, _BAD = b"+", b"-"

#: From what every rank gave: one answer for all, or a list with one for each.
Decide = Callable[[list[bytes]], bytes | Sequence[bytes]]


class Round:
    """All ranks of the job around one save or load (``subject`` in errors). ``name`` is used once, by all alike."""

    def __init__(self, name: str, subject: str, limit_s: float) -> None:
        self.subject = subject
        self.limit_s = limit_s
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.world = dist.get_world_size() if together else 1
        self._turn = 0
        self._generation = generation()
        self._store: Store | None = None
        if self.world > 1:
            self._store = PrefixStore(f"holdfast/checkpoint/{epoch()}/{name}", job_store())

    def agree(self, what: str, own: bytes | HoldfastError, decide: Decide = lambda _: b"") -> bytes:
        """Rank 0 decides over what all ranks gave, and each gets its answer, or all get the same error.

        Raises:
            CheckpointFailed: a rank gave an error, or ``decide`` raised one, or a rank did not come within the limit.
        """
        if self.world > 1 and threading.current_thread() is threading.main_thread():
            with recorder.store_call("checkpoint"):  # whoever does not come is seen to be missing
                return self._agreed(what, own, decide)
        return self._agreed(what, own, decide)

    def _agreed(self, what: str, own: bytes | HoldfastError, decide: Decide) -> bytes:
        self._turn += 1
        given = _BAD + _why(own).encode() if isinstance(own, HoldfastError) else _GOOD + own
        if self.rank != 0:
            self._ask(lambda store: store.set(f"{self._turn}/{self.rank}", what.encode() + b":" + given))
            return self._good(self._taken([f"{self._turn}/for/{self.rank}"])[0])
        answers: Sequence[bytes]
        try:
            found = self._taken([f"{self._turn}/{rank}" for rank in range(1, self.world)])
            decided = decide(self._all_good([given, *self._all_at(what, found)]))
            answers = [_GOOD + each for each in ([decided] * self.world if isinstance(decided, bytes) else decided)]
        except Exception as error:  # whatever it is, nobody may be left to wait
            failure = as_failure(self.subject, error)
            self._answer([_BAD + failure.why.encode()] * self.world)
            raise failure from error
        self._answer(answers)
        return answers[0][1:]

    def _answer(self, answers: Sequence[bytes]) -> None:
        for rank in range(1, self.world):
            self._ask(lambda store, rank=rank: store.set(f"{self._turn}/for/{rank}", answers[rank]))

    def _all_at(self, what: str, found: list[bytes]) -> list[bytes]:
        """What the ranks gave, which is about ``what`` on all of them: one may be about to plan, and others not."""
        parts = [data.partition(b":") for data in found]
        odd = [
            rank
            for rank, (place, _, data) in enumerate(parts, start=1)
            if place != what.encode() and data[:1] == _GOOD  # what went wrong on a rank says more than where it is
        ]
        if odd:
            why = f"{say_ranks(odd)}: at {parts[odd[0] - 1][0].decode()!r}, where rank 0 is at {what!r}"
            raise CheckpointFailed(self.subject, why=why)
        return [data for _, _, data in parts]

    def _all_good(self, found: list[bytes]) -> list[bytes]:
        bad = {rank: data[1:].decode(errors="replace") for rank, data in enumerate(found) if data[:1] == _BAD}
        if bad:
            first = next(iter(bad.values()))
            ranks = [rank for rank, why in bad.items() if why == first]
            raise CheckpointFailed(self.subject, why=first if self.world == 1 else f"{say_ranks(ranks)}: {first}")
        return [data[1:] for data in found]

    def _good(self, told: bytes) -> bytes:
        if told[:1] == _BAD:
            raise CheckpointFailed(self.subject, why=told[1:].decode(errors="replace"))
        return told[1:]

    def _taken(self, keys: list[str]) -> list[bytes]:
        """What stands under the keys once all are set; they are deleted."""
        if not keys:
            return []
        began, pause = time.monotonic(), _SHORTEST_S
        while not self._ask(lambda store: store.check(keys)):
            if self._generation != generation() or surviving.is_told():
                raise CheckpointFailed(self.subject, why=surviving.PEER_DIED)
            limit_s = self.limit_s if threading.main_thread().is_alive() else min(self.limit_s, _AT_THE_END_S)
            if time.monotonic() - began > limit_s:
                absent = [key for key in keys if not self._ask(lambda store, key=key: store.check([key]))]
                ranks = [int(key.rpartition("/")[2]) for key in absent] if self.rank == 0 else [0]
                why = f"nothing was heard of {say_ranks(ranks)} for {duration(limit_s)}"
                raise CheckpointFailed(self.subject, why=why)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
        found = [bytes(self._ask(lambda store, key=key: store.get(key))) for key in keys]
        for key in keys:
            self._ask(lambda store, key=key: store.delete_key(key))
        return found

    def _ask(self, question: Callable[..., Any]) -> Any:
        if self._store is None:
            return None
        try:
            return question(self._store)
        except RuntimeError as error:  # DistStoreError and DistNetworkError are RuntimeErrors
            why = f"the job's store does not answer: {str(error).strip().partition(chr(10))[0][:200]}"
            raise CheckpointFailed(self.subject, why=why) from error


def as_failure(subject: str, error: BaseException) -> CheckpointFailed:
    """Any error as the one that all ranks are told, in one sentence."""
    if isinstance(error, CheckpointFailed):
        return error
    if isinstance(error, OSError):
        why = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    elif isinstance(error, HoldfastError):
        why = str(error)
    else:
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:500]}"
    failure = CheckpointFailed(subject, why=why)
    failure.__cause__ = error
    return failure


def _why(error: HoldfastError) -> str:
    return error.why or str(error)
