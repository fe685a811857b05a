"""Where the batches of one dataset come from, how many samples they should bring, and how they get smaller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from holdfast.errors import BadValue

Loader = Iterable[Any] | Callable[[int], Iterable[Any]]

_log = logging.getLogger("holdfast.evaluate")


class Source:
    """The batches of one dataset on this rank, at their own size or halved some times.

    A function is called with the batch size and gives the loader. A plain DataLoader is made again with smaller
    batches. The batches of anything else are cut (see :func:`cut`).
    """

    def __init__(self, name: str, loader: Loader, batch_size: int | None, samples: Callable[[Any], int]) -> None:
        self.name = name
        self._samples = samples
        self._batch_size = batch_size
        self._loader = loader if isinstance(loader, Iterable) else None
        self._factory: Callable[[int], Iterable[Any]] | None = None if isinstance(loader, Iterable) else loader
        if self._factory is not None and batch_size is None:
            raise BadValue("Evaluation", why=f"the loader {name!r} is a function of the batch size, and none was given",
                           next_step="give Evaluation(batch_size=…)")  # fmt: skip
        self.expected: int | None = None
        self.whole: int | None = None
        if self._loader is not None:
            self._learn(self._loader)

    def loader(self, halvings: int) -> Iterable[Any]:
        """What gives the batches at this size: something to be iterated over once."""
        if self._factory is not None:
            loader = self._factory(max(1, (self._batch_size or 1) >> halvings))
            self._learn(loader)
            return loader
        whole: Iterable[Any] = () if self._loader is None else self._loader
        if not halvings:
            return whole
        return _again(whole, halvings) if _can_be_made_again(whole) else self._cut(whole, halvings)

    def length(self, loader: Iterable[Any], halvings: int) -> int:
        """The most batches that ``loader``, which is ours at this size, can give.

        Raises:
            BadValue: that cannot be known.
        """
        if isinstance(loader, Sized):
            return len(loader)
        whole: Any = self._loader
        if not hasattr(whole, "__len__"):
            raise BadValue(f"the loader {self.name!r}", why="it does not tell how many batches it has",
                           next_step="give it a __len__: collective_forward needs the number beforehand")  # fmt: skip
        return len(whole) << halvings

    def _cut(self, loader: Iterable[Any], halvings: int) -> Iterator[Any]:
        for batch in loader:
            size = self._samples(batch)
            yield from cut(batch, size, max(1, -(-size >> halvings)))

    def _learn(self, loader: Iterable[Any]) -> None:
        """How many samples will come: told by a DataLoader, counted where the batches lie in a list."""
        if isinstance(loader, list | tuple):
            self.expected = sum(self._samples(batch) for batch in loader)
        elif isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
            self._learn_of(loader)

    def _learn_of(self, loader: DataLoader[Any]) -> None:
        sampler: Any = getattr(loader.batch_sampler, "sampler", loader.sampler)
        if not hasattr(sampler, "__len__"):
            return
        self.expected = len(sampler)
        if isinstance(getattr(sampler, "num_replicas", None), int):
            dataset: Any = loader.dataset
            self.whole = len(dataset)
            if isinstance(sampler, DistributedSampler) and sampler.total_size != self.whole:
                word = "leaves out" if sampler.total_size < self.whole else "repeats"
                _log.warning("the DistributedSampler of loader %r %s %d samples to make ranks even; "
                             "holdfast.evaluate.DistributedEvalSampler does not",
                             self.name, word, abs(sampler.total_size - self.whole))  # fmt: skip


def size_of(batch: object) -> int:
    """Samples in a batch: the length of the first tensor that is found in it, or of the first list.

    Raises:
        BadValue: neither is in it.
    """
    tensor = next(_tensors(batch), None)
    if tensor is not None:
        return tensor.shape[0] if tensor.dim() else 1
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), ())
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        inner = batch[0] if batch and isinstance(batch[0], list) else batch
        return len(inner)
    raise BadValue("a batch", why=f"nobody can tell how many samples are in a {type(batch).__name__}",
                   next_step="give Evaluation(samples=…), a function of the batch")  # fmt: skip


def cut(batch: Any, size: int, piece: int) -> Iterator[Any]:
    """Pieces of at most ``piece`` samples of a batch of ``size``; what is not as long as the batch is in each."""
    for begin in range(0, size, piece):
        yield _part(batch, size, slice(begin, begin + piece))


def _part(batch: Any, size: int, span: slice) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[span] if batch.dim() and batch.shape[0] == size else batch
    if isinstance(batch, Mapping):
        return {name: _part(value, size, span) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        if next(_tensors(batch), None) is None and len(batch) == size:
            return batch[span]
        parts = [_part(value, size, span) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from _tensors(value)


def _can_be_made_again(loader: Iterable[Any]) -> bool:
    return (
        type(loader) is DataLoader
        and type(loader.batch_sampler) is BatchSampler
        and not loader.drop_last  # smaller batches would drop others
        and not isinstance(loader.dataset, IterableDataset)
    )


def _again(loader: Any, halvings: int) -> DataLoader[Any]:
    same = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
            "generator", "prefetch_factor", "in_order", "sampler")  # fmt: skip
    options = {name: getattr(loader, name) for name in same if hasattr(loader, name)}
    return DataLoader(loader.dataset, batch_size=max(1, loader.batch_size >> halvings), **options)
