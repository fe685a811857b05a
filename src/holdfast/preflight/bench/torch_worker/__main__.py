"""A rank started by ``holdfast bench``: reads the order on stdin, writes rows to a pipe."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO, NoReturn

import msgspec
import torch.distributed as dist

from holdfast.core.errors import HoldfastError
from holdfast.core.exit_status import USAGE
from holdfast.core.measurements import BenchRow, BenchSeries, WorkerOrder, WorkerReply
from holdfast.preflight.bench.torch_worker.session import join_group, measure


def main(pipe: BinaryIO) -> NoReturn:
    """Run one rank; the first one sends replies."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerOrder)

    def send(reply: WorkerReply) -> None:
        pipe.write(msgspec.json.encode(reply) + b"\n")
        pipe.flush()

    def send_row(series: BenchSeries, row: BenchRow) -> None:
        send(WorkerReply(series=msgspec.structs.replace(series, rows=()), row=row))

    try:
        join_group(order.request, order.init_method, order.rank, order.ranks, order.rank)
        measurement = measure(order.request, order.host, send_row if order.rank == 0 else None)
    except HoldfastError as error:
        if order.rank == 0:
            send(
                WorkerReply(
                    error=str(error),
                    usage=error.exit_status == USAGE,
                    subject=str(error.args[0]),
                    why=error.why,
                    next_step=error.next_step,
                )
            )
        sys.stderr.write(f"{error}\n")
        _exit(error.exit_status)
    if order.rank == 0:
        send(WorkerReply(measurement=measurement))
    dist.barrier()
    _exit(0)


def _exit(status: int) -> NoReturn:
    """Exit without teardown: gloo's threads may abort a process while a peer still communicates."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "wb") as stream:
        main(stream)
