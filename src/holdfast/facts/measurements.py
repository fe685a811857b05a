"""Measurements of collectives: made by ranks that are started here, and read from files.

The ranks are programs of their own (``python -m holdfast.runtime.bench``). They find each other through a file, so that
no port is needed, and their first one says on a pipe what it measured. Whatever happens to them, this ends.
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

from holdfast.errors import BadValue, CollectiveFailed, MissingFile
from holdfast.facts import cgroups, proc
from holdfast.facts.proc import PROC
from holdfast.findings import Unknown
from holdfast.measured import DTYPES, MOST_BYTES, PARTED, Host, Measurement, Order, Row, Series, Told, Wish, parse

_MODULE = "holdfast.runtime.bench"
#: To import torch and meet, beside the limit of each call.
_START_S = 120.0
_ENDING_S = 5.0
_NEXT = "look at this host first: holdfast check"
#: The buffers of a rank, and torch's own for gathering on gloo.
_BUFFERS, _WITH_COPY = 2, 3

Tell = Callable[[Series, Row], None]


def read(path: Path) -> Measurement:
    """A measurement that was kept with ``holdfast bench --save``.

    Raises:
        MissingFile, BadValue: it cannot be opened, or is none.
    """
    try:
        with path.open("rb") as stream:
            return parse(stream.read(MOST_BYTES + 1), str(path))
    except OSError as error:
        raise MissingFile(path, why=(error.strerror or str(error)).lower()) from error


def fits_in_memory(wish: Wish, local_ranks: int, proc_root: Path = PROC) -> None:
    """See that the largest size can be had on this host by so many ranks.

    Raises:
        BadValue: it cannot; the sentence has the figures.
    """
    copies = _WITH_COPY if PARTED & set(wish.collectives) else _BUFFERS
    wanted = local_ranks * (copies * wish.max_bytes + 16 * DTYPES[wish.dtype][0])
    free = _free_bytes(proc_root)
    if free is not None and wanted > free:
        raise BadValue(
            "--max-bytes", why=f"{wish.max_bytes / 1e9:.3g} GB need {wanted / 1e9:.3g} GB of memory for {local_ranks} "
            f"ranks with {copies} buffers each, and {free / 1e9:.3g} GB are free here",
            next_step="give a smaller size, or fewer ranks",
        )  # fmt: skip


def _free_bytes(proc_root: Path) -> int | None:
    """What may still be taken, by the kernel and by the control group."""
    text = proc.text(proc_root / "meminfo")
    free: list[int] = []
    if isinstance(text, str):
        free += [int(words[1]) << 10 for line in text.splitlines() if (words := line.split())[:1] == ["MemAvailable:"]]
    group = cgroups.of("self", "memory", proc_root)
    if not isinstance(group, Unknown):
        limit = cgroups.memory_limit(group)
        free += [] if isinstance(limit, Unknown) else [limit.room_bytes]
    return min(free, default=None)


def run(wish: Wish, host: Host, ranks: int, environ: Mapping[str, str], tell: Tell | None = None) -> Measurement:
    """Start so many ranks on this host, and have them measure; ``tell`` hears of each row as it ends.

    Raises:
        BadValue: what is wished for cannot be had, as a rank says.
        CollectiveFailed: a rank ended, or nothing was heard for longer than a row may take.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        heard, told = os.pipe()
        started = [
            _start(Order(wish=wish, host=host, rank=rank, ranks=ranks, init_method=f"file://{folder}/store"),
                   environ, Path(folder), told if rank == 0 else None)
            for rank in range(ranks)
        ]  # fmt: skip
        os.close(told)
        try:
            for line in _lines(heard, wish, started, Path(folder)):
                if line.error:
                    raise _error(line, started)
                if line.series is not None and line.row is not None and tell is not None:
                    tell(line.series, line.row)
                if line.measurement is not None:
                    return line.measurement
        finally:
            os.close(heard)
            _end(started)
        raise CollectiveFailed("the benchmark", why=_last_words(started, Path(folder)), next_step=_NEXT)


