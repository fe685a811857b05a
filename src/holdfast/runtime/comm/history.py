"""Remembers, over restarts, which collectives timed out or were slow, and what that teaches (``holdfast/history.py``).

Each host has a file of its own in the folder ``HOLDFAST_HISTORY``, which its ranks write in turn, whole or not at all.
Nothing here may harm training: files that are strange, locks that nobody gives back and disks that hang cost a sentence
in the log and a few seconds at most. All of it happens at the first call, and after calls that took long.
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
from typing import Literal
from weakref import WeakKeyDictionary

import msgspec
import torch.distributed as dist

from holdfast import history as record
from holdfast import settings
from holdfast.blackbox import process_start_ticks
from holdfast.errors import BadValue, CollectiveTimeout, MissingFile
from holdfast.history import Advice, History, Trouble
from holdfast.report.files import write_whole
from holdfast.report.text import duration
from holdfast.runtime.comm import hosts
from holdfast.runtime.comm.groups import GroupState
from holdfast.runtime.comm.presence import Call, say_missing, site

Outcome = Literal["well", "timeout", "failed"]

#: A call that ended well was slow after this share of its limit, or after so many seconds.
SLOW_SHARE, SLOW_S = 0.1, 10.0
#: The disk is waited for so long, and a lock of the file.
DISK_LIMIT_S, LOCK_LIMIT_S = 3.0, 1.0
#: Files of other hosts that are read, the newest first.
MOST_FILES = 64

_log = logging.getLogger("holdfast.comm")
_lock = threading.Lock()
#: What waits for a disk that did not answer in time.
_stuck: threading.Thread | None = None
_known: History | None = None
_shared: WeakKeyDictionary[dist.ProcessGroup, History] = WeakKeyDictionary()
_said: set[str] = set()
#: Called when something new is known: limits that were worked out before are void.
listeners: list[Callable[[], None]] = []


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What is known around a call: its phase (``training`` or ``evaluation``), what the group's link was seen to reach.

    ``absent``: ranks did not come to it. ``ours``: its limit is the policy's, and not a shorter one of the user's.
    """

    phase: str
    bandwidth: float | None = None
    absent: bool = False
    ours: bool = True


def note(call: Call, seconds: float, nbytes: int, outcome: Outcome, about: About) -> None:
    """Count a call that took so many seconds, where that was long or it timed out. Never raises."""
    slow = outcome == "well" and seconds >= min(SLOW_S, SLOW_SHARE * call.limit_s)
    timed_out = outcome == "timeout"
    if not slow and not timed_out:
        return
    telling = timed_out and about.ours and (not about.absent or about.phase == "evaluation")
    event = Trouble(
        operation=_cut(call.words.partition(" of ")[0]), group=_cut(call.state.name), size=nbytes.bit_length(),
        phase=about.phase, link=_link(call.state), site=_cut(site()), words=_cut(call.words),
        timeouts=int(timed_out), absent=int(about.absent and timed_out), slow=int(slow),
        longest_s=seconds if slow else 0.0, limit_s=call.limit_s if telling or slow else 0.0, at_limit=int(telling),
        bandwidth=about.bandwidth or 0.0, call=2 * call.number + timed_out, at=time.time(),
    )  # fmt: skip
    _remember(event)
    within(DISK_LIMIT_S, lambda: _keep(event))


def known() -> History:
    """What is known now: read once, from the files of all hosts, and what this process has noted since."""
    global _known  # noqa: PLW0603 - one process, one history
    if _known is None:
        read: list[History] = []
        within(DISK_LIMIT_S, lambda: read.append(_open()))
        _known = read[0] if read else History()
    return _known


def forget() -> None:
    """Read the files anew when they are next wanted."""
    global _known  # noqa: PLW0603 - as above
    _known = None
    _shared.clear()
    _said.clear()
    _tell()


def concerns(group: str, size: int, phase: str) -> bool:
    """Whether anything was learnt of calls of this size in the group: only then their line makes a difference."""
    return any((each.group, each.size, each.phase) == (group, size, phase) for each in known().troubles)


def advice(group: str, size: int, phase: str, place: str, of: History | None = None) -> Advice:
    """What is to be done differently in calls of this group, power of two of bytes, phase and line; logged once."""
    history = of if of is not None else known()
    found = record.worst(
        record.learn(each, history.runs)
        for each in history.troubles
        if (each.group, each.size, each.phase, each.site) == (group, size, phase, place)
    )
    _say(found)
    return found


def pieces(state: GroupState, nbytes: int, limit_s: float) -> int | None:
    """Bytes of the pieces that calls of this size in the group are better made in; None where nothing speaks for it.

    The same on all ranks of the group, which all have to ask; lines and phases, that may differ over ranks, make no
    difference. Logged.
    """
    history, size = shared(state, limit_s), nbytes.bit_length()
    found = record.worst(
        record.learn(each, history.runs) for each in history.troubles if (each.group, each.size) == (state.name, size)
    )
    if found.chunk_bytes is not None:
        _say(found)
    return found.chunk_bytes


