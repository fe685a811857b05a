"""The format of a measurement of collectives: what is asked for, each row with its percentiles, and the hosts.

Sizes, counts and bandwidths are defined as in nccl-tests (doc/PERFORMANCE.md and the ``GetCollByteCount`` functions of
its ``src/*.cu``, version 2.19.6), so that figures can be laid beside its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from holdfast.errors import BadValue
from holdfast.measured.fit import Fit

SCHEMA = "holdfast/bench/1"
MOST_BYTES = 64 << 20
TORCH = "torch"

#: Collective -> share of algorithm's bandwidth that crosses the busiest link, given the number of ranks.
_TWICE, _ONCE, _WHOLE = "2(n-1)/n", "(n-1)/n", "1"
BUS: Mapping[str, str] = {
    "all_reduce": _TWICE, "all_gather": _ONCE, "reduce_scatter": _ONCE, "broadcast": _WHOLE, "reduce": _WHOLE,
    "all_to_all": _ONCE, "sendrecv": _WHOLE,
}  # fmt: skip
COLLECTIVES = tuple(BUS)
#: Those that reduce, and those that have a root.
REDUCING, ROOTED = frozenset({"all_reduce", "reduce_scatter", "reduce"}), frozenset({"broadcast", "reduce"})
#: Those whose buffer has a part for each rank.
PARTED = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
#: Ways of a collective beside torch's own call, and what each is.
WAYS: Mapping[str, str] = {
    TORCH: "torch.distributed's own call",
    "holdfast": "holdfast.comm, in the way that it finds to be the fastest here",
    "pieces": "holdfast.comm.all_reduce in pieces of 1 M elements, four at once",
    "bf16": "holdfast.comm.all_reduce with bfloat16 on the wire",
    "hierarchy": "holdfast.comm.Hierarchy: inside hosts, between hosts, and back",
    "one-by-one": "64 tensors, reduced one after the other by torch",
    "coalesced": "the same 64 tensors by holdfast.comm.all_reduce_many",
}
#: Ways that know sums alone; ``holdfast`` knows some more collectives.
_SUMS_ALONE = frozenset(WAYS) - {TORCH, "holdfast"}
_HOLDFASTS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
#: dtype -> bytes, and its name in nccl-tests.
DTYPES: Mapping[str, tuple[int, str]] = {
    "float32": (4, "float"), "float64": (8, "double"), "float16": (2, "half"), "bfloat16": (2, "bfloat16"),
    "int8": (1, "int8"), "uint8": (1, "uint8"), "int32": (4, "int32"), "int64": (8, "int64"),
}  # fmt: skip
OPS = ("sum", "prod", "min", "max", "avg")

_Word = Annotated[str, msgspec.Meta(max_length=4096)]
_Collective = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{'|'.join(BUS)})\Z")]
_Dtype = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{'|'.join(DTYPES)})\Z")]
_Ranks = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured: sizes in bytes (``step_bytes``: they grow by addition), ``limit_s`` of each call."""

    collectives: tuple[str, ...] = ("all_reduce",)
    ways: tuple[str, ...] = (TORCH,)
    backends: tuple[str, ...] = ()
    min_bytes: int = 8
    max_bytes: int = 32 << 20
    factor: float = 2.0
    step_bytes: int | None = None
    iters: int = 20
    warmup: int = 5
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    check: bool = True
    pairs: bool = False
    limit_s: float = 120.0

    def sizes(self) -> Iterator[int]:
        """Bytes of each row, before they are rounded to whole elements."""
        size = self.min_bytes
        while size <= self.max_bytes:
            yield size
            size = size + self.step_bytes if self.step_bytes else max(size + 1, int(size * self.factor))


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a call: the mean over ranks and calls, and the rest over all ``calls`` of all ranks.

    ``wrong``: elements of all ranks that were not what they have to be; None where nothing was checked.
    """

    mean_s: _Seconds
    min_s: _Seconds
    p50_s: _Seconds
    p90_s: _Seconds
    p99_s: _Seconds
    max_s: _Seconds
    calls: _Count
    wrong: _Count | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One size: of the larger of the two buffers of a rank; ``count`` elements are given by each rank, as torch counts.

    A placement that the call does not have is None.
    """

    size_bytes: _Count
    count: _Count
    out_of_place: Timing | None = None
    in_place: Timing | None = None

    @property
    def timing(self) -> Timing | None:
        """Of the call itself: in place where it can be, as out of place torch's reductions copy first."""
        return self.in_place or self.out_of_place


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One collective by one way over all sizes. ``root`` is -1 and ``op`` ``none`` where there is none."""

    collective: _Collective
    way: _Word
    backend: _Word
    dtype: _Dtype
    op: _Word
    root: int
    ranks: _Ranks
    rows: tuple[Row, ...] = ()

    @property
    def name(self) -> str:
        """``all_reduce over gloo``, with the way where it is not torch's own."""
        way = "" if self.way == TORCH else f" by {self.way}"
        return f"{self.collective} over {self.backend}{way}"

    @property
    def key(self) -> tuple[object, ...]:
        """What makes series of two measurements comparable."""
        return self.collective, self.way, self.backend, self.dtype, self.op

    @property
    def average_busbw(self) -> float:
        """GB/s over all rows and both placements, as nccl-tests' last line has it."""
        found = [
            busbw(self.collective, row.size_bytes, timing.mean_s, self.ranks)
            for row in self.rows for timing in (row.out_of_place, row.in_place) if timing is not None
        ]  # fmt: skip
        return sum(found) / len(found) if found else 0.0

    @property
    def wrong(self) -> int:
        """Elements that were wrong, of all rows."""
        timings = [timing for row in self.rows for timing in (row.out_of_place, row.in_place) if timing is not None]
        return sum(timing.wrong or 0 for timing in timings)


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A host as far as its speed depends on it.

    ``line_rate``: bytes a second of the slowest link that the ranks use, told in words by ``line``; None where it is
    not known, and ``line`` says why.
    """

    name: _Word
    processor: _Word = ""
    cores: _Count = 0
    devices: tuple[_Word, ...] = ()
    interface: _Word = ""
    line_rate: Annotated[float, msgspec.Meta(gt=0, le=1e18)] | None = None
    line: _Word = ""
    ranks: tuple[_Count, ...] = ()


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two ranks: half the round trip of a byte in seconds, and bytes a second one way."""

    ranks: tuple[_Count, _Count]
    latency_s: _Seconds
    bandwidth: Annotated[float, msgspec.Meta(ge=0, le=1e18)]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """All series of one run, and where it ran. ``at`` is in Unix seconds, ``elapsed_s`` how long it took."""

    schema: str = SCHEMA
    holdfast: _Word = ""
    torch: _Word = ""
    at: float = 0.0
    elapsed_s: float = 0.0
    ranks: _Count = 0
    hosts: tuple[Host, ...] = ()
    series: tuple[Series, ...] = ()
    fits: tuple[Fit, ...] = ()
    pairs: tuple[Pair, ...] = ()

    def limit(self, series: Series) -> float | None:
        """Bytes a second of the slowest host's link; None where it is not known, or this series does not use it.

        On a single host NCCL goes over the GPUs' links, and gloo beside it through memory.
        """
        rates = [host.line_rate for host in self.hosts]
        apart = series.backend != "nccl" and any(each.backend == "nccl" for each in self.series)
        if apart and not any(host.interface for host in self.hosts):
            return None
        known = [rate for rate in rates if rate is not None]
        return min(known) if known and len(known) == len(rates) else None


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank that ``holdfast bench`` starts itself is to do."""

    wish: Wish
    host: Host
    rank: int
    ranks: int
    init_method: str


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What its first rank says: a row of a series as it ends, the measurement at the end, or why there is none.

    ``usage``: the mistake is the user's.
    """

    series: Series | None = None
    row: Row | None = None
    measurement: Measurement | None = None
    error: str = ""
    usage: bool = False


