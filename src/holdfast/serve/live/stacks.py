"""The stack of one rank: sampled now, here or by the job on its host, else from an incident."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core.documents import read_bounded
from holdfast.core.errors import HoldfastError
from holdfast.core.findings import Unknown
from holdfast.host.processes.python_stacks import main_thread, sample_stacks
from holdfast.serve.live import runs
from holdfast.watcher.trace_reader import TraceReading

#: Limit of a sample; a page or terminal waits for it.
SAMPLE_S = 2.0
MAX_RUN_BYTES = 1 << 20
NOW = "now"


class RankStack(msgspec.Struct, frozen=True):
    """Frames, innermost first, and their ``origin``: ``now``, or ``in incident N``.

    ``why`` is the reason why it is not the stack of now.
    """

    origin: str = ""
    frames: tuple[str, ...] = ()
    why: str = ""


class _StoredRun(msgspec.Struct, frozen=True):
    """The part of ``run.json`` that is read here."""

    traces: str = ""


class _Elsewhere(Unknown, frozen=True):
    """The rank does not run on this host."""


#: Returns the frames of a rank on another host, of that name as far as known.
AskJob = Callable[[int, str], tuple[str, ...] | Unknown]


def read_stack(folder: Path, rank: int, host: str = "", ask: AskJob | None = None) -> RankStack:
    """Return the stack of ``rank``, which runs on ``host`` as far as known."""
    sampled = _sample(folder, rank, host)
    if isinstance(sampled, _Elsewhere) and ask is not None:
        sampled = ask(rank, host)
    if not isinstance(sampled, Unknown):
        return RankStack(NOW, sampled)
    found = runs.read_stacks(folder, rank)
    if found is None:
        return RankStack(why=sampled.why)
    return RankStack(f"in incident {found[0]}", found[1], sampled.why)


def _sample(folder: Path, rank: int, host: str) -> tuple[str, ...] | Unknown:
    own = socket.gethostname()
    elsewhere = f"it runs on {host}; there: holdfast attach" if host not in ("", own) else ""
    traces = ""
    with suppress(OSError, msgspec.DecodeError, RecursionError):
        data = read_bounded(folder / "run.json", MAX_RUN_BYTES)
        traces = msgspec.json.decode(data, type=_StoredRun).traces
    trace = Path(traces, f"rank{rank}.trace")
    if not traces or not trace.is_file():
        return _Elsewhere(elsewhere or f"it does not run on {own}")
    try:
        header = TraceReading(trace).header
    except HoldfastError as error:
        return Unknown(str(error))
    if header.host not in ("", own):
        return _Elsewhere(elsewhere or f"it runs on {header.host}; there: holdfast attach")
    try:
        is_owners = Path(f"/proc/{header.pid}").stat().st_uid == folder.stat().st_uid
    except OSError:
        return Unknown("its process has ended")
    if not is_owners:  # whoever can write the folder could name any process
        return Unknown("its process is of another user than the run folder")
    stacks = sample_stacks(header.pid, SAMPLE_S, start_ticks=header.start_ticks)
    thread = stacks if isinstance(stacks, Unknown) else main_thread(stacks)
    return thread if isinstance(thread, Unknown) else tuple(map(str, thread.frames))
