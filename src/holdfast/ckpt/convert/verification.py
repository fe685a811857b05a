"""Reads the target back with its reader and compares every tensor with the source, bit by bit.

A tensor that no part refers to was intentionally not written; nothing else may be missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

import msgspec
import numpy as np

from holdfast.ckpt.contents import ITEMSIZE, CheckpointContents, OptimizerState, Tensor, TensorShard
from holdfast.ckpt.convert.files import Archive, Part, TargetFile, TensorBox, TensorRun
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.tensor_blocks import Array, TensorReader, cast_block

_THREADS = max(2, min(8, (os.cpu_count() or 2)))


class SourceTargetPair(msgspec.Struct, frozen=True):
    """A tensor of source and target; ``what`` is its name, with the state name if any.

    ``copy``: the 16-bit copy of a weight, whose dtype the format decides. ``state``: an optimizer
    state, whose dtype must be unchanged.
    """

    what: str
    source: Tensor
    target: Tensor
    copy: bool = False
    state: bool = False


class ReadBackResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared: model tensors, optimizer states, and 16-bit ``copies`` of weights.

    ``failures`` has one clause per tensor; if it is not empty, the target is invalid. ``beyond``:
    per tensor, the values finite in the source but not in the target's dtype.
    """

    tensors: int = 0
    states: int = 0
    copies: int = 0
    size: int = 0
    beyond: Mapping[str, int] = {}
    failures: tuple[str, ...] = ()


class WrittenTensors(msgspec.Struct, frozen=True):
    """The source tensors that the target files refer to, by their location in the source."""

    locations: frozenset[tuple[tuple[int, ...], str, TensorShard | None]]

    def has(self, tensor: Tensor) -> bool:
        """Return whether the tensor is written, or has no elements."""
        return not tensor.numel or _tensor_key(tensor) in self.locations


def find_written_tensors(files: Sequence[TargetFile]) -> WrittenTensors:
    """Return which tensors of the source are written."""
    tensors: dict[int, Tensor] = {}
    for file in files:
        for part in file.parts:
            tensors.update((id(tensor), tensor) for tensor in _part_tensors(part))
    return WrittenTensors(frozenset(_tensor_key(tensor) for tensor in tensors.values()))


def compare_with_source(
    source: CheckpointContents,
    target: CheckpointContents,
    files: Sequence[TargetFile],
    options: ConvertOptions,
    advance: Callable[[int], None],
) -> ReadBackResult:
    """Compare source and target. ``advance`` receives the target bytes just read.

    Raises:
        CheckpointUnreadable: a file cannot be read.
    """
    written = find_written_tensors(files)
    failures = list[str]()
    weights = list(_weight_pairs(source, target, written, failures))
    states = list(_state_pairs(source, target, written, options, failures))
    for pair in (*weights, *states):
        failures += _check_form(pair, options)
    readable = [pair for pair in (*weights, *states) if pair.source.shape == pair.target.shape]
    comparisons = _compare_values(Path(source.root), Path(target.root), readable, advance)
    failures += [why for why, _ in comparisons if why]
    failures += _compare_numbers(source, target, options)
    return ReadBackResult(
        tensors=len({id(pair.source) for pair in weights if not pair.copy}),
        states=len(states),
        copies=sum(pair.copy for pair in weights),
        size=sum(pair.target.size for pair in readable),
        failures=tuple(failures),
        beyond={
            pair.what: lost for pair, (_, lost) in zip(readable, comparisons, strict=True) if lost
        },
    )


