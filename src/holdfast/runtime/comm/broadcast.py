"""One rank's tensor for all, in pieces where ranks hand them on: the next piece is under way while one is handed on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
import torch.distributed as dist

from holdfast.runtime.comm.groups import GroupState, state_of
from holdfast.runtime.comm.validation import wrong_with
from holdfast.runtime.comm.waiting import begin, finish, meet

#: Pieces under way at once.
WINDOW = 4
#: gloo hands the whole tensor on from rank to rank, log2(n) times, and begins when it has all of it.
_PIECE_BYTES = 4 << 20


def broadcast(
    tensor: torch.Tensor,
    src: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
    chunk: int | Literal["auto"] | None = "auto",
    window: int = WINDOW,
) -> torch.Tensor:
    """Give all ranks of ``group`` the tensor of global rank ``src``, in place; it is returned.

    ``timeout``: as :func:`holdfast.comm.all_reduce` takes it. ``chunk``: elements of a piece, of which ``window`` are
    under way at once; None moves the tensor in one call, and "auto" does so where no rank has to hand it on. Tensors
    of any dtype; one that is not contiguous is copied.

    Raises:
        BadValue, CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    state = state_of(group)
    wrong = wrong_with(tensor, state)
    if src not in state.ranks:
        wrong = f"rank {src} is no member of the group; give the global rank of one that is"
    elif (isinstance(chunk, int) and chunk < 1) or window < 1 or (isinstance(chunk, str) and chunk != "auto"):
        wrong = f"pieces of {chunk} elements, {window} at once, make no sense"
    words = f"broadcast of {tensor.numel():,} {str(tensor.dtype)[6:]} {list(tensor.shape)} from rank {src}"
    call = begin(state, words, timeout, nbytes=tensor.numel() * tensor.element_size(), wrong=wrong)
    if tensor.numel() == 0:
        meet(call)
        return tensor
    whole = tensor.detach().contiguous()
    flat = raw(whole) if on_gloo(state, tensor) else whole.view(-1)
    length = _length(whole, chunk, state)
    pieces = [flat] if length is None else flat.split(length * (whole.element_size() if flat is not whole else 1))
    finish(_works(pieces, state.ranks.index(src), state, window), call)
    if whole.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(whole)
    return tensor


def start_broadcast(tensor: torch.Tensor, root: int, state: GroupState) -> dist.Work:
    """Begin to give all ranks the contiguous tensor of the group's rank ``root``."""
    options = dist.BroadcastOptions()
    options.rootRank = root
    options.rootTensor = 0
    return state.group.broadcast([tensor], options)


def on_gloo(state: GroupState, tensor: torch.Tensor) -> bool:
    """Whether gloo moves this tensor; a group may have another backend for each kind of device."""
    return state.backend_for(tensor.device.type) == "gloo"


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, as gloo knows some dtypes only."""
    return tensor.view(-1).view(torch.uint8)


def _length(tensor: torch.Tensor, chunk: int | str | None, state: GroupState) -> int | None:
    """Elements of a piece, None for all of them. Other backends than gloo cut tensors up by themselves."""
    if chunk != "auto":
        return chunk if isinstance(chunk, int) and chunk < tensor.numel() else None
    handed_on = len(state.ranks) > 2 and on_gloo(state, tensor)
    return max(1, _PIECE_BYTES // tensor.element_size()) if handed_on and tensor.nbytes > _PIECE_BYTES else None


def _works(pieces: Sequence[torch.Tensor], root: int, state: GroupState, window: int) -> Iterator[dist.Work]:
    """The works of all pieces in order; a piece is begun when the one ``window`` before it has been waited for."""
    under_way: deque[dist.Work] = deque()
    for piece in pieces:
        if len(under_way) == window:
            yield under_way.popleft()
        under_way.append(start_broadcast(piece, root, state))
    yield from under_way
