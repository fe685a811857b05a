"""The document format of a collective benchmark: request, rows with percentiles, and hosts.

Sizes, counts and bandwidths are defined as in nccl-tests (doc/PERFORMANCE.md and the
``GetCollByteCount`` functions of its ``src/*.cu``, version 2.19.6), so results are comparable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from holdfast.core.documents import decode_document
from holdfast.core.errors import InvalidValue
from holdfast.core.measurements.fit import AlphaBetaFit

SCHEMA = "holdfast/bench/1"
MAX_BYTES = 64 << 20
TORCH_ALGORITHM = "torch"

#: Collective -> bus bandwidth as a multiple of algorithm bandwidth, for n ranks.
_TWICE, _ONCE, _WHOLE = "2(n-1)/n", "(n-1)/n", "1"
BUS: Mapping[str, str] = {
    "all_reduce": _TWICE,
    "all_gather": _ONCE,
    "reduce_scatter": _ONCE,
    "broadcast": _WHOLE,
    "reduce": _WHOLE,
    "all_to_all": _ONCE,
    "sendrecv": _WHOLE,
}
COLLECTIVES = tuple(BUS)
#: Collectives that reduce, and those with a root.
REDUCING_COLLECTIVES, ROOTED_COLLECTIVES = (
    frozenset({"all_reduce", "reduce_scatter", "reduce"}),
    frozenset({"broadcast", "reduce"}),
)
#: Collectives whose buffer has one part for each rank.
SPLIT_COLLECTIVES = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
#: Algorithm -> description.
ALGORITHMS: Mapping[str, str] = {
    TORCH_ALGORITHM: "torch.distributed's own call",
    "holdfast": "holdfast.comm with automatic algorithm selection",
    "pieces": "holdfast.comm.all_reduce in chunks of 1 M elements, four in flight",
    "bf16": "holdfast.comm.all_reduce with bfloat16 on the wire",
    "hierarchy": "holdfast.comm.Hierarchy: inside hosts, between hosts, and back",
    "one-by-one": "64 tensors, reduced one after another by torch",
    "coalesced": "the same 64 tensors, with holdfast.comm.all_reduce_many",
}
#: Algorithms that support all_reduce only; ``holdfast`` supports more collectives.
_ALL_REDUCE_ONLY = frozenset(ALGORITHMS) - {TORCH_ALGORITHM, "holdfast"}
_SUPPORTED_BY_HOLDFAST = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
#: dtype -> bytes, and its name in nccl-tests.
DTYPES: Mapping[str, tuple[int, str]] = {
    "float32": (4, "float"),
    "float64": (8, "double"),
    "float16": (2, "half"),
    "bfloat16": (2, "bfloat16"),
    "int8": (1, "int8"),
    "uint8": (1, "uint8"),
    "int32": (4, "int32"),
    "int64": (8, "int64"),
}
OPS = ("sum", "prod", "min", "max", "avg")

_Word = Annotated[str, msgspec.Meta(max_length=4096)]
_Collective = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{'|'.join(BUS)})\Z")]
_Dtype = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{'|'.join(DTYPES)})\Z")]
_Ranks = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark request.

    Sizes and the additive ``step_bytes`` are in bytes, ``limit_s`` per call.
    """

    collectives: tuple[str, ...] = ("all_reduce",)
    algorithms: tuple[str, ...] = (TORCH_ALGORITHM,)
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
        """Yield the size of each row in bytes, before rounding to whole elements."""
        size = self.min_bytes
        while size <= self.max_bytes:
            yield size
            size = (
                size + self.step_bytes
                if self.step_bytes
                else max(size + 1, int(size * self.factor))
            )


class IterationTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Call durations in seconds: the mean, and statistics over all ``calls`` of all ranks.

    ``wrong``: number of incorrect elements on all ranks; None where results were not checked.
    """

    mean_s: _Seconds
    min_s: _Seconds
    p50_s: _Seconds
    p90_s: _Seconds
    p99_s: _Seconds
    max_s: _Seconds
    calls: _Count
    wrong: _Count | None = None


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One size, that of the larger buffer of a rank; each rank contributes ``count`` elements.

    A placement that the collective does not support is None.
    """

    size_bytes: _Count
    count: _Count
    out_of_place: IterationTiming | None = None
    in_place: IterationTiming | None = None

    @property
    def timing(self) -> IterationTiming | None:
        """Return the in-place timing if any: out of place, torch's reductions copy first."""
        return self.in_place or self.out_of_place


class BenchSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One collective with one algorithm over all sizes.

    ``root`` -1 and ``op`` ``none`` do not apply.
    """

    collective: _Collective
    way: _Word
    backend: _Word
    dtype: _Dtype
    op: _Word
    root: int
    ranks: _Ranks
    rows: tuple[BenchRow, ...] = ()

    @property
    def name(self) -> str:
        """Return ``all_reduce over gloo``, with the algorithm where it is not torch's own."""
        algorithm = "" if self.way == TORCH_ALGORITHM else f" ({self.way})"
        return f"{self.collective} over {self.backend}{algorithm}"

    @property
    def key(self) -> tuple[object, ...]:
        """Return what series of two measurements have in common if they are comparable."""
        return self.collective, self.way, self.backend, self.dtype, self.op

    @property
    def average_busbw(self) -> float:
        """Return the mean bus bandwidth in GB/s over all rows and placements (as nccl-tests)."""
        bandwidths = [
            busbw(self.collective, row.size_bytes, timing.mean_s, self.ranks)
            for row in self.rows
            for timing in (row.out_of_place, row.in_place)
            if timing is not None
        ]
        return sum(bandwidths) / len(bandwidths) if bandwidths else 0.0

    @property
    def wrong(self) -> int:
        """Return the number of incorrect elements of all rows."""
        timings = [
            timing
            for row in self.rows
            for timing in (row.out_of_place, row.in_place)
            if timing is not None
        ]
        return sum(timing.wrong or 0 for timing in timings)


