"""Divide each global batch among ranks of unequal speed: a ``batch_sampler`` for DataLoader.

The order of an epoch depends only on seed and epoch (:mod:`holdfast.training.loop.sample_order`),
and each global batch is its next section, whatever the shares. After any number of steps the
consumed samples are therefore a prefix of the order, and its length is the whole position, for
other shares and other numbers of ranks too.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, Literal

import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler

from holdfast.core.errors import CheckpointMismatch, InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.heterogeneous.batch_allocation import BatchAllocation
from holdfast.training.heterogeneous.batch_shares import BatchShares, Sizes, shares_of
from holdfast.training.heterogeneous.exchange import is_single_process
from holdfast.training.loop.sample_order import SampleOrder

SharesSource = BatchShares | BatchAllocation | Sequence[Sequence[int]]


@suggest_keywords
class HeterogeneousSampler(Sampler[list[int]]):
    """Yields the indices of this rank's micro-batches: as many steps on each rank.

    ``shares``: the result of ``Speeds.allocate``, or the sizes of each rank's micro-batches in a
    step. ``last``: what happens to the incomplete global batch at the end of an epoch: ``"drop"``
    skips it (other samples in each epoch, if shuffled), ``"deal"`` divides it in the same
    proportions, so that each sample is used exactly once. ``rank``: its index in the shares; by
    default the rank in the default group.

    Iterate with :meth:`steps`, or directly with ``DataLoader(data, batch_sampler=sampler)``, where
    every :attr:`micro_batches` batches are a step. Weight the losses with
    :func:`holdfast.loss_weight`.

    Raises:
        InvalidValue: the rank does not exist, an epoch has no complete step, or its end cannot be
            divided.
    """

    def __init__(
        self,
        dataset: Sized | int,
        shares: SharesSource,
        *,
        rank: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        last: Literal["drop", "deal"] = "drop",
    ) -> None:
        length = dataset if isinstance(dataset, int) else len(dataset)
        if last not in ("drop", "deal"):
            raise InvalidValue(
                "HeterogeneousSampler", why=f"last={last!r} is neither 'drop' nor 'deal'"
            )
        self._order = SampleOrder(length, seed, shuffle, 1, 0, "drop", None, drop_last=False)
        self._last = last
        self.rank = rank if rank is not None else 0 if is_single_process() else dist.get_rank()
        self.epoch = 0
        #: Samples of this epoch that all ranks together have consumed.
        self.taken = 0
        #: Steps since this sampler was created, and the micro-batch sizes of the latest one.
        self.step = 0
        self.current: Sizes = ()
        self.shares = self._check_shares(shares)

    @property
    def micro_batches(self) -> int:
        """Return this rank's number of micro-batches in a full step."""
        return len(self.shares.sizes[self.rank])

    def __len__(self) -> int:
        """Return this rank's batches in the rest of the epoch."""
        return sum(
            len(self.shares.of(batch_size)[self.rank])
            for batch_size in self._global_batches(self.taken)
        )

    @property
    def steps_left(self) -> int:
        """Return the steps left in this epoch; the same on all ranks."""
        return len(self._global_batches(self.taken))

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over the rest of the epoch without moving the position (:meth:`steps` does).

        The iterator has its own ``state_dict``, by which torchdata's StatefulDataLoader resumes.
        """
        return _BatchIterator(self)

    def batches(self, begin: int) -> Iterator[tuple[list[int], int]]:
        """Yield this rank's batches from sample ``begin`` on, each with the start of the next step.

        The start is 0 within a step.
        """
        order = self._order.indices(self.epoch)
        sizes: Sizes = ()
        before = last_size = 0
        for batch_size in self._global_batches(begin):
            if batch_size != last_size:  # usually unchanged; there may be thousands of ranks
                last_size, sizes = batch_size, self.shares.of(batch_size)
                before = sum(map(sum, sizes[: self.rank]))
            at, begin = begin + before, begin + batch_size
            for size in sizes[self.rank][:-1]:
                yield order[at : at + size].tolist(), 0
                at += size
            yield order[at : at + sizes[self.rank][-1]].tolist(), begin

    def steps(self, loader: DataLoader[Any]) -> Iterator[list[Any]]:
        """Yield this rank's micro-batches of each step, to the end of the epoch; then set the next.

        The position is after the step last yielded, however far workers have prefetched. After
        :meth:`reallocate` the loader is restarted, and what was prefetched for the old shares is
        dropped.

        Raises:
            InvalidValue: the loader does not draw from this sampler in its order.
        """
        if (
            getattr(loader, "batch_sampler", None) is not self
            or getattr(loader, "in_order", True) is False
        ):
            raise InvalidValue(
                "the loader",
                why="it does not yield this sampler's batches in order",
                next_step="create it with DataLoader(dataset, batch_sampler=sampler)",
            )
        epoch = self.epoch
        while batch_sizes := self._global_batches(self.taken):
            shares, batches = self.shares, iter(loader)
            for batch_size in batch_sizes:
                self.current = shares.of(batch_size)
                micro_batches_of_rank = list(
                    itertools.islice(batches, len(self.current[self.rank]))
                )
                self.taken += batch_size
                self.step += 1
                yield micro_batches_of_rank
                if self.shares is not shares or self.epoch != epoch:
                    break
            if self.epoch != epoch:  # set_epoch was called during the iteration
                return
        self.set_epoch(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Start another epoch; no effect for the current one, so that it can be resumed."""
        if epoch != self.epoch:
            self.epoch, self.taken = epoch, 0

    def reallot(self, shares: SharesSource) -> None:
        """Deprecated name of :meth:`reallocate`."""
        warnings.warn("reallot is now reallocate", DeprecationWarning, stacklevel=2)
        self.reallocate(shares)

    def reallocate(self, shares: SharesSource) -> None:
        """Use other shares from the next step on; call it on all ranks, at the same step.

        Raises:
            InvalidValue: as the class.
        """
        self.shares = self._check_shares(shares)

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the same on all ranks, and for any number of them and any shares."""
        return {
            "epoch": self.epoch,
            "taken": self.taken,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
            "length": self._order.length,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; the seed is that of the first run, so the order is unchanged.

        Raises:
            CheckpointMismatch: it is of another dataset, or not a position; nothing was changed.
        """
        subject = "the position of HeterogeneousSampler"
        try:
            epoch, taken, seed, length = (
                int(state[name]) for name in ("epoch", "taken", "seed", "length")
            )
            shuffle = bool(state["shuffle"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointMismatch(
                subject, why=f"not a position: {type(error).__name__}: {error}"
            ) from None
        if length != self._order.length:
            raise CheckpointMismatch(
                subject,
                why=f"the dataset had {length:,} samples, and has {self._order.length:,} now",
            )
        if shuffle != self._order.shuffle or not 0 <= taken <= length or epoch < 0:
            raise CheckpointMismatch(subject, why="it is of another order, or outside the dataset")
        before = self.epoch, self.taken
        self.epoch, self.taken = epoch, taken
        try:
            self._check_shares(self.shares)
        except InvalidValue:
            self.epoch, self.taken = before
            raise
        self._order.seed = seed

    def _global_batches(self, begin: int) -> list[int]:
        """Return the sizes of the global batches from sample ``begin`` on."""
        remaining = self._order.length - begin
        if self._last == "deal":
            return self.shares.epoch(remaining) or []
        return [self.shares.batch] * (remaining // self.shares.batch)

    def _check_shares(self, source: SharesSource) -> BatchShares:
        shares = shares_of(source)
        if not 0 <= self.rank < shares.world:
            raise InvalidValue(
                "HeterogeneousSampler",
                why=f"rank {self.rank} has no share; there are {shares.world} shares",
            )
        for remaining in (self._order.length, self._order.length - self.taken):
            if self._last == "deal" and shares.epoch(remaining) is None:
                raise InvalidValue(
                    "HeterogeneousSampler",
                    next_step="use last='drop', or another batch size",
                    why=f"{remaining:,} samples cannot be divided into batches of at most "
                    f"{shares.batch} with "
                    f"one sample for each of {shares.world} ranks in each micro-batch",
                )
        if self._order.length < (1 if self._last == "deal" else shares.batch):
            raise InvalidValue(
                "HeterogeneousSampler",
                why=f"{self._order.length:,} samples are less than one batch of {shares.batch}",
            )
        return shares


class _BatchIterator(Iterator[list[int]]):
    """This rank's batches from the sampler's position on, with a position of its own."""

    def __init__(self, sampler: HeterogeneousSampler) -> None:
        self._sampler = sampler
        self._move_to(sampler.taken, 0)

    def _move_to(self, begin: int, yielded: int) -> None:
        self._begin, self._yielded = begin, yielded
        self._batches = itertools.islice(self._sampler.batches(begin), yielded, None)

    def __next__(self) -> list[int]:
        batch, next_begin = next(self._batches)
        self._begin, self._yielded = (
            (next_begin, 0) if next_begin else (self._begin, self._yielded + 1)
        )
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return where the current step begins, its batches yielded, and all their sizes."""
        return {"begin": self._begin, "given": self._yielded, "sizes": self._sizes()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume. Raises CheckpointMismatch: the step was begun with other shares."""
        if state["given"] and state["sizes"] != self._sizes():
            raise CheckpointMismatch(
                "the position of HeterogeneousSampler",
                why=f"the step was begun with micro-batches of {state['sizes']}, now "
                f"{self._sizes()}",
                next_step="save between two steps, or keep the shares",
            )
        self._move_to(int(state["begin"]), int(state["given"]))

    def _sizes(self) -> list[int]:
        return list(self._sampler.shares.sizes[self._sampler.rank])
