"""The position in the data: what a checkpoint stores, and how a loader resumes from it.

Four kinds, by the type of loader. :class:`OrderPosition`: torch's own samplers, for any number of
ranks. :class:`StatefulPosition`: a loader (torchdata's ``StatefulDataLoader``) or dataset that
stores its own position. :class:`SamplerPosition`: replays a custom sampler without loading data.
:class:`ReplayPosition`: loads and discards batches. The last three are per rank.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from holdfast.core.errors import InvalidValue
from holdfast.training.loop import sample_order
from holdfast.training.loop.random_streams import RandomStream, epoch_seed

_log = logging.getLogger("holdfast.loop")


class DataPosition(ABC):
    """Epoch and consumed batches; ``state`` is what a checkpoint stores, subclasses resume.

    The data is divided among ``ranks``: 1 if each rank reads all of it.
    """

    kind = ""

    def __init__(self, loader: Any, ranks: int) -> None:
        self.loader = loader
        self.ranks = ranks
        self.epoch = 0
        self.taken = 0
        self.seed = _loader_seed(loader)

    def state(self) -> dict[str, Any]:
        """Return the position as plain values."""
        return {
            "kind": self.kind,
            "epoch": self.epoch,
            "taken": self.taken,
            "ranks": self.ranks,
            "seed": self.seed,
        }

    def restore(self, state: dict[str, Any]) -> str:
        """Go to a saved position; on a mismatch, to the start of its epoch, and return why."""
        self.epoch, self.taken, self.seed = (
            int(state["epoch"]),
            int(state["taken"]),
            int(state["seed"]),
        )
        why = self._mismatch(state)
        if why:
            self.taken = 0
        return why

    def _mismatch(self, state: dict[str, Any]) -> str:
        if state["kind"] != self.kind:
            return (
                f"the saved position is of another loader type ({state['kind']}, now {self.kind})"
            )
        if state["ranks"] != self.ranks:
            return (
                f"this loader's positions are per rank: {state['ranks']} ranks saved them, "
                f"and there are {self.ranks} now"
            )
        return ""

    def batches(self) -> Iterator[Any]:
        """Yield the rest of this epoch; a batch is consumed when the next one is requested."""
        stream = RandomStream(epoch_seed(self.seed, self.epoch))
        iterator = self._begin(stream)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                break
            yield batch

    def remaining(self) -> int | None:
        """Return the number of batches left in this epoch; None if unknown."""
        return len(self.loader) - self.taken if isinstance(self.loader, Sized) else None

    @property
    def global_batch(self) -> int:
        """Return the samples per step over all ranks; batches if the size is unknown."""
        return self.ranks * int(getattr(self.loader, "batch_size", None) or 1)

    def advance(self) -> None:
        """Mark the latest batch as consumed."""
        self.taken += 1

    def next_epoch(self) -> None:
        """Move to the next epoch."""
        self.epoch, self.taken = self.epoch + 1, 0

    @abstractmethod
    def _begin(self, stream: RandomStream) -> Iterator[Any]:
        """Return an iterator over the rest of the epoch."""

    def _iterate(self, stream: RandomStream) -> Iterator[Any]:
        """Start the loader with draws (worker seeds, shuffle) from the epoch's stream."""
        generator = getattr(self.loader, "generator", None)
        if generator is not None:
            generator.manual_seed(epoch_seed(self.seed, self.epoch))
        if hasattr(self.loader, "iteration"):  # Accelerate's loader passes it to its sampler
            self.loader.iteration = self.epoch
        with stream.use():
            return iter(self.loader)


class OrderPosition(DataPosition):
    """torch's own samplers.

    ``taken`` counts samples of all ranks, in the order of :mod:`sample_order`.
    """

    kind = "order"

    def __init__(self, loader: DataLoader[Any], order: sample_order.SampleOrder) -> None:
        super().__init__(loader, order.replicas)
        self.order = order
        self.seed = order.seed
        self._batch_size = order.batch_size  # the script's value
        _install_sampler(loader, self)
        if getattr(loader, "in_order", True) is False:
            loader.in_order = True
            _log.warning(
                "the loader has in_order=False, which cannot be resumed from; holdfast set "
                "in_order=True"
            )

    def state(self) -> dict[str, Any]:
        """Return the position, with the order's parameters and the global batch."""
        more = {
            "length": self.order.length,
            "global_batch": self.order.global_batch,
            "batch_size": self._batch_size,
        }
        return super().state() | more

    def restore(self, state: dict[str, Any]) -> str:
        """Restore; the seed is that of the first run, so that the order is unchanged."""
        why = super().restore(state)
        self.order.seed = self.seed
        return why

    def _mismatch(self, state: dict[str, Any]) -> str:
        if state["kind"] != self.kind:
            return super()._mismatch(state)
        if state["length"] != self.order.length:
            return f"the dataset had {state['length']:,} samples, and has {self.order.length:,} now"
        return ""

    @property
    def global_batch(self) -> int:
        """Return the samples per step, for any number of ranks."""
        return self.order.global_batch

    def advance(self) -> None:
        """Mark one batch of every rank as consumed."""
        self.taken = min(self.taken + self.order.global_batch, self.order.length)

    def __iter__(self) -> Iterator[Any]:
        """Yield the indices to load; called when the loader starts."""
        return self.order.batches(self.epoch, self.taken)

    def __len__(self) -> int:
        return self.order.batch_count(0)

    def remaining(self) -> int:
        """Return the batches left, for any number of consumed samples."""
        return self.order.batch_count(self.taken)

    def _begin(self, stream: RandomStream) -> Iterator[Any]:
        return self._iterate(stream)


