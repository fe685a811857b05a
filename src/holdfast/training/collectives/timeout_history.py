"""Record over restarts which collectives timed out or were slow, and adapt later calls.

The file format and the advice are in ``core/collective_history.py``. Each host has one file in the
folder ``HOLDFAST_HISTORY``; its ranks write it in turn, atomically. Nothing here may harm training:
corrupt files, locks that are never released and disks that hang cost a log message and a few
seconds at most. All of it happens at the first call, and after calls that took long.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import torch.distributed as dist

from holdfast.core import collective_history, settings
from holdfast.core.atomic_files import write_atomic
from holdfast.core.collective_history import CollectiveAdvice, CollectiveHistory, CollectiveProblem
from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.text import format_duration, os_error_reason
from holdfast.core.trace_file import process_start_ticks
from holdfast.training.collectives.call_with_timeout import CallTimedOut, call_with_timeout
from holdfast.training.collectives.groups import rank_hosts
from holdfast.training.collectives.groups.arrivals import (
    BoundedCall,
    arrival_timeout,
    find_call_site,
)
from holdfast.training.collectives.groups.group_info import GroupState
from holdfast.training.store_wait import wait_until

CallOutcome = Literal["well", "timeout", "failed"]
_T = TypeVar("_T")

#: A successful call was slow after this share of its timeout, or after this many seconds.
SLOW_SHARE, SLOW_S = 0.1, 10.0
#: Timeouts of the disk, and of the file's lock, in seconds.
DISK_LIMIT_S, LOCK_LIMIT_S = 3.0, 1.0
#: Files of other hosts that are read, the newest first.
MAX_FILES = 64
_MAX_TEXT = 200

_log = logging.getLogger("holdfast.comm")
_lock = threading.Lock()
#: Threads that wait for a disk that did not answer in time.
_blocked: list[threading.Thread] = []
_history: CollectiveHistory | None = None
_shared: WeakKeyDictionary[dist.ProcessGroup, CollectiveHistory] = WeakKeyDictionary()
_logged_reasons: set[str] = set()
#: Called when the history changes, which invalidates limits computed before.
listeners: list[Callable[[], None]] = []


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """Phase of a call (``training`` or ``evaluation``), and the link's bandwidth in bytes/s.

    ``absent``: ranks were missing. ``is_policy_limit``: the user set no shorter timeout.
    """

    phase: str
    bandwidth: float | None = None
    absent: bool = False
    is_policy_limit: bool = True


def record_call(
    call: BoundedCall, seconds: float, outcome: CallOutcome, context: CallContext
) -> None:
    """Record a call that took ``seconds``, if it was slow or timed out. Never raises."""
    is_slow = outcome == "well" and seconds >= min(SLOW_S, SLOW_SHARE * call.limit_s)
    timed_out = outcome == "timeout"
    if not is_slow and not timed_out:
        return
    # A rank missing in training would not have arrived later.
    longer_may_help = not context.absent or context.phase == "evaluation"
    at_limit = timed_out and context.is_policy_limit and longer_may_help
    event = CollectiveProblem(
        operation=call.signature.partition(" of ")[0][:_MAX_TEXT],
        group=call.state.name[:_MAX_TEXT],
        size=call.nbytes.bit_length(),
        phase=context.phase,
        link=_describe_link(call.state),
        site=find_call_site()[:_MAX_TEXT],
        words=call.signature[:_MAX_TEXT],
        timeouts=int(timed_out),
        absent=int(context.absent and timed_out),
        slow=int(is_slow),
        longest_s=seconds if is_slow else 0.0,
        limit_s=call.limit_s if at_limit or is_slow else 0.0,
        at_limit=int(at_limit),
        bandwidth=context.bandwidth or 0.0,
        call=2 * call.number + timed_out,
        at=time.time(),
    )
    _remember(event)
    call_with_disk_limit(lambda: _store_event(event), None)


def current_history() -> CollectiveHistory:
    """Return the history: read once from the files of all hosts, plus this process's events."""
    global _history  # noqa: PLW0603 - one process, one history
    if _history is None:
        _history = call_with_disk_limit(_read_all, CollectiveHistory())
    return _history


