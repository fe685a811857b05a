"""What a loop does between its steps, for those who write their own: resume, begin, report, end, finish."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from holdfast import adjustments, settings
from holdfast.errors import BadValue, CheckpointFailed, LossNotFinite, LossSpike
from holdfast.runtime import recorder
from holdfast.runtime.checkpoint import emergency
from holdfast.runtime.checkpoint.saver import Checkpoint
from holdfast.runtime.loop import parts, shortage, troubles
from holdfast.runtime.loop.losses import Losses, Reported
from holdfast.runtime.loop.rounds import Rounds

_log = logging.getLogger("holdfast.loop")
SPIKE = 10.0


class Hooks:
    """The steps of a training loop of one's own; :func:`holdfast.loop` is built on it::

        hooks = holdfast.Hooks(checkpoint)
        hooks.resume()
        while hooks.step < steps:
            hooks.begin()
            ...
            hooks.report(loss=loss)
            hooks.end()
        hooks.finish()

    ``step`` is the number of steps that are done; inside of one, its own number (the first is 1). All methods are to be
    called on all ranks alike. ``model`` is what exchanges gradients, for :meth:`parts`; that of the checkpoint where it
    is left out. ``spike`` is how many deviations above its median the loss has to be, three steps in a row, to be
    called a jump; None for never.
    """

    def __init__(self, checkpoint: Checkpoint | None = None, *, model: Any = None, spike: float | None = SPIKE) -> None:
        self.checkpoint = checkpoint
        self.adjustments = adjustments.read(settings.path("HOLDFAST_ADJUSTMENTS"))
        self.step = 0
        #: The newest mean loss over all ranks that is known, and the step it was in.
        self.loss: float | None = None
        self.loss_step = 0
        self._inside = False
        self._parted = False
        self._values: dict[str, Any] = {}
        self._reported, self._losses = Reported(), Losses(spike)
        self._rounds = Rounds()
        self._saved = -1
        self._saved_at = time.monotonic()
        self._every_s, self._every_steps = _schedule(checkpoint)
        self._model = model if model is not None else _only(checkpoint.state.models if checkpoint else {})
        self._listens = checkpoint is not None
        if self._listens:
            emergency.listen()
        recorder.raised_listeners[__name__] = self._raised

    @property
    def micro_batches(self) -> int:
        """In how many pieces a batch is worked through (:meth:`parts`) in this step."""
        count, fewer_from = self.adjustments.micro_batches, self.adjustments.fewer_from
        return count if fewer_from is None or self.step < fewer_from else max(1, count // 2)

    @property
    def activation_checkpointing(self) -> bool:
        """Whether the policy asks the model to compute activations again rather than keep them."""
        return self.adjustments.activation_checkpointing

    def resume(self) -> int:
        """Restore the newest valid checkpoint, where there is one; the number of steps that are done.

        Raises:
            CheckpointMismatch, CheckpointFailed: as :meth:`holdfast.Checkpoint.load`.
        """
        for reason in self.adjustments.reasons:
            _log.warning("%s", reason)
        if self.checkpoint is not None:
            restored = self.checkpoint.load(before=self.adjustments.resume_before)
            if restored is not None:
                self.step = self._saved = restored.step
                _lower_scale(self.checkpoint, self.adjustments.loss_scale)
                _log.info("going on after step %d of %s", restored.step, restored.folder)
        self._saved_at = time.monotonic()
        self._rounds.begin(self.step)
        return self.step

    def begin(self) -> int:
        """A step begins; its number."""
        self.step += 1
        self._inside = True
        recorder.step(self.step)
        return self.step

    @property
    def skipped(self) -> bool:
        """Whether the batch of this step is to be left out, as the policy decided."""
        return self.adjustments.skips(self.step)

    def parts(self, batch: Any) -> Iterator[parts.Part]:
        """The batch in :attr:`micro_batches` pieces, each with its share of the batch::

            for part, weight in loop.parts(batch):
                (weight * mean_loss(model(part))).backward()

        Their gradients add up to those of the whole batch; ranks exchange them in the last piece alone.
        """
        self._parted = True
        return parts.parts(batch, self.micro_batches, self._model)

    def report(self, loss: float | torch.Tensor | None = None, **values: Any) -> None:
        """Tell this rank's loss of this step, and further values, which the next checkpoint's manifest keeps."""
        if loss is not None:
            self._reported.put(self.step, loss)
        self._values.update(values)

    def end(self) -> None:
        """The step is over. Saves where it is time, and leaves where the scheduler has warned.

        Raises:
            LossNotFinite, LossSpike: the mean loss over all ranks is no good; on all ranks alike.
            SystemExit: the job was asked to end, and has saved.
        """
        self._inside = False
        leave = self._listens and emergency.due(self.step)
        by_steps = self._every_steps is not None and self.step % self._every_steps == 0
        if leave or by_steps or self._rounds.due(self.step):
            due = self._meet(waits=leave or by_steps)
            if leave or by_steps or due:
                self.save(wait=leave)
        if leave:
            self._leave()

    def _leave(self) -> None:
        emergency.leave()

    def save(self, *, wait: bool = False) -> None:
        """Save now, on all ranks; does nothing where this step is saved. What fails is said, and training goes on."""
        if self.checkpoint is None:
            return
        try:
            if self._saved != self.step:
                values = dict(self._values)
                if self.loss is not None:
                    values.setdefault("loss", self.loss)
                self.checkpoint.save(self.step, values=values)
                self._saved, self._saved_at = self.step, time.monotonic()
            if wait:
                self.checkpoint.wait()
        except CheckpointFailed as error:
            self._saved_at = time.monotonic()
            _log.error("%s", error)
            recorder.warn("a checkpoint", str(error))

    def finish(self) -> None:
        """The loop is over: what was not saved is, and all ranks wait until it is.

        Raises:
            CheckpointFailed: the last checkpoint could not be saved.
            LossNotFinite, LossSpike: as :meth:`end`.
        """
        self._meet(waits=True)
        if self.checkpoint is not None and self._saved != self.step and self.step:
            self.save()
        if self.checkpoint is not None:
            self.checkpoint.wait()
            emergency.stop()

    def _meet(self, *, waits: bool) -> bool:
        """Learn with all ranks what the losses were, and whether it is time to save.

        ``waits``: the losses of a device are wanted up to this step, where else the step before will do.
        """
        late = self._every_s is not None and time.monotonic() - self._saved_at >= self._every_s
        save = late and (self.checkpoint is None or not self.checkpoint.busy)
        until = self._reported.until(self.step, waits=waits)
        own = self._reported.take(until)
        met = self._rounds.meet(self.step, until, own, save=save)
        for step, loss in met.losses.items():
            self._judge(step, loss, own.get(step))
        return met.due

    def _judge(self, step: int, loss: float, own: float | None) -> None:
        """The mean loss of ``step``, and this rank's: what is no good is noted for the policy, and ends all ranks."""
        self.loss, self.loss_step = loss, step
        bad = self._losses.add(step, loss)
        if bad is None:
            return
        kind = LossSpike if bad.what == "spike" else LossNotFinite
        troubles.note_loss(bad, self.step, own, kind.__name__, self._pieces())
        steps = f"step {bad.first}" if bad.first == bad.last else f"steps {bad.first} to {bad.last}"
        usual = "" if bad.usual is None else f", and was {bad.usual:.4g} before"
        raise kind(steps, why=f"its mean over all ranks is {bad.value:.4g}{usual}", first=bad.first, last=bad.last)

    def _raised(self, error: BaseException) -> None:
        """The script ends by ``error``: out of memory is noted with what the policy has to know of it."""
        where = shortage.of(error)
        if where:
            troubles.note_memory(error, self.step, self._pieces(), device=where == "device")

    def _pieces(self) -> int | None:
        return self.micro_batches if self._parted else None


def _schedule(checkpoint: Checkpoint | None) -> tuple[float | None, int | None]:
    """Seconds and steps between two saves."""
    options = checkpoint.options if checkpoint is not None else {}
    every, every_steps = options.get("every"), options.get("every_steps")
    if every_steps is not None and every_steps < 1:
        raise BadValue(f"Checkpoint(every_steps={every_steps})", why="it has to be 1 or more")
    if checkpoint is not None and every is None and every_steps is None:
        every = "10m"
    return None if every is None else recorder.seconds(every), every_steps


def _only(models: dict[str, Any]) -> Any:
    return next(iter(models.values())) if len(models) == 1 else None


def _lower_scale(checkpoint: Checkpoint, factor: float) -> None:
    scaler = checkpoint.state.stateful.get(".scaler")
    if scaler is None or factor == 1:
        return
    state = scaler.state_dict()
    if state.get("scale"):
        scaler.load_state_dict({**state, "scale": state["scale"] * factor})
        _log.warning("the loss scale is %g instead of %g", state["scale"] * factor, state["scale"])


def ranks() -> int:
    """How many ranks the job has."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This rank's number."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
