"""Two checkpoints of any formats held against each other: tensors by name, then number by number."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Tensor
from holdfast.facts.checkpoints.examining.comparing import Difference, compare
from holdfast.facts.checkpoints.pieces import Reader
from holdfast.findings import Unknown

#: What a tensor is ("model", or the name of an optimizer's state), and its name.
Key = tuple[str, str]
_THREADS = min(4, os.cpu_count() or 1)
#: Options of parameter groups that say the same in every framework.
_OPTIONS = ("lr", "betas", "eps", "weight_decay", "momentum", "amsgrad")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared: names that fit one of ``only`` (globs; all where there are none), optimizers, numbers.

    Numbers are alike where they differ by ``atol`` at most, or by a norm of ``rtol`` times that of the first.
    ``any_dtype``: they are alike too where one is the other rounded to its dtype.
    """

    only: tuple[str, ...] = ()
    optimizer: bool = True
    numbers: bool = True
    atol: float = 0.0
    rtol: float = 0.0
    any_dtype: bool = False


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of both checkpoints. ``difference`` is None where the numbers were not compared.

    ``rounded``: one is the other in a dtype that holds less. ``alike`` says that nothing differs that was asked about.
    """

    key: Key
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    difference: Difference | Unknown | None = None
    rounded: bool = False
    alike: bool = True


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What both hold, what one of them holds alone, and plain values that differ: a path, and those of both.

    ``apart`` are sentences about what was not compared, ``gaps`` about what is not whole in one of them.
    """

    first: str
    second: str
    pairs: tuple[Pair, ...]
    missing: tuple[Key, ...]
    extra: tuple[Key, ...]
    values: Mapping[str, tuple[Any, Any]]
    apart: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()

    @property
    def alike(self) -> bool:
        """Nothing differs that was asked about."""
        return not (self.missing or self.extra or self.values) and all(pair.alike for pair in self.pairs)


def differences(
    a: Contents, b: Contents, asked: Asked, tell: Callable[[int, str], None] | None = None
) -> Compared:  # fmt: skip
    """Hold ``b`` against ``a``, whose names are of one kind; ``tell`` hears of bytes as they are compared."""
    mine, theirs, apart = _both(a, b, asked)
    shared = [key for key in mine if key in theirs]
    pairs = _pairs(a, b, [(key, mine[key], theirs[key]) for key in shared], asked, tell)
    return Compared(
        first=a.root, second=b.root, pairs=pairs,
        missing=tuple(key for key in mine if key not in theirs), extra=tuple(key for key in theirs if key not in mine),
        values=_values(a, b, asked), apart=apart,
        gaps=tuple(f"{each.root}/{gap.file}: {gap.kind}: {gap.why}" for each in (a, b) for gap in each.gaps),
    )  # fmt: skip


def _both(a: Contents, b: Contents, asked: Asked) -> tuple[Mapping[Key, Tensor], Mapping[Key, Tensor], tuple[str, ...]]:
    """The tensors of both that are compared, and what is not."""
    optimizer = asked.optimizer and a.optimizer is not None and b.optimizer is not None
    apart = tuple(
        f"the optimizer's state, which {one.root} alone holds"
        for one, other in ((a, b), (b, a))
        if asked.optimizer and one.optimizer is not None and other.optimizer is None
    )
    mine, theirs = (_tensors(one, other, asked, optimizer=optimizer) for one, other in ((a, b), (b, a)))
    return mine, theirs, apart


def _tensors(one: Contents, other: Contents, asked: Asked, *, optimizer: bool) -> Mapping[Key, Tensor]:
    """By key; tied weights under both names, where either of the two checkpoints knows of the tie."""
    found = {("model", name): tensor for name, tensor in one.tensors.items()}
    for name, first in (*one.ties.items(), *other.ties.items()):
        for alias, kept in ((name, first), (first, name)):
            if ("model", kept) in found and (alias in one.ties or alias in other.tensors or alias in other.ties):
                found.setdefault(("model", alias), found["model", kept])
    for name, states in (one.optimizer.tensors if optimizer and one.optimizer else {}).items():
        found |= {(state, name): tensor for state, tensor in states.items()}
    return {key: tensor for key, tensor in found.items() if _fits(key[1], asked.only)}


def _fits(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(name, pattern) for pattern in only)


def _pairs(
    a: Contents,
    b: Contents,
    shared: Iterable[tuple[Key, Tensor, Tensor]],
    asked: Asked,
    tell: Callable[[int, str], None] | None,
) -> tuple[Pair, ...]:
    """Every pair, compared by several threads, each with files of its own."""
    own, opened, lock = threading.local(), [], threading.Lock()

    def one(found: tuple[Key, Tensor, Tensor]) -> Pair:
        if not hasattr(own, "readers"):
            own.readers = Reader(Path(a.root)), Reader(Path(b.root))
            opened.extend(own.readers)
        pair = _pair(*found, own.readers, asked)
        if tell is not None:
            with lock:
                tell(found[1].size + found[2].size, found[0][1])
        return pair

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            return tuple(pool.map(one, shared))
    finally:
        for reader in opened:
            reader.__exit__(None, None, None)


def _pair(key: Key, x: Tensor, y: Tensor, readers: tuple[Reader, Reader], asked: Asked) -> Pair:
    shapes, dtypes = (x.shape, y.shape), (x.dtype, y.dtype)
    same_kind = x.dtype == y.dtype or asked.any_dtype
    if x.shape != y.shape or not asked.numbers:
        return Pair(key=key, shapes=shapes, dtypes=dtypes, alike=x.shape == y.shape and same_kind)
    difference: Difference | Unknown
    rounded = False
    try:
        difference = compare(readers[0], x, readers[1], y)
        if difference.differ and x.dtype != y.dtype:
            rounded = not compare(readers[0], x, readers[1], y, rounded=True).differ
            rounded = rounded or not compare(readers[1], y, readers[0], x, rounded=True).differ
    except CheckpointUnreadable as error:
        difference = Unknown(f"{error.subject}: {error.why}")
    alike = same_kind and (rounded or _near(difference, asked))
    return Pair(key=key, shapes=shapes, dtypes=dtypes, difference=difference, rounded=rounded, alike=alike)


def _near(found: Difference | Unknown, asked: Asked) -> bool:
    if isinstance(found, Unknown):
        return False
    return not found.differ or found.max_abs <= asked.atol or found.relative <= asked.rtol


def _values(a: Contents, b: Contents, asked: Asked) -> Mapping[str, tuple[Any, Any]]:
    """Steps and options of the optimizer's groups that both have and that are not the same."""
    if asked.only:
        return {}
    mine, theirs = (dict(_plain_values(each, optimizer=asked.optimizer)) for each in (a, b))
    return {path: (x, theirs[path]) for path, x in mine.items() if path in theirs and theirs[path] != x}


def _plain_values(contents: Contents, *, optimizer: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(contents.step, int):
        yield "step", contents.step
    if not optimizer or contents.optimizer is None:
        return
    for group in contents.optimizer.groups:
        for name in group.params:
            yield from ((f"{key} of {name}", _plain(group.options[key])) for key in _OPTIONS if key in group.options)
    for name, numbers in contents.optimizer.numbers.items():
        yield from ((f"{number} of {name}", value) for number, value in numbers.items())


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
