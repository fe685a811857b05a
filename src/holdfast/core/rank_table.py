"""The state of each rank at one moment: the table on which hang diagnosis is based.

The live watcher fills it from trace files and /proc, ``diagnose`` from trace files and dumps; the
rules do not depend on the source. No struct here can be part of a reference cycle, so garbage
collection skips them (``gc=False``): a leader holds 16,384 rows. Times are Unix seconds, sequence
numbers count from 1 within (group, kind of operation), ranks are global ranks.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class SourceLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line of source code."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")

    @property
    def short(self) -> str:
        """File name without its folder, and line: ``train.py:41``."""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


class RecordedCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One collective or point-to-point call as a rank recorded it.

    ``sequence`` counts the collectives of one group from 1; point-to-point calls are counted
    separately for each (peer, tag). ``completed`` is None while in flight. ``elements`` and
    ``shape`` are those of the first input tensor. ``site`` is the call site in the user's code,
    ``caller`` the line that called the enclosing function. ``certain`` is False if the backend does
    not report completion (NCCL): such a call may be in flight, and is known to be if a member has
    not entered it.
    """

    group: str
    sequence: int
    name: str
    dtype: str = ""
    elements: int = 0
    shape: tuple[int, ...] = ()
    peer: int | None = None
    tag: int = 0
    site: SourceLine | None = None
    entered: float = 0.0
    completed: float | None = None
    failed: bool = False
    reduce: str = ""
    tensors: int = 1
    certain: bool = True
    caller: SourceLine | None = None

    @property
    def is_point_to_point(self) -> bool:
        """Return whether this is a send or receive."""
        return self.name in {"send", "recv", "recv_any_source"}

    @property
    def is_doubtful(self) -> bool:
        """Return whether this is a collective whose completion is unknown."""
        return not self.certain and not self.is_point_to_point


class GroupProgress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sequence numbers of the last collective of a group that this rank entered and completed."""

    entered: int
    completed: int


class ProcessGroupInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process group: name, members (None if unknown), description and backend.

    In a message, ``runs`` replaces ``ranks``: first rank, distance and number of each run.
    """

    name: str
    ranks: tuple[int, ...] | None = None
    description: str = ""
    backend: str = ""
    runs: tuple[tuple[int, int, int], ...] = ()


class ProcessState(StrEnum):
    """State of a process, as the operating system reports it."""

    RUNNING = "running"
    STOPPED = "stopped"
    DISK = "uninterruptible"
    DEAD = "dead"
    UNKNOWN = "unknown"


class ThreadStack(msgspec.Struct, frozen=True, gc=False):
    """Python frames of one thread, innermost first.

    ``holds_lock``: the thread sleeps while it holds the interpreter's lock.
    """

    frames: tuple[SourceLine, ...]
    thread: str = "MainThread"
    origin: str = "py-spy"
    time: float = 0.0
    holds_lock: bool = False


class RaisedException(msgspec.Struct, frozen=True, gc=False):
    """An exception that ended a rank's script: type, text, and the innermost frame of user code.

    ``origin`` is where it was read, if not in the trace: the file of the rank's stderr. ``frames``
    is its traceback, innermost first.
    """

    type: str
    text: str
    place: SourceLine | None = None
    origin: str = ""
    frames: tuple[SourceLine, ...] = ()


class StepProblem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A problem that ``holdfast.loop`` detected.

    ``what`` is ``nan``, ``inf``, ``spike`` or ``memory``.

    ``first`` to ``last`` are the affected steps; ``step`` is the one in which the problem was
    detected. ``value`` and ``usual`` are the loss and its previous median. ``here`` is False if
    this rank's own loss was normal. ``micro_batches`` is the number of micro-batches; None if the
    script does not split batches. ``device`` is False if host memory ran out. ``exception`` is the
    type that ends the rank.
    """

    what: str
    step: int
    first: int
    last: int
    here: bool = True
    value: float | None = None
    usual: float | None = None
    micro_batches: int | None = None
    device: bool = True
    exception: str = ""
    text: str = ""
    time: float = 0.0


class ScriptEnd(msgspec.Struct, frozen=True, gc=False):
    """How and where the script ended.

    ``how`` is ``end of script``, ``sys.exit``, ``os._exit`` or ``exception``.
    """

    how: str
    place: SourceLine | None = None
    time: float = 0.0


class ChildProcess(msgspec.Struct, frozen=True, gc=False):
    """A child process of a rank, usually a data-loader worker."""

    pid: int
    name: str
    alive: bool
    exit_code: int | None = None


class WaitSlice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A numbered time slice.

    ``waited`` is the fraction (0 to 1) that a rank spent in collectives; it entered ``calls`` of
    them.
    """

    number: int
    waited: float
    calls: int


