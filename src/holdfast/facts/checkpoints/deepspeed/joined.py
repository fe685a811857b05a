"""Tensor- and pipeline-parallel ranks of a DeepSpeed checkpoint, put together.

A parameter that one of them has alone is whole. Of others DeepSpeed's files say how the parts belong together only
where the program gave its model ``universal_checkpoint_info``, patterns of names (deepspeed/checkpoint/constants.py);
what they mean is as in ds_to_universal.py: parts follow one another in the first dimension, unless a pattern says that
they do in the second (row parallelism), or are equal. Without it, parts of what two of them have are not guessed at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from holdfast.facts.checkpoints.contents import ITEMSIZE, Gap, Group, Optimizer, Piece, Tensor
from holdfast.facts.checkpoints.deepspeed.files import Shard
from holdfast.facts.checkpoints.deepspeed.share import Share

_INFO = "universal_checkpoint_info"
_EQUAL = ("tp_replicated_parameter_patterns", "pipeline_replicated_parameter_patterns")
_SECOND = ("parameter_with_row_parallelism_patterns",)
#: Kinds of parts that are not put together here.
_OTHER = ("parameter_to_average_patterns", "parameter_with_2_sub_params_cat_dim_0", "parameter_with_sub_params")
#: Patterns are the program's; longer ones are not tried, because a regular expression can take for ever.
_LONGEST = 200

#: How the parts of a name belong together: by that dimension, or they are equal (-1), or it is not known (None).
How = Callable[[str], int | None]


def joined(shares: Sequence[Share], shards: Sequence[Shard], count: int) -> tuple[Share, list[Gap]]:
    """What all of them have together, and a gap for what cannot be put together; ``count`` of them were written."""
    if len(shares) == count == 1:
        return shares[0], []
    how = _how(shards[0].read.value, missing=len(shares) < count)
    tensors = _all([share.tensors for share in shares], how)
    kept = {name: each for name, each in tensors.items() if each is not None}
    lost = [name for name, each in tensors.items() if each is None]
    halves = _all([share.halves for share in shares], how)
    made = msgspec.structs.replace(
        shares[0], tensors=kept, halves={name: each for name, each in halves.items() if each is not None},
        ties={k: v for share in shares for k, v in share.ties.items() if v in kept},
        frozen=frozenset(name for share in shares for name in share.frozen if name in kept),
        buffers=frozenset(name for share in shares for name in share.buffers if name in kept),
        optimizer=_optimizer(shares, how, kept), gaps=tuple(gap for share in shares for gap in share.gaps),
    )  # fmt: skip
    return made, [_gap(shards[0], lost, len(shares))] if lost else []


def _how(state: Mapping[str, Any], *, missing: bool) -> How:
    """By the patterns of the program; where a rank's part is missing, what is equal on all of them is known alone."""
    info = state.get(_INFO)
    degrees = state.get("checkpoint_parallel_dimensions")
    if isinstance(degrees, Mapping) and degrees.get("tp_degree") == 1:
        return lambda _: -1  # stages of a pipeline: what two of them have is tied
    if not isinstance(info, Mapping):
        return lambda _: None
    equal, second, other = (_matcher(info, keys) for keys in (_EQUAL, _SECOND, _OTHER))

    def how(name: str) -> int | None:
        if other(name):
            return None
        return -1 if equal(name) else None if missing else 1 if second(name) else 0

    return how


def _matcher(info: Mapping[str, Any], keys: Sequence[str]) -> Callable[[str], bool]:
    patterns = [each for key in keys for each in info.get(key) or ()]
    simple = [each for each in patterns if isinstance(each, str) and len(each) <= _LONGEST and not _NESTED.search(each)]
    if len(simple) < len(patterns):
        return lambda _: True
    compiled = [re.compile(each) for each in simple]
    return lambda name: any(each.match(name) for each in compiled)


#: A repeated group that is repeated inside: such a pattern may take for ever.
_NESTED = re.compile(r"[+*}]\)[+*{]")


def _all(found: Sequence[Mapping[str, Tensor]], how: How) -> dict[str, Tensor | None]:
    """Every tensor of any; None where its parts cannot be put together."""
    parts: dict[str, list[Tensor]] = {}
    for each in found:
        for name, tensor in each.items():
            parts.setdefault(name, []).append(tensor)
    alone = len(found) > 1  # where one rank's part is there alone, what it has is no whole
    return {name: each[0] if alone and len(each) == 1 else _one(each, how(name)) for name, each in parts.items()}


