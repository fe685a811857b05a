"""Provide the batches of one dataset, its expected number of samples, and smaller batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from holdfast.core.errors import InvalidValue
from holdfast.core.text import pluralize

#: A loader, or a function of the batch size that returns one.
LoaderOrFactory = Iterable[Any] | Callable[[int], Iterable[Any]]

_log = logging.getLogger("holdfast.evaluate")


class BatchSource:
    """The batches of one dataset on this rank, at their own size or halved several times.

    A function is called with the batch size and returns the loader. A plain DataLoader is recreated
    with smaller batches. Batches of any other iterable are split (:func:`split_samples`).
    """

    def __init__(
        self,
        name: str,
        loader: LoaderOrFactory,
        batch_size: int | None,
        samples: Callable[[Any], int],
    ) -> None:
        self.name = name
        self._samples = samples
        self._batch_size = batch_size
        self._loader: Iterable[Any] = ()
        self._factory: Callable[[int], Iterable[Any]] | None = None
        #: Samples of this rank, and of the dataset over all ranks; None if unknown.
        self.expected: int | None = None
        self.whole: int | None = None
        if isinstance(loader, Iterable):
            self._loader = loader
            self._count_samples(loader)
        elif batch_size is None:
            raise InvalidValue(
                "Evaluation",
                why=f"loader {name!r} is a function of the batch size, which is not set",
                next_step="pass Evaluation(batch_size=…)",
            )
        else:
            self._factory = loader

    def create_loader(self, halvings: int) -> Iterable[Any]:
        """Return an iterable over the batches, whose size is halved ``halvings`` times."""
        if self._factory is not None:
            loader = self._factory(max(1, (self._batch_size or 1) >> halvings))
            self._count_samples(loader)
            return loader
        if not halvings:
            return self._loader
        if _can_recreate(self._loader):
            return _recreate(self._loader, halvings)
        return self._split_batches(halvings)

    def count_batches(self, loader: Iterable[Any], halvings: int) -> int:
        """Return the most batches that ``loader``, created with ``halvings``, can provide.

        Raises:
            InvalidValue: the number is unknown.
        """
        if isinstance(loader, Sized):
            return len(loader)
        whole: Any = self._loader
        if not hasattr(whole, "__len__"):
            raise InvalidValue(
                f"loader {self.name!r}",
                why="collective_forward needs the number of batches in advance",
                next_step="give the loader a __len__",
            )
        return len(whole) << halvings

    def _split_batches(self, halvings: int) -> Iterator[Any]:
        for batch in self._loader:
            size = self._samples(batch)
            yield from split_samples(batch, size, max(1, -(-size >> halvings)))

    def _count_samples(self, loader: Iterable[Any]) -> None:
        """Determine the expected samples of a DataLoader, or of a list of batches."""
        if isinstance(loader, list | tuple):
            self.expected = sum(self._samples(batch) for batch in loader)
        elif isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
            self._count_sampler(loader)

    def _count_sampler(self, loader: DataLoader[Any]) -> None:
        sampler: Any = getattr(loader.batch_sampler, "sampler", loader.sampler)
        if not hasattr(sampler, "__len__"):
            return
        self.expected = len(sampler)
        if isinstance(getattr(sampler, "num_replicas", None), int):
            dataset: Any = loader.dataset
            self.whole = len(dataset)
            if isinstance(sampler, DistributedSampler) and sampler.total_size != self.whole:
                _log.warning(
                    "the DistributedSampler of loader %r %s %s to give all ranks equally many; "
                    "use holdfast.evaluate.DistributedEvalSampler to see each sample once",
                    self.name,
                    "drops" if sampler.total_size < self.whole else "repeats",
                    pluralize(abs(sampler.total_size - self.whole), "sample"),
                )


def count_samples(batch: object) -> int:
    """Return the samples in a batch: the length of its first tensor, or of its first list.

    Raises:
        InvalidValue: it has neither.
    """
    tensor = next(_tensors_in(batch), None)
    if tensor is not None:
        return tensor.shape[0] if tensor.dim() else 1
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), ())
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        first = batch[0] if batch and isinstance(batch[0], list) else batch
        return len(first)
    raise InvalidValue(
        "the batch",
        why=f"the number of samples in a {type(batch).__name__} is unknown",
        next_step="pass Evaluation(samples=…), a function of the batch",
    )


def split_samples(batch: Any, size: int, max_samples: int) -> Iterator[Any]:
    """Split a batch of ``size`` samples; values of another length are in each part unchanged."""
    for start in range(0, size, max_samples):
        yield _take_samples(batch, size, slice(start, start + max_samples))


def _take_samples(batch: Any, size: int, span: slice) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[span] if batch.dim() and batch.shape[0] == size else batch
    if isinstance(batch, Mapping):
        return {name: _take_samples(value, size, span) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        if next(_tensors_in(batch), None) is None and len(batch) == size:
            return batch[span]
        parts = [_take_samples(value, size, span) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors_in(value)


def _can_recreate(loader: Iterable[Any]) -> bool:
    return (
        type(loader) is DataLoader
        and type(loader.batch_sampler) is BatchSampler
        and not loader.drop_last  # smaller batches would drop other samples
        and not isinstance(loader.dataset, IterableDataset)
    )


def _recreate(loader: Any, halvings: int) -> DataLoader[Any]:
    copied = (
        "num_workers",
        "collate_fn",
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "generator",
        "prefetch_factor",
        "in_order",
        "sampler",
    )
    options = {name: getattr(loader, name) for name in copied if hasattr(loader, name)}
    return DataLoader(loader.dataset, batch_size=max(1, loader.batch_size >> halvings), **options)
