"""Hooks for a framework's loop, where the framework counts steps and writes the checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import recorder
from holdfast.core import settings
from holdfast.training.checkpoint import emergency, folder_owner
from holdfast.training.checkpoint.store_agreement import StoreAgreement
from holdfast.training.collectives.groups.group_info import GenerationCounter
from holdfast.training.loop.hooks import DEFAULT_SPIKE, Hooks

_log = logging.getLogger("holdfast.checkpoint")
#: Numbers the claims of this process; all ranks make them in the same order.
_claim_numbers = GenerationCounter()


class FrameworkHooks(Hooks):
    """Calls ``save`` on all ranks when due, and ``exit_process`` after the save on preemption.

    The job owns ``folder`` from the start to the end of training, as a Checkpoint owns its folder.
    ``every`` is a duration, ``every_steps`` a number of steps; None disables each.
    ``chain_signals``: call the framework's own signal handlers too.
    """

    def __init__(
        self,
        folder: Path,
        save: Callable[[], None],
        exit_process: Callable[[], None] = emergency.exit_rank,
        *,
        every: str | float | None = None,
        every_steps: int | None = None,
        spike: float | None = DEFAULT_SPIKE,
        chain_signals: bool = True,
    ) -> None:
        super().__init__(None, spike=spike)
        self._folder, self._do_save, self._do_exit = folder, save, exit_process
        self._every_s = None if every is None else recorder.parse_duration(every)
        self._every_steps = every_steps
        self._handles_preemption = True
        emergency.start_listening(chain=chain_signals)

    def start(self, step: int) -> None:
        """Start or resume training after ``step`` steps.

        Raises:
            CheckpointFailed: another job saves into the folder; on all ranks.
        """
        agreement = StoreAgreement(
            f"callback/{_claim_numbers.next()}",
            "owning the checkpoint folder",
            settings.read_seconds("HOLDFAST_CHECKPOINT_S"),
        )
        folder_owner.claim_on_all_ranks(self._folder, agreement)
        self.step = step
        self.resume()

    def save(self, *, wait: bool = False) -> None:  # noqa: ARG002 - frameworks save synchronously
        """Make the framework save."""
        if self._saved != self.step:
            self._do_save()
            self.mark_saved()

    def mark_saved(self) -> None:
        """Record that a checkpoint of this step was written."""
        self._saved, self._saved_at = self.step, time.monotonic()

    def check_loss(self, loss: float) -> None:
        """Check a loss of this step that is the same on all ranks, without a sync.

        Raises:
            LossNotFinite, LossSpike: it is anomalous.
        """
        self._check_loss(self.step, loss, loss)

    def _exit(self) -> None:
        self._do_exit()

    def stop(self, error: BaseException) -> None:
        """End training on an exception; warn if an announced checkpoint was not saved."""
        if emergency.announced() is not None and self._saved != self.step:
            _log.error(
                "no emergency checkpoint: training ended after step %d with %s before it was saved",
                self.step,
                type(error).__name__,
            )
        self._release()

    def finish(self) -> None:
        """End training."""
        self._sync_ranks(waits=True)
        self._release()

    def _release(self) -> None:
        folder_owner.release_folder(self._folder)
        emergency.stop_listening()