def reset() -> None:
    """Read the files again when next needed."""
    global _history  # noqa: PLW0603 - one process, one history
    _history = None
    _shared.clear()
    _logged_reasons.clear()
    _notify_listeners()


def has_problems(group: str, size: int, phase: str) -> bool:
    """Return whether the history has calls of this size (as a power of two) in the group."""
    return any(
        (each.group, each.size, each.phase) == (group, size, phase)
        for each in current_history().troubles
    )


def advise_call(group: str, size: int, phase: str, site: str) -> CollectiveAdvice:
    """Return what to change in calls of this group, power of two of bytes, phase and call site."""
    key = (group, size, phase, site)
    return _advise(
        current_history(), lambda each: (each.group, each.size, each.phase, each.site) == key
    )


def advised_chunk_bytes(state: GroupState, nbytes: int, limit_s: float) -> int | None:
    """Return the advised chunk size of calls of this size in the group; None without advice.

    Equal on all ranks of the group, which all must call this; call sites and phases, which may
    differ between ranks, are ignored.
    """
    size = nbytes.bit_length()
    history = shared_history(state, limit_s)
    return _advise(
        history,
        lambda each: (each.group, each.size) == (state.name, size),
        is_relevant=lambda advice: advice.chunk_bytes is not None,
    ).chunk_bytes


def advised_evaluation_delay(state: GroupState, limit_s: float = 300.0) -> int:
    """Return how many evaluations to skip after each; equal on all ranks, which all call this."""
    history = shared_history(state, limit_s)
    return _advise(history, lambda each: each.phase == "evaluation").evaluation_delay


def _advise(
    history: CollectiveHistory,
    matches: Callable[[CollectiveProblem], bool],
    is_relevant: Callable[[CollectiveAdvice], bool] = lambda _: True,
) -> CollectiveAdvice:
    """Return the combined advice for matching problems; log each new reason if it is relevant."""
    advice = collective_history.combine_advice(
        collective_history.advise(each, history.runs) for each in history.troubles if matches(each)
    )
    for reason in advice.reasons if is_relevant(advice) else ():
        is_new = reason not in _logged_reasons
        if is_new and len(_logged_reasons) < collective_history.MAX_PROBLEMS:
            _logged_reasons.add(reason)
            _log.warning("%s", reason)
    return advice


def shared_history(state: GroupState, limit_s: float = 300.0) -> CollectiveHistory:
    """Return the history of the group's first rank, equal on all its ranks, which all call this.

    Raises:
        CollectiveTimeout: the first rank did not call it within ``limit_s`` seconds.
    """
    history = _shared.get(state.group)
    if history is None:
        history = _shared[state.group] = _share(state, limit_s)
    return history


def is_history_shared(state: GroupState) -> bool:
    """Return whether :func:`shared_history` would not wait."""
    return (
        state.group in _shared
        or dist.get_rank() == state.ranks[0]
        or bool(state.store.check(["history"]))
    )


def _share(state: GroupState, limit_s: float) -> CollectiveHistory:
    store, first = state.store, state.ranks[0]
    if dist.get_rank() == first:
        store.set("history", msgspec.json.encode(current_history()).decode())
        return current_history()
    try:
        store.wait(["history"], timedelta(seconds=limit_s))
    except RuntimeError as error:
        subject = f"exchange of the history of group {state.name!r}"
        raise arrival_timeout(subject, (first,), limit_s) from error
    return msgspec.json.decode(bytes(store.get("history")), type=CollectiveHistory)


def _notify_listeners() -> None:
    for listener in listeners:
        listener()


# ---- the files


