"""Measure collectives with ranks started on this host, and read saved measurements.

The ranks are separate processes (``python -m holdfast.preflight.bench.torch_worker``). They
rendezvous through a file, so no port is needed, and the first rank reports on a pipe. The run
always ends, even if ranks die or hang.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core.errors import CollectiveFailed, InvalidValue, MissingFile
from holdfast.core.findings import Unknown
from holdfast.core.measurements import (
    DTYPES,
    MAX_BYTES,
    SPLIT_COLLECTIVES,
    BenchHost,
    BenchRequest,
    BenchRow,
    BenchSeries,
    Measurement,
    WorkerOrder,
    WorkerReply,
    parse_measurement,
)
from holdfast.core.text import os_error_reason
from holdfast.host import cgroups
from holdfast.host.processes import proc
from holdfast.host.processes.proc import PROC

_MODULE = "holdfast.preflight.bench.torch_worker"
#: Time to import torch and to rendezvous, in addition to the limit of each call.
_START_S = 120.0
_EXIT_S = 5.0
_NEXT_STEP = "check this host first: holdfast check"
#: Buffers per rank, and with torch's temporary copy for gathering on gloo.
_BUFFERS, _BUFFERS_WITH_COPY = 2, 3

RowCallback = Callable[[BenchSeries, BenchRow], None]


def read_measurement(path: Path) -> Measurement:
    """Read a measurement written by ``holdfast bench --save``.

    Raises:
        MissingFile: it cannot be opened.
        InvalidValue: it is not a measurement.
    """
    try:
        with path.open("rb") as stream:
            return parse_measurement(stream.read(MAX_BYTES + 1), str(path))
    except OSError as error:
        raise MissingFile(path, why=os_error_reason(error)) from error


def check_memory(request: BenchRequest, local_ranks: int, proc_root: Path = PROC) -> None:
    """Check that the largest size fits into this host's memory for this many ranks.

    Raises:
        InvalidValue: it does not; the message has the figures.
    """
    buffers = _BUFFERS_WITH_COPY if SPLIT_COLLECTIVES & set(request.collectives) else _BUFFERS
    needed = local_ranks * (buffers * request.max_bytes + 16 * DTYPES[request.dtype][0])
    free = _free_bytes(proc_root)
    if free is not None and needed > free:
        raise InvalidValue(
            "--max-bytes",
            why=f"{request.max_bytes / 1e9:.3g} GB with {local_ranks} ranks and {buffers} buffers "
            f"each need {needed / 1e9:.3g} GB of memory; {free / 1e9:.3g} GB are free",
            next_step="use a smaller size, or fewer ranks",
        )


def _free_bytes(proc_root: Path) -> int | None:
    """Return the available memory by the kernel and the cgroup limit; None if unknown."""
    text = proc.read_text(proc_root / "meminfo")
    free: list[int] = []
    if isinstance(text, str):
        free += [
            int(words[1]) << 10
            for line in text.splitlines()
            if (words := line.split())[:1] == ["MemAvailable:"]
        ]
    group = cgroups.cgroup_of("self", "memory", proc_root)
    if not isinstance(group, Unknown):
        limit = cgroups.memory_limit(group)
        free += [] if isinstance(limit, Unknown) else [limit.available_bytes]
    return min(free, default=None)


def run_measurement(
    request: BenchRequest,
    host: BenchHost,
    ranks: int,
    environ: Mapping[str, str],
    on_row: RowCallback | None = None,
) -> Measurement:
    """Start ``ranks`` processes on this host and measure; ``on_row`` gets each row as it ends.

    Raises:
        InvalidValue: the request is not possible, as a rank reports.
        CollectiveFailed: a rank died, or a row took longer than its limit.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        reader, writer = os.pipe()
        started = [
            _start(
                WorkerOrder(
                    request=request,
                    host=host,
                    rank=rank,
                    ranks=ranks,
                    init_method=f"file://{folder}/store",
                ),
                environ,
                Path(folder),
                writer if rank == 0 else None,
            )
            for rank in range(ranks)
        ]
        os.close(writer)
        try:
            for reply in _replies(reader, request, started, Path(folder)):
                if reply.error:
                    raise _error(reply, started)
                if reply.series is not None and reply.row is not None and on_row is not None:
                    on_row(reply.series, reply.row)
                if reply.measurement is not None:
                    return reply.measurement
        finally:
            os.close(reader)
            _stop(started)
        raise CollectiveFailed(
            "the benchmark", why=_last_output(started, Path(folder)), next_step=_NEXT_STEP
        )


