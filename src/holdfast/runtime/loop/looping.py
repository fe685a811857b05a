"""``holdfast.loop``: the batches of a training job, in spite of everything."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from torch.utils.data import DataLoader

from holdfast.errors import BadValue
from holdfast.runtime.checkpoint.saver import Checkpoint
from holdfast.runtime.loop import position as positions
from holdfast.runtime.loop.hooks import SPIKE, Hooks, rank, ranks

_log = logging.getLogger("holdfast.loop")
_NAME = "loop"


class Loop(Hooks):
    """The batches of all epochs, from where the job had come to; see :func:`loop`."""

    def __init__(
        self, loader: Iterable[Any], checkpoint: Checkpoint | None, *, epochs: int | None, steps: int | None,
        keep: Literal["global batch", "batch"], **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(checkpoint, **options)
        self.loader = loader
        self.epochs = 1 if epochs is None and steps is None else epochs
        self.steps = steps
        self._keep = keep
        self._bound_workers()
        self._position = positions.of(loader, ranks())
        self._restored = False
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
        if self.step and not self._restored:
            _log.warning(
                "the checkpoint of step %d does not tell where the data was: it begins from its start", self.step
            )
        if self.step and not self._parted and self.adjustments.micro_batches > 1:
            _log.info("batches come in %d pieces, for who asks for loop.parts(batch)", self.adjustments.micro_batches)
        return self.step

    def state_dict(self) -> dict[str, Any]:
        """Where the data is."""
        return self._position.state()

    def load_state_dicts(self, states: list[dict[str, Any]]) -> None:
        """Go to where the data was; ``states`` are those of all ranks that saved."""
        self._restored = True
        state = states[rank() if len(states) == ranks() else 0]
        why = self._position.restore(state)
        if why:
            _log.warning("epoch %d begins again: %s", self._position.epoch, why)
        elif isinstance(self._position, positions.Ordered):
            self._follow(self._position, state)

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


def loop(
    loader: Iterable[Any],
    checkpoint: Checkpoint | None = None,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    keep: Literal["global batch", "batch"] = "global batch",
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
    ``keep="batch"`` leaves each rank's own as the script says. ``model`` and ``spike``: see :class:`Hooks`.

    Raises:
        BadValue: the loader cannot be gone through more than once.
    """
    return Loop(loader, checkpoint, epochs=epochs, steps=steps, keep=keep, model=model, spike=spike)
