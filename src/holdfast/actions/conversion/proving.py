"""Reads back what was written and holds it against the source, bit by bit: every tensor, by the reader of its format.

What a writer left out is known from its parts: a tensor that none of them refers to. Nothing else may be missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

import msgspec
import numpy as np

from holdfast.actions.conversion.files import Archive, Box, File, Part, Run
from holdfast.actions.conversion.options import Options
from holdfast.facts.checkpoints.contents import ITEMSIZE, Contents, Optimizer, Piece, Tensor
from holdfast.facts.checkpoints.pieces import Array, Reader, cast

_THREADS = max(2, min(8, (os.cpu_count() or 2)))


class Pair(msgspec.Struct, frozen=True):
    """A tensor of the source and that of the target; ``what`` is its name, and which state of it where it is one.

    ``copy``: it is the 16-bit copy of a weight, whose dtype is the format's own affair. ``state``: it is one of the
    optimizer, whose dtype was not asked for.
    """

    what: str
    source: Tensor
    target: Tensor
    copy: bool = False
    state: bool = False


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared: tensors of the model, states of the optimizer, and ``copies`` of weights in 16 bits.

    ``failures`` are clauses, one a tensor; the target is not whole where there is one.

    ``beyond`` tells how many numbers of which tensor are finite in the source, and not in the target's dtype.
    """

    tensors: int = 0
    states: int = 0
    copies: int = 0
    size: int = 0
    beyond: Mapping[str, int] = {}
    failures: tuple[str, ...] = ()


class Held(msgspec.Struct, frozen=True):
    """Which tensors of the source the files refer to, by where they stand there."""

    places: frozenset[tuple[tuple[int, ...], str, Piece | None]]

    def has(self, tensor: Tensor) -> bool:
        """It is written; so is one without numbers."""
        return not tensor.numel or _place(tensor) in self.places


def held(files: Sequence[File]) -> Held:
    """What is written of the source."""
    seen: dict[int, Tensor] = {}
    for file in files:
        for part in file.parts:
            seen.update((id(each), each) for each in _tensors(part))
    return Held(frozenset(_place(each) for each in seen.values()))


def prove(
    source: Contents, target: Contents, files: Sequence[File], options: Options, advance: Callable[[int], None]
) -> Proof:
    """Compare them. ``advance`` is told the bytes of the target that were read.

    Raises:
        CheckpointUnreadable: a file of one of them cannot be read.
    """
    known = held(files)
    failures = list[str]()
    weights = list(_weights(source, target, known, failures))
    states = list(_states(source, target, known, options, failures))
    for pair in (*weights, *states):
        failures += _form(pair, options)
    readable = [pair for pair in (*weights, *states) if pair.source.shape == pair.target.shape]
    seen = _compared(Path(source.root), Path(target.root), readable, advance)
    failures += [why for why, _ in seen if why]
    failures += _numbers(source, target, options)
    return Proof(
        tensors=len({id(pair.source) for pair in weights if not pair.copy}), states=len(states),
        copies=sum(pair.copy for pair in weights), size=sum(pair.target.size for pair in readable),
        failures=tuple(failures),
        beyond={pair.what: lost for pair, (_, lost) in zip(readable, seen, strict=True) if lost},
    )  # fmt: skip


