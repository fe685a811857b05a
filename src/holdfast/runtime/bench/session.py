"""One measurement, from the process group to the last row, as every rank of it runs it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist

import holdfast
from holdfast.errors import BadValue, CollectiveFailed
from holdfast.measured import (
    REDUCING,
    ROOTED,
    Host,
    Measurement,
    Row,
    Series,
    Timing,
    Wish,
    takes,
)
from holdfast.measured.fit import Fit, line
from holdfast.runtime.bench import loop
from holdfast.runtime.bench.calls import Bench, Case
from holdfast.runtime.bench.pairs import measure_pairs
from holdfast.runtime.comm import choice
from holdfast.runtime.comm.hosts import identity

#: Calls after which holdfast.comm has decided for a way: turns of four ways, and the one that agrees on it.
_SETTLING = 4 * choice.TURNS + 1
#: In so many blocks the ways of a collective take turns at each size, so that a machine that drifts does so for all.
_BLOCKS = 4
_BUFFERS = 2
#: Where in gloo's source an error was raised: ``[/…/pair.cc:537] ``.
_PLACE = re.compile(r"^\[[^\]]*:\d+\] ")

Tell = Callable[[Series, Row], None]


def join(wish: Wish, init_method: str, rank: int, ranks: int, local_rank: int) -> None:
    """Make the default group, of the first backend that is wanted.

    Raises:
        BadValue: there is no NCCL, or no GPU for this rank.
        CollectiveFailed: the ranks did not come together.
    """
    if "nccl" in backends(wish):
        _refuse_without_gpu(local_rank)
        torch.cuda.set_device(local_rank)
    try:
        dist.init_process_group(
            backends(wish)[0], init_method=init_method, rank=rank, world_size=ranks,
            timeout=timedelta(seconds=wish.limit_s),
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise CollectiveFailed("the start of the benchmark", why=_first_line(error),
                               next_step="try: holdfast check --connect") from error  # fmt: skip


def _refuse_without_gpu(local_rank: int) -> None:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    why = f"rank {local_rank} of this host has no GPU of its own: there are {gpus}" if local_rank >= gpus else ""
    if not dist.is_nccl_available():
        why = "this torch was built without NCCL"
    if why:
        raise BadValue("--backend nccl", why=why, next_step="give --backend gloo, or fewer ranks")


def leave() -> None:
    """End together: a rank that left first would break the others' last call."""
    dist.barrier()
    dist.destroy_process_group()


def backends(wish: Wish) -> tuple[str, ...]:
    """Those that are wanted; NCCL where there is a GPU and none is named, else gloo."""
    if wish.backends:
        return wish.backends
    return ("nccl",) if torch.cuda.is_available() and dist.is_nccl_available() else ("gloo",)


def measure(wish: Wish, host: Host, tell: Tell | None = None) -> Measurement:
    """Measure what is wished for in the default group; the same on every rank. ``tell`` hears of each row as it ends.

    Raises:
        BadValue: what is wished for cannot be had, such as a root that is no rank.
        CollectiveFailed: a call failed.
    """
    began, at = time.monotonic(), time.time()
    ranks = dist.get_world_size()
    if not 0 <= wish.root < ranks:
        raise BadValue("--root", why=f"there is no rank {wish.root} among {ranks}", next_step="ranks count from 0")
    if ranks == 1 and "sendrecv" in wish.collectives:
        raise BadValue("sendrecv", why="a single rank has nobody to send to", next_step="give --nproc-per-node 2")
    try:
        hosts = _hosts(host)
        series: list[Series] = []
        for backend in backends(wish):
            bench = _bench(wish, backend)
            for collective in wish.collectives:
                series += _collective(bench, wish, backend, collective, tell)
            _refuse_nothing(wish, series)
            pairs = measure_pairs(bench, hosts) if wish.pairs and backend == backends(wish)[-1] else ()
    except RuntimeError as error:
        raise CollectiveFailed("the benchmark", why=_first_line(error)) from error
    return Measurement(
        holdfast=holdfast.__version__, torch=str(torch.__version__), at=at,
        elapsed_s=round(time.monotonic() - began, 3), ranks=ranks, hosts=hosts, series=tuple(series), pairs=pairs,
        fits=tuple(fit for each in series if (fit := _fit(each, len(hosts), at)) is not None),
    )  # fmt: skip


def _refuse_nothing(wish: Wish, series: list[Series]) -> None:
    """See that something was measured of every collective: too small a size has no element for each rank."""
    if empty := [each for each in series if not each.rows]:
        first = empty[0]
        what = f"{wish.max_bytes} bytes of {first.collective}"
        why = f"{what} leave nothing for each of {first.ranks} ranks, in steps of 16"
        raise BadValue("--max-bytes", why=why, next_step="give a larger size")