def left_out(
    source: CheckpointContents, files: Sequence[TargetFile], options: ConvertOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return names of the model tensors and optimizer states that no part refers to."""
    written = find_written_tensors(files)
    missing = [
        name
        for name, tensor in source.tensors.items()
        if not written.has(tensor) and not _has_written_copy(source, written, name)
    ]
    optimizer = (
        source.optimizer.tensors if source.optimizer is not None and options.optimizer else {}
    )
    states = [
        f"{key} of {name}"
        for name, states in optimizer.items()
        for key, tensor in states.items()
        if not written.has(tensor)
    ]
    return tuple(missing), tuple(states)


def _has_written_copy(source: CheckpointContents, written: WrittenTensors, name: str) -> bool:
    """Return whether the 16-bit copy of the tensor was written."""
    return name in source.halves and written.has(source.halves[name])


def _weight_pairs(
    source: CheckpointContents,
    target: CheckpointContents,
    written: WrittenTensors,
    failures: list[str],
) -> Iterator[SourceTargetPair]:
    """Yield each weight and buffer by each of its names, and the target's 16-bit copies."""
    names = {name: name for name in source.tensors} | dict(source.ties)
    for name, first in names.items():
        tensor = source.tensors[first]
        target_tensor = target.tensors.get(target.ties.get(name, name))
        if target_tensor is not None:
            yield SourceTargetPair(name, tensor, target_tensor)
        elif written.has(tensor):
            failures.append(f"{name} is missing")
        target_copy = target.halves.get(name)
        if target_copy is not None:
            half = source.halves.get(name)
            source_copy = (
                half
                if half is not None and half.dtype == target_copy.dtype and written.has(half)
                else tensor
            )
            yield SourceTargetPair(
                f"the {target_copy.dtype} copy of {name}", source_copy, target_copy, copy=True
            )
    extra = [name for name in (*target.tensors, *target.ties) if name not in names]
    failures += [f"{name} is not in the source" for name in extra]


def _state_pairs(
    source: CheckpointContents,
    target: CheckpointContents,
    written: WrittenTensors,
    options: ConvertOptions,
    failures: list[str],
) -> Iterator[SourceTargetPair]:
    if source.optimizer is None or not options.optimizer:
        return
    target_states = target.optimizer.tensors if target.optimizer is not None else {}
    for name, states in source.optimizer.tensors.items():
        for key, tensor in states.items():
            what = f"{key} of {name}"
            target_tensor = target_states.get(name, {}).get(key)
            if target_tensor is not None:
                yield SourceTargetPair(what, tensor, target_tensor, state=True)
            elif written.has(tensor):
                failures.append(f"{what} is missing")


def _check_form(pair: SourceTargetPair, options: ConvertOptions) -> Iterator[str]:
    """Yield wrong shapes, and dtype changes that were not requested and lose precision."""
    source, target, requested = pair.source, pair.target, None if pair.state else options.dtype
    if source.shape != target.shape:
        yield f"{pair.what} has shape {list(target.shape)}, not {list(source.shape)}"
    elif target.dtype not in {source.dtype, requested} and not (
        pair.copy or _is_wider(source.dtype, target.dtype)
    ):
        yield f"{pair.what} is {target.dtype}, not {source.dtype}"


def _is_wider(source: str, target: str) -> bool:
    """Return whether every value of the first dtype is representable in the second."""
    floats = ("float16", "bfloat16"), ("float32", "float64")
    return (source in floats[0] and target in floats[1]) or (source, target) == floats[1]


def _compare_numbers(
    source: CheckpointContents, target: CheckpointContents, options: ConvertOptions
) -> Iterator[str]:
    if isinstance(source.step, int) and isinstance(target.step, int) and source.step != target.step:
        yield f"its step is {target.step}, not {source.step}"
    if source.optimizer is None or target.optimizer is None or not options.optimizer:
        return
    yield from _differing_numbers(source.optimizer, target.optimizer)


def _differing_numbers(source: OptimizerState, target: OptimizerState) -> Iterator[str]:
    for name, numbers in source.numbers.items():
        target_numbers = target.numbers.get(name, {})
        for key, value in numbers.items():
            if key in target_numbers and float(target_numbers[key]) != float(value):
                yield f"{key} of {name} is {target_numbers[key]}, not {value}"


def _compare_values(
    source: Path, target: Path, pairs: Sequence[SourceTargetPair], advance: Callable[[int], None]
) -> list[tuple[str, int]]:
    """Compare each pair; return a failure or '', and the count of out-of-range values."""
    thread, readers = local(), list[TensorReader]()

    def compare(pair: SourceTargetPair) -> tuple[str, int]:
        if not hasattr(thread, "source"):
            thread.source, thread.target = TensorReader(source), TensorReader(target)
            readers.extend((thread.source, thread.target))
        return _compare_pair(pair, thread.source, thread.target, advance)

    try:
        with ThreadPoolExecutor(_THREADS, "prove") as pool:
            return list(pool.map(compare, pairs))
    finally:
        for reader in readers:
            reader.__exit__(None, None, None)


def _compare_pair(
    pair: SourceTargetPair,
    source: TensorReader,
    target: TensorReader,
    advance: Callable[[int], None],
) -> tuple[str, int]:
    dtype, at, beyond = pair.target.dtype, 0, 0
    for source_block, target_block in align_blocks(
        source.blocks(pair.source), target.blocks(pair.target)
    ):
        wanted = cast_block(source_block, dtype)
        if source_block.dtype != wanted.dtype:
            beyond += _count_beyond_range(source_block, wanted)
        if (
            byte := _first_difference(wanted.view(np.uint8), target_block.view(np.uint8))
        ) is not None:
            element = at + byte // ITEMSIZE[dtype]
            return f"element {element:,} of {pair.what} differs from the source", beyond
        at += len(source_block)
        advance(target_block.nbytes)
    if at != pair.source.numel:
        return f"{pair.what} has {at:,} elements, not {pair.source.numel:,}", beyond
    return "", beyond


def _first_difference(first: Array, second: Array) -> int | None:
    """Return the first differing byte; compares 8 bytes at once, 4 times as fast."""
    aligned_size = len(first) // 8 * 8
    if np.array_equal(
        first[:aligned_size].view(np.uint64), second[:aligned_size].view(np.uint64)
    ) and bytes(first[aligned_size:]) == bytes(second[aligned_size:]):
        return None
    return int(np.argmin(first == second))


def _count_beyond_range(first: Array, second: Array) -> int:
    if second.dtype.kind not in "fV" or first.dtype.itemsize <= second.dtype.itemsize:
        return 0
    lost = np.isfinite(first) & ~np.isfinite(second)
    return int(np.count_nonzero(lost))


def align_blocks(first: Iterator[Array], second: Iterator[Array]) -> Iterator[tuple[Array, Array]]:
    """Yield the blocks of both, cut to equal lengths, as far as both go."""
    a = b = np.empty(0)
    while True:
        if not len(a):
            a = next(first, a[:0])
        if not len(b):
            b = next(second, b[:0])
        size = min(len(a), len(b))
        if not size:
            return
        yield a[:size], b[:size]
        a, b = a[size:], b[size:]


def _part_tensors(part: Part) -> Iterator[Tensor]:
    if isinstance(part, (TensorRun, TensorBox)):
        yield part.tensor
    elif isinstance(part, Archive):
        for record in part.records:
            for inner in record.parts:
                yield from _part_tensors(inner)


def _tensor_key(tensor: Tensor) -> tuple[tuple[int, ...], str, TensorShard | None]:
    return tensor.shape, tensor.dtype, tensor.shards[0] if tensor.shards else None
