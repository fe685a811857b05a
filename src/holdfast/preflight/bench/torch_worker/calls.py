"""The timed calls: each collective with each algorithm, out of place and in place.

torch reduces and broadcasts in place only. Out of place then means what torch's functional
collectives do: copy the buffer, and call on the copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from holdfast.core.measurements import REDUCING_COLLECTIVES, TORCH_ALGORITHM, element_count
from holdfast.preflight.bench.torch_worker import test_data
from holdfast.preflight.bench.torch_worker.timing_loop import Call
from holdfast.training import collectives
from holdfast.training.collectives.algorithms.selection import CHUNK

#: Number of tensors of the algorithms one-by-one and coalesced.
TENSORS = 64
OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}
#: torch 2.13's names; the older names warn on each call.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass
class CallBench:
    """A group, this rank, and two buffers of the largest size."""

    group: dist.ProcessGroup
    rank: int
    ranks: int
    send: torch.Tensor
    receive: torch.Tensor
    op: str
    root: int
    limit_s: float
    _hierarchy: list[collectives.Hierarchy] = field(default_factory=list)

    @property
    def torchs_op(self) -> dist.ReduceOp.RedOpType:
        """Return the operation as torch's enum."""
        return OPS[self.op]

    def hierarchy(self) -> collectives.Hierarchy:
        """Return the hierarchy, created on first use, which all ranks reach at the same point."""
        if not self._hierarchy:
            self._hierarchy.append(collectives.Hierarchy(self.group))
        return self._hierarchy[0]


