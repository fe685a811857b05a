"""Self-test of a compiled recorder: two processes run collectives over gloo on loopback.

The operators that the recorder's kernels wrap differ between torch releases: a kernel that compiles
and loads can still break every collective of a healthy job. ``recorder.build`` runs this once per
compiled recorder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten

import torch
import torch.distributed as dist

from holdfast.core import settings, trace_file
from holdfast.core.trace_file import TraceWriter
from holdfast.recorder.backends import NativeRecorder

RANKS = 2
#: Timeout of the whole test, which takes 1 to 2 s with torch in the page cache.
TIMEOUT_S = 120.0
#: Timeout of one collective, after which gloo raises an error.
COLLECTIVE_TIMEOUT_S = 30

#: Overrides the user's network settings and torch's debug mode, and hides GPUs.
_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_DISTRIBUTED_DEBUG": "OFF",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


def run_self_test(library: Path | None) -> str | None:
    """Return why collectives fail with the compiled recorder ``library``; None on success.

    ``library`` None tests without a recorder. Success means that all collectives returned correct
    values and were recorded.

    Raises:
        OSError: the processes could not be started.
    """
    with TemporaryDirectory(prefix="holdfast-") as folder:
        ranks: list[subprocess.Popen[bytes]] = []
        deadline = time.monotonic() + TIMEOUT_S
        try:
            for rank in range(RANKS):
                command = [sys.executable, "-m", __name__, folder, str(rank), str(library or "")]
                ranks.append(
                    subprocess.Popen(
                        command,
                        env=settings.current_environment() | _ENVIRONMENT,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
            statuses = [process.wait(max(deadline - time.monotonic(), 0)) for process in ranks]
        except subprocess.TimeoutExpired:
            return f"no result after {TIMEOUT_S:.0f} s"
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        failures = [
            _failure(status, Path(folder, f"rank{rank}.txt"))
            for rank, status in enumerate(statuses)
            if status != 0
        ]
    # A later failure is that of a rank that lost its peer.
    return min(failures)[1] if failures else None


def _failure(status: int, reason_file: Path) -> tuple[int, str]:
    """Return when a rank failed, in ns, and why; 0 if it died without a word, before the others."""
    if status < 0:
        return 0, f"ended by signal {-status} ({signal.strsignal(-status)})"
    if not reason_file.exists():
        return 0, f"exit status {status}"
    return reason_file.stat().st_mtime_ns, reason_file.read_text(encoding="utf-8")


def _run_rank(folder: Path, rank: int, library: str) -> None:
    """Run the collectives as one of the two ranks. Raises any failure."""
    trace = TraceWriter(folder / f"rank{rank}.trace", rank=rank, world_size=RANKS)
    if library:
        NativeRecorder(Path(library), trace, str(Path(torch.__file__).parent))
    limit = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    dist.init_process_group("gloo", f"file://{folder}/store", limit, rank=rank, world_size=RANKS)
    expected = _run_collectives(rank)
    if library:
        missing = expected - _recorded_operations(trace)
        if missing:
            raise RuntimeError(f"not recorded: {', '.join(sorted(missing))}")
    dist.barrier()


def _run_collectives(rank: int) -> Counter[str]:
    """Run each kind of collective once; return their names, as in trace_file.OPERATIONS.

    Raises:
        RuntimeError: one returned wrong values.
    """
    own, first = torch.full((2,), rank + 1.0), torch.arange(2.0) if rank == 0 else torch.zeros(2)
    ran: Counter[str] = Counter()

    def check(name: str, tensor: torch.Tensor, values: list[float]) -> None:
        if tensor.tolist() != values:
            raise RuntimeError(f"{name} returned {tensor.tolist()} instead of {values}")
        ran[name] += 1

    dist.all_reduce(reduced := own.clone())
    check("all_reduce", reduced, [3, 3])
    dist.broadcast(first, 0)
    check("broadcast", first, [0, 1])
    dist.all_gather(parts := [torch.zeros(2), torch.zeros(2)], own)
    check("all_gather", torch.cat(parts), [1, 1, 2, 2])
    dist.all_gather_into_tensor(gathered := torch.zeros(4), own)
    check("all_gather_into_tensor", gathered, [1, 1, 2, 2])
    dist.reduce_scatter_tensor(shard := torch.zeros(1), own)
    check("reduce_scatter_tensor", shard, [3])
    dist.reduce(total := own.clone(), 0)
    # On other ranks the result is undefined.
    check("reduce", total if rank == 0 else reduced, [3, 3])
    parts = [torch.zeros(2), torch.zeros(2)]
    dist.gather(own, parts if rank == 0 else None)
    check("gather", torch.cat(parts), [1, 1, 2, 2] if rank == 0 else [0, 0, 0, 0])
    dist.scatter(part := torch.zeros(2), [own, own + 1] if rank == 0 else None)
    check("scatter", part, [rank + 1, rank + 1])
    dist.all_to_all_single(exchanged := torch.zeros(2), own)
    check("all_to_all_single", exchanged, [1, 2])
    sent = torch.ones(2) if rank == 0 else torch.zeros(2)
    dist.send(sent, 1) if rank == 0 else dist.recv(sent, 0)
    check("send" if rank == 0 else "recv", sent, [1, 1])
    return ran


def _recorded_operations(trace: TraceWriter) -> Counter[str]:
    (count,) = trace_file.HEADS.unpack_from(trace.map, trace_file.RECORDS_HEAD)
    records = [
        trace_file.RECORD.unpack_from(trace.map, trace.ring_at + at * trace_file.RECORD_BYTES)
        for at in range(count)
    ]
    return Counter(trace_file.OPERATIONS[record[7]] for record in records)


def main(folder: str, rank: str, library: str) -> None:
    """Run one rank and exit: status 0, or 1 with the reason in a file."""
    try:
        _run_rank(Path(folder), int(rank), library)
    except Exception as error:  # noqa: BLE001 - the parent process reports it
        why = shorten(f"{type(error).__name__}: {error}", 120, placeholder=" …")
        Path(folder, f"rank{rank}.txt").write_text(why, encoding="utf-8")
        os._exit(1)
    os._exit(0)  # gloo's threads can abort interpreter shutdown


if __name__ == "__main__":
    main(*sys.argv[1:])
