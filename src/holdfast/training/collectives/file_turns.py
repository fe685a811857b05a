"""Work with files on many ranks: in turns, or in the background, with a joint end.

A barrier around files has two problems: all ranks read a slow disk at once, so that each takes as
long as all together, and a rank that fails leaves the others waiting. :func:`staggered` admits a
few ranks at a time, and :func:`in_background` runs the work in a thread; both end on all ranks
together, with the error of the rank that failed. Only the job's store is used.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from holdfast import recorder
from holdfast.core.errors import CollectiveFailed, CollectiveTimeout, InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.text import format_duration
from holdfast.training.collectives import timeouts
from holdfast.training.collectives.call_with_timeout import CallTimedOut, call_with_timeout
from holdfast.training.collectives.groups.arrivals import grace_of, ranks_without_key
from holdfast.training.collectives.groups.group_info import runs_alone, state_of
from holdfast.training.collectives.groups.rank_hosts import host_layout
from holdfast.training.store_wait import wait_until

_T = TypeVar("_T")
#: Longest pause between two polls of the store, in seconds.
_MAX_PAUSE_S = 0.25
#: Uses of each epoch and name.
_counts: dict[tuple[int, str], int] = {}


class RankReports:
    """Reports of all ranks, in the store, that their part of ``subject`` has ended, or failed.

    Waits have a timeout since the latest report, so that slow but steady work continues.
    """

    def __init__(self, subject: str, timeout: float | str | None) -> None:
        state = state_of(None, broken_too=True)
        self.subject, self.ranks = subject, state.ranks
        self._limit_s = timeouts.choose_limit(state, 0, timeout=timeout)
        count = _counts[state.epoch, subject] = _counts.get((state.epoch, subject), 0) + 1
        self._store = PrefixStore(f"files/{subject}/{count}", state.store)

    @property
    def most_s(self) -> float:
        """Return the longest time that all ranks may take, one after the other."""
        return self._limit_s * (len(self.ranks) + 1)

    def report(self, error: str = "") -> None:
        """Publish that this rank has ended its part, or why it failed."""
        self._store.set(str(dist.get_rank()), error)

    def wait_for(self, ranks: Sequence[int]) -> None:
        """Wait until these ranks have reported.

        Raises:
            CollectiveTimeout: none of them reported within the timeout; on all ranks.
        """
        try:
            outcome = call_with_timeout(
                lambda: self._poll(ranks), self.most_s + grace_of(self._limit_s)
            )
        except CallTimedOut:
            why = f"the job's store did not answer within {format_duration(self._limit_s)}"
            raise CollectiveTimeout(self.subject, why=why) from None
        if outcome is not None:
            raise CollectiveTimeout(self.subject, why=outcome["why"], missing=outcome["missing"])

    def finish(self) -> None:
        """Wait for all ranks.

        Raises:
            CollectiveTimeout: as :meth:`wait_for`.
            CollectiveFailed: a rank failed; on all other ranks, with its error.
        """
        self.wait_for(self.ranks)
        keys = [str(rank) for rank in self.ranks]
        errors = {
            rank: bytes(text).decode()
            for rank, text in zip(self.ranks, self._store.multi_get(keys), strict=True)
        }
        why = "; ".join(f"rank {rank}: {error}" for rank, error in errors.items() if error)
        if why:
            step = "correct the cause on that rank; no process group was harmed"
            raise CollectiveFailed(self.subject, why=why, next_step=step)

    def _poll(self, ranks: Sequence[int]) -> dict[str, Any] | None:
        """Return the timeout that one of the ranks reported; None if all ended in time."""
        store, waiting, given_up = self._store, tuple(ranks), False
        began = latest = time.monotonic()

        def is_over() -> bool:
            nonlocal waiting, latest, given_up
            left = ranks_without_key(store, waiting)
            if len(left) < len(waiting):
                waiting, latest = left, time.monotonic()
            given_up = bool(waiting) and store.check(["outcome"])
            return given_up or not waiting

        own: dict[str, Any] | None = None
        if not wait_until(
            is_over, lambda: latest - began + self._limit_s, max_pause_s=_MAX_PAUSE_S
        ):
            limit = format_duration(self._limit_s)
            why = f"{describe_ranks(waiting)} did not finish within {limit}"
            own = {
                "why": f"{why}, the timeout of rank {dist.get_rank()}",
                "missing": sorted(waiting),
            }
        if own is None and not given_up and set(ranks) != set(self.ranks):
            return None  # a turn has come; the end of all decides
        outcome: dict[str, Any] | None = json.loads(
            store.compare_set("outcome", "", json.dumps(own))
        )
        return outcome


@suggest_keywords
@contextmanager
def staggered(
    name: str, at_once: int = 1, *, per_host: bool = False, timeout: float | str | None = None
) -> Iterator[None]:
    """Run a with-block on ``at_once`` ranks at a time, in rank order; all ranks enter it::

        with holdfast.staggered("load", at_once=4):
            weights = torch.load(path)

    With ``per_host``, ``at_once`` ranks of each host, for local disks. The block has ended on all
    ranks when it returns. ``timeout``: how long one turn may take; the wait for many turns is
    longer. Collectives inside the block would wait for ranks whose turn has not come.

    Raises:
        InvalidValue: ``at_once`` is less than 1, or ``timeout`` is not a duration.
        CollectiveTimeout: a rank took longer than ``timeout``; names it, on all ranks.
        CollectiveFailed: the block raised on another rank; has its error.
    """
    if at_once < 1:
        raise InvalidValue("staggered", why=f"at_once={at_once} must be at least 1")
    if runs_alone(None):
        yield
        return
    reports = RankReports(f"staggered {name!r}", timeout)
    with recorder.extend_phase(name, reports.most_s):
        rank, line = dist.get_rank(), reports.ranks
        if per_host:
            layout = host_layout(state_of(None, broken_too=True), reports.most_s)
            line = next(ranks for ranks in layout if rank in ranks)
        # The first rank of those ahead that must have left; they leave in any order.
        ahead = line[: max(0, line.index(rank) - at_once + 1)]
        reports.wait_for(ahead)
        try:
            yield
        except BaseException as error:
            reports.report(f"{type(error).__name__}: {error}")
            raise
        reports.report()
        reports.finish()


class BackgroundWork(Generic[_T]):
    """Work that :func:`in_background` has started on this rank."""

    def __init__(self, function: Callable[[], _T], reports: RankReports | None) -> None:
        self._function, self._reports = function, reports
        self._results: list[_T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast files", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Return whether this rank's own work has ended."""
        return not self._thread.is_alive()

    def wait(self) -> _T:
        """Wait until the work of all ranks has ended; return the result of this rank's own.

        All ranks call this, where they need the files.

        Raises:
            CollectiveTimeout: ranks did not finish within the timeout; names them, on all ranks.
            CollectiveFailed: the work of another rank failed; has its error.
            Exception: this rank's own work failed.
        """
        if self._reports is None:
            self._thread.join()
        else:
            self._reports.wait_for(self._reports.ranks)
        if self._error is not None:
            raise self._error
        if self._reports is not None:
            self._reports.finish()
        self._thread.join()
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            self._error = error
        error_text = "" if self._error is None else f"{type(self._error).__name__}: {self._error}"
        if self._reports is not None:
            self._reports.report(error_text)


@suggest_keywords
def in_background(
    name: str, function: Callable[[], _T], *, timeout: float | str | None = None
) -> BackgroundWork[_T]:
    """Start ``function()`` in a thread, and return at once; all ranks call this::

        export = holdfast.in_background("export", lambda: write_on_rank_0(weights))
        ...  # training continues
        export.wait()  # on all ranks: the files exist, or the same error

    The function must not call collectives, and must not read what training changes meanwhile.
    ``timeout``: how long a wait may take without any rank finishing.

    Raises:
        InvalidValue: ``timeout`` is not a duration.
    """
    reports = None if runs_alone(None) else RankReports(f"background work {name!r}", timeout)
    return BackgroundWork(function, reports)