def evaluation_delay(state: GroupState, limit_s: float = 300.0) -> int:
    """How many evaluations to leave out after each, the same on all ranks of the group; all have to ask. Logged."""
    history = shared(state, limit_s)
    found = record.worst(record.learn(each, history.runs) for each in history.troubles if each.phase == "evaluation")
    _say(found)
    return found.evaluation_delay


def shared(state: GroupState, limit_s: float = 300.0) -> History:
    """The history of the group's first rank, on all of its ranks: pieces have to be the same everywhere. All must ask.

    Raises:
        CollectiveTimeout: the first rank did not ask within ``limit_s`` seconds.
    """
    found = _shared.get(state.group)
    if found is None:
        found = _shared[state.group] = _share(state, limit_s)
    return found


def is_shared(state: GroupState) -> bool:
    """Whether :func:`shared` has nothing to wait for."""
    return state.group in _shared or dist.get_rank() == state.ranks[0] or bool(state.store.check(["history"]))


def _share(state: GroupState, limit_s: float) -> History:
    store, first = state.store, state.ranks[0]
    if dist.get_rank() == first:
        store.set("history", msgspec.json.encode(known()).decode())
        return known()
    try:
        store.wait(["history"], timedelta(seconds=limit_s))
    except RuntimeError as error:
        why = f"{say_missing((first,))} did not come within {duration(limit_s)}"
        raise CollectiveTimeout(f"the history of group {state.name!r}", why=why, missing=(first,)) from error
    return msgspec.json.decode(bytes(store.get("history")), type=History)


def _say(found: Advice) -> None:
    for reason in found.reasons:
        if reason not in _said and len(_said) < record.MOST_TROUBLES:
            _said.add(reason)
            _log.warning("%s", reason)


def _tell() -> None:
    for listener in listeners:
        listener()


# ---- the file


def _remember(event: Trouble) -> None:
    global _known  # noqa: PLW0603 - as above
    with _lock:
        _known = known().noting(event)
    _tell()


def _keep(event: Trouble) -> None:
    """Add the event to this host's file."""
    folder = settings.path("HOLDFAST_HISTORY")
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _turn(folder):
            _write(_mine(folder).in_run(_run()).noting(event), folder)
    except (OSError, MissingFile) as error:
        _log.warning("the history of collectives is not kept: %s", error)


def _open() -> History:
    """Read all hosts' files, and count this run in that of this host, where there is one."""
    folder = settings.path("HOLDFAST_HISTORY")
    if folder is None or not folder.is_dir():
        return History()
    mine = History()
    try:
        with _turn(folder):
            mine = _mine(folder)
            if mine.troubles and mine.run != _run():
                mine = mine.in_run(_run())
                _write(mine, folder)
    except (OSError, MissingFile) as error:
        _log.warning("the history of collectives cannot be written: %s", error)
    return record.merged((mine, *_others(folder)))


def _others(folder: Path) -> Iterator[History]:
    own = _file(folder)
    with suppress(OSError):
        files = [(path.stat().st_mtime, path) for path in folder.glob("*.json") if path != own]
        for _, path in sorted(files, reverse=True)[:MOST_FILES]:
            yield _read(path)


def _mine(folder: Path) -> History:
    return _read(_file(folder))


def _read(path: Path) -> History:
    """What the file says; nothing, and a sentence in the log, where it cannot be believed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would be waited for
        with os.fdopen(descriptor, "rb") as file:
            return record.parse(file.read(record.MOST_BYTES + 1), str(path))
    except FileNotFoundError:
        return History()
    except BadValue as error:
        _log.warning("%s", error)
    except OSError as error:
        _log.warning("the history %s is left out: %s", path, (error.strerror or str(error)).lower())
    return History()


def _write(history: History, folder: Path) -> None:
    write_whole(_file(folder), msgspec.json.format(msgspec.json.encode(history)))


def _file(folder: Path) -> Path:
    return folder / f"{socket.gethostname().replace('/', '_')}.json"


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Be the one rank of this host that writes; who gets no turn in time writes all the same."""
    descriptor = os.open(folder / f".{socket.gethostname().replace('/', '_')}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + LOCK_LIMIT_S
        while time.monotonic() < until:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _run() -> str:
    """One name for all ranks of this host and start: the process that started them, and its number of restarts."""
    parent = os.getppid()
    return f"{parent}/{process_start_ticks(parent)}/{settings.text('TORCHELASTIC_RESTART_COUNT') or 0}"


def _link(state: GroupState) -> str:
    layout = hosts.known_layout(state)
    return "an unknown link" if layout is None else "same host" if len(layout) == 1 else "between hosts"


def _cut(text: str) -> str:
    return text[:200]


def within(limit_s: float, work: Callable[[], object]) -> None:
    """Do what may touch a disk that hangs, and wait for it no longer than so; it may end later, or never.

    While it does not, nothing else is tried.
    """
    global _stuck  # noqa: PLW0603 - as above
    if _stuck is not None and _stuck.is_alive():
        return

    def run() -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - whatever it is, training goes on
            _log.exception("the history of collectives is not kept")

    thread = threading.Thread(target=run, name="holdfast history", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        _stuck = thread
        _log.warning(
            "the history of collectives is not waited for: its disk did not answer within %s", duration(limit_s)
        )
