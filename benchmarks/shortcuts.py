"""holdfast's own algorithms on gloo: gather, scatter, shared memory and exchange, next to torch.

2 and 4 ranks on this host, in turns (``ranks.py`` describes the output). The memory of a shared
tensor is the tensor itself. The exchange is measured over links with latency, if available
(``links.py``).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.links import slow_links, why_not
from benchmarks.ranks import compare, print_heading, run_rank, start_ranks

if TYPE_CHECKING:
    import torch

RANKS = (2, 4)
BYTES = 100_000_000
SIZES = (4_096, 1 << 20, 16 << 20, BYTES)
ROUND_TRIP_MS = 10
_LARGE_TURNS, _TURNS = 10, 50


# ---- on a rank


def _reduce_by(algorithm: str, flat: torch.Tensor) -> None:
    """Run an all-reduce by this algorithm, as holdfast.comm.all_reduce does once it is chosen."""
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.training.collectives.algorithms import exchange  # noqa: PLC0415
    from holdfast.training.collectives.bounded_wait import begin_call  # noqa: PLC0415
    from holdfast.training.collectives.groups.group_info import state_of  # noqa: PLC0415
    from holdfast.training.collectives.shared_memory import transport  # noqa: PLC0415

    call = begin_call(state_of(None), f"all_reduce of {flat.numel()}", 60.0)
    if algorithm == "exchange":
        exchange.reduce_by_exchange(flat, dist.ReduceOp.SUM, call)
    else:
        assert transport.is_available(call)
        transport.reduce_in_memory(flat, dist.ReduceOp.SUM, call)


def _compare_gathers() -> None:
    """Compare gathers and scatters, with and without shared memory."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.training.collectives import algorithm_choice  # noqa: PLC0415
    from holdfast.training.collectives.gather import all_gather, reduce_scatter  # noqa: PLC0415
    from holdfast.training.collectives.groups.group_info import state_of  # noqa: PLC0415
    from holdfast.training.collectives.shared_memory import areas  # noqa: PLC0415

    whole, part = torch.ones(BYTES // 4), torch.ones(BYTES // 4 // dist.get_world_size())
    parts = list(whole.view(dist.get_world_size(), -1).unbind())
    for where in ("one host", "sockets only"):
        for _ in range(2 * algorithm_choice.TURNS):  # the algorithms are compared in these
            all_gather(whole, part)
            reduce_scatter(part, whole)
        compare(
            f"all_gather of 100 MB, {where}",
            {
                "torch all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part),
                "torch all_gather into a list": lambda: dist.all_gather(parts, part),
                "holdfast all_gather": lambda: all_gather(whole, part),
            },
            _LARGE_TURNS,
        )
        compare(
            f"reduce_scatter of 100 MB, {where}",
            {
                "torch reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole),
                "holdfast reduce_scatter": lambda: reduce_scatter(part, whole),
            },
            _LARGE_TURNS,
        )
        areas._memories[state_of(None).group] = None  # noqa: SLF001 - as where ranks share none
        state_of(None).cache.pop(algorithm_choice.TransferChoices)


def _compare_reductions() -> None:
    """Compare all-reduces in shared memory."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.training.collectives.shared_memory.transport import shared_tensor  # noqa: PLC0415

    for size in SIZES:
        private, shared = torch.zeros(size // 4), shared_tensor((size // 4,))
        title = f"all_reduce of {size / 1e6:,.3g} MB" if size > SIZES[0] else "all_reduce of 4 KB"
        compare(
            title,
            {
                "torch all_reduce": functools.partial(dist.all_reduce, private),
                "holdfast, shared memory": functools.partial(_reduce_by, "memory", private),
                "holdfast, of a shared tensor": functools.partial(_reduce_by, "memory", shared),
            },
            _LARGE_TURNS if size > 1 << 20 else _TURNS,
        )


def _compare_delayed() -> None:
    """Compare all-reduces of 64 floats over a slow link."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    small = torch.zeros(64)
    _reduce_by("exchange", torch.zeros(1))  # its imports do not count as memory of the call
    compare(
        f"64 floats, {ROUND_TRIP_MS} ms round trip",
        {
            "torch all_reduce (gloo's ring)": lambda: dist.all_reduce(small),
            "holdfast, exchange": lambda: _reduce_by("exchange", small),
        },
        _TURNS,
    )


def main() -> None:
    """Print the table."""
    print_heading()
    for size in RANKS:
        start_ranks(__name__, size, "gathers")
        start_ranks(__name__, size, "reductions")
    if why := why_not():
        print(f"exchange: not measured: {why}")
        return
    for size in RANKS:
        with slow_links(size, ROUND_TRIP_MS) as namespaces:
            start_ranks(__name__, size, "delayed", namespaces)


if __name__ == "__main__":
    run_rank(
        {
            "gathers": _compare_gathers,
            "reductions": _compare_reductions,
            "delayed": _compare_delayed,
        }
    )
