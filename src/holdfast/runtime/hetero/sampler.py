"""Shares of each global batch for ranks of unequal speed, as a ``batch_sampler`` for torch's DataLoader.

The order of an epoch depends on seed and epoch alone (:mod:`holdfast.runtime.loop.order`), and each global batch is the
next piece of it, whoever takes which part. So after any number of steps what was taken is the beginning of the order:
how many samples it has is the whole position, for other shares and other numbers of ranks too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, Literal

import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler

from holdfast.errors import BadValue, CheckpointMismatch
from holdfast.plan.batches import Allotment
from holdfast.plan.shares import Shares, Sizes, shares_of
from holdfast.runtime.hetero.telling import alone
from holdfast.runtime.loop.order import Order

Given = Shares | Allotment | Sequence[Sequence[int]]


class HeterogeneousSampler(Sampler[list[int]]):
    """Gives this rank the indices of its micro-batches: as many steps, and collective calls, on each rank.

    ``shares``: what ``Speeds.allot`` found, or the sizes of each rank's micro-batches in a step. ``last``: what becomes
    of the end of an epoch that is no whole global batch: ``"drop"`` leaves it out (other samples in each epoch, where
    they are shuffled), ``"deal"`` deals it out in the same proportions, so that each sample is had exactly once.
    ``rank``: its place in the shares, that in the default group if None.

    Go through it with :meth:`steps`, or plainly with ``DataLoader(data, batch_sampler=sampler)``, where every
    :attr:`micro_batches` batches are a step. Weights of the losses are the other half: :func:`holdfast.loss_weight`.

    Raises:
        BadValue: there is no such rank, not one step in an epoch, or an end that cannot be dealt out.
    """

    def __init__(
        self,
        dataset: Sized | int,
        shares: Given,
        *,
        rank: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        last: Literal["drop", "deal"] = "drop",
    ) -> None:
        length = dataset if isinstance(dataset, int) else len(dataset)
        if last not in ("drop", "deal"):
            raise BadValue("HeterogeneousSampler", why=f"last={last!r} is neither 'drop' nor 'deal'")
        self._order = Order(length, seed, shuffle, 1, 0, "drop", None, drop_last=False)
        self._last = last
        self.rank = rank if rank is not None else 0 if alone() else dist.get_rank()
        self.epoch = 0
        #: Samples of this epoch that all ranks together have had.
        self.taken = 0
        #: Global steps since this sampler was made, and the sizes of the micro-batches of the latest one.
        self.step = 0
        self.current: Sizes = ()
        self.shares = self._checked(shares)

    @property
    def micro_batches(self) -> int:
        """This rank's, in each step that is whole."""
        return len(self.shares.sizes[self.rank])

    def __len__(self) -> int:
        """This rank's batches in the rest of the epoch."""
        return sum(len(self.shares.of(piece)[self.rank]) for piece in self._pieces(self.taken))

    @property
    def steps_left(self) -> int:
        """In this epoch; the same on all ranks."""
        return len(self._pieces(self.taken))

    def __iter__(self) -> Iterator[list[int]]:
        """The rest of the epoch. The position stays as it is: :meth:`steps` moves it.

        The iterator has a ``state_dict`` of its own, by which torchdata's StatefulDataLoader resumes.
        """
        return _Batches(self)

    def batches(self, begin: int) -> Iterator[tuple[list[int], int]]:
        """This rank's batches from a sample of the epoch on, each with where the next step begins; 0 within a step."""
        order = self._order.whole(self.epoch)
        sizes: Sizes = ()
        before = known = 0
        for piece in self._pieces(begin):
            if piece != known:  # most are alike, and there may be thousands of ranks
                known, sizes = piece, self.shares.of(piece)
                before = sum(map(sum, sizes[: self.rank]))
            at, begin = begin + before, begin + piece
            for size in sizes[self.rank][:-1]:
                yield order[at : at + size].tolist(), 0
                at += size
            yield order[at : at + sizes[self.rank][-1]].tolist(), begin

    def steps(self, loader: DataLoader[Any]) -> Iterator[list[Any]]:
        """The rest of the epoch, as a list of this rank's micro-batches for each step; then the next epoch is set.

        The position is that after the step whose batches were given last, whatever workers have fetched beyond it.
        After :meth:`reallot` the loader is begun again, and what was fetched for the old shares is dropped.

        Raises:
            BadValue: the loader does not draw from this sampler in its order.
        """
        if getattr(loader, "batch_sampler", None) is not self or getattr(loader, "in_order", True) is False:
            raise BadValue("the loader", why="it does not give the batches of this sampler in their order",
                           next_step="make it by DataLoader(dataset, batch_sampler=sampler)")  # fmt: skip
        epoch = self.epoch
        while pieces := self._pieces(self.taken):
            shares, batches = self.shares, iter(loader)
            for piece in pieces:
                self.current = shares.of(piece)
                mine = list(itertools.islice(batches, len(self.current[self.rank])))
                self.taken += piece
                self.step += 1
                yield mine
                if self.shares is not shares or self.epoch != epoch:
                    break
            if self.epoch != epoch:  # somebody set another one in the middle
                return
        self.set_epoch(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; in the one that is under way this changes nothing, so that it can be resumed."""
        if epoch != self.epoch:
            self.epoch, self.taken = epoch, 0

    def reallot(self, shares: Given) -> None:
        """Other shares from the next step on. All ranks have to do it, at the same step.

        Raises:
            BadValue: as the class.
        """
        self.shares = self._checked(shares)

    def state_dict(self) -> dict[str, Any]:
        """The position: the same on all ranks, and good for any number of them and any shares."""
        return {
            "epoch": self.epoch, "taken": self.taken, "seed": self._order.seed, "shuffle": self._order.shuffle,
            "length": self._order.length,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that was saved; the seed is that of the first run, so that the order stays.

        Raises:
            CheckpointMismatch: it is that of other data, or no position; nothing was changed.
        """
        subject = "the position of HeterogeneousSampler"
        try:
            epoch, taken, seed, length = (int(state[name]) for name in ("epoch", "taken", "seed", "length"))
            shuffle = bool(state["shuffle"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointMismatch(subject, why=f"it is none: {type(error).__name__}: {error}") from None
        if length != self._order.length:
            raise CheckpointMismatch(subject, why=f"the data had {length:,} samples, and has {self._order.length:,}")
        if shuffle != self._order.shuffle or not 0 <= taken <= length or epoch < 0:
            raise CheckpointMismatch(subject, why="it is that of another order, or outside of the data")
        before = self.epoch, self.taken
        self.epoch, self.taken = epoch, taken
        try:
            self._checked(self.shares)
        except BadValue:
            self.epoch, self.taken = before
            raise
        self._order.seed = seed

    def _pieces(self, begin: int) -> list[int]:
        """The global batches of the rest of the epoch, from a sample on."""
        left = self._order.length - begin
        if self._last == "deal":
            return self.shares.epoch(left) or []
        return [self.shares.batch] * (left // self.shares.batch)

    def _checked(self, given: Given) -> Shares:
        shares = shares_of(given)
        if not 0 <= self.rank < shares.world:
            raise BadValue("HeterogeneousSampler", why=f"rank {self.rank} has no share; there are {shares.world}")
        for left in (self._order.length, self._order.length - self.taken):
            if self._last == "deal" and shares.epoch(left) is None:
                raise BadValue("HeterogeneousSampler", next_step="take last='drop', or another batch",
                               why=f"{left:,} samples cannot be dealt out in batches of at most {shares.batch} in "
                                   f"which each of {shares.world} ranks has one in each micro-batch")  # fmt: skip
        if self._order.length < (1 if self._last == "deal" else shares.batch):
            raise BadValue("HeterogeneousSampler", why=f"{self._order.length:,} samples are not one batch of "
                                                       f"{shares.batch}: no step would be made")  # fmt: skip
        return shares


class _Batches(Iterator[list[int]]):
    """This rank's batches from the sampler's position on; it can say how far it has come, and go there again."""

    def __init__(self, sampler: HeterogeneousSampler) -> None:
        self._sampler = sampler
        self._go(sampler.taken, 0)

    def _go(self, begin: int, given: int) -> None:
        self._begin, self._given = begin, given
        self._batches = itertools.islice(self._sampler.batches(begin), given, None)

    def __next__(self) -> list[int]:
        batch, following = next(self._batches)
        self._begin, self._given = (following, 0) if following else (self._begin, self._given + 1)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the step under way begins, how many of its batches were given, and the sizes of all of them."""
        return {"begin": self._begin, "given": self._given, "sizes": self._sizes()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after that batch. Raises CheckpointMismatch: a step was begun with other shares."""
        if state["given"] and state["sizes"] != self._sizes():
            raise CheckpointMismatch("the position of HeterogeneousSampler",
                                     why=f"micro-batches of {state['sizes']} were begun, now {self._sizes()}",
                                     next_step="save between two steps, or keep the shares")  # fmt: skip
        self._go(int(state["begin"]), int(state["given"]))

    def _sizes(self) -> list[int]:
        return list(self._sampler.shares.sizes[self._sampler.rank])
