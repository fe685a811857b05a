"""``holdfast.loop``: the batches of a training job, in spite of everything."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from torch.utils.data import DataLoader

from holdfast.errors import BadValue
from holdfast.runtime.checkpoint.saver import Checkpoint
from holdfast.runtime.loop import position as positions
from holdfast.runtime.loop import rates
from holdfast.runtime.loop.hooks import SPIKE, Hooks, rank, ranks

_log = logging.getLogger("holdfast.loop")
_NAME = "loop"


class Loop(Hooks):
    """The batches of all epochs, from where the job had come to; see :func:`loop`."""

    def __init__(
        self, loader: Iterable[Any], checkpoint: Checkpoint | None, *, epochs: int | None, steps: int | None,
        keep: Literal["global batch", "batch"], rate: Literal["linear", "sqrt"] | None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(checkpoint, **options)
        self.loader = loader
        self.epochs = 1 if epochs is None and steps is None else epochs
        self.steps = steps
        self._keep = keep
        self._rule = rate
        rates.factor(rate, 1.0)  # an unknown rule is said now
        self._bound_workers()
        self._position = positions.of(loader, ranks())
        self._restored = False
        self._first_batch = self._position.global_batch
        self._rate, self._rate_then = 1.0, 1.0
        if checkpoint is not None:
            checkpoint.state.stateful[_NAME] = self

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        return self._position.epoch

    @property
    def last_of_epoch(self) -> bool:
        """Whether this batch is the last one of its epoch. Raises BadValue where the loader does not know."""
        left = self._position.left()
        if left is None:
            raise BadValue("last_of_epoch", why="this loader does not tell how many batches it has")
        return left == 1

    def __iter__(self) -> Iterator[Any]:
        self.resume()
        while not self._over():
            begun = self.step
            for batch in self._position.batches():
                self.begin()
                if self.skipped:
                    _log.warning("the batch of step %d is left out", self.step)
                else:
                    yield batch
                self._position.took()
                self.end()
                if self.steps is not None and self.step >= self.steps:
                    break
            else:
                if self.step == begun and not self._position.taken:
                    raise BadValue("the loader of holdfast.loop", why="an epoch of it has no batch")
                self._position.next_epoch()
        self.finish()

    def resume(self) -> int:
        """As :meth:`Hooks.resume`, and go to where the data was."""
        super().resume()
        self._follow_rate()
        if self.step and not self._restored:
            _log.warning(
                "the checkpoint of step %d does not tell where the data was: it begins from its start", self.step
            )
        if self.step and not self._parted and self.adjustments.micro_batches > 1:
            _log.info("batches come in %d pieces, for who asks for loop.parts(batch)", self.adjustments.micro_batches)
        return self.step

    def state_dict(self) -> dict[str, Any]:
        """Where the data is, the global batch that the job began with, and the factor of its rates."""
        return self._position.state() | {"first_batch": self._first_batch, "rate": self._rate}

    def load_state_dicts(self, states: list[dict[str, Any]]) -> None:
        """Go to where the data was; ``states`` are those of all ranks that saved."""
        self._restored = True
        state = states[rank() if len(states) == ranks() else 0]
        why = self._position.restore(state)
        if why:
            _log.warning("epoch %d begins again: %s", self._position.epoch, why)
        elif isinstance(self._position, positions.Ordered):
            self._follow(self._position, state)
        own = int(state["ranks"]) * (self._position.global_batch // self._position.ranks)
        self._first_batch = int(state.get("first_batch", state.get("global_batch", own)))
        self._rate_then = float(state.get("rate", 1.0))

    def _follow(self, position: positions.Ordered, state: dict[str, Any]) -> None:
        """The number of ranks has changed: keep the global batch where it can be divided, else the ranks' own."""
        order, before = position.order, int(state["global_batch"])
        own = order.batch_size
        if own is None or state["batch_size"] != own or before == order.global_batch or self._keep == "batch":
            return
        if before % order.replicas:
            _log.warning("the global batch was %d samples, which %d ranks cannot share: it is %d now",
                         before, order.replicas, order.global_batch)  # fmt: skip
            return
        order.batch_size = before // order.replicas
        _log.warning("%d ranks instead of %d: batches of %d samples instead of %d keep the global batch at %d",
                     order.replicas, state["ranks"], order.batch_size, own, before)  # fmt: skip

    def _follow_rate(self) -> None:
        """The rates that were restored belong to another global batch: they follow as the script says."""
        then, now = self._rate_then, self._position.global_batch
        self._rate = then if self._rule is None else rates.factor(self._rule, now / self._first_batch)
        if self.checkpoint is None or math.isclose(self._rate, then):
            return
        state = self.checkpoint.state
        rates.scale(state.optimizers.values(), state.stateful.get(".scheduler"), self._rate / then)
        self._rate_then = self._rate
        self._values["rate_factor"] = self._rate
        _log.warning("the global batch is %d samples, and was %d in the beginning: learning rates are %.4g times those "
                     "of the beginning (%s)", now, self._first_batch, self._rate, self._rule)  # fmt: skip

    def _over(self) -> bool:
        done = self.epochs is not None and self._position.epoch >= self.epochs
        return done or (self.steps is not None and self.step >= self.steps)

    def _bound_workers(self) -> None:
        """Fewer loader workers, where the host's memory did not suffice for as many."""
        most, loader = self.adjustments.loader_workers, self.loader
        if most is None or not isinstance(loader, DataLoader) or loader.num_workers <= most:
            return
        _log.warning("the loader gets %d workers instead of %d", most, loader.num_workers)
        loader.num_workers = most
        if not most:  # what a loader without workers must not have
            loader.timeout = 0
            vars(loader)["prefetch_factor"] = None


def loop(  # noqa: PLR0913 - one line of a script, in which each stands with its name
    loader: Iterable[Any],
    checkpoint: Checkpoint | None = None,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    keep: Literal["global batch", "batch"] = "global batch",
    rate: Literal["linear", "sqrt"] | None = None,
    model: Any = None,
    spike: float | None = SPIKE,
) -> Loop:
    """Go through ``loader`` for ``epochs``, or until ``steps`` steps are done (whichever comes first; else one epoch)::

        checkpoint = holdfast.Checkpoint("checkpoints", model=model, optimizer=optimizer, every="10m")
        loop = holdfast.loop(loader, checkpoint, epochs=10)
        for batch in loop:
            ...
            loop.report(loss=loss)

    It begins where the newest valid checkpoint ends, with the sample that comes next; it saves when it is time, at the
    end, and before the scheduler ends the job; it does what the policy of ``holdfast run`` decided after a failure. To
    be made and gone through on all ranks alike. Samplers are told their epoch.

    Where the number of ranks has changed, the batch of each follows, so that the ``"global batch"`` stays as it was;
    ``keep="batch"`` leaves each rank's own as the script says. Where the global batch then differs from the one that
    the job began with, ``rate`` has the learning rates of the checkpoint's optimizer and scheduler follow: ``"linear"``
    as the batch, ``"sqrt"`` as its root, None not at all. ``model`` and ``spike``: see :class:`Hooks`.

    Raises:
        BadValue: the loader cannot be gone through more than once.
        UnknownName: there is no such rule for the rate.
    """
    return Loop(loader, checkpoint, epochs=epochs, steps=steps, keep=keep, rate=rate, model=model, spike=spike)
