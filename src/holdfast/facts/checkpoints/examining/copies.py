"""Numbers that a checkpoint holds more than once, and whether they are the same each time.

Replicas of a piece by several ranks, the 16-bit copy beside an fp32 weight, tied weights that stand under both names.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Piece, Tensor
from holdfast.facts.checkpoints.examining.comparing import Difference, compare
from holdfast.facts.checkpoints.examining.coverage import overlaps
from holdfast.facts.checkpoints.pieces import Reader, run_start
from holdfast.findings import Unknown


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """Two places of the same numbers: ``kind`` is replica, half or tie; ``files`` those where they stand."""

    kind: str
    name: str
    other: str
    files: tuple[str, ...]
    difference: Difference | Unknown


def copies(contents: Contents, reader: Reader) -> Iterator[Copy]:
    """Each pair of copies in the checkpoint, compared."""
    yield from _replicas(contents, reader)
    for name, half in contents.halves.items():
        whole = contents.tensors.get(name)
        if whole is not None and whole.numel == half.numel:
            yield _copy("half", name, name, (whole, half), reader)
    for name, other in contents.ties.items():
        first, second = contents.tensors.get(name), contents.tensors.get(other)
        if first is not None and second is not None and first != second and first.numel == second.numel:
            yield _copy("tie", name, other, (first, second), reader)


def _replicas(contents: Contents, reader: Reader) -> Iterator[Copy]:
    for name, tensor in _every(contents):
        if len(tensor.pieces) > 1:
            for first, second in overlaps(tensor):
                yield _copy("replica", name, name, _common(tensor, first, second), reader)


def _every(contents: Contents) -> Iterator[tuple[str, Tensor]]:
    yield from contents.tensors.items()
    yield from contents.halves.items()
    for name, states in (contents.optimizer.tensors if contents.optimizer else {}).items():
        yield from ((f"{state} of {name}", tensor) for state, tensor in states.items())


def _common(tensor: Tensor, first: Piece, second: Piece) -> tuple[Tensor, Tensor]:
    """What both pieces hold, as two tensors; one without pieces where a run cannot be cut out of it."""
    if (first.flat, first.start, first.shape) == (second.flat, second.start, second.shape):
        return _alone(tensor, first), _alone(tensor, second)
    starts = run_start(tensor.shape, first) or 0, run_start(tensor.shape, second) or 0
    lower = max(starts)
    upper = min(start + piece.numel for start, piece in zip(starts, (first, second), strict=True))
    return (
        _run(tensor, first, lower - starts[0], upper - lower),
        _run(tensor, second, lower - starts[1], upper - lower),
    )


def _alone(tensor: Tensor, piece: Piece) -> Tensor:
    own = msgspec.structs.replace(piece, start=(0,) * len(piece.shape), flat=False)
    return msgspec.structs.replace(tensor, shape=piece.shape, pieces=(own,))


def _run(tensor: Tensor, piece: Piece, skip: int, size: int) -> Tensor:
    if piece.strides is not None or piece.packed:
        return msgspec.structs.replace(tensor, shape=(size,), pieces=())
    offset = piece.offset + skip * (tensor.size // tensor.numel)
    own = Piece(file=piece.file, offset=offset, shape=(size,), start=(0,))
    return msgspec.structs.replace(tensor, shape=(size,), pieces=(own,))


def _copy(kind: str, name: str, other: str, pair: tuple[Tensor, Tensor], reader: Reader) -> Copy:
    files = tuple(dict.fromkeys(piece.file for tensor in pair for piece in tensor.pieces[:1]))
    difference: Difference | Unknown
    try:
        difference = compare(reader, pair[0], reader, pair[1], rounded=True)
    except CheckpointUnreadable as error:
        difference = Unknown(error.why)
    return Copy(kind=kind, name=name, other=other, files=files, difference=difference)
