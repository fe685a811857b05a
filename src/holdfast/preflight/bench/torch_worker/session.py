"""One measurement as every rank runs it, from the process group to the last row."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist

import holdfast
from holdfast.core.errors import CollectiveFailed, InvalidValue
from holdfast.core.measurements import (
    REDUCING_COLLECTIVES,
    ROOTED_COLLECTIVES,
    BenchHost,
    BenchRequest,
    BenchRow,
    BenchSeries,
    IterationTiming,
    Measurement,
    supports,
)
from holdfast.core.measurements.fit import AlphaBetaFit, fit_alpha_beta
from holdfast.core.text import pluralize
from holdfast.preflight.bench.broken_link import describe_broken_link
from holdfast.preflight.bench.torch_worker import timing_loop
from holdfast.preflight.bench.torch_worker.calls import BenchCase, CallBench
from holdfast.preflight.bench.torch_worker.pairs import measure_pairs
from holdfast.training.collectives import algorithm_choice
from holdfast.training.collectives.groups.rank_hosts import host_identity

#: Calls after which holdfast.comm has selected an algorithm: trials of four, and the agreement.
_TUNING_CALLS = 4 * algorithm_choice.TURNS + 1
#: Algorithms alternate in this many blocks per size, so that machine drift affects all equally.
_BLOCKS = 4
_BUFFERS = 2
#: Source location in gloo's errors: ``[/…/pair.cc:537] ``.
_SOURCE_LOCATION = re.compile(r"^\[[^\]]*:\d+\] ")

RowCallback = Callable[[BenchSeries, BenchRow], None]


def join_group(
    request: BenchRequest, init_method: str, rank: int, ranks: int, local_rank: int
) -> None:
    """Create the default group with the first requested backend.

    Raises:
        InvalidValue: NCCL or a GPU for this rank is missing.
        CollectiveFailed: the ranks did not rendezvous.
    """
    if "nccl" in backends(request):
        _check_nccl(local_rank)
        torch.cuda.set_device(local_rank)
    try:
        dist.init_process_group(
            backends(request)[0],
            init_method=init_method,
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=request.limit_s),
        )
    except (RuntimeError, ValueError) as error:
        raise CollectiveFailed(
            "the start of the benchmark",
            why=_first_line(error),
            next_step="run: holdfast check --connect",
        ) from error


def _check_nccl(local_rank: int) -> None:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    why = (
        f"this host has {pluralize(gpus, 'GPU')}, none for local rank {local_rank}"
        if local_rank >= gpus
        else ""
    )
    if not dist.is_nccl_available():
        why = "this torch was built without NCCL"
    if why:
        raise InvalidValue(
            "--backend nccl", why=why, next_step="use --backend gloo, or fewer ranks"
        )


def leave_group() -> None:
    """Leave together: a rank that leaves first would break the others' last call."""
    dist.barrier()
    dist.destroy_process_group()


def backends(request: BenchRequest) -> tuple[str, ...]:
    """Return the requested backends; by default NCCL with a GPU, else gloo."""
    if request.backends:
        return request.backends
    return ("nccl",) if torch.cuda.is_available() and dist.is_nccl_available() else ("gloo",)


def measure(
    request: BenchRequest, host: BenchHost, on_row: RowCallback | None = None
) -> Measurement:
    """Measure in the default group; the same on every rank. ``on_row`` gets each row as it ends.

    Raises:
        InvalidValue: the request is not possible, for example with an invalid root.
        CollectiveFailed: a call failed.
    """
    began, at = time.monotonic(), time.time()
    ranks = dist.get_world_size()
    if not 0 <= request.root < ranks:
        raise InvalidValue("--root", why=f"{request.root} is not in 0..{ranks - 1}")
    if ranks == 1 and "sendrecv" in request.collectives:
        raise InvalidValue(
            "sendrecv", why="it needs at least 2 ranks", next_step="use --nproc-per-node 2"
        )
    try:
        hosts = _hosts(host)
        series: list[BenchSeries] = []
        for backend in backends(request):
            bench = _bench(request, backend)
            for collective in request.collectives:
                series += _collective(bench, request, backend, collective, on_row)
            _check_rows(request, series)
            pairs = (
                measure_pairs(bench, hosts)
                if request.pairs and backend == backends(request)[-1]
                else ()
            )
    except RuntimeError as error:
        link = describe_broken_link(str(error), host)
        raise CollectiveFailed(
            link or "the benchmark",
            why=_first_line(error),
            next_step="run on both hosts: holdfast check --only interfaces" if link else None,
        ) from error
    return Measurement(
        holdfast=holdfast.__version__,
        torch=str(torch.__version__),
        at=at,
        elapsed_s=round(time.monotonic() - began, 3),
        ranks=ranks,
        hosts=hosts,
        series=tuple(series),
        pairs=pairs,
        fits=tuple(fit for each in series if (fit := _fit(each, len(hosts), at)) is not None),
    )


def _check_rows(request: BenchRequest, series: list[BenchSeries]) -> None:
    """Check that every series has rows: too small a size has no element for each rank."""
    if empty := [each for each in series if not each.rows]:
        first = empty[0]
        why = (
            f"{request.max_bytes} bytes of {first.collective} leave no element for each of "
            f"{first.ranks} ranks, in steps of 16 bytes"
        )
        raise InvalidValue("--max-bytes", why=why, next_step="use a larger size")


