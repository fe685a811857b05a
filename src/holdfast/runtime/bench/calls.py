"""The calls that are timed: each collective by each way, out of place and in place, on two buffers of a rank.

torch reduces and broadcasts in place alone. Out of place means for these what torch's functional collectives do: the
buffer is copied, and the call made on the copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from holdfast.measured import REDUCING, TORCH, element_count
from holdfast.runtime import comm
from holdfast.runtime.bench import filling
from holdfast.runtime.bench.loop import Call
from holdfast.runtime.comm.ways import PIECE

#: Tensors that are coalesced, or not.
MANY = 64
OPS = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
       "avg": dist.ReduceOp.AVG}  # fmt: skip
#: torch 2.13's names; under the older ones each call pays for a warning there.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass
class Bench:
    """A group, this rank in it, and two buffers that hold the largest size."""

    group: dist.ProcessGroup
    rank: int
    ranks: int
    send: torch.Tensor
    receive: torch.Tensor
    op: str
    root: int
    limit_s: float
    _hierarchy: list[comm.Hierarchy] = field(default_factory=list)

    @property
    def torchs_op(self) -> dist.ReduceOp.RedOpType:
        """As torch names it."""
        return OPS[self.op]

    def hierarchy(self) -> comm.Hierarchy:
        """Made at the first use, which all ranks come to at the same point."""
        if not self._hierarchy:
            self._hierarchy.append(comm.Hierarchy(self.group))
        return self._hierarchy[0]


class Case:
    """One collective at one size by one way: its calls, and the data by which they are checked."""

    def __init__(self, bench: Bench, collective: str, way: str, size_bytes: int) -> None:
        self._bench, self.collective, self._way = bench, collective, way
        dtype = str(bench.send.dtype).removeprefix("torch.")
        self.count = element_count(collective, size_bytes, dtype, bench.ranks)
        parts = bench.ranks if collective in ("all_gather", "reduce_scatter", "all_to_all") else 1
        whole = self.count * parts
        self.size_bytes = whole * bench.send.element_size()
        given = self.count if collective == "all_gather" else whole
        kept = self.count if collective == "reduce_scatter" else whole
        self._send, self._receive = bench.send[:given], bench.receive[:kept]
        self._whole = bench.receive[:whole]

    @property
    def settles(self) -> bool:
        """Whether the first calls try out ways, and are not like those that come later."""
        return self._way in ("holdfast", "coalesced") and self.collective != "broadcast"

    # ---- what is timed

    def out_of_place(self) -> Call | None:
        """The call from one buffer into the other."""
        bench, send, receive = self._bench, self._send, self._receive
        if self.collective in ("all_reduce", "reduce", "broadcast"):
            call = self._in(receive)
            if self.collective == "broadcast" and bench.rank != bench.root:
                return call
            return lambda: (receive.copy_(send), call())
        if self.collective == "sendrecv":
            return self._send_on
        if self.collective == "all_to_all":
            return partial(dist.all_to_all_single, receive, send, group=bench.group)
        return self._between(receive, send)

    def in_place(self) -> Call | None:
        """The call in one buffer; None where there is none."""
        if self.collective in ("all_reduce", "reduce", "broadcast"):
            return self._in(self._receive)
        if self.collective == "all_gather":
            return self._between(self._whole, self._own_part())
        if self.collective == "reduce_scatter":
            return self._between(self._own_part(), self._whole)
        return None

    def _own_part(self) -> torch.Tensor:
        return self._whole[self._bench.rank * self.count : (self._bench.rank + 1) * self.count]

    def _in(self, tensor: torch.Tensor) -> Call:
        bench, group = self._bench, self._bench.group
        if self.collective == "all_reduce":
            return _reductions(bench, self._way, tensor)
        source = dist.get_global_rank(group, bench.root)
        if self.collective == "reduce":
            return partial(dist.reduce, tensor, dst=source, op=bench.torchs_op, group=group)
        if self._way == TORCH:
            return partial(dist.broadcast, tensor, src=source, group=group)
        return partial(comm.broadcast, tensor, source, group, timeout=bench.limit_s)

    def _between(self, output: torch.Tensor, given: torch.Tensor) -> Call:
        bench, group = self._bench, self._bench.group
        if self.collective == "all_gather":
            if self._way == TORCH:
                return partial(_gather, output, given, group=group)
            return partial(comm.all_gather, output, given, group, timeout=bench.limit_s)
        if self._way == TORCH:
            return partial(_scatter, output, given, op=bench.torchs_op, group=group)
        return partial(comm.reduce_scatter, output, given, bench.torchs_op, group, timeout=bench.limit_s)

    def _send_on(self) -> None:
        """To the next rank, from the one before, as nccl-tests' sendrecv."""
        bench = self._bench
        after, before = ((bench.rank + step) % bench.ranks for step in (1, -1))
        peers = [dist.get_global_rank(bench.group, peer) for peer in (after, before)]
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self._send, peers[0], bench.group),
                dist.P2POp(dist.irecv, self._receive, peers[1], bench.group),
            ]
        )
        for work in works:
            work.wait()

    # ---- what is checked

    def fill(self, *, in_place: bool) -> None:
        """Write into the buffers what this rank gives; what is only received is filled with something else."""
        self._receive.fill_(1)
        if not in_place:
            self._give(self._send)
        elif self.collective == "all_gather":
            filling.fill(self._own_part(), self._block(self._bench.rank, 0))
        elif self.collective != "broadcast" or self._bench.rank == self._bench.root:
            self._give(self._whole)

    def wrong(self, *, in_place: bool) -> int:
        """Elements of this rank that are not what they have to be."""
        bench = self._bench
        if self.collective == "reduce" and bench.rank != bench.root:
            return 0
        result = self._own_part() if in_place and self.collective == "reduce_scatter" else self._receive
        exactly = self.collective not in REDUCING or filling.exact(bench.op, result.dtype, bench.ranks)
        wanted = self._wanted()
        parts = list(result.view(len(wanted), -1)) if result.numel() else []
        return sum(
            filling.wrong_in(part, right, exactly=exactly, ranks=bench.ranks)
            for part, right in zip(parts, wanted, strict=False)
        )

    def _wanted(self) -> list[filling.Block]:
        """What has to lie in each part of the result."""
        bench, ranks = self._bench, range(self._bench.ranks)
        if self.collective in REDUCING:
            part = bench.rank if self.collective == "reduce_scatter" else 0
            return [filling.reduced(part, bench.op, bench.ranks, bench.send.device)]
        if self.collective == "all_gather":
            return [self._block(rank, 0) for rank in ranks]
        if self.collective == "all_to_all":
            return [self._block(rank, bench.rank) for rank in ranks]
        giver = bench.root if self.collective == "broadcast" else (bench.rank - 1) % bench.ranks
        return [self._block(giver, 0)]

    def _give(self, buffer: torch.Tensor) -> None:
        if not buffer.numel():
            return
        parts = self._bench.ranks if self.collective in ("reduce_scatter", "all_to_all") else 1
        for number, part in enumerate(buffer.view(parts, -1)):
            filling.fill(part, self._block(self._bench.rank, number))

    def _block(self, rank: int, part: int) -> filling.Block:
        return filling.block(rank, part, self._bench.op, self._bench.ranks, self._bench.send.device)


def _reductions(bench: Bench, way: str, tensor: torch.Tensor) -> Call:
    group, op = bench.group, bench.torchs_op
    limit: dict[str, Any] = {"timeout": bench.limit_s}
    ours: dict[str, dict[str, Any]] = {"holdfast": {}, "pieces": {"chunk": PIECE}, "bf16": {"wire": "bf16"}}
    if way in ours:
        return partial(comm.all_reduce, tensor, op, group, **ours[way], **limit)
    if way == TORCH:
        return partial(dist.all_reduce, tensor, op=op, group=group)
    if way == "hierarchy":
        return partial(bench.hierarchy().all_reduce, tensor, op, **limit)
    many = [part for part in tensor.tensor_split(MANY) if part.numel()]
    if way == "coalesced":
        return partial(comm.all_reduce_many, many, op, group, **limit)
    return partial(_one_by_one, many, op, group)


def _one_by_one(tensors: list[torch.Tensor], op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup) -> None:
    for tensor in tensors:
        dist.all_reduce(tensor, op=op, group=group)
