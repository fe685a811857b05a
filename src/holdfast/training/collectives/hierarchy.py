"""All-reduce over nodes: inside each node, between nodes, and back, in overlapping chunks.

The ranks at the same position of each node form a *rail*. A chunk is reduced inside the node to the
rank of its rail, all-reduced along the rail, and broadcast inside the node. There are as many rails
as the smallest node has ranks (with one rail, only leaders communicate between nodes), and the
chunks alternate between them. This is the sharded form (reduce-scatter, all-reduce of shards,
all-gather) without a copy of the tensor, and it supports uneven nodes. Each rank gets the bits that
the rail has computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import lru_cache

import torch
import torch.distributed as dist

from holdfast.core.errors import InternalError, InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.collectives.algorithms.selection import CHUNK, WINDOW, reduce_in_one_call
from holdfast.training.collectives.backend_calls import (
    start_all_reduce,
    start_broadcast,
    start_reduce,
)
from holdfast.training.collectives.bounded_wait import (
    begin_call,
    wait_for_all_ranks,
    wait_for_works,
)
from holdfast.training.collectives.call_text import dtype_name
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.group_creation import create_companion_group, create_group
from holdfast.training.collectives.groups.group_info import GroupState, runs_alone, state_of
from holdfast.training.collectives.groups.rank_hosts import host_layout
from holdfast.training.collectives.scratch import copy_back, scratch_copy
from holdfast.training.collectives.validation import check_alone, find_chunk_refusal, find_refusal

#: Tensors of fewer elements use one rail: each further chunk costs a latency.
_ONE_RAIL_BELOW = 1 << 13
#: Timeout of the sub-groups themselves; calls have their own.
_GROUP_LIMIT_S = 600.0
CREATION_LIMIT_S = 300.0

_OPS = {
    getattr(dist.ReduceOp, name): name
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


@suggest_keywords
class Hierarchy:
    """The nodes of ``group``, with groups inside and between them. All ranks of it create this.

    ``nodes``: the global ranks of each node, of any number each; None takes ranks that share a host
    as a node. Every sub-group is created by all ranks of ``group``, so that none is unknown to
    some. The whole also has a communicator of its own, so that a failure here does not break
    ``group``.

    Raises:
        InvalidValue: ``nodes`` are not the ranks of the group, each once.
        CollectiveTimeout: ranks did not arrive within ``timeout`` seconds; names them.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        nodes: Sequence[Sequence[int]] | None = None,
        timeout: float = CREATION_LIMIT_S,
    ) -> None:
        self._is_alone = runs_alone(group)
        self.nodes: tuple[tuple[int, ...], ...] = ((0,),)
        if self._is_alone:
            self.rails = 1
            return
        state = state_of(group)
        layout = host_layout(state, timeout) if nodes is None else nodes
        self.nodes = tuple(tuple(node) for node in layout)
        if sorted(rank for node in self.nodes for rank in node) != sorted(state.ranks):
            why = f"nodes {self.nodes} must contain each of the ranks {state.ranks} once"
            raise InvalidValue("Hierarchy", why=why)
        self.rails = min(map(len, self.nodes))
        self._backend = dist.get_backend(state.group)
        self._timeout = timeout
        limit = timedelta(seconds=_GROUP_LIMIT_S)
        self._whole = state_of(
            create_companion_group(state, self._backend, "hierarchy", limit, timeout)
        )
        rank = dist.get_rank()
        self._position = next(node.index(rank) for node in self.nodes if rank in node)
        self._node = self._create_groups(self.nodes)
        self._rail = self._create_groups(
            [tuple(node[position] for node in self.nodes) for position in range(self.rails)]
        )

    def _create_groups(self, groups: Sequence[tuple[int, ...]]) -> GroupState | None:
        """Create all groups of more than one rank, on all ranks; return that of this rank."""
        own: GroupState | None = None
        limits = {"default": timedelta(seconds=_GROUP_LIMIT_S)}
        for members in groups:
            if len(members) > 1:
                name = f"{self._whole.name}/{'-'.join(map(str, members))}"
                group = create_group(self._backend, members, name, self._timeout, limits)
                own = own if group is None else state_of(group)
        return own

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        *,
        timeout: float | str | None = None,
        chunk: int = CHUNK,
        window: int = WINDOW,
    ) -> torch.Tensor:
        """Reduce ``tensor`` over all ranks, in place, within ``timeout``; return it.

        ``chunk``: elements of a chunk, of which ``window`` are in flight at each of the three
        stages. All ranks get the same bits; floating-point sums are rounded in another order than
        in a flat all-reduce. Each chunk is copied, so that nothing writes to the tensor after the
        call has raised.

        Raises:
            InvalidValue, CollectiveTimeout, CollectiveFailed, GroupBroken: as
                :func:`holdfast.comm.all_reduce`.
        """
        if self._is_alone:
            check_alone("Hierarchy", find_refusal(tensor) or find_chunk_refusal(chunk, window))
            return tensor
        whole = state_of(self._whole.group)
        refusal = find_chunk_refusal(chunk, window) or find_refusal(tensor, whole, op)
        if op not in _OPS:
            refusal = f"{op} is not associative over nodes; choose from {', '.join(_OPS.values())}"
        signature = _signature(_OPS.get(op, str(op)), tensor.shape, tensor.dtype)
        nbytes = tensor.numel() * tensor.element_size()
        call = begin_call(whole, signature, timeout, nbytes=nbytes, refusal=refusal)
        flat = tensor.detach().contiguous().view(-1)
        call.owns_tensor = flat.data_ptr() != tensor.data_ptr()
        if flat.numel() == 0:
            wait_for_all_ranks(call)
        elif len(self.nodes) in (1, len(whole.ranks)):
            reduce_in_one_call(flat, op, call)
        else:
            try:
                wait_for_works(self._start_stages(flat, op, chunk, window, call), call)
            except BaseException:
                whole.broken = whole.broken or f"{call.signature} was interrupted"
                for part in (self._node, self._rail):
                    if part is not None:
                        part.broken = whole.broken
                raise
        if call.owns_tensor:
            tensor.detach().copy_(flat.view(tensor.shape))
        return tensor

    def _start_stages(
        self,
        flat: torch.Tensor,
        op: dist.ReduceOp.RedOpType,
        chunk: int,
        window: int,
        call: BoundedCall,
    ) -> Iterator[dist.Work]:
        """Yield the works of all chunks in the order of waiting, started as late as possible.

        All three stages of a chunk run on one scratch copy, which is copied back after the last.

        Every rank of a node starts its reductions and broadcasts in the same order, and waits
        between them only for works that precede them in this order on all ranks: no deadlock.
        """
        rails = self.rails if flat.numel() >= _ONE_RAIL_BELOW else 1
        chunks = flat.split(max(1, min(chunk, -(-flat.numel() // rails))))
        scratch: dict[int, torch.Tensor] = {}
        reductions: dict[int, dist.Work] = {}
        between_nodes: dict[int, dist.Work] = {}
        broadcasts: dict[int, dist.Work] = {}
        for turn in range(len(chunks) + 3 * window):
            index = turn
            if index < len(chunks):
                scratch[index] = scratch_copy(chunks[index], call)
                if self._node is not None:
                    reductions[index] = start_reduce(scratch[index], op, index % rails, self._node)
            index -= window
            if 0 <= index < len(chunks):
                yield from _pop_work(index, reductions)
                if index % rails == self._position:
                    between_nodes[index] = start_all_reduce(scratch[index], op, self._own_rail())
            index -= window
            if 0 <= index < len(chunks):
                yield from _pop_work(index, between_nodes)
                if self._node is not None:
                    broadcasts[index] = start_broadcast(scratch[index], index % rails, self._node)
            index -= window
            if index >= 0:
                yield from _pop_work(index, broadcasts)
                copy_back(scratch.pop(index), chunks[index])

    def _own_rail(self) -> GroupState:
        if self._rail is None:
            raise InternalError("a rank that is on no rail reduces between nodes")
        return self._rail


def _pop_work(index: int, works: dict[int, dist.Work]) -> Iterator[dist.Work]:
    """Yield and drop the work of a chunk, if this rank has one."""
    if index in works:
        yield works.pop(index)


@lru_cache(maxsize=1024)
def _signature(op: str, shape: torch.Size, dtype: torch.dtype) -> str:
    return f"hierarchical all_reduce ({op}) of {list(shape)} {dtype_name(dtype)}"