def element_count(collective: str, size_bytes: int, dtype: str, ranks: int) -> int:
    """Elements that each rank gives, as nccl-tests rounds them: parts for ranks to 16 bytes."""
    width = DTYPES[dtype][0]
    if collective not in PARTED:
        return size_bytes // width
    return size_bytes // width // ranks & ~(16 // width - 1)


def takes(collective: str, way: str, dtype: str = "float32", op: str = "sum") -> bool:
    """Whether there is such a way for the collective."""
    if way == TORCH:
        return True
    if way == "holdfast":
        return collective in _HOLDFASTS
    if collective != "all_reduce" or way not in _SUMS_ALONE or (way == "hierarchy" and op == "avg"):
        return False
    return way != "bf16" or dtype in ("float32", "float64")


def algbw(size_bytes: int, seconds: float) -> float:
    """GB/s (of 1e9 bytes) of the call."""
    return size_bytes / seconds / 1e9 if seconds > 0 else 0.0


def busbw(collective: str, size_bytes: int, seconds: float, ranks: int) -> float:
    """GB/s that cross the busiest link, so that it can be held against what the link can do, however many ranks."""
    return algbw(size_bytes, seconds) * bus_share(collective, ranks)


def bus_share(collective: str, ranks: int) -> float:
    """What the algorithm's bandwidth is multiplied by."""
    rest = (ranks - 1) / ranks
    return {_TWICE: 2 * rest, _ONCE: rest, _WHOLE: 1.0}[BUS[collective]]


def parse(data: bytes, name: str) -> Measurement:
    """The content of a file that ``holdfast bench --save`` wrote: the measurement in its envelope.

    Raises:
        BadValue: it is too large, or no such measurement.
    """
    why = f"it has more than {MOST_BYTES >> 20} MiB" if len(data) > MOST_BYTES else ""
    found = Measurement()
    if not why:
        try:
            found = msgspec.json.decode(data, type=_Envelope).measurement
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            why = f"it is no measurement: {error}"
    if not why and found.schema != SCHEMA:
        why = f"its schema is {found.schema!r}, not {SCHEMA!r}"
    if why:
        raise BadValue(f"the measurement {name}", why=why, next_step="make one with: holdfast bench --save FILE")
    return found


class _Envelope(msgspec.Struct, frozen=True):
    measurement: Measurement