def _remember(event: CollectiveProblem) -> None:
    global _history  # noqa: PLW0603 - one process, one history
    with _lock:
        _history = current_history().noting(event)
    _notify_listeners()


def _store_event(event: CollectiveProblem) -> None:
    """Add the event to this host's file."""
    folder = settings.read_path("HOLDFAST_HISTORY")
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _hold_lock(folder):
            _write(_read(_own_file(folder)).in_run(_run_identity()).noting(event), folder)
    except (OSError, MissingFile) as error:
        _log.warning("cannot save the history of collectives: %s", error)


def _read_all() -> CollectiveHistory:
    """Read all hosts' files, and count this run in that of this host, if it has one."""
    folder = settings.read_path("HOLDFAST_HISTORY")
    if folder is None or not folder.is_dir():
        return CollectiveHistory()
    own = CollectiveHistory()
    try:
        with _hold_lock(folder):
            own = _read(_own_file(folder))
            if own.troubles and own.run != _run_identity():
                own = own.in_run(_run_identity())
                _write(own, folder)
    except (OSError, MissingFile) as error:
        _log.warning("cannot save the history of collectives: %s", error)
    return collective_history.merge_histories((own, *_read_others(folder)))


def _read_others(folder: Path) -> Iterator[CollectiveHistory]:
    own = _own_file(folder)
    with suppress(OSError):
        files = [(path.stat().st_mtime, path) for path in folder.glob("*.json") if path != own]
        for _, path in sorted(files, reverse=True)[:MAX_FILES]:
            yield _read(path)


def _read(path: Path) -> CollectiveHistory:
    """Return the file's history; an empty one, with a log message, if it is invalid."""
    try:
        # Opening a pipe would block otherwise.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(collective_history.MAX_BYTES + 1)
            return collective_history.parse_history(data, str(path))
    except FileNotFoundError:
        pass
    except InvalidValue as error:
        _log.warning("%s", error)
    except OSError as error:
        _log.warning("ignored history %s: %s", path, os_error_reason(error))
    return CollectiveHistory()


def _write(history: CollectiveHistory, folder: Path) -> None:
    write_atomic(_own_file(folder), msgspec.json.format(msgspec.json.encode(history)))


def _own_file(folder: Path) -> Path:
    return folder / f"{_host_file_name()}.json"


def _host_file_name() -> str:
    return socket.gethostname().replace("/", "_")


@contextmanager
def _hold_lock(folder: Path) -> Iterator[None]:
    """Hold this host's lock; without it after LOCK_LIMIT_S, continue all the same."""
    lock_file = folder / f".{_host_file_name()}.lock"
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600)

    def try_lock() -> bool:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    try:
        wait_until(try_lock, LOCK_LIMIT_S)
        yield
    finally:
        os.close(descriptor)


def _run_identity() -> str:
    """Return a name of this run, equal on this host: the ranks' parent and its restarts."""
    parent = os.getppid()
    restarts = settings.read_text("TORCHELASTIC_RESTART_COUNT") or 0
    return f"{parent}/{process_start_ticks(parent)}/{restarts}"


def _describe_link(state: GroupState) -> str:
    layout = rank_hosts.known_host_layout(state)
    if layout is None:
        return "an unknown link"
    return "same host" if len(layout) == 1 else "between hosts"


def call_with_disk_limit(function: Callable[[], _T], default: _T) -> _T:
    """Return the function's result, or ``default`` if it fails or its disk does not answer.

    While an earlier call is blocked, no other is attempted.
    """
    was_blocked = any(thread.is_alive() for thread in _blocked)
    try:
        return call_with_timeout(function, DISK_LIMIT_S, blocked=_blocked)
    except CallTimedOut:
        if not was_blocked:
            limit = format_duration(DISK_LIMIT_S)
            _log.warning("history of collectives: the disk did not answer within %s", limit)
    except Exception:  # noqa: BLE001 - training continues whatever it is
        _log.exception("cannot use the history of collectives")
    return default