class SamplerPosition(DataPosition):
    """A custom sampler: replayed from the same stream, without loading consumed data."""

    kind = "sampler"

    def __init__(self, loader: DataLoader[Any], ranks: int) -> None:
        super().__init__(loader, ranks)
        self._indices: Any = (
            loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        )
        self._stream = RandomStream(0)
        _install_sampler(loader, self)

    def __iter__(self) -> Iterator[Any]:
        stream, remaining = self._stream, self.taken
        with stream.use():
            indices = iter(self._indices)
        while True:
            with stream.use():  # the sampler may draw at each step
                drawn = next(indices, stream)
            if drawn is stream:
                return
            if remaining > 0:
                remaining -= 1
            else:
                yield drawn

    def __len__(self) -> int:
        return len(self._indices)

    def _begin(self, stream: RandomStream) -> Iterator[Any]:
        _set_epoch(
            (self._indices, getattr(self._indices, "sampler", None), self.loader.dataset),
            self.epoch,
        )
        self._stream = RandomStream(epoch_seed(self.seed, self.epoch) ^ 1)
        return self._iterate(stream)


class StatefulPosition(DataPosition):
    """A loader, or a dataset without workers, that has ``state_dict`` and ``load_state_dict``."""

    kind = "state"

    def __init__(self, loader: Any, source: Any, ranks: int) -> None:
        super().__init__(loader, ranks)
        self._source = source
        self._restored_state: Any = None

    def state(self) -> dict[str, Any]:
        """Return the position, with the object's own state."""
        return super().state() | {"keeper": self._source.state_dict() if self.taken else None}

    def restore(self, state: dict[str, Any]) -> str:
        """Restore; the object's state is loaded when the epoch begins."""
        why = super().restore(state)
        self._restored_state = None if why else state.get("keeper")
        return why

    def _begin(self, stream: RandomStream) -> Iterator[Any]:
        _set_epoch((self.loader, getattr(self.loader, "dataset", None)), self.epoch)
        if self._restored_state is not None:
            self._source.load_state_dict(self._restored_state)
            self._restored_state = None
        return self._iterate(stream)


class ReplayPosition(DataPosition):
    """Any iterable: consumed batches are loaded again and discarded."""

    kind = "repeat"

    def _begin(self, stream: RandomStream) -> Iterator[Any]:
        loader = self.loader
        _set_epoch(
            (loader, getattr(loader, "sampler", None), getattr(loader, "dataset", None)), self.epoch
        )
        iterator = self._iterate(stream)
        if self.taken:
            _log.warning(
                "loading and discarding %d batches of epoch %d: this loader cannot start in "
                "mid-epoch",
                self.taken,
                self.epoch,
            )
        with stream.use():
            for _ in range(self.taken):
                next(iterator, None)
        return iterator


def position_of(loader: Iterable[Any], ranks: int) -> DataPosition:
    """Return the position for the loader's type; ``ranks`` is the job's world size."""
    order = sample_order.order_of(loader)
    if order is not None and isinstance(loader, DataLoader):
        return OrderPosition(loader, order)
    data = getattr(loader, "dataset", None)
    # Accelerate's loader wraps another one.
    if _is_stateful(loader) and _is_stateful(getattr(loader, "base_dataloader", loader)):
        return StatefulPosition(loader, loader, ranks)
    if isinstance(loader, DataLoader) and not isinstance(data, IterableDataset):
        return SamplerPosition(loader, ranks)
    if isinstance(loader, DataLoader) and loader.num_workers == 0 and _is_stateful(data):
        return StatefulPosition(loader, data, ranks)
    if iter(loader) is loader:
        raise InvalidValue(
            "the loader of holdfast.loop",
            why="it is an iterator, which can be consumed only once",
            next_step="pass a DataLoader, or an object whose __iter__ returns a new iterator",
        )
    return ReplayPosition(loader, ranks)


def _install_sampler(loader: DataLoader[Any], indices: Iterable[Any]) -> None:
    """Make the loader draw its indices from ``indices``.

    Writes to ``vars``, because the loader's ``__setattr__`` refuses the change.
    """
    # Accelerate's loader wraps another one.
    for target in (loader, getattr(loader, "base_dataloader", None)):
        if isinstance(target, DataLoader):
            vars(target)["sampler" if target.batch_sampler is None else "batch_sampler"] = indices


def _is_stateful(candidate: Any) -> bool:
    return callable(getattr(candidate, "state_dict", None)) and callable(
        getattr(candidate, "load_state_dict", None)
    )


def _set_epoch(candidates: Iterable[Any], epoch: int) -> None:
    for candidate in candidates:
        if callable(getattr(candidate, "set_epoch", None)):
            candidate.set_epoch(epoch)


def _loader_seed(loader: Any) -> int:
    generator = getattr(loader, "generator", None)
    return int(generator.initial_seed() if generator is not None else torch.initial_seed()) & (
        (1 << 62) - 1
    )