def _start(
    order: WorkerOrder, environ: Mapping[str, str], folder: Path, pipe: int | None
) -> subprocess.Popen[bytes]:
    variables = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **environ,
        "RANK": str(order.rank),
        "WORLD_SIZE": str(order.ranks),
        "LOCAL_RANK": str(order.rank),
        "LOCAL_WORLD_SIZE": str(order.ranks),
    }
    order_file = folder / f"order{order.rank}"
    order_file.write_bytes(msgspec.json.encode(order))
    target = pipe if pipe is not None else os.open(os.devnull, os.O_WRONLY)
    try:
        with order_file.open("rb") as stdin, (folder / f"output{order.rank}").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", _MODULE, str(target)],
                stdin=stdin,
                stdout=output,
                stderr=output,
                env=variables,
                pass_fds=(target,),
            )
    finally:
        if pipe is None:
            os.close(target)


def _replies(
    pipe: int, request: BenchRequest, ranks: Sequence[subprocess.Popen[bytes]], folder: Path
) -> Iterator[WorkerReply]:
    """Yield the first rank's replies until it closes the pipe.

    Raises CollectiveFailed on silence.
    """
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        silent_since, limit_s = time.monotonic(), _START_S + request.limit_s
        while True:
            if selector.select(1.0):
                data = os.read(pipe, 1 << 16)
                if not data:
                    return
                silent_since, limit_s = time.monotonic(), _row_limit_s(request)
                *lines, buffer = (buffer + data).split(b"\n")
                yield from (msgspec.json.decode(line, type=WorkerReply) for line in lines)
            elif any(rank.poll() not in (None, 0) for rank in ranks):
                time.sleep(_EXIT_S / 5)  # the first rank may report a more precise error
                if not selector.select(_EXIT_S):
                    raise CollectiveFailed(
                        "the benchmark", why=_last_output(ranks, folder), next_step=_NEXT_STEP
                    )
            elif time.monotonic() - silent_since > limit_s:
                raise CollectiveFailed(
                    "the benchmark",
                    why=f"no progress for {limit_s:.0f} s",
                    next_step="use a longer --limit, or smaller sizes",
                )


def _row_limit_s(request: BenchRequest) -> float:
    """Return the limit of a row: a hung call ends by its own limit.

    Gloo's first calls are slower.
    """
    return 6 * request.limit_s


def _error(
    reply: WorkerReply, ranks: Sequence[subprocess.Popen[bytes]]
) -> InvalidValue | CollectiveFailed:
    """Return the first rank's error; if another rank was stopped or killed, that is the reason."""
    if reply.usage:
        return InvalidValue(reply.subject, why=reply.why, next_step=reply.next_step or None)
    why = reply.error.removeprefix("the benchmark failed: ").partition("; ")[0]
    time.sleep(_EXIT_S / 10)  # connections break before the exit status is available
    for number, rank in enumerate(ranks):
        stat = proc.read_stat(rank.pid)
        if not isinstance(stat, Unknown) and stat.state in ("T", "t"):
            why = f"rank {number} is stopped (SIGSTOP, or a debugger)"
        elif rank.poll() == -signal.SIGKILL:
            why = f"rank {number} was killed (SIGKILL)"
    return CollectiveFailed("the benchmark", why=why, next_step=_NEXT_STEP)


def _last_output(ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> str:
    """Return how the first failed rank ended, and its last line of output."""
    for number, rank in enumerate(ranks):
        with suppress(subprocess.TimeoutExpired):
            rank.wait(0.5)
        if rank.returncode not in (None, 0):
            with suppress(OSError):
                output = (folder / f"output{number}").read_bytes()[-4096:]
                lines = output.decode(errors="replace").split("\n")
                last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
                ended = (
                    f"by signal {-rank.returncode}"
                    if rank.returncode < 0
                    else f"with status {rank.returncode}"
                )
                return f"rank {number} ended {ended}: {last[:300]}"
    return "the first rank ended without an error message"


def _stop(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait briefly for the ranks to exit, and kill the rest."""
    until = time.monotonic() + _EXIT_S
    for rank in ranks:
        with suppress(subprocess.TimeoutExpired):
            rank.wait(max(0.0, until - time.monotonic()))
    for rank in ranks:
        if rank.returncode is None:
            rank.kill()
        rank.wait()
