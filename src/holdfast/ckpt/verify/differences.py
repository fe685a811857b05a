"""Compares two checkpoints of any formats: tensors by name, then value by value."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import CheckpointContents, Tensor
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.ckpt.verify.tensor_comparison import TensorDifference, compare_tensors
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown

#: Section of a tensor ("model" or the optimizer state's name), and its name.
Key = tuple[str, str]
_THREADS = min(4, os.cpu_count() or 1)
#: Parameter-group options with the same meaning in every framework.
_OPTIONS = ("lr", "betas", "eps", "weight_decay", "momentum", "amsgrad")


class ComparisonRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare: names matching one of ``only`` (globs; empty: all), optimizers, values.

    Values are equal if they differ by at most ``atol``, or if the norm of the difference is at most
    ``rtol`` times the first norm. ``any_dtype``: also if one is the other rounded to its dtype.
    """

    only: tuple[str, ...] = ()
    optimizer: bool = True
    numbers: bool = True
    atol: float = 0.0
    rtol: float = 0.0
    any_dtype: bool = False


class TensorPair(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of both checkpoints. ``difference`` is None if values were not compared.

    ``rounded``: one is the other in a dtype of lower precision. ``alike``: no requested comparison
    found a difference.
    """

    key: Key
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    difference: TensorDifference | Unknown | None = None
    rounded: bool = False
    alike: bool = True


class ComparisonResult(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors in both, tensors in only one, and differing plain values (path → both values).

    ``apart``: sentences on what was not compared; ``problems``: on incomplete data of one of them.
    """

    first: str
    second: str
    pairs: tuple[TensorPair, ...]
    missing: tuple[Key, ...]
    extra: tuple[Key, ...]
    values: Mapping[str, tuple[Any, Any]]
    apart: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def alike(self) -> bool:
        """Return whether no requested comparison found a difference."""
        return not (self.missing or self.extra or self.values) and all(
            pair.alike for pair in self.pairs
        )


def compare_checkpoints(
    a: CheckpointContents,
    b: CheckpointContents,
    request: ComparisonRequest,
    on_progress: Callable[[int, str], None] | None = None,
) -> ComparisonResult:
    """Compare ``b`` with ``a``; both must use the same naming.

    ``on_progress`` receives bytes as they are compared, and the tensor name.
    """
    mine, theirs, apart = _select_tensors(a, b, request)
    shared = [key for key in mine if key in theirs]
    pairs = _compare_pairs(
        a, b, [(key, mine[key], theirs[key]) for key in shared], request, on_progress
    )
    return ComparisonResult(
        first=a.root,
        second=b.root,
        pairs=pairs,
        missing=tuple(key for key in mine if key not in theirs),
        extra=tuple(key for key in theirs if key not in mine),
        values=_differing_values(a, b, request),
        apart=apart,
        problems=tuple(
            f"{contents.root}/{problem.file}: {problem.kind}: {problem.why}"
            for contents in (a, b)
            for problem in contents.problems
        ),
    )


def _select_tensors(
    a: CheckpointContents, b: CheckpointContents, request: ComparisonRequest
) -> tuple[Mapping[Key, Tensor], Mapping[Key, Tensor], tuple[str, ...]]:
    """Return the tensors of both to compare, and what is not compared."""
    optimizer = request.optimizer and a.optimizer is not None and b.optimizer is not None
    apart = tuple(
        f"optimizer state: only in {one.root}"
        for one, other in ((a, b), (b, a))
        if request.optimizer and one.optimizer is not None and other.optimizer is None
    )
    mine, theirs = (
        _tensors_by_key(one, other, request, optimizer=optimizer) for one, other in ((a, b), (b, a))
    )
    return mine, theirs, apart


def _tensors_by_key(
    one: CheckpointContents,
    other: CheckpointContents,
    request: ComparisonRequest,
    *,
    optimizer: bool,
) -> Mapping[Key, Tensor]:
    """Return tensors by key; tied weights under both names if either checkpoint has the tie."""
    selected = {("model", name): tensor for name, tensor in one.tensors.items()}
    for name, first in (*one.ties.items(), *other.ties.items()):
        for alias, target in ((name, first), (first, name)):
            if ("model", target) in selected and (
                alias in one.ties or alias in other.tensors or alias in other.ties
            ):
                selected.setdefault(("model", alias), selected["model", target])
    for name, states in (one.optimizer.tensors if optimizer and one.optimizer else {}).items():
        selected |= {(state, name): tensor for state, tensor in states.items()}
    return {key: tensor for key, tensor in selected.items() if _matches(key[1], request.only)}


def _matches(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(name, pattern) for pattern in only)


def _compare_pairs(
    a: CheckpointContents,
    b: CheckpointContents,
    shared: Iterable[tuple[Key, Tensor, Tensor]],
    request: ComparisonRequest,
    on_progress: Callable[[int, str], None] | None,
) -> tuple[TensorPair, ...]:
    """Compare all pairs in several threads, each with its own open files."""
    thread, opened, lock = threading.local(), [], threading.Lock()

    def compare_one(item: tuple[Key, Tensor, Tensor]) -> TensorPair:
        if not hasattr(thread, "readers"):
            thread.readers = TensorReader(Path(a.root)), TensorReader(Path(b.root))
            opened.extend(thread.readers)
        pair = _compare_pair(*item, thread.readers, request)
        if on_progress is not None:
            with lock:
                on_progress(item[1].size + item[2].size, item[0][1])
        return pair

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            return tuple(pool.map(compare_one, shared))
    finally:
        for reader in opened:
            reader.__exit__(None, None, None)


def _compare_pair(
    key: Key,
    x: Tensor,
    y: Tensor,
    readers: tuple[TensorReader, TensorReader],
    request: ComparisonRequest,
) -> TensorPair:
    shapes, dtypes = (x.shape, y.shape), (x.dtype, y.dtype)
    same_kind = x.dtype == y.dtype or request.any_dtype
    if x.shape != y.shape or not request.numbers:
        return TensorPair(
            key=key, shapes=shapes, dtypes=dtypes, alike=x.shape == y.shape and same_kind
        )
    difference: TensorDifference | Unknown
    rounded = False
    try:
        difference = compare_tensors(readers[0], x, readers[1], y)
        if difference.differ and x.dtype != y.dtype:
            rounded = not compare_tensors(readers[0], x, readers[1], y, rounded=True).differ
            rounded = (
                rounded or not compare_tensors(readers[1], y, readers[0], x, rounded=True).differ
            )
    except CheckpointUnreadable as error:
        difference = Unknown(f"{error.subject}: {error.why}")
    alike = same_kind and (rounded or _within_tolerance(difference, request))
    return TensorPair(
        key=key, shapes=shapes, dtypes=dtypes, difference=difference, rounded=rounded, alike=alike
    )


def _within_tolerance(difference: TensorDifference | Unknown, request: ComparisonRequest) -> bool:
    if isinstance(difference, Unknown):
        return False
    return (
        not difference.differ
        or difference.max_abs <= request.atol
        or difference.relative <= request.rtol
    )


def _differing_values(
    a: CheckpointContents, b: CheckpointContents, request: ComparisonRequest
) -> Mapping[str, tuple[Any, Any]]:
    """Return steps and group options that both have and that differ."""
    if request.only:
        return {}
    mine, theirs = (
        dict(_plain_values(contents, optimizer=request.optimizer)) for contents in (a, b)
    )
    return {
        path: (x, theirs[path]) for path, x in mine.items() if path in theirs and theirs[path] != x
    }


def _plain_values(contents: CheckpointContents, *, optimizer: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(contents.step, int):
        yield "step", contents.step
    if not optimizer or contents.optimizer is None:
        return
    for group in contents.optimizer.groups:
        for name in group.params:
            yield from (
                (f"{key} of {name}", _to_list(group.options[key]))
                for key in _OPTIONS
                if key in group.options
            )
    for name, numbers in contents.optimizer.numbers.items():
        yield from ((f"{number} of {name}", value) for number, value in numbers.items())


def _to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