class ExtraWork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a rank does regularly besides the steps, such as logging: share of the time, interval.

    ``in_phases``: the share is that of phases of the script, at any times.
    """

    share: float = 0.0
    every_s: float = 0.0
    in_phases: bool = False


#: One object, which messages therefore leave out.
NO_EXTRA_WORK = ExtraWork()


class CallTiming(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A completed collective: the shortest time that a rank of one node was in it.

    ``least_us`` is in microseconds, ``rank`` is that rank. ``elements`` are those of its first
    input tensor.
    """

    sequence: int
    elements: int
    least_us: int
    rank: int


class GroupTiming(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some collectives of a group in the newest time window, on one node.

    ``members`` is the number of its ranks on this node. The group makes ``per_s`` collectives
    per second.
    """

    group: str
    members: int
    per_s: float
    calls: tuple[CallTiming, ...]


class RankState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One row: the state of one rank. None means not observed; ``unseen`` lists what could not be.

    ``exited`` is when its exit code was reported (0: not reported). ``cpu_share`` is the CPU
    seconds per second of wall time used by the process between the two stack samples; ``io_bytes``
    is what it read and wrote between them. ``blocked_on`` is the file or pipe that the main thread
    waits for in a system call. ``runnable``: its main thread ran or waited for a processor in both
    samples. ``children_cpu_share`` is the share of its child processes. ``steady`` is the innermost
    line of user code that most stacks share since the rank advanced, then the last line reached in
    the function that it calls, if that varies. ``active`` is when it last moved a byte, used CPU or
    changed its stack between two close observations (Unix seconds; 0: in none). ``stacks`` holds
    the samples of the main thread, oldest first. ``helper`` is a thread in the user's code that
    runs while the main thread waits for a thread, in the newest sample. ``asleep_s`` is how long
    the main thread has not run. ``woke`` means that it was asleep in one sample, for too long to be
    polling, and has run since. ``counted`` is the number of steps done by this process; ``saved``
    is the step of its newest committed checkpoint (at ``saved_at``), ``loaded`` that of the one it
    started from; ``preempted`` is the exit status used after a scheduler's warning. ``trouble`` is
    the last problem that its loop detected. ``waits`` holds the newest time slices, oldest first.
    ``printed`` is the exception with which the stderr of a living rank ends, such as that of a
    thread. ``node`` tells nodes apart that share a host name. ``node_silent_s`` is the age of the
    last report of the rank's node, if it is out of date.
    ``memory_bytes`` is the resident memory of the process.
    """

    rank: int
    host: str = ""
    pid: int = 0
    life: ProcessState = ProcessState.UNKNOWN
    exit_code: int | None = None
    exited: float = 0.0
    out_of_memory: bool = False
    started: float = 0.0
    progress: float = 0.0
    step: int | None = None
    counted: int = 0
    saved: int | None = None
    saved_at: float | None = None
    loaded: int | None = None
    preempted: int | None = None
    trouble: StepProblem | None = None
    phase: str | None = None
    phase_budget_s: float | None = None
    phase_since: float = 0.0
    step_p99_s: float | None = None
    groups: dict[str, GroupProgress] = {}
    pending: tuple[RecordedCall, ...] = ()
    recent: tuple[RecordedCall, ...] = ()
    stacks: tuple[ThreadStack, ...] = ()
    helper: ThreadStack | None = None
    cpu_share: float | None = None
    runnable: bool = False
    children_cpu_share: float | None = None
    steady: tuple[SourceLine, ...] = ()
    active: float = 0.0
    asleep_s: float | None = None
    woke: bool = False
    io_bytes: int | None = None
    blocked_on: str | None = None
    children: tuple[ChildProcess, ...] = ()
    raised: RaisedException | None = None
    printed: RaisedException | None = None
    ended: ScriptEnd | None = None
    waits: tuple[WaitSlice, ...] = ()
    device: str = ""
    loader_share: float = 0.0
    collector_share: float = 0.0
    extra_work: ExtraWork = NO_EXTRA_WORK
    node: str = ""
    node_silent_s: float = 0.0
    memory_bytes: int | None = None
    unseen: tuple[str, ...] = ()
