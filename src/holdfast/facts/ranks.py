"""What is known of each rank at one moment: the table that every judgement of a hang is made from.

The live watcher fills it from boxes and /proc, ``diagnose`` from box files and dumps; the rules never know which.
No struct here can be part of a cycle, so the collector need not follow them (``gc=False``): a leader holds 16,384 rows.
Times are Unix seconds, sequence numbers count from 1 within (group, kind of operation), ranks are global ranks.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line of source code."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


class Operation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One collective or point-to-point call as a rank recorded it.

    ``sequence`` counts the collectives of one group from 1; point-to-point calls have a count of their own for each
    (peer, tag). ``completed`` is None while in flight. ``elements`` and ``shape`` are those of the first input tensor.
    ``site`` is the line of the call in the user's code, ``caller`` the line that called the function it stands in.
    ``certain`` is False where the backend does not tell when a call completes (NCCL): such a call may be in flight, and
    is known to be where a member has not entered it.
    """

    group: str
    sequence: int
    name: str
    dtype: str = ""
    elements: int = 0
    shape: tuple[int, ...] = ()
    peer: int | None = None
    tag: int = 0
    site: Place | None = None
    entered: float = 0.0
    completed: float | None = None
    failed: bool = False
    reduce: str = ""
    tensors: int = 1
    certain: bool = True
    caller: Place | None = None

    @property
    def is_point_to_point(self) -> bool:
        """True for send and recv in any form."""
        return self.name in {"send", "recv", "recv_any_source"}

    @property
    def is_doubtful(self) -> bool:
        """True for a collective of which nothing tells whether it is over."""
        return not self.certain and not self.is_point_to_point


class GroupProgress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sequence number of the last collective of a group that this rank entered, and of the last that completed."""

    entered: int
    completed: int


class Group(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process group: its name, its members (None where not known), its description and its backend."""

    name: str
    ranks: tuple[int, ...] | None = None
    description: str = ""
    backend: str = ""


class Life(StrEnum):
    """What the operating system says of the process."""

    RUNNING = "running"
    STOPPED = "stopped"
    DISK = "uninterruptible"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Stack(msgspec.Struct, frozen=True, gc=False):
    """The Python frames of one thread, innermost first. ``holds_lock``: asleep, with the interpreter's lock held."""

    frames: tuple[Place, ...]
    thread: str = "MainThread"
    origin: str = "py-spy"
    time: float = 0.0
    holds_lock: bool = False


class Raised(msgspec.Struct, frozen=True, gc=False):
    """An exception that ended a rank's script: its type, its text, and the innermost frame of the user's code."""

    type: str
    text: str
    place: Place | None = None


class Trouble(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What ``holdfast.loop`` saw go wrong in a step: ``what`` is ``nan``, ``inf``, ``spike`` or ``memory``.

    ``first`` to ``last`` are the steps concerned, and ``step`` is the one in which it was noticed; ``value`` and
    ``usual`` are the loss and its median before. ``here`` is False where this rank's own loss was fine.
    ``micro_batches`` is the number of pieces of a batch; None where the script does not ask for them.
    ``device`` is False where the host's memory ran out. ``exception`` is the type that ends the rank.
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


class Ended(msgspec.Struct, frozen=True, gc=False):
    """How the script itself ended: ``end of script``, ``sys.exit`` or ``exception``, and where."""

    how: str
    place: Place | None = None
    time: float = 0.0


class Child(msgspec.Struct, frozen=True, gc=False):
    """A process that a rank started (a data-loader worker, mostly)."""

    pid: int
    name: str
    alive: bool
    exit_code: int | None = None


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A slice of the time, by its number.

    ``waited`` is the part of it (0 to 1) that a rank was in collectives; in it, it entered so many ``calls``.
    """

    number: int
    waited: float
    calls: int


class RankState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One row: everything known of one rank. None means not looked at; ``unseen`` says what could not be looked at.

    ``cpu_share`` is CPU seconds used a second of wall time by the whole process between the two stack samples.
    ``io_bytes`` is what it read and wrote between them. ``blocked_on`` is the file or pipe that the main thread waits
    for in a system call. ``stacks`` holds the samples of the main thread, oldest first. ``asleep_s`` is how long the
    main thread has not run at all; ``woke`` says that it slept at one look, for too long to be polling, and ran since.
    ``counted`` steps were done in this process; ``saved`` is the step of the newest checkpoint that it declared whole,
    ``loaded`` that of the one it began from; ``preempted`` is the status with which it leaves at a scheduler's warning.
    ``trouble`` is the last that its loop noted. ``waits`` are the newest slices of its time, oldest first.
    """

    rank: int
    host: str = ""
    pid: int = 0
    life: Life = Life.UNKNOWN
    exit_code: int | None = None
    out_of_memory: bool = False
    started: float = 0.0
    progress: float = 0.0
    step: int | None = None
    counted: int = 0
    saved: int | None = None
    loaded: int | None = None
    preempted: int | None = None
    trouble: Trouble | None = None
    phase: str | None = None
    phase_budget_s: float | None = None
    phase_since: float = 0.0
    step_p99_s: float | None = None
    groups: dict[str, GroupProgress] = {}
    pending: tuple[Operation, ...] = ()
    recent: tuple[Operation, ...] = ()
    stacks: tuple[Stack, ...] = ()
    cpu_share: float | None = None
    asleep_s: float | None = None
    woke: bool = False
    io_bytes: int | None = None
    blocked_on: str | None = None
    children: tuple[Child, ...] = ()
    raised: Raised | None = None
    ended: Ended | None = None
    waits: tuple[Slice, ...] = ()
    unseen: tuple[str, ...] = ()