def left_out(source: Contents, files: Sequence[File], options: Options) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What no part refers to: tensors of the model by name, and those of the optimizer (``exp_avg of NAME``)."""
    known = held(files)
    found = [name for name, each in source.tensors.items() if not known.has(each) and not _as_copy(source, known, name)]
    optimizer = source.optimizer.tensors if source.optimizer is not None and options.optimizer else {}
    states = [
        f"{key} of {name}" for name, states in optimizer.items() for key, each in states.items() if not known.has(each)
    ]
    return tuple(found), tuple(states)


def _as_copy(source: Contents, known: Held, name: str) -> bool:
    """Its 16-bit copy was written."""
    return name in source.halves and known.has(source.halves[name])


def _weights(source: Contents, target: Contents, known: Held, failures: list[str]) -> Iterator[Pair]:
    """Each weight and buffer under each of its names, and the 16-bit copies that the target has."""
    names = {name: name for name in source.tensors} | dict(source.ties)
    for name, first in names.items():
        found = source.tensors[first]
        there = target.tensors.get(target.ties.get(name, name))
        if there is not None:
            yield Pair(name, found, there)
        elif known.has(found):
            failures.append(f"{name} is not in it")
        copy = target.halves.get(name)
        if copy is not None:
            half = source.halves.get(name)
            kept = half if half is not None and half.dtype == copy.dtype and known.has(half) else found
            yield Pair(f"the {copy.dtype} copy of {name}", kept, copy, copy=True)
    extra = [name for name in (*target.tensors, *target.ties) if name not in names]
    failures += [f"{name} is in it, and not in the source" for name in extra]


def _states(source: Contents, target: Contents, known: Held, options: Options, failures: list[str]) -> Iterator[Pair]:
    if source.optimizer is None or not options.optimizer:
        return
    there = target.optimizer.tensors if target.optimizer is not None else {}
    for name, states in source.optimizer.tensors.items():
        for key, found in states.items():
            what = f"{key} of {name}"
            copy = there.get(name, {}).get(key)
            if copy is not None:
                yield Pair(what, found, copy, state=True)
            elif known.has(found):
                failures.append(f"{what} is not in it")


def _form(pair: Pair, options: Options) -> Iterator[str]:
    """What is wrong with the form of a tensor: its shape, or a dtype that nobody asked for and that loses something."""
    one, two, asked = pair.source, pair.target, None if pair.state else options.dtype
    if one.shape != two.shape:
        yield f"{pair.what} has the shape {list(two.shape)}, not {list(one.shape)}"
    elif two.dtype not in {one.dtype, asked} and not (pair.copy or _wider(one.dtype, two.dtype)):
        yield f"{pair.what} is {two.dtype}, not {one.dtype}"


def _wider(one: str, two: str) -> bool:
    """Every number of the first dtype is one of the second."""
    floats = ("float16", "bfloat16"), ("float32", "float64")
    return (one in floats[0] and two in floats[1]) or (one, two) == floats[1]


def _numbers(source: Contents, target: Contents, options: Options) -> Iterator[str]:
    if isinstance(source.step, int) and isinstance(target.step, int) and source.step != target.step:
        yield f"its step is {target.step}, not {source.step}"
    if source.optimizer is None or target.optimizer is None or not options.optimizer:
        return
    yield from _states_differ(source.optimizer, target.optimizer)


def _states_differ(source: Optimizer, target: Optimizer) -> Iterator[str]:
    for name, numbers in source.numbers.items():
        there = target.numbers.get(name, {})
        for key, value in numbers.items():
            if key in there and float(there[key]) != float(value):
                yield f"{key} of {name} is {there[key]}, not {value}"


def _compared(
    source: Path, target: Path, pairs: Sequence[Pair], advance: Callable[[int], None]
) -> list[tuple[str, int]]:
    """What is wrong with the numbers of each pair ('' where nothing is), and how many are beyond the target's dtype."""
    own, readers = local(), list[Reader]()

    def compare(pair: Pair) -> tuple[str, int]:
        if not hasattr(own, "source"):
            own.source, own.target = Reader(source), Reader(target)
            readers.extend((own.source, own.target))
        return _differ(pair, own.source, own.target, advance)

    try:
        with ThreadPoolExecutor(_THREADS, "prove") as pool:
            return list(pool.map(compare, pairs))
    finally:
        for reader in readers:
            reader.__exit__(None, None, None)


def _differ(pair: Pair, source: Reader, target: Reader, advance: Callable[[int], None]) -> tuple[str, int]:
    dtype, at, beyond = pair.target.dtype, 0, 0
    for one, two in aligned(source.blocks(pair.source), target.blocks(pair.target)):
        wanted = cast(one, dtype)
        if one.dtype != wanted.dtype:
            beyond += _beyond(one, wanted)
        if (byte := _first_difference(wanted.view(np.uint8), two.view(np.uint8))) is not None:
            first = at + byte // ITEMSIZE[dtype]
            return f"element {first:,} of {pair.what} is not that of the source", beyond
        at += len(one)
        advance(two.nbytes)
    if at != pair.source.numel:
        return f"{pair.what} has {at:,} elements, not {pair.source.numel:,}", beyond
    return "", beyond


def _first_difference(one: Array, two: Array) -> int | None:
    """The first byte that is not the same; compared eight by eight, which is four times as fast."""
    whole = len(one) // 8 * 8
    if np.array_equal(one[:whole].view(np.uint64), two[:whole].view(np.uint64)) and bytes(one[whole:]) == bytes(
        two[whole:]
    ):
        return None
    return int(np.argmin(one == two))


def _beyond(one: Array, two: Array) -> int:
    if two.dtype.kind not in "fV" or one.dtype.itemsize <= two.dtype.itemsize:
        return 0
    lost = np.isfinite(one) & ~np.isfinite(two)
    return int(np.count_nonzero(lost))


def aligned(one: Iterator[Array], two: Iterator[Array]) -> Iterator[tuple[Array, Array]]:
    """Blocks of two readings of as many elements each, as far as both go."""
    a = b = np.empty(0)
    while True:
        if not len(a):
            a = next(one, a[:0])
        if not len(b):
            b = next(two, b[:0])
        size = min(len(a), len(b))
        if not size:
            return
        yield a[:size], b[:size]
        a, b = a[size:], b[size:]


def _tensors(part: Part) -> Iterator[Tensor]:
    if isinstance(part, (Run, Box)):
        yield part.tensor
    elif isinstance(part, Archive):
        for record in part.records:
            for inner in record.parts:
                yield from _tensors(inner)


def _place(tensor: Tensor) -> tuple[tuple[int, ...], str, Piece | None]:
    return tensor.shape, tensor.dtype, tensor.pieces[0] if tensor.pieces else None