def _bench(request: BenchRequest, backend: str) -> CallBench:
    first = backend == backends(request)[0]
    group = (
        dist.group.WORLD
        if first
        else dist.new_group(backend=backend, timeout=timedelta(seconds=request.limit_s))
    )
    if group is None:
        raise CollectiveFailed("the benchmark", why="torch created no group")
    device = (
        torch.device("cuda", torch.cuda.current_device())
        if backend == "nccl"
        else torch.device("cpu")
    )
    dtype = getattr(torch, request.dtype)
    ranks = dist.get_world_size(group)
    elements = -(-request.max_bytes // dtype.itemsize) + ranks * 16
    # Touch all pages: untouched memory maps to one zero page and is faster.
    send, receive = (
        torch.empty(elements, dtype=dtype, device=device).zero_() for _ in range(_BUFFERS)
    )
    return CallBench(
        group, dist.get_rank(group), ranks, send, receive, request.op, request.root, request.limit_s
    )


def _collective(
    bench: CallBench,
    request: BenchRequest,
    backend: str,
    collective: str,
    on_row: RowCallback | None,
) -> list[BenchSeries]:
    """Measure all sizes of one collective with all algorithms."""
    algorithms = [
        algorithm
        for algorithm in request.algorithms
        if supports(collective, algorithm, request.dtype, request.op)
    ]
    series = [
        BenchSeries(
            collective=collective,
            way=algorithm,
            backend=backend,
            dtype=request.dtype,
            op=request.op if collective in REDUCING_COLLECTIVES else "none",
            root=request.root if collective in ROOTED_COLLECTIVES else -1,
            ranks=bench.ranks,
        )
        for algorithm in algorithms
    ]
    for size in request.sizes():
        cases = [BenchCase(bench, collective, algorithm, size) for algorithm in algorithms]
        if not cases or not cases[0].count:
            continue
        rows = _rows(bench, request, cases)
        for index, row in enumerate(rows):
            series[index] = msgspec.structs.replace(series[index], rows=(*series[index].rows, row))
            if on_row is not None:
                on_row(series[index], row)
    return series


def _rows(bench: CallBench, request: BenchRequest, cases: list[BenchCase]) -> list[BenchRow]:
    placements: dict[str, list[IterationTiming | None]] = {}
    for name in ("out_of_place", "in_place"):
        calls = [getattr(case, name)() for case in cases]
        placements[name] = _timings(bench, request, cases, calls, in_place=name == "in_place")
    return [
        BenchRow(size_bytes=case.size_bytes, count=case.count, out_of_place=out, in_place=into)
        for case, out, into in zip(
            cases, placements["out_of_place"], placements["in_place"], strict=True
        )
    ]


def _timings(
    bench: CallBench,
    request: BenchRequest,
    cases: list[BenchCase],
    calls: list[timing_loop.Call | None],
    *,
    in_place: bool,
) -> list[IterationTiming | None]:
    """Return one timing per algorithm, whose calls alternated in blocks."""
    device = bench.send.device
    durations: list[list[float]] = [[] for _ in calls]
    wrong: list[int | None] = [None for _ in calls]
    for index, (case, call) in enumerate(zip(cases, calls, strict=True)):
        if call is not None:
            warmup = max(request.warmup, _TUNING_CALLS) if case.needs_tuning else request.warmup
            timing_loop.time_calls(call, warmup, device)
            wrong[index] = (
                _count_wrong(case, call, device, in_place=in_place) if request.check else None
            )
    bench.send.zero_()
    bench.receive.zero_()
    blocks = min(_BLOCKS, request.iters) if len(calls) > 1 else 1
    for block in range(blocks):
        share = request.iters * (block + 1) // blocks - request.iters * block // blocks
        for index, call in enumerate(calls):
            if call is not None:
                dist.barrier(bench.group)
                timing_loop.synchronize(device)
                durations[index] += timing_loop.time_calls(call, share, device)
    return [
        timing_loop.gather_timing(times, count, bench.group, device) if times else None  # noqa: SYNC004 - calls are alike on all ranks
        for times, count in zip(durations, wrong, strict=True)
    ]


def _count_wrong(
    case: BenchCase, call: timing_loop.Call, device: torch.device, *, in_place: bool
) -> int:
    """Return the number of elements of this rank that one call computes incorrectly."""
    case.fill(in_place=in_place)
    call()
    timing_loop.synchronize(device)
    return case.count_wrong(in_place=in_place)


def _hosts(mine: BenchHost) -> tuple[BenchHost, ...]:
    """Return one entry per host with its ranks, in the order of their first rank."""
    entries: list[tuple[str, bytes]] = [("", b"")] * dist.get_world_size()
    dist.all_gather_object(entries, (host_identity(), msgspec.json.encode(mine)))
    ranks: dict[str, list[int]] = {}
    for rank, (name, _) in enumerate(entries):
        ranks.setdefault(name, []).append(rank)
    line_fit = (msgspec.json.decode(entries[own[0]][1], type=BenchHost) for own in ranks.values())
    return tuple(
        msgspec.structs.replace(host, ranks=tuple(own))
        for host, own in zip(line_fit, ranks.values(), strict=True)
    )


def _fit(series: BenchSeries, hosts: int, at: float) -> AlphaBetaFit | None:
    """Fit the medians: a disturbed call says nothing about the link."""
    timings = [(row.size_bytes, row.timing.p50_s) for row in series.rows if row.timing is not None]
    line_fit = fit_alpha_beta(timings)
    if line_fit is None:
        return None
    return AlphaBetaFit(
        collective=series.collective,
        way=series.way,
        backend=series.backend,
        dtype=series.dtype,
        ranks=series.ranks,
        hosts=hosts,
        at=at,
        largest_bytes=max(size for size, _ in timings),
        **msgspec.structs.asdict(line_fit),
    )


def _first_line(error: Exception) -> str:
    """Return torch's message without C++ stack, source location and advice."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return (
        _SOURCE_LOCATION.sub("", line).partition(" This is typically caused")[0][:300].rstrip(". ")
    )