def _bench(wish: Wish, backend: str) -> Bench:
    first = backend == backends(wish)[0]
    group = dist.group.WORLD if first else dist.new_group(backend=backend, timeout=timedelta(seconds=wish.limit_s))
    if group is None:
        raise CollectiveFailed("the benchmark", why="torch made no group")
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
    dtype = getattr(torch, wish.dtype)
    ranks = dist.get_world_size(group)
    elements = -(-wish.max_bytes // dtype.itemsize) + ranks * 16
    # Written once: memory that was never touched is one page of zeros, and quicker than any other.
    send, receive = (torch.empty(elements, dtype=dtype, device=device).zero_() for _ in range(_BUFFERS))
    return Bench(group, dist.get_rank(group), ranks, send, receive, wish.op, wish.root, wish.limit_s)


def _collective(bench: Bench, wish: Wish, backend: str, collective: str, tell: Tell | None) -> list[Series]:
    """All sizes of one collective, each by all ways."""
    ways = [way for way in wish.ways if takes(collective, way, wish.dtype, wish.op)]
    series = [
        Series(
            collective=collective, way=way, backend=backend, dtype=wish.dtype,
            op=wish.op if collective in REDUCING else "none", root=wish.root if collective in ROOTED else -1,
            ranks=bench.ranks,
        )
        for way in ways
    ]  # fmt: skip
    for size in wish.sizes():
        cases = [Case(bench, collective, way, size) for way in ways]
        if not cases or not cases[0].count:
            continue
        rows = _rows(bench, wish, cases)
        for index, row in enumerate(rows):
            series[index] = msgspec.structs.replace(series[index], rows=(*series[index].rows, row))
            if tell is not None:
                tell(series[index], row)
    return series


def _rows(bench: Bench, wish: Wish, cases: list[Case]) -> list[Row]:
    placements: dict[str, list[Timing | None]] = {}
    for name in ("out_of_place", "in_place"):
        calls = [getattr(case, name)() for case in cases]
        placements[name] = _timings(bench, wish, cases, calls, in_place=name == "in_place")
    return [
        Row(size_bytes=case.size_bytes, count=case.count, out_of_place=out, in_place=into)
        for case, out, into in zip(cases, placements["out_of_place"], placements["in_place"], strict=True)
    ]


def _timings(
    bench: Bench, wish: Wish, cases: list[Case], calls: list[loop.Call | None], *, in_place: bool
) -> list[Timing | None]:
    """One timing for each way, whose calls took turns in blocks."""
    device = bench.send.device
    taken: list[list[float]] = [[] for _ in calls]
    wrong: list[int | None] = [None for _ in calls]
    for index, (case, call) in enumerate(zip(cases, calls, strict=True)):
        if call is not None:
            warmup = max(wish.warmup, _SETTLING) if case.settles else wish.warmup
            loop.times_of(call, warmup, device)
            wrong[index] = _checked(case, call, device, in_place=in_place) if wish.check else None
    bench.send.zero_()
    bench.receive.zero_()
    blocks = min(_BLOCKS, wish.iters) if len(calls) > 1 else 1
    for block in range(blocks):
        share = wish.iters * (block + 1) // blocks - wish.iters * block // blocks
        for index, call in enumerate(calls):
            if call is not None:
                dist.barrier(bench.group)
                loop.settled(device)
                taken[index] += loop.times_of(call, share, device)
    return [
        loop.gathered(times, count, bench.group, device) if times else None  # noqa: SYNC004 - calls are alike on all ranks
        for times, count in zip(taken, wrong, strict=True)
    ]


def _checked(case: Case, call: loop.Call, device: torch.device, *, in_place: bool) -> int:
    """Elements of this rank that one call gets wrong."""
    case.fill(in_place=in_place)
    call()
    loop.settled(device)
    return case.wrong(in_place=in_place)


def _hosts(mine: Host) -> tuple[Host, ...]:
    """What every rank says of its host, one for each, with its ranks; in the order of their first rank."""
    told: list[tuple[str, bytes]] = [("", b"")] * dist.get_world_size()
    dist.all_gather_object(told, (identity(), msgspec.json.encode(mine)))
    ranks: dict[str, list[int]] = {}
    for rank, (name, _) in enumerate(told):
        ranks.setdefault(name, []).append(rank)
    found = (msgspec.json.decode(told[own[0]][1], type=Host) for own in ranks.values())
    return tuple(
        msgspec.structs.replace(host, ranks=tuple(own)) for host, own in zip(found, ranks.values(), strict=True)
    )


def _fit(series: Series, hosts: int, at: float) -> Fit | None:
    """Latency and bandwidth from the medians: a call that something else disturbed tells nothing of the link."""
    timings = [(row.size_bytes, row.timing.p50_s) for row in series.rows if row.timing is not None]
    found = line(timings)
    if found is None:
        return None
    return Fit(
        collective=series.collective, way=series.way, backend=series.backend, dtype=series.dtype, ranks=series.ranks,
        hosts=hosts, at=at, largest_bytes=max(size for size, _ in timings), **msgspec.structs.asdict(found),
    )  # fmt: skip


def _first_line(error: Exception) -> str:
    """What torch said, without its C++ stack, place in the source, and advice."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return _PLACE.sub("", line).partition(" This is typically caused")[0][:300].rstrip(". ")
