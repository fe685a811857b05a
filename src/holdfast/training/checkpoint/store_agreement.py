"""How ranks agree on one save or load: through the job's store, with one outcome for all.

No process group is used: a background collective would appear in every rank's trace among those of
training, and one that a dead rank never joins would break its group. A missing store key fails only
the save.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast import recorder
from holdfast.core.errors import CheckpointFailed, HoldfastError
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.text import format_duration
from holdfast.training import in_process_restart
from holdfast.training.collectives.groups.group_info import epoch, generation, job_store
from holdfast.training.store_wait import wait_until

#: Maximum wait after the script has ended, in seconds: the other ranks may be gone.
_EXIT_LIMIT_S = 60.0
_OK, _FAILED = b"+", b"-"

#: Maps the messages of all ranks to one answer for all, or a list with one per rank.
Decide = Callable[[list[bytes]], bytes | Sequence[bytes]]


class StoreAgreement:
    """All ranks of the job during one save or load.

    ``subject`` names it in errors. ``name`` is unique, and the same on all ranks.
    """

    def __init__(self, name: str, subject: str, limit_s: float) -> None:
        self.subject = subject
        self.limit_s = limit_s
        is_distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if is_distributed else 0
        self.world = dist.get_world_size() if is_distributed else 1
        self._turn = 0
        self._generation = generation()
        self._store: Store | None = None
        if self.world > 1:
            self._store = PrefixStore(f"holdfast/checkpoint/{epoch()}/{name}", job_store())

    def agree(
        self, phase: str, own_message: bytes | HoldfastError, decide: Decide = lambda _: b""
    ) -> bytes:
        """Exchange messages: rank 0 decides, and each rank gets its answer, or all the same error.

        Raises:
            CheckpointFailed: a rank sent an error, ``decide`` raised, or a rank timed out.
        """
        if self.world > 1 and threading.current_thread() is threading.main_thread():
            # Recorded, so that the watcher can name a rank that is missing here.
            with recorder.record_store_call("checkpoint"):
                return self._exchange(phase, own_message, decide)
        return self._exchange(phase, own_message, decide)

    def _exchange(self, phase: str, own_message: bytes | HoldfastError, decide: Decide) -> bytes:
        self._turn += 1
        message = (
            _FAILED + _reason_of(own_message).encode()
            if isinstance(own_message, HoldfastError)
            else _OK + own_message
        )
        if self.rank != 0:
            self._query(
                lambda store: store.set(
                    f"{self._turn}/{self.rank}", phase.encode() + b":" + message
                )
            )
            return self._unwrap(self._take([f"{self._turn}/for/{self.rank}"])[0])
        answers: Sequence[bytes]
        try:
            messages = self._take([f"{self._turn}/{rank}" for rank in range(1, self.world)])
            decided = decide(self._unwrap_all([message, *self._check_phase(phase, messages)]))
            answers = [
                _OK + each
                for each in ([decided] * self.world if isinstance(decided, bytes) else decided)
            ]
        except Exception as error:  # whatever it is, the other ranks must not be left waiting
            failure = to_checkpoint_failed(self.subject, error)
            self._answer([_FAILED + failure.why.encode()] * self.world)
            raise failure from error
        self._answer(answers)
        return answers[0][1:]

    def _answer(self, answers: Sequence[bytes]) -> None:
        for rank in range(1, self.world):
            self._query(
                lambda store, rank=rank: store.set(f"{self._turn}/for/{rank}", answers[rank])
            )

    def _check_phase(self, phase: str, messages: list[bytes]) -> list[bytes]:
        """Return the messages, after checking that all ranks are in the same phase."""
        parts = [data.partition(b":") for data in messages]
        mismatched = [
            rank
            for rank, (phase_name, _, data) in enumerate(parts, start=1)
            # A rank's own error explains more than its phase.
            if phase_name != phase.encode() and data[:1] == _OK
        ]
        if mismatched:
            why = (
                f"{describe_ranks(mismatched)}: in phase "
                f"{parts[mismatched[0] - 1][0].decode()!r}, while rank 0 is in {phase!r}"
            )
            raise CheckpointFailed(self.subject, why=why)
        return [data for _, _, data in parts]

    def _unwrap_all(self, messages: list[bytes]) -> list[bytes]:
        failures = {
            rank: data[1:].decode(errors="replace")
            for rank, data in enumerate(messages)
            if data[:1] == _FAILED
        }
        if failures:
            first = next(iter(failures.values()))
            ranks = [rank for rank, why in failures.items() if why == first]
            raise CheckpointFailed(
                self.subject, why=first if self.world == 1 else f"{describe_ranks(ranks)}: {first}"
            )
        return [data[1:] for data in messages]

    def _unwrap(self, answer: bytes) -> bytes:
        if answer[:1] == _FAILED:
            raise CheckpointFailed(self.subject, why=answer[1:].decode(errors="replace"))
        return answer[1:]

    def _take(self, keys: list[str]) -> list[bytes]:
        """Wait until all keys are set; return their values and delete them."""
        if not keys:
            return []
        arrived = wait_until(
            lambda: self._query(lambda store: store.check(keys)),
            self._current_limit_s,
            check_abort=self._check_peers,
        )
        if not arrived:
            absent = [
                key for key in keys if not self._query(lambda store, key=key: store.check([key]))
            ]
            ranks = [int(key.rpartition("/")[2]) for key in absent] if self.rank == 0 else [0]
            limit = format_duration(self._current_limit_s())
            why = f"no response from {describe_ranks(ranks)} within {limit}"
            raise CheckpointFailed(self.subject, why=why)
        messages = [bytes(self._query(lambda store, key=key: store.get(key))) for key in keys]
        for key in keys:
            self._query(lambda store, key=key: store.delete_key(key))
        return messages

    def _current_limit_s(self) -> float:
        exiting = not threading.main_thread().is_alive()
        return min(self.limit_s, _EXIT_LIMIT_S) if exiting else self.limit_s

    def _check_peers(self) -> None:
        """Raise CheckpointFailed if a rank was replaced: the wait would never end."""
        if self._generation != generation() or in_process_restart.has_restart_order():
            raise CheckpointFailed(self.subject, why=in_process_restart.PEER_DIED)

    def _query(self, operation: Callable[..., Any]) -> Any:
        if self._store is None:
            return None
        try:
            return operation(self._store)
        except RuntimeError as error:  # DistStoreError and DistNetworkError are RuntimeErrors
            why = (
                "the job's store does not respond: "
                f"{str(error).strip().partition(chr(10))[0][:200]}"
            )
            raise CheckpointFailed(self.subject, why=why) from error


def to_checkpoint_failed(subject: str, error: BaseException) -> CheckpointFailed:
    """Convert any error to the one-sentence error that is reported to all ranks."""
    if isinstance(error, CheckpointFailed):
        return error
    if isinstance(error, OSError):
        why = (
            f"{error.filename}: {error.strerror}"
            if error.filename
            else error.strerror or str(error)
        )
    elif isinstance(error, HoldfastError):
        why = str(error)
    else:
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:500]}"
    failure = CheckpointFailed(subject, why=why)
    failure.__cause__ = error
    return failure


def _reason_of(error: HoldfastError) -> str:
    return error.why or str(error)
