"""Where the ranks are in the data: what is saved of it, and how a loader goes on from there.

Four kinds, by what is known of the loader. :class:`Ordered` holds for torch's own samplers, and for any number of
ranks. :class:`Stateful` asks a loader (torchdata's ``StatefulDataLoader``) or a data set that keeps its own position.
:class:`Sampled` lets a sampler of somebody else's draw again what it drew, without loading the data.
:class:`Repeated` loads and throws away. The last three stand for each rank by itself.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from holdfast.errors import BadValue
from holdfast.runtime.loop import order as orders
from holdfast.runtime.loop.streams import Stream, seed_of

_log = logging.getLogger("holdfast.loop")


class Position(ABC):
    """Epoch and what was taken of it. ``state`` is what a checkpoint keeps; a subclass says how to go on.

    ``ranks`` deal the data out among themselves: 1 where each rank goes through all of it.
    """

    kind = ""

    def __init__(self, loader: Any, ranks: int) -> None:
        self.loader = loader
        self.ranks = ranks
        self.epoch = 0
        self.taken = 0
        self.seed = _seed_of(loader)

    def state(self) -> dict[str, Any]:
        """The position, as plain values."""
        return {"kind": self.kind, "epoch": self.epoch, "taken": self.taken, "ranks": self.ranks, "seed": self.seed}

    def restore(self, state: dict[str, Any]) -> str:
        """Go to a saved position. What cannot be gone to is the beginning of its epoch, and the sentence says why."""
        self.epoch, self.taken, self.seed = int(state["epoch"]), int(state["taken"]), int(state["seed"])
        why = self._why_not(state)
        if why:
            self.taken = 0
        return why

    def _why_not(self, state: dict[str, Any]) -> str:
        if state["kind"] != self.kind:
            return f"the position was that of a loader of another kind ({state['kind']}, now {self.kind})"
        if state["ranks"] != self.ranks:
            return (
                f"each rank of this loader has a position of its own, which {state['ranks']} ranks wrote, "
                f"and there are {self.ranks} now"
            )
        return ""

    def batches(self) -> Iterator[Any]:
        """The rest of this epoch; a batch counts as taken when the next is asked for."""
        stream = Stream(seed_of(self.seed, self.epoch))
        iterator = self._begin(stream)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                break
            yield batch

    def left(self) -> int | None:
        """How many batches of this epoch are not taken yet; None where that is not known."""
        return len(self.loader) - self.taken if isinstance(self.loader, Sized) else None

    @property
    def global_batch(self) -> int:
        """Samples that all ranks together take in a step, as far as the loader tells: else batches."""
        return self.ranks * int(getattr(self.loader, "batch_size", None) or 1)

    def took(self) -> None:
        """The batch that was given last has been used."""
        self.taken += 1

    def next_epoch(self) -> None:
        """The epoch is over."""
        self.epoch, self.taken = self.epoch + 1, 0

    @abstractmethod
    def _begin(self, stream: Stream) -> Iterator[Any]:
        """An iterator over the rest of the epoch."""

    def _iterate(self, stream: Stream) -> Iterator[Any]:
        """Begin the loader, whose draws (workers' seed, shuffle) come from the epoch's own stream."""
        generator = getattr(self.loader, "generator", None)
        if generator is not None:
            generator.manual_seed(seed_of(self.seed, self.epoch))
        if hasattr(self.loader, "iteration"):  # by which Accelerate's loader tells its sampler the epoch
            self.loader.iteration = self.epoch
        with stream.use():
            return iter(self.loader)


class Ordered(Position):
    """Torch's own samplers: ``taken`` counts samples of all ranks, in the order of :mod:`order`."""

    kind = "order"

    def __init__(self, loader: DataLoader[Any], order: orders.Order) -> None:
        super().__init__(loader, order.replicas)
        self.order = order
        self.seed = order.seed
        self._batch_size = order.batch_size  # as the script says, whatever it is made later
        _put_indices(loader, self)
        if getattr(loader, "in_order", True) is False:
            loader.in_order = True
            _log.warning("the loader gave batches out of order (in_order=False), from which nobody could resume; "
                         "holdfast has it keep the order")  # fmt: skip

    def state(self) -> dict[str, Any]:
        """The position, with what makes the order and the size of the global batch."""
        more = {"length": self.order.length, "global_batch": self.order.global_batch, "batch_size": self._batch_size}
        return super().state() | more

    def restore(self, state: dict[str, Any]) -> str:
        """As above; the seed is that of the first run, so that the order stays."""
        why = super().restore(state)
        self.order.seed = self.seed
        return why

    def _why_not(self, state: dict[str, Any]) -> str:
        if state["kind"] != self.kind:
            return super()._why_not(state)
        if state["length"] != self.order.length:
            return f"the data had {state['length']:,} samples, and has {self.order.length:,} now"
        return ""

    @property
    def global_batch(self) -> int:
        """As above, for any number of ranks."""
        return self.order.global_batch

    def took(self) -> None:
        """All ranks have used a batch."""
        self.taken = min(self.taken + self.order.global_batch, self.order.length)

    def __iter__(self) -> Iterator[Any]:
        """What the loader is to fetch (it asks for this when it begins)."""
        return self.order.batches(self.epoch, self.taken)

    def __len__(self) -> int:
        return self.order.count(0)

    def left(self) -> int:
        """As above, for any number of samples taken."""
        return self.order.count(self.taken)

    def _begin(self, stream: Stream) -> Iterator[Any]:
        return self._iterate(stream)


class Sampled(Position):
    """A sampler that is not torch's: it draws again, from the same stream, and what was taken is not loaded."""

    kind = "sampler"

    def __init__(self, loader: DataLoader[Any], ranks: int) -> None:
        super().__init__(loader, ranks)
        self._indices: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._stream = Stream(0)
        _put_indices(loader, self)

    def __iter__(self) -> Iterator[Any]:
        stream, left = self._stream, self.taken
        with stream.use():
            indices = iter(self._indices)
        while True:
            with stream.use():  # the sampler may draw at each step, between draws of the model
                drawn = next(indices, stream)
            if drawn is stream:
                return
            if left > 0:
                left -= 1
            else:
                yield drawn

    def __len__(self) -> int:
        return len(self._indices)

    def _begin(self, stream: Stream) -> Iterator[Any]:
        _set_epoch((self._indices, getattr(self._indices, "sampler", None), self.loader.dataset), self.epoch)
        self._stream = Stream(seed_of(self.seed, self.epoch) ^ 1)
        return self._iterate(stream)


class Stateful(Position):
    """``keeper`` has ``state_dict`` and ``load_state_dict``: the loader itself, or a data set read without workers."""

    kind = "state"

    def __init__(self, loader: Any, keeper: Any, ranks: int) -> None:
        super().__init__(loader, ranks)
        self._keeper = keeper
        self._kept: Any = None

    def state(self) -> dict[str, Any]:
        """The position, with what the keeper says of its own."""
        return super().state() | {"keeper": self._keeper.state_dict() if self.taken else None}

    def restore(self, state: dict[str, Any]) -> str:
        """As above; the keeper is told when the epoch begins."""
        why = super().restore(state)
        self._kept = None if why else state.get("keeper")
        return why

    def _begin(self, stream: Stream) -> Iterator[Any]:
        _set_epoch((self.loader, getattr(self.loader, "dataset", None)), self.epoch)
        if self._kept is not None:
            self._keeper.load_state_dict(self._kept)
            self._kept = None
        return self._iterate(stream)


class Repeated(Position):
    """Any iterable: what was taken is loaded again and thrown away."""

    kind = "repeat"

    def _begin(self, stream: Stream) -> Iterator[Any]:
        loader = self.loader
        _set_epoch((loader, getattr(loader, "sampler", None), getattr(loader, "dataset", None)), self.epoch)
        iterator = self._iterate(stream)
        if self.taken:
            _log.warning("%d batches of epoch %d are loaded again and thrown away: this loader cannot be told where "
                         "to begin", self.taken, self.epoch)  # fmt: skip
        with stream.use():
            for _ in range(self.taken):
                next(iterator, None)
        return iterator


def of(loader: Iterable[Any], ranks: int) -> Position:
    """The position of the kind that suits the loader; ``ranks`` are those of the job."""
    order = orders.of(loader)
    if order is not None and isinstance(loader, DataLoader):
        return Ordered(loader, order)
    data = getattr(loader, "dataset", None)
    if _keeps_state(loader) and _keeps_state(getattr(loader, "base_dataloader", loader)):  # that within Accelerate's
        return Stateful(loader, loader, ranks)
    if isinstance(loader, DataLoader) and not isinstance(data, IterableDataset):
        return Sampled(loader, ranks)
    if isinstance(loader, DataLoader) and loader.num_workers == 0 and _keeps_state(data):
        return Stateful(loader, data, ranks)
    if iter(loader) is loader:
        raise BadValue("the loader of holdfast.loop", why="it is an iterator, which can be gone through once",
                       next_step="give what makes it: a DataLoader, or an object with __iter__")  # fmt: skip
    return Repeated(loader, ranks)


def _put_indices(loader: DataLoader[Any], indices: Iterable[Any]) -> None:
    """Have the loader ask ``indices`` what to fetch. Its __setattr__ refuses, as the order would change unseen."""
    for each in (loader, getattr(loader, "base_dataloader", None)):  # Accelerate's is one around another
        if isinstance(each, DataLoader):
            vars(each)["sampler" if each.batch_sampler is None else "batch_sampler"] = indices


def _keeps_state(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def _set_epoch(things: Iterable[Any], epoch: int) -> None:
    for thing in things:
        if callable(getattr(thing, "set_epoch", None)):
            thing.set_epoch(epoch)


def _seed_of(loader: Any) -> int:
    generator = getattr(loader, "generator", None)
    return int(generator.initial_seed() if generator is not None else torch.initial_seed()) & ((1 << 62) - 1)