def _one(parts: Sequence[Tensor], dim: int | None) -> Tensor | None:
    """The parts as one tensor."""
    first = parts[0]
    if dim is None or any(each.dtype != first.dtype or len(each.shape) != len(first.shape) for each in parts):
        return None
    if dim == -1 or not first.shape:
        if any(each.shape != first.shape for each in parts):
            return None
        return msgspec.structs.replace(first, pieces=tuple(piece for each in parts for piece in each.pieces))
    dim = min(dim, len(first.shape) - 1)
    whole = tuple(sum(each.shape[dim] for each in parts) if at == dim else n for at, n in enumerate(first.shape))
    if any(_without(each.shape, dim) != _without(first.shape, dim) for each in parts):
        return None
    pieces: list[Piece] = []
    at = 0
    for part in parts:
        for piece in part.pieces:
            pieces += _moved(piece, part, whole, dim, at)
        at += part.shape[dim]
    return Tensor(name=first.name, dtype=first.dtype, shape=whole, pieces=tuple(pieces))


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _moved(piece: Piece, part: Tensor, whole: tuple[int, ...], dim: int, at: int) -> Iterator[Piece]:
    """A piece of a part that begins at index ``at`` of dimension ``dim`` (0 or 1), as pieces of the whole."""
    if not piece.flat:
        start = tuple(n + at if axis == dim else n for axis, n in enumerate(piece.start))
        yield msgspec.structs.replace(piece, start=start)
    elif dim == 0:
        yield msgspec.structs.replace(piece, start=(piece.start[0] + at * math.prod(part.shape[1:]),))
    else:
        yield from _rows(piece, part, whole, at)


def _rows(piece: Piece, part: Tensor, whole: tuple[int, ...], at: int) -> Iterator[Piece]:
    """A flat piece by the rows of its part: the whole rows are one box, what is before and after them flat pieces."""
    inner = math.prod(part.shape[2:])
    row, whole_row, itemsize = part.shape[1] * inner, whole[1] * inner, ITEMSIZE[part.dtype]
    first, stop = piece.start[0], piece.start[0] + piece.shape[0]
    low, high = -(-first // row), stop // row
    for begin, end in ((first, low * row), (high * row, stop)) if low <= high else ((first, stop),):
        if begin < end:
            yield msgspec.structs.replace(
                piece, offset=piece.offset + (begin - first) * itemsize, shape=(end - begin,),
                start=(begin // row * whole_row + at * inner + begin % row,),
            )  # fmt: skip
    if low < high:
        yield Piece(
            file=piece.file, offset=piece.offset + (low * row - first) * itemsize, shape=(high - low, *part.shape[1:]),
            start=(low, at, *(0 for _ in part.shape[2:])),
        )  # fmt: skip


def _optimizer(shares: Sequence[Share], how: How, kept: Mapping[str, Tensor]) -> Optimizer | None:
    """State by names, of the parameters that could be put together."""
    found = [share.optimizer for share in shares if share.optimizer is not None]
    if not found:
        return None
    keys = {key for each in found for states in each.tensors.values() for key in states}
    by_key = {key: _all([_state(each, key) for each in found], how) for key in sorted(keys)}
    tensors: dict[str, dict[str, Tensor]] = {}
    for key, by_name in by_key.items():
        for name, tensor in by_name.items():
            if tensor is not None and name in kept:
                tensors.setdefault(name, {})[key] = tensor
    numbers = {name: values for each in found for name, values in each.numbers.items() if name in kept}
    return Optimizer(tensors=tensors, numbers=numbers, groups=_groups(found, kept))


def _state(optimizer: Optimizer, key: str) -> dict[str, Tensor]:
    return {name: states[key] for name, states in optimizer.tensors.items() if key in states}


def _groups(found: Sequence[Optimizer], kept: Mapping[str, Tensor]) -> tuple[Group, ...]:
    """Group by group; the stages of a pipeline have other parameters in each."""
    columns = zip_longest(*(each.groups for each in found))
    made = []
    for column in columns:
        groups = [group for group in column if group is not None]
        params = dict.fromkeys(name for group in groups for name in group.params if name in kept)
        made.append(Group(params=tuple(params), options=groups[0].options))
    return tuple(made)


def _gap(shard: Shard, lost: Sequence[str], count: int) -> Gap:
    some = ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")
    why = (
        f"{len(lost):,} parameters ({some}) are divided over {count:,} tensor-parallel ranks, and how their parts "
        f"belong together is not in it"
    )
    return Gap(kind="unreadable", file=shard.file, why=why)
