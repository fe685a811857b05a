"""A rank that ``holdfast bench`` started itself: the wish on standard input, rows and the measurement on a pipe."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO, NoReturn

import msgspec
import torch.distributed as dist

from holdfast.errors import HoldfastError
from holdfast.measured import Order, Row, Series, Told
from holdfast.runtime.bench.session import join, measure


def main(pipe: BinaryIO) -> NoReturn:
    """One rank; the first one tells."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)

    def tell(told: Told) -> None:
        pipe.write(msgspec.json.encode(told) + b"\n")
        pipe.flush()

    def of_row(series: Series, row: Row) -> None:
        tell(Told(series=msgspec.structs.replace(series, rows=()), row=row))

    try:
        join(order.wish, order.init_method, order.rank, order.ranks, order.rank)
        found = measure(order.wish, order.host, of_row if order.rank == 0 else None)
    except HoldfastError as error:
        if order.rank == 0:
            tell(Told(error=str(error), usage=error.exit_status == 2))
        sys.stderr.write(f"{error}\n")
        _leave(error.exit_status)
    if order.rank == 0:
        tell(Told(measurement=found))
    dist.barrier()
    _leave(0)


def _leave(status: int) -> NoReturn:
    """Gloo's threads may abort a process that ends as others do while a peer is still at it."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "wb") as stream:
        main(stream)
