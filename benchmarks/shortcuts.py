"""What holdfast's shortcuts on gloo take beside torch's own calls: gathering, scattering, shared memory, exchange.

2 and 4 ranks on this host, in turns (``ranks.py`` says what is shown). The memory of a shared tensor is the tensor
itself. The exchange is measured over links with latency, where they can be had (``links.py``).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.links import slow_links, why_not
from benchmarks.ranks import be_one, compare, heading, start

if TYPE_CHECKING:
    import torch

RANKS = (2, 4)
BYTES = 100_000_000
SIZES = (4_096, 1 << 20, 16 << 20, BYTES)
ROUND_TRIP_MS = 10
_LARGE_TURNS, _TURNS = 10, 50


# ---- on a rank


def _reduced(how: str, flat: torch.Tensor) -> None:
    """An all-reduce by this shortcut alone, as holdfast.comm.all_reduce makes it when it has chosen it."""
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.runtime.comm import exchange, shared_memory  # noqa: PLC0415
    from holdfast.runtime.comm.groups import state_of  # noqa: PLC0415
    from holdfast.runtime.comm.waiting import begin  # noqa: PLC0415

    call = begin(state_of(None), f"all_reduce of {flat.numel()}", 60.0)
    if how == "exchange":
        exchange.exchange(flat, dist.ReduceOp.SUM, call)
    else:
        assert shared_memory.usable(call)
        shared_memory.reduce_in_memory(flat, dist.ReduceOp.SUM, call)


def _gathers() -> None:
    """What torch copies."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.runtime.comm import areas, choice  # noqa: PLC0415
    from holdfast.runtime.comm.gather import all_gather, reduce_scatter  # noqa: PLC0415
    from holdfast.runtime.comm.groups import state_of  # noqa: PLC0415

    whole, part = torch.ones(BYTES // 4), torch.ones(BYTES // 4 // dist.get_world_size())
    listed = list(whole.view(dist.get_world_size(), -1).unbind())
    for where in ("one host", "sockets alone"):
        for _ in range(2 * choice.TURNS):  # in which the ways take turns
            all_gather(whole, part)
            reduce_scatter(part, whole)
        compare(f"all_gather of 100 MB, {where}", {
            "torch all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part),
            "torch all_gather into a list": lambda: dist.all_gather(listed, part),
            "holdfast all_gather": lambda: all_gather(whole, part),
        }, _LARGE_TURNS)  # fmt: skip
        compare(f"reduce_scatter of 100 MB, {where}", {
            "torch reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole),
            "holdfast reduce_scatter": lambda: reduce_scatter(part, whole),
        }, _LARGE_TURNS)  # fmt: skip
        areas._memories[state_of(None).group] = None  # noqa: SLF001 - as where ranks share none
        state_of(None).kept.pop(choice.Others)


def _reductions() -> None:
    """What is reduced in memory that the ranks share."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.runtime.comm.shared_memory import shared_tensor  # noqa: PLC0415

    for size in SIZES:
        given, lying = torch.zeros(size // 4), shared_tensor((size // 4,))
        title = f"all_reduce of {size / 1e6:,.3g} MB" if size > SIZES[0] else "all_reduce of 4 KB"
        compare(title, {
            "torch all_reduce": functools.partial(dist.all_reduce, given),
            "holdfast, shared memory": functools.partial(_reduced, "memory", given),
            "holdfast, of a shared tensor": functools.partial(_reduced, "memory", lying),
        }, _LARGE_TURNS if size > 1 << 20 else _TURNS)  # fmt: skip


def _delayed() -> None:
    """64 floats over a slow link."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    small = torch.zeros(64)
    _reduced("exchange", torch.zeros(1))  # what is imported for it is no memory of the call
    compare(f"64 floats, {ROUND_TRIP_MS} ms round trip", {
        "torch all_reduce (gloo's ring)": lambda: dist.all_reduce(small),
        "holdfast, exchange": lambda: _reduced("exchange", small),
    }, _TURNS)  # fmt: skip


def main() -> None:
    """Print the table."""
    heading()
    for size in RANKS:
        start(__name__, size, "gathers")
        start(__name__, size, "reductions")
    if why := why_not():
        print(f"exchange: not measured, as {why}")
        return
    for size in RANKS:
        with slow_links(size, ROUND_TRIP_MS) as spaces:
            start(__name__, size, "delayed", spaces)


if __name__ == "__main__":
    be_one({"gathers": _gathers, "reductions": _reductions, "delayed": _delayed})