def _start(order: Order, environ: Mapping[str, str], folder: Path, pipe: int | None) -> subprocess.Popen[bytes]:
    variables = {
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environ, "RANK": str(order.rank),
        "WORLD_SIZE": str(order.ranks), "LOCAL_RANK": str(order.rank), "LOCAL_WORLD_SIZE": str(order.ranks),
    }  # fmt: skip
    asked = folder / f"order{order.rank}"
    asked.write_bytes(msgspec.json.encode(order))
    target = pipe if pipe is not None else os.open(os.devnull, os.O_WRONLY)
    try:
        with asked.open("rb") as given, (folder / f"said{order.rank}").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", _MODULE, str(target)], stdin=given, stdout=said, stderr=said,
                env=variables, pass_fds=(target,),
            )  # fmt: skip
    finally:
        if pipe is None:
            os.close(target)


def _lines(pipe: int, wish: Wish, ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> Iterator[Told]:
    """What the first rank says, until it closes the pipe. Raises CollectiveFailed where it is silent for too long."""
    waiting = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        silent_since, limit_s = time.monotonic(), _START_S + wish.limit_s
        while True:
            if selector.select(1.0):
                data = os.read(pipe, 1 << 16)
                if not data:
                    return
                silent_since, limit_s = time.monotonic(), _row_limit_s(wish)
                *lines, waiting = (waiting + data).split(b"\n")
                yield from (msgspec.json.decode(line, type=Told) for line in lines)
            elif any(rank.poll() not in (None, 0) for rank in ranks):
                time.sleep(_ENDING_S / 5)  # for the first rank to notice, and to say it better
                if not selector.select(_ENDING_S):
                    raise CollectiveFailed("the benchmark", why=_last_words(ranks, folder), next_step=_NEXT)
            elif time.monotonic() - silent_since > limit_s:
                raise CollectiveFailed("the benchmark", why=f"nothing was heard of it for {limit_s:.0f} s",
                                       next_step="give a longer --limit, or smaller sizes")  # fmt: skip


def _row_limit_s(wish: Wish) -> float:
    """A call that hangs ends by its own limit; gloo's first calls may take five times as long."""
    return 6 * wish.limit_s


def _error(told: Told, ranks: Sequence[subprocess.Popen[bytes]]) -> BadValue | CollectiveFailed:
    """What the first rank could not do; where another one is stopped or was killed, that is why."""
    if told.usage:
        what, _, why = told.error.partition(" has a value that cannot be used: ")
        why, _, step = why.partition("; ")
        return BadValue(what, why=why, next_step=step or None)
    why = told.error.removeprefix("the benchmark failed: ").partition("; ")[0]
    time.sleep(_ENDING_S / 10)  # the peers' connections break before their parent hears of it
    for number, rank in enumerate(ranks):
        seen = proc.stat(rank.pid)
        if not isinstance(seen, Unknown) and seen.state in ("T", "t"):
            why = f"rank {number} is stopped (SIGSTOP, or a debugger)"
        elif rank.poll() == -signal.SIGKILL:
            why = f"rank {number} was killed (SIGKILL)"
    return CollectiveFailed("the benchmark", why=why, next_step=_NEXT)


def _last_words(ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> str:
    """How the first rank that failed ended, and the last line that it wrote."""
    for number, rank in enumerate(ranks):
        with suppress(subprocess.TimeoutExpired):
            rank.wait(0.5)
        if rank.returncode not in (None, 0):
            with suppress(OSError):
                said = (folder / f"said{number}").read_bytes()[-4096:].decode(errors="replace").split("\n")
                last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
                ended = f"by signal {-rank.returncode}" if rank.returncode < 0 else f"with status {rank.returncode}"
                return f"rank {number} ended {ended}: {last[:300]}"
    return "the first rank ended without a word"


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait a moment for those that are done, and kill the rest."""
    until = time.monotonic() + _ENDING_S
    for rank in ranks:
        with suppress(subprocess.TimeoutExpired):
            rank.wait(max(0.0, until - time.monotonic()))
    for rank in ranks:
        if rank.returncode is None:
            rank.kill()
        rank.wait()
