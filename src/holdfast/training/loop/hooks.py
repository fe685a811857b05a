"""The hooks of ``holdfast.loop`` for custom loops: resume, begin, report, end, finish."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from holdfast import recorder
from holdfast.core import adjustments, settings
from holdfast.core.errors import CheckpointFailed, InvalidValue, LossNotFinite, LossSpike
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.checkpoint import emergency
from holdfast.training.checkpoint.checkpoint import Checkpoint
from holdfast.training.loop import failure_notes, micro_batches, oom_detection
from holdfast.training.loop.loss_monitor import LossMonitor, PendingLosses
from holdfast.training.loop.micro_batches import MicroBatch
from holdfast.training.loop.step_sync import StepSync

_log = logging.getLogger("holdfast.loop")
DEFAULT_SPIKE = 10.0


@suggest_keywords
class Hooks:
    """The hooks of a custom training loop; :func:`holdfast.loop` is built on them::

        hooks = holdfast.Hooks(checkpoint)
        hooks.resume()
        while hooks.step < steps:
            hooks.begin()
            ...
            hooks.report(loss=loss)
            hooks.end()
        hooks.finish()

    ``step`` is the number of completed steps; inside a step, its own number (from 1). Call all
    methods on all ranks. ``model`` is the one that synchronizes gradients, for :meth:`split_batch`;
    by default the checkpoint's. ``spike`` is how many deviations above its median the loss must be,
    three steps in a row, to count as a spike; None disables it. ``micro_batches``: how many
    :meth:`split_batch` makes; None is as HOLDFAST_MICRO_BATCHES or a preset says.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None = None,
        *,
        model: Any = None,
        spike: float | None = DEFAULT_SPIKE,
        micro_batches: int | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.adjustments = adjustments.read_adjustments(settings.read_path("HOLDFAST_ADJUSTMENTS"))
        self._least_micro_batches = (
            settings.read_count("HOLDFAST_MICRO_BATCHES")
            if micro_batches is None
            else micro_batches
        )
        self.step = 0
        #: The latest known mean loss over all ranks.
        self.loss: float | None = None
        self._batch_split = False
        self._values: dict[str, Any] = {}
        self._reported, self._monitor = PendingLosses(), LossMonitor(spike)
        self._sync = StepSync()
        self._saved = -1
        self._saved_at = time.monotonic()
        self._every_s, self._every_steps = _save_interval(checkpoint)
        self._model = (
            model
            if model is not None
            else _single_model(checkpoint.state.models if checkpoint else {})
        )
        self._handles_preemption = checkpoint is not None
        if self._handles_preemption:
            emergency.start_listening(interrupt=True)
        recorder.raised_listeners[__name__] = self._on_exception

    @property
    def micro_batches(self) -> int:
        """Return how many micro-batches :meth:`split_batch` makes in this step.

        As many as requested, or more if the recovery policy decided so.
        """
        count, fewer_from = self.adjustments.micro_batches, self.adjustments.fewer_from
        if fewer_from is not None and self.step >= fewer_from:
            count //= 2
        return max(count, self._least_micro_batches)

    @property
    def activation_checkpointing(self) -> bool:
        """Return whether the policy requests activation checkpointing."""
        return self.adjustments.activation_checkpointing

    def resume(self) -> int:
        """Restore the newest valid checkpoint, if any; return the number of completed steps.

        Raises:
            CheckpointMismatch, CheckpointFailed: as :meth:`holdfast.Checkpoint.load`.
        """
        for reason in self.adjustments.reasons:
            _log.warning("%s", reason)
        if self.checkpoint is not None:
            restored = self.checkpoint.load(before=self.adjustments.resume_before)
            if restored is not None:
                self.step = self._saved = restored.step
                _lower_loss_scale(self.checkpoint, self.adjustments.loss_scale)
                _log.info("resuming after step %d from %s", restored.step, restored.folder)
            self.checkpoint.claim()
        self._saved_at = time.monotonic()
        self._sync.begin(self.step)
        return self.step

    def begin(self) -> int:
        """Begin a step; return its number."""
        self.step += 1
        recorder.step(self.step)
        return self.step

    @property
    def skipped(self) -> bool:
        """Return whether the policy skips this step's batch."""
        return self.adjustments.skips(self.step)

    def parts(self, batch: Any) -> Iterator[MicroBatch]:
        """Deprecated name of :meth:`split_batch`."""
        warnings.warn("parts is now split_batch", DeprecationWarning, stacklevel=2)
        return self.split_batch(batch)

    def split_batch(self, batch: Any) -> Iterator[MicroBatch]:
        """Split the batch into :attr:`micro_batches`, each with its share of the batch::

            for part, weight in loop.split_batch(batch):
                (weight * mean_loss(model(part))).backward()

        Their gradients add up to those of the whole batch; ranks synchronize them in the last one
        only.
        """
        self._batch_split = True
        return micro_batches.split_batch(batch, self.micro_batches, self._model)

    def report(self, loss: float | torch.Tensor | None = None, **values: Any) -> None:
        """Report this rank's loss of this step, and further values for the next checkpoint."""
        if loss is not None:
            self._reported.put(self.step, loss)
        self._values.update(values)

    def end(self) -> None:
        """End the step. Saves when due, and exits if the scheduler sent a signal.

        Raises:
            LossNotFinite, LossSpike: the mean loss over all ranks is anomalous; on all ranks.
            SystemExit: the job was preempted, and has saved.
        """
        is_preempted = self._handles_preemption and emergency.is_due(self.step)
        by_steps = self._every_steps is not None and self.step % self._every_steps == 0
        if is_preempted or by_steps or self._sync.is_due(self.step):
            due = self._sync_ranks(waits=is_preempted or by_steps)
            if is_preempted or by_steps or due:
                self.save(wait=is_preempted)
        if is_preempted:
            self._exit()

    def _exit(self) -> None:
        emergency.exit_rank()

    def save(self, *, wait: bool = False) -> None:
        """Save now, on all ranks, unless this step is saved; failures are logged, not raised."""
        if self.checkpoint is None:
            return
        try:
            self._save_step(self.checkpoint)
            if wait:
                self.checkpoint.wait()
        except CheckpointFailed as error:
            self._saved_at = time.monotonic()
            _log.error("%s", error)
            recorder.record_warning("a checkpoint", str(error))

    def _save_step(self, checkpoint: Checkpoint) -> None:
        if self._saved == self.step:
            return
        values = dict(self._values)
        if self.loss is not None:
            values.setdefault("loss", self.loss)
        checkpoint.save(self.step, values=values)
        self._saved, self._saved_at = self.step, time.monotonic()

    def finish(self) -> None:
        """Finish the loop: save if needed, and wait until the checkpoint is committed.

        Raises:
            CheckpointFailed: the last checkpoint could not be saved.
            LossNotFinite, LossSpike: as :meth:`end`.
        """
        self._sync_ranks(waits=True)
        if self.checkpoint is not None:
            if self.step:
                self._save_step(self.checkpoint)
            self.checkpoint.wait()
            emergency.stop_listening()

    def _sync_ranks(self, *, waits: bool) -> bool:
        """Share the losses with all ranks; return whether to save now.

        ``waits`` includes device losses up to this step, instead of the one before.
        """
        is_late = self._every_s is not None and time.monotonic() - self._saved_at >= self._every_s
        save = is_late and (self.checkpoint is None or not self.checkpoint.busy)
        last = self._reported.last_shareable(self.step, waits=waits)
        own_loss = self._reported.take(last)
        shared = self._sync.sync(self.step, last, own_loss, save=save)
        for step, loss in shared.losses.items():
            self._check_loss(step, loss, own_loss.get(step))
        return shared.due

    def _check_loss(self, step: int, loss: float, own_loss: float | None) -> None:
        """Check the mean loss of ``step``; record an anomaly, and raise it on all ranks."""
        self.loss = loss
        anomaly = self._monitor.add(step, loss)
        if anomaly is None:
            return
        error_type = LossSpike if anomaly.what == "spike" else LossNotFinite
        failure_notes.record_loss_anomaly(
            anomaly, self.step, own_loss, error_type.__name__, self._micro_batches_used()
        )
        steps = (
            f"step {anomaly.first}"
            if anomaly.first == anomaly.last
            else f"steps {anomaly.first} to {anomaly.last}"
        )
        previously = "" if anomaly.usual is None else f" (previously {anomaly.usual:.4g})"
        raise error_type(
            steps,
            why=f"the mean over all ranks is {anomaly.value:.4g}{previously}",
            first=anomaly.first,
            last=anomaly.last,
        )

    def _on_exception(self, error: BaseException) -> None:
        """Record an out-of-memory error that ends the script, with what the policy needs."""
        memory_kind = oom_detection.classify_oom(error)
        if memory_kind:
            failure_notes.record_out_of_memory(
                error, self.step, self._micro_batches_used(), device=memory_kind == "device"
            )

    def _micro_batches_used(self) -> int | None:
        return self.micro_batches if self._batch_split else None


def _save_interval(checkpoint: Checkpoint | None) -> tuple[float | None, int | None]:
    """Return the save interval in seconds and in steps."""
    options = checkpoint.options if checkpoint is not None else {}
    every, every_steps = options.get("every"), options.get("every_steps")
    if every_steps is not None and every_steps < 1:
        raise InvalidValue(f"Checkpoint(every_steps={every_steps})", why="it must be at least 1")
    if checkpoint is not None and every is None and every_steps is None:
        every = "10m"
    return None if every is None else recorder.parse_duration(every), every_steps


def _single_model(models: dict[str, Any]) -> Any:
    return next(iter(models.values())) if len(models) == 1 else None


def _lower_loss_scale(checkpoint: Checkpoint, factor: float) -> None:
    scaler = checkpoint.state.stateful.get(".scaler")
    if scaler is None or factor == 1:
        return
    state = scaler.state_dict()
    if state.get("scale"):
        scaler.load_state_dict({**state, "scale": state["scale"] * factor})
        _log.warning(
            "lowering the loss scale from %g to %g", state["scale"], state["scale"] * factor
        )


def world_size() -> int:
    """Return the number of ranks of the job."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def current_rank() -> int:
    """Return this rank's number."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
