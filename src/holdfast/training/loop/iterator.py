"""``holdfast.loop``: iterate over training batches, with resume, checkpoints and recovery."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from torch.utils.data import DataLoader

from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.checkpoint.checkpoint import Checkpoint
from holdfast.training.loop import data_position as positions
from holdfast.training.loop import learning_rate
from holdfast.training.loop.hooks import DEFAULT_SPIKE, Hooks, current_rank, world_size

_log = logging.getLogger("holdfast.loop")
_STATE_NAME = "loop"


class TrainingLoop(Hooks):
    """The batches of all epochs, from the restored position; see :func:`loop`."""

    def __init__(
        self,
        loader: Iterable[Any],
        checkpoint: Checkpoint | None,
        *,
        epochs: int | None,
        steps: int | None,
        keep: Literal["global batch", "batch"],
        rate: Literal["linear", "sqrt"] | None,
        **options: Any,
    ) -> None:
        super().__init__(checkpoint, **options)
        self.loader = loader
        self.epochs = 1 if epochs is None and steps is None else epochs
        self.steps = steps
        self._keep = keep
        self._rate_rule = rate
        learning_rate.scale_factor(rate, 1.0)  # reject an unknown rule now
        self._limit_workers()
        self._position = positions.position_of(loader, world_size())
        self._restored = False
        self._initial_batch = self._position.global_batch
        self._rate, self._restored_rate = 1.0, 1.0
        if checkpoint is not None:
            checkpoint.state.stateful[_STATE_NAME] = self

    @property
    def epoch(self) -> int:
        """Return the epoch, from 0."""
        return self._position.epoch

    @property
    def last_of_epoch(self) -> bool:
        """Return whether this is the epoch's last batch. Raises InvalidValue if unknown."""
        remaining = self._position.remaining()
        if remaining is None:
            raise InvalidValue("last_of_epoch", why="this loader has no length")
        return remaining == 1

    def __iter__(self) -> Iterator[Any]:
        self.resume()
        while not self._is_finished():
            first_step = self.step
            for batch in self._position.batches():
                self.begin()
                if self.skipped:
                    _log.warning("skipping the batch of step %d", self.step)
                else:
                    yield batch
                self._position.advance()
                self.end()
                if self.steps is not None and self.step >= self.steps:
                    break
            else:
                if self.step == first_step and not self._position.taken:
                    raise InvalidValue("the loader of holdfast.loop", why="it yields no batches")
                self._position.next_epoch()
        self.finish()

    def resume(self) -> int:
        """Resume as :meth:`Hooks.resume` does, and go to the saved data position."""
        super().resume()
        self._adapt_rate()
        if self.step and not self._restored:
            _log.warning(
                "the checkpoint of step %d has no data position: data starts from the beginning",
                self.step,
            )
        if self.step and not self._batch_split and self.micro_batches > 1:
            _log.info(
                "use loop.split_batch(batch) to split batches into %d micro-batches",
                self.micro_batches,
            )
        return self.step

    def state_dict(self) -> dict[str, Any]:
        """Return the data position, the initial global batch, and the learning-rate factor."""
        return self._position.state() | {"first_batch": self._initial_batch, "rate": self._rate}

    def load_state_dicts(self, states: list[dict[str, Any]]) -> None:
        """Go to the saved data position; ``states`` are those of all ranks that saved."""
        self._restored = True
        state = states[current_rank() if len(states) == world_size() else 0]
        why = self._position.restore(state)
        if why:
            _log.warning("epoch %d restarts: %s", self._position.epoch, why)
        elif isinstance(self._position, positions.OrderPosition):
            self._adapt_batch(self._position, state)
        own_batch = int(state["ranks"]) * (self._position.global_batch // self._position.ranks)
        self._initial_batch = int(state.get("first_batch", state.get("global_batch", own_batch)))
        self._restored_rate = float(state.get("rate", 1.0))

    def _adapt_batch(self, position: positions.OrderPosition, state: dict[str, Any]) -> None:
        """Adapt to a changed number of ranks: keep the global batch if it is divisible."""
        order, previous_batch = position.order, int(state["global_batch"])
        own_batch = order.batch_size
        if (
            own_batch is None
            or state["batch_size"] != own_batch
            or previous_batch == order.global_batch
            or self._keep == "batch"
        ):
            return
        if previous_batch % order.replicas:
            _log.warning(
                "the global batch of %d samples is not divisible by %d ranks: it is %d now",
                previous_batch,
                order.replicas,
                order.global_batch,
            )
            return
        order.batch_size = previous_batch // order.replicas
        _log.warning(
            "%d ranks instead of %d: batches of %d samples instead of %d keep the global batch "
            "at %d",
            order.replicas,
            state["ranks"],
            order.batch_size,
            own_batch,
            previous_batch,
        )

    def _adapt_rate(self) -> None:
        """Rescale the restored learning rates to the current global batch, if requested."""
        restored_rate, current_batch = self._restored_rate, self._position.global_batch
        self._rate = (
            restored_rate
            if self._rate_rule is None
            else learning_rate.scale_factor(self._rate_rule, current_batch / self._initial_batch)
        )
        if self.checkpoint is None or math.isclose(self._rate, restored_rate):
            return
        state = self.checkpoint.state
        learning_rate.scale_rates(
            state.optimizers.values(), state.stateful.get(".scheduler"), self._rate / restored_rate
        )
        self._restored_rate = self._rate
        self._values["rate_factor"] = self._rate
        _log.warning(
            "the global batch is %d samples, initially %d: learning rates are scaled by %.4g "
            "(%s rule)",
            current_batch,
            self._initial_batch,
            self._rate,
            self._rate_rule,
        )

    def _is_finished(self) -> bool:
        done = self.epochs is not None and self._position.epoch >= self.epochs
        return done or (self.steps is not None and self.step >= self.steps)

    def _limit_workers(self) -> None:
        """Reduce the loader workers as the policy decided after host memory ran out."""
        max_workers, loader = self.adjustments.loader_workers, self.loader
        if (
            max_workers is None
            or not isinstance(loader, DataLoader)
            or loader.num_workers <= max_workers
        ):
            return
        _log.warning("reducing loader workers from %d to %d", loader.num_workers, max_workers)
        loader.num_workers = max_workers
        if not max_workers:  # settings that require workers
            loader.timeout = 0
            vars(loader)["prefetch_factor"] = None


@suggest_keywords
def loop(  # noqa: PLR0913 - keyword arguments of a script
    loader: Iterable[Any],
    checkpoint: Checkpoint | None = None,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    keep: Literal["global batch", "batch"] = "global batch",
    rate: Literal["linear", "sqrt"] | None = None,
    model: Any = None,
    spike: float | None = DEFAULT_SPIKE,
    micro_batches: int | None = None,
) -> TrainingLoop:
    """Iterate over ``loader`` for ``epochs``, or until ``steps`` (the earlier; default 1 epoch)::

        checkpoint = holdfast.Checkpoint("checkpoints", model=model, optimizer=optimizer)
        loop = holdfast.loop(loader, checkpoint, epochs=10)
        for batch in loop:
            ...
            loop.report(loss=loss)

    Starts with the next sample after the newest valid checkpoint. Saves at the interval, at the
    end, and before the scheduler ends the job. Applies what the policy of ``holdfast run`` decided
    after a failure. Create it and iterate over it on all ranks. Samplers get ``set_epoch``.

    If the number of ranks has changed, the per-rank batch is adapted so that the ``"global batch"``
    is unchanged; ``keep="batch"`` keeps the script's per-rank batch. If the global batch then
    differs from the initial one, ``rate`` rescales the learning rates of the checkpoint's optimizer
    and scheduler: ``"linear"`` with the batch, ``"sqrt"`` with its square root, None not at all.
    ``model``, ``spike`` and ``micro_batches``: see :class:`Hooks`.

    Raises:
        InvalidValue: the loader cannot be iterated more than once.
        UnknownName: the learning-rate rule does not exist.
    """
    return TrainingLoop(
        loader,
        checkpoint,
        epochs=epochs,
        steps=steps,
        keep=keep,
        rate=rate,
        model=model,
        spike=spike,
        micro_batches=micro_batches,
    )