class BenchHost(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a host that determine its speed.

    ``line_rate``: bytes/s of the slowest link that the ranks use; ``line`` describes it. None where
    unknown; ``line`` then holds the reason.
    """

    name: _Word
    processor: _Word = ""
    cores: _Count = 0
    devices: tuple[_Word, ...] = ()
    interface: _Word = ""
    line_rate: Annotated[float, msgspec.Meta(gt=0, le=1e18)] | None = None
    line: _Word = ""
    ranks: tuple[_Count, ...] = ()


class LinkPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two ranks: half the round trip of one byte in seconds, and bytes/s in one direction."""

    ranks: tuple[_Count, _Count]
    latency_s: _Seconds
    bandwidth: Annotated[float, msgspec.Meta(ge=0, le=1e18)]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """All series of one run and their environment.

    ``at`` is Unix time, ``elapsed_s`` the duration.
    """

    schema: str = SCHEMA
    holdfast: _Word = ""
    torch: _Word = ""
    at: float = 0.0
    elapsed_s: float = 0.0
    ranks: _Count = 0
    hosts: tuple[BenchHost, ...] = ()
    series: tuple[BenchSeries, ...] = ()
    fits: tuple[AlphaBetaFit, ...] = ()
    pairs: tuple[LinkPair, ...] = ()

    def limit(self, series: BenchSeries) -> float | None:
        """Return bytes/s of the slowest host's link; None if unknown or not used by this series.

        On a single host, NCCL uses the GPU links, and gloo measured with it uses memory.
        """
        rates = [host.line_rate for host in self.hosts]
        uses_memory = series.backend != "nccl" and any(
            other.backend == "nccl" for other in self.series
        )
        if uses_memory and not any(host.interface for host in self.hosts):
            return None
        known = [rate for rate in rates if rate is not None]
        return min(known) if known and len(known) == len(rates) else None


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions for a rank that ``holdfast bench`` starts."""

    request: BenchRequest
    host: BenchHost
    rank: int
    ranks: int
    init_method: str


class WorkerReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of the first rank: a row as it ends, the final measurement, or an error.

    ``usage``: the error is a usage error. It then has ``subject``, ``why`` and ``next_step``.
    """

    series: BenchSeries | None = None
    row: BenchRow | None = None
    measurement: Measurement | None = None
    error: str = ""
    subject: str = ""
    why: str = ""
    next_step: str = ""
    usage: bool = False


def element_count(collective: str, size_bytes: int, dtype: str, ranks: int) -> int:
    """Return the elements that each rank contributes, rounded as in nccl-tests (16-byte parts)."""
    width = DTYPES[dtype][0]
    if collective not in SPLIT_COLLECTIVES:
        return size_bytes // width
    return size_bytes // width // ranks & ~(16 // width - 1)


def supports(collective: str, algorithm: str, dtype: str = "float32", op: str = "sum") -> bool:
    """Return whether the algorithm supports this collective, dtype and operation."""
    if algorithm == TORCH_ALGORITHM:
        return True
    if algorithm == "holdfast":
        return collective in _SUPPORTED_BY_HOLDFAST
    if collective != "all_reduce" or algorithm not in _ALL_REDUCE_ONLY:
        return False
    if algorithm == "hierarchy" and op == "avg":
        return False
    return algorithm != "bf16" or dtype in ("float32", "float64")


def algbw(size_bytes: int, seconds: float) -> float:
    """Return the algorithm bandwidth of a call in GB/s (1e9 bytes)."""
    return size_bytes / seconds / 1e9 if seconds > 0 else 0.0


def busbw(collective: str, size_bytes: int, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth in GB/s.

    Traffic on the busiest link, comparable for any rank count.
    """
    return algbw(size_bytes, seconds) * bus_share(collective, ranks)


def bus_share(collective: str, ranks: int) -> float:
    """Return the factor from algorithm bandwidth to bus bandwidth."""
    remote_share = (ranks - 1) / ranks
    return {_TWICE: 2 * remote_share, _ONCE: remote_share, _WHOLE: 1.0}[BUS[collective]]


def parse_measurement(data: bytes, name: str) -> Measurement:
    """Parse a file written by ``holdfast bench --save``: the measurement in its JSON envelope.

    Raises:
        InvalidValue: it is too large or not a measurement.
    """
    return decode_document(
        data,
        _Envelope,
        schema=SCHEMA,
        max_bytes=MAX_BYTES,
        error=lambda problem: InvalidValue(
            f"the measurement {name}",
            why=f"it {problem}",
            next_step="create one with: holdfast bench --save FILE",
        ),
    ).measurement


class _Envelope(msgspec.Struct, frozen=True):
    measurement: Measurement

    @property
    def schema(self) -> str:
        return self.measurement.schema
