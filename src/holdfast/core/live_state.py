"""The live state of a job: what its leader's watcher writes once a second into the run folder.

``live-NODE.json`` is one :class:`LiveState`, replaced atomically; ``live-NODE.jsonl`` holds one
:class:`SeriesPoint` per line. Each node that leads writes its own pair, so that two leaders never
overwrite each other. The sizes are bounded: one entry per rank in each column, and the limits below
for everything else. Times are Unix seconds unless their name ends with ``_s`` (a duration).
"""

from __future__ import annotations

import msgspec

SCHEMA = "holdfast/live/1"
SERIES_SCHEMA = "holdfast/live-series/1"
#: ``glob`` patterns of the files of all leaders.
STATES, SERIES = "live-*.json", "live-*.jsonl"
#: Largest accepted documents: 16,384 ranks need 2 MiB.
MAX_STATE_BYTES, MAX_SERIES_BYTES = 32 << 20, 4 << 20
#: Rows of a series: more ranks are folded into this many blocks of consecutive ranks.
SERIES_ROWS = 256
#: Highest value of a byte of a series, and the byte of an unknown value.
SERIES_FULL, SERIES_UNKNOWN = 200, 255
#: An index into a table that refers to nothing.
NONE = -1


class GpuReading(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One GPU of a node; ``pids`` are its compute processes. None: not reported."""

    index: int
    name: str
    temperature_c: int | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    throttled: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


class NodeReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Memory and GPUs of one node. ``node`` tells nodes apart that share a host name."""

    host: str
    node: str = ""
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    gpus: tuple[GpuReading, ...] = ()
    ranks: int = 0


class CallLatency(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Durations of the recent calls of one operation in one group, over the ranks that made them.

    A rank's duration includes its wait for later ranks. So ``shortest_s``, the median of the rank
    that waits least, is about the time of the transfer, and ``longest_s`` is the highest 99th
    percentile of a rank.
    """

    group: str
    operation: str
    calls: int
    shortest_s: float
    median_s: float
    longest_s: float


class LiveCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call in which ranks are now. ``entered`` is when the first of them entered it."""

    group: str
    sequence: int
    operation: str
    site: str
    entered: float


class LiveWait(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Ranks that wait in a call (an index into ``calls``) for others, as compressed rank lists."""

    call: int
    waiters: str
    awaited: str
    since: float


class LiveGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process group: the newest collective that a member entered, and members that have not.

    ``members`` are runs of ranks, as in ``ProcessGroupInfo.runs``; empty if they are unknown or
    irregular.
    """

    name: str
    backend: str
    size: int
    entered: int
    behind: int
    members: tuple[tuple[int, int, int], ...] = ()


class LiveFinding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A finding about a host or rank while the job runs."""

    code: str
    cause: str
    level: str
    message: str
    host: str = ""
    rank: int | None = None


class RankColumns(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ranks as columns of equal length, in rank order; None: unknown.

    ``node``, ``life``, ``phase``, ``call`` and ``wait`` are indices into the tables of the state
    (NONE: nothing). ``rate`` is in steps per second, ``waited`` the share of the time in
    collectives, ``silent_s`` the time since the rank advanced, ``awaited`` the number of ranks that
    wait for it, ``memory`` the resident memory in MiB, ``gpu`` the index of its GPU on the node.
    """

    rank: list[int] = []
    node: list[int] = []
    life: list[int] = []
    step: list[int | None] = []
    rate: list[float | None] = []
    phase: list[int] = []
    call: list[int] = []
    wait: list[int] = []
    waited: list[float | None] = []
    silent_s: list[float] = []
    awaited: list[int] = []
    memory: list[int | None] = []
    gpu: list[int | None] = []


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job at one moment.

    ``written_by`` identifies the leader. The next state is due after ``period_s``. ``notice`` is a
    suspicion of the watcher, in words. ``cut`` counts what the limits left out.
    """

    schema: str = SCHEMA
    at: float = 0.0
    period_s: float = 1.0
    generation: int = 0
    written_by: str = ""
    job: str = ""
    world_size: int = 0
    silent_since: float = 0.0
    stall_s: float = 0.0
    notice: str = ""
    ranks: RankColumns = RankColumns()
    nodes: tuple[NodeReading, ...] = ()
    lives: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    calls: tuple[LiveCall, ...] = ()
    waits: tuple[LiveWait, ...] = ()
    groups: tuple[LiveGroup, ...] = ()
    latencies: tuple[CallLatency, ...] = ()
    findings: tuple[LiveFinding, ...] = ()
    cut: int = 0


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One column of the heat map: all ranks, folded into at most SERIES_ROWS rows, at one moment.

    ``rates`` and ``waits`` hold one byte per row: 0 to SERIES_FULL as a share of ``rate`` (the
    highest of any rank, in steps per second) and of the time; SERIES_UNKNOWN if unknown. A row
    shows the slowest of its ranks: the lowest rate, and the least wait.
    """

    schema: str = SERIES_SCHEMA
    at: float
    generation: int = 0
    world_size: int = 0
    step: int | None = None
    rate: float = 0.0
    rates: bytes = b""
    waits: bytes = b""


def state_file(node: int) -> str:
    """Return the name of the live state that a node writes."""
    return f"live-{node}.json"


def series_file(node: int) -> str:
    """Return the name of the series that a node writes."""
    return f"live-{node}.jsonl"