class BenchCase:
    """One collective with one algorithm at one size: its calls, and the data that verifies them."""

    def __init__(self, bench: CallBench, collective: str, algorithm: str, size_bytes: int) -> None:
        self._bench, self.collective, self._algorithm = bench, collective, algorithm
        dtype = str(bench.send.dtype).removeprefix("torch.")
        self.count = element_count(collective, size_bytes, dtype, bench.ranks)
        parts = bench.ranks if collective in ("all_gather", "reduce_scatter", "all_to_all") else 1
        total = self.count * parts
        self.size_bytes = total * bench.send.element_size()
        sent = self.count if collective == "all_gather" else total
        received = self.count if collective == "reduce_scatter" else total
        self._send, self._receive = bench.send[:sent], bench.receive[:received]
        self._all_parts = bench.receive[:total]

    @property
    def needs_tuning(self) -> bool:
        """Return whether the first calls select an algorithm and differ from later ones."""
        return self._algorithm in ("holdfast", "coalesced") and self.collective != "broadcast"

    # ---- timed calls

    def out_of_place(self) -> Call | None:
        """Return the call from one buffer to the other."""
        bench, send, receive = self._bench, self._send, self._receive
        if self.collective in ("all_reduce", "reduce", "broadcast"):
            call = self._reduce_or_broadcast(receive)
            if self.collective == "broadcast" and bench.rank != bench.root:
                return call
            return lambda: (receive.copy_(send), call())
        if self.collective == "sendrecv":
            return self._send_to_next
        if self.collective == "all_to_all":
            return partial(dist.all_to_all_single, receive, send, group=bench.group)
        return self._gather_or_scatter(receive, send)

    def in_place(self) -> Call | None:
        """Return the call within one buffer; None if there is none."""
        if self.collective in ("all_reduce", "reduce", "broadcast"):
            return self._reduce_or_broadcast(self._receive)
        if self.collective == "all_gather":
            return self._gather_or_scatter(self._all_parts, self._own_part())
        if self.collective == "reduce_scatter":
            return self._gather_or_scatter(self._own_part(), self._all_parts)
        return None

    def _own_part(self) -> torch.Tensor:
        return self._all_parts[self._bench.rank * self.count : (self._bench.rank + 1) * self.count]

    def _reduce_or_broadcast(self, tensor: torch.Tensor) -> Call:
        bench, group = self._bench, self._bench.group
        if self.collective == "all_reduce":
            return _reductions(bench, self._algorithm, tensor)
        root = dist.get_global_rank(group, bench.root)
        if self.collective == "reduce":
            return partial(dist.reduce, tensor, dst=root, op=bench.torchs_op, group=group)
        if self._algorithm == TORCH_ALGORITHM:
            return partial(dist.broadcast, tensor, src=root, group=group)
        return partial(collectives.broadcast, tensor, root, group, timeout=bench.limit_s)

    def _gather_or_scatter(self, output: torch.Tensor, source: torch.Tensor) -> Call:
        bench, group = self._bench, self._bench.group
        if self.collective == "all_gather":
            if self._algorithm == TORCH_ALGORITHM:
                return partial(_gather, output, source, group=group)
            return partial(collectives.all_gather, output, source, group, timeout=bench.limit_s)
        if self._algorithm == TORCH_ALGORITHM:
            return partial(_scatter, output, source, op=bench.torchs_op, group=group)
        return partial(
            collectives.reduce_scatter,
            output,
            source,
            bench.torchs_op,
            group,
            timeout=bench.limit_s,
        )

    def _send_to_next(self) -> None:
        """Send to the next rank and receive from the previous one, as sendrecv of nccl-tests."""
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

    # ---- verification

    def fill(self, *, in_place: bool) -> None:
        """Fill the buffers with this rank's data; receive-only buffers get other data."""
        self._receive.fill_(1)
        if not in_place:
            self._fill_parts(self._send)
        elif self.collective == "all_gather":
            test_data.fill(self._own_part(), self._block(self._bench.rank, 0))
        elif self.collective != "broadcast" or self._bench.rank == self._bench.root:
            self._fill_parts(self._all_parts)

    def count_wrong(self, *, in_place: bool) -> int:
        """Return the number of incorrect elements on this rank."""
        bench = self._bench
        if self.collective == "reduce" and bench.rank != bench.root:
            return 0
        result = (
            self._own_part() if in_place and self.collective == "reduce_scatter" else self._receive
        )
        exactly = self.collective not in REDUCING_COLLECTIVES or test_data.is_exact(
            bench.op, result.dtype, bench.ranks
        )
        expected = self._expected()
        parts = list(result.view(len(expected), -1)) if result.numel() else []
        return sum(
            test_data.count_wrong(part, right, exactly=exactly, ranks=bench.ranks)
            for part, right in zip(parts, expected, strict=False)
        )

    def _expected(self) -> list[test_data.Block]:
        """Return the expected content of each part of the result."""
        bench, ranks = self._bench, range(self._bench.ranks)
        if self.collective in REDUCING_COLLECTIVES:
            part = bench.rank if self.collective == "reduce_scatter" else 0
            return [test_data.reduced_block(part, bench.op, bench.ranks, bench.send.device)]
        if self.collective == "all_gather":
            return [self._block(rank, 0) for rank in ranks]
        if self.collective == "all_to_all":
            return [self._block(rank, bench.rank) for rank in ranks]
        sender = bench.root if self.collective == "broadcast" else (bench.rank - 1) % bench.ranks
        return [self._block(sender, 0)]

    def _fill_parts(self, buffer: torch.Tensor) -> None:
        if not buffer.numel():
            return
        parts = self._bench.ranks if self.collective in ("reduce_scatter", "all_to_all") else 1
        for number, part in enumerate(buffer.view(parts, -1)):
            test_data.fill(part, self._block(self._bench.rank, number))

    def _block(self, rank: int, part: int) -> test_data.Block:
        return test_data.block(
            rank, part, self._bench.op, self._bench.ranks, self._bench.send.device
        )


def _reductions(bench: CallBench, algorithm: str, tensor: torch.Tensor) -> Call:
    group, op = bench.group, bench.torchs_op
    limit: dict[str, Any] = {"timeout": bench.limit_s}
    holdfast_options: dict[str, dict[str, Any]] = {
        "holdfast": {},
        "pieces": {"chunk": CHUNK},
        "bf16": {"wire": "bf16"},
    }
    if algorithm in holdfast_options:
        return partial(
            collectives.all_reduce, tensor, op, group, **holdfast_options[algorithm], **limit
        )
    if algorithm == TORCH_ALGORITHM:
        return partial(dist.all_reduce, tensor, op=op, group=group)
    if algorithm == "hierarchy":
        return partial(bench.hierarchy().all_reduce, tensor, op, **limit)
    tensors = [part for part in tensor.tensor_split(TENSORS) if part.numel()]
    if algorithm == "coalesced":
        return partial(collectives.all_reduce_many, tensors, op, group, **limit)
    return partial(_one_by_one, tensors, op, group)


def _one_by_one(
    tensors: list[torch.Tensor], op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup
) -> None:
    for tensor in tensors:
        dist.all_reduce(tensor, op=op, group=group)
