"""All-reduce over nodes: inside each node, between nodes, and back, in pieces that are under way at the same time.

The ranks at the same place of each node form a *rail*. A piece is reduced inside the node to the rank of its rail,
all-reduced along the rail, and broadcast inside the node. There are as many rails as the smallest node has ranks (one:
leaders alone), and the pieces take them in turn, which is the sharded form (reduce-scatter, all-reduce of shards,
all-gather) without a copy of the tensor, and for uneven nodes too. Each rank gets the bits that the rail has agreed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import lru_cache

import torch
import torch.distributed as dist

from holdfast.errors import BadValue, InternalError
from holdfast.runtime.comm.groups import GroupState, state_of
from holdfast.runtime.comm.hosts import layout_of
from holdfast.runtime.comm.making import beside, make_group
from holdfast.runtime.comm.validation import wrong_with
from holdfast.runtime.comm.waiting import begin, finish, meet
from holdfast.runtime.comm.ways import WINDOW, start

#: Elements of a piece. Pieces of 1 M kept a link of 10 ms round trip busy, four at a time (docs/benchmarks.md).
CHUNK = 1 << 20
#: Tensors of fewer elements go along one rail: a piece more costs a latency more.
_ONE_RAIL_BELOW = 1 << 13
#: Of the sub-groups themselves; calls have limits of their own.
_GROUP_LIMIT_S = 600.0
MAKING_LIMIT_S = 300.0

_OPS = {
    getattr(dist.ReduceOp, name): name for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}  # fmt: skip


class Hierarchy:
    """The nodes of ``group``, and groups inside and between them. Every rank of the group makes it, at the same point.

    ``nodes``: the global ranks of each node, of any number each; None takes ranks that share a host for a node.
    No leader makes a group that the others do not know: each sub-group is made by all ranks of ``group``. It has a
    communicator of its own as a whole, so that what breaks here does not break ``group``.

    Raises:
        BadValue: ``nodes`` are not the ranks of the group, each once.
        CollectiveTimeout: ranks did not come within ``timeout`` seconds; it names them.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        nodes: Sequence[Sequence[int]] | None = None,
        timeout: float = MAKING_LIMIT_S,
    ) -> None:
        state = state_of(group)
        given = layout_of(state, timeout) if nodes is None else nodes
        self.nodes = tuple(tuple(node) for node in given)
        if sorted(rank for node in self.nodes for rank in node) != sorted(state.ranks):
            raise BadValue("a hierarchy", why=f"its nodes {self.nodes} are not the ranks {state.ranks}, each once")
        self.rails = min(map(len, self.nodes))
        backend, limit = dist.get_backend(state.group), timedelta(seconds=_GROUP_LIMIT_S)
        self._whole = state_of(beside(state, backend, "hierarchy", limit, timeout))
        self._place = next(node.index(dist.get_rank()) for node in self.nodes if dist.get_rank() in node)
        rails = tuple(tuple(node[at] for node in self.nodes) for at in range(self.rails))
        mine: list[GroupState | None] = []
        for families in (self.nodes, rails):
            made = [self._make(backend, members, limit, timeout) for members in families if len(members) > 1]
            mine.append(next((state_of(each) for each in made if each is not None), None))
        self._node, self._rail = mine

    def _make(
        self, backend: str, members: tuple[int, ...], limit: timedelta, timeout: float
    ) -> dist.ProcessGroup | None:
        name = f"{self._whole.name}/{'-'.join(map(str, members))}"
        return make_group(backend, members, name, timeout, {"default": limit})

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        *,
        timeout: float | str | None = None,
        chunk: int = CHUNK,
        window: int = WINDOW,
    ) -> torch.Tensor:
        """Reduce ``tensor`` over all ranks, in place, within ``timeout``; it is returned.

        ``chunk``: elements of a piece, of which ``window`` are under way at once at each of the three stages. All ranks
        get the same bits; sums of floating-point numbers are added up in another order than in a flat all-reduce.

        Raises:
            BadValue, CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
        """
        whole = state_of(self._whole.group)
        wrong = wrong_with(tensor, whole, op)
        if op not in _OPS:
            wrong = f"{op} is not the same over nodes as over ranks; give one of {', '.join(_OPS.values())}"
        elif chunk < 1 or window < 1:
            wrong = f"pieces of {chunk} elements, {window} at once, make no sense"
        words = _words(_OPS.get(op, str(op)), tensor.shape, tensor.dtype)
        call = begin(whole, words, timeout, nbytes=tensor.numel() * tensor.element_size(), wrong=wrong)
        flat = tensor.detach().contiguous().view(-1)
        if flat.numel() == 0:
            meet(call)
        elif len(self.nodes) in (1, len(whole.ranks)):
            finish([start(flat, op, whole)], call)
        else:
            try:
                finish(self._works(flat, op, chunk, window), call)
            except BaseException:
                for part in (self._node, self._rail):
                    if part is not None:
                        part.broken = whole.broken or f"{call.words} was left"
                whole.broken = whole.broken or f"{call.words} was left"
                raise
        if flat.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(flat.view(tensor.shape))
        return tensor

    def _works(self, flat: torch.Tensor, op: dist.ReduceOp.RedOpType, chunk: int, window: int) -> Iterator[dist.Work]:
        """The works of all pieces, in the order in which they are waited for, begun as late as that allows.

        Every rank of a node begins its reductions and broadcasts in the same order, and waits for nothing in between
        that does not come before it in this order on all ranks: so no two of them can wait for each other.
        """
        rails = self.rails if flat.numel() >= _ONE_RAIL_BELOW else 1
        pieces = flat.split(max(1, min(chunk, -(-flat.numel() // rails))))
        reductions: dict[int, dist.Work] = {}
        between: dict[int, dist.Work] = {}
        back: dict[int, dist.Work] = {}
        for turn in range(len(pieces) + 3 * window):
            at = turn
            if at < len(pieces) and self._node is not None:
                reductions[at] = self._reduce(pieces[at], op, at % rails, self._node)
            at -= window
            if 0 <= at < len(pieces):
                if at in reductions:
                    yield reductions.pop(at)
                if at % rails == self._place:
                    between[at] = start(pieces[at], op, self._of_rail())
            at -= window
            if 0 <= at < len(pieces):
                if at in between:
                    yield between.pop(at)
                if self._node is not None:
                    back[at] = self._broadcast(pieces[at], at % rails, self._node)
            at -= window
            if at in back:
                yield back.pop(at)

    def _of_rail(self) -> GroupState:
        if self._rail is None:
            raise InternalError("a rank that is on no rail reduces between nodes")
        return self._rail

    @staticmethod
    def _reduce(piece: torch.Tensor, op: dist.ReduceOp.RedOpType, root: int, node: GroupState) -> dist.Work:
        options = dist.ReduceOptions()
        options.reduceOp = dist.ReduceOp(op)
        options.rootRank = root
        return node.group.reduce([piece], options)

    @staticmethod
    def _broadcast(piece: torch.Tensor, root: int, node: GroupState) -> dist.Work:
        options = dist.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        return node.group.broadcast([piece], options)


@lru_cache(maxsize=1024)
def _words(op: str, shape: torch.Size, dtype: torch.dtype) -> str:
    return f"hierarchical all_reduce ({op}) of {list(shape)} {str(dtype).removeprefix('torch.')}"
